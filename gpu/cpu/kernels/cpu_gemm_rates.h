/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_gemm_rates.h: runs one micro-kernel on its own, for cpu_bf16.c to time. A template, see ops_cpu.h. */

_Static_assert((int)TILE_MR + (int)NR <= (int)CPU_MICRO_ROWS && CPU_MICRO_UNITS % TILE_UNITS == 0, "panels fit");

static double rates_run(enum cpu_micro_kernel kernel, int calls, const uint32_t *panels)
{
    const uint32_t *a = panels, *b = panels + TILE_MR * CPU_MICRO_UNITS;
    micro_kernel *run = NULL;
    enum unit_kind kind = UNIT_WIDENED;
    _Alignas(64) float tile[TILE_MR * NR];
    switch (kernel) {
    case CPU_MICRO_WIDEN: run = micro_f32; break;
    case CPU_MICRO_DOT:
#if GEMM_HAS_PAIRS
        run = micro_pairs;
        kind = UNIT_PAIR;
#endif
        break;
    case CPU_MICRO_TILES:
#if GEMM_HAS_TILES
        run = micro_tiles;
        kind = UNIT_TILE;
#endif
        break;
    }
    amx_begin(kind);
    for (int i = 0; run && i < calls; i++) run(CPU_MICRO_UNITS, a, b, tile);
    amx_end(kind);
    const int64_t elements = CPU_MICRO_UNITS * panel_elements_of_unit(kind);
    return run ? 2.0 * calls * (double)(panel_rows(kind) * NR * elements) : 0;
}
