/* SPDX-License-Identifier: Apache-2.0 */
/* attention_cuda_kernels.cu: attention without the score matrix, forward and backward, for every shape and dtype.
 *
 * A block of threads owns a tile of queries (for dk and dv: of keys) of one head of one sequence and walks over the
 * visible tiles of the other side:
 *
 *     forward   S = Q · Kᵀ      P = exp(scale S - running maximum)          out += P · V
 *     dq        S, and dP = dO · Vᵀ         dS = P (dP - delta)             dQ += scale dS · K
 *     dk, dv    Sᵀ = K · Qᵀ, dPᵀ = V · dOᵀ, dSᵀ               dV += Pᵀ · dO     dK += scale dSᵀ · Q
 *
 * With a soft cap, scale S becomes Z = cap · tanh(scale S / cap) in place, and dS has the factor 1 - (Z / cap)².
 *
 * In backward, P is exp(scale S - lse). The dq kernel leaves delta, the sum of out * dout of each row, in the workspace
 * for the dk, dv kernel: float (H, M). Backward computes S and dP twice, two products of seven, so that no sums cross
 * blocks: bits repeat without atomics. A block of the dk, dv kernel goes through the query heads of its key/value head
 * in order.
 *
 * A warp owns 16 rows of the block's tile; the block shares the tiles of the other side. P and dS go from registers to
 * operands through shared memory, rounded to the tensors' dtype.
 *
 * Heads above 256: four warps (fp32: two) share 16 rows, a part of the columns each. S and dP are sums over columns, so
 * the warps add up their parts in shared memory; of out, dq, dk and dv each has its own columns. No product is computed
 * twice: for a query and a key, heads of 512 take 2 · 2 · 512 FLOPs in forward and 8 · 2 · 512 in backward (dq 3, dk 3,
 * dv 2), twice those of 256, and two barriers for each product that is added up. Tiles have 48 x 16 rows in forward, 16
 * x 16 in backward, so that backward reads the other side twice as often as with tiles of 32. */
#include "gpu/cuda/attention/attention_kernels.h"

#include "gpu/cuda/attention/attention_cuda_tiles.cuh"

namespace
{

/* Tiles for head sizes up to DP: as large as registers and 99 KiB of shared memory (sm_86, sm_89) allow. */
struct tile_shape {
    int rows, columns; /* of the block's own tile; of the tiles that it walks over */
};

template <typename T, int DP>
constexpr struct tile_shape FWD_SHAPE = sizeof(T) == 4 ? (DP == 64    ? tile_shape{64, 64}
                                                          : DP == 128 ? tile_shape{64, 32}
                                                          : DP == 256 ? tile_shape{32, 16}
                                                                      : tile_shape{16, 8})
                                                       : (DP <= 128   ? tile_shape{64, 64}
                                                          : DP == 256 ? tile_shape{64, 32}
                                                                      : tile_shape{48, 16});

template <typename T, int DP>
constexpr struct tile_shape BWD_SHAPE = sizeof(T) == 4 ? (DP == 64    ? tile_shape{64, 32}
                                                          : DP == 128 ? tile_shape{32, 32}
                                                          : DP == 256 ? tile_shape{32, 8}
                                                                      : tile_shape{16, 8})
                                                       : (DP == 64    ? tile_shape{64, 64}
                                                          : DP == 128 ? tile_shape{64, 32}
                                                          : DP == 256 ? tile_shape{32, 32}
                                                                      : tile_shape{16, 16});

template <typename T, int DP> constexpr int threads_of(struct tile_shape shape)
{
    return shape.rows / WARP_ROWS * SHARERS<T, DP> * WARP_SIZE;
}

/* Elements in which a warp has its scores: an operand (16, columns), or fp32 sums for the warps that share its rows. */
template <typename T, int DP> __host__ __device__ constexpr int scores_size(int columns)
{
    return WARP_ROWS * (SHARERS<T, DP> > 1 && HALF_WIDTH<T> ? 2 * columns : columns + VECTOR<T>);
}

/* Shared memory, in bytes, of `of_rows` tiles (rows, DP), `of_columns` tiles (columns, DP) and the warps' scores. */
template <typename T, int DP> constexpr int shared_bytes(struct tile_shape shape, int of_rows, int of_columns)
{
    return static_cast<int>(sizeof(T)) * ((of_rows * shape.rows + of_columns * shape.columns) * TILE_LD<T, DP> +
                                          threads_of<T, DP>(shape) / WARP_SIZE * scores_size<T, DP>(shape.columns));
}

/* What kernels need in addition to the op's arguments. */
struct walk {
    int blocks; /* for each sequence and head */
    int window; /* keys that a query sees at most */
    int depth;  /* of tiles: D, rounded up */
    bool vectors;
    bool bidirectional;
};

/* The tile of rows that a block owns, and the rows and columns of it that a warp owns. */
struct place {
    int64_t start; /* first token of the sequence */
    int length;    /* of the sequence */
    int first;     /* the block's first row, counted in the sequence */
    int head;
    int row, column; /* the warp's first ones, counted in the tile */
};

/* Finds the block's place; false: it has no rows. `last_first`: the blocks that see most keys start first. */
template <typename T, int DP>
__device__ __forceinline__ bool place_of(struct place *place, const int32_t *seq_start, const struct walk &walk,
                                         int rows, bool last_first)
{
    const int block = static_cast<int>(blockIdx.x), sequence = block / walk.blocks, index = block % walk.blocks;
    place->start = seq_start[sequence];
    place->length = seq_start[sequence + 1] - seq_start[sequence];
    place->first = (last_first ? walk.blocks - 1 - index : index) * rows;
    place->head = static_cast<int>(blockIdx.y);
    place->row = warp_of_block() / SHARERS<T, DP> * WARP_ROWS;
    place->column = warp_of_block() % SHARERS<T, DP> * WARP_COLUMNS<T, DP>;
    return place->first < place->length;
}

__device__ __forceinline__ bool visible(int query, int key, int length, const struct walk &walk)
{
    if (walk.bidirectional) return key < length && query < length;
    return key <= query && query - key < walk.window && query < length;
}

/* Whether each of `queries` queries from `query` on sees each of `keys` keys from `key` on. */
__device__ __forceinline__ bool all_visible(int query, int queries, int key, int keys, int length, const struct walk &w)
{
    return visible(query, key + keys - 1, length, w) && visible(query + queries - 1, key, length, w);
}

/* Of a matrix from `column` of a head on. */
__device__ __forceinline__ struct tile_source source_of(int64_t ld, int rows, int64_t D, const struct walk &walk,
                                                        int column)
{
    struct tile_source source = {ld, rows, static_cast<int>(D) - column, walk.depth - column, walk.vectors};
    return source;
}

/* tile (COUNT rows) = rows from `first` on of the sequence, of a head of a matrix (M, ld; D columns a head); by all
 * threads of a block together */
template <int COUNT, int DP, typename T>
__device__ __forceinline__ void load_rows(T *tile, const void *matrix, int64_t ld, int64_t head, int64_t D, int first,
                                          const struct place &at, const struct walk &walk)
{
    tile_load<COUNT, DP>(tile, static_cast<const T *>(matrix) + (at.start + first) * ld + head * D,
                         source_of(ld, at.length - first, D, walk, 0));
}

/* The same for storing what this warp owns: sum · row_scale. `tile`: its 16 rows, whose other columns stay. */
template <int DP, int N, typename T>
__device__ __forceinline__ void store_rows(void *matrix, int64_t ld, int64_t D, T *tile,
                                           const struct tile_sum<T, N> &sum, const float (&row_scale)[ROWS<T>],
                                           const struct place &at, const struct walk &walk)
{
    const int first = at.first + at.row;
    tile_store<DP>(static_cast<T *>(matrix) + (at.start + first) * ld + at.head * D + at.column, tile + at.column, sum,
                   row_scale, source_of(ld, at.length - first, D, walk, at.column));
}

/* The same with one scale for all rows. */
template <int DP, int N, typename T>
__device__ __forceinline__ void store_scaled(void *matrix, int64_t ld, int64_t D, T *tile,
                                             const struct tile_sum<T, N> &sum, float scale, const struct place &at,
                                             const struct walk &walk)
{
    float row_scale[ROWS<T>];
#pragma unroll
    for (int i = 0; i < ROWS<T>; i++) row_scale[i] = scale;
    store_rows<DP>(matrix, ld, D, tile, sum, row_scale, at, walk);
}

/* The first key that a query of the block sees, rounded down to a multiple of `tile`. */
__device__ __forceinline__ int first_key(const struct place &at, const struct walk &walk, int tile)
{
    return walk.bidirectional ? 0 : max(at.first - walk.window + 1, 0) / tile * tile;
}

/* The end of the keys that the block's `rows` queries see. */
__device__ __forceinline__ int end_of_keys(const struct place &at, const struct walk &walk, int rows)
{
    return walk.bidirectional ? at.length : min(at.first + rows, at.length);
}

/* The first query that sees a key of the block, rounded down to a multiple of `tile`. */
__device__ __forceinline__ int first_query(const struct place &at, const struct walk &walk, int tile)
{
    return walk.bidirectional ? 0 : at.first / tile * tile;
}

/* The end of the queries that see the block's `rows` keys. */
__device__ __forceinline__ int end_of_queries(const struct place &at, const struct walk &walk, int rows)
{
    const int64_t last = static_cast<int64_t>(at.first) + rows - 1; /* the sum with the window may exceed an int */
    return walk.bidirectional ? at.length : static_cast<int>(min(last + walk.window, static_cast<int64_t>(at.length)));
}

/* e^x, for x up to a little above 0 */
__device__ __forceinline__ float softmax_exponential(float x)
{
    return exp2f(x * 1.44269504088896340736f);
}

/* scores (16, N) = own (16 rows) · tile (N rows)ᵀ. Warps that share the rows multiply their columns, and add up what
 * each left in its part of `shared`, in the same order, so that they go on with the same bits. */
template <int N, int DP, typename T>
__device__ __forceinline__ void multiply_scores(struct tile_sum<T, N> *scores, const T *own, const T *tile, T *shared,
                                                const struct place &at, const struct walk &walk)
{
    constexpr int WARPS = SHARERS<T, DP>, COUNT = N / LANES<T>, SIZE = scores_size<T, DP>(N);
    const int depth = WARPS > 1 ? min(walk.depth - at.column, WARP_COLUMNS<T, DP>) : walk.depth;
    tile_zero(scores);
    multiply_rows<N, DP>(scores, own + at.column, tile + at.column, depth);
    if constexpr (WARPS > 1) {
        const T *part = shared - at.column / WARP_COLUMNS<T, DP> * SIZE;
#pragma unroll
        for (int i = 0; i < ROWS<T> * COUNT; i++)
            reinterpret_cast<float *>(shared)[i * WARP_SIZE + lane_of_warp()] = scores->at[i / COUNT][i % COUNT];
        __syncthreads();
        tile_zero(scores);
#pragma unroll
        for (int warp = 0; warp < WARPS; warp++, part += SIZE) {
#pragma unroll
            for (int i = 0; i < ROWS<T> * COUNT; i++)
                scores->at[i / COUNT][i % COUNT] +=
                    reinterpret_cast<const float *>(part)[i * WARP_SIZE + lane_of_warp()];
        }
        __syncthreads();
    }
}

/* Writes the warp's 16 rows of scores to `tile`, as an operand of the next product. */
template <int N, typename T> __device__ __forceinline__ void put_scores(T *tile, const struct tile_sum<T, N> &scores)
{
    __syncwarp();
#pragma unroll
    for (int i = 0; i < ROWS<T>; i++) {
#pragma unroll
        for (int j = 0; j < N / LANES<T>; j += SCORES_BESIDE<T>) {
            float beside[SCORES_BESIDE<T>];
#pragma unroll
            for (int w = 0; w < SCORES_BESIDE<T>; w++) beside[w] = scores.at[i][j + w];
            store(tile + tile_row<T>(i) * TILE_LD<T, N> + score_column<T>(j), beside);
        }
    }
    __syncwarp();
}

/* ---- dropout ------------------------------------------------------------- */

/* Writes 1 for kept, 0 for dropped elements to the warp's 16 rows of `tile`. BY_KEY: its rows are keys. row, column: of
 * the warp's first row and of the tile's first column, multiples of DROPOUT_BLOCK. */
template <int N, bool BY_KEY, typename T>
__device__ __forceinline__ void put_kept(T *tile, const struct dropout &dropout, const struct place &at, int64_t head,
                                         int row, int column)
{
    constexpr int BLOCK_ROWS = BY_KEY ? DROPOUT_KEYS : DROPOUT_QUERIES, BLOCK_COLUMNS = DROPOUT_BLOCK / BLOCK_ROWS;
    constexpr int ACROSS = N / BLOCK_COLUMNS, BLOCKS = WARP_ROWS / BLOCK_ROWS * ACROSS;
    const uint64_t token = dropout.tokens[at.start];
    __syncwarp();
    for (int block = lane_of_warp(); block < BLOCKS; block += WARP_SIZE) {
        const int i = block / ACROSS * BLOCK_ROWS, j = block % ACROSS * BLOCK_COLUMNS;
        const int query = BY_KEY ? column + j : row + i, key = BY_KEY ? row + i : column + j;
        uint32_t words[4];
        dropout_words(&dropout, token, dropout_key_block(key, head), dropout_query_block(query, head), words);
#pragma unroll
        for (int e = 0; e < DROPOUT_BLOCK; e++) {
            const int q = e / DROPOUT_KEYS, k = e % DROPOUT_KEYS;
            tile[(i + (BY_KEY ? k : q)) * TILE_LD<T, N> + j + (BY_KEY ? q : k)] =
                rounded<T>(dropout_keeps(&dropout, words, e) ? 1.0f : 0.0f);
        }
    }
    __syncwarp();
}

/* Drops elements of the warp's 16 rows of weights, or of their gradients; `tile` is used for that. */
template <bool BY_KEY, int N, typename T>
__device__ __forceinline__ void drop_scores(struct tile_sum<T, N> *scores, T *tile, const struct dropout &dropout,
                                            const struct place &at, int64_t head, int row, int column)
{
    put_kept<N, BY_KEY>(tile, dropout, at, head, row, column);
#pragma unroll
    for (int i = 0; i < ROWS<T>; i++) {
#pragma unroll
        for (int j = 0; j < N / LANES<T>; j++)
            scores->at[i][j] *= dropout.scale * to_float(tile[tile_row<T>(i) * TILE_LD<T, N> + score_column<T>(j)]);
    }
}

/* ---- soft cap ------------------------------------------------------------ */

/* Caps the scores, if there is a cap. Returns the factor that they still lack. */
template <int N, typename T>
__device__ __forceinline__ float cap_scores(struct tile_sum<T, N> *scores, float scale, float cap)
{
    if (cap == 0) return scale;
    const float inner = scale / cap;
#pragma unroll
    for (int i = 0; i < ROWS<T>; i++) {
#pragma unroll
        for (int j = 0; j < N / LANES<T>; j++) scores->at[i][j] = cap * tanhf(scores->at[i][j] * inner);
    }
    return 1;
}

__device__ __forceinline__ float cap_slope(float score, float cap)
{
    const float t = score / cap;
    return fmaf(-t, t, 1.0f);
}

/* cap_slope() from p = exp(score - lse), which saves a second tile's registers; 0 where p is 0. */
__device__ __forceinline__ float cap_slope_of_weight(float p, float lse, float cap)
{
    return p > 0 ? cap_slope(logf(p) + lse, cap) : 0;
}

/* ---- forward ------------------------------------------------------------- */

/* Of the warp's rows: the maximum of the scaled scores so far, this lane's part of the sum of exp(score - maximum). */
template <typename T> struct softmax_rows {
    float top[ROWS<T>], sum[ROWS<T>];
};

/* Masks scores, raises the maxima, rescales the sums and `out`, turns scores into exponentials. query, key: of the
 * warp's first row and of the tile's first column. */
template <int K, int N, typename T>
__device__ __forceinline__ void softmax_step(struct softmax_rows<T> *softmax, struct tile_sum<T, K> *scores,
                                             struct tile_sum<T, N> *out, float scale, int query, int key, int length,
                                             const struct walk &walk)
{
    const bool whole = all_visible(query, WARP_ROWS, key, K, length, walk);
#pragma unroll
    for (int i = 0; i < ROWS<T>; i++) {
        float highest = -INFINITY;
#pragma unroll
        for (int j = 0; j < K / LANES<T>; j++) {
            if (!whole && !visible(query + tile_row<T>(i), key + score_column<T>(j), length, walk))
                scores->at[i][j] = -INFINITY;
            highest = fmaxf(highest, scores->at[i][j]);
        }
        for (int distance = LANES<T> / 2; distance > 0; distance /= 2)
            highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, distance));
        const float new_top = fmaxf(softmax->top[i], highest * scale);
        const float base = new_top == -INFINITY ? 0 : new_top; /* -inf: the row has seen no key so far */
        const float shrink = softmax_exponential(softmax->top[i] - base);
        softmax->top[i] = new_top;
        softmax->sum[i] *= shrink;
#pragma unroll
        for (int j = 0; j < K / LANES<T>; j++) {
            scores->at[i][j] = softmax_exponential(fmaf(scores->at[i][j], scale, -base));
            softmax->sum[i] += scores->at[i][j];
        }
#pragma unroll
        for (int j = 0; j < N / LANES<T>; j++) out->at[i][j] *= shrink;
    }
}

template <typename T, int DP>
__global__ void __launch_bounds__(threads_of<T, DP>(FWD_SHAPE<T, DP>), 1)
    attention_fwd_kernel(struct attention_fwd_args a, struct walk walk)
{
    constexpr int Q = FWD_SHAPE<T, DP>.rows, K = FWD_SHAPE<T, DP>.columns, LD = TILE_LD<T, DP>;
    DYN_SHARED(T, q);
    T *const k = q + Q * LD, *const v = k + K * LD, *const p = v + K * LD;
    struct place at;
    if (!place_of<T, DP>(&at, a.seq_start, walk, Q, true)) return;
    const int query = at.first + at.row;
    const int64_t kv_head = at.head / (a.H / a.KV);
    T *const my_q = q + at.row * LD, *const my_p = p + warp_of_block() * scores_size<T, DP>(K);
    load_rows<Q, DP>(q, a.q, a.ld_q, at.head, a.D, at.first, at, walk);

    struct tile_sum<T, WARP_COLUMNS<T, DP>> out;
    struct softmax_rows<T> softmax;
    tile_zero(&out);
    for (int i = 0; i < ROWS<T>; i++) {
        softmax.top[i] = -INFINITY;
        softmax.sum[i] = 0;
    }
    const int end = end_of_keys(at, walk, Q);
    for (int key = first_key(at, walk, K); key < end; key += K) {
        __syncthreads();
        load_rows<K, DP>(k, a.k, a.ld_k, kv_head, a.D, key, at, walk);
        load_rows<K, DP>(v, a.v, a.ld_v, kv_head, a.D, key, at, walk);
        __syncthreads();
        struct tile_sum<T, K> scores;
        multiply_scores<K, DP>(&scores, my_q, k, my_p, at, walk);
        const float scale = cap_scores(&scores, a.scale, a.softcap);
        softmax_step<K>(&softmax, &scores, &out, scale, query, key, at.length, walk);
        if (a.dropout.threshold) drop_scores<false>(&scores, my_p, a.dropout, at, at.head, query, key);
        put_scores<K>(my_p, scores);
        multiply_columns<K, DP>(&out, my_p, v + at.column, walk.depth - at.column);
    }

    float inverse[ROWS<T>];
#pragma unroll
    for (int i = 0; i < ROWS<T>; i++) {
        const float total = sum_over_lanes(softmax.sum[i], LANES<T>);
        const int at_query = query + tile_row<T>(i);
        inverse[i] = 1 / total;
        if (at_query < at.length && lane_of_warp() % LANES<T> == 0 && at.column == 0)
            a.lse[at.head * a.M + at.start + at_query] = softmax.top[i] + logf(total);
    }
    store_rows<DP>(a.out, a.ld_o, a.D, my_q, out, inverse, at, walk);
}

/* ---- backward ------------------------------------------------------------ */

/* This lane's share of the sum of out · dout over a row; dout lies in shared memory. */
template <typename T> __device__ __forceinline__ float row_product(const T *out, const T *dout, int D, bool vectors)
{
    const int lane = lane_of_warp() % LANES<T>;
    float sum = 0;
    if (vectors) {
        for (int column = lane * VECTOR<T>; column < D; column += LANES<T> * VECTOR<T>) {
            float x[VECTOR<T>], y[VECTOR<T>];
            load(out + column, x);
            load(dout + column, y);
#pragma unroll
            for (int i = 0; i < VECTOR<T>; i++) sum = fmaf(x[i], y[i], sum);
        }
    } else {
        for (int column = lane; column < D; column += LANES<T>)
            sum = fmaf(to_float(out[column]), to_float(dout[column]), sum);
    }
    return sum;
}

/* Scores of the warp's queries by K keys become the gradient of the scaled ones: p · (dp - delta) · slope. */
template <int K, typename T>
__device__ __forceinline__ void
score_gradient(struct tile_sum<T, K> *p, const struct tile_sum<T, K> &dp, const float *row_lse, const float *row_delta,
               const struct attention_bwd_args &a, const struct place &at, int query, int key, const struct walk &walk)
{
    const bool whole = all_visible(query, WARP_ROWS, key, K, at.length, walk);
    const float scale = cap_scores(p, a.fwd.scale, a.fwd.softcap);
#pragma unroll
    for (int i = 0; i < ROWS<T>; i++) {
#pragma unroll
        for (int j = 0; j < K / LANES<T>; j++) {
            const bool seen = whole || visible(query + tile_row<T>(i), key + score_column<T>(j), at.length, walk);
            const float slope = a.fwd.softcap == 0 ? 1 : cap_slope(p->at[i][j], a.fwd.softcap);
            p->at[i][j] = seen ? softmax_exponential(fmaf(p->at[i][j], scale, -row_lse[i])) : 0;
            p->at[i][j] *= (dp.at[i][j] - row_delta[i]) * slope;
        }
    }
}

template <typename T, int DP>
__global__ void __launch_bounds__(threads_of<T, DP>(BWD_SHAPE<T, DP>), 1)
    attention_dq_kernel(struct attention_bwd_args a, struct walk walk, float *delta)
{
    constexpr int Q = BWD_SHAPE<T, DP>.rows, K = BWD_SHAPE<T, DP>.columns, LD = TILE_LD<T, DP>;
    DYN_SHARED(T, q);
    T *const dout = q + Q * LD, *const k = dout + Q * LD, *const v = k + K * LD, *const ds = v + K * LD;
    struct place at;
    if (!place_of<T, DP>(&at, a.fwd.seq_start, walk, Q, true)) return;
    const int query = at.first + at.row;
    const int64_t kv_head = at.head / (a.fwd.H / a.fwd.KV);
    T *const my_q = q + at.row * LD, *const my_dout = dout + at.row * LD,
             *const my_ds = ds + warp_of_block() * scores_size<T, DP>(K);
    load_rows<Q, DP>(q, a.fwd.q, a.fwd.ld_q, at.head, a.fwd.D, at.first, at, walk);
    load_rows<Q, DP>(dout, a.dout, a.fwd.ld_o, at.head, a.fwd.D, at.first, at, walk);
    __syncthreads();

    float row_delta[ROWS<T>], row_lse[ROWS<T>];
#pragma unroll
    for (int i = 0; i < ROWS<T>; i++) {
        const int at_query = query + tile_row<T>(i);
        const int64_t token = at.start + at_query;
        const bool there = at_query < at.length;
        float product = there ? row_product(static_cast<const T *>(a.fwd.out) + token * a.fwd.ld_o + at.head * a.fwd.D,
                                            my_dout + tile_row<T>(i) * LD, static_cast<int>(a.fwd.D), walk.vectors)
                              : 0;
        row_delta[i] = sum_over_lanes(product, LANES<T>);
        row_lse[i] = there ? a.fwd.lse[at.head * a.fwd.M + token] : 0;
        if (there && lane_of_warp() % LANES<T> == 0 && at.column == 0) delta[at.head * a.fwd.M + token] = row_delta[i];
    }

    struct tile_sum<T, WARP_COLUMNS<T, DP>> dq;
    tile_zero(&dq);
    const int end = end_of_keys(at, walk, Q);
    for (int key = first_key(at, walk, K); key < end; key += K) {
        __syncthreads();
        load_rows<K, DP>(k, a.fwd.k, a.fwd.ld_k, kv_head, a.fwd.D, key, at, walk);
        load_rows<K, DP>(v, a.fwd.v, a.fwd.ld_v, kv_head, a.fwd.D, key, at, walk);
        __syncthreads();
        struct tile_sum<T, K> p, dp;
        multiply_scores<K, DP>(&p, my_q, k, my_ds, at, walk);
        multiply_scores<K, DP>(&dp, my_dout, v, my_ds, at, walk);
        if (a.fwd.dropout.threshold) drop_scores<false>(&dp, my_ds, a.fwd.dropout, at, at.head, query, key);
        score_gradient<K>(&p, dp, row_lse, row_delta, a, at, query, key, walk);
        put_scores<K>(my_ds, p);
        multiply_columns<K, DP>(&dq, my_ds, k + at.column, walk.depth - at.column);
    }
    store_scaled<DP>(a.dq, a.ld_dq, a.fwd.D, my_q, dq, a.fwd.scale, at, walk);
}

/* Scores of the warp's keys by Q queries become probabilities. `lse`: of the queries. */
template <int Q, typename T>
__device__ __forceinline__ void probabilities_by_key(struct tile_sum<T, Q> *scores, const float *lse, float scale,
                                                     int key, int query, int length, const struct walk &walk)
{
    const bool whole = all_visible(query, Q, key, WARP_ROWS, length, walk);
#pragma unroll
    for (int i = 0; i < ROWS<T>; i++) {
#pragma unroll
        for (int j = 0; j < Q / LANES<T>; j++) {
            const int column = score_column<T>(j);
            const bool seen = whole || visible(query + column, key + tile_row<T>(i), length, walk);
            scores->at[i][j] = seen ? softmax_exponential(fmaf(scores->at[i][j], scale, -lse[column])) : 0;
        }
    }
}

/* lse and delta (Q) = those of the queries from `first` on, of which `count` exist; the whole block loads them. */
template <int Q>
__device__ __forceinline__ void load_query_values(float *lse, float *delta, const float *all_lse,
                                                  const float *all_delta, int64_t first, int count)
{
    for (int i = static_cast<int>(threadIdx.x); i < Q; i += static_cast<int>(blockDim.x)) {
        lse[i] = i < count ? all_lse[first + i] : 0;
        delta[i] = i < count ? all_delta[first + i] : 0;
    }
}

/* Probabilities of the warp's keys by Q queries become the gradient of the scaled scores. dp: of the probabilities. */
template <int Q, typename T>
__device__ __forceinline__ void gradient_by_key(struct tile_sum<T, Q> *scores, const struct tile_sum<T, Q> &dp,
                                                const float *lse, const float *delta, float softcap)
{
#pragma unroll
    for (int i = 0; i < ROWS<T>; i++) {
#pragma unroll
        for (int j = 0; j < Q / LANES<T>; j++) {
            const int column = score_column<T>(j);
            const float p = scores->at[i][j], gradient = p * (dp.at[i][j] - delta[column]);
            scores->at[i][j] = softcap == 0 ? gradient : gradient * cap_slope_of_weight(p, lse[column], softcap);
        }
    }
}

/* dk and dv in one kernel, or in one kernel each where registers do not suffice for both, and with dropout. */
enum outputs { OUTPUT_DK = 1, OUTPUT_DV = 2, OUTPUT_BOTH = 3 };

template <typename T, int DP, int OUTPUTS>
__global__ void __launch_bounds__(threads_of<T, DP>(BWD_SHAPE<T, DP>), 1)
    attention_dkv_kernel(struct attention_bwd_args a, struct walk walk, const float *delta)
{
    constexpr int K = BWD_SHAPE<T, DP>.rows, Q = BWD_SHAPE<T, DP>.columns, LD = TILE_LD<T, DP>;
    SHARED(float, query_lse, [Q]);
    SHARED(float, query_delta, [Q]);
    DYN_SHARED(T, k);
    T *const v = k + K * LD, *const q = v + K * LD, *const dout = q + Q * LD, *const p = dout + Q * LD;
    struct place at;
    if (!place_of<T, DP>(&at, a.fwd.seq_start, walk, K, false)) return;
    const int key = at.first + at.row, group = static_cast<int>(a.fwd.H / a.fwd.KV);
    T *const my_k = k + at.row * LD, *const my_v = v + at.row * LD,
             *const my_p = p + warp_of_block() * scores_size<T, DP>(Q);
    load_rows<K, DP>(k, a.fwd.k, a.fwd.ld_k, at.head, a.fwd.D, at.first, at, walk);
    load_rows<K, DP>(v, a.fwd.v, a.fwd.ld_v, at.head, a.fwd.D, at.first, at, walk);

    struct tile_sum<T, WARP_COLUMNS<T, DP>> dk, dv;
    tile_zero(&dk);
    tile_zero(&dv);
    const int end = end_of_queries(at, walk, K);
    for (int64_t head = static_cast<int64_t>(at.head) * group; head < static_cast<int64_t>(at.head + 1) * group;
         head++) {
        for (int query = first_query(at, walk, Q); query < end; query += Q) {
            __syncthreads();
            load_rows<Q, DP>(q, a.fwd.q, a.fwd.ld_q, head, a.fwd.D, query, at, walk);
            load_rows<Q, DP>(dout, a.dout, a.fwd.ld_o, head, a.fwd.D, query, at, walk);
            load_query_values<Q>(query_lse, query_delta, a.fwd.lse, delta, head * a.fwd.M + at.start + query,
                                 at.length - query);
            __syncthreads();
            struct tile_sum<T, Q> scores;
            multiply_scores<Q, DP>(&scores, my_k, q, my_p, at, walk);
            const float scale = cap_scores(&scores, a.fwd.scale, a.fwd.softcap);
            probabilities_by_key<Q>(&scores, query_lse, scale, key, query, at.length, walk);
            if (OUTPUTS & OUTPUT_DV) {
                if (OUTPUTS == OUTPUT_DV && a.fwd.dropout.threshold)
                    drop_scores<true>(&scores, my_p, a.fwd.dropout, at, head, key, query);
                put_scores<Q>(my_p, scores);
                multiply_columns<Q, DP>(&dv, my_p, dout + at.column, walk.depth - at.column);
            }
            if (OUTPUTS & OUTPUT_DK) {
                struct tile_sum<T, Q> dp;
                multiply_scores<Q, DP>(&dp, my_v, dout, my_p, at, walk);
                if (OUTPUTS == OUTPUT_DK && a.fwd.dropout.threshold)
                    drop_scores<true>(&dp, my_p, a.fwd.dropout, at, head, key, query);
                gradient_by_key<Q>(&scores, dp, query_lse, query_delta, a.fwd.softcap);
                put_scores<Q>(my_p, scores);
                multiply_columns<Q, DP>(&dk, my_p, q + at.column, walk.depth - at.column);
            }
        }
    }
    if (OUTPUTS & OUTPUT_DK) store_scaled<DP>(a.dk, a.ld_dk, a.fwd.D, my_k, dk, a.fwd.scale, at, walk);
    if (OUTPUTS & OUTPUT_DV) store_scaled<DP>(a.dv, a.ld_dv, a.fwd.D, my_v, dv, 1, at, walk);
}

/* ---- launchers ----------------------------------------------------------- */

template <typename T>
struct walk walk_of(int64_t D, int64_t window, bool bidirectional, int32_t max_seq, int rows, bool aligned)
{
    struct walk walk = {};
    walk.blocks = static_cast<int>(ceil_div(max_seq, rows));
    walk.window = window > 0 && window < max_seq ? static_cast<int>(window) : max_seq;
    walk.depth = static_cast<int>(ceil_div(D, TILE_STEP<T>) * TILE_STEP<T>);
    walk.vectors = aligned && D % VECTOR<T> == 0;
    walk.bidirectional = bidirectional;
    return walk;
}

dim3 attention_grid_for(const struct walk &walk, int32_t num_seqs, int64_t heads)
{
    const int64_t blocks = static_cast<int64_t>(walk.blocks) * num_seqs;
    ASSERT(blocks <= INT32_MAX && heads <= UINT16_MAX);
    return dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(heads));
}

template <typename T, int DP> void fwd_launch(struct stream *stream, const struct attention_fwd_args *a)
{
    constexpr struct tile_shape shape = FWD_SHAPE<T, DP>;
    constexpr int bytes = shared_bytes<T, DP>(shape, 1, 2);
    const int64_t size = sizeof(T);
    const struct walk walk =
        walk_of<T>(a->D, a->window, a->bidirectional, a->max_seq, shape.rows,
                   aligned16(a->q, a->k, a->v, a->out, a->ld_q * size, a->ld_k * size, a->ld_v * size, a->ld_o * size));
    LAUNCH_SHARED(stream, "attention_fwd", (attention_fwd_kernel<T, DP>), attention_grid_for(walk, a->num_seqs, a->H),
                  (threads_of<T, DP>(shape)), bytes, *a, walk);
}

template <typename T, int DP> void bwd_launch(struct stream *stream, const struct attention_bwd_args *a)
{
    constexpr struct tile_shape shape = BWD_SHAPE<T, DP>;
    constexpr int bytes = shared_bytes<T, DP>(shape, 2, 2), threads = threads_of<T, DP>(shape);
    const int64_t size = sizeof(T);
    struct cuda_scratch scratch = cuda_scratch_of(stream);
    float *delta = cuda_scratch_take<float>(&scratch, a->fwd.H * a->fwd.M);
    const struct walk walk =
        walk_of<T>(a->fwd.D, a->fwd.window, a->fwd.bidirectional, a->fwd.max_seq, shape.rows,
                   aligned16(a->fwd.q, a->fwd.k, a->fwd.v, a->fwd.out, a->dout, a->dq, a->dk, a->dv) &&
                       aligned16(a->fwd.ld_q * size, a->fwd.ld_k * size, a->fwd.ld_v * size, a->fwd.ld_o * size,
                                 a->ld_dq * size, a->ld_dk * size, a->ld_dv * size));
    LAUNCH_SHARED(stream, "attention_bwd, dq", (attention_dq_kernel<T, DP>),
                  attention_grid_for(walk, a->fwd.num_seqs, a->fwd.H), threads, bytes, *a, walk, delta);
    const dim3 grid = attention_grid_for(walk, a->fwd.num_seqs, a->fwd.KV);
    if constexpr (DP <= 128) {
        if (a->fwd.dropout.threshold == 0) {
            LAUNCH_SHARED(stream, "attention_bwd, dk and dv", (attention_dkv_kernel<T, DP, OUTPUT_BOTH>), grid, threads,
                          bytes, *a, walk, delta);
            return;
        }
    }
    LAUNCH_SHARED(stream, "attention_bwd, dk", (attention_dkv_kernel<T, DP, OUTPUT_DK>), grid, threads, bytes, *a, walk,
                  delta);
    LAUNCH_SHARED(stream, "attention_bwd, dv", (attention_dkv_kernel<T, DP, OUTPUT_DV>), grid, threads, bytes, *a, walk,
                  delta);
}

/* Calls launch(T(), width<DP>()) for an op's dtype and the least size of heads that is compiled and holds its own. */
template <typename Launch> void dispatch_heads(const struct attention_fwd_args *a, Launch launch)
{
    ASSERT(!a->bidirectional || a->window == 0);
    ASSERT(a->D > 0 && a->D <= CUDA_MAX_HEAD_DIM && a->KV > 0 && a->H % a->KV == 0 && a->M <= INT32_MAX / 2);
    if (a->M == 0 || a->num_seqs == 0) return;
    dispatch(a->dtype, [&](auto type) {
        if (a->D <= 64)
            launch(type, width<64>());
        else if (a->D <= 128)
            launch(type, width<128>());
        else if (a->D <= 256)
            launch(type, width<256>());
        else
            launch(type, width<512>());
    });
}

} // namespace

void attention_own_fwd(struct stream *stream, const struct attention_fwd_args *a)
{
    dispatch_heads(a, [&](auto type, auto size) { fwd_launch<decltype(type), decltype(size)::value>(stream, a); });
}

void attention_own_bwd(struct stream *stream, const struct attention_bwd_args *a)
{
    dispatch_heads(&a->fwd,
                   [&](auto type, auto size) { bwd_launch<decltype(type), decltype(size)::value>(stream, a); });
}
CUDA_MODULE(attention, (attention_fwd_kernel<float, 64>))
