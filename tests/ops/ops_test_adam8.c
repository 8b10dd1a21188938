/* SPDX-License-Identifier: Apache-2.0 */
/* ops_test_adam8.c: the driver of adam8, whose reference computes in fp32 as ops.h says: every bit must be right, but
 * for the weights on a GPU, whose pow() may differ. See ops_test.h for the terms. */
#include "core/memory.h"
#include "core/quantization/dynamic_map.h"
#include "tests/ops/ops_test_drivers.h"

#include <stdlib.h>

enum { ADAM8_SEGMENTS = 2 };

/* N / MOMENT_BLOCK blocks of random codes; zero: as before the first step */
static struct tensor *adam8_moments(struct harness *h, const char *name, bool zero)
{
    const int64_t blocks = h->timing ? 0 : h->c->N / MOMENT_BLOCK;
    struct moment_block *memory = memory_zeroed((size_t)blocks + 1, sizeof *memory);
    for (int64_t b = 0; b < blocks && !zero; b++) {
        const int32_t *codes = random_ints(h, MOMENT_BLOCK, DYNAMIC_MAP_SIZE);
        memory[b].scale = (float)(0.01 + 0.1 * fabs(random_uniform(h)));
        for (int i = 0; i < MOMENT_BLOCK; i++) memory[b].codes[i] = (uint8_t)codes[i];
    }
    const int64_t bytes = h->c->N / MOMENT_BLOCK * (int64_t)sizeof *memory;
    struct tensor *t = tensor_bytes(h, name, (const uint8_t *)memory, bytes);
    free(memory);
    return t;
}

static float adam8_decay(const struct harness *h, int64_t i)
{
    return has(h, TYPES) && i < MOMENT_BLOCK ? 0 : 0.1f;
}

/* WIDE_OUT: the parameter is fp32; LOSS_ONLY: there is none; else it has the case's dtype. EXTREME: a skipped step.
 * IN_PLACE: gradients in bf16. TYPES: segments. RMS: a small beta1, and no bias correction. INVERSE: the first step */
static void adam8_setup(struct harness *h)
{
    const int64_t n = h->c->N;
    const double beta1 = has(h, RMS) ? 0.3 : 0.9;
    const struct decay_segment segments[ADAM8_SEGMENTS] = {{MOMENT_BLOCK, adam8_decay(h, 0)}, {n, adam8_decay(h, n)}};
    h->w = tensor_in(h, "master", DTYPE_F32, n, 1);
    h->x = tensor_in(h, "grad", has(h, IN_PLACE) ? DTYPE_BF16 : DTYPE_F32, n, 1);
    h->q = adam8_moments(h, "m", has(h, INVERSE));
    h->v = adam8_moments(h, "v", has(h, INVERSE));
    h->y = has(h, LOSS_ONLY) ? NULL : tensor_out(h, "param", wide_dtype(h), n, false);
    h->w->output = true;
    h->w->exact = h->device->kind == DEVICE_CPU;
    const struct step_state step = {.optimizer_step = has(h, INVERSE) ? 1 : 7,
                                    .lr = 1e-2,
                                    .beta1 = beta1,
                                    .beta2 = 0.999,
                                    .grad_scale = 0.625f,
                                    .correction1 = has(h, RMS) ? 1 : 0.5,
                                    .correction2 = has(h, RMS) ? 1 : 0.5,
                                    .skipped = has(h, EXTREME)};
    h->args.adam8 = (struct adam8_args){.n = n,
                                        .master = h->w->device,
                                        .m = h->q->device,
                                        .v = h->v->device,
                                        .grad = h->x->device,
                                        .grad_dtype = h->x->dtype,
                                        .step = device_bytes(h, &step, sizeof step),
                                        .param = h->y ? h->y->device : NULL,
                                        .param_dtype = wide_dtype(h),
                                        .eps = 1e-6f,
                                        .weight_decay = has(h, TYPES) ? 0 : adam8_decay(h, 0),
                                        .segments = has(h, TYPES) ? device_bytes(h, segments, sizeof segments) : NULL};
}

static void adam8_load(const struct tensor *t, int64_t block, struct moment_block *to)
{
    uint8_t *bytes = (uint8_t *)to;
    for (size_t i = 0; i < sizeof *to; i++) bytes[i] = (uint8_t)t->host[block * (int64_t)sizeof *to + (int64_t)i];
}

static void adam8_expect(struct tensor *t, int64_t block, const float *map, const float *values)
{
    struct moment_block to = {.scale = 1e-12f};
    const uint8_t *bytes = (const uint8_t *)&to;
    for (int i = 0; i < MOMENT_BLOCK; i++) to.scale = fmaxf(to.scale, fabsf(values[i]));
    for (int i = 0; i < MOMENT_BLOCK; i++) to.codes[i] = dynamic_map_code(map, values[i] / to.scale);
    for (size_t i = 0; i < sizeof to; i++) t->expected[block * (int64_t)sizeof to + (int64_t)i] = bytes[i];
}

static float adam8_reference_lerp(float x, float end, float weight)
{
    return weight < 0.5f ? fmaf(weight, end - x, x) : fmaf(weight - 1, end - x, end);
}

static void adam8_reference_block(struct harness *h, int64_t block, const float *map_m, const float *map_v)
{
    const float beta1 = has(h, RMS) ? 0.3f : 0.9f, t = has(h, INVERSE) ? 1 : 7, lr = 1e-2f;
    const float c1 = has(h, RMS) ? 1 : 1 - powf(beta1, t), c2 = has(h, RMS) ? 1 : 1 - powf(0.999f, t);
    const float rest1 = (float)(1 - (has(h, RMS) ? 0.3 : 0.9)), rest2 = (float)(1 - 0.999);
    struct moment_block m, v;
    float ms[MOMENT_BLOCK], vs[MOMENT_BLOCK];
    adam8_load(h->q, block, &m);
    adam8_load(h->v, block, &v);
    for (int i = 0; i < MOMENT_BLOCK; i++) {
        const int64_t at = block * MOMENT_BLOCK + i;
        const float g = (float)h->x->host[at] * 0.625f, square = g * g, decay = lr * adam8_decay(h, at);
        float w = (float)h->w->host[at];
        const float decayed = decay * w;
        w = w - decayed;
        ms[i] = adam8_reference_lerp(map_m[m.codes[i]] * m.scale, g, rest1);
        vs[i] = adam8_reference_lerp(map_v[v.codes[i]] * v.scale, square, rest2);
        const float root = sqrtf(vs[i]) / sqrtf(c2) + h->args.adam8.eps, way = lr * (ms[i] / c1);
        w = w - way / root;
        h->w->expected[at] = (double)w;
        if (h->y) h->y->expected[at] = (double)w;
    }
    adam8_expect(h->q, block, map_m, ms);
    adam8_expect(h->v, block, map_v, vs);
}

static void adam8_reference(struct harness *h)
{
    float map_m[DYNAMIC_MAP_SIZE], map_v[DYNAMIC_MAP_SIZE];
    dynamic_map_signed(map_m);
    dynamic_map_unsigned(map_v);
    for (int64_t block = 0; block < h->c->N / MOMENT_BLOCK && !has(h, EXTREME); block++)
        adam8_reference_block(h, block, map_m, map_v);
}

FORWARD(adam8);
