/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_gemm_pack.h: packs blocks of A and B into the panels that the micro-kernels read. A template, see ops_cpu.h. A
 * packed panel holds, unit by unit of k, its MR (or NR) values side by side. Rows, columns and units beyond the matrix
 * are packed as zeros. Panels of A for AMX are different: cpu_gemm_amx.h. */

static int panel_rows(enum unit_kind kind)
{
    return kind == UNIT_TILE ? TILE_MR : MR;
}

static int64_t panel_elements_of_unit(enum unit_kind kind)
{
    return kind == UNIT_PAIR || kind == UNIT_TILE ? 2 : 1;
}

static int64_t panel_units_for(enum unit_kind kind, int64_t k)
{
    const int64_t units = (k + panel_elements_of_unit(kind) - 1) / panel_elements_of_unit(kind);
    return kind == UNIT_TILE ? round_up(units, TILE_UNITS) : units;
}

/* Packs one panel: `rows` of its `width` rows exist, k elements of each from `src` on. dst (units, width). */
static ALWAYS_INLINE void pack_panel(uint32_t *dst, const void *src, int64_t row_stride, int64_t k_stride, int rows,
                                     int width, int64_t k, enum unit_kind kind)
{
    int64_t units = kind == UNIT_PAIR ? (k + 1) / 2 : k, unit = 0;
    int64_t whole = kind == UNIT_PAIR ? k / 2 : k; /* units that have all of their elements */
    if (rows == width && row_stride == 1) {
        for (; unit < whole; unit++, dst += width) {
            const uint16_t *half = (const uint16_t *)src + (kind == UNIT_PAIR ? 2 : 1) * unit * k_stride;
            if (kind == UNIT_F32)
                memcpy(dst, (const float *)src + unit * k_stride, (size_t)width * sizeof *dst);
            else if (kind == UNIT_WIDENED)
                for (int r = 0; r < width; r++) dst[r] = (uint32_t)half[r] << 16;
            else if (kind == UNIT_F16)
                for (int r = 0; r < width; r += 4) {
                    quad q = quad_from_f16(half + r);
                    memcpy(dst + r, &q, sizeof q);
                }
            else
                for (int r = 0; r < width; r++) dst[r] = half[r] | (uint32_t)half[k_stride + r] << 16;
        }
    } else if (rows == width && k_stride == 1) {
        for (; unit + 4 <= whole; unit += 4, dst += 4 * width) {
            for (int r = 0; r < width; r += 4) {
                quad q[4];
                for (int i = 0; i < 4; i++) q[i] = quad_of(src, (r + i) * row_stride, unit, kind);
                quad_transpose(q);
                for (int i = 0; i < 4; i++) memcpy(dst + i * width + r, &q[i], sizeof q[i]);
            }
        }
    }
    for (; unit < units; unit++, dst += width)
        for (int r = 0; r < width; r++) dst[r] = r < rows ? unit_of(src, row_stride, k_stride, r, unit, k, kind) : 0;
}

/* Rows first … first+count of op(X) (X is A or B), k elements of each from k_first on; element (row, k) is at
 * src[row * row_stride + k * k_stride]. */
struct panel_source {
    const void *src;
    enum dtype dtype;
    int64_t row_stride, k_stride;
    int64_t first, count, k_first, k;
};

/* Packs panels of a block of A or B, `width` rows each. By value: through a pointer, each store to dst would make the
 * compiler read the source's members again. */
static void pack_block(uint32_t *dst, struct panel_source s, struct range panels, int width, enum unit_kind kind,
                       bool is_a)
{
    int64_t units = panel_units_for(kind, s.k);
    for (int64_t panel = panels.first; panel < panels.end; panel++) {
        int rows = (int)min64(width, s.count - panel * width);
        const void *from = at(s.src, (s.first + panel * width) * s.row_stride + s.k_first * s.k_stride, s.dtype);
        uint32_t *to = dst + panel * width * units;
#if GEMM_HAS_TILES
        if (kind == UNIT_TILE && is_a) {
            amx_tile_panel(to, from, s.row_stride, s.k_stride, rows, s.k);
            continue;
        }
#endif
        if (is_a)
            WITH_UNIT(kind, pack_panel(to, from, s.row_stride, s.k_stride, rows, MR, s.k, KIND));
        else
            WITH_UNIT(kind, pack_panel(to, from, s.row_stride, s.k_stride, rows, NR, s.k, KIND));
        if (kind == UNIT_TILE) { /* whole tiles */
            const int64_t filled = panel_units_for(UNIT_PAIR, s.k) * width;
            memset(to + filled, 0, (size_t)(units * width - filled) * sizeof *to);
        }
    }
}
