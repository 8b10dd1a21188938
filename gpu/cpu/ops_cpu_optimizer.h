/* ops_cpu_optimizer.h: the end of a step: sum of squares, decision, Adam. A template, see ops_cpu.h. */

/* ---- sum of squares ------------------------------------------------------ */

static double sumsq_part(const float *x, struct range part)
{
    enum { LANES = 16 };
    double sums[LANES] = {0}, total = 0;
    int64_t i = part.first;
    for (; i + LANES <= part.end; i += LANES)
        for (int lane = 0; lane < LANES; lane++)
            sums[lane] += (double)x[i + lane] * (double)x[i + lane];
    for (int lane = 0; i < part.end; i++, lane++)
        sums[lane] += (double)x[i] * (double)x[i];
    for (int lane = 0; lane < LANES; lane++)
        total += sums[lane];
    return total;
}

static void op_sumsq(struct stream *stream, const struct sumsq_args *a)
{
    (void)stream;
    liveness_tick();
    double parts[SUMSQ_PARTS];
#pragma omp parallel for schedule(static) if (a->n > WORTH_THREADS)
    for (int64_t part = 0; part < SUMSQ_PARTS; part++)
        parts[part] = sumsq_part(a->x, range_part(a->n, 1024, SUMSQ_PARTS, part));
    double sum = 0;
    for (int part = 0; part < SUMSQ_PARTS; part++)
        sum += parts[part];
    *a->out = sum;
}

/* ---- the step ------------------------------------------------------------ */

static void op_decide_step(struct stream *stream, const struct decide_step_args *a)
{
    (void)stream;
    liveness_tick();
    struct step_state *s = a->state;
    ptrdiff_t row = a->units + 1;
    double total = 0, loss_sum = 0;
    s->bad_unit = s->bad_loss_rank = -1;
    for (int u = 0; u < a->units; u++) {
        double before = total;
        for (int r = 0; r < a->world; r++)
            total += a->reports[r * row + u];
        if (isfinite(before) && !isfinite(total))
            s->bad_unit = u;
    }
    for (int r = 0; r < a->world; r++) {
        double loss = a->reports[r * row + a->units];
        loss_sum += loss;
        if (!isfinite(loss) && s->bad_loss_rank < 0)
            s->bad_loss_rank = r;
    }
    int64_t made = s->optimizer_step - a->schedule->base;
    ASSERT(made >= 0 && made < STEP_RATES);
    const struct step_rates *rates = &a->schedule->rates[made];
    double scale = s->scaler.scale, norm = sqrt(total) / scale;
    s->loss_sum = loss_sum;
    s->grad_norm = norm;
    s->lr = rates->lr;
    s->correction1 = rates->correction1;
    s->correction2 = rates->correction2;
    s->used_loss_scale = (float)scale;
    s->skipped = !isfinite(total);
    s->grad_scale = (float)((a->clip > 0 && norm > a->clip ? a->clip / (norm + 1e-6) : 1) / scale);
    s->optimizer_step += !s->skipped;
    loss_scaler_update(&s->scaler, &a->scaler, s->skipped);
    s->loss_scale = (float)s->scaler.scale;
}

static void op_find_nonfinite(struct stream *stream, const struct find_nonfinite_args *a)
{
    (void)stream;
    liveness_tick();
    if (!*a->enabled)
        return;
    int64_t i = 0;
    while (i < a->n && isfinite(a->x[i]))
        i++;
    *a->index = i;
}

/* ---- Adam ---------------------------------------------------------------- */

static ALWAYS_INLINE void adam_part(const struct adam_args *a, struct range part, enum dtype param_dtype)
{
    float scale = a->step->grad_scale, lr = (float)a->step->lr;
    float decay = a->adamw ? lr * a->weight_decay : 0, l2 = a->adamw ? 0 : a->weight_decay;
    float beta1 = (float)a->beta1, rest1 = (float)(1 - a->beta1), beta2 = (float)a->beta2;
    float rest2 = (float)(1 - a->beta2), inv_c1 = (float)(1 / a->step->correction1);
    float inv_root_c2 = (float)(1 / sqrt(a->step->correction2));
    for (int64_t i = part.first; i < part.end; i += VF) {
        vf w = vf_get(a->master, i, part.end, DTYPE_F32), g = vf_get(a->grad, i, part.end, DTYPE_F32) * scale;
        vf m = vf_get(a->m, i, part.end, DTYPE_F32), v = vf_get(a->v, i, part.end, DTYPE_F32);
        g += l2 * w;
        w -= decay * w;
        m = beta1 * m + rest1 * g;
        v = beta2 * v + rest2 * g * g;
        w -= lr * (m * inv_c1) / (vf_sqrt(v) * inv_root_c2 + a->eps);
        vf_put(a->m, i, part.end, m, DTYPE_F32);
        vf_put(a->v, i, part.end, v, DTYPE_F32);
        vf_put(a->master, i, part.end, w, DTYPE_F32);
        if (a->param)
            vf_put(a->param, i, part.end, w, param_dtype);
    }
}

static void op_adam(struct stream *stream, const struct adam_args *a)
{
    (void)stream;
    liveness_tick();
    if (a->step->skipped)
        return;
#pragma omp parallel if (a->n > WORTH_THREADS)
    {
        struct range part = range_mine(a->n, 64);
        WITH_DTYPE(a->param_dtype, adam_part(a, part, DT));
    }
}
