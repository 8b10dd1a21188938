/* SPDX-License-Identifier: Apache-2.0 */
/* bench_comm.c: measures the speed of the collectives; test_comm.c checks their results.
 *
 *     make build/tests/bench_comm
 *     build/tests/bench_comm NODES [MIB [COUNT [NAMESPACES [within]]]]
 *
 * NODES is the node of each rank (0,0,1,1: two nodes of two ranks, which talk over loopback); MIB the bytes of a whole
 * buffer, all ranks' slices; COUNT the number of repetitions. NAMESPACES (left,right): the network namespace of each
 * node, made with `ip netns add`; within: reduce_within_node. Prints the median time of each collective, the bytes that
 * it moved over the network into the busiest node, and the time of a barrier. */
#include "gpu/open/device_open.h"
#include "tests/unit/fixtures/one_op.h"
#include "tests/unit/fixtures/ranks.h"

#include <fcntl.h>
#include <sched.h>

static struct error error;

struct bench {
    size_t bytes;
    int count;
    char *namespaces[RANKS_MAX]; /* by node; NULL: this process's */
    bool within_node;
};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void enter_namespace(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "/var/run/netns/%s", name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET) != 0) {
        perror(path);
        _exit(1);
    }
    close(fd);
}

/* bytes that one operation moves into this node */
static double node_bytes(struct comm *comm, const struct bootstrap *boot, int64_t received)
{
    double all[RANKS_MAX] = {0}, most = 0;
    all[boot->node] = (double)received;
    CHECK_OK(comm_sum(comm, all, boot->num_nodes, &error));
    for (int n = 0; n < boot->num_nodes; n++) most = all[n] > most ? all[n] : most;
    return most;
}

static void body(struct bootstrap *boot, void *context)
{
    const struct bench *bench = context;
    if (bench->namespaces[boot->node]) enter_namespace(bench->namespaces[boot->node]);
    struct comm_config config = {.timeout_seconds = 30, .reduce_within_node = bench->within_node};
    struct comm *comm;
    struct device *device;
    struct stream *stream;
    void *segment;
    CHECK_OK(comm_open(boot, &config, &comm, &error));
    CHECK_OK(device_open(DEVICE_CPU, 0, 1, &device, &error));
    CHECK_OK(stream_new(device, STREAM_COMM, &stream, &error));
    size_t count = bench->bytes / sizeof(float) / (size_t)boot->world;
    CHECK_OK(comm_share(comm, bench->bytes, &segment, &error));
    float *data = segment, *own = data + count * (size_t)boot->rank;
    double *times = calloc((size_t)bench->count, sizeof *times);
    CHECK(times);
    for (int kind = 0; kind < 3; kind++) {
        struct comm_stats stats;
        comm_stats_take(comm, &stats);
        for (int i = 0; i < bench->count; i++) {
            CHECK_OK(comm_barrier(comm, &error));
            double start = seconds_now();
            if (kind == 0)
                comm_all_gather(comm, &(struct data_op){.send = own, .recv = data, .count = count}, stream);
            else if (kind == 1)
                comm_reduce_scatter(comm, &(struct data_op){.send = data, .recv = own, .count = count}, stream);
            stream_sync(stream);
            enum { BARRIERS = 100 };
            for (int n = 0; kind == 2 && n < BARRIERS; n++) CHECK_OK(comm_barrier(comm, &error));
            times[i] = (seconds_now() - start) / (kind == 2 ? BARRIERS : 1);
        }
        CHECK_OK(comm_status(comm, &error));
        comm_stats_take(comm, &stats);
        double bytes = node_bytes(comm, boot, stats.network_received) / bench->count;
        qsort(times, (size_t)bench->count, sizeof *times, by_value);
        double median = times[bench->count / 2];
        static const char *const names[] = {"all-gather", "reduce-scatter", "barrier"};
        if (boot->rank == 0)
            printf("%-15s %10.3f ms (best %.3f)  into a node %10.0f bytes  %8.3f Gbit/s  %6.2f GB/s\n", names[kind],
                   1e3 * median, 1e3 * times[0], bytes, 8e-9 * bytes / median, 1e-9 * bytes / median);
    }
    fflush(stdout);
    free(times);
    stream_free(stream);
    device_close(device);
    comm_close(comm);
}

int main(int argc, char **argv)
{
    struct bench bench = {.bytes = 64 << 20, .count = 10};
    int nodes[RANKS_MAX], world = 0;
    if (argc < 2) {
        fprintf(stderr, "usage: bench_comm NODES [MIB [COUNT [NAMESPACES [within]]]]; see the top of bench_comm.c\n");
        return 2;
    }
    for (char *part = strtok(argv[1], ","); part && world < RANKS_MAX; part = strtok(NULL, ","))
        nodes[world++] = atoi(part);
    if (argc > 2) bench.bytes = (size_t)(atof(argv[2]) * 1048576);
    if (argc > 3) bench.count = atoi(argv[3]);
    int node = 0;
    for (char *part = argc > 4 ? strtok(argv[4], ",") : NULL; part; part = strtok(NULL, ","))
        bench.namespaces[node++] = part;
    bench.within_node = argc > 5 && !strcmp(argv[5], "within");
    return ranks_run(world, nodes, body, &bench) ? 0 : 1;
}
