/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_gemm_amx.h: the part of the built-in matrix product for AMX. A template, see ops_cpu.h.
 *
 * TDPBF16PS multiplies two tiles: 16 rows of A with 32 elements of k, and the same 32 elements for 16 columns of B,
 * with pairs of k side by side. The micro-kernel holds 32 x 32 elements of C in four tiles. A panel of B is packed as
 * for pairs of bf16, padded with zeros to whole tiles; one of A holds, for every 16 units, TILE_MR rows of 64 bytes.
 *
 * Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, "Programming with Intel AMX". */

#if defined(__clang__)
#define COMPILER_KNOWS_TILES (__clang_major__ >= 12)
#else
#define COMPILER_KNOWS_TILES (__GNUC__ >= 11)
#endif

#if defined(__AVX512F__) && COMPILER_KNOWS_TILES
#define GEMM_HAS_TILES 1
enum { TILE_MR = 32, TILE_UNITS = 16, TILE_ROWS = 16, TILE_BYTES = 64 };
_Static_assert((int)TILE_MR >= (int)MR, "a buffer for TILE_MR rows is large enough for MR");

/* Packs a panel of A: `rows` of its TILE_MR rows exist, k elements each, at `src`. dst (units / 16, TILE_MR, 16). */
static void amx_tile_panel(uint32_t *dst, const uint16_t *src, int64_t m_stride, int64_t k_stride, int rows, int64_t k)
{
    for (int64_t unit = 0; 2 * unit < k; unit += TILE_UNITS, dst += TILE_MR * TILE_UNITS) {
        const bool whole = rows == TILE_MR && 2 * (unit + TILE_UNITS) <= k;
        if (whole && k_stride == 1) {
            for (int r = 0; r < TILE_MR; r++) memcpy(dst + r * TILE_UNITS, src + r * m_stride + 2 * unit, TILE_BYTES);
        } else if (whole && m_stride == 1) {
            uint32_t units[TILE_UNITS][TILE_MR];
            for (int u = 0; u < TILE_UNITS; u++) {
                const uint16_t *low = src + 2 * (unit + u) * k_stride, *high = low + k_stride;
                for (int r = 0; r < TILE_MR; r++) units[u][r] = low[r] | (uint32_t)high[r] << 16;
            }
            quad_turn(dst, TILE_UNITS, units, TILE_MR, TILE_UNITS, TILE_MR);
        } else {
            for (int r = 0; r < TILE_MR; r++)
                for (int64_t u = 0; u < TILE_UNITS; u++)
                    dst[r * TILE_UNITS + u] = r < rows && 2 * (unit + u) < k
                                                  ? unit_of(src, m_stride, k_stride, r, unit + u, k, UNIT_TILE)
                                                  : 0;
        }
    }
}

#define TARGET_TILES __attribute__((target("amx-tile,amx-bf16")))

/* The operand of LDTILECFG: eight tiles of 16 rows of 64 bytes. A constant, because gcc 12 does not know that the
 * instruction reads all of it and drops stores to a variable. */
static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} tile_configuration = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
_Static_assert(sizeof tile_configuration == 64, "64 bytes");

TARGET_TILES static void tiles_configure(void)
{
    _tile_loadconfig(&tile_configuration);
}

TARGET_TILES static void tiles_release(void)
{
    _tile_release();
}

/* tile (TILE_MR, NR) = a (units / 16, TILE_MR, 16) · b (units, NR) */
TARGET_TILES static void micro_tiles(int64_t units, const uint32_t *a, const uint32_t *b, float *tile)
{
    enum { A_PITCH = TILE_BYTES, B_PITCH = NR * 4, C_PITCH = NR * 4 };
    _Static_assert(NR == 32 && TILE_MR == 32, "two tiles by two");
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t unit = 0; unit < units; unit += TILE_UNITS, a += TILE_MR * TILE_UNITS, b += TILE_UNITS * NR) {
        _tile_loadd(4, a, A_PITCH);
        _tile_loadd(6, b, B_PITCH);
        _tile_loadd(7, b + 16, B_PITCH);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + TILE_ROWS * TILE_UNITS, A_PITCH);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, tile, C_PITCH);
    _tile_stored(1, tile + 16, C_PITCH);
    _tile_stored(2, tile + TILE_ROWS * NR, C_PITCH);
    _tile_stored(3, tile + TILE_ROWS * NR + 16, C_PITCH);
}
#else
#define GEMM_HAS_TILES 0
enum { TILE_MR = MR, TILE_UNITS = 1 };
#endif

static void amx_begin(enum unit_kind kind)
{
    (void)kind;
#if GEMM_HAS_TILES
    if (kind == UNIT_TILE) tiles_configure();
#endif
}

static void amx_end(enum unit_kind kind)
{
    (void)kind;
#if GEMM_HAS_TILES
    if (kind == UNIT_TILE) tiles_release();
#endif
}
