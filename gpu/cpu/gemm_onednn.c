/* gemm_onednn.c: oneDNN, opened at run time.
 *
 * libdnnl is large and depends on a C++ runtime and an OpenCL loader, so ztrain does not link against it: the few
 * functions that it needs are declared here and looked up by name. fp32 calls dnnl_sgemm(). bf16 uses matmul
 * primitives, which are created at the first use of a shape and kept in a table of CACHE_ENTRIES; a new one replaces
 * the oldest. The caller provides their scratch memory. Versions 2 and 3 create descriptors differently: version 2
 * fills structures, for which this file reserves blobs that are larger than any of them. */
#include "gpu/cpu/gemm_onednn.h"

#include "core/log.h"
#include "core/memory.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* oneDNN's constants, the same in versions 2 and 3 */
enum {
    DNNL_CPU = 1,
    DNNL_IN_ORDER = 1,
    DNNL_BF16 = 2,
    DNNL_F32 = 3,
    DNNL_SCRATCHPAD_USER = 1,
    DNNL_QUERY_IMPL_INFO = 8,
    DNNL_QUERY_SCRATCHPAD = 136,
    DNNL_ARG_SRC = 1,
    DNNL_ARG_DST = 17,
    DNNL_ARG_WEIGHTS = 33,
    DNNL_ARG_BIAS = 41,
    DNNL_ARG_SCRATCHPAD = 80,
};

typedef int64_t dnnl_dims[12];
typedef void *dnnl_handle;

struct dnnl_version {
    int major, minor, patch;
    const char *hash;
    unsigned cpu_runtime, gpu_runtime;
};

struct dnnl_arg {
    int arg;
    dnnl_handle memory;
};

/* The functions, each with the version that has it (0: both). Descriptors are handles in version 3 and structures of
 * unknown size in version 2; both are passed as void *. */
#define DNNL_FUNCTIONS(X)                                                                                              \
    X(0, const struct dnnl_version *, version, (void))                                                                 \
    X(0, int, sgemm,                                                                                                   \
      (char ta, char tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda, const float *b,    \
       int64_t ldb, float beta, float *c, int64_t ldc))                                                                \
    X(0, int, engine_create, (dnnl_handle * engine, int kind, size_t index))                                           \
    X(0, int, engine_destroy, (dnnl_handle engine))                                                                    \
    X(0, int, stream_create, (dnnl_handle * stream, dnnl_handle engine, unsigned flags))                               \
    X(0, int, stream_destroy, (dnnl_handle stream))                                                                    \
    X(0, int, primitive_attr_create, (dnnl_handle * attr))                                                             \
    X(0, int, primitive_attr_destroy, (dnnl_handle attr))                                                              \
    X(0, int, primitive_attr_set_scratchpad_mode, (dnnl_handle attr, int mode))                                        \
    X(0, int, primitive_attr_set_post_ops, (dnnl_handle attr, dnnl_handle post_ops))                                   \
    X(0, int, post_ops_create, (dnnl_handle * post_ops))                                                               \
    X(0, int, post_ops_destroy, (dnnl_handle post_ops))                                                                \
    X(0, int, primitive_desc_query, (dnnl_handle pd, int what, int index, void *result))                               \
    X(0, const void *, primitive_desc_query_md, (dnnl_handle pd, int what, int index))                                 \
    X(0, size_t, memory_desc_get_size, (const void *md))                                                               \
    X(0, int, primitive_desc_destroy, (dnnl_handle pd))                                                                \
    X(0, int, primitive_create, (dnnl_handle * primitive, dnnl_handle pd))                                             \
    X(0, int, primitive_destroy, (dnnl_handle primitive))                                                              \
    X(0, int, primitive_execute, (dnnl_handle primitive, dnnl_handle stream, int count, const struct dnnl_arg *args))  \
    X(0, int, stream_wait, (dnnl_handle stream))                                                                       \
    X(0, int, memory_create, (dnnl_handle * memory, const void *md, dnnl_handle engine, void *handle))                 \
    X(0, int, memory_destroy, (dnnl_handle memory))                                                                    \
    X(0, int, memory_set_data_handle, (dnnl_handle memory, void *handle))                                              \
    X(2, int, memory_desc_init_by_strides,                                                                             \
      (void *md, int ndims, const int64_t *dims, int dtype, const int64_t *strides))                                   \
    X(2, int, matmul_desc_init, (void *desc, const void *src, const void *weights, const void *bias, const void *dst)) \
    X(2, int, primitive_desc_create,                                                                                   \
      (dnnl_handle * pd, const void *desc, dnnl_handle attr, dnnl_handle engine, dnnl_handle hint))                    \
    X(3, int, memory_desc_create_with_strides,                                                                         \
      (void **md, int ndims, const int64_t *dims, int dtype, const int64_t *strides))                                  \
    X(3, int, memory_desc_destroy, (void *md))                                                                         \
    X(3, int, matmul_primitive_desc_create,                                                                            \
      (dnnl_handle * pd, dnnl_handle engine, const void *src, const void *weights, const void *bias, const void *dst,  \
       dnnl_handle attr))

struct dnnl {
#define DNNL_MEMBER(since, type, name, parameters) type(*name) parameters;
    DNNL_FUNCTIONS(DNNL_MEMBER)
    void (*post_ops_append_sum)(void); /* cast to its type by the caller: version 3 added two parameters */
};

enum { CACHE_ENTRIES = 256, OPERANDS = 5 /* src, weights, dst, scratchpad, bias */ };

struct shape {
    int64_t m, n, k, lda, ldb, ldc;
    int32_t c_dtype;
    uint8_t transpose_a, transpose_b, accumulate, bias;
};

struct primitive {
    struct shape shape;
    bool used, supported;
    dnnl_handle primitive, memory[OPERANDS];
    size_t scratch_bytes;
};

struct gemm_onednn {
    bool wants[DTYPE_COUNT];
    void *library;
    int major;
    struct dnnl dnnl;
    dnnl_handle engine, stream;
    pthread_mutex_t mutex; /* guards everything below */
    int next;              /* the entry that is replaced next */
    bool told;             /* the implementation was logged */
    struct primitive cache[CACHE_ENTRIES];
};

/* ---- opening ------------------------------------------------------------- */

static const char *const library_names[] = {"libdnnl.so.3", "libdnnl.so.2", "libdnnl.so"};

static enum status open_library(struct gemm_onednn *g, struct error *err)
{
    const char *why = "";
    for (size_t i = 0; i < COUNT_OF(library_names) && !g->library; i++)
        g->library = memory_dlopen(library_names[i], RTLD_NOW | RTLD_LOCAL, &why);
    if (!g->library)
        return error_set(err, STATUS_DEVICE, "cannot open oneDNN: %s", why);
    struct dnnl *d = &g->dnnl;
    *(void **)&d->version = dlsym(g->library, "dnnl_version");
    g->major = d->version ? d->version()->major : 0;
    if (g->major != 2 && g->major != 3)
        return error_set(err, STATUS_DEVICE, "cannot use oneDNN %d: expected version 2 or 3", g->major);
#define DNNL_LOOK_UP(since, type, name, parameters)        \
    *(void **)&d->name = dlsym(g->library, "dnnl_" #name); \
    if (!d->name && (since == 0 || since == g->major))     \
        return error_set(err, STATUS_DEVICE, "cannot use oneDNN %d: it lacks dnnl_" #name, g->major);
    DNNL_FUNCTIONS(DNNL_LOOK_UP)
    *(void **)&d->post_ops_append_sum = dlsym(g->library, "dnnl_post_ops_append_sum");
    if (!d->post_ops_append_sum || d->engine_create(&g->engine, DNNL_CPU, 0) != 0 ||
        d->stream_create(&g->stream, g->engine, DNNL_IN_ORDER) != 0)
        return error_set(err, STATUS_DEVICE, "cannot start oneDNN %d on this CPU", g->major);
    return STATUS_OK;
}

enum status gemm_onednn_version(char *version, size_t size, uint32_t *isa, struct error *err)
{
    struct gemm_onednn *g = calloc(1, sizeof *g);
    if (!g)
        return error_set(err, STATUS_DEVICE, "cannot prepare matrix products: out of memory");
    pthread_mutex_init(&g->mutex, NULL);
    enum status status = open_library(g, err);
    if (status == STATUS_OK) {
        const struct dnnl_version *v = g->dnnl.version();
        int (*effective_isa)(void);
        *(void **)&effective_isa = dlsym(g->library, "dnnl_get_effective_cpu_isa");
        snprintf(version, size, "%d.%d.%d", v->major, v->minor, v->patch);
        *isa = effective_isa ? (uint32_t)effective_isa() : 0;
    }
    gemm_onednn_free(g);
    return status;
}

enum status gemm_onednn_new(const struct cpu_kernels *kernels, struct gemm_onednn **gemm, struct error *err)
{
    struct gemm_onednn *g = calloc(1, sizeof *g);
    if (!g)
        return error_set(err, STATUS_DEVICE, "cannot prepare matrix products: out of memory");
    pthread_mutex_init(&g->mutex, NULL);
    bool needed = false;
    for (int d = 0; d < DTYPE_COUNT; d++) {
        g->wants[d] = kernels->onednn[d];
        needed = needed || g->wants[d];
    }
    enum status status = needed ? open_library(g, err) : STATUS_OK;
    if (status != STATUS_OK) {
        gemm_onednn_free(g);
        return status;
    }
    *gemm = g;
    return STATUS_OK;
}

static void primitive_release(struct gemm_onednn *g, struct primitive *p)
{
    for (int i = 0; i < OPERANDS; i++)
        if (p->memory[i])
            g->dnnl.memory_destroy(p->memory[i]);
    if (p->primitive)
        g->dnnl.primitive_destroy(p->primitive);
    memset(p, 0, sizeof *p);
}

/* The library stays open: the thread-local storage of its threads must outlive them. */
void gemm_onednn_free(struct gemm_onednn *g)
{
    if (!g)
        return;
    for (int i = 0; i < CACHE_ENTRIES; i++)
        primitive_release(g, &g->cache[i]);
    if (g->stream)
        g->dnnl.stream_destroy(g->stream);
    if (g->engine)
        g->dnnl.engine_destroy(g->engine);
    pthread_mutex_destroy(&g->mutex);
    free(g);
}

bool gemm_onednn_wants(const struct gemm_onednn *g, enum dtype dtype)
{
    return g->wants[dtype];
}

/* ---- bf16: matmul primitives --------------------------------------------- */

/* A memory descriptor: version 2's structure, or version 3's handle. */
union memory_desc {
    void *handle;
    _Alignas(16) unsigned char structure[4096];
};

static bool memory_desc_make(struct gemm_onednn *g, union memory_desc *md, int64_t rows, int64_t columns,
                             bool transposed, int64_t ld, enum dtype dtype)
{
    dnnl_dims dims = {rows, columns}, strides = {transposed ? 1 : ld, transposed ? ld : 1};
    int type = dtype == DTYPE_F32 ? DNNL_F32 : DNNL_BF16;
    memset(md, 0, sizeof *md);
    if (g->major == 2)
        return g->dnnl.memory_desc_init_by_strides(md, 2, dims, type, strides) == 0;
    return g->dnnl.memory_desc_create_with_strides(&md->handle, 2, dims, type, strides) == 0;
}

static const void *memory_desc_of(const struct gemm_onednn *g, const union memory_desc *md)
{
    return g->major == 2 ? (const void *)md->structure : md->handle;
}

static bool attributes_make(struct gemm_onednn *g, bool accumulate, dnnl_handle *attr)
{
    struct dnnl *d = &g->dnnl;
    dnnl_handle post_ops = NULL;
    bool right =
        d->primitive_attr_create(attr) == 0 && d->primitive_attr_set_scratchpad_mode(*attr, DNNL_SCRATCHPAD_USER) == 0;
    if (right && accumulate) {
        right = d->post_ops_create(&post_ops) == 0;
        if (right && g->major == 2)
            right = ((int (*)(dnnl_handle, float))d->post_ops_append_sum)(post_ops, 1.0f) == 0;
        else if (right)
            right = ((int (*)(dnnl_handle, float, int32_t, int))d->post_ops_append_sum)(post_ops, 1.0f, 0, 0) == 0;
        right = right && d->primitive_attr_set_post_ops(*attr, post_ops) == 0;
        if (post_ops)
            d->post_ops_destroy(post_ops);
    }
    return right;
}

/* Creates the primitive of p->shape and sets p->supported to whether that succeeded. */
static void primitive_make(struct gemm_onednn *g, struct primitive *p)
{
    struct dnnl *d = &g->dnnl;
    const struct shape *s = &p->shape;
    union memory_desc src, weights, dst, bias;
    _Alignas(16) unsigned char desc[32768];
    dnnl_handle attr = NULL, pd = NULL;
    bool made = memory_desc_make(g, &src, s->m, s->k, s->transpose_a, s->lda, DTYPE_BF16);
    made = memory_desc_make(g, &weights, s->k, s->n, s->transpose_b, s->ldb, DTYPE_BF16) && made;
    made = memory_desc_make(g, &dst, s->m, s->n, false, s->ldc, (enum dtype)s->c_dtype) && made;
    made = memory_desc_make(g, &bias, 1, s->n, false, s->n, DTYPE_BF16) && made;
    made = made && attributes_make(g, s->accumulate, &attr);
    const void *bias_md = s->bias ? memory_desc_of(g, &bias) : NULL;
    if (made && g->major == 2)
        made = d->matmul_desc_init(desc, &src, &weights, bias_md, &dst) == 0 &&
               d->primitive_desc_create(&pd, desc, attr, g->engine, NULL) == 0;
    else if (made)
        made =
            d->matmul_primitive_desc_create(&pd, g->engine, src.handle, weights.handle, bias_md, dst.handle, attr) == 0;
    if (made) {
        const void *scratch_md = d->primitive_desc_query_md(pd, DNNL_QUERY_SCRATCHPAD, 0);
        const void *mds[OPERANDS] = {memory_desc_of(g, &src), memory_desc_of(g, &weights), memory_desc_of(g, &dst),
                                     scratch_md, bias_md};
        const char *implementation = "";
        p->scratch_bytes = scratch_md ? d->memory_desc_get_size(scratch_md) : 0;
        d->primitive_desc_query(pd, DNNL_QUERY_IMPL_INFO, 0, &implementation);
        /* oneDNN's reference implementation is far slower than the built-in product */
        made = !strstr(implementation, "ref") && d->primitive_create(&p->primitive, pd) == 0;
        for (int i = 0; i < OPERANDS && made; i++)
            if (mds[i])
                made = d->memory_create(&p->memory[i], mds[i], g->engine, NULL) == 0;
        if (!g->told)
            log_debug("oneDNN multiplies bf16 with %s", implementation);
        g->told = true;
    }
    p->supported = made;
    if (pd)
        d->primitive_desc_destroy(pd);
    if (attr)
        d->primitive_attr_destroy(attr);
    union memory_desc *descs[] = {&src, &weights, &dst, &bias};
    for (size_t i = 0; i < COUNT_OF(descs) && g->major == 3; i++)
        if (descs[i]->handle)
            d->memory_desc_destroy(descs[i]->handle);
}

static struct primitive *primitive_of(struct gemm_onednn *g, const struct shape *shape)
{
    for (int i = 0; i < CACHE_ENTRIES && g->cache[i].used; i++)
        if (memcmp(&g->cache[i].shape, shape, sizeof *shape) == 0)
            return &g->cache[i];
    struct primitive *p = &g->cache[g->next];
    g->next = (g->next + 1) % CACHE_ENTRIES;
    primitive_release(g, p);
    p->used = true;
    p->shape = *shape;
    primitive_make(g, p);
    return p;
}

static enum gemm_result library_bf16(struct gemm_onednn *g, const struct gemm_args *a)
{
    struct shape shape;
    memset(&shape, 0, sizeof shape); /* compared as bytes */
    shape.m = a->m;
    shape.n = a->n;
    shape.k = a->k;
    shape.lda = a->lda;
    shape.ldb = a->ldb;
    shape.ldc = a->ldc;
    shape.c_dtype = a->c_dtype;
    shape.transpose_a = a->transpose_a;
    shape.transpose_b = a->transpose_b;
    shape.accumulate = a->accumulate;
    shape.bias = a->bias != NULL;
    struct primitive *p = primitive_of(g, &shape);
    if (!p->supported || p->scratch_bytes > a->scratch_bytes)
        return GEMM_UNSUPPORTED;
    static const int names[OPERANDS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD,
                                        DNNL_ARG_BIAS};
    const void *pointers[OPERANDS] = {a->a, a->b, a->c, a->scratch, a->bias};
    struct dnnl_arg args[OPERANDS];
    int count = 0;
    for (int i = 0; i < OPERANDS; i++) {
        if (!p->memory[i])
            continue;
        if (g->dnnl.memory_set_data_handle(p->memory[i], (void *)(uintptr_t)pointers[i]) != 0)
            return GEMM_FAILED;
        args[count++] = (struct dnnl_arg){names[i], p->memory[i]};
    }
    if (g->dnnl.primitive_execute(p->primitive, g->stream, count, args) != 0 || g->dnnl.stream_wait(g->stream) != 0)
        return GEMM_FAILED;
    return GEMM_DONE;
}

enum gemm_result gemm_onednn_multiply(struct gemm_onednn *g, const struct gemm_args *a)
{
    ASSERT(g->wants[a->dtype]);
    if (a->m == 0 || a->n == 0 || a->k == 0)
        return GEMM_UNSUPPORTED;
    if (a->dtype == DTYPE_F32) {
        ASSERT(!a->bias);
        int code = g->dnnl.sgemm(a->transpose_a ? 'T' : 'N', a->transpose_b ? 'T' : 'N', a->m, a->n, a->k, 1.0f, a->a,
                                 a->lda, a->b, a->ldb, a->accumulate ? 1.0f : 0.0f, a->c, a->ldc);
        return code == 0 ? GEMM_DONE : GEMM_FAILED;
    }
    pthread_mutex_lock(&g->mutex);
    enum gemm_result result = library_bf16(g, a);
    pthread_mutex_unlock(&g->mutex);
    return result;
}
