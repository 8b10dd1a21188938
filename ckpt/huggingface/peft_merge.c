/* SPDX-License-Identifier: Apache-2.0 */
/* peft_merge.c: writes a checkpoint's adapter merged into its base, as PEFT's merge_and_unload() does on the CPU:
 *
 *     W + scale · B · A        the product in fp32, each sum in the order of r by fused multiply-adds; then the scale;
 *                              the sum in fp32, rounded once to the dtype of W
 *
 * and of an embedding and of parameters, whose update is rounded to the dtype of W first. A tied matrix becomes
 * two if the embedding or the head has an adapter. What is trained as a whole comes from the checkpoint.
 *
 * The memory is a piece of a tensor, and the two matrices of its adapter. */
#include "ckpt/huggingface/hf_write.h"

#include "core/model/adapter.h"

enum { PIECE = 1 << 20 /* elements */ };

/* What an adapter adds to a matrix (rows, columns): scale · left · right. */
struct merge_update {
    int64_t r;
    float *left, *right; /* owned: (rows, r), (r, columns) */
    float scale;
    bool rounded; /* to the dtype of the matrix, before it is added */
};

struct peft_merge {
    const struct checkpoint *checkpoint;
    const struct model_desc *desc;
    const struct tensor_table *table;
    struct huggingface_reader *base;
    float *values; /* owned: a piece of the tensor */
};

/* ---- what is added ------------------------------------------------------- */

/* count elements of a tensor, from `first` on. */
static enum status read_merged_adapter(const struct peft_merge *merge, const struct tensor_info *tensor, int64_t first,
                                       int64_t count, float **values, struct error *err)
{
    *values = memory_alloc((size_t)count * sizeof **values);
    return checkpoint_read(merge->checkpoint, STATE_MASTER, tensor->unit, tensor->offset + first, count, *values, err);
}

/* A matrix (rows, columns) in place of its transpose. */
static void transpose_merged(float **matrix, int64_t rows, int64_t columns)
{
    float *turned = memory_alloc((size_t)(rows * columns) * sizeof *turned);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) turned[i * columns + j] = (*matrix)[j * rows + i];
    free(*matrix);
    *matrix = turned;
}

/* The experts before that of a tensor, or of its matrix `m`. *row: of B where the matrix begins. */
static int64_t merged_expert(const struct peft_merge *merge, const struct tensor_info *tensor, int64_t m, int64_t *row)
{
    const bool down = tensor->role == ROLE_EXPERT_DOWN_W;
    *row = tensor->role == ROLE_EXPERT_UP_W ? tensor->shape[0] : 0;
    if (tensor->ndim == 3) return m;
    const struct tensor_info *first =
        tensor_find(merge->table, tensor->unit, down ? ROLE_EXPERT_DOWN_W : ROLE_EXPERT_GATE_W);
    return (tensor->number - first->number) / (down ? 1 : 2);
}

static void merge_update_release(struct merge_update *update)
{
    free(update->left);
    free(update->right);
}

/* By the A and B of a role in a unit, if it has them; of a tensor's matrix `m`. */
static enum status read_merge_update(const struct peft_merge *merge, int unit, enum tensor_role role,
                                     const struct tensor_info *tensor, int64_t m, struct merge_update *update,
                                     struct error *err)
{
    const bool experts = role_is_expert(role), embedding = role_is_embedding(role);
    const enum tensor_role owner = role == ROLE_EXPERT_UP_W ? ROLE_EXPERT_GATE_W : role;
    const struct tensor_info *a = tensor_find_part(merge->table, unit, owner, PART_LORA_A);
    const struct tensor_info *b = tensor_find_part(merge->table, unit, owner, PART_LORA_B);
    if (!a) return STATUS_OK;
    const bool in_out = experts ? merge->desc->experts.interleaved
                                : merge->desc->weights_in_out && unit > 0 && unit < tensor_table_head(merge->table);
    const int64_t r = b->shape[b->ndim - 1], matrices = experts ? a->shape[0] : 1;
    int64_t row = 0, expert = experts ? merged_expert(merge, tensor, m, &row) : 0;
    const int64_t of_a = a->numel / matrices,
                  of_b = experts && !in_out ? tensor->shape[tensor->ndim - 2] * r : b->numel / matrices;
    *update = (struct merge_update){
        .r = r, .scale = (float)a->lora_scale, .rounded = embedding || adapter_is_parameter(merge->desc, a)};
    float **of = embedding || in_out ? &update->left : &update->right;
    TRY(read_merged_adapter(merge, a, expert * of_a, of_a, of, err));
    of = embedding || in_out ? &update->right : &update->left;
    TRY(read_merged_adapter(merge, b, expert * (b->numel / matrices) + row * r, of_b, of, err));
    if (in_out) transpose_merged(&update->left, of_a / r, r);
    if (in_out || embedding) transpose_merged(&update->right, r, of_b / r);
    return STATUS_OK;
}

/* ---- the arithmetic ------------------------------------------------------ */

/* sum (columns) = left (r) · right (r, columns) */
typedef void merge_product(int64_t r, int64_t columns, const float *left, const float *right, float *sum);

static inline __attribute__((always_inline)) void merge_product_body(int64_t r, int64_t columns, const float *left,
                                                                     const float *right, float *sum)
{
    memset(sum, 0, (size_t)columns * sizeof *sum);
    for (int64_t k = 0; k < r; k++)
        for (int64_t j = 0; j < columns; j++) sum[j] = fmaf(left[k], right[k * columns + j], sum[j]);
}

static void merge_product_plain(int64_t r, int64_t columns, const float *left, const float *right, float *sum)
{
    merge_product_body(r, columns, left, right, sum);
}

#ifdef __x86_64__
__attribute__((target("avx2,fma"))) static void merge_product_fma(int64_t r, int64_t columns, const float *left,
                                                                  const float *right, float *sum)
{
    merge_product_body(r, columns, left, right, sum);
}
#endif

/* With the same bits. */
static merge_product *choose_merge_product(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2")) return merge_product_fma;
#endif
    return merge_product_plain;
}

/* Adds an update to rows [first, first + rows) of its matrix. */
static void merge_rows(const struct merge_update *update, enum dtype dtype, int64_t first, int64_t rows,
                       int64_t columns, float *values)
{
    merge_product *product = choose_merge_product();
#pragma omp parallel
    {
        OWNED float *sum = memory_alloc((size_t)columns * sizeof *sum);
#pragma omp for
        for (int64_t i = 0; i < rows; i++) {
            product(update->r, columns, update->left + (first + i) * update->r, update->right, sum);
            for (int64_t j = 0; j < columns; j++) {
                const float scaled = sum[j] * update->scale,
                            added = update->rounded ? dtype_rounded(scaled, dtype) : scaled;
                float *value = &values[i * columns + j];
                *value = dtype_rounded(dtype_rounded(*value, dtype) + added, dtype);
            }
        }
    }
}

/* ---- tensors ------------------------------------------------------------- */

static enum status merge_tensor(struct hf_writer *writer, const struct hf_tensor *entry, void *context,
                                struct error *err)
{
    struct peft_merge *merge = context;
    const struct tensor_info *tensor = entry->tensor;
    if (!tensor->frozen) return hf_writer_tensor(writer, entry, NULL, err);
    const int unit = entry->head ? tensor_table_head(merge->table) : merge->table->units[tensor->unit].owner;
    const enum tensor_role role = entry->head ? ROLE_LM_HEAD : tensor->role;
    const int64_t matrices = tensor_is_matrix(tensor) ? tensor_matrices(tensor) : 1, each = tensor->numel / matrices;
    const int64_t rows = tensor->shape[tensor_is_matrix(tensor) && tensor->ndim == 3];
    const int64_t columns = each / rows, most = columns < PIECE ? PIECE / columns : 1;
    merge->values = memory_resize(merge->values, (size_t)(most * columns) * sizeof *merge->values);
    for (int64_t m = 0; m < matrices; m++) {
        RELEASED(merge_update_release) struct merge_update update = {.r = 0};
        TRY(read_merge_update(merge, unit, role, tensor, m, &update, err));
        for (int64_t row = 0, n; row < rows; row += n) {
            n = min64(rows - row, most);
            TRY(huggingface_values(merge->base, tensor->unit, tensor->offset + m * each + row * columns, n * columns,
                                   merge->values, err));
            if (update.r) merge_rows(&update, entry->dtype, row, n, columns, merge->values);
            TRY(hf_writer_values(writer, merge->values, n * columns, err));
        }
    }
    return STATUS_OK;
}

static void merge_release(struct peft_merge *merge)
{
    huggingface_close(merge->base);
    free(merge->values);
}

enum status peft_merge(const struct checkpoint *checkpoint, const struct huggingface_source *base, const char *out,
                       enum dtype dtype, bool force, struct error *err)
{
    RELEASED(merge_release)
    struct peft_merge merge = {.checkpoint = checkpoint, .desc = base->desc, .table = base->table};
    RELEASED(hf_folder_release)
    struct hf_folder folder = {.checkpoint = checkpoint,
                               .table = base->table,
                               .out = out,
                               .stem = "model",
                               .force = force,
                               .write = merge_tensor,
                               .context = &merge};
    ASSERT(checkpoint->adapter && base->table->adapted);
    TRY(checkpoint_check_table(checkpoint, base->table, err));
    TRY(huggingface_open(base, 0, (uint64_t)checkpoint->base.seed, &merge.base, err));
    const struct tensor_info *embedding = tensor_find(base->table, 0, ROLE_WTE);
    const enum dtype stored = huggingface_dtype(merge.base, (int)(embedding - base->table->tensors));
    TRY(peft_base_check(checkpoint, base->table, merge.base, base->dir, err));
    folder.tensors = memory_zeroed((size_t)base->table->num_tensors + 1, sizeof *folder.tensors);
    const int head = tensor_table_head(base->table);
    const bool unties = base->desc->tied && (tensor_find_part(base->table, 0, ROLE_WTE, PART_LORA_A) ||
                                             tensor_find_part(base->table, head, ROLE_LM_HEAD, PART_LORA_A));
    for (int i = 0; i < base->table->num_tensors; i++) { /* those of the base, in the order of the model */
        const struct tensor_info *tensor = &base->table->tensors[i];
        if (tensor->part != PART_BASE) continue;
        folder.count++;
        folder.tensors[tensor->number] =
            hf_model_tensor(base->desc, tensor, dtype == DTYPE_COUNT ? huggingface_dtype(merge.base, i) : dtype);
    }
    if (unties) { /* the head */
        struct hf_tensor *entry = &folder.tensors[folder.count++];
        *entry = folder.tensors[embedding->number];
        strcpy(entry->name, "lm_head.weight");
        entry->head = true;
    }
    hf_folder_complete(&folder, merge.base);
    json_t *config = model_desc_export_config(base->desc, dtype == DTYPE_COUNT ? stored : dtype);
    if (unties) json_object_set_new(config, "tie_word_embeddings", json_false());
    if (unties && base->desc->multimodal) /* json_object_set_new() ignores an absent text_config */
        json_object_set_new(json_object_get(config, "text_config"), "tie_word_embeddings", json_false());
    return hf_write_folder(&folder, "config.json", config, err);
}
