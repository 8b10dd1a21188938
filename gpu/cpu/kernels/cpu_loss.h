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

static double cross_entropy_scale(const struct cross_entropy_args *a, int64_t i)
{
    const double of_step = (double)a->scale * (a->step_scale ? (double)*a->step_scale : 1);
    const double scale = of_step * (a->loss_scale ? (double)*a->loss_scale : 1);
    return a->row_scale ? scale * (double)a->row_scale[i] : scale;
}

/* Returns the loss of row i. Its gradient may overwrite the logits: element j of the gradient is written after every
 * logit up to the end of its vector has been read, and narrower elements lie further left. */
static ALWAYS_INLINE double cross_entropy_row(const struct cross_entropy_args *a, int64_t i, enum dtype logits_dtype,
                                              enum dtype dtype, bool capped)
{
    const void *logits = at(a->logits, i * a->ld_logits, logits_dtype);
    void *dlogits = a->dlogits ? at(a->dlogits, i * a->ld_dlogits, dtype) : NULL;
    int32_t target = a->targets[i];
    vf all_equal = target < 0 ? vf_zero() : logits_of(vf_set(dtype_load(logits, target, logits_dtype)), a, capped);
    float logit = all_equal[0], slope = logits_slope(all_equal, a, capped)[0];
    if (target < 0 || a->linear) {
        if (dlogits) memset(dlogits, 0, (size_t)(a->V_padded > a->V ? a->V_padded : a->V) * dtype_size(dtype));
        if (dlogits && target >= 0) dtype_store(dlogits, target, (float)-cross_entropy_scale(a, i) * slope, dtype);
        return (double)-logit;
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
    const double smoothing = (double)a->smoothing, uniform = smoothing / (double)a->V;
    double wanted = (1 - smoothing) * (double)logit;
    if (smoothing > 0) wanted += smoothing * mean_logit(a, logits, highest, logits_dtype, capped);
    double loss = log(total) + (double)highest - wanted;
    if (dlogits) {
        double scale = cross_entropy_scale(a, i);
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

/* The teacher of a row at the temperature: token k has the probability exp(logps[k] / T - shift). */
struct teacher {
    const int32_t *ids;
    const float *logps;
    int64_t count;
    double shift;
};

static struct teacher teacher_of(const struct cross_entropy_args *a, int64_t i)
{
    struct teacher t = {a->teacher_ids + i * a->K, a->teacher_logps + i * a->K, a->K, 0};
    double highest = -INFINITY, total = 0;
    for (int64_t k = 0; k < t.count; k++) highest = fmax(highest, (double)t.logps[k]);
    for (int64_t k = 0; k < t.count; k++) total += exp(((double)t.logps[k] - highest) / (double)a->temperature);
    t.shift = highest / (double)a->temperature + log(total);
    return t;
}

static double teacher_logp(const struct teacher *t, int64_t k, double temperature)
{
    return (double)t->logps[k] / temperature - t->shift;
}

/* The gradient of a row with a teacher. */
static ALWAYS_INLINE void distill_gradient(const struct cross_entropy_args *a, int64_t i, const struct teacher *teacher,
                                           float highest, double total, double cool_total, enum dtype logits_dtype,
                                           enum dtype dtype, bool capped)
{
    const void *logits = at(a->logits, i * a->ld_logits, logits_dtype);
    void *dlogits = at(a->dlogits, i * a->ld_dlogits, dtype);
    const double scale = cross_entropy_scale(a, i), temperature = (double)a->temperature, alpha = (double)a->alpha;
    const double of_hard = (1 - alpha) * scale, of_soft = alpha * temperature * scale;
    const int32_t target = a->targets[i];
    for (int64_t j = 0, k = 0; j < a->V; j += VF) {
        const vf z = logits_of(vf_get(logits, j, a->V, logits_dtype), a, capped), below = z - highest;
        vf g = vf_exp(below) * (float)(of_hard / total) +
               vf_exp(below * (1 / a->temperature)) * (float)(of_soft / cool_total);
        for (; k < teacher->count && teacher->ids[k] < j + VF; k++)
            g[teacher->ids[k] - j] -= (float)(of_soft * exp(teacher_logp(teacher, k, temperature)));
        if (target >= j && target < j + VF) g[target - j] -= (float)of_hard;
        vf_put(dlogits, j, a->V, g * logits_slope(z, a, capped), dtype);
    }
    if (a->V_padded > a->V) memset(at(dlogits, a->V, dtype), 0, (size_t)(a->V_padded - a->V) * dtype_size(dtype));
}

/* cross_entropy_row() with a teacher, of a row with a target. */
static ALWAYS_INLINE double distill_row(const struct cross_entropy_args *a, int64_t i, enum dtype logits_dtype,
                                        enum dtype dtype, bool capped)
{
    const void *logits = at(a->logits, i * a->ld_logits, logits_dtype);
    const double temperature = (double)a->temperature, alpha = (double)a->alpha;
    float highest = -INFINITY;
    double total = 0, cool_total = 0, kl = 0;
    for (int64_t j = 0; j < a->V; j++)
        highest = fmaxf(highest, logits_of(vf_set(dtype_load(logits, j, logits_dtype)), a, capped)[0]);
    for (int64_t j = 0; j < a->V; j += VF) {
        const vf below = logits_of(vf_get(logits, j, a->V, logits_dtype), a, capped) - highest;
        const vf e = vf_exp(below), cool = vf_exp(below * (1 / a->temperature)), none = vf_zero();
        const bool whole = a->V - j >= VF;
        total += (double)vf_sum(whole ? e : vf_select(vf_lanes_below(a->V - j), e, none));
        cool_total += (double)vf_sum(whole ? cool : vf_select(vf_lanes_below(a->V - j), cool, none));
    }
    const struct teacher teacher = teacher_of(a, i);
    for (int64_t k = 0; k < teacher.count; k++) {
        const double logp = teacher_logp(&teacher, k, temperature);
        const double z = (double)logits_of(vf_set(dtype_load(logits, teacher.ids[k], logits_dtype)), a, capped)[0];
        kl += exp(logp) * (logp - (z - (double)highest) / temperature + log(cool_total));
    }
    const double logit = (double)logits_of(vf_set(dtype_load(logits, a->targets[i], logits_dtype)), a, capped)[0];
    if (a->dlogits) distill_gradient(a, i, &teacher, highest, total, cool_total, logits_dtype, dtype, capped);
    return (1 - alpha) * (log(total) + (double)highest - logit) + alpha * temperature * temperature * kl;
}

static ALWAYS_INLINE double loss_of_row(const struct cross_entropy_args *a, int64_t i, enum dtype logits_dtype,
                                        enum dtype dtype, bool capped)
{
    if (a->K && a->targets[i] >= 0) return distill_row(a, i, logits_dtype, dtype, capped);
    return cross_entropy_row(a, i, logits_dtype, dtype, capped);
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
                      WITH_DTYPE(a->dtype, losses[i] = loss_of_row(a, i, DTYPE_F32, DT, CAPPED)));
        else
            WITH_BOOL(CAPPED, a->softcap > 0, WITH_DTYPE(a->dtype, losses[i] = loss_of_row(a, i, DT, DT, CAPPED)));
    }
    double sum = *a->loss_sum;
    for (int64_t i = 0; i < a->M; i++) {
        sum += losses[i];
        if (a->row_losses) a->row_losses[i] = (float)losses[i];
    }
    *a->loss_sum = sum;
}
