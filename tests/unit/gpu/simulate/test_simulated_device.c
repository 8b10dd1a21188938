/* SPDX-License-Identifier: Apache-2.0 */
/* test_simulated_device.c: the GPU of plans, which need not exist: the workspace of its ops against figures computed by
 * hand. */
#include "gpu/cuda/cuda_workspace.h"
#include "gpu/simulate/simulated_device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void a_plan_knows_the_workspace(void **state)
{
    (void)state;
    struct error err;
    struct device *device;
    assert_int_equal(simulated_device_open(NULL, &device, &err), STATUS_OK);
    assert_int_equal(device->kind, DEVICE_CUDA);
    struct op_limits limits = {.max_tokens = 1000, .C = 64, .D = 16, .H = 4, .max_linear_n = 100};
    /* cublasLt's 256 MiB, and the column sums of 16 ranges of 64 rows */
    assert_int_equal(ops_workspace_bytes(device, &limits), (256 << 20) + 16 * 100 * 4 + 256);
    limits.max_linear_k = 200; /* the matrix that GELU's gradient is in may be the wider one */
    assert_int_equal(ops_workspace_bytes(device, &limits), (256 << 20) + 16 * 200 * 4 + 256);
    limits.max_tokens = 1 << 24; /* the embedding's: sort 4 x 64 MiB, counts of 16384 blocks, 2^20 tiles of C floats */
    assert_int_equal(ops_workspace_bytes(device, &limits),
                     (256 << 20) + 16384 * 512 * 4 + 512 * 4 + (1 << 20) * 64 * 4);
    device_close(device);
}

/* A GPU of 24 GB, and one of 40 GB as its driver counts, keep cublasLt's smaller workspace. */
static void small_gpus_have_a_small_workspace(void **state)
{
    (void)state;
    struct error err;
    struct device *device;
    const struct op_limits limits = {.max_tokens = 1000, .C = 64, .D = 16, .H = 4, .max_linear_n = 100};
    assert_int_equal(simulated_device_open("rtx4090", &device, &err), STATUS_OK);
    assert_int_equal(ops_workspace_bytes(device, &limits), (64 << 20) + 16 * 100 * 4 + 256);
    device_close(device);
    assert_int_equal(cuda_gemm_workspace((size_t)42297786368), 64 << 20);
    assert_int_equal(cuda_gemm_workspace((size_t)44 << 30), 256 << 20);
}

static struct device *open_h100(struct gpu_model *gpu)
{
    struct error err;
    struct assumed_gpu settings = {.gpu = gpu};
    assert_int_equal(gpu_catalog_find("h100", gpu, &err), STATUS_OK);
    return simulated_device_open_timed(&settings);
}

static void column_sums_have_ranges_for_a_whole_gpu(void **state)
{
    (void)state;
    assert_int_equal(cuda_column_ranges(0, 768), 0);
    assert_int_equal(cuda_column_ranges(1, 768), 1);
    assert_int_equal(cuda_column_ranges(65, 768), 2);
    assert_int_equal(cuda_column_ranges(1 << 20, 768), 342);
    assert_int_equal(cuda_column_ranges(1 << 20, 1 << 20), 1);
    /* whatever the widths of a model's matrices, those of the widest one have room for their partial sums */
    struct gpu_model gpu;
    struct device *device = open_h100(&gpu);
    struct op_limits limits = {.max_tokens = 1 << 14, .C = 64, .D = 16, .H = 4, .max_linear_n = 50304};
    size_t room = ops_workspace_bytes(device, &limits) - cuda_gemm_workspace(device->memory_bytes);
    for (int64_t N = 1; N <= limits.max_linear_n; N++)
        assert_true(cuda_column_sums_bytes(limits.max_tokens, N) <= room);
    device_close(device);
}

/* compute ─ op ─ record ─┐              ┌─ wait: late by the communication
 * comm ─────────── wait ─┴─ collective ─┴─ record */
static void a_stream_that_waits_is_set_forward(void **state)
{
    (void)state;
    const double collective = 1e-3;
    struct error err;
    struct gpu_model gpu;
    struct simulated_times times;
    struct device *device = open_h100(&gpu);
    struct stream *compute, *comm;
    struct event *computed, *reduced;
    assert_int_equal(stream_new(device, STREAM_COMPUTE, &compute, &err), STATUS_OK);
    assert_int_equal(stream_new(device, STREAM_COMM, &comm, &err), STATUS_OK);
    assert_int_equal(event_new(device, &computed, &err), STATUS_OK);
    assert_int_equal(event_new(device, &reduced, &err), STATUS_OK);

    struct sumsq_args args = {.n = 1 << 28};
    device->ops->sumsq(compute, &args);
    event_record(computed, compute);
    stream_wait(comm, computed);
    simulated_device_communicate(comm, collective);
    event_record(reduced, comm);
    device->ops->sumsq(compute, &args); /* hides the collective for as long as it takes */
    stream_wait(compute, reduced);
    stream_wait(compute, reduced); /* waiting once is enough */
    simulated_device_times(device, &times);
    double op = times.kinds[TIME_OPTIMIZER].expected / 2 + times.kinds[TIME_GAPS].expected / 2;
    assert_true(op > 0.3e-3 && op < collective);
    assert_true(fabs(times.kinds[TIME_EXPOSED].expected - (collective - op)) < 1e-12);
    assert_true(fabs(times.seconds - (op + collective)) < 1e-12);
    assert_true(times.communication == collective);

    simulated_device_reset(device);
    simulated_device_times(device, &times);
    assert_true(times.seconds == 0);
    event_free(computed);
    event_free(reduced);
    stream_free(compute);
    stream_free(comm);
    device_close(device);
}

/* Beside a collective a kernel that moves bytes lacks 16 of 132 multiprocessors, a large product only power; after it
 * nothing is lacking. On an RTX 4090 products lack 16 of 128. */
static void kernels_beside_a_collective_take_longer(void **state)
{
    (void)state;
    const double collective = 10e-3;
    static const struct sumsq_args sums = {.n = 1 << 28};
    static const struct linear_fwd_args product = {
        .dtype = DTYPE_BF16, .y_dtype = DTYPE_BF16, .M = 8192, .N = 8192, .K = 8192};
    for (int other = 0; other < 2; other++) {
        struct error err;
        struct gpu_model gpu;
        struct simulated_times times;
        struct stream *compute, *comm;
        assert_int_equal(gpu_catalog_find(other ? "rtx4090" : "h100", &gpu, &err), STATUS_OK);
        struct device *device = simulated_device_open_timed(&(struct assumed_gpu){.gpu = &gpu});
        assert_int_equal(stream_new(device, STREAM_COMPUTE, &compute, &err), STATUS_OK);
        assert_int_equal(stream_new(device, STREAM_COMM, &comm, &err), STATUS_OK);
        simulated_device_communicate(comm, collective);
        device->ops->sumsq(compute, &sums);
        device->ops->linear_fwd(compute, &product);
        for (int i = 0; i < 50; i++) device->ops->sumsq(compute, &sums);
        simulated_device_times(device, &times);
        const double in_products = times.kinds[TIME_GEMM_FORWARD].expected,
                     in_sums = collective - (other ? 0 : in_products);
        assert_true(in_products < collective);
        assert_true(fabs(times.kinds[TIME_EXPOSED].expected - in_sums * 16 / gpu.sms) < 1e-9);
        stream_free(compute);
        stream_free(comm);
        device_close(device);
    }
}

/* A host function of the plan: AdamW on the host, as offload calls it. */
struct host_work {
    const struct op_table *ops;
    struct adam_args args;
    const double *zero; /* host memory of the plan */
    double *seen;
};

static void run_host_work(void *argument)
{
    const struct host_work *work = argument;
    *work->seen = *work->zero;
    work->ops->adam(NULL, &work->args);
}

/* down ─ copy from the device ─ record ─┐
 * host ─────────────────────────── wait ┴─ AdamW ─ record ─┐
 * compute ─────────────────────────────────────────── wait ┴ late by both */
static void copies_and_the_host_take_time(void **state)
{
    (void)state;
    /* Nothing touches these bytes, but the thread sanitizer has no addresses for a TiB. */
    const size_t large = (size_t)1 << 35;
    struct error err;
    struct gpu_model gpu;
    struct simulated_times times;
    struct device *device = open_h100(&gpu);
    struct assumed_gpu settings = {.gpu = &gpu, .host_link = 50e9, .host_memory = 300e9};
    struct stream *compute, *down, *host;
    struct event *lowered, *updated;
    void *on_device, *on_host;
    double seen = 1;
    simulated_device_set(device, &settings);
    assert_int_equal(device_alloc(device, large, &on_device, &err), STATUS_OK);
    assert_int_equal(device_alloc_host(device, large, &on_host, &err), STATUS_OK);
    assert_int_equal(stream_new(device, STREAM_COMPUTE, &compute, &err), STATUS_OK);
    assert_int_equal(stream_new(device, STREAM_COMM, &down, &err), STATUS_OK);
    assert_int_equal(stream_new(device, STREAM_COMM, &host, &err), STATUS_OK);
    assert_int_equal(event_new(device, &lowered, &err), STATUS_OK);
    assert_int_equal(event_new(device, &updated, &err), STATUS_OK);

    const int64_t n = 100 * 1000 * 1000;
    stream_copy(down, on_host, on_device, (size_t)n * 4); /* 8 ms, after 10 us */
    event_record(lowered, down);
    stream_wait(host, lowered);
    struct host_work work = {device->host_ops, {.n = n, .param_dtype = DTYPE_BF16, .param = on_host}, on_host, &seen};
    stream_submit(host, run_host_work, &work, sizeof work); /* 30 bytes each: 10 ms, after 20 us */
    event_record(updated, host);
    stream_wait(compute, updated);
    simulated_device_times(device, &times);
    assert_true(seen == 0);
    assert_true(fabs(times.kinds[TIME_EXPOSED].expected - 18.03e-3) < 1e-9);
    assert_true(times.kinds[TIME_OPTIMIZER].expected == 0);
    assert_true(fabs(times.seconds - 18.03e-3) < 1e-9);

    stream_copy(down, on_device, on_device, (size_t)1 << 30); /* on the device: read and written */
    event_record(lowered, down);
    stream_wait(compute, lowered);
    simulated_device_times(device, &times);
    double copied = 2 * (double)(1 << 30) / gpu.bytes;
    assert_true(fabs(times.seconds - fmax(18.03e-3, 8.01e-3 + copied)) < 1e-9);
    event_free(lowered);
    event_free(updated);
    stream_free(compute);
    stream_free(down);
    stream_free(host);
    device_free_host(device, on_host, large);
    device_free(device, on_device, large);
    device_close(device);
}

/* The work of two host functions with a file of their device's disk: a write of `bytes`, and a read that is waited
 * for. */
struct disk_work {
    struct disk_file *file;
    struct io_request *request;
    int64_t bytes;
    bool write;
};

static void run_disk_work(void *argument)
{
    const struct disk_work *work = argument;
    const struct io_transfer transfer = {.write = work->write, .bytes = work->bytes};
    struct error err;
    work->file->submit(work->file, work->request, &transfer);
    if (!work->write) assert_int_equal(work->file->wait(work->file, work->request, &err), STATUS_OK);
}

/* host ─ write, nothing waits ─ read: after the write ─ record ─┐
 * compute ──────────────────────────────────────────────── wait ┴ late by both, on a disk that two ranks share */
static void a_disk_does_one_transfer_after_the_other(void **state)
{
    (void)state;
    const int64_t bytes = 1 << 30;
    struct error err;
    struct gpu_model gpu;
    struct simulated_times times;
    struct device *device = open_h100(&gpu);
    struct assumed_gpu settings = {.gpu = &gpu, .disk_read = 4e9, .disk_write = 2e9, .node_ranks = 2};
    struct stream *compute, *host;
    struct event *loaded;
    simulated_device_set(device, &settings);
    assert_int_equal(stream_new(device, STREAM_COMPUTE, &compute, &err), STATUS_OK);
    assert_int_equal(stream_new(device, STREAM_COMM, &host, &err), STATUS_OK);
    assert_int_equal(event_new(device, &loaded, &err), STATUS_OK);
    const struct disk *disk = simulated_device_disk(device);
    const struct disk_file_config config = {.name = "a file that is not made", .folder = "/nowhere", .bytes = bytes};
    struct io_request requests[2] = {{.active = false}};
    struct disk_file *file;
    assert_int_equal(disk->open(disk, &config, &file, &err), STATUS_OK);
    struct disk_work work = {.file = file, .request = &requests[0], .bytes = bytes, .write = true};
    stream_submit(host, run_disk_work, &work, sizeof work);
    work.write = false;
    work.request = &requests[1];
    stream_submit(host, run_disk_work, &work, sizeof work);
    event_record(loaded, host);
    stream_wait(compute, loaded);
    simulated_device_times(device, &times);
    const double busy = (double)bytes / 1e9 + (double)bytes / 2e9;
    assert_true(fabs(times.disk - busy) < 1e-9);
    assert_true(fabs(times.seconds - busy) < 1e-4); /* and the start of a host function */
    file->close(file);
    event_free(loaded);
    stream_free(compute);
    stream_free(host);
    device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_knows_the_workspace),
        cmocka_unit_test(small_gpus_have_a_small_workspace),
        cmocka_unit_test(a_stream_that_waits_is_set_forward),
        cmocka_unit_test(kernels_beside_a_collective_take_longer),
        cmocka_unit_test(copies_and_the_host_take_time),
        cmocka_unit_test(a_disk_does_one_transfer_after_the_other),
        cmocka_unit_test(column_sums_have_ranges_for_a_whole_gpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
