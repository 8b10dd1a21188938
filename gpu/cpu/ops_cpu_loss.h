/* ops_cpu_loss.h: the cross-entropy of the logits and its gradient. A template, see ops_cpu.h. */

static ALWAYS_INLINE float load_one(const void *x, int64_t i, enum dtype dtype)
{
    if (dtype == DTYPE_F32)
        return ((const float *)x)[i];
    return dtype == DTYPE_BF16 ? bf16_to_f32(((const uint16_t *)x)[i]) : f16_to_f32(((const uint16_t *)x)[i]);
}

static ALWAYS_INLINE void store_one(void *x, int64_t i, float value, enum dtype dtype)
{
    if (dtype == DTYPE_F32)
        ((float *)x)[i] = value;
    else
        ((uint16_t *)x)[i] = dtype == DTYPE_BF16 ? bf16_from_f32(value) : f16_from_f32(value);
}

/* Returns the loss of row i. Its gradient may overwrite the logits: element j of the gradient is written after every
 * logit up to the end of its vector has been read, and narrower elements lie further left. */
static ALWAYS_INLINE double cross_entropy_row(const struct cross_entropy_args *a, int64_t i, enum dtype logits_dtype,
                                              enum dtype dtype)
{
    const void *logits = at(a->logits, i * a->ld_logits, logits_dtype);
    void *dlogits = a->dlogits ? at(a->dlogits, i * a->ld_dlogits, dtype) : NULL;
    int32_t target = a->targets[i];
    if (target < 0) {
        if (dlogits)
            memset(dlogits, 0, (size_t)(a->V_padded > a->V ? a->V_padded : a->V) * dtype_size(dtype));
        return 0;
    }
    int64_t whole = a->V / VF * VF, left = a->V - whole;
    vi inside = vf_lanes_below(left);
    vf lowest = vf_set(-INFINITY);
    vf m = lowest;
    for (int64_t j = 0; j < whole; j += VF)
        m = vf_max(m, vf_load(logits, j, logits_dtype));
    if (left)
        m = vf_max(m, vf_select(inside, vf_load_part(logits, whole, left, logits_dtype), lowest));
    float highest = vf_max_lane(m);
    vf sum = vf_zero();
    for (int64_t j = 0; j < whole; j += VF)
        sum += vf_exp(vf_load(logits, j, logits_dtype) - highest);
    if (left)
        sum += vf_select(inside, vf_exp(vf_load_part(logits, whole, left, logits_dtype) - highest), vf_zero());
    double total = vf_sum(sum);
    float logit = load_one(logits, target, logits_dtype);
    double loss = log(total) + (double)highest - (double)logit;
    if (dlogits) {
        double scale = (double)a->scale * (a->loss_scale ? (double)*a->loss_scale : 1);
        float factor = (float)(scale / total);
        double p = exp((double)logit - (double)highest) / total;
        for (int64_t j = 0; j < a->V; j += VF) {
            vf x = vf_get(logits, j, a->V, logits_dtype) - highest;
            vf_put(dlogits, j, a->V, vf_exp_for(x, dtype != DTYPE_F32) * factor, dtype);
        }
        if (a->V_padded > a->V)
            memset(at(dlogits, a->V, dtype), 0, (size_t)(a->V_padded - a->V) * dtype_size(dtype));
        float gradient = (float)(scale * (p - 1));
        store_one(dlogits, target, gradient, dtype);
    }
    return loss;
}

static void op_cross_entropy(struct stream *stream, const struct cross_entropy_args *a)
{
    ASSERT(a->logits_dtype == DTYPE_F32 || a->logits_dtype == a->dtype);
    liveness_tick();
    struct scratch scratch = scratch_of(stream);
    double *losses = scratch_take(&scratch, (size_t)a->M * sizeof *losses);
#pragma omp parallel for schedule(static) if (a->M * a->V > WORTH_THREADS)
    for (int64_t i = 0; i < a->M; i++) {
        if (a->logits_dtype == DTYPE_F32)
            WITH_DTYPE(a->dtype, losses[i] = cross_entropy_row(a, i, DTYPE_F32, DT));
        else
            WITH_DTYPE(a->dtype, losses[i] = cross_entropy_row(a, i, DT, DT));
    }
    double sum = *a->loss_sum;
    for (int64_t i = 0; i < a->M; i++)
        sum += losses[i];
    *a->loss_sum = sum;
}
