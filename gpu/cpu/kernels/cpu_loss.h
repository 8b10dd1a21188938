/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_loss.h: the cross-entropy of the logits and its gradient. A template, see ops_cpu.h. */

/* What the softmax is taken of. `capped`, a constant: there is a soft cap. */
static ALWAYS_INLINE vf logits_of(vf x, const struct cross_entropy_args *a, bool capped)
{
    vf z = x * a->logit_scale;
    return capped ? a->softcap * vf_tanh(z / a->softcap) : z;
}

/* dz/dx for z = logits_of(x) */
static ALWAYS_INLINE vf logits_slope(vf z, const struct cross_entropy_args *a, bool capped)
{
    vf t = z / a->softcap;
    return capped ? a->logit_scale * (1.0f - t * t) : vf_set(a->logit_scale);
}

static ALWAYS_INLINE double mean_logit(const struct cross_entropy_args *a, const void *logits, float highest,
                                       enum dtype dtype, bool capped)
{
    vf sum = vf_zero();
    for (int64_t j = 0; j < a->V; j += VF) {
        vf x = logits_of(vf_get(logits, j, a->V, dtype), a, capped) - highest;
        sum += a->V - j < VF ? vf_select(vf_lanes_below(a->V - j), x, vf_zero()) : x;
    }
    return (double)highest + (double)vf_sum(sum) / (double)a->V;
}

/* Returns the loss of row i. Its gradient may overwrite the logits: element j of the gradient is written after every
 * logit up to the end of its vector has been read, and narrower elements lie further left. */
static ALWAYS_INLINE double cross_entropy_row(const struct cross_entropy_args *a, int64_t i, enum dtype logits_dtype,
                                              enum dtype dtype, bool capped)
{
    const void *logits = at(a->logits, i * a->ld_logits, logits_dtype);
    void *dlogits = a->dlogits ? at(a->dlogits, i * a->ld_dlogits, dtype) : NULL;
    int32_t target = a->targets[i];
    if (target < 0) {
        if (dlogits) memset(dlogits, 0, (size_t)(a->V_padded > a->V ? a->V_padded : a->V) * dtype_size(dtype));
        return 0;
    }
    const vf lowest = vf_set(-INFINITY);
    vf m = lowest, sum = vf_zero();
    for (int64_t j = 0; j < a->V; j += VF) {
        vf z = logits_of(vf_get(logits, j, a->V, logits_dtype), a, capped);
        m = vf_max(m, a->V - j < VF ? vf_select(vf_lanes_below(a->V - j), z, lowest) : z);
    }
    float highest = vf_max_lane(m);
    for (int64_t j = 0; j < a->V; j += VF) {
        vf e = vf_exp(logits_of(vf_get(logits, j, a->V, logits_dtype), a, capped) - highest);
        sum += a->V - j < VF ? vf_select(vf_lanes_below(a->V - j), e, vf_zero()) : e;
    }
    double total = vf_sum(sum);
    vf all_equal = logits_of(vf_set(dtype_load(logits, target, logits_dtype)), a, capped);
    float logit = all_equal[0], slope = logits_slope(all_equal, a, capped)[0];
    const double smoothing = (double)a->smoothing, uniform = smoothing / (double)a->V;
    double wanted = (1 - smoothing) * (double)logit;
    if (smoothing > 0) wanted += smoothing * mean_logit(a, logits, highest, logits_dtype, capped);
    double loss = log(total) + (double)highest - wanted;
    if (dlogits) {
        double of_step = (double)a->scale * (a->step_scale ? (double)*a->step_scale : 1);
        double scale = of_step * (a->loss_scale ? (double)*a->loss_scale : 1);
        float factor = (float)(scale / total), shift = (float)(scale * uniform);
        double p = exp((double)logit - (double)highest) / total;
        for (int64_t j = 0; j < a->V; j += VF) {
            vf z = logits_of(vf_get(logits, j, a->V, logits_dtype), a, capped);
            vf e = vf_exp_for(z - highest, dtype != DTYPE_F32) * factor - shift;
            vf_put(dlogits, j, a->V, e * logits_slope(z, a, capped), dtype);
        }
        if (a->V_padded > a->V) memset(at(dlogits, a->V, dtype), 0, (size_t)(a->V_padded - a->V) * dtype_size(dtype));
        float gradient = (float)(scale * (p - (1 - smoothing) - uniform)) * slope;
        dtype_store(dlogits, target, gradient, dtype);
    }
    return loss;
}

static void op_cross_entropy(struct stream *stream, const struct cross_entropy_args *a)
{
    ASSERT(a->logits_dtype == DTYPE_F32 || a->logits_dtype == a->dtype);
    heartbeat_beat();
    struct scratch scratch = scratch_of(stream);
    double *losses = scratch_take(&scratch, (size_t)a->M * sizeof *losses);
#pragma omp parallel for schedule(static) if (a->M * a->V > WORTH_THREADS)
    for (int64_t i = 0; i < a->M; i++) {
        if (a->logits_dtype == DTYPE_F32)
            WITH_BOOL(CAPPED, a->softcap > 0,
                      WITH_DTYPE(a->dtype, losses[i] = cross_entropy_row(a, i, DTYPE_F32, DT, CAPPED)));
        else
            WITH_BOOL(CAPPED, a->softcap > 0,
                      WITH_DTYPE(a->dtype, losses[i] = cross_entropy_row(a, i, DT, DT, CAPPED)));
    }
    double sum = *a->loss_sum;
    for (int64_t i = 0; i < a->M; i++) sum += losses[i];
    *a->loss_sum = sum;
}
