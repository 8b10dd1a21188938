/* SPDX-License-Identifier: Apache-2.0 */
/* test_generate.c: the logits of a sequence that grows token by token are those of the whole sequence at once, for the
 * golden models of every causal family. That they are right is the business of tests/program/test_sample.py, which
 * compares with transformers. */
#include "gpu/model/generate.h"
#include "gpu/open/device_open.h"
#include "tests/unit/fixtures/golden_case.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { CAPACITY = 20, PROMPT = 3, MAX_UNITS = 12 };

static const char *const CASES[] = {"gpt2",        "llama",      "llama3-rope", "linear-rope", "mistral-window",
                                    "qwen2",       "qwen3",      "qwen3-yarn",  "phi3",        "granite",
                                    "smollm3",     "olmo2",      "gemma2",      "gemma3",      "olmo3",
                                    "glm4",        "ministral3", "gptj",        "gpt-neox",    "gpt-neox-in-turn",
                                    "phi",         "cohere",     "cohere2",     "starcoder2",  "exaone4",
                                    "seed-oss",    "qwen3.5",    "gemma4",      "gemma4-kv",   "phi3-longrope",
                                    "dynamic-rope"};

/* A golden model that generates. */
struct model {
    struct model_desc desc;
    struct tensor_table table;
    struct device *device;
    struct stream *stream;
    struct transformer *transformer;
    struct generator *generator;
    float *units[MAX_UNITS];
    void *memory;
    size_t bytes;
    struct param_verbs verbs;
};

static enum status acquire(void *self, int unit, enum param_pass pass, struct stream *stream,
                           struct unit_params *params, struct error *err)
{
    (void)stream, (void)err;
    assert_int_equal(pass, PASS_EVALUATION);
    params->trained[UNIT_SELF] = ((struct model *)self)->units[unit];
    return STATUS_OK;
}

static void release(void *self, int unit, enum param_pass pass, struct stream *stream)
{
    (void)self, (void)unit, (void)pass, (void)stream;
}

static void lay_out(struct model *m, struct arena *arena, size_t workspace)
{
    transformer_layout(m->transformer, arena);
    generator_layout(m->generator, arena);
    void *scratch = arena_take(arena, MEM_WORKSPACE, workspace);
    if (scratch) stream_set_workspace(m->stream, scratch, workspace);
}

/* `training`: the transformer has the buffers of training. */
static void model_open(struct model *m, const char *name, bool training)
{
    char path[256];
    struct error err;
    struct op_limits limits;
    struct arena arena;
    *m = (struct model){.verbs = {.self = m, .acquire = acquire, .release = release}};
    snprintf(path, sizeof path, GOLDEN_FOLDER "%s", name);
    assert_int_equal(model_desc_load(path, &m->desc, &err), STATUS_OK);
    tensor_table_build(&m->desc, &m->table);
    for (int u = 0; u < m->table.num_units; u++)
        m->units[u] = aligned_alloc(64, (size_t)(m->table.units[u].numel + 16) / 16 * 64);
    golden_tensors(name, "model*.safetensors", &m->table, m->units);
    assert_int_equal(device_open(DEVICE_CPU, 0, 1, &m->device, &err), STATUS_OK);
    assert_int_equal(stream_new(m->device, STREAM_COMPUTE, &m->stream, &err), STATUS_OK);
    const struct transformer_config config = {
        .desc = &m->desc,
        .table = &m->table,
        .settings = {.deterministic = true, .logits_dtype = DTYPE_F32},
        .batch = {.max_tokens = CAPACITY, .max_seqs = 1, .max_seq = CAPACITY},
        .dtype = DTYPE_F32,
        .training = training,
    };
    assert_int_equal(transformer_new(&config, m->device, &m->transformer, &err), STATUS_OK);
    m->generator = generator_new(m->transformer, CAPACITY);
    transformer_op_limits(m->transformer, &limits);
    const size_t workspace = ops_workspace_bytes(m->device, &limits);
    arena_init_dry(&arena);
    lay_out(m, &arena, workspace);
    m->bytes = arena.used;
    assert_int_equal(device_alloc(m->device, m->bytes, &m->memory, &err), STATUS_OK);
    memset(m->memory, 0xff, m->bytes); /* NaN */
    arena_init(&arena, m->memory, m->bytes);
    lay_out(m, &arena, workspace);
    arena_finish(&arena);
    assert_int_equal(transformer_start(m->transformer, m->stream, &err), STATUS_OK);
}

static void model_close(struct model *m)
{
    generator_free(m->generator);
    transformer_free(m->transformer);
    device_free(m->device, m->memory, m->bytes);
    stream_free(m->stream);
    device_close(m->device);
    for (int u = 0; u < m->table.num_units; u++) free(m->units[u]);
    tensor_table_release(&m->table);
    model_desc_release(&m->desc);
}

static const float *feed(struct model *m, const int32_t *tokens, int64_t count)
{
    float *logits;
    struct error err;
    assert_int_equal(generator_feed(m->generator, tokens, count, &m->verbs, m->stream, &logits, &err), STATUS_OK);
    return logits;
}

/* The logits after each prefix, at once and token by token. */
static void compare(struct model *m, const char *name)
{
    int32_t tokens[CAPACITY];
    const int64_t V = m->desc.vocab_size;
    float *whole = malloc((size_t)(CAPACITY * V) * sizeof *whole);
    for (int i = 0; i < CAPACITY; i++) tokens[i] = (int32_t)((i * 37 + i * i * 11 + 5) % V);
    for (int n = PROMPT; n <= CAPACITY; n++) {
        generator_reset(m->generator);
        memcpy(whole + (n - 1) * V, feed(m, tokens, n), (size_t)V * sizeof *whole);
    }
    generator_reset(m->generator);
    for (int n = PROMPT; n <= CAPACITY; n++) {
        const float *logits = n == PROMPT ? feed(m, tokens, PROMPT) : feed(m, tokens + n - 1, 1);
        for (int64_t i = 0; i < V; i++) {
            const float expected = whole[(n - 1) * V + i];
            if (!(fabsf(logits[i] - expected) <= 2e-5F * (1 + fabsf(expected))))
                fail_msg("%s: logit %d after %d tokens is %g, expected %g", name, (int)i, n, (double)logits[i],
                         (double)expected);
        }
    }
    generator_reset(m->generator); /* several tokens at a time, behind others */
    feed(m, tokens, 2);
    const float *logits = feed(m, tokens + 2, 9);
    for (int64_t i = 0; i < V; i++)
        assert_true(fabsf(logits[i] - whole[10 * V + i]) <= 2e-5F * (1 + fabsf(whole[10 * V + i])));
    free(whole);
}

static void token_by_token_as_at_once(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        struct model m;
        model_open(&m, CASES[i], i % 2);
        compare(&m, CASES[i]);
        model_close(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(token_by_token_as_at_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
