/* test_attention_cudnn.c: cuDNN, the real library, makes plans for our graphs of attention.
 *
 * Needs the library but no GPU: it is told what a GPU is like and chooses engines and compiles for that one. Skips where
 * there is no library, or one that cannot be asked this way. What the plans compute is compared with our own kernels
 * when a run begins (gpu/attention_cudnn.c), and by ops-test. */
#include "gpu/attention_cudnn_graph.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#if ZTRAIN_HAVE_CUDNN

/* In cuDNN's own words. */
#define GPU_JSON(name, capability, sms, shared, l2, memory)                                                            \
    "{\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,"                \
    "\"multiProcessorCount\":" #sms ",\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,"                              \
    "\"maxSharedMemoryPerBlockOptin\":" #shared ",\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,"  \
    "\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"pciDeviceId\":0,\"isTccDriver\":0,"    \
    "\"supportCoopLaunch\":1,\"totalGlobalMem\":" #memory ",\"smClockRateKHz\":1980000,\"memClockRateKHz\":3201000,"   \
    "\"l2CacheSize\":" #l2 ",\"cudaDeviceId\":0,\"deviceVer\":" #capability ",\"driverVer\":13000,\"deviceName\":"     \
    "\"" name "\"}"

static const struct gpu {
    const char *name, *json;
} gpus[] = {
    {"A100", GPU_JSON("NVIDIA A100-SXM4-80GB", 800, 108, 166912, 41943040, 85899345920)},
    {"H200", GPU_JSON("NVIDIA H200", 900, 132, 232448, 62914560, 150754820096)},
    {"B200", GPU_JSON("NVIDIA B200", 1000, 148, 232448, 132644864, 191503794176)},
};

static const struct cudnn_functions *cudnn; /* NULL: no library here */

static int open_library(void **state)
{
    struct error err;
    (void)state;
    if (cudnn_open(&cudnn, &err) != STATUS_OK) {
        cudnn = NULL;
        printf("no cuDNN: %s\n", err.text);
    }
    return 0;
}

/* As the transformer lays them out: q, k and v beside each other in rows of (H + 2 KV) D. */
static struct attention_shape shape_of(enum dtype dtype, int64_t B, int64_t T, int64_t H, int64_t KV, int64_t D,
                                       int64_t window)
{
    int64_t wide = (H + 2 * KV) * D;
    struct attention_shape shape;
    memset(&shape, 0, sizeof shape);
    shape.dtype = dtype;
    shape.B = B;
    shape.T = T;
    shape.H = H;
    shape.KV = KV;
    shape.D = D;
    shape.window = window;
    shape.ld_q = shape.ld_k = shape.ld_v = shape.ld_dq = shape.ld_dk = shape.ld_dv = wide;
    shape.ld_o = H * D;
    shape.scale = 0.125;
    return shape;
}

int main(int argc, char **argv)
{
    struct error err;
    (void)argc;
    (void)argv;
    open_library(NULL);
    if (!cudnn)
        return 0;
    for (size_t g = 0; g < sizeof gpus / sizeof *gpus; g++) {
        struct cudnn_target target;
        if (cudnn_describe_gpu(cudnn, gpus[g].json, &target, &err) != STATUS_OK) {
            printf("%s: %s\n", gpus[g].name, err.text);
            continue;
        }
        static const struct { int64_t B, T, H, KV, D, window; } cases[] = {
            {8, 1024, 12, 12, 64, 0}, {2, 4096, 32, 8, 128, 0}, {2, 4096, 32, 8, 128, 1024}, {1, 1024, 4, 4, 160, 0},
            {1, 1024, 4, 2, 256, 0}, {3, 100, 4, 2, 64, 0}, {2, 96, 4, 4, 16, 0}};
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            for (int d = 1; d <= 2; d++) {
                struct attention_shape s = shape_of(d, cases[i].B, cases[i].T, cases[i].H, cases[i].KV, cases[i].D, cases[i].window);
                for (int dir = 0; dir < 2; dir++) {
                    struct cudnn_plan *plan;
                    enum status st = (dir ? attention_plan_bwd : attention_plan_fwd)(&target, &s, (size_t)-1, &plan, &err);
                    printf("%s %s B %d T %d H %d KV %d D %d w %d %s: ", gpus[g].name, dtype_name(d), (int)s.B, (int)s.T, (int)s.H, (int)s.KV, (int)s.D, (int)s.window, dir ? "bwd" : "fwd");
                    if (st == STATUS_OK)
                        printf("engine %lld workspace %zu\n", (long long)cudnn_plan_engine(plan), cudnn_plan_workspace_bytes(plan));
                    else
                        printf("%s\n", err.text);
                    fflush(stdout);
                    if (st == STATUS_OK)
                        cudnn_plan_free(plan);
                }
            }
        cudnn_target_release(&target);
    }
    return 0;
}
#endif
