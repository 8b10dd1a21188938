/* SPDX-License-Identifier: Apache-2.0 */
/* transformer_layout.c: where activations lie in memory; the RoPE tables.
 *
 * The backward of a block reads the following, for each token (W = (H + 2 KV) D; s is the size of dt). A buffer is
 * computed again from the policy in the last column on (enum recompute), and kept from forward to backward below it:
 *
 *     buffer        elements    GPT-2     used in backward by                                        computed again
 *     res1          C s         C         norm1                                                      -
 *     norm1         C s         C         weights of q, k, v                                         norms
 *     qkv           W s         3 C       attention (with qk_norm: the head norms, attention for v)  attention
 *     qk            (H+KV) D s  -         attention, qk_norm only; kept where other layers read it   norms
 *     att           H D s       C         attention, weights of o                                    attention
 *     gated         H D s       -         weights of o, where attention has a gate                   attention
 *     conv, core    (see state) -         delta rule, norm of core, in layers that have one          attention
 *     res2          C s         C         norm2 (parallel: one for all blocks, not read)             block
 *     norm2         C s         C         weights of gate, up                                        norms
 *     inner         F or 2F s   4 C       GELU, SwiGLU; a gated unit's gradient is written over it   block; GELU: mlp
 *     hidden        F s         4 C       weights of down, but for experts                           mlp
 *     probs, …      E, k f      -         routing, and a shared expert's inner and output            block
 *     mean, rstd    4, or 2 f   4 f       norms (f: 4 bytes)                                         norms
 *     q, k_rstd     (H + KV) f  -         head norms, qk_norm only                                   norms
 *     lse           H f         H f       attention                                                  attention
 *     out1, out2    2 C s       -         norms after attention and MLP, where there are such        block
 *     res3, out3    2 C s       -         with layer_inputs: weights of in_gate, the norm            block
 *     in_gate, _act 2 I s       -         the same: GELU, weights of in_out                          block
 *     post1, post2  2, or 4 f   -         the same norms: mean (LayerNorm), rstd                     block
 *
 * All of GPT-2: 16 C s + (4 + H) f. Llama family: (4 C + W + H D + 3 F) s + (2 + H) f. GELU is computed in the product
 * before it, from sums that are not rounded yet: the same bits need that product again; SwiGLU and GeGLU only inner.
 *
 * They are laid out in one of four ways; r is the residual stream at a block's input, K a block's other kept buffers,
 * X those that are computed again:
 *
 *     none                   | r1 K1 | r2 K2 | … | rL KL |      + gradients
 *     norms, mlp, attention  | X | r1 K1 | r2 K2 | … | rL KL |  + gradients   X: of the current block, filled again
 *     block                  | X | r1 | r2 | … | rL |           + gradients   in backward
 *     evaluation             | r X |                            res2 is res1: the residual add is in place (not with
 *                                                               norms after the residual)
 *
 * With activation verbs (gpu/activation_verbs.h) the blocks' inputs take turns in a few buffers: r1 r2 r3 r1 r2 …
 * All blocks share the gradients of activations (struct transformer). The final norm's input and output lie in `wide`,
 * which is free from the end of forward to the start of backward. */
#include "core/memory.h"
#include "core/round_up.h"
#include "gpu/model/transformer_adapter.h"
#include "gpu/model/transformer_delta.h"

/* (rows, width) elements of dt; 0: NULL */
static void *take_dt(const struct transformer *t, struct arena *arena, int64_t rows, int64_t width)
{
    return arena_take(arena, MEM_ACTIVATIONS, (size_t)rows * (size_t)width * dtype_size(t->dtype));
}

static float *layout_take_f32(struct arena *arena, int64_t rows, int64_t width)
{
    return arena_take(arena, MEM_ACTIVATIONS, (size_t)rows * (size_t)width * sizeof(float));
}

/* Elements of a row of a layer's buffers; 0: it has none. */
struct layer_widths {
    int64_t qkv, qk, kv, k_rstd, v_rstd, att, gated, lse, conv, core, core_rstd, hidden, inner, shared, scaled, routed,
        experts;
};

static struct layer_widths widths_of(const struct transformer *t, const struct layer_desc *layer)
{
    const struct delta_desc *delta = &t->config.desc->delta;
    const struct experts_desc *experts = &t->config.desc->experts;
    const int64_t heads = t->H * layer->head_dim, F = layer->intermediate_size,
                  KV = transformer_owns_kv(t, layer) ? layer->num_kv_heads : 0, normed = t->config.desc->v_norm ? 2 : 1;
    struct layer_widths widths = {.hidden = F, .inner = transformer_gates(t) ? 2 * F : F};
    if (layer->sparse) {
        widths.shared = F;
        widths.scaled = F && experts->shared_gate;
        widths.routed = experts->per_token * transformer_expert_ranks(t);
        widths.experts = widths.routed * experts->inner_size;
        widths.inner = 2 * widths.experts;
        widths.hidden = 0;
    }
    if (layer->delta) {
        widths.qkv = delta_width(delta);
        widths.att = widths.core = delta_values(delta);
        widths.conv = delta_channels(delta);
        widths.core_rstd = delta->value_heads;
        return widths;
    }
    widths.qkv = transformer_width(t, layer);
    widths.qk = t->qk_norm ? heads + normed * KV * layer->head_dim : 0;
    widths.kv = 2 * layer->num_kv_heads * layer->head_dim;
    widths.k_rstd = t->qk_norm ? KV : 0;
    widths.v_rstd = normed == 2 ? KV : 0;
    widths.att = heads;
    widths.gated = t->G ? heads : 0;
    widths.lse = t->H;
    return widths;
}

/* layer NULL: the most of all layers. */
static struct layer_widths layout_widths(const struct transformer *t, const struct layer_desc *layer)
{
    if (layer) return widths_of(t, layer);
    enum { WIDTHS = sizeof(struct layer_widths) / sizeof(int64_t) };
    union {
        struct layer_widths of;
        int64_t each[WIDTHS];
    } most = {{0}}, own;
    for (int64_t i = 0; i < t->L; i++) {
        own.of = widths_of(t, &t->config.desc->layers[i]);
        for (int member = 0; member < WIDTHS; member++) most.each[member] = max64(most.each[member], own.each[member]);
    }
    return most.of;
}

/* The buffers of the norms of heads. */
static void layout_heads(const struct transformer *t, struct arena *arena, const struct layer_widths *widths,
                         struct block_buffers *b)
{
    const int64_t M = t->config.batch.max_tokens;
    b->qk = take_dt(t, arena, M, widths->qk);
    b->q_rstd = layout_take_f32(arena, widths->qk ? M : 0, t->H);
    b->k_rstd = layout_take_f32(arena, M, widths->k_rstd);
    b->v_rstd = layout_take_f32(arena, M, widths->v_rstd);
}

static int32_t *layout_take_ints(struct arena *arena, int64_t count)
{
    return arena_take(arena, MEM_ACTIVATIONS, (size_t)count * sizeof(int32_t));
}

static void layout_experts(const struct transformer *t, struct arena *arena, const struct layer_widths *widths,
                           struct block_buffers *b)
{
    const struct experts_desc *experts = &t->config.desc->experts;
    const int64_t M = t->config.batch.max_tokens, rows = M * experts->per_token, R = transformer_expert_ranks(t);
    b->probs = layout_take_f32(arena, M, experts->count);
    b->weights = layout_take_f32(arena, rows, 1);
    b->router_lse = layout_take_f32(arena, experts->z_coef > 0 ? M : 0, 1);
    b->choices = layout_take_ints(arena, rows);
    b->offsets = layout_take_ints(arena, experts->count + 1);
    b->places = layout_take_ints(arena, R * rows);
    b->all_weights = layout_take_f32(arena, R > 1 ? R * rows : 0, 1);
    b->shared_inner = take_dt(t, arena, M, 2 * widths->shared);
    b->shared_scale = layout_take_f32(arena, M, widths->scaled);
}

/* For experts that R ranks share. */
static void layout_exchanges(struct transformer *t, struct arena *arena, int64_t R)
{
    const struct experts_desc *experts = &t->config.desc->experts;
    const int64_t M = t->config.batch.max_tokens, k = experts->per_token, all = R * M;
    const size_t tokens = (size_t)all * (size_t)t->C * dtype_size(t->dtype),
                 weights = (size_t)(all * k) * sizeof(float);
    t->all_choices = layout_take_ints(arena, all * k);
    t->no_choices = layout_take_ints(arena, M * k);
    t->all_tokens = arena_take(arena, MEM_ACTIVATIONS, tokens);
    t->token_sums = layout_take_f32(arena, M, t->C);
    t->own_dweights = layout_take_f32(arena, t->config.training ? M : 0, k);
    t->token_inbox = arena_take(arena, MEM_COMM, t->device->kind == DEVICE_CUDA ? max_size(tokens, weights) : 0);
}

/* What layers with experts share. */
static void layout_routers(struct transformer *t, struct arena *arena)
{
    const struct experts_desc *experts = &t->config.desc->experts;
    const int64_t M = experts->count ? t->config.batch.max_tokens : 0, scaled = experts->shared_gate ? M : 0,
                  E = experts->count, R = transformer_expert_ranks(t);
    if (R > 1) layout_exchanges(t, arena, R);
    t->router_logits = take_dt(t, arena, M, E);
    t->routed = take_dt(t, arena, R * M * experts->per_token, t->C);
    t->dweights = layout_take_f32(arena, t->config.training ? R * M : 0, experts->per_token);
    t->row_weights = layout_take_f32(arena, t->config.training && experts->interleaved ? R * M : 0, experts->per_token);
    t->correction = layout_take_f32(arena, experts->sigmoid ? t->L : 0, E);
    t->counts = layout_take_ints(arena, E);
    t->prob_sums = arena_take(arena, MEM_ACTIVATIONS, (size_t)E * sizeof *t->prob_sums);
    t->first_choice = layout_take_ints(arena, scaled);
}

/* Takes the memory of the buffers that are computed again from `policy` on, and not below it. */
static void layout_group(const struct transformer *t, struct arena *arena, enum recompute policy,
                         struct block_buffers *b)
{
    const struct layer_widths widths = layout_widths(t, b->layer);
    const int64_t M = t->config.batch.max_tokens; /* rows; of what a model does not have, 0: NULL */
    const int64_t before = t->norms_before ? M : 0, second = t->second_norm ? M : 0, after = t->norms_after ? M : 0,
                  input = t->I ? M : 0;
    const bool layer_norm = t->config.desc->norm == NORM_LAYER;
    switch (policy) {
    case RECOMPUTE_NORMS:
        b->norm1 = take_dt(t, arena, before, t->C);
        b->mean1 = layout_take_f32(arena, layer_norm ? before : 0, 1);
        b->rstd1 = layout_take_f32(arena, before, 1);
        layout_heads(t, arena, &widths, b);
        b->norm2 = take_dt(t, arena, second, t->C);
        b->mean2 = layout_take_f32(arena, layer_norm ? second : 0, 1);
        b->rstd2 = layout_take_f32(arena, second, 1);
        break;
    case RECOMPUTE_MLP:
        b->hidden = take_dt(t, arena, M, widths.hidden);
        b->shared_hidden = take_dt(t, arena, M, widths.shared);
        b->shared_out = take_dt(t, arena, M * widths.scaled, t->C);
        if (!transformer_gates(t)) b->inner = take_dt(t, arena, M, widths.inner);
        break;
    case RECOMPUTE_ATTENTION:
        b->qkv = take_dt(t, arena, M, widths.qkv);
        b->att = take_dt(t, arena, M, widths.att);
        b->lse = layout_take_f32(arena, widths.lse, M);
        b->gated = take_dt(t, arena, M, widths.gated);
        b->conv = take_dt(t, arena, M, widths.conv);
        b->core = take_dt(t, arena, M, widths.core);
        b->core_rstd = layout_take_f32(arena, widths.core_rstd, M);
        break;
    case RECOMPUTE_BLOCK:
        if (!t->parallel) b->res2 = take_dt(t, arena, M, t->C);
        b->out1 = take_dt(t, arena, after, t->C);
        b->out2 = take_dt(t, arena, after, t->C);
        b->post1 = layout_take_f32(arena, after, 1);
        b->post2 = layout_take_f32(arena, after, 1);
        b->post1_mean = layout_take_f32(arena, layer_norm ? after : 0, 1);
        b->post2_mean = layout_take_f32(arena, layer_norm ? after : 0, 1);
        if (transformer_gates(t)) b->inner = take_dt(t, arena, M, widths.inner);
        if (widths.routed) layout_experts(t, arena, &widths, b);
        b->res3 = t->config.training ? take_dt(t, arena, input, t->C) : b->res2;
        b->in_gate = take_dt(t, arena, M, t->I);
        b->in_act = take_dt(t, arena, M, t->I);
        b->out3 = take_dt(t, arena, input, t->C);
        b->post3 = layout_take_f32(arena, input, 1);
        break;
    case RECOMPUTE_NONE:
    case RECOMPUTE_COUNT: break;
    }
}

/* A layer whose keys and values others read keeps them for these, whatever is computed again, and in training the sum
 * of the gradients that these leave. `kept`: it has the buffers already. */
static void layout_shared_keys(struct transformer *t, struct arena *arena, int64_t block, bool kept)
{
    const struct layer_desc *layers = t->config.desc->layers;
    const struct layer_widths widths = layout_widths(t, &layers[block]);
    bool read = false;
    for (int64_t l = block + 1; l < t->L; l++) read |= layers[l].kv_source == block;
    if (!read) return;
    if (!kept) layout_heads(t, arena, &widths, &t->blocks[block]);
    if (t->config.training) t->blocks[block].dkv = layout_take_f32(arena, t->config.batch.max_tokens, widths.kv);
}

static void layout_blocks(struct transformer *t, struct arena *arena)
{
    enum recompute shared_up_to = t->config.training ? t->config.settings.recompute : RECOMPUTE_BLOCK;
    const struct activation_verbs *verbs = t->config.activations;
    struct block_buffers shared = {0};
    if (t->parallel) shared.res2 = take_dt(t, arena, t->config.batch.max_tokens, t->C);
    for (int group = RECOMPUTE_NORMS; group <= (int)shared_up_to; group++)
        layout_group(t, arena, (enum recompute)group, &shared);
    shared.res1 = shared.res2;
    if (t->post_norm && !t->config.training) /* a norm may not write over its input */
        shared.res1 = take_dt(t, arena, t->config.batch.max_tokens, t->C);
    for (int64_t l = 0; l < t->L; l++) {
        struct block_buffers *b = &t->blocks[l];
        *b = shared;
        b->layer = &t->config.desc->layers[l];
        if (t->config.training && verbs && l >= verbs->buffers)
            b->res1 = t->blocks[l - verbs->buffers].res1;
        else if (t->config.training)
            b->res1 = take_dt(t, arena, t->config.batch.max_tokens, t->C);
        for (int group = (int)shared_up_to + 1; group < RECOMPUTE_COUNT; group++)
            layout_group(t, arena, (enum recompute)group, b);
        layout_shared_keys(t, arena, l, shared_up_to < RECOMPUTE_NORMS);
    }
}

/* The rows of logits that exist at a time, in chunks of about equal size: each reads the head's matrix twice, and reads
 * and writes its gradient. On the CPU in fp32 GPT-2's head takes 8 % more time with 256 rows than with 512 or more, 38
 * % more with 64. A GPU needs some thousand: 1/64 of its memory. */
static int64_t layout_chunk(const struct transformer *t)
{
    enum { MIN_ROWS = 64, CPU_ROWS = 512, CPU_BYTES = 256 << 20, CUDA_ROWS = 16384, CUDA_SHARE = 64 };
    enum { ROW_MULTIPLE = 16, CUDA_ROW_MULTIPLE = 128 };
    bool cuda = t->device->kind == DEVICE_CUDA;
    int64_t M = t->config.batch.max_tokens, rows = t->config.logit_chunk;
    if (rows == 0) {
        int64_t bytes = cuda ? (int64_t)t->device->memory_bytes / CUDA_SHARE : CPU_BYTES;
        int64_t limit = cuda ? CUDA_ROWS : CPU_ROWS, multiple = cuda ? CUDA_ROW_MULTIPLE : ROW_MULTIPLE;
        int64_t most = bytes / (t->ld_logits * (int64_t)dtype_size(t->logits_dtype));
        most = most > limit ? limit : max64(most, MIN_ROWS);
        int64_t chunks = (M + most - 1) / most;
        rows = (M + chunks - 1) / chunks;
        rows = round_up(rows, multiple);
    }
    return min64(rows, M);
}

static void layout_encoder(struct transformer *t, struct arena *arena)
{
    const struct model_desc *desc = t->config.desc;
    int64_t M = t->config.batch.max_tokens;
    if (desc->embedding_norm) {
        t->embedded = t->config.training ? take_dt(t, arena, M, t->C) : t->delta;
        t->embedded_mean = layout_take_f32(arena, desc->norm == NORM_LAYER ? M : 0, 1);
        t->embedded_rstd = layout_take_f32(arena, M, 1);
        t->embedding_norm_weight = t->config.training ? take_dt(t, arena, 1, t->C) : NULL;
    }
    if (desc->pooler) {
        t->pooled = take_dt(t, arena, t->chunk, t->C);
        t->kept = t->config.training ? take_dt(t, arena, t->chunk, t->C) : NULL;
    }
}

/* For norms of values and inputs of layers. */
static void layout_inputs(struct transformer *t, struct arena *arena, int64_t kv)
{
    const int64_t M = t->config.batch.max_tokens, width = t->L * t->I;
    const bool training = t->config.training, v_norm = t->config.desc->v_norm;
    t->zeros = take_dt(t, arena, 1, v_norm ? kv : 0);
    t->dkv = take_dt(t, arena, training && v_norm ? M : 0, kv);
    t->layer_in = take_dt(t, arena, M, width);
    t->projected = training ? take_dt(t, arena, M, width) : t->wide;
    t->projected_rstd = layout_take_f32(arena, t->I ? M : 0, t->L);
}

static struct rope_table take_rope_table(const struct transformer *t, struct arena *arena, const struct rope_desc *rope,
                                         bool exists)
{
    struct rope_table table = {NULL, NULL, rope->dim};
    size_t bytes = (size_t)t->config.max_position * (size_t)(rope->dim / 2) * sizeof(float);
    if (exists) {
        table.cosines = arena_take(arena, MEM_DATA, bytes);
        table.sines = arena_take(arena, MEM_DATA, bytes);
    }
    return table;
}

static void *place_array(char *memory, size_t *used, size_t bytes)
{
    char *array = memory ? memory + *used : NULL;
    *used += (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    return array;
}

/* The inputs' arrays, one after the other in `memory` (NULL: only counts). Returns their bytes. */
static size_t place_inputs(const struct transformer *t, char *memory)
{
    size_t used = 0;
    const size_t M = (size_t)t->config.batch.max_tokens, ids = M * sizeof(int32_t);
    for (struct input *input = t->inputs; input < t->inputs + t->num_inputs; input++) {
        input->tokens = place_array(memory, &used, ids);
        input->targets = place_array(memory, &used, ids);
        input->positions = place_array(memory, &used, ids);
        input->types = t->config.desc->num_types ? place_array(memory, &used, ids) : NULL;
        input->numbers = transformer_drops(t) ? place_array(memory, &used, M * sizeof *input->numbers) : NULL;
        const size_t taught = ids * (size_t)t->config.teacher_tokens;
        input->teacher_ids = taught ? place_array(memory, &used, taught) : NULL;
        input->teacher_logps = taught ? place_array(memory, &used, taught) : NULL;
        input->seq_start = place_array(memory, &used, ((size_t)t->config.batch.max_seqs + 1) * sizeof(int32_t));
    }
    return used;
}

void transformer_layout(struct transformer *t, struct arena *arena)
{
    const struct transformer_config *config = &t->config;
    int64_t M = config->batch.max_tokens;
    t->ld_logits = round_up(t->classes, VOCABULARY_ALIGN);
    t->chunk = layout_chunk(t);
    layout_blocks(t, arena);
    const struct layer_widths widths = layout_widths(t, NULL);
    t->delta = take_dt(t, arena, M, max64(t->C, widths.att));
    if (config->training) {
        t->dconv = take_dt(t, arena, M, widths.conv);
        t->dres = take_dt(t, arena, M, t->C);
        bool biased = transformer_tensor(t, 1, ROLE_DOWN_B) || (t->parallel && transformer_tensor(t, 1, ROLE_O_B));
        bool summed = !t->norms_after && t->bias_summed[LINEAR_DOWN] && biased;
        t->dres_sums = summed ? layout_take_f32(arena, 1, t->C) : NULL;
        bool differs = t->norms_after || t->parallel || config->desc->residual_multiplier != 1;
        t->dbranch = differs ? take_dt(t, arena, M, t->C) : NULL;
        size_t stream_bytes = (size_t)M * (size_t)t->C * dtype_size(t->dtype);
        size_t second = (stream_bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
        size_t wide_bytes =
            (size_t)M *
            (size_t)max64(max64(max64(widths.qkv, widths.experts), max64(widths.hidden, widths.shared)), t->L * t->I) *
            dtype_size(t->dtype);
        size_t least = second + stream_bytes; /* of the final norm's input and output */
        t->wide = arena_take(arena, MEM_ACTIVATIONS, wide_bytes > least ? wide_bytes : least);
        t->final_res = t->wide;
        t->final_norm = t->wide ? (char *)t->wide + second : NULL;
    } else {
        const int64_t width = config->desc->qkv_by_head || t->G ? widths.qkv : t->L * t->I;
        t->wide = take_dt(t, arena, M, max64(width, widths.experts));
        t->final_res = t->blocks[t->L - 1].res2;
        const struct block_buffers *last = &t->blocks[t->L - 1];
        t->final_norm = t->second_norm ? last->norm2 : t->norms_before ? last->norm1 : last->out1;
    }
    t->final_mean = config->desc->norm == NORM_LAYER && !t->post_norm ? layout_take_f32(arena, M, 1) : NULL;
    t->final_rstd = t->post_norm ? NULL : layout_take_f32(arena, M, 1);
    size_t logit_bytes = (size_t)t->chunk * (size_t)t->ld_logits * dtype_size(t->logits_dtype);
    t->logits = arena_take(arena, MEM_ACTIVATIONS, logit_bytes);
    t->row_losses = config->sequences ? layout_take_f32(arena, M, 1) : NULL;
    t->row_scale = config->sequences ? layout_take_f32(arena, M, 1) : NULL;
    layout_encoder(t, arena);
    layout_inputs(t, arena, widths.kv);
    layout_routers(t, arena);
    adapter_layout(t, arena);

    const struct rope_desc *rope = &config->desc->rope, *local = &config->desc->local_rope;
    t->rope = take_rope_table(t, arena, rope, rope->kind != ROPE_NONE);
    t->local_rope = take_rope_table(t, arena, local, local->kind != ROPE_NONE);
    t->query_rope =
        take_rope_table(t, arena, rope, rope->query_beta > 0 && t->config.max_position > rope->original_max_positions);
    t->input_bytes = place_inputs(t, NULL);
    t->input_memory = arena_take(arena, MEM_DATA, t->input_bytes);
    place_inputs(t, t->input_memory);
}

/* Angles are fp32 products, as in Hugging Face transformers; cosines and sines are computed in double and rounded to
 * fp32, and so are their products with YaRN's factor. query_beta: rope_desc's, or 0. */
static enum status fill_rope_table(const struct transformer *t, const struct rope_desc *rope, struct rope_table table,
                                   double query_beta, struct stream *stream, struct error *err)
{
    if (!table.cosines) return STATUS_OK;
    int64_t half = table.R / 2, P = t->config.max_position;
    float magnitude = (float)rope->attention_factor;
    OWNED float *host = calloc((size_t)(1 + 2 * P) * (size_t)half, sizeof(float));
    if (!host)
        return error_set(err, STATUS_DEVICE, "cannot compute RoPE tables for %lld positions: out of memory",
                         (long long)P);
    float *frequency = host, *cosine = host + half, *sine = cosine + P * half;
    model_rope_frequencies(rope, table.R, P, frequency);
    for (int64_t p = 0; p < P; p++) {
        if (query_beta > 0)
            magnitude = (float)rope->attention_factor *
                        (float)(1 + query_beta * log(1 + (double)(p / rope->original_max_positions)));
        for (int64_t i = 0; i < half; i++) {
            float angle = (float)p * frequency[i];
            cosine[p * half + i] = (float)cos((double)angle) * magnitude;
            sine[p * half + i] = (float)sin((double)angle) * magnitude;
        }
    }
    stream_copy(stream, table.cosines, cosine, (size_t)(P * half) * sizeof(float));
    stream_copy(stream, table.sines, sine, (size_t)(P * half) * sizeof(float));
    stream_sync(stream);
    return STATUS_OK;
}

static void fill_no_choices(const struct transformer *t, struct stream *stream)
{
    const size_t bytes =
        (size_t)(t->config.batch.max_tokens * t->config.desc->experts.per_token) * sizeof *t->no_choices;
    OWNED int32_t *none = memory_alloc(bytes);
    memset(none, 0xff, bytes);
    stream_copy(stream, t->no_choices, none, bytes);
    stream_sync(stream);
}

enum status transformer_start(struct transformer *t, struct stream *stream, struct error *err)
{
    const struct rope_desc *rope = &t->config.desc->rope;
    if (t->zeros) stream_fill_zero(stream, t->zeros, (size_t)layout_widths(t, NULL).kv * dtype_size(t->dtype));
    if (t->no_choices) fill_no_choices(t, stream);
    TRY(fill_rope_table(t, rope, t->rope, 0, stream, err));
    TRY(fill_rope_table(t, rope, t->query_rope, rope->query_beta, stream, err));
    return fill_rope_table(t, &t->config.desc->local_rope, t->local_rope, 0, stream, err);
}
