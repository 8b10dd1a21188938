/* ops_cpu_pointwise.h: embedding, RoPE, SwiGLU, cross-entropy, add, cast, sum of squares, Adam. A template, see
 * ops_cpu.h. */

/* ---- embedding ----------------------------------------------------------- */

static ALWAYS_INLINE void embedding_fwd_rows(const struct embedding_fwd_args *a, struct range rows, enum dtype dtype)
{
    for (int64_t i = rows.first; i < rows.end; i++) {
        void *out = at(a->out, i * a->C, dtype);
        const void *token = at(a->wte, a->tokens[i] * a->C, dtype);
        const void *position = a->wpe ? at(a->wpe, a->positions[i] * a->C, dtype) : NULL;
        for (int64_t j = 0; j < a->C; j += VF) {
            vf x = vf_get(token, j, a->C, dtype);
            if (position)
                x += vf_get(position, j, a->C, dtype);
            vf_put(out, j, a->C, x, dtype);
        }
    }
}

static void op_embedding_fwd(struct stream *stream, const struct embedding_fwd_args *a)
{
    (void)stream;
    liveness_tick();
#pragma omp parallel if (a->M * a->C > WORTH_THREADS)
    {
        struct range rows = range_mine(a->M, 1);
        WITH_DTYPE(a->dtype, embedding_fwd_rows(a, rows, DT));
    }
}

/* A thread adds up its columns over all rows in order, so that no two threads add to the same element. */
static ALWAYS_INLINE void embedding_bwd_columns(const struct embedding_bwd_args *a, struct range columns,
                                                enum dtype dtype)
{
    for (int64_t i = 0; i < a->M; i++) {
        const void *dout = at(a->dout, i * a->C, dtype);
        float *token = a->dwte + a->tokens[i] * a->C;
        float *position = a->dwpe ? a->dwpe + a->positions[i] * a->C : NULL;
        for (int64_t j = columns.first; j < columns.end; j += VF) {
            vf d = vf_get(dout, j, columns.end, dtype);
            vf_put(token, j, columns.end, vf_get(token, j, columns.end, DTYPE_F32) + d, DTYPE_F32);
            if (position)
                vf_put(position, j, columns.end, vf_get(position, j, columns.end, DTYPE_F32) + d, DTYPE_F32);
        }
    }
}

static void zero_floats(float *x, int64_t n)
{
#pragma omp parallel if (n > WORTH_THREADS)
    {
        struct range part = range_mine(n, 1024);
        if (part.end > part.first)
            memset(x + part.first, 0, (size_t)(part.end - part.first) * sizeof *x);
    }
}

static void op_embedding_bwd(struct stream *stream, const struct embedding_bwd_args *a)
{
    (void)stream;
    liveness_tick();
    if (!a->accumulate_wte)
        zero_floats(a->dwte, a->V * a->C);
    if (a->dwpe && !a->accumulate_wpe)
        zero_floats(a->dwpe, a->P * a->C);
#pragma omp parallel if (a->M * a->C > WORTH_THREADS)
    {
        struct range columns = range_mine(a->C, 16);
        WITH_DTYPE(a->dtype, embedding_bwd_columns(a, columns, DT));
    }
}

/* ---- RoPE ---------------------------------------------------------------- */

static ALWAYS_INLINE void rope_rows(const struct rope_args *a, struct range rows, enum dtype dtype)
{
    int64_t half = a->D / 2;
    vf sign = vf_set(a->inverse ? -1.0f : 1.0f);
    for (int64_t i = rows.first; i < rows.end; i++) {
        const float *cosines = a->cos_table + a->positions[i] * half, *sines = a->sin_table + a->positions[i] * half;
        for (int64_t h = 0; h < a->heads; h++) {
            void *low = at(a->x, i * a->ld + h * a->D, dtype), *high = at(low, half, dtype);
            for (int64_t j = 0; j < half; j += VF) {
                vf c = vf_get(cosines, j, half, DTYPE_F32), s = vf_get(sines, j, half, DTYPE_F32) * sign;
                vf x = vf_get(low, j, half, dtype), y = vf_get(high, j, half, dtype);
                vf_put(low, j, half, x * c - y * s, dtype);
                vf_put(high, j, half, y * c + x * s, dtype);
            }
        }
    }
}

static void op_rope(struct stream *stream, const struct rope_args *a)
{
    (void)stream;
    ASSERT(a->D % 2 == 0);
    liveness_tick();
#pragma omp parallel if (a->M * a->heads * a->D > WORTH_THREADS)
    {
        struct range rows = range_mine(a->M, 1);
        WITH_DTYPE(a->dtype, rope_rows(a, rows, DT));
    }
}

/* ---- SwiGLU -------------------------------------------------------------- */

static ALWAYS_INLINE void swiglu_fwd_rows(const struct swiglu_fwd_args *a, struct range rows, enum dtype dtype)
{
    for (int64_t i = rows.first; i < rows.end; i++) {
        const void *gate = at(a->gate_up, i * 2 * a->F, dtype), *up = at(gate, a->F, dtype);
        void *h = at(a->h, i * a->F, dtype);
        for (int64_t j = 0; j < a->F; j += VF) {
            vf g = vf_get(gate, j, a->F, dtype), u = vf_get(up, j, a->F, dtype);
            vf_put(h, j, a->F, g * vf_sigmoid(g, dtype != DTYPE_F32) * u, dtype);
        }
    }
}

static void op_swiglu_fwd(struct stream *stream, const struct swiglu_fwd_args *a)
{
    (void)stream;
    liveness_tick();
#pragma omp parallel if (a->M * a->F > WORTH_THREADS)
    {
        struct range rows = range_mine(a->M, 1);
        WITH_DTYPE(a->dtype, swiglu_fwd_rows(a, rows, DT));
    }
}

static ALWAYS_INLINE void swiglu_bwd_rows(const struct swiglu_bwd_args *a, struct range rows, enum dtype dtype)
{
    for (int64_t i = rows.first; i < rows.end; i++) {
        const void *gate = at(a->gate_up, i * 2 * a->F, dtype), *up = at(gate, a->F, dtype);
        void *dgate = at(a->dgate_up, i * 2 * a->F, dtype), *dup = at(dgate, a->F, dtype);
        const void *dh = at(a->dh, i * a->F, dtype);
        for (int64_t j = 0; j < a->F; j += VF) {
            vf g = vf_get(gate, j, a->F, dtype), u = vf_get(up, j, a->F, dtype), d = vf_get(dh, j, a->F, dtype);
            vf s = vf_sigmoid(g, dtype != DTYPE_F32);
            vf_put(dgate, j, a->F, d * u * s * (1.0f + g * (1.0f - s)), dtype);
            vf_put(dup, j, a->F, d * g * s, dtype);
        }
    }
}

static void op_swiglu_bwd(struct stream *stream, const struct swiglu_bwd_args *a)
{
    (void)stream;
    liveness_tick();
#pragma omp parallel if (a->M * a->F > WORTH_THREADS)
    {
        struct range rows = range_mine(a->M, 1);
        WITH_DTYPE(a->dtype, swiglu_bwd_rows(a, rows, DT));
    }
}

/* ---- cross-entropy ------------------------------------------------------- */

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

/* ---- add, cast ----------------------------------------------------------- */

static ALWAYS_INLINE void add_part(const struct add_args *a, struct range part, enum dtype dtype)
{
    for (int64_t i = part.first; i < part.end; i += VF)
        vf_put(a->y, i, part.end, vf_get(a->a, i, part.end, dtype) + vf_get(a->b, i, part.end, dtype), dtype);
}

static void op_add(struct stream *stream, const struct add_args *a)
{
    (void)stream;
    liveness_tick();
#pragma omp parallel if (a->n > WORTH_THREADS)
    {
        struct range part = range_mine(a->n, 64);
        WITH_DTYPE(a->dtype, add_part(a, part, DT));
    }
}

static ALWAYS_INLINE void cast_part(const struct cast_args *a, struct range part, enum dtype dst, enum dtype src)
{
    for (int64_t i = part.first; i < part.end; i += VF)
        vf_put(a->dst, i, part.end, vf_get(a->src, i, part.end, src), dst);
}

static void op_cast(struct stream *stream, const struct cast_args *a)
{
    (void)stream;
    liveness_tick();
#pragma omp parallel if (a->n > WORTH_THREADS)
    {
        struct range part = range_mine(a->n, 64);
        if (part.end <= part.first)
            ;
        else if (a->dst_dtype == a->src_dtype)
            memcpy(at(a->dst, part.first, a->dst_dtype), at(a->src, part.first, a->src_dtype),
                   (size_t)(part.end - part.first) * dtype_size(a->src_dtype));
        else if (a->dst_dtype == DTYPE_F32)
            WITH_DTYPE(a->src_dtype, cast_part(a, part, DTYPE_F32, DT));
        else if (a->dst_dtype == DTYPE_BF16)
            WITH_DTYPE(a->src_dtype, cast_part(a, part, DTYPE_BF16, DT));
        else
            WITH_DTYPE(a->src_dtype, cast_part(a, part, DTYPE_F16, DT));
    }
}

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
