/* SPDX-License-Identifier: Apache-2.0 */
/* attention_cudnn_kernels.cu: what attention through cuDNN needs next to cuDNN's kernels. */
#include "gpu/cuda/attention/attention_kernels.h"

#include "gpu/cuda/cuda_kernels.cuh"

namespace
{

struct part_strides {
    int64_t value[ATTENTION_PART_STRIDES];
    int count;
};

__global__ void part_describe_kernel(attention_part part, int32_t *lengths, int64_t *offsets, int64_t pitch,
                                     part_strides strides)
{
    const int64_t i = grid_thread(), s = part.first + i;
    if (i > part.B) return;
    const int32_t start = part.seq_start[s < part.num_seqs ? s : part.num_seqs];
    if (i < part.B) lengths[i] = s < part.num_seqs ? part.seq_start[s + 1] - start : 0;
#pragma unroll
    for (int j = 0; j < ATTENTION_PART_STRIDES; j++) /* unrolled, so that the strides need no local memory */
        if (j < strides.count) offsets[j * pitch + i] = start * strides.value[j];
}

/* to_sequences: padded (B, H, T) from lse, else lse from padded. */
__global__ void part_lse_kernel(attention_part part, float *lse, float *padded, bool to_sequences)
{
    const int64_t rows = part.B * part.H;
    for (int64_t i = grid_thread(); i < rows * part.T; i += grid_threads()) {
        const int64_t row = i / part.T, t = i % part.T, s = part.first + row / part.H;
        const int32_t start = s < part.num_seqs ? part.seq_start[s] : 0;
        const int32_t length = s < part.num_seqs ? part.seq_start[s + 1] - start : 0;
        const int64_t at = row % part.H * part.M + start + t;
        if (to_sequences)
            padded[i] = t < length ? lse[at] : 0;
        else if (t < length)
            lse[at] = padded[i];
    }
}

/* to_padded: padded (B, T, width) from rows ld apart, zeros after a sequence's end; else the rows from padded. */
__global__ void part_rows_kernel(attention_part part, uint4 *rows, int64_t ld, uint4 *padded, int64_t width,
                                 bool to_padded)
{
    for (int64_t i = grid_thread(); i < part.B * part.T * width; i += grid_threads()) {
        const int64_t t = i / width % part.T, s = part.first + i / width / part.T;
        const int32_t start = s < part.num_seqs ? part.seq_start[s] : 0;
        const int32_t length = s < part.num_seqs ? part.seq_start[s + 1] - start : 0;
        uint4 *row = rows + (start + t) * ld + i % width;
        if (to_padded)
            padded[i] = t < length ? *row : make_uint4(0, 0, 0, 0);
        else if (t < length)
            *row = padded[i];
    }
}

/* Which weights are kept: a thread writes 16 bytes, 8 keys, for each of DROPOUT_QUERIES queries. The grid has a column
 * of blocks for each head and sequence. */
template <typename T>
__global__ void part_keep_kernel(attention_part part, struct dropout dropout, bool causal, T *kept, int64_t ld)
{
    constexpr int KEYS = VECTOR<T>, GROUPS = KEYS / DROPOUT_KEYS;
    const int64_t across = ld / KEYS, i = grid_thread();
    const int64_t query = i / across * DROPOUT_QUERIES, key = i % across * KEYS;
    const int64_t head = blockIdx.y, s = part.first + blockIdx.z;
    if (query >= part.T || s >= part.num_seqs) return;
    const int32_t start = part.seq_start[s], length = part.seq_start[s + 1] - start;
    const int64_t rows = query / ATTENTION_KEPT_TILE, columns = key / ATTENTION_KEPT_TILE;
    if ((causal && columns > rows) || max(rows, columns) * ATTENTION_KEPT_TILE >= length) return;
    const uint64_t token = dropout.tokens[start];
    T *row = kept + ((blockIdx.z * part.H + head) * part.T + query) * ld + key;
    pack<T, KEYS> out[DROPOUT_QUERIES];
#pragma unroll
    for (int group = 0; group < GROUPS; group++) {
        uint32_t words[4];
        dropout_words(&dropout, token, dropout_key_block(key + group * DROPOUT_KEYS, head),
                      dropout_query_block(query, head), words);
#pragma unroll
        for (int e = 0; e < DROPOUT_BLOCK; e++)
            out[e / DROPOUT_KEYS].at[group * DROPOUT_KEYS + e % DROPOUT_KEYS] =
                rounded<T>(dropout_keeps(&dropout, words, e) ? 1.0f : 0.0f);
    }
#pragma unroll
    for (int q = 0; q < DROPOUT_QUERIES; q++)
        if (query + q < part.T) *reinterpret_cast<pack<T, KEYS> *>(row + q * ld) = out[q];
}

template <typename T>
void part_keep(struct stream *stream, const struct attention_part *part, const struct dropout *dropout, bool causal,
               void *kept, int64_t ld)
{
    const int64_t items = ceil_div(part->T, DROPOUT_QUERIES) * (ld / VECTOR<T>),
                  blocks = ceil_div(items, ELEMENT_THREADS);
    ASSERT(blocks <= INT32_MAX && part->H <= UINT16_MAX && part->B <= UINT16_MAX);
    LAUNCH(stream, "attention, dropout of the weights", part_keep_kernel<T>,
           dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(part->H), static_cast<unsigned>(part->B)),
           dim3(ELEMENT_THREADS), *part, *dropout, causal, static_cast<T *>(kept), ld);
}

} // namespace

void attention_part_describe(struct stream *stream, const struct attention_part *part, int32_t *lengths,
                             int64_t *offsets, int64_t pitch, const int64_t *strides, int count)
{
    part_strides all = {};
    ASSERT(count <= ATTENTION_PART_STRIDES && pitch > part->B);
    for (all.count = 0; all.count < count; all.count++) all.value[all.count] = strides[all.count];
    LAUNCH(stream, "attention, ragged sequences", part_describe_kernel,
           dim3(static_cast<unsigned>(ceil_div(part->B + 1, ELEMENT_THREADS))), dim3(ELEMENT_THREADS), *part, lengths,
           offsets, pitch, all);
}

void attention_part_lse(struct stream *stream, const struct attention_part *part, float *lse, float *padded, bool back)
{
    LAUNCH(stream, "attention, the order of lse", part_lse_kernel,
           grid_of_elements(stream, part->B * part->H * part->T, 1), ELEMENT_THREADS, *part, lse, padded, back);
}

void attention_part_rows(struct stream *stream, const struct attention_part *part, void *rows, int64_t ld, void *padded,
                         int64_t width, bool to_padded)
{
    constexpr int VECTOR_WIDTH = sizeof(uint4) / sizeof(uint16_t);
    LAUNCH(stream, "attention, padded rows", part_rows_kernel,
           grid_of_elements(stream, part->B * part->T * width, VECTOR_WIDTH), ELEMENT_THREADS, *part,
           static_cast<uint4 *>(rows), ld / VECTOR_WIDTH, static_cast<uint4 *>(padded), width / VECTOR_WIDTH,
           to_padded);
}

void attention_part_keep(struct stream *stream, const struct attention_part *part, const struct dropout *dropout,
                         enum dtype dtype, bool causal, void *kept, int64_t ld)
{
    if (dtype == DTYPE_BF16)
        part_keep<__nv_bfloat16>(stream, part, dropout, causal, kept, ld);
    else
        part_keep<__half>(stream, part, dropout, causal, kept, ld);
}
CUDA_MODULE(attention_cudnn, part_describe_kernel)
