/* gemm_cpu.c: chooses between oneDNN, opened at run time, and a plain blocked product that builds everywhere.
 *
 * libdnnl is large and drags in a C++ runtime and an OpenCL loader, so nothing links against it: where it is installed
 * it is opened by name, with the few prototypes that are needed declared here. */
#include "gpu/gemm_cpu.h"

#include "core/log.h"
#include "core/progress.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int (*sgemm_function)(char transpose_a, char transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
                              const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                              int64_t ldc);

struct dnnl_version {
    int major, minor, patch;
    const char *hash;
    unsigned cpu_runtime, gpu_runtime;
};

struct gemm {
    void *library;
    sgemm_function sgemm; /* NULL: builtin */
    char description[96];
};

static const char *const library_names[] = {"libdnnl.so.3", "libdnnl.so.2", "libdnnl.so"};

static bool open_onednn(struct gemm *g)
{
    for (size_t i = 0; i < COUNT_OF(library_names) && !g->library; i++)
        g->library = dlopen(library_names[i], RTLD_NOW | RTLD_LOCAL);
    if (!g->library)
        return false;
    const struct dnnl_version *(*version)(void);
    *(void **)&version = dlsym(g->library, "dnnl_version");
    *(void **)&g->sgemm = dlsym(g->library, "dnnl_sgemm");
    if (!version || !g->sgemm)
        return false;
    const struct dnnl_version *v = version();
    snprintf(g->description, sizeof g->description, "oneDNN %d.%d.%d", v->major, v->minor, v->patch);
    return true;
}

enum status gemm_new(const struct cpu_features *features, int threads, struct gemm **gemm, struct error *err)
{
    (void)features;
    (void)threads;
    const char *wish = getenv("ZTRAIN_CPU_GEMM");
    bool builtin = wish && strcmp(wish, "builtin") == 0, onednn = wish && strcmp(wish, "onednn") == 0;
    if (wish && *wish && !builtin && !onednn)
        return error_set(err, STATUS_DEVICE, "ZTRAIN_CPU_GEMM=%s: expected builtin or onednn", wish);
    struct gemm *g = calloc(1, sizeof *g);
    if (!g)
        return error_set(err, STATUS_DEVICE, "cannot open the GEMM library: out of memory");
    if (builtin || !open_onednn(g)) {
        if (onednn) {
            const char *why = dlerror();
            error_set(err, STATUS_DEVICE, "cannot open oneDNN: %s; hint: install libdnnl, or unset ZTRAIN_CPU_GEMM",
                      why ? why : "libdnnl lacks a function");
            gemm_free(g);
            return STATUS_DEVICE;
        }
        g->sgemm = NULL;
        snprintf(g->description, sizeof g->description, "builtin");
        if (!builtin)
            log_warn("oneDNN (libdnnl) is not installed: matrix products use a slow built-in routine");
    }
    *gemm = g;
    return STATUS_OK;
}

void gemm_free(struct gemm *g)
{
    if (g && g->library)
        dlclose(g->library);
    free(g);
}

const char *gemm_description(const struct gemm *g)
{
    return g->description;
}

/* Rows of C are spread over threads; sums run over k in order. */
static void builtin_f32(const struct gemm_f32_args *p)
{
    int64_t a_row = p->transpose_a ? 1 : p->lda, a_column = p->transpose_a ? p->lda : 1;
#pragma omp parallel for schedule(static) if (p->m * p->n * p->k > 1 << 15)
    for (int64_t i = 0; i < p->m; i++) {
        float *c = p->c + i * p->ldc;
        if (!p->accumulate)
            memset(c, 0, (size_t)p->n * sizeof *c);
        if (p->transpose_b) {
            for (int64_t j = 0; j < p->n; j++) {
                const float *b = p->b + j * p->ldb;
                float sum = 0;
                for (int64_t l = 0; l < p->k; l++)
                    sum += p->a[i * a_row + l * a_column] * b[l];
                c[j] += sum;
            }
        } else {
            for (int64_t l = 0; l < p->k; l++) {
                float x = p->a[i * a_row + l * a_column];
                const float *b = p->b + l * p->ldb;
                for (int64_t j = 0; j < p->n; j++)
                    c[j] += x * b[j];
            }
        }
    }
}

void gemm_f32(struct gemm *g, const struct gemm_f32_args *p)
{
    progress_tick();
    if (p->m == 0 || p->n == 0)
        return;
    if (g->sgemm && p->k > 0) {
        int code = g->sgemm(p->transpose_a ? 'T' : 'N', p->transpose_b ? 'T' : 'N', p->m, p->n, p->k, 1.0f, p->a,
                            p->lda, p->b, p->ldb, p->accumulate ? 1.0f : 0.0f, p->c, p->ldc);
        if (code == 0)
            return;
    }
    builtin_f32(p);
}
