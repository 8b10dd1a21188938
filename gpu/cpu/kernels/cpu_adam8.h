/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_adam8.h: AdamW with moments in 8 bits. A template, see ops_cpu.h. A block is decoded into buffers of the
 * first-level cache, updated, and encoded. Every operation rounds to fp32 where torch rounds, so no product and sum may
 * become an FMA unless torch makes one: adam8_round() stands between them. */

/* A map, and the way back to its codes. */
struct adam8_map {
    float values[DYNAMIC_MAP_SIZE];
    struct dynamic_lookup lookup;
};

struct adam8_maps {
    struct adam8_map m, v;
};

/* A step's numbers as torch computes them in fp32. */
struct adam8_numbers {
    float scale, lr, rest1, rest2, correction1, root_correction2, eps;
};

static float adam8_correction(double beta, int64_t step, double correction)
{
    return correction == 1 ? 1 : 1 - powf((float)beta, (float)step);
}

static struct adam8_numbers adam8_numbers_of(const struct adam8_args *a)
{
    const struct step_state *s = a->step;
    return (struct adam8_numbers){
        .scale = s->grad_scale,
        .lr = (float)s->lr,
        .rest1 = (float)(1 - s->beta1),
        .rest2 = (float)(1 - s->beta2),
        .correction1 = adam8_correction(s->beta1, s->optimizer_step, s->correction1),
        .root_correction2 = sqrtf(adam8_correction(s->beta2, s->optimizer_step, s->correction2)),
        .eps = a->eps,
    };
}

/* x, which the compiler takes for the result of something else than a product. */
static ALWAYS_INLINE vf adam8_round(vf x)
{
#if defined(__x86_64__)
    __asm__("" : "+x"(x));
#elif defined(__aarch64__)
    __asm__("" : "+w"(x));
#else
#error "how does this compiler name a vector register?"
#endif
    return x;
}

/* a · b + c, rounded once. */
static ALWAYS_INLINE vf adam8_fma(vf a, vf b, vf c)
{
#if defined(__AVX2__) || defined(__aarch64__)
    return vf_fma(a, b, c);
#else
    for (int i = 0; i < VF; i++) c[i] = fmaf(a[i], b[i], c[i]);
    return c;
#endif
}

/* From x towards `end` by `weight`, counted from the nearer one. */
static ALWAYS_INLINE vf adam8_lerp(vf x, vf end, float weight)
{
    return weight < 0.5f ? adam8_fma(vf_set(weight), end - x, x) : adam8_fma(vf_set(weight - 1), end - x, end);
}

static ALWAYS_INLINE void adam8_decode(const struct moment_block *block, const struct adam8_map *map, float *values)
{
    for (int i = 0; i < MOMENT_BLOCK; i++) values[i] = map->values[block->codes[i]] * block->scale;
}

static ALWAYS_INLINE void adam8_encode(float *values, const struct adam8_map *map, struct moment_block *block)
{
    vf most = vf_set(1e-12f);
    for (int i = 0; i < MOMENT_BLOCK; i += VF) {
        const vf x = vf_load(values, i, DTYPE_F32);
        most = vf_max(vf_max(x, -x), most);
    }
    block->scale = vf_max_lane(most);
    for (int i = 0; i < MOMENT_BLOCK; i += VF)
        vf_store(values, i, vf_load(values, i, DTYPE_F32) / vf_set(block->scale), DTYPE_F32);
    for (int i = 0; i < MOMENT_BLOCK; i++) block->codes[i] = dynamic_lookup_code(&map->lookup, values[i]);
}

static ALWAYS_INLINE void adam8_block(const struct adam8_args *a, const struct adam8_maps *maps,
                                      const struct adam8_numbers *k, int64_t block, enum dtype param_dtype,
                                      enum dtype grad_dtype)
{
    float ms[MOMENT_BLOCK], vs[MOMENT_BLOCK];
    const int64_t first = block * MOMENT_BLOCK;
    const float decay = k->lr * a->weight_decay;
    adam8_decode(&a->m[block], &maps->m, ms);
    adam8_decode(&a->v[block], &maps->v, vs);
    for (int i = 0; i < MOMENT_BLOCK; i += VF) {
        vf w = vf_load(a->master, first + i, DTYPE_F32),
           g = adam8_round(vf_load(a->grad, first + i, grad_dtype) * k->scale);
        const vf m = adam8_lerp(vf_load(ms, i, DTYPE_F32), g, k->rest1);
        const vf v = adam8_lerp(vf_load(vs, i, DTYPE_F32), adam8_round(g * g), k->rest2);
        const vf root = vf_sqrt(v) / vf_set(k->root_correction2) + vf_set(k->eps);
        w -= adam8_round(decay * w);
        w -= k->lr * (m / vf_set(k->correction1)) / root;
        vf_store(ms, i, m, DTYPE_F32);
        vf_store(vs, i, v, DTYPE_F32);
        vf_store(a->master, first + i, w, DTYPE_F32);
        if (a->param) vf_store(a->param, first + i, w, param_dtype);
    }
    adam8_encode(ms, &maps->m, &a->m[block]);
    adam8_encode(vs, &maps->v, &a->v[block]);
}

static void adam8_part(const struct adam8_args *a, const struct adam8_maps *maps, struct range part)
{
    const struct adam8_numbers k = adam8_numbers_of(a);
    for (int64_t block = part.first / MOMENT_BLOCK; block < part.end / MOMENT_BLOCK; block++)
        if (a->grad_dtype == DTYPE_F32)
            WITH_DTYPE(a->param_dtype, adam8_block(a, maps, &k, block, DT, DTYPE_F32));
        else
            WITH_DTYPE(a->param_dtype, adam8_block(a, maps, &k, block, DT, DTYPE_BF16));
}

static void op_adam8(struct stream *stream, const struct adam8_args *a)
{
    (void)stream;
    heartbeat_beat();
    ASSERT(a->n % MOMENT_BLOCK == 0);
    if (a->step->skipped || a->n == 0) return;
    struct adam8_maps maps;
    dynamic_map_signed(maps.m.values);
    dynamic_map_unsigned(maps.v.values);
    dynamic_lookup_init(&maps.m.lookup, maps.m.values);
    dynamic_lookup_init(&maps.v.lookup, maps.v.values);
    IN_SEGMENTS(adam8_args, MOMENT_BLOCK, adam8_part(&one, &maps, segment));
}
