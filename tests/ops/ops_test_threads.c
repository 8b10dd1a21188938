/* SPDX-License-Identifier: Apache-2.0 */
/* ops_test_threads.c: the CPU's ops give the same bits by any number of threads. Large cases, which many threads share,
 * have random values, and no reference: only their bits count. */
#include "tests/ops/ops_test.h"

#ifdef _OPENMP
#include <omp.h>
#endif
#include <stdio.h>
#include <xxhash.h>

static void use_threads(struct device *device, int threads)
{
    device->threads = threads;
#ifdef _OPENMP
    omp_set_num_threads(threads);
#endif
}

/* The hashes of all tensors after the op. */
static void hash_results(struct harness *h, const struct op_case *c, enum dtype dtype, uint64_t hashes[MAX_TENSORS])
{
    const int op = op_of_case(c);
    h->timing = c->flags & (PERF | COUNTED);
    case_setup(h, c, dtype, op);
    h->timing = false;
    case_launch(h, op);
    stream_sync(h->stream);
    for (int i = 0; i < h->count; i++)
        hashes[i] = XXH64(h->tensors[i].device, (size_t)h->tensors[i].n * tensor_element_size(&h->tensors[i]), 0);
}

bool run_threads(struct harness *h, const struct op_case *c, enum dtype dtype, const char *text)
{
    static const int counts[] = {1, 3};
    uint64_t first[MAX_TENSORS] = {0}, hashes[MAX_TENSORS] = {0};
    const int threads = h->device->threads;
    bool same = true;
    for (size_t i = 0; i < COUNT_OF(counts) && same; i++) {
        use_threads(h->device, counts[i]);
        hash_results(h, c, dtype, i == 0 ? first : hashes);
        for (int j = 0; i > 0 && j < h->count && same; j++) {
            same = hashes[j] == first[j];
            if (!same)
                printf("FAILED %s: %d threads compute another %s than one\n", text, counts[i], h->tensors[j].name);
        }
    }
    use_threads(h->device, threads);
    return same;
}
