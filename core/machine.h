/* machine.h: the memory and the CPUs that this process may use: those of the machine, within the limits of the
 * process's control groups (version 1 or 2, each from the process's own group up to the root).
 *
 * Each call reads /proc and /sys again; any thread. Without a readable file the machine counts as unlimited. */
#ifndef ZTRAIN_CORE_MACHINE_H
#define ZTRAIN_CORE_MACHINE_H

#include <stdint.h>

/* Bytes; UINT64_MAX: unknown, or no limit. */
struct machine_memory {
    uint64_t total;     /* of the machine */
    uint64_t available; /* the bytes that can be touched without a kill for it: the least of the machine's MemAvailable
                         * and of what each control group leaves, where page cache that can be dropped counts as free */
    uint64_t limit;     /* the smallest memory limit of a control group */
    uint64_t huge_page_count; /* reserved huge pages, of the default size */
};

/* root: "" on a real machine; a test's folder that holds its own /proc and /sys. */
void machine_memory(const char *root, struct machine_memory *memory);

/* The bytes that this process may still map or allocate under its own limits (setrlimit, ulimit -v and -d); UINT64_MAX:
 * there is none. */
uint64_t machine_process_room(void);

/* The cores that the affinity mask allows; at least 1. */
int machine_cores(void);

/* The cores that are online, whether this process may use them or not; at least 1. */
int machine_cores_online(void);

/* The CPU time that the control groups allow, in cores (1.5: a core and a half); 0: no limit. root: as above. */
double machine_cpu_quota(const char *root);

#endif
