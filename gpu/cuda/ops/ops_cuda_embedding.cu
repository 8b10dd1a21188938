/* SPDX-License-Identifier: Apache-2.0 */
/* ops_cuda_embedding.cu: gathers the embedding's rows, and adds up their gradients without float atomics.
 *
 * Backward sorts the rows of the batch by token (a stable radix sort) and cuts them into tiles of TILE_ROWS. A warp
 * adds up the runs of equal tokens in its tile for WARP_SIZE vectors of columns. The sum of a run that begins in the
 * tile goes to its token's gradient; that of a run from the tile before goes to the workspace, and a second kernel adds
 * those sums in order. So no two threads write to one element, and the order of additions depends on the tokens only.
 *
 *     sorted rows    | a a b c c c c c | c c c c c c c c | c c d d e f g g |
 *     tile                   0                 1                 2
 *     at once          a b c                              d e f g
 *     carried                            c                 c                  added to c by the second kernel
 *
 * Workspace: int32 keys (2, M), rows (2, M), counts (sort blocks, DIGITS), starts (DIGITS), float carried (tiles, C) */
#include "gpu/cuda/cuda_kernels.cuh"

namespace
{

enum {
    THREADS = ELEMENT_THREADS,
    WARPS = THREADS / WARP_SIZE,
    DIGIT_BITS = CUDA_SORT_BITS,
    DIGITS = 1 << DIGIT_BITS,
    SORT_ITEMS = CUDA_SORT_ITEMS,
    SORT_ROUNDS = SORT_ITEMS / THREADS, /* items of a thread */
    TILE_ROWS = CUDA_TILE_ROWS,
    ROWS_AT_ONCE = 4, /* rows of a tile that are loaded at the same time */
};

/* ---- forward ------------------------------------------------------------- */

template <typename T, int V>
__global__ void __launch_bounds__(THREADS) embedding_fwd_kernel(struct embedding_fwd_args a)
{
    each_in_table<V>(a.M, a.C, [&](int64_t row, int64_t j) {
        float x[V], position[V] = {0}, type[V] = {0};
        load(static_cast<const T *>(a.wte) + a.tokens[row] * a.C + j, x);
        if (a.wpe) load(static_cast<const T *>(a.wpe) + a.positions[row] * a.C + j, position);
        if (a.wse) load(static_cast<const T *>(a.wse) + a.types[row] * a.C + j, type);
#pragma unroll
        for (int v = 0; v < V; v++) x[v] = (x[v] + position[v] + type[v]) * a.scale;
        store(static_cast<T *>(a.out) + row * a.C + j, x);
    });
}

/* ---- the sort ------------------------------------------------------------ */

/* How keys are looked at: DIGIT_BITS of their difference to `first`; or, with fewer digits than DIGITS, that itself,
 * and the last digit for all else. */
struct digits {
    int first, shift, count;
};

__device__ __forceinline__ int digit_of(int key, struct digits digits)
{
    const unsigned digit = static_cast<unsigned>(key - digits.first) >> digits.shift;
    if (digits.count < DIGITS) return static_cast<int>(min(digit, static_cast<unsigned>(digits.count - 1)));
    return static_cast<int>(digit & (DIGITS - 1));
}

/* counts[block][digit] = the number of the block's items that have the digit */
__global__ void __launch_bounds__(THREADS)
    count_digits_kernel(int *counts, const int *keys, int n, struct digits digits)
{
    SHARED(int, mine, [DIGITS]);
    const int first = static_cast<int>(blockIdx.x) * SORT_ITEMS + static_cast<int>(threadIdx.x);
    for (int digit = static_cast<int>(threadIdx.x); digit < digits.count; digit += THREADS) mine[digit] = 0;
    __syncthreads();
    for (int i = first; i < n && i < first + SORT_ITEMS; i += THREADS) atomicAdd(&mine[digit_of(keys[i], digits)], 1);
    __syncthreads();
    for (int digit = static_cast<int>(threadIdx.x); digit < digits.count; digit += THREADS)
        counts[static_cast<int64_t>(blockIdx.x) * DIGITS + digit] = mine[digit];
}

/* counts[block][digit] becomes the number of such items in earlier blocks, starts[digit] that of all items with lower
 * digits. One block, a thread for each digit. */
__global__ void __launch_bounds__(DIGITS) scan_digits_kernel(int *counts, int *starts, int blocks, int digits)
{
    SHARED(int, sums, [2][DIGITS]);
    const int digit = static_cast<int>(threadIdx.x);
    int total = 0, from = 0;
    for (int block = 0; digit < digits && block < blocks; block++) {
        int *count = &counts[static_cast<int64_t>(block) * DIGITS + digit], before = total;
        total += *count;
        *count = before;
    }
    sums[0][digit] = total;
    for (int distance = 1; distance < DIGITS; distance *= 2, from ^= 1) {
        __syncthreads();
        sums[from ^ 1][digit] = sums[from][digit] + (digit >= distance ? sums[from][digit - distance] : 0);
    }
    starts[digit] = sums[from][digit] - total; /* this thread's own element: no barrier */
}

/* Lanes of the warp whose digit equals this lane's; `active`: this lane has one. */
__device__ __forceinline__ unsigned lanes_with(int digit, bool active)
{
    unsigned same = __ballot_sync(0xffffffffu, active);
#pragma unroll
    for (int bit = 0; bit < DIGIT_BITS; bit++) {
        unsigned set = __ballot_sync(0xffffffffu, digit >> bit & 1);
        same &= digit >> bit & 1 ? set : ~set;
    }
    return same;
}

/* Calls put(item, key, its sorted place) for a block's items; each warp owns consecutive ones. An item comes after all
 * of lower digits, and those of its digit in earlier blocks, warps, rounds and lanes. */
template <typename Put>
__device__ __forceinline__ void place_digits(const int *keys, const int *counts, const int *starts, int n,
                                             struct digits digits, Put put)
{
    SHARED(int, seen, [WARPS][DIGITS]);
    const int warp = static_cast<int>(threadIdx.x) / WARP_SIZE, lane = lane_of_warp();
    const int first = static_cast<int>(blockIdx.x) * SORT_ITEMS + warp * WARP_SIZE * SORT_ROUNDS + lane;
    int key[SORT_ROUNDS], place[SORT_ROUNDS];
    for (int digit = lane; digit < digits.count; digit += WARP_SIZE) seen[warp][digit] = 0;
    __syncwarp();
#pragma unroll
    for (int round = 0; round < SORT_ROUNDS; round++) {
        const int i = first + round * WARP_SIZE;
        key[round] = i < n ? keys[i] : 0;
        const int digit = digit_of(key[round], digits);
        const unsigned same = lanes_with(digit, i < n);
        const int lower = __popc(same & ((1u << lane) - 1));
        const int before = seen[warp][digit];
        place[round] = before + lower;
        __syncwarp();
        if (i < n && lower == 0) seen[warp][digit] = before + __popc(same);
        __syncwarp();
    }
    __syncthreads();
    for (int digit = static_cast<int>(threadIdx.x); digit < digits.count; digit += THREADS) {
        int sum = starts[digit] + counts[static_cast<int64_t>(blockIdx.x) * DIGITS + digit];
        for (int w = 0; w < WARPS; w++) {
            int count = seen[w][digit];
            seen[w][digit] = sum;
            sum += count;
        }
    }
    __syncthreads();
#pragma unroll
    for (int round = 0; round < SORT_ROUNDS; round++) {
        const int i = first + round * WARP_SIZE;
        if (i >= n) continue;
        put(i, key[round], seen[warp][digit_of(key[round], digits)] + place[round]);
    }
}

/* rows NULL: the items are 0 … n-1 */
__global__ void __launch_bounds__(THREADS)
    place_digits_kernel(int *keys_out, int *rows_out, const int *keys, const int *rows, const int *counts,
                        const int *starts, int n, struct digits digits)
{
    place_digits(keys, counts, starts, n, digits, [&](int i, int key, int to) {
        keys_out[to] = key;
        rows_out[to] = rows ? rows[i] : i;
    });
}

/* ---- sums of runs -------------------------------------------------------- */

/* The batch's rows in the order of their keys (tokens or positions). */
struct sorted_rows {
    const int *keys, *rows; /* (M) */
    int M, tiles;
    int skipped; /* the key whose rows are not added, or -1 */
};

template <int V> __device__ __forceinline__ void add_to(float *to, const float (&x)[V])
{
    float y[V];
    load(to, y);
#pragma unroll
    for (int v = 0; v < V; v++) y[v] += x[v];
    store(to, y);
}

/* dw += scale · the sums of the runs that begin in a tile; carried[tile] = the sum of the run from the tile before.
 * threadIdx.y: the tile's warp; blockIdx.y: its WARP_SIZE vectors of columns. */
template <typename T, int V>
__global__ void __launch_bounds__(THREADS)
    sum_runs_kernel(float *dw, float *carried, const T *dout, struct sorted_rows sorted, int C, float scale)
{
    const int tile = static_cast<int>(blockIdx.x * WARPS + threadIdx.y);
    const int column = static_cast<int>(blockIdx.y * WARP_SIZE + threadIdx.x) * V;
    if (tile >= sorted.tiles || column >= C) return;
    const int first = tile * TILE_ROWS, end = min(first + static_cast<int>(TILE_ROWS), sorted.M);
    int current = sorted.keys[first];
    bool begins_here = first == 0 || sorted.keys[first - 1] != current;
    float sum[V] = {0};
    auto put = [&]() {
        if (current == sorted.skipped) return;
        if (begins_here)
            add_to(dw + static_cast<int64_t>(current) * C + column, sum);
        else
            store(carried + static_cast<int64_t>(tile) * C + column, sum);
    };
    for (int base = first; base < end; base += ROWS_AT_ONCE) {
        float x[ROWS_AT_ONCE][V];
        int key[ROWS_AT_ONCE];
#pragma unroll
        for (int r = 0; r < ROWS_AT_ONCE; r++) {
            if (base + r >= end) continue;
            key[r] = sorted.keys[base + r];
            load(dout + static_cast<int64_t>(sorted.rows[base + r]) * C + column, x[r]);
        }
#pragma unroll
        for (int r = 0; r < ROWS_AT_ONCE; r++) {
            if (base + r >= end) continue;
            if (key[r] != current) {
                put();
                begins_here = true;
                current = key[r];
#pragma unroll
                for (int v = 0; v < V; v++) sum[v] = 0;
            }
#pragma unroll
            for (int v = 0; v < V; v++) sum[v] = fmaf(x[r][v], scale, sum[v]);
        }
    }
    put();
}

/* Adds the sums that the following tiles carried to the run that begins in tile blockIdx.x and continues after it. */
__global__ void __launch_bounds__(THREADS)
    add_carried_kernel(float *dw, const float *carried, struct sorted_rows sorted, int C)
{
    const int tile = static_cast<int>(blockIdx.x), first = tile * TILE_ROWS, next = first + TILE_ROWS;
    if (next >= sorted.M || sorted.keys[next] != sorted.keys[next - 1] || sorted.keys[next] == sorted.skipped) return;
    const int key = sorted.keys[next];
    if (sorted.keys[first] == key && first > 0 && sorted.keys[first - 1] == key)
        return; /* the run began in an earlier tile */
    int end = tile + 2;
    while (end < sorted.tiles && sorted.keys[end * TILE_ROWS] == key) end++;
    for (int j = static_cast<int>(threadIdx.x); j < C; j += THREADS) {
        float sum = dw[static_cast<int64_t>(key) * C + j];
#pragma unroll 4
        for (int from = tile + 1; from < end; from++) sum += carried[static_cast<int64_t>(from) * C + j];
        dw[static_cast<int64_t>(key) * C + j] = sum;
    }
}

/* ---- backward ------------------------------------------------------------ */

struct embedding_scratch {
    int *keys[2], *rows[2], *counts, *starts;
    float *carried;
};

int64_t embedding_sort_blocks(int64_t M)
{
    return ceil_div(M, SORT_ITEMS);
}

/* A table of the op, whose gradients are added up by key. */
struct key_table {
    float *dw; /* (rows, C); NULL: the op has none */
    const int32_t *keys;
    int64_t rows;
    bool accumulate;
    int64_t skipped;
};

struct sorted_rows sort_rows(struct stream *stream, const struct embedding_scratch *scratch,
                             const struct key_table &table, int64_t M)
{
    const int n = static_cast<int>(M), blocks = static_cast<int>(embedding_sort_blocks(M));
    struct sorted_rows sorted = {table.keys, NULL, n, static_cast<int>(ceil_div(M, TILE_ROWS)),
                                 static_cast<int>(table.skipped)};
    int to = 0;
    for (int shift = 0; shift == 0 || (table.rows - 1) >> shift; shift += DIGIT_BITS, to ^= 1) {
        const struct digits digits = {0, shift, DIGITS};
        LAUNCH(stream, "count_digits", count_digits_kernel, blocks, THREADS, scratch->counts, sorted.keys, n, digits);
        LAUNCH(stream, "scan_digits", scan_digits_kernel, 1, DIGITS, scratch->counts, scratch->starts, blocks, DIGITS);
        LAUNCH(stream, "place_digits", place_digits_kernel, blocks, THREADS, scratch->keys[to], scratch->rows[to],
               sorted.keys, sorted.rows, scratch->counts, scratch->starts, n, digits);
        sorted.keys = scratch->keys[to];
        sorted.rows = scratch->rows[to];
    }
    return sorted;
}

/* dw[keys[i]] += scale · dout[i] for keys that are not skipped */
template <typename T>
void add_rows(struct stream *stream, const struct embedding_bwd_args *a, const struct embedding_scratch *scratch,
              const struct key_table &table)
{
    const int C = static_cast<int>(a->C);
    const bool aligned = aligned16(a->dout, table.dw, scratch->carried, a->C * static_cast<int64_t>(sizeof(T)));
    const int columns = aligned ? C / VECTOR<T> : C;
    struct sorted_rows sorted = sort_rows(stream, scratch, table, a->M);
    dim3 grid(static_cast<unsigned>(ceil_div(sorted.tiles, WARPS)),
              static_cast<unsigned>(ceil_div(columns, WARP_SIZE)));
    LAUNCH(stream, "sum_runs", (aligned ? sum_runs_kernel<T, VECTOR<T>> : sum_runs_kernel<T, 1>), grid,
           dim3(WARP_SIZE, WARPS), table.dw, scratch->carried, static_cast<const T *>(a->dout), sorted, C, a->scale);
    LAUNCH(stream, "add_carried", add_carried_kernel, static_cast<unsigned>(sorted.tiles), THREADS, table.dw,
           scratch->carried, sorted, C);
}

struct embedding_scratch scratch_of(struct stream *stream, const struct embedding_bwd_args *a)
{
    struct cuda_scratch pieces = cuda_scratch_of(stream);
    struct embedding_scratch scratch;
    for (int i = 0; i < 2; i++) {
        scratch.keys[i] = cuda_scratch_take<int>(&pieces, a->M);
        scratch.rows[i] = cuda_scratch_take<int>(&pieces, a->M);
    }
    scratch.counts = cuda_scratch_take<int>(&pieces, embedding_sort_blocks(a->M) * DIGITS);
    scratch.starts = cuda_scratch_take<int>(&pieces, DIGITS);
    scratch.carried = cuda_scratch_take<float>(&pieces, ceil_div(a->M, TILE_ROWS) * a->C);
    return scratch;
}

/* ---- the order of experts' rows ------------------------------------------ */

/* Experts are digits; others are the last. */
__host__ __device__ struct digits expert_digits(const struct permute_experts_args &a)
{
    return {static_cast<int>(a.first), 0, a.E < DIGITS ? static_cast<int>(a.E) + 1 : static_cast<int>(DIGITS)};
}

__global__ void __launch_bounds__(THREADS)
    permute_kernel(struct permute_experts_args a, const int *counts, const int *starts, int n)
{
    const struct digits digits = expert_digits(a);
    for (int64_t e = grid_thread(); e <= a.E; e += grid_threads()) a.offsets[e] = e < digits.count ? starts[e] : n;
    if (n == 0) return;
    place_digits(a.experts, counts, starts, n, digits, [&](int i, int expert, int to) {
        a.places[i] = expert >= a.first && expert < a.first + a.E ? to : -1;
    });
}

} // namespace

void cuda_embedding_fwd(struct stream *stream, const struct embedding_fwd_args *a)
{
    dispatch(a->dtype, [&](auto type) {
        using T = decltype(type);
        launch_table<T>(stream, "embedding_fwd", embedding_fwd_kernel<T, VECTOR<T>>, embedding_fwd_kernel<T, 1>, *a,
                        a->M * a->C, aligned16(a->out, a->wte, a->wpe, a->wse, a->C * static_cast<int64_t>(sizeof(T))));
    });
}

void cuda_embedding_bwd(struct stream *stream, const struct embedding_bwd_args *a)
{
    ASSERT(a->M <= INT32_MAX / 2 && a->C <= INT32_MAX / 2);
    const struct key_table tables[] = {{a->dwte, a->tokens, a->V, a->accumulate_wte, a->padding},
                                       {a->dwpe, a->positions, a->P, a->accumulate_wpe, -1},
                                       {a->dwse, a->types, a->S, a->accumulate_wse, -1}};
    for (const struct key_table &table : tables)
        if (table.dw && !table.accumulate)
            stream_fill_zero(stream, table.dw, static_cast<size_t>(table.rows * a->C) * sizeof(float));
    if (a->M == 0) return;
    const struct embedding_scratch scratch = scratch_of(stream, a);
    for (const struct key_table &table : tables)
        if (table.dw) dispatch(a->dtype, [&](auto type) { add_rows<decltype(type)>(stream, a, &scratch, table); });
}

void cuda_permute_experts(struct stream *stream, const struct permute_experts_args *a)
{
    ASSERT(a->E <= DIGITS);
    const int n = static_cast<int>(a->M * a->k), blocks = static_cast<int>(embedding_sort_blocks(n));
    const struct digits digits = expert_digits(*a);
    struct cuda_scratch memory = cuda_scratch_of(stream);
    int *starts = cuda_scratch_take<int>(&memory, DIGITS);
    int *counts = cuda_scratch_take<int>(&memory, static_cast<int64_t>(blocks) * DIGITS);
    if (n) LAUNCH(stream, "count_digits", count_digits_kernel, blocks, THREADS, counts, a->experts, n, digits);
    LAUNCH(stream, "scan_digits", scan_digits_kernel, 1, DIGITS, counts, starts, blocks, digits.count);
    LAUNCH(stream, "permute_experts", permute_kernel, n ? blocks : 1, THREADS, *a, counts, starts, n);
}
CUDA_MODULE(embedding, scan_digits_kernel)
