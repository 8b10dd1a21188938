/* SPDX-License-Identifier: Apache-2.0 */
/* bench_disk.c: the speed of asynchronous I/O next to that of dd with direct I/O, on one file system in one run.
 *
 *     make build/tests/bench_disk && build/tests/bench_disk FOLDER [MIB [ROUNDS [BLOCK_KIB [DEPTH]]]]
 *
 * Each round writes and reads a file of MIB (1024) mebibytes with dd and with each engine, in turn, so that a disk
 * whose speed changes changes it for all. dd uses blocks of the same size, BLOCK_KIB (1024). Prints the median of
 * ROUNDS (5) and exits 1 if an engine has less than 85 % of dd's. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/storage/record_file.h"

enum { WAYS = 3, ROUNDS_MAX = 99 };
static const char *const ways[WAYS] = {"dd", "io_uring", "threads"};
static const double BAR = 0.85;

static int64_t bytes;
static int block_kib = 1024, depth = 8;
static double seconds[WAYS][2][ROUNDS_MAX]; /* [way][write] */

static void die(const struct error *err)
{
    fprintf(stderr, "bench_disk: %s\n", err->text);
    exit(1);
}

static void run_dd(const char *folder, bool write, double *took)
{
    char command[1000];
    snprintf(command, sizeof command, "dd if=%s%s of=%s%s bs=%dK count=%" PRId64 " %s=direct %s status=none",
             write ? "/dev/zero" : folder, write ? "" : "/dd", write ? folder : "/dev/null", write ? "/dd" : "",
             block_kib, bytes / 1024 / block_kib, write ? "oflag" : "iflag", write ? "conv=notrunc" : "");
    double begin = seconds_now();
    if (system(command) != 0) exit(1);
    *took = seconds_now() - begin;
}

static void run_engine(struct record_file *file, bool write, double *took)
{
    struct error err;
    double begin = seconds_now();
    if (write) {
        record_file_claim(file, 0, 0);
        record_file_store(file, 0, 0);
    } else {
        record_file_claim(file, 1, 0); /* forgets the record that was written */
        record_file_load(file, 0, 0);
    }
    if (record_file_flush(file, &err) != STATUS_OK) die(&err);
    *took = seconds_now() - begin;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    struct error err;
    struct record_file *file[WAYS] = {0};
    int rounds = argc > 3 ? atoi(argv[3]) : 5;
    bytes = (argc > 2 ? atoll(argv[2]) : 1024) << 20;
    block_kib = argc > 4 ? atoi(argv[4]) : block_kib;
    depth = argc > 5 ? atoi(argv[5]) : depth;
    if (argc < 2 || bytes <= 0 || rounds < 1 || rounds > ROUNDS_MAX || block_kib < 4)
        return fprintf(stderr, "usage: bench_disk FOLDER [MIB [ROUNDS [BLOCK_KIB [DEPTH]]]]\n"), 2;
    const int64_t records[2] = {bytes, ASYNC_IO_ALIGN};
    const struct aio_settings settings = {.block_size = (int64_t)block_kib << 10, .queue_depth = depth};
    void *memory = aligned_alloc(ASYNC_IO_ALIGN, record_file_buffer_bytes(records, 2));
    if (!memory) return 1;
    memset(memory, 1, record_file_buffer_bytes(records, 2));
    for (int w = 1; w < WAYS; w++) {
        setenv("ZTRAIN_AIO", ways[w], 1);
        const struct disk_file_config config = {
            .name = ways[w], .folder = argv[1], .bytes = record_file_bytes(records, 2), .io = settings};
        struct disk_file *disk_file;
        if (local_disk.open(&local_disk, &config, &disk_file, &err) != STATUS_OK) die(&err);
        file[w] = record_file_new(disk_file, records, 2, 1);
        record_file_set_memory(file[w], memory);
        double warm;
        run_engine(file[w], true, &warm); /* the first write of reserved space is slower */
    }
    double warm;
    run_dd(argv[1], true, &warm);
    for (int r = 0; r < rounds; r++)
        for (int write = 1; write >= 0; write--)
            for (int i = 0; i < WAYS; i++) {
                int w = (i + r) % WAYS;
                if (w == 0)
                    run_dd(argv[1], write, &seconds[w][write][r]);
                else
                    run_engine(file[w], write, &seconds[w][write][r]);
            }
    bool enough = true;
    printf("%" PRId64 " MiB, blocks of %d KiB, %d in flight; median of %d rounds\n", bytes >> 20, block_kib, depth,
           rounds);
    for (int w = 0; w < WAYS; w++) {
        double speed[2], ratio[2];
        for (int write = 0; write < 2; write++) {
            qsort(seconds[w][write], (size_t)rounds, sizeof(double), by_value);
            speed[write] = (double)bytes / seconds[w][write][rounds / 2] / 1e9;
            ratio[write] = seconds[0][write][rounds / 2] / seconds[w][write][rounds / 2];
            enough = enough && ratio[write] >= BAR;
        }
        printf("%-9s  write %6.2f GB/s (%3.0f %% of dd)  read %6.2f GB/s (%3.0f %% of dd)\n", ways[w], speed[1],
               100 * ratio[1], speed[0], 100 * ratio[0]);
    }
    for (int w = 1; w < WAYS; w++) record_file_free(file[w]);
    char written[1000];
    snprintf(written, sizeof written, "%s/dd", argv[1]);
    unlink(written);
    free(memory);
    return enough ? 0 : 1;
}
