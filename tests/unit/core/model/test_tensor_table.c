/* SPDX-License-Identifier: Apache-2.0 */
/* test_tensor_table.c: the tensor table and the shard layout: no overlaps, alignment, fused groups; initial values;
 * slices. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/model/shard.h"
#include "core/model/tensor_table.h"

static const char *const CONFIGS[] = {
    "{\"model_type\":\"gpt2\",\"n_embd\":20,\"n_head\":4,\"n_layer\":3,\"vocab_size\":101,\"n_positions\":7}",
    "{\"model_type\":\"gpt2\",\"n_embd\":20,\"n_head\":4,\"n_layer\":2,\"vocab_size\":101,\"n_inner\":33,"
    "\"tie_word_embeddings\":false}",
    "{\"model_type\":\"llama\",\"hidden_size\":36,\"num_attention_heads\":6,\"num_key_value_heads\":2,"
    "\"num_hidden_layers\":2,\"vocab_size\":99,\"intermediate_size\":50,\"attention_bias\":true,\"mlp_bias\":true,"
    "\"pad_token_id\":3}",
    "{\"model_type\":\"qwen3\",\"hidden_size\":36,\"num_attention_heads\":6,\"num_key_value_heads\":2,\"head_dim\":10,"
    "\"num_hidden_layers\":2,\"vocab_size\":99,\"intermediate_size\":50,\"tie_word_embeddings\":true}",
};

static void build(const char *text, struct model_desc *desc, struct tensor_table *table)
{
    struct error err;
    json_t *config = json_loads(text, 0, NULL);
    if (model_desc_from_json(config, "test", desc, &err) != STATUS_OK) fail_msg("%s", err.text);
    json_decref(config);
    tensor_table_build(desc, table);
}

static bool is_joined(enum tensor_role role)
{
    return role == ROLE_K_W || role == ROLE_V_W || role == ROLE_K_B || role == ROLE_V_B ||
           (role == ROLE_UP_W || role == ROLE_UP_B);
}

static void check_unit(const struct tensor_table *table, int unit, bool swiglu)
{
    const struct unit_info *info = &table->units[unit];
    int64_t end = 0;
    assert_true(info->num_tensors > 0);
    for (int i = 0; i < info->num_tensors; i++) {
        const struct tensor_info *tensor = &table->tensors[info->first_tensor + i];
        assert_int_equal(tensor->unit, unit);
        assert_int_equal(tensor->numel, tensor->shape[0] * tensor->shape[1]);
        assert_ptr_equal(tensor_find(table, unit, tensor->role), tensor);
        bool joined = is_joined(tensor->role) && swiglu;
        if (joined)
            assert_int_equal(tensor->offset, end);
        else
            assert_true(tensor->offset % TENSOR_ALIGN == 0 && tensor->offset >= end &&
                        tensor->offset < end + TENSOR_ALIGN);
        /* every element belongs to its tensor, every gap to none */
        for (int64_t gap = end; gap < tensor->offset; gap++) assert_null(tensor_at(table, unit, gap));
        assert_ptr_equal(tensor_at(table, unit, tensor->offset), tensor);
        assert_ptr_equal(tensor_at(table, unit, tensor->offset + tensor->numel - 1), tensor);
        end = tensor->offset + tensor->numel;
    }
    assert_int_equal(info->numel, end);
    assert_null(tensor_at(table, unit, end));
}

static void test_layout(void **state)
{
    (void)state;
    for (size_t c = 0; c < COUNT_OF(CONFIGS); c++) {
        struct model_desc desc;
        struct tensor_table table;
        build(CONFIGS[c], &desc, &table);
        assert_int_equal(table.num_units, desc.num_layers + 2);
        assert_string_equal(table.units[0].name, "embedding");
        assert_string_equal(table.units[1].name, "block 0");
        assert_string_equal(table.units[table.num_units - 1].name, "head");
        int64_t params = 0;
        int tensors = 0;
        for (int unit = 0; unit < table.num_units; unit++) {
            assert_int_equal(table.units[unit].first_tensor, tensors);
            tensors += table.units[unit].num_tensors;
            check_unit(&table, unit, mlp_is_gated(desc.mlp));
        }
        assert_int_equal(tensors, table.num_tensors);
        for (int i = 0; i < table.num_tensors; i++) {
            params += table.tensors[i].numel;
            for (int j = 0; j < i; j++) assert_string_not_equal(table.tensors[i].name, table.tensors[j].name);
        }
        assert_int_equal(params, table.num_params);
        /* all blocks have the same layout */
        for (int unit = 2; unit <= desc.num_layers; unit++)
            for (int i = 0; i < table.units[1].num_tensors; i++)
                assert_int_equal(table.tensors[table.units[unit].first_tensor + i].offset,
                                 table.tensors[table.units[1].first_tensor + i].offset);
        assert_true(!tensor_find(&table, table.num_units - 1, ROLE_LM_HEAD) == desc.tied);
        assert_null(tensor_find(&table, 0, ROLE_O_W));
        tensor_table_release(&table);
        model_desc_release(&desc);
    }
}

static void test_decay(void **state)
{
    (void)state;
    struct tensor_info vector = {.ndim = 1}, matrix = {.ndim = 2};
    assert_false(tensor_decays(&vector, false));
    assert_true(tensor_decays(&vector, true));
    assert_true(tensor_decays(&matrix, false));
}

/* zeros, ones, or normal with the right deviation */
static void check_init(const struct tensor_table *table, int index, double std)
{
    const struct tensor_info *tensor = &table->tensors[index];
    float *values = malloc((size_t)tensor->numel * sizeof *values);
    tensor_init_range(table, index, 5, 0, tensor->numel, values);
    double sum = 0, square = 0;
    for (int64_t i = 0; i < tensor->numel; i++) {
        sum += values[i];
        square += (double)values[i] * values[i];
    }
    double n = (double)tensor->numel;
    size_t length = strlen(tensor->name);
    if (length > 5 && strcmp(tensor->name + length - 5, ".bias") == 0)
        assert_true(square == 0);
    else if (tensor->ndim == 1)
        assert_true(sum == n && square == n);
    else
        assert_true(fabs(sum / n) < 5 * std / sqrt(n) && fabs(sqrt(square / n) / std - 1) < 5 / sqrt(n));
    free(values);
}

static void test_init(void **state)
{
    (void)state;
    for (size_t c = 0; c < COUNT_OF(CONFIGS); c++) {
        struct model_desc desc;
        struct tensor_table table;
        build(CONFIGS[c], &desc, &table);
        for (int i = 0; i < table.num_tensors; i++) {
            bool residual = strstr(table.tensors[i].name, "c_proj") != NULL;
            check_init(&table, i, residual ? 0.02 / sqrt(2.0 * (double)desc.num_layers) : 0.02);
        }
        tensor_table_release(&table);
        model_desc_release(&desc);
    }
}

/* The values do not depend on the division of the range; another tensor or seed has others; the padding row is zero. */
static void test_init_pieces(void **state)
{
    (void)state;
    struct model_desc desc;
    struct tensor_table table;
    build(CONFIGS[2], &desc, &table);
    int64_t n = table.tensors[0].numel, C = desc.hidden_size;
    float *whole = malloc((size_t)n * sizeof *whole), *piece = malloc((size_t)n * sizeof *piece);
    tensor_init_range(&table, 0, 1, 0, n, whole);
    for (int64_t i = 0; i < n; i++) assert_true((whole[i] == 0) == (i / C == 3));
    for (int64_t first = 0; first < n; first += 101) {
        int64_t count = first * 7 % (n - first) + 1;
        tensor_init_range(&table, 0, 1, first, count, piece);
        assert_memory_equal(piece, whole + first, (size_t)count * sizeof *piece);
    }
    tensor_init_range(&table, 0, 2, 0, n, piece);
    assert_true(piece[0] != whole[0]);
    tensor_init_range(&table, 2, 1, 0, 1, piece);
    assert_true(piece[0] != whole[0]);
    free(whole);
    free(piece);
    tensor_table_release(&table);
    model_desc_release(&desc);
}

static void test_shards(void **state)
{
    (void)state;
    struct model_desc desc;
    struct tensor_table table;
    build(CONFIGS[3], &desc, &table);
    for (int world = 1; world <= 9; world++) {
        struct shard_layout layout;
        shard_layout_init(&layout, &table, world);
        int64_t shard = 0, largest = 0;
        for (int unit = 0; unit < table.num_units; unit++) {
            int64_t padded = shard_padded(&layout, unit);
            assert_int_equal(layout.slice[unit] % SHARD_ALIGN, 0);
            assert_int_equal(layout.shard_offset[unit], shard);
            assert_true(padded >= table.units[unit].numel && padded < table.units[unit].numel + world * SHARD_ALIGN);
            shard += layout.slice[unit];
            largest = padded > largest ? padded : largest;
        }
        assert_int_equal(layout.shard_numel, shard);
        assert_int_equal(layout.max_padded, largest);
        shard_layout_release(&layout);
    }
    tensor_table_release(&table);
    model_desc_release(&desc);
}

/* The words of a moment by a walk over the elements. */
static int64_t walk_words(const struct tensor_table *table, int unit, int64_t from, int64_t to)
{
    int64_t words = 0;
    for (int64_t i = from; i < to; i++) {
        const struct tensor_info *tensor = tensor_at(table, unit, i);
        if (!tensor || !tensor_has_blocks(table, tensor))
            words++;
        else if ((i - tensor->offset) % MOMENT_BLOCK == 0)
            words += MOMENT_BLOCK_WORDS;
    }
    return words;
}

/* q has whole blocks, k and v are too small; gate is no whole number of blocks, and up begins inside one. */
static void test_moment_blocks(void **state)
{
    (void)state;
    struct model_desc desc;
    struct tensor_table table;
    build("{\"model_type\":\"llama\",\"hidden_size\":64,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
          "\"num_hidden_layers\":1,\"vocab_size\":96,\"intermediate_size\":66,\"tie_word_embeddings\":true}",
          &desc, &table);
    assert_false(tensor_has_blocks(&table, tensor_find(&table, 1, ROLE_Q_W)));
    tensor_table_release(&table);
    tensor_table_build_for(&desc, true, &table);
    for (int i = 0; i < table.num_tensors; i++) {
        const struct tensor_info *tensor = &table.tensors[i];
        const bool wanted = tensor->role == ROLE_WTE || tensor->role == ROLE_Q_W || tensor->role == ROLE_O_W;
        assert_true(tensor->joined || tensor->offset % MOMENT_BLOCK == 0);
        assert_int_equal(tensor_has_blocks(&table, tensor), wanted);
    }
    for (int world = 1; world <= 5; world++) {
        struct shard_layout layout;
        shard_layout_init(&layout, &table, world);
        for (int unit = 0; unit < table.num_units; unit++) {
            const int64_t slice = layout.slice[unit];
            int64_t longest = 0;
            assert_int_equal(slice % MOMENT_BLOCK, 0);
            for (int r = 0; r < world; r++) {
                const int64_t words = walk_words(&table, unit, r * slice, (r + 1) * slice);
                assert_int_equal(state_words_between(&layout, STATE_EXP_AVG, unit, r * slice, (r + 1) * slice), words);
                assert_int_equal(state_words_between(&layout, STATE_MASTER, unit, r * slice, (r + 1) * slice), slice);
                longest = words > longest ? words : longest;
            }
            assert_true(layout.room[unit] >= longest && layout.room[unit] < longest + SHARD_ALIGN);
            assert_int_equal(layout.room_offset[unit + 1] - layout.room_offset[unit], layout.room[unit]);
        }
        shard_layout_release(&layout);
    }
    tensor_table_release(&table);
    model_desc_release(&desc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout), cmocka_unit_test(test_decay),       cmocka_unit_test(test_init),
        cmocka_unit_test(test_shards), cmocka_unit_test(test_init_pieces), cmocka_unit_test(test_moment_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
