/* SPDX-License-Identifier: Apache-2.0 */
/* test_machine.c: memory and CPU time over made-up /proc and /sys/fs/cgroup trees: version 1, version 2, none. */
#include "core/machine.h"

#include "core/fsutil.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB ((uint64_t)1 << 20)

static char root[64];
static pthread_barrier_t bound;

static int make_root(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/test_machine.XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}

/* Writes this text to the file `path` below the root. */
static void put(const char *path, const char *text)
{
    char file[FS_PATH_MAX], folder[FS_PATH_MAX];
    struct error err;
    snprintf(file, sizeof file, "%s/%s", root, path);
    fs_parent(file, folder);
    assert_int_equal(fs_mkdirs(folder, STATUS_DATA, &err), STATUS_OK);
    assert_int_equal(fs_write_file(file, text, strlen(text), STATUS_DATA, &err), STATUS_OK);
}

static void put_meminfo(void)
{
    put("proc/meminfo", "MemTotal:       16384 kB\nMemFree:          512 kB\nMemAvailable:    8192 kB\n"
                        "HugePages_Total:       3\nHugePages_Free:        1\n");
}

/* A group of version 2 with these MiB in its files. */
static void put_group(const char *folder, const char *limit, int current, int inactive)
{
    char path[256], text[128];
    snprintf(path, sizeof path, "%s/memory.max", folder);
    put(path, limit);
    snprintf(path, sizeof path, "%s/memory.current", folder);
    snprintf(text, sizeof text, "%llu\n", (unsigned long long)current * MIB);
    put(path, text);
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    snprintf(text, sizeof text, "anon 77\ninactive_anon 5\ninactive_file %llu\n", (unsigned long long)inactive * MIB);
    put(path, text);
}

static struct machine_memory read_memory(void)
{
    struct machine_memory memory;
    machine_memory(root, &memory);
    return memory;
}

static void without_groups_the_machine_counts(void **state)
{
    (void)state;
    struct machine_memory memory = read_memory(); /* no file exists */
    assert_true(memory.total == UINT64_MAX && memory.available == UINT64_MAX && memory.limit == UINT64_MAX);
    assert_true(machine_cpu_quota(root) == 0);
    put_meminfo();
    memory = read_memory();
    assert_true(memory.total == 16 * MIB && memory.available == 8 * MIB && memory.limit == UINT64_MAX);
    assert_int_equal(memory.huge_page_count, 3);
}

static void version_2_limits(void **state)
{
    (void)state;
    put_meminfo();
    put("proc/self/cgroup", "0::/job\n");
    put_group("sys/fs/cgroup/job", "4194304\n", 3, 1);
    put("sys/fs/cgroup/job/cpu.max", "150000 100000\n");
    struct machine_memory memory = read_memory();
    assert_true(memory.total == 16 * MIB && memory.limit == 4 * MIB);
    assert_true(memory.available == 2 * MIB); /* 4 - 3, and 1 of the 3 can be reclaimed */
    assert_true(machine_cpu_quota(root) == 1.5);
    put_group("sys/fs/cgroup/job", "4194304\n", 5, 0); /* over its limit */
    assert_true(read_memory().available == 0);
    put_group("sys/fs/cgroup/job", "max\n", 3, 1);
    put("sys/fs/cgroup/job/cpu.max", "max 100000\n");
    memory = read_memory();
    assert_true(memory.available == 8 * MIB && memory.limit == UINT64_MAX && machine_cpu_quota(root) == 0);
}

static void kills_are_those_of_the_own_group(void **state)
{
    (void)state;
    assert_true(machine_memory_kills(root) == 0); /* no file exists */
    put("proc/self/cgroup", "0::/slurm/job_7\n");
    put("sys/fs/cgroup/slurm/memory.events", "low 0\nhigh 0\nmax 9\noom 4\noom_kill 3\noom_group_kill 1\n");
    assert_true(machine_memory_kills(root) == 3); /* the container's root is the group above */
    put("sys/fs/cgroup/slurm/job_7/memory.events", "low 0\nhigh 0\nmax 9\noom 4\noom_kill 2\noom_group_kill 1\n");
    assert_true(machine_memory_kills(root) == 2);
    put("proc/self/cgroup", "4:memory:/job\n0::/\n");
    put("sys/fs/cgroup/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 8\n");
    put("sys/fs/cgroup/memory/job/memory.oom_control", "oom_kill_disable 1\nunder_oom 0\noom_kill 5\n");
    assert_true(machine_memory_kills(root) == 5);
}

static void the_least_of_nested_groups_counts(void **state)
{
    (void)state;
    put_meminfo();
    put("proc/self/cgroup", "0::/slurm/job_7/step_0\n");
    put_group("sys/fs/cgroup/slurm", "max\n", 7, 0);
    put_group("sys/fs/cgroup/slurm/job_7", "6291456\n", 5, 0);        /* leaves 1 MiB */
    put_group("sys/fs/cgroup/slurm/job_7/step_0", "5242880\n", 1, 0); /* leaves 4 MiB */
    put("sys/fs/cgroup/slurm/cpu.max", "400000 100000\n");
    put("sys/fs/cgroup/slurm/job_7/step_0/cpu.max", "50000 100000\n");
    struct machine_memory memory = read_memory();
    assert_true(memory.limit == 5 * MIB && memory.available == 1 * MIB);
    assert_true(machine_cpu_quota(root) == 0.5);
    /* a container that sees the host's path and its own group as the root */
    put("proc/self/cgroup", "0::/somewhere/else\n");
    assert_true(read_memory().available == 8 * MIB);
    put_group("sys/fs/cgroup", "3145728\n", 1, 0);
    assert_true(read_memory().available == 2 * MIB);
}

static void version_1_limits(void **state)
{
    (void)state;
    put_meminfo();
    put("proc/self/cgroup", "5:cpu,cpuacct:/job\n4:cpuset:/\n3:memory:/job\n1:name=systemd:/init.scope\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "1048576\n");
    put("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
    struct machine_memory memory = read_memory();
    assert_true(memory.available == 8 * MIB && memory.limit == UINT64_MAX && machine_cpu_quota(root) == 0);
    put("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "4194304\n");
    put("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "2097152\n");
    put("sys/fs/cgroup/memory/job/memory.stat", "inactive_file 9\ntotal_inactive_file 1048576\n");
    put("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "250000\n");
    memory = read_memory();
    assert_true(memory.limit == 4 * MIB && memory.available == 3 * MIB && machine_cpu_quota(root) == 2.5);
}

static void this_machine_has_cores_and_memory(void **state)
{
    (void)state;
    struct machine_memory memory;
    machine_memory("", &memory);
    assert_true(memory.total > MIB && memory.available <= memory.total);
    assert_true(machine_cores() >= 1 && machine_cores() <= machine_cores_online());
}

/* Sets the soft limit, to no more than the hard one allows; returns it. */
static rlim_t set_limit(int kind, rlim_t bytes)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(kind, &limit), 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max; /* RLIM_INFINITY is the largest number */
    assert_int_equal(setrlimit(kind, &limit), 0);
    return limit.rlim_cur;
}

/* The room is what is left of a limit; without one there is none to run out of. */
static void limits_of_this_process(void **state)
{
    (void)state;
    const int kinds[] = {RLIMIT_AS, RLIMIT_DATA};
    const rlim_t large = (rlim_t)1 << 47; /* more than a sanitizer maps */
    const bool unlimited =
        set_limit(RLIMIT_AS, RLIM_INFINITY) == RLIM_INFINITY && set_limit(RLIMIT_DATA, RLIM_INFINITY) == RLIM_INFINITY;
    assert_true((machine_process_room() == UINT64_MAX) == unlimited);
    for (int i = 0; i < 2; i++) {
        const rlim_t bytes = set_limit(kinds[i], large);
        const uint64_t room = machine_process_room();
        set_limit(kinds[i], 4096); /* the process has more already */
        const uint64_t none = machine_process_room();
        set_limit(kinds[i], RLIM_INFINITY);
        assert_true(room > 0 && room < bytes && none == 0);
    }
}

static void cores_of_a_device(void **state)
{
    (void)state;
    cpu_set_t cores;
    const char *device = "0000:3b:00.0", *list = "sys/bus/pci/devices/0000:3b:00.0/local_cpulist";
    assert_false(machine_device_cores(root, device, &cores));
    put(list, "0-2,7,100-101\n");
    assert_true(machine_device_cores(root, device, &cores) && CPU_COUNT(&cores) == 6);
    assert_true(CPU_ISSET(0, &cores) && CPU_ISSET(2, &cores) && CPU_ISSET(7, &cores) && CPU_ISSET(101, &cores));
    put(list, "5\n");
    assert_true(machine_device_cores(root, device, &cores) && CPU_COUNT(&cores) == 1 && CPU_ISSET(5, &cores));
    put(list, "0-99999\n"); /* more than the set holds */
    assert_true(machine_device_cores(root, device, &cores) && CPU_COUNT(&cores) == CPU_SETSIZE);
    for (int i = 0; i < 3; i++) {
        put(list, (const char *[]){"\n", "-1\n", "none\n"}[i]);
        assert_false(machine_device_cores(root, device, &cores));
    }
}

static void *read_cores(void *set)
{
    pthread_barrier_wait(&bound);
    assert_int_equal(sched_getaffinity(0, sizeof(cpu_set_t), set), 0);
    return NULL;
}

/* Also threads that ran before. */
static void all_threads_are_bound(void **state)
{
    (void)state;
    cpu_set_t all, one, seen;
    pthread_t thread;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
    assert_int_equal(pthread_barrier_init(&bound, NULL, 2), 0);
    assert_int_equal(pthread_create(&thread, NULL, read_cores, &seen), 0);
    machine_bind(&one);
    pthread_barrier_wait(&bound);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(CPU_EQUAL(&seen, &one));
    assert_int_equal(machine_cores(), 1);
    machine_bind(&all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(without_groups_the_machine_counts, make_root, remove_root),
        cmocka_unit_test_setup_teardown(version_2_limits, make_root, remove_root),
        cmocka_unit_test_setup_teardown(the_least_of_nested_groups_counts, make_root, remove_root),
        cmocka_unit_test_setup_teardown(version_1_limits, make_root, remove_root),
        cmocka_unit_test_setup_teardown(kills_are_those_of_the_own_group, make_root, remove_root),
        cmocka_unit_test_setup_teardown(cores_of_a_device, make_root, remove_root),
        cmocka_unit_test(all_threads_are_bound),
        cmocka_unit_test(this_machine_has_cores_and_memory),
        cmocka_unit_test(limits_of_this_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
