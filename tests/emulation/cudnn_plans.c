/* SPDX-License-Identifier: Apache-2.0 */
/* cudnn_plans.c: cuDNN, the real library, makes plans for ztrain's graphs of attention, of products with SwiGLU inside,
 * and of experts' products, on a machine without a GPU.
 *
 *     build/emulation/cudnn-plans [GPU …]     A100, H200, B200, B300, RTX4090, RTX5090; without arguments the first
 * three build/emulation/cudnn-plans --backward [GPU …]     backward passes of attention alone
 *
 * cuDNN gets the description of a GPU, proposes engines for the graphs of gpu/cuda/attention/attention_cudnn_graph.c
 * and gemm_cuda_gated_graph.c, and compiles their kernels for that GPU; only the driver that would load them is missing
 * (absent_driver.c, whose library must lie next to this program). So the program shows that the library understands the
 * graphs, that there are engines whose bits repeat, and the workspace that they need. When a run begins, the results of
 * the plans are compared with those of ztrain's kernels (gpu/cuda/autotune.h).
 *
 * The description lacks one thing that a real H200 has: how its multiprocessors are spread over GPCs. No member for it
 * is documented, and cuDNN 9.19 passes over its kernels for sm90 in products then ("No GPC available",
 * CUDNN_LOGLEVEL_DBG=3) and makes one for sm80 instead. So of products this program shows that cuDNN takes the graphs,
 * not which kernels an H200 gets; the names that it prints tell.
 *
 * Prints a line for every shape; exits 1 if an H200 lacks a plan that it should have. Without cuDNN, or with a version
 * that takes no descriptions, it prints that and exits 0. */
#include "gpu/cuda/attention/attention_cudnn_graph.h"
#include "gpu/cuda/gemm/gemm_cuda_gated.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#if ZTRAIN_HAVE_CUDNN

/* Descriptions of GPUs in cuDNN's format. */
#define GPU_JSON(name, capability, sms, shared, l2, memory)                                                           \
    "{\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,"               \
    "\"multiProcessorCount\":" #sms ",\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,"                             \
    "\"maxSharedMemoryPerBlockOptin\":" #shared ",\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536," \
    "\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"pciDeviceId\":0,\"isTccDriver\":0,"   \
    "\"supportCoopLaunch\":1,\"totalGlobalMem\":" #memory ",\"smClockRateKHz\":1980000,\"memClockRateKHz\":3201000,"  \
    "\"l2CacheSize\":" #l2 ",\"cudaDeviceId\":0,\"deviceVer\":" #capability ",\"driverVer\":13000,\"deviceName\":"    \
    "\"" name "\"}"

static const struct gpu {
    const char *name, *json;
    int capability;
    bool required; /* every plan must exist */
} gpus[] = {
    {"A100", GPU_JSON("NVIDIA A100-SXM4-80GB", 800, 108, 166912, 41943040, 85899345920), 80, false},
    {"H200", GPU_JSON("NVIDIA H200", 900, 132, 232448, 62914560, 150754820096), 90, true},
    {"B200", GPU_JSON("NVIDIA B200", 1000, 148, 232448, 132644864, 191503794176), 100, false},
    {"B300", GPU_JSON("NVIDIA B300", 1030, 148, 232448, 132644864, 288000000000), 103, false},
    {"RTX4090", GPU_JSON("NVIDIA GeForce RTX 4090", 890, 128, 101376, 75497472, 25393692672), 89, false},
    {"RTX5090", GPU_JSON("NVIDIA GeForce RTX 5090", 1200, 170, 101376, 100663296, 33661911040), 120, false},
};
enum { USUAL_GPUS = 3 };

struct plan_case {
    enum dtype dtype;
    int64_t B, T, H, KV, D, window;
    bool ragged, bidirectional, unordered;
    bool few;        /* with --listed */
    int64_t dropout; /* of 65536 */
    double softcap;
};

static const struct plan_case cases[] = {
    {DTYPE_BF16, 8, 1024, 12, 12, 64, 0, .few = true}, /* GPT-2 */
    {DTYPE_F16, 8, 1024, 12, 12, 64, 0},               /* the same */
    {DTYPE_BF16, 16, 1024, 25, 25, 64, 0},             /* GPT-2 1558M */
    {DTYPE_BF16, 32, 1024, 14, 2, 64, 0},              /* Qwen2.5 0.5B */
    {DTYPE_BF16, 1, 8192, 32, 8, 128, 0, .few = true}, /* Llama 8B */
    {DTYPE_BF16, 2, 4096, 32, 8, 128, 0},              /* Llama 8B */
    {DTYPE_BF16, 2, 4096, 32, 8, 128, 1024},           /* Mistral's window */
    {DTYPE_BF16, 1, 1024, 16, 16, 160, 0},             /* wide heads */
    {DTYPE_BF16, 1, 1024, 8, 1, 256, 0},               /* Gemma's, one key/value head */
    {DTYPE_BF16, 3, 100, 4, 2, 8, 0},                  /* the small models of tests */
    {DTYPE_BF16, 2, 1000, 14, 2, 64, 0},               /* an odd length */
    /* sequences that differ in length, and BERT */
    {.dtype = DTYPE_BF16, .B = 8, .T = 1024, .H = 12, .KV = 12, .D = 64, .ragged = true, .few = true},
    {.dtype = DTYPE_F16, .B = 2, .T = 1000, .H = 32, .KV = 8, .D = 128, .window = 128, .ragged = true},
    {.dtype = DTYPE_BF16, .B = 3, .T = 100, .H = 4, .KV = 2, .D = 8, .ragged = true, .unordered = true},
    {.dtype = DTYPE_BF16, .B = 32, .T = 512, .H = 12, .KV = 12, .D = 64, .ragged = true, .bidirectional = true},
    {.dtype = DTYPE_F16, .B = 32, .T = 512, .H = 12, .KV = 12, .D = 64, .bidirectional = true},
    /* sums in any order */
    {.dtype = DTYPE_BF16, .B = 2, .T = 4096, .H = 32, .KV = 8, .D = 128, .unordered = true},
    /* soft caps: Gemma 2 of 2B and of 27B */
    {.dtype = DTYPE_BF16, .B = 1, .T = 1024, .H = 8, .KV = 4, .D = 256, .window = 512, .softcap = 50},
    {.dtype = DTYPE_BF16, .B = 2, .T = 1024, .H = 32, .KV = 16, .D = 128, .ragged = true, .softcap = 50},
    /* dropout of the weights: GPT-2, a window and shared keys, BERT */
    {.dtype = DTYPE_BF16, .B = 8, .T = 1024, .H = 12, .KV = 12, .D = 64, .dropout = 6554},
    {.dtype = DTYPE_F16, .B = 1, .T = 4096, .H = 32, .KV = 8, .D = 128, .window = 1024, .dropout = 6554},
    {.dtype = DTYPE_BF16,
     .B = 8,
     .T = 512,
     .H = 12,
     .KV = 12,
     .D = 64,
     .ragged = true,
     .bidirectional = true,
     .dropout = 6554},
};

/* The name of the kernel of the last plan, by absent_driver.c; several kernels: of the last one. */
static const char *(*kernel_name)(void);

/* The transformer's layout: q, k and v next to each other in rows of (H + 2 KV) D. */
static struct attention_shape shape_of(const struct plan_case *c, bool backward)
{
    int64_t wide = (c->H + 2 * c->KV) * c->D;
    struct attention_shape shape;
    memset(&shape, 0, sizeof shape);
    shape.dtype = c->dtype;
    shape.B = c->B;
    shape.T = c->T;
    shape.H = c->H;
    shape.KV = c->KV;
    shape.D = c->D;
    shape.window = c->window;
    shape.ld_q = shape.ld_k = shape.ld_v = wide;
    shape.ld_o = c->H * c->D;
    if (backward)
        shape.ld_dq = shape.ld_dk = shape.ld_dv = wide;
    shape.scale = 0.125;
    shape.ragged = c->ragged;
    shape.bidirectional = c->bidirectional;
    shape.unordered = backward && c->unordered;
    shape.dropout = c->dropout;
    shape.softcap = c->softcap;
    return shape;
}

/* Whether the plan exists, as it should. */
static bool try_case(const struct cudnn_target *target, const struct gpu *gpu, const struct plan_case *c, bool backward,
                     bool listed)
{
    struct error err;
    struct cudnn_plan *plan;
    struct attention_shape shape = shape_of(c, backward);
    const struct cudnn_filter filter = {.most_workspace = SIZE_MAX};
    const enum attention_direction direction = backward ? ATTENTION_BACKWARD : ATTENTION_FORWARD;
    const struct attention_form form = {.sequences = c->B};
    const bool made = attention_graph_plans(target, direction, &shape, &form, &filter, &plan, 1, &err) == 1;
    const bool good = listed ? made && plan->proposal < 0 : made || !gpu->required;
    printf("%s %-8s %s, %" PRId64 " x %" PRId64 " tokens, %" PRId64 " heads of %" PRId64 ", %" PRId64
           " of keys, window %" PRId64 "%s%s%s%s%s: ",
           gpu->name, backward ? "backward" : "forward", dtype_name(c->dtype), c->B, c->T, c->H, c->D, c->KV, c->window,
           c->ragged ? ", ragged" : "", c->bidirectional ? ", bidirectional" : "", shape.unordered ? ", unordered" : "",
           shape.dropout ? ", dropout" : "", shape.softcap > 0 ? ", soft cap" : "");
    if (made)
        printf("%sengine %" PRId64 ", %.1f MiB of workspace, %s (%016" PRIx64 ")%s\n",
               plan->proposal < 0 ? "listed " : "", plan->engine, (double)plan->workspace / (1 << 20), kernel_name(),
               plan->kernel, good ? "" : "  WRONG: not as expected");
    else
        printf("%s%s\n", err.text, good ? "" : "  WRONG: there should be a plan");
    fflush(stdout);
    cudnn_plan_free(made ? plan : NULL);
    return good;
}

/* Products of Llama 8B and Qwen2.5 0.5B with SwiGLU inside, and of a small model. */
static const struct product_case {
    enum dtype dtype;
    int64_t M, C, F;
} products[] = {
    {DTYPE_BF16, 8192, 4096, 14336},
    {DTYPE_BF16, 32768, 896, 4864},
    {DTYPE_F16, 8192, 4096, 14336},
    {DTYPE_BF16, 96, 64, 176},
};

/* The key of the up product, or of the down product's backward, as gpu/cuda/gemm/gemm_cuda_gated.c makes it. */
static struct gemm_key key_of(const struct product_case *c, bool backward)
{
    struct gemm_key key = {
        .m = c->F, .n = c->M, .k = c->C, .lda = c->C, .ldb = c->C, .ldd = 2 * c->F, .ld_aux = 2 * c->F};
    key.transpose_a = 1;
    key.input = key.output = c->dtype;
    key.epilogue = GEMM_SWIGLU;
    if (backward) {
        key.lda = c->F;
        key.transpose_a = 0;
        key.epilogue = GEMM_DSWIGLU;
    }
    return key;
}

/* Whether there is a plan that needs no more than a product's workspace. */
static bool try_product(const struct cudnn_target *target, const struct gpu *gpu, const struct product_case *c,
                        bool backward)
{
    struct error err;
    struct cudnn_plan *plan;
    const struct gemm_key key = key_of(c, backward);
    const struct cudnn_filter filter = {.most_workspace = 64 << 20};
    const bool made = gemm_gated_plans(target, &key, &filter, &plan, 1, &err) == 1;
    const bool good = made || !gpu->required;
    printf("%s product with SwiGLU %s, %s, %" PRId64 " tokens, %" PRId64 " to %" PRId64 ": ", gpu->name,
           backward ? "backward" : "forward", dtype_name(c->dtype), c->M, c->C, c->F);
    if (made)
        printf("engine %" PRId64 ", %.1f MiB of workspace, %s (%016" PRIx64 ")\n", plan->engine,
               (double)plan->workspace / (1 << 20), kernel_name(), plan->kernel);
    else
        printf("%s%s\n", err.text, good ? "" : "  WRONG: there should be a plan");
    fflush(stdout);
    cudnn_plan_free(made ? plan : NULL);
    return good;
}

/* Gate and up of Qwen3-30B-A3B's experts, and the gradient of their rows; down of a small model. */
static const struct gemm_key grouped[] = {
    {.m = 1536, .n = 65536, .k = 2048, .lda = 2048, .ldb = 2048, .ldd = 1536, .ld_aux = 128, .transpose_a = 1},
    {.m = 2048, .n = 65536, .k = 1536, .lda = 2048, .ldb = 1536, .ldd = 2048, .ld_aux = 128},
    {.m = 64, .n = 96, .k = 24, .lda = 24, .ldb = 24, .ldd = 64, .ld_aux = 4, .transpose_a = 1}};

static bool try_grouped(const struct cudnn_target *target, const struct gpu *gpu, struct gemm_key key)
{
    struct error err;
    struct cudnn_plan *plan;
    const struct cudnn_filter filter = {.most_workspace = 64 << 20};
    key.input = key.output = DTYPE_BF16;
    key.epilogue = GEMM_GROUPED;
    const bool made = gemm_gated_plans(target, &key, &filter, &plan, 1, &err) == 1;
    const bool good = made || !gpu->required || (!key.transpose_a && target->version < 92200);
    printf("%s product of %" PRId64 " experts, %" PRId64 " rows, %" PRId64 " to %" PRId64 ": ", gpu->name, key.ld_aux,
           key.n, key.k, key.m);
    if (made)
        printf("engine %" PRId64 ", %.1f KiB of workspace, %s\n", plan->engine, (double)plan->workspace / 1024,
               kernel_name());
    else
        printf("%s%s\n", err.text, good ? "" : "  WRONG: there should be a plan");
    fflush(stdout);
    cudnn_plan_free(made ? plan : NULL);
    return good;
}

/* A target for a GPU that need not exist. */
static bool describe_gpu(const struct cudnn_functions *cudnn, const struct gpu *gpu, struct cudnn_target *target)
{
    const char *json = gpu->json;
    *target =
        (struct cudnn_target){.cudnn = cudnn, .version = (int)cudnn->cudnnGetVersion(), .capability = gpu->capability};
    return cudnn->cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &target->gpu) ==
               CUDNN_STATUS_SUCCESS &&
           cudnn->cudnnBackendSetAttribute(target->gpu, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                           (int64_t)strlen(json), json) == CUDNN_STATUS_SUCCESS &&
           cudnn->cudnnBackendFinalize(target->gpu) == CUDNN_STATUS_SUCCESS;
}

static bool try_gpu(const struct cudnn_functions *cudnn, const struct gpu *gpu, bool listed, bool *asked)
{
    struct cudnn_target target;
    bool good = true;
    if (!describe_gpu(cudnn, gpu, &target)) {
        char why[256] = "";
        cudnn->cudnnGetLastErrorString(why, sizeof why);
        printf("%s: left out: %s\n", gpu->name, why);
        return true;
    }
    *asked = true;
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        for (int backward = listed; backward < 2 && (!listed || cases[i].few); backward++)
            good = try_case(&target, gpu, &cases[i], backward, listed) && good;
    for (size_t i = 0; i < COUNT_OF(products) && !listed; i++)
        for (int backward = 0; backward < 2; backward++)
            good = try_product(&target, gpu, &products[i], backward) && good;
    for (size_t i = 0; i < COUNT_OF(grouped) && !listed; i++) good = try_grouped(&target, gpu, grouped[i]) && good;
    cudnn->cudnnBackendDestroyDescriptor(target.gpu);
    return good;
}

/* Loads absent_driver.c's library, which cuDNN then finds by the name of the driver's. */
static bool load_driver(const char *program)
{
    char path[4096];
    const char *slash = strrchr(program, '/');
    snprintf(path, sizeof path, "%.*s/absent/libcuda.so.1", slash ? (int)(slash - program) : 1, slash ? program : ".");
    void *driver = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (driver)
        *(void **)&kernel_name = dlsym(driver, "absent_driver_kernel");
    if (driver && kernel_name)
        return true;
    printf("cannot open %s: %s\n", path, dlerror());
    return false;
}

int main(int argc, char **argv)
{
    struct error err;
    const struct cudnn_functions *cudnn;
    bool good = true, asked = false;
    const char *program = argv[0];
    const bool listed = argc > 1 && !strcmp(argv[1], "--listed");
    argc -= listed;
    argv += listed;
    if (!load_driver(program))
        return 1;
    if (cudnn_open(&cudnn, &err) != STATUS_OK) {
        printf("left out: %s\n", err.text);
        return 0;
    }
    for (size_t i = 0; i < COUNT_OF(gpus); i++) {
        bool wanted = argc < 2 && i < USUAL_GPUS;
        for (int j = 1; j < argc; j++)
            wanted = wanted || !strcmp(argv[j], gpus[i].name);
        if (wanted)
            good = try_gpu(cudnn, &gpus[i], listed, &asked) && good;
    }
    printf("%s\n", !asked ? "left out: this cuDNN takes no descriptions of GPUs" : good ? "as it should be" : "WRONG");
    return good ? 0 : 1;
}

#else

#include <stdio.h>

int main(void)
{
    puts("left out: built without cuDNN's header");
    return 0;
}

#endif
