/* SPDX-License-Identifier: Apache-2.0 */
/* ops_test_cases.c: the list of cases. Every case runs in fp32, bf16 and fp16; sumsq, decide_step, find_nonfinite and
 * adam have fixed dtypes. */
#include "tests/ops/ops_test.h"

/* The shapes of GPT-2 124M at B=4, T=256 time the ops on a CPU; those of GPT-2 124M and Llama 8B at 8192 or 16384
 * tokens on a GPU. Sizes around vector widths, blocks and tiles of either device test them. */
#define LINEAR_CASES(name, extra)                                                                                \
    {.op = name, .M = 1, .N = 7, .K = 1, .flags = extra}, {.op = name, .M = 0, .N = 16, .K = 8, .flags = extra}, \
        {.op = name, .M = 3, .N = 48, .K = 7, .flags = extra},                                                   \
        {.op = name, .M = 17, .N = 56, .K = 48, .pad = 8, .flags = (extra) | IN_OUT},                            \
        {.op = name, .M = 17, .N = 258, .K = 64, .pad = 6, .flags = extra},                                      \
        {.op = name, .M = 33, .N = 320, .K = 129, .flags = (extra) | IN_OUT},                                    \
        {.op = name, .M = 130, .N = 65, .K = 300, .flags = extra},                                               \
        {.op = name, .M = 130, .N = 65, .K = 300, .flags = (extra) | IN_OUT},                                    \
        {.op = name, .M = 70, .N = 33, .K = 1100, .flags = extra},                                               \
    {                                                                                                            \
        .op = name, .M = 1030, .N = 40, .K = 24, .flags = (extra) | IN_OUT                                       \
    }

#define LINEAR_PERF(name, extra)                                                             \
    {.op = name, .M = 1024, .N = 2304, .K = 768, .flags = (extra) | IN_OUT | PERF},          \
        {.op = name, .M = 1024, .N = 768, .K = 768, .flags = (extra) | IN_OUT | PERF},       \
        {.op = name, .M = 1024, .N = 3072, .K = 768, .flags = (extra) | IN_OUT | PERF},      \
        {.op = name, .M = 1024, .N = 768, .K = 3072, .flags = (extra) | IN_OUT | PERF},      \
        {.op = name, .M = 256, .N = 3072, .K = 768, .flags = (extra) | IN_OUT | PERF},       \
        {.op = name, .M = 256, .N = 50304, .K = 768, .flags = (extra) | PERF},               \
        {.op = name, .M = 1024, .N = 50304, .K = 768, .flags = (extra) | PERF},              \
        {.op = name, .M = 16384, .N = 2304, .K = 768, .flags = (extra) | IN_OUT | GPU_PERF}, \
        {.op = name, .M = 16384, .N = 3072, .K = 768, .flags = (extra) | IN_OUT | GPU_PERF}, \
        {.op = name, .M = 16384, .N = 768, .K = 3072, .flags = (extra) | IN_OUT | GPU_PERF}, \
        {.op = name, .M = 8192, .N = 50304, .K = 768, .flags = (extra) | GPU_PERF},          \
        {.op = name, .M = 8192, .N = 6144, .K = 4096, .flags = (extra) | GPU_PERF},          \
        {.op = name, .M = 8192, .N = 28672, .K = 4096, .flags = (extra) | GPU_PERF},         \
        {.op = name, .M = 8192, .N = 4096, .K = 14336, .flags = (extra) | GPU_PERF},         \
    {                                                                                        \
        .op = name, .M = 2048, .N = 2048, .K = 2048, .flags = (extra) | PERF                 \
    }

/* Of an adapter of rank 8 or 64 and a layer of 768 x 768, 4096 x 4096 or 4096 x 14336. */
#define ADAPTER_PERF(name, extra)                                                   \
    {.op = name, .M = 1024, .N = 8, .K = 768, .flags = (extra) | PERF},             \
        {.op = name, .M = 1024, .N = 64, .K = 768, .flags = (extra) | PERF},        \
        {.op = name, .M = 1024, .N = 768, .K = 8, .flags = (extra) | PERF},         \
        {.op = name, .M = 1024, .N = 768, .K = 64, .flags = (extra) | PERF},        \
        {.op = name, .M = 1024, .N = 16, .K = 4096, .flags = (extra) | PERF},       \
        {.op = name, .M = 1024, .N = 4096, .K = 16, .flags = (extra) | PERF},       \
        {.op = name, .M = 16384, .N = 64, .K = 4096, .flags = (extra) | GPU_PERF},  \
        {.op = name, .M = 16384, .N = 4096, .K = 64, .flags = (extra) | GPU_PERF},  \
        {.op = name, .M = 16384, .N = 14336, .K = 16, .flags = (extra) | GPU_PERF}, \
    {                                                                               \
        .op = name, .M = 16384, .N = 16, .K = 14336, .flags = (extra) | GPU_PERF    \
    }

/* Short and long memory (the offset of dt_bias), and decays that underflow; documents around a chunk's size. */
#define DELTA_CASES(name)                                                                                              \
    {.op = name, .M = 1, .H = 1, .KV = 1, .D = 1, .P = 1, .pad = 1, .lengths = {1}},                                   \
        {.op = name, .M = 0, .H = 2, .KV = 2, .D = 8, .P = 8},                                                         \
        {.op = name, .M = 65, .H = 2, .KV = 2, .D = 5, .P = 5, .pad = 3, .lengths = {1, 64}, .offset = -3},            \
        {.op = name, .M = 323, .H = 2, .KV = 1, .D = 5, .P = 9, .pad = 2, .lengths = {1, 63, 64, 65, 130}},            \
        {.op = name, .M = 200, .H = 2, .KV = 1, .D = 128, .P = 128, .pad = 8, .lengths = {200}, .offset = -5},         \
        {.op = name, .M = 130, .H = 4, .KV = 2, .D = 32, .P = 64, .pad = 4, .lengths = {130}, .offset = -4},           \
        {.op = name, .M = 100, .H = 1, .KV = 1, .D = 36, .P = 20, .pad = 1, .lengths = {97, 3}, .offset = 60},         \
        {.op = name, .M = 2048, .H = 16, .KV = 16, .D = 128, .P = 128, .lengths = {2048}, .offset = 1, .flags = PERF}, \
    {                                                                                                                  \
        .op = name, .M = 8192, .H = 16, .KV = 16, .D = 128, .P = 128, .lengths = {4096, 4096}, .flags = GPU_PERF       \
    }
#define ROUTE_CASES(name)                                                                              \
    {.op = name, .M = 1, .H = 1, .KV = 1}, {.op = name, .M = 0, .H = 8, .KV = 2},                      \
        {.op = name, .M = 17, .H = 8, .KV = 2, .flags = RMS}, {.op = name, .M = 40, .H = 60, .KV = 4}, \
        {.op = name, .M = 40, .H = 128, .KV = 8, .flags = RMS | TYPES},                                \
        {.op = name, .M = 300, .H = 33, .KV = 3, .flags = TYPES},                                      \
        {.op = name, .M = 20, .H = 512, .KV = 10, .flags = RMS},                                       \
        {.op = name, .M = 30, .H = 70, .KV = 6, .flags = GELU | RMS | TYPES, .factor = 2.5},           \
        {.op = name, .M = 512, .H = 128, .KV = 8, .flags = RMS | COUNTED},                             \
        {.op = name, .M = 512, .H = 128, .KV = 8, .flags = RMS | TYPES | COUNTED},                     \
        {.op = name, .M = 4096, .H = 128, .KV = 8, .flags = RMS | TYPES | PERF},                       \
    {                                                                                                  \
        .op = name, .M = 16384, .H = 128, .KV = 8, .flags = RMS | TYPES | GPU_PERF                     \
    }

/* P: 1 even, 2 all rows to one expert, 3 skewed. */
#define GROUPED_CASES(name, extra)                                                             \
    {.op = name, .M = 1, .N = 7, .K = 3, .H = 5, .flags = extra},                              \
        {.op = name, .M = 0, .N = 16, .K = 8, .H = 3, .flags = extra},                         \
        {.op = name, .M = 30, .N = 48, .K = 40, .H = 4, .flags = extra},                       \
        {.op = name, .M = 50, .N = 33, .K = 21, .H = 16, .pad = 7, .flags = (extra) | IN_OUT}, \
        {.op = name, .M = 300, .N = 136, .K = 72, .H = 3, .flags = (extra) | IN_OUT},          \
        {.op = name, .M = 200, .N = 144, .K = 136, .H = 6, .P = 3, .pad = 3, .flags = extra},  \
        {.op = name, .M = 450, .N = 40, .K = 24, .H = 4, .P = 2, .flags = extra},              \
        {.op = name, .M = 20, .N = 9, .K = 1100, .H = 2, .flags = (extra) | IN_OUT},           \
    {                                                                                          \
        .op = name, .M = 20, .N = 1100, .K = 9, .H = 2, .flags = extra                         \
    }
#define GROUPED_PERF(name)                                                                   \
    {.op = name, .M = 1024, .N = 512, .K = 1024, .H = 16, .P = 1, .flags = PERF},            \
        {.op = name, .M = 1024, .N = 512, .K = 1024, .H = 16, .P = 3, .flags = PERF},        \
        {.op = name, .M = 65536, .N = 1536, .K = 2048, .H = 128, .P = 1, .flags = GPU_PERF}, \
    {                                                                                        \
        .op = name, .M = 65536, .N = 1536, .K = 2048, .H = 128, .P = 3, .flags = GPU_PERF    \
    }
#define SINK_CASES(name, more)                                                                                     \
    {.op = name, .M = 0, .H = 2, .KV = 2, .D = 64, .flags = SINKS | (more)},                                       \
        {.op = name, .M = 1, .H = 1, .KV = 1, .D = 8, .lengths = {1}, .flags = SINKS | (more)},                    \
        {.op = name, .M = 17, .H = 7, .KV = 1, .D = 14, .gap = 3, .lengths = {17}, .flags = SINKS | (more)},       \
        {.op = name, .M = 20, .H = 6, .KV = 2, .D = 24, .gap = 8, .lengths = {1, 12, 7}, .flags = SINKS | (more)}, \
        {.op = name, .M = 9, .H = 3, .KV = 1, .D = 1, .lengths = {9}, .flags = SINKS | (more)},                    \
        {.op = name, .M = 300, .H = 19, .KV = 1, .D = 64, .lengths = {300}, .window = 9, .flags = SINKS | (more)}, \
        {.op = name, .M = 40, .H = 3, .KV = 1, .D = 320, .lengths = {40}, .flags = L2 | SINKS | (more)},           \
        {.op = name, .M = 130, .H = 8, .KV = 1, .D = 64, .lengths = {130}, .flags = EXTREME | SINKS | (more)},     \
        {.op = name, .M = 70, .H = 40, .KV = 1, .D = 128, .lengths = {70}, .flags = SINKS | COUNTED | (more)},     \
        {.op = name, .M = 2048, .H = 64, .KV = 8, .D = 64, .lengths = {2048}, .flags = SINKS | PERF | (more)},     \
    {                                                                                                              \
        .op = name, .M = 32768, .H = 64, .KV = 8, .D = 64, .lengths = {4096}, .flags = SINKS | GPU_PERF | (more)   \
    }

#define ATTENTION_CASES(name)                                                                                        \
    {.op = name, .M = 1, .H = 1, .KV = 1, .D = 8, .lengths = {1}},                                                   \
        {.op = name, .M = 17, .H = 7, .KV = 1, .D = 14, .lengths = {17}},                                            \
        {.op = name, .M = 20, .H = 4, .KV = 2, .D = 16, .lengths = {1, 12, 7}, .pad = 8},                            \
        {.op = name, .M = 100, .H = 2, .KV = 2, .D = 64, .lengths = {100}},                                          \
        {.op = name, .M = 150, .H = 4, .KV = 2, .D = 64, .lengths = {33, 1, 116}, .pad = 4},                         \
        {.op = name, .M = 70, .H = 2, .KV = 1, .D = 64, .lengths = {70}, .window = 12},                              \
        {.op = name, .M = 70, .H = 2, .KV = 1, .D = 8, .lengths = {40, 30}, .window = 1},                            \
        {.op = name, .M = 300, .H = 2, .KV = 1, .D = 128, .lengths = {300}, .window = 100},                          \
        {.op = name, .M = 290, .H = 1, .KV = 1, .D = 48, .lengths = {290}},                                          \
        {.op = name, .M = 200, .H = 6, .KV = 2, .D = 64, .lengths = {100, 100}, .pad = 8},                           \
        {.op = name, .M = 192, .H = 2, .KV = 1, .D = 128, .lengths = {96, 96}, .window = 50},                        \
        {.op = name, .M = 64, .H = 2, .KV = 2, .D = 8, .lengths = {32, 32}, .pad = 4},                               \
        {.op = name, .M = 90, .H = 2, .KV = 1, .D = 96, .lengths = {31, 59}},                                        \
        {.op = name, .M = 75, .H = 2, .KV = 1, .D = 160, .lengths = {75}, .window = 33},                             \
        {.op = name, .M = 130, .H = 2, .KV = 2, .D = 256, .lengths = {65, 65}, .pad = 8},                            \
        {.op = name, .M = 60, .H = 3, .KV = 1, .D = 250, .lengths = {13, 47}},                                       \
        {.op = name, .M = 75, .H = 4, .KV = 2, .D = 512, .lengths = {33, 1, 41}, .pad = 8, .window = 20},            \
        {.op = name, .M = 40, .H = 3, .KV = 1, .D = 320, .lengths = {40}, .cap = 2, .flags = L2},                    \
        {.op = name, .M = 36, .H = 2, .KV = 2, .D = 390, .lengths = {9, 27}, .pad = 1, .flags = BIDIRECTIONAL | L2}, \
        {.op = name, .M = 130, .H = 2, .KV = 1, .D = 64, .lengths = {130}, .flags = EXTREME},                        \
        {.op = name, .M = 17, .H = 7, .KV = 1, .D = 14, .lengths = {17}, .flags = L2},                               \
        {.op = name, .M = 150, .H = 4, .KV = 2, .D = 64, .lengths = {33, 1, 116}, .pad = 4, .flags = L2},            \
        {.op = name, .M = 75, .H = 2, .KV = 1, .D = 160, .lengths = {75}, .window = 33, .flags = L2},                \
        {.op = name, .M = 130, .H = 2, .KV = 2, .D = 128, .lengths = {65, 65}, .window = 50, .flags = L2},           \
        {.op = name, .M = 290, .H = 1, .KV = 1, .D = 48, .lengths = {290}, .flags = L2},                             \
        {.op = name, .M = 17, .H = 7, .KV = 1, .D = 14, .lengths = {17}, .flags = BIDIRECTIONAL},                    \
        {.op = name, .M = 150, .H = 4, .KV = 2, .D = 64, .lengths = {33, 1, 116}, .pad = 4, .flags = BIDIRECTIONAL}, \
        {.op = name, .M = 290, .H = 1, .KV = 1, .D = 48, .lengths = {290}, .flags = BIDIRECTIONAL},                  \
        {.op = name, .M = 130, .H = 2, .KV = 2, .D = 128, .lengths = {65, 65}, .flags = BIDIRECTIONAL | L2},         \
        {.op = name, .M = 75, .H = 2, .KV = 1, .D = 160, .lengths = {70, 5}, .flags = BIDIRECTIONAL | L2},           \
        {.op = name, .M = 130, .H = 2, .KV = 1, .D = 64, .lengths = {130}, .flags = BIDIRECTIONAL | EXTREME},        \
        {.op = name,                                                                                                 \
         .M = 1024,                                                                                                  \
         .H = 12,                                                                                                    \
         .KV = 12,                                                                                                   \
         .D = 64,                                                                                                    \
         .lengths = {256, 256, 256, 256},                                                                            \
         .flags = BIDIRECTIONAL | PERF},                                                                             \
        {.op = name, .M = 17, .H = 7, .KV = 1, .D = 14, .lengths = {17}, .cap = 2},                                  \
        {.op = name, .M = 100, .H = 4, .KV = 2, .D = 64, .lengths = {33, 1, 66}, .pad = 4, .cap = 1.5},              \
        {.op = name, .M = 130, .H = 2, .KV = 1, .D = 128, .lengths = {65, 65}, .window = 50, .cap = 3},              \
        {.op = name, .M = 60, .H = 2, .KV = 1, .D = 256, .lengths = {13, 47}, .cap = 50},                            \
        {.op = name, .M = 70, .H = 2, .KV = 1, .D = 64, .lengths = {70}, .cap = 20, .flags = EXTREME},               \
        {.op = name, .M = 75, .H = 2, .KV = 1, .D = 48, .lengths = {75}, .window = 33, .cap = 2, .flags = L2},       \
        {.op = name, .M = 70, .H = 2, .KV = 1, .D = 48, .lengths = {70}, .cap = 2, .flags = BIDIRECTIONAL},          \
        {.op = name,                                                                                                 \
         .M = 1024,                                                                                                  \
         .H = 12,                                                                                                    \
         .KV = 12,                                                                                                   \
         .D = 64,                                                                                                    \
         .lengths = {256, 256, 256, 256},                                                                            \
         .cap = 50,                                                                                                  \
         .flags = PERF},                                                                                             \
        {.op = name, .M = 1024, .H = 12, .KV = 12, .D = 64, .lengths = {256, 256, 256, 256}, .flags = L2 | PERF},    \
        {.op = name, .M = 1024, .H = 12, .KV = 12, .D = 64, .lengths = {256, 256, 256, 256}, .flags = PERF},         \
        {.op = name, .M = 256, .H = 12, .KV = 12, .D = 64, .lengths = {64, 64, 64, 64}, .flags = PERF},              \
        {.op = name,                                                                                                 \
         .M = 8192,                                                                                                  \
         .H = 12,                                                                                                    \
         .KV = 12,                                                                                                   \
         .D = 64,                                                                                                    \
         .lengths = {1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024},                                                \
         .flags = GPU_PERF},                                                                                         \
        {.op = name, .M = 8192, .H = 32, .KV = 8, .D = 128, .lengths = {4096, 4096}, .flags = GPU_PERF},             \
    {                                                                                                                \
        .op = name, .M = 2048, .H = 16, .KV = 4, .D = 128, .lengths = {2048}, .flags = PERF                          \
    }

const struct op_case op_cases[] = {
    {.op = "embedding_fwd", .M = 1, .N = 1, .K = 5, .P = 3},
    {.op = "embedding_fwd", .M = 3, .N = 7, .K = 258, .P = 16, .flags = WPE},
    {.op = "embedding_fwd", .M = 17, .N = 48, .K = 320, .P = 16, .flags = WPE},
    {.op = "embedding_fwd", .M = 17, .N = 48, .K = 320, .P = 20, .flags = WPE | TYPES},
    {.op = "embedding_fwd", .M = 3, .N = 7, .K = 258, .P = 16, .flags = WPE | TYPES, .factor = 1.5},
    {.op = "embedding_fwd", .M = 0, .N = 48, .K = 320, .P = 16},
    {.op = "embedding_fwd", .M = 700, .N = 16, .K = 50, .P = 700, .flags = WPE},
    {.op = "embedding_fwd", .M = 17, .N = 50, .K = 320, .P = 1, .factor = 12.5},
    {.op = "embedding_fwd", .M = 24, .N = 768, .K = 4001, .P = 4001, .flags = WPE | COUNTED},
    {.op = "embedding_fwd", .M = 1024, .N = 768, .K = 50304, .P = 1024, .flags = WPE | PERF},
    {.op = "embedding_fwd", .M = 16384, .N = 4096, .K = 128256, .P = 1, .flags = GPU_PERF},
    {.op = "embedding_fwd", .M = 65536, .N = 768, .K = 50304, .P = 1024, .flags = WPE | GPU_PERF},

    {.op = "embedding_bwd", .M = 1, .N = 1, .K = 5, .P = 3},
    {.op = "embedding_bwd", .M = 33, .N = 7, .K = 11, .P = 16, .flags = WPE},
    {.op = "embedding_bwd", .M = 170, .N = 136, .K = 9, .P = 5, .flags = WPE | ACCUMULATE},
    {.op = "embedding_bwd", .M = 70, .N = 5, .K = 1, .P = 1, .flags = WPE},        /* one long run of equal tokens */
    {.op = "embedding_bwd", .M = 70, .N = 264, .K = 2, .P = 40, .flags = WPE},     /* two runs */
    {.op = "embedding_bwd", .M = 2100, .N = 8, .K = 1100, .P = 513, .flags = WPE}, /* several blocks sort */
    {.op = "embedding_bwd", .M = 1100, .N = 3, .K = 262200, .P = 5, .flags = ACCUMULATE}, /* in three passes */
    {.op = "embedding_bwd", .M = 170, .N = 136, .K = 9, .P = 5, .flags = WPE | TYPES | ACCUMULATE},
    {.op = "embedding_bwd", .M = 70, .N = 5, .K = 9, .P = 40, .flags = WPE | TYPES},
    {.op = "embedding_bwd", .M = 0, .N = 48, .K = 20, .P = 16, .flags = WPE | TYPES},
    {.op = "embedding_bwd", .M = 170, .N = 50, .K = 9, .P = 1, .factor = 12.5},
    {.op = "embedding_bwd", .M = 70, .N = 5, .K = 1, .P = 1, .flags = WPE | PADDING}, /* nothing else */
    {.op = "embedding_bwd", .M = 300, .N = 264, .K = 3, .P = 40, .flags = WPE | PADDING},
    {.op = "embedding_bwd", .M = 170, .N = 136, .K = 9, .P = 5, .factor = 0.5, .flags = TYPES | ACCUMULATE | PADDING},
    {.op = "embedding_bwd", .M = 0, .N = 48, .K = 20, .P = 16, .flags = WPE},
    {.op = "embedding_bwd", .M = 0, .N = 48, .K = 20, .P = 16, .flags = WPE | ACCUMULATE},
    {.op = "embedding_bwd", .M = 512, .N = 768, .K = 4001, .P = 512, .flags = WPE | COUNTED},
    {.op = "embedding_bwd", .M = 512, .N = 768, .K = 4001, .P = 1, .flags = ACCUMULATE | COUNTED},
    {.op = "embedding_bwd", .M = 1024, .N = 768, .K = 50304, .P = 1024, .flags = WPE | ACCUMULATE | PERF},
    {.op = "embedding_bwd", .M = 16384, .N = 4096, .K = 128256, .P = 1, .flags = ACCUMULATE | GPU_PERF},
    {.op = "embedding_bwd", .M = 65536, .N = 768, .K = 50304, .P = 1024, .flags = WPE | ACCUMULATE | GPU_PERF},

    {.op = "norm_fwd", .M = 1, .N = 1, .flags = 0},
    {.op = "norm_fwd", .M = 3, .N = 7, .flags = RESIDUAL},
    {.op = "norm_fwd", .M = 17, .N = 48, .flags = RESIDUAL | IN_PLACE},
    {.op = "norm_fwd", .M = 17, .N = 56, .flags = RMS},
    {.op = "norm_fwd", .M = 200, .N = 136, .flags = RMS | RESIDUAL | IN_PLACE},
    {.op = "norm_fwd", .M = 41, .N = 1000, .flags = RESIDUAL},
    {.op = "norm_fwd", .M = 5, .N = 2051, .flags = RESIDUAL},
    {.op = "norm_fwd",
     .M = 3,
     .N = 16392,
     .flags = RESIDUAL | IN_PLACE}, /* a row is longer than the threads of a block hold */
    {.op = "norm_fwd", .M = 3, .N = 2300, .flags = RMS},
    {.op = "norm_fwd", .M = 17, .N = 72, .flags = RMS | RESIDUAL | IN_PLACE, .factor = 0.22},
    {.op = "norm_fwd", .M = 17, .N = 75, .flags = RMS | RESIDUAL, .offset = 1},
    {.op = "norm_fwd", .M = 3, .N = 16392, .flags = RMS, .offset = 1},
    {.op = "norm_fwd", .M = 0, .N = 56, .flags = RMS},
    {.op = "norm_fwd", .M = 80, .N = 768, .flags = RESIDUAL | COUNTED},
    {.op = "norm_fwd", .M = 40, .N = 4096, .flags = RMS | RESIDUAL | COUNTED},
    {.op = "norm_fwd", .M = 80, .N = 1600, .flags = COUNTED},
    {.op = "norm_fwd", .M = 24, .N = 16392, .flags = RMS | COUNTED | READS_AGAIN},
    {.op = "norm_fwd", .M = 1024, .N = 768, .flags = RESIDUAL | PERF},
    {.op = "norm_fwd", .M = 65536, .N = 768, .flags = RESIDUAL | GPU_PERF},
    {.op = "norm_fwd", .M = 16384, .N = 4096, .flags = RMS | RESIDUAL | GPU_PERF},

    {.op = "norm_bwd", .M = 1, .N = 2, .flags = 0},
    {.op = "norm_bwd", .M = 3, .N = 7, .flags = RESIDUAL},
    {.op = "norm_bwd", .M = 17, .N = 48, .flags = RESIDUAL | IN_PLACE | ACCUMULATE},
    {.op = "norm_bwd", .M = 17, .N = 56, .flags = RMS},
    {.op = "norm_bwd", .M = 203, .N = 136, .flags = RMS | RESIDUAL | IN_PLACE | ACCUMULATE},
    {.op = "norm_bwd", .M = 203, .N = 136, .flags = RESIDUAL},
    {.op = "norm_bwd", .M = 41, .N = 1000, .flags = RESIDUAL | IN_PLACE},
    {.op = "norm_bwd", .M = 530, .N = 1032, .flags = RMS | RESIDUAL}, /* blocks of several rows, one after the other */
    {.op = "norm_bwd", .M = 5, .N = 1030, .flags = RESIDUAL | ACCUMULATE},
    {.op = "norm_bwd",
     .M = 3,
     .N = 8200,
     .flags = RESIDUAL | IN_PLACE | ACCUMULATE}, /* longer than what threads hold */
    {.op = "norm_bwd", .M = 3, .N = 2051, .flags = RMS},
    {.op = "norm_bwd", .M = 33, .N = 75, .flags = RMS | RESIDUAL | IN_PLACE, .offset = 1},
    {.op = "norm_bwd", .M = 3, .N = 8200, .flags = RMS | ACCUMULATE, .offset = 1},
    {.op = "norm_bwd", .M = 1, .N = 2, .flags = BIAS},
    {.op = "norm_bwd", .M = 17, .N = 56, .flags = BIAS | RMS},
    {.op = "norm_bwd", .M = 203, .N = 136, .flags = BIAS | RESIDUAL | IN_PLACE | ACCUMULATE},
    {.op = "norm_bwd", .M = 33, .N = 75, .flags = BIAS | RMS | RESIDUAL | IN_PLACE, .offset = 1},
    {.op = "norm_bwd", .M = 530, .N = 1032, .flags = BIAS | RESIDUAL | IN_PLACE},
    {.op = "norm_bwd", .M = 5, .N = 1030, .flags = BIAS | RESIDUAL | ACCUMULATE},
    {.op = "norm_bwd", .M = 7, .N = 3200, .flags = BIAS | RESIDUAL}, /* two vectors of a row in a thread */
    {.op = "norm_bwd", .M = 3, .N = 8200, .flags = BIAS | RESIDUAL | IN_PLACE | ACCUMULATE},
    {.op = "norm_bwd", .M = 0, .N = 56, .flags = BIAS | RESIDUAL},
    {.op = "norm_bwd", .M = 0, .N = 56, .flags = RESIDUAL},
    {.op = "norm_bwd", .M = 0, .N = 56, .flags = RMS | ACCUMULATE},
    {.op = "norm_bwd", .M = 1024, .N = 768, .flags = RESIDUAL | IN_PLACE | PERF},
    {.op = "norm_bwd", .M = 1024, .N = 768, .flags = RMS | RESIDUAL | IN_PLACE | COUNTED},
    {.op = "norm_bwd", .M = 1024, .N = 768, .flags = BIAS | RESIDUAL | IN_PLACE | COUNTED},
    {.op = "norm_bwd", .M = 520, .N = 2048, .flags = RMS | RESIDUAL | IN_PLACE | COUNTED},
    {.op = "norm_bwd", .M = 560, .N = 1600, .flags = BIAS | RESIDUAL | IN_PLACE | COUNTED},
    /* two vectors of a row in a thread */
    {.op = "norm_bwd", .M = 260, .N = 4104, .flags = RMS | RESIDUAL | IN_PLACE | COUNTED | FP32_READS_AGAIN},
    {.op = "norm_bwd", .M = 560, .N = 3104, .flags = BIAS | RESIDUAL | IN_PLACE | COUNTED | FP32_READS_AGAIN},
    {.op = "norm_bwd", .M = 65536, .N = 768, .flags = RESIDUAL | IN_PLACE | GPU_PERF},
    {.op = "norm_bwd", .M = 16384, .N = 1600, .flags = RESIDUAL | IN_PLACE | GPU_PERF},
    {.op = "norm_bwd", .M = 32768, .N = 896, .flags = RMS | RESIDUAL | IN_PLACE | GPU_PERF},
    {.op = "norm_bwd", .M = 16384, .N = 4096, .flags = RMS | RESIDUAL | IN_PLACE | GPU_PERF},

    LINEAR_CASES("linear_fwd", 0),
    LINEAR_CASES("linear_fwd", BIAS),
    LINEAR_CASES("linear_fwd", BIAS | GELU),
    LINEAR_CASES("linear_fwd", BIAS | GELU | ERF),
    {.op = "linear_fwd", .M = 17, .N = 56, .K = 48, .flags = GELU | ERF},
    LINEAR_CASES("linear_fwd", WIDE_OUT),
    LINEAR_CASES("linear_fwd", ADDED),
    LINEAR_CASES("linear_fwd", ADDED | BIAS),
    LINEAR_CASES("linear_fwd", ADDED | BIAS | GELU),
    LINEAR_CASES("linear_fwd", ADDED | BIAS | GELU | ERF),
    {.op = "linear_fwd", .M = 17, .N = 56, .K = 48, .flags = ADDED | GELU},
    {.op = "linear_fwd", .M = 17, .N = 56, .K = 48, .pad = 8, .flags = ADDED | WIDE_OUT | BIAS},
    {.op = "linear_fwd", .M = 130, .N = 8, .K = 300},
    {.op = "linear_fwd", .M = 70, .N = 5, .K = 1100, .pad = 11},
    {.op = "linear_fwd", .M = 130, .N = 300, .K = 8, .pad = 20, .gap = 16, .flags = ADDED},
    {.op = "linear_fwd", .M = 33, .N = 40, .K = 5, .gap = 7, .flags = ADDED | WIDE_OUT},
    {.op = "linear_fwd", .M = 1, .N = 300, .K = 5, .pad = 20, .flags = ADDED},
    {.op = "linear_fwd", .M = 1, .N = 97, .K = 24, .pad = 31, .flags = ADDED | IN_OUT | BIAS | GELU},
    {.op = "linear_fwd", .M = 1, .N = 1100, .K = 133},
    {.op = "linear_fwd", .M = 1, .N = 2051, .K = 43, .pad = 5, .flags = IN_OUT | BIAS | GELU},
    {.op = "linear_fwd", .M = 1, .N = 97, .K = 24, .pad = 31, .flags = WIDE_OUT},
    {.op = "linear_fwd", .M = 1, .N = 72, .K = 24, .flags = IN_OUT | BIAS},
    {.op = "linear_fwd", .M = 1, .N = 50304, .K = 768, .flags = PERF},
    {.op = "linear_fwd", .M = 1, .N = 3072, .K = 768, .flags = IN_OUT | BIAS | GELU | PERF},
    {.op = "linear_fwd", .M = 5, .N = 50304, .K = 16},
    {.op = "linear_fwd", .M = 100, .N = 300, .K = 4500}, /* few rows, several blocks of k and of columns */
    {.op = "linear_fwd", .M = 1100, .N = 70, .K = 2500}, /* the same with two blocks of rows */
    {.op = "linear_fwd", .M = 17, .N = 112, .K = 48, .flags = GATED},
    {.op = "linear_fwd", .M = 1, .N = 46, .K = 24, .flags = GATED},
    {.op = "linear_fwd", .M = 70, .N = 256, .K = 133, .flags = GATED | BIAS},
    {.op = "linear_fwd", .M = 33, .N = 64, .K = 72, .flags = GATED | GELU | IN_OUT},
    {.op = "linear_fwd", .M = 0, .N = 112, .K = 48, .flags = GATED},
    {.op = "linear_fwd", .M = 17, .N = 56, .K = 48, .pad = 8, .flags = WIDE_OUT | BIAS},
    {.op = "linear_fwd", .M = 200, .N = 768, .K = 16, .flags = BIAS | COUNTED},
    {.op = "linear_fwd", .M = 200, .N = 768, .K = 16, .flags = BIAS | WIDE_OUT | COUNTED},
    {.op = "linear_fwd", .M = 200, .N = 768, .K = 16, .flags = BIAS | GELU | COUNTED},
    {.op = "linear_fwd", .M = 200, .N = 768, .K = 16, .flags = BIAS | GELU | ERF | COUNTED},
    {.op = "linear_fwd", .M = 200, .N = 766, .K = 16, .flags = BIAS | GELU | COUNTED},
    LINEAR_PERF("linear_fwd", 0),
    ADAPTER_PERF("linear_fwd", 0),
    ADAPTER_PERF("linear_fwd", ADDED),
    {.op = "linear_fwd", .M = 1024, .N = 512, .K = 1024, .flags = PERF}, /* of as many FLOPs as the experts' */
    {.op = "linear_fwd", .M = 1024, .N = 3072, .K = 768, .flags = BIAS | GELU | IN_OUT | PERF},
    {.op = "linear_fwd", .M = 16384, .N = 3072, .K = 768, .flags = BIAS | GELU | IN_OUT | GPU_PERF},

    LINEAR_CASES("linear_bwd_input", 0),
    LINEAR_CASES("linear_bwd_input", ADDED),
    LINEAR_CASES("linear_bwd_input", ADDED | BIAS | ACCUMULATE),
    LINEAR_CASES("linear_bwd_input", ADDED | GELU),
    LINEAR_CASES("linear_bwd_input", ADDED | GELU | ERF | BIAS),
    LINEAR_CASES("linear_bwd_input", GELU),
    LINEAR_CASES("linear_bwd_input", GELU | ERF),
    LINEAR_CASES("linear_bwd_input", BIAS | GELU),
    LINEAR_CASES("linear_bwd_input", BIAS | GELU | ERF | ACCUMULATE),
    {.op = "linear_bwd_input", .M = 17, .N = 56, .K = 48, .flags = BIAS},
    {.op = "linear_bwd_input", .M = 5, .N = 50304, .K = 16},
    {.op = "linear_bwd_input", .M = 200, .N = 16, .K = 768, .flags = GELU | COUNTED},
    {.op = "linear_bwd_input", .M = 200, .N = 16, .K = 768, .flags = GELU | ERF | COUNTED},
    {.op = "linear_bwd_input", .M = 1000, .N = 16, .K = 768, .flags = GELU | BIAS | COUNTED},
    {.op = "linear_bwd_input", .M = 1000, .N = 16, .K = 768, .flags = BIAS | COUNTED},
    {.op = "linear_bwd_input", .M = 17, .N = 48, .K = 56, .flags = GATED | IN_PLACE},
    {.op = "linear_bwd_input", .M = 1, .N = 24, .K = 23, .flags = GATED | IN_PLACE},
    {.op = "linear_bwd_input", .M = 33, .N = 72, .K = 32, .flags = GATED | GELU | IN_OUT | IN_PLACE},
    {.op = "linear_bwd_input", .M = 0, .N = 48, .K = 56, .flags = GATED | IN_PLACE},
    {.op = "linear_bwd_input", .M = 130, .N = 8, .K = 300, .pad = 16, .gap = 44, .flags = ADDED | IN_OUT},
    {.op = "linear_bwd_input", .M = 70, .N = 5, .K = 133, .pad = 6, .gap = 7, .flags = ADDED | IN_OUT},
    {.op = "linear_bwd_input", .M = 1, .N = 5, .K = 133, .gap = 7, .flags = ADDED | IN_OUT},
    {.op = "linear_bwd_input", .M = 0, .N = 5, .K = 133, .gap = 7, .flags = ADDED | IN_OUT},
    {.op = "linear_bwd_input", .M = 130, .N = 300, .K = 8, .pad = 40, .gap = 16, .flags = IN_OUT},
    {.op = "linear_bwd_input", .M = 70, .N = 1100, .K = 5, .gap = 3},
    {.op = "linear_bwd_input", .M = 130, .N = 65, .K = 136, .gap = 24, .flags = BIAS},
    {.op = "linear_bwd_input", .M = 130, .N = 65, .K = 133, .gap = 3, .flags = ADDED | BIAS | ACCUMULATE},
    LINEAR_PERF("linear_bwd_input", 0),
    ADAPTER_PERF("linear_bwd_input", 0),
    ADAPTER_PERF("linear_bwd_input", ADDED | IN_OUT),
    {.op = "linear_bwd_input", .M = 1024, .N = 768, .K = 3072, .flags = GELU | IN_OUT | PERF},
    {.op = "linear_bwd_input", .M = 16384, .N = 768, .K = 3072, .flags = GELU | IN_OUT | GPU_PERF},

    LINEAR_CASES("linear_bwd_weight", 0),
    LINEAR_CASES("linear_bwd_weight", BIAS),
    LINEAR_CASES("linear_bwd_weight", BIAS | ACCUMULATE),
    LINEAR_CASES("linear_bwd_weight", NARROW),
    LINEAR_CASES("linear_bwd_weight", NARROW | BIAS | ACCUMULATE),
    {.op = "linear_bwd_weight", .M = 0, .N = 21, .K = 5, .flags = NARROW | BIAS | ACCUMULATE},
    {.op = "linear_bwd_weight", .M = 150, .N = 72, .K = 16, .H = 24, .KV = 24, .flags = BIAS | IN_OUT},
    {.op = "linear_bwd_weight", .M = 150, .N = 72, .K = 16, .pad = 8, .H = 24, .KV = 24, .flags = BIAS | ACCUMULATE},
    {.op = "linear_bwd_weight", .M = 9, .N = 21, .K = 5, .H = 11, .KV = 5, .flags = BIAS}, /* no whole vectors */
    {.op = "linear_bwd_weight", .M = 0, .N = 21, .K = 5, .H = 11, .KV = 5, .flags = BIAS},
    {.op = "linear_bwd_weight", .M = 5, .N = 50304, .K = 16},
    {.op = "linear_bwd_weight", .M = 150, .N = 72, .K = 8, .gap = 16},
    {.op = "linear_bwd_weight", .M = 1100, .N = 300, .K = 8, .pad = 4, .gap = 8, .flags = ACCUMULATE},
    {.op = "linear_bwd_weight", .M = 70, .N = 33, .K = 5, .pad = 4, .gap = 3, .flags = IN_OUT | BIAS},
    {.op = "linear_bwd_weight", .M = 130, .N = 300, .K = 8, .gap = 24, .flags = NARROW | ACCUMULATE},
    {.op = "linear_bwd_weight", .M = 600, .N = 5, .K = 300, .pad = 11},
    LINEAR_PERF("linear_bwd_weight", ACCUMULATE),
    ADAPTER_PERF("linear_bwd_weight", 0),
    LINEAR_PERF("linear_bwd_weight", BIAS),

    {.op = "head_norm_fwd", .M = 1, .H = 1, .D = 8},
    {.op = "head_norm_fwd", .M = 17, .H = 7, .D = 14, .pad = 10},
    {.op = "head_norm_fwd", .M = 130, .H = 2, .D = 128},
    {.op = "head_norm_fwd", .M = 70, .H = 3, .D = 256, .pad = 16},
    {.op = "head_norm_fwd", .M = 17, .H = 3, .D = 24, .pad = 8, .offset = 1},
    {.op = "head_norm_fwd", .M = 0, .H = 2, .D = 64},
    {.op = "head_norm_fwd", .M = 17, .H = 7, .D = 14, .pad = 10, .flags = GATED},
    {.op = "head_norm_fwd", .M = 70, .H = 4, .D = 128, .flags = GATED},
    {.op = "head_norm_fwd", .M = 70, .H = 8, .D = 128, .flags = COUNTED},
    {.op = "head_norm_fwd", .M = 17, .H = 3, .D = 32, .P = 40, .offset = 1}, /* turned */
    {.op = "head_norm_fwd", .M = 70, .H = 5, .D = 128, .P = 40, .pad = 16},
    {.op = "head_norm_fwd", .M = 30, .H = 2, .D = 512, .P = 40},
    {.op = "head_norm_fwd", .M = 17, .H = 7, .D = 14, .P = 40, .pad = 10},
    {.op = "head_norm_fwd", .M = 17, .H = 4, .D = 64, .N = 48, .P = 40},
    {.op = "head_norm_fwd", .M = 17, .H = 4, .D = 128, .P = 40, .flags = PAIRS},
    {.op = "head_norm_fwd", .M = 70, .H = 8, .D = 128, .P = 40, .flags = COUNTED},
    {.op = "head_norm_fwd", .M = 16384, .H = 32, .D = 128, .P = 4096, .flags = GPU_PERF},
    {.op = "head_norm_fwd", .M = 1024, .H = 16, .D = 64, .flags = PERF},
    {.op = "head_norm_fwd", .M = 2048, .H = 16, .D = 128, .flags = PERF | GATED},
    {.op = "head_norm_fwd", .M = 16384, .H = 32, .D = 128, .flags = GPU_PERF},

    {.op = "head_norm_bwd", .M = 1, .H = 1, .D = 8},
    {.op = "head_norm_bwd", .M = 17, .H = 7, .D = 14, .pad = 10, .flags = ACCUMULATE},
    {.op = "head_norm_bwd", .M = 130, .H = 2, .D = 128, .flags = IN_PLACE},
    {.op = "head_norm_bwd", .M = 70, .H = 3, .D = 256, .pad = 16, .flags = ACCUMULATE},
    {.op = "head_norm_bwd", .M = 17, .H = 3, .D = 24, .flags = IN_PLACE, .offset = 1},
    {.op = "head_norm_bwd", .M = 0, .H = 2, .D = 64},
    {.op = "head_norm_bwd", .M = 17, .H = 7, .D = 14, .pad = 10, .flags = GATED | ACCUMULATE},
    {.op = "head_norm_bwd", .M = 17, .H = 2, .D = 14, .pad = 10, .flags = ADDED},
    {.op = "head_norm_bwd", .M = 70, .H = 2, .D = 512, .flags = ADDED | IN_PLACE},
    {.op = "head_norm_bwd", .M = 70, .H = 4, .D = 128, .flags = GATED | IN_PLACE},
    {.op = "head_norm_bwd", .M = 1024, .H = 8, .D = 128, .flags = IN_PLACE | COUNTED},
    {.op = "head_norm_bwd", .M = 1024, .H = 16, .D = 64, .flags = PERF},
    {.op = "head_norm_bwd", .M = 2048, .H = 16, .D = 128, .flags = PERF | GATED},
    {.op = "head_norm_bwd", .M = 16384, .H = 32, .D = 128, .flags = GPU_PERF},

    {.op = "rope", .M = 1, .H = 1, .D = 8, .P = 4},
    {.op = "rope", .M = 17, .H = 7, .D = 14, .P = 20, .pad = 10},
    {.op = "rope", .M = 17, .H = 7, .D = 14, .P = 20, .pad = 10, .flags = INVERSE},
    {.op = "rope", .M = 130, .H = 2, .D = 128, .P = 200, .flags = INVERSE},
    {.op = "rope", .M = 30, .H = 70, .D = 24, .P = 40, .pad = 8},
    {.op = "rope", .M = 9, .H = 3, .D = 256, .P = 10, .pad = 16},
    {.op = "rope", .M = 17, .H = 3, .D = 96, .K = 72, .P = 20, .pad = 16}, /* part of a head */
    {.op = "rope", .M = 17, .H = 3, .D = 14, .K = 6, .P = 20, .flags = INVERSE},
    {.op = "rope", .M = 17, .H = 3, .D = 14, .K = 6, .P = 20, .flags = PAIRS},
    {.op = "rope", .M = 17, .H = 7, .D = 50, .P = 20, .pad = 10, .flags = PAIRS | INVERSE},
    {.op = "rope", .M = 30, .H = 9, .D = 128, .K = 64, .P = 40, .flags = PAIRS},
    {.op = "rope", .M = 9, .H = 3, .D = 256, .P = 10, .pad = 16, .flags = PAIRS | INVERSE},
    {.op = "rope", .M = 0, .H = 2, .D = 64, .P = 20},
    {.op = "rope", .M = 70, .H = 40, .D = 128, .P = 4, .flags = COUNTED},
    {.op = "rope", .M = 200, .H = 14, .D = 64, .P = 4, .flags = INVERSE | COUNTED},
    {.op = "rope", .M = 1024, .H = 16, .D = 64, .P = 1024, .flags = PERF},
    {.op = "rope", .M = 16384, .H = 32, .D = 128, .P = 4096, .flags = GPU_PERF},
    {.op = "rope", .M = 32768, .H = 16, .D = 64, .P = 1024, .flags = GPU_PERF},

    {.op = "swap_heads", .M = 0, .H = 2, .N = 3, .D = 8},
    {.op = "swap_heads", .M = 5, .H = 7, .N = 3, .D = 5},
    {.op = "swap_heads", .M = 130, .H = 3, .N = 12, .D = 64},
    {.op = "swap_heads", .M = 7, .H = 4, .N = 2, .D = 10, .pad = 14},
    {.op = "swap_heads", .M = 33, .H = 2, .N = 4, .D = 32, .pad = 64},
    {.op = "gate_fwd", .M = 0, .N = 8},
    {.op = "gate_fwd", .M = 3, .N = 13, .pad = 4},
    {.op = "gate_fwd", .M = 130, .N = 128, .pad = 64},
    {.op = "gate_fwd", .M = 3, .N = 13, .pad = 4, .flags = GELU},
    {.op = "gate_fwd", .M = 130, .N = 128, .pad = 256, .flags = GELU},
    {.op = "gate_fwd", .M = 1024, .N = 2048, .pad = 2048, .flags = PERF},
    {.op = "gate_bwd", .M = 0, .N = 8},
    {.op = "gate_bwd", .M = 3, .N = 13, .pad = 4},
    {.op = "gate_bwd", .M = 130, .N = 128, .pad = 64, .flags = IN_PLACE},
    {.op = "gate_bwd", .M = 3, .N = 13, .pad = 4, .flags = GELU},
    {.op = "gate_bwd", .M = 130, .N = 128, .pad = 256, .flags = GELU},
    {.op = "gate_bwd", .M = 130, .N = 128, .flags = GELU | IN_PLACE},
    {.op = "gate_bwd", .M = 1024, .N = 2048, .pad = 2048, .flags = PERF},
    {.op = "swap_heads", .M = 1024, .H = 12, .N = 3, .D = 64, .flags = PERF},
    {.op = "swap_heads", .M = 16384, .H = 16, .N = 3, .D = 128, .flags = GPU_PERF},

    ATTENTION_CASES("attention_fwd"),
    ATTENTION_CASES("attention_bwd"),
    {.op = "attention_bwd", .M = 20, .H = 4, .KV = 2, .D = 16, .lengths = {1, 12, 7}, .pad = 8, .flags = SINKS},
    {.op = "attention_bwd", .M = 150, .H = 4, .KV = 2, .D = 64, .lengths = {33, 117}, .window = 40, .flags = SINKS},
    {.op = "attention_bwd", .M = 97, .H = 2, .KV = 1, .D = 64, .lengths = {97}, .flags = EXTREME | SINKS},
    {.op = "attention_bwd", .M = 17, .H = 7, .KV = 1, .D = 14, .lengths = {17}, .flags = L2 | SINKS},
    SINK_CASES("attention_sink_fwd", 0),
    SINK_CASES("attention_sink_bwd", 0),
    SINK_CASES("attention_sink_bwd", ACCUMULATE),

    {.op = "attention_decode", .M = 1, .P = 0, .K = 1, .H = 1, .KV = 1, .D = 8},
    {.op = "attention_decode", .M = 1, .P = 16, .K = 20, .H = 7, .KV = 1, .D = 14},
    {.op = "attention_decode", .M = 3, .P = 9, .K = 12, .H = 4, .KV = 2, .D = 16, .pad = 8},
    {.op = "attention_decode", .M = 1, .P = 600, .K = 640, .H = 2, .KV = 2, .D = 64},
    {.op = "attention_decode", .M = 2, .P = 1100, .K = 1200, .H = 2, .KV = 1, .D = 48},
    {.op = "attention_decode", .M = 1, .P = 70, .K = 71, .H = 2, .KV = 1, .D = 64, .window = 12},
    {.op = "attention_decode", .M = 5, .P = 3, .K = 30, .H = 2, .KV = 1, .D = 8, .window = 4},
    {.op = "attention_decode", .M = 2, .P = 40, .K = 50, .H = 2, .KV = 1, .D = 8, .window = 1},
    {.op = "attention_decode", .M = 1, .P = 130, .K = 140, .H = 6, .KV = 2, .D = 128, .pad = 4},
    {.op = "attention_decode", .M = 1, .P = 75, .K = 80, .H = 2, .KV = 2, .D = 256},
    {.op = "attention_decode", .M = 2, .P = 30, .K = 40, .H = 3, .KV = 1, .D = 250},
    {.op = "attention_decode", .M = 1, .P = 75, .K = 80, .H = 4, .KV = 2, .D = 512, .window = 50},
    {.op = "attention_decode", .M = 2, .P = 30, .K = 40, .H = 3, .KV = 1, .D = 320},
    {.op = "attention_decode", .M = 1, .P = 90, .K = 100, .H = 2, .KV = 1, .D = 96, .cap = 2},
    {.op = "attention_decode", .M = 4, .P = 33, .K = 50, .H = 4, .KV = 2, .D = 64, .window = 20, .cap = 1.5},
    {.op = "attention_decode", .M = 1, .P = 130, .K = 140, .H = 2, .KV = 1, .D = 64, .flags = EXTREME},
    {.op = "attention_decode", .M = 17, .P = 0, .K = 20, .H = 4, .KV = 2, .D = 16, .pad = 8, .flags = LOSS_ONLY},
    {.op = "attention_decode", .M = 3, .P = 5, .K = 20, .H = 4, .KV = 2, .D = 14, .flags = LOSS_ONLY},
    {.op = "attention_decode", .M = 1, .P = 0, .K = 1, .H = 1, .KV = 1, .D = 8, .flags = SINKS},
    {.op = "attention_decode", .M = 3, .P = 9, .K = 12, .H = 4, .KV = 2, .D = 14, .pad = 8, .flags = SINKS},
    {.op = "attention_decode", .M = 2, .P = 1100, .K = 1200, .H = 8, .KV = 1, .D = 64, .flags = SINKS},
    {.op = "attention_decode",
     .M = 4,
     .P = 33,
     .K = 50,
     .H = 4,
     .KV = 2,
     .D = 64,
     .window = 20,
     .cap = 1.5,
     .flags = SINKS},
    {.op = "attention_decode", .M = 2, .P = 30, .K = 40, .H = 3, .KV = 1, .D = 320, .flags = SINKS},
    {.op = "attention_decode", .M = 1, .P = 130, .K = 140, .H = 8, .KV = 1, .D = 64, .flags = EXTREME | SINKS},
    {.op = "attention_decode", .M = 0, .P = 5, .K = 20, .H = 4, .KV = 2, .D = 16},
    {.op = "attention_decode", .M = 1, .P = 1023, .K = 1024, .H = 12, .KV = 12, .D = 64, .flags = PERF},
    {.op = "attention_decode", .M = 1, .P = 8191, .K = 8192, .H = 32, .KV = 8, .D = 128, .flags = PERF},
    {.op = "attention_decode", .M = 1, .P = 32767, .K = 32768, .H = 32, .KV = 8, .D = 128, .flags = GPU_PERF},

    {.op = "dropout", .M = 0, .N = 40, .flags = L2},
    {.op = "dropout", .M = 1, .N = 1, .flags = L2},
    {.op = "dropout", .M = 17, .N = 43, .flags = L2},
    {.op = "dropout", .M = 70, .N = 768, .flags = L2 | IN_PLACE},
    {.op = "dropout", .M = 3, .N = 64, .flags = L2},
    {.op = "dropout", .M = 40, .N = 768, .flags = L2 | COUNTED},
    {.op = "dropout", .M = 8192, .N = 768, .flags = L2 | IN_PLACE | PERF},

    {.op = "causal_conv_fwd", .M = 1, .N = 1, .K = 1, .lengths = {1}},
    {.op = "causal_conv_fwd", .M = 1, .N = 40, .K = 4, .lengths = {1}, .flags = RESIDUAL}, /* one more token */
    {.op = "causal_conv_fwd", .M = 9, .N = 37, .K = 4, .pad = 3, .lengths = {1, 2, 6}, .flags = RESIDUAL},
    {.op = "causal_conv_fwd", .M = 75, .N = 64, .K = 2, .lengths = {75}, .flags = RESIDUAL},
    {.op = "causal_conv_fwd", .M = 263, .N = 80, .K = 4, .pad = 16, .lengths = {1, 63, 1, 2, 66, 130}},
    {.op = "causal_conv_fwd", .M = 70, .N = 33, .K = 3, .lengths = {31, 1, 38}},
    {.op = "causal_conv_fwd", .M = 0, .N = 8, .K = 4},
    {.op = "causal_conv_fwd", .M = 2048, .N = 6144, .K = 4, .lengths = {2048}, .flags = PERF},
    {.op = "causal_conv_fwd", .M = 8192, .N = 6144, .K = 4, .lengths = {4096, 4096}, .flags = GPU_PERF},

    {.op = "causal_conv_bwd", .M = 1, .N = 1, .K = 1, .lengths = {1}},
    {.op = "causal_conv_bwd", .M = 9, .N = 37, .K = 4, .lengths = {1, 2, 6}},
    {.op = "causal_conv_bwd", .M = 75, .N = 64, .K = 2, .lengths = {75}, .flags = ACCUMULATE},
    {.op = "causal_conv_bwd", .M = 263, .N = 80, .K = 4, .pad = 16, .lengths = {1, 63, 1, 2, 66, 130}},
    {.op = "causal_conv_bwd", .M = 70, .N = 33, .K = 3, .lengths = {31, 1, 38}},
    {.op = "causal_conv_bwd", .M = 0, .N = 8, .K = 4},
    {.op = "causal_conv_bwd", .M = 2048, .N = 6144, .K = 4, .lengths = {2048}, .flags = PERF},
    {.op = "causal_conv_bwd", .M = 8192, .N = 6144, .K = 4, .lengths = {4096, 4096}, .flags = GPU_PERF},

    DELTA_CASES("delta_rule_fwd"),
    {.op = "delta_rule_fwd", .M = 1, .H = 4, .KV = 2, .D = 16, .P = 24, .lengths = {1}, .flags = RESIDUAL}, /* one token
                                                                                                             */
    {.op = "delta_rule_fwd", .M = 576, .H = 4, .KV = 2, .D = 6, .P = 5, .lengths = {72, 72, 72, 72, 72, 72, 72, 72}},
    {.op = "delta_rule_fwd", .M = 75, .H = 2, .KV = 1, .D = 5, .P = 7, .lengths = {66, 9}, .flags = RESIDUAL},
    DELTA_CASES("delta_rule_bwd"),
    {.op = "delta_rule_bwd",
     .M = 75,
     .H = 2,
     .KV = 1,
     .D = 5,
     .P = 7,
     .pad = 1,
     .lengths = {66, 9},
     .flags = ACCUMULATE},

    {.op = "swiglu_fwd", .M = 1, .N = 1},
    {.op = "swiglu_fwd", .M = 17, .N = 56},
    {.op = "swiglu_fwd", .M = 70, .N = 258, .flags = EXTREME},
    {.op = "swiglu_fwd", .M = 17, .N = 59, .flags = GELU},
    {.op = "swiglu_fwd", .M = 70, .N = 256, .flags = GELU | EXTREME},
    {.op = "swiglu_fwd", .M = 17, .N = 56, .flags = BIAS},          /* with a limit */
    {.op = "swiglu_fwd", .M = 70, .N = 59, .flags = BIAS | HALVES}, /* interleaved */
    {.op = "swiglu_fwd", .M = 5, .N = 256, .flags = BIAS | HALVES | EXTREME},
    {.op = "swiglu_fwd", .M = 0, .N = 56},
    {.op = "swiglu_fwd", .M = 17, .N = 56, .pad = 6},
    {.op = "swiglu_fwd", .M = 17, .N = 56, .pad = 6, .flags = BIAS | HALVES},
    {.op = "swiglu_fwd", .M = 17, .N = 1408, .flags = COUNTED},
    {.op = "swiglu_fwd", .M = 1024, .N = 2048, .flags = PERF},
    {.op = "swiglu_fwd", .M = 8192, .N = 14336, .flags = GPU_PERF},

    {.op = "swiglu_bwd", .M = 1, .N = 1},
    {.op = "swiglu_bwd", .M = 17, .N = 56, .flags = IN_PLACE},
    {.op = "swiglu_bwd", .M = 70, .N = 258},
    {.op = "swiglu_bwd", .M = 17, .N = 59, .flags = GELU | IN_PLACE},
    {.op = "swiglu_bwd", .M = 70, .N = 256, .flags = GELU},
    {.op = "swiglu_bwd", .M = 0, .N = 56},
    {.op = "swiglu_bwd", .M = 17, .N = 1408, .flags = IN_PLACE | COUNTED},
    {.op = "swiglu_bwd", .M = 1024, .N = 2048, .flags = PERF},
    {.op = "swiglu_bwd", .M = 8192, .N = 14336, .flags = GPU_PERF},

    ROUTE_CASES("route"),
    {.op = "route", .M = 20, .H = 64, .KV = 6, .flags = IN_PLACE}, /* equal logits */
    {.op = "route", .M = 20, .H = 100, .KV = 6, .flags = IN_PLACE | RMS | TYPES},
    {.op = "route", .M = 30, .H = 40, .KV = 4, .flags = GELU | BIAS, .factor = 2.5},
    {.op = "route", .M = 30, .H = 256, .KV = 8, .P = 8, .D = 4, .flags = GELU | RMS | BIAS, .factor = 2.5},
    {.op = "route", .M = 30, .H = 48, .KV = 5, .P = 4, .D = 2, .flags = BIAS | TYPES},
    {.op = "route", .M = 20, .H = 128, .KV = 8, .flags = EXTREME | RMS},
    ROUTE_CASES("route_bwd"),

    {.op = "sum_experts", .H = 1},
    {.op = "sum_experts", .H = 300, .factor = 0.5},
    {.op = "sum_experts", .H = 512, .flags = COUNTED},
    {.op = "permute_experts", .M = 1, .H = 1, .KV = 1},
    {.op = "permute_experts", .M = 0, .H = 4, .KV = 2},
    {.op = "permute_experts", .M = 100, .H = 7, .KV = 3},
    {.op = "permute_experts", .M = 700, .H = 128, .KV = 8},
    {.op = "permute_experts", .M = 700, .H = 512, .KV = 3},
    {.op = "permute_experts", .M = 1100, .H = 16, .KV = 1, .P = 5},  /* all to one */
    {.op = "permute_experts", .M = 700, .H = 50, .KV = 4, .pad = 9}, /* of more experts */
    {.op = "permute_experts", .M = 2048, .H = 128, .KV = 8, .flags = COUNTED},
    {.op = "permute_experts", .M = 8192, .H = 128, .KV = 8, .flags = PERF},

    {.op = "gather_tokens", .M = 1, .N = 3, .KV = 1},
    {.op = "gather_tokens", .M = 0, .N = 8, .KV = 2},
    {.op = "gather_tokens", .M = 30, .N = 64, .KV = 8},
    {.op = "gather_tokens", .M = 70, .N = 133, .KV = 2},
    {.op = "gather_tokens", .M = 70, .N = 133, .KV = 3, .pad = 2},
    {.op = "gather_tokens", .M = 100, .N = 1024, .KV = 8, .flags = COUNTED},
    {.op = "gather_tokens", .M = 1024, .N = 1024, .KV = 8, .flags = PERF},
    {.op = "combine_tokens", .M = 1, .N = 3, .KV = 1},
    {.op = "combine_tokens", .M = 0, .N = 8, .KV = 2},
    {.op = "combine_tokens", .M = 30, .N = 64, .KV = 8},
    {.op = "combine_tokens", .M = 70, .N = 133, .KV = 2, .flags = ACCUMULATE},
    {.op = "combine_tokens", .M = 30, .N = 64, .KV = 3, .flags = LOSS_ONLY},
    {.op = "combine_tokens", .M = 30, .N = 61, .KV = 3, .flags = LOSS_ONLY | ACCUMULATE},
    {.op = "combine_tokens", .M = 70, .N = 72, .KV = 3, .pad = 2, .flags = ACCUMULATE},
    {.op = "combine_tokens", .M = 100, .N = 1024, .KV = 8, .flags = COUNTED},
    {.op = "combine_tokens", .M = 1024, .N = 1024, .KV = 8, .flags = PERF},
    {.op = "combine_tokens", .M = 70, .N = 133, .KV = 1, .flags = IN_OUT},
    {.op = "scale_rows_bwd", .M = 1, .N = 3},
    {.op = "scale_rows_bwd", .M = 0, .N = 8},
    {.op = "scale_rows_bwd", .M = 30, .N = 64, .flags = IN_PLACE},
    {.op = "scale_rows_bwd", .M = 70, .N = 133},
    {.op = "scale_rows_bwd", .M = 70, .N = 1160, .flags = IN_PLACE},
    {.op = "scale_rows_bwd", .M = 700, .N = 1024, .flags = COUNTED},
    {.op = "scale_rows_bwd", .M = 1024, .N = 1024, .flags = PERF},
    {.op = "combine_bias_bwd", .M = 1, .H = 1, .N = 3, .KV = 1, .flags = ACCUMULATE},
    {.op = "combine_bias_bwd", .M = 0, .H = 4, .N = 8, .KV = 2, .flags = ACCUMULATE},
    {.op = "combine_bias_bwd", .M = 40, .H = 32, .N = 133, .KV = 4, .flags = ACCUMULATE},
    {.op = "combine_bias_bwd", .M = 1024, .H = 32, .N = 1024, .KV = 4, .flags = ACCUMULATE | PERF},
    {.op = "experts_swiglu_bwd", .M = 1, .N = 1, .KV = 1},
    {.op = "experts_swiglu_bwd", .M = 0, .N = 56, .KV = 2},
    {.op = "experts_swiglu_bwd", .M = 9, .N = 56, .KV = 2, .flags = IN_PLACE},
    {.op = "experts_swiglu_bwd", .M = 35, .N = 259, .KV = 2},
    {.op = "experts_swiglu_bwd", .M = 35, .N = 256, .KV = 2, .pad = 2},
    {.op = "experts_swiglu_bwd", .M = 9, .N = 56, .KV = 2, .flags = BIAS},
    {.op = "experts_swiglu_bwd", .M = 9, .N = 56, .KV = 3, .flags = BIAS | IN_PLACE},
    {.op = "experts_swiglu_bwd", .M = 35, .N = 59, .KV = 2, .flags = BIAS | HALVES | IN_PLACE},
    {.op = "experts_swiglu_bwd", .M = 35, .N = 64, .KV = 2, .pad = 2, .flags = BIAS | HALVES},
    {.op = "experts_swiglu_bwd", .M = 17, .N = 1408, .KV = 8, .flags = IN_PLACE | COUNTED},
    {.op = "experts_swiglu_bwd", .M = 1024, .N = 768, .KV = 8, .flags = PERF},

    GROUPED_CASES("grouped_linear_fwd", 0),
    GROUPED_CASES("grouped_linear_fwd", BIAS),
    GROUPED_CASES("grouped_linear_fwd", ACCUMULATE),
    GROUPED_PERF("grouped_linear_fwd"),
    GROUPED_CASES("grouped_linear_bwd_input", 0),
    GROUPED_CASES("grouped_linear_bwd_input", ACCUMULATE),
    GROUPED_PERF("grouped_linear_bwd_input"),
    GROUPED_CASES("grouped_linear_bwd_weight", 0),
    GROUPED_CASES("grouped_linear_bwd_weight", BIAS | ACCUMULATE),
    GROUPED_CASES("grouped_linear_bwd_weight", BIAS | RMS),
    GROUPED_CASES("grouped_linear_bwd_weight", NARROW | ACCUMULATE),
    GROUPED_CASES("grouped_linear_bwd_weight", NARROW),
    GROUPED_PERF("grouped_linear_bwd_weight"),

    {.op = "tanh_fwd", .N = 0},
    {.op = "tanh_fwd", .N = 1},
    {.op = "tanh_fwd", .N = 1003},
    {.op = "tanh_fwd", .N = 40001, .flags = IN_PLACE},
    {.op = "tanh_fwd", .N = 1003, .flags = EXTREME},
    {.op = "tanh_fwd", .N = 40004, .flags = COUNTED},
    {.op = "tanh_fwd", .N = 20000000, .flags = PERF},
    {.op = "tanh_fwd", .N = 200000000, .flags = GPU_PERF},

    {.op = "tanh_bwd", .N = 0},
    {.op = "tanh_bwd", .N = 1},
    {.op = "tanh_bwd", .N = 1003},
    {.op = "tanh_bwd", .N = 40001, .flags = IN_PLACE},
    {.op = "tanh_bwd", .N = 40004, .flags = COUNTED},
    {.op = "tanh_bwd", .N = 20000000, .flags = PERF},
    {.op = "tanh_bwd", .N = 200000000, .flags = GPU_PERF},

    {.op = "cross_entropy", .M = 1, .N = 2},
    {.op = "cross_entropy", .M = 3, .N = 7, .pad = 9, .flags = IN_PLACE},
    {.op = "cross_entropy", .M = 17, .N = 258, .flags = IN_PLACE},
    {.op = "cross_entropy", .M = 17, .N = 258, .pad = 14, .flags = IN_PLACE | WIDE_OUT},
    {.op = "cross_entropy", .M = 17, .N = 320, .flags = LOSS_ONLY},
    {.op = "cross_entropy", .M = 9, .N = 320, .flags = WIDE_OUT},
    {.op = "cross_entropy", .M = 4, .N = 50304, .flags = IN_PLACE},
    {.op = "cross_entropy", .M = 4, .N = 50257, .flags = IN_PLACE | WIDE_OUT},
    {.op = "cross_entropy", .M = 3, .N = 9001, .pad = 7, .flags = IN_PLACE | WIDE_OUT},
    {.op = "cross_entropy", .M = 3, .N = 9003, .pad = 5, .flags = IN_PLACE},
    {.op = "cross_entropy", .M = 9, .N = 257, .K = 384, .pad = 127, .flags = IN_PLACE | WIDE_OUT},
    {.op = "cross_entropy", .M = 9, .N = 250, .K = 256, .pad = 14, .flags = IN_PLACE},
    {.op = "cross_entropy", .M = 17, .N = 258, .flags = IN_PLACE, .factor = 0.125},
    {.op = "cross_entropy", .M = 17, .N = 258, .pad = 14, .flags = IN_PLACE | WIDE_OUT, .factor = 0.125},
    {.op = "cross_entropy", .M = 9, .N = 257, .flags = IN_PLACE | WIDE_OUT, .cap = 3},
    {.op = "cross_entropy", .M = 9, .N = 320, .flags = WIDE_OUT, .cap = 30, .factor = 2},
    {.op = "cross_entropy", .M = 9, .N = 257, .flags = IN_PLACE | WIDE_OUT | L2, .cap = 5, .factor = 2},
    {.op = "cross_entropy", .M = 20, .N = 40, .flags = EXTREME, .cap = 30},
    {.op = "cross_entropy", .M = 20, .N = 40, .flags = EXTREME},
    {.op = "cross_entropy", .M = 0, .N = 40},
    {.op = "cross_entropy", .M = 7, .N = 53, .flags = L2}, /* smoothed labels */
    {.op = "cross_entropy", .M = 5, .N = 258, .pad = 14, .flags = L2 | IN_PLACE | WIDE_OUT},
    {.op = "cross_entropy", .M = 3, .N = 9003, .K = 9008, .pad = 5, .flags = L2 | IN_PLACE},
    {.op = "cross_entropy", .M = 17, .N = 320, .flags = L2 | LOSS_ONLY},
    {.op = "cross_entropy", .M = 20, .N = 40, .flags = L2 | EXTREME},
    {.op = "cross_entropy", .M = 7, .N = 53, .flags = RESIDUAL}, /* factors and losses of rows */
    {.op = "cross_entropy", .M = 300, .N = 258, .pad = 14, .flags = RESIDUAL | L2 | IN_PLACE | WIDE_OUT, .cap = 3},
    {.op = "cross_entropy", .M = 300, .N = 17, .flags = RESIDUAL | LOSS_ONLY},
    {.op = "cross_entropy", .M = 7, .N = 1, .flags = BIAS | RESIDUAL}, /* linear */
    {.op = "cross_entropy", .M = 7, .N = 53, .P = 53},                 /* teachers */
    {.op = "cross_entropy", .M = 9, .N = 1030, .K = 1040, .P = 8, .pad = 14, .flags = IN_PLACE | WIDE_OUT | RESIDUAL},
    {.op = "cross_entropy", .M = 7, .N = 601, .P = 3, .pad = 7, .flags = IN_PLACE, .cap = 3, .factor = 0.5},
    {.op = "cross_entropy", .M = 7, .N = 53, .P = 1, .flags = LOSS_ONLY},
    {.op = "cross_entropy", .M = 7, .N = 53, .pad = 3, .flags = BIAS | RESIDUAL | IN_PLACE | WIDE_OUT, .cap = 3},
    {.op = "cross_entropy", .M = 3, .N = 9003, .K = 9008, .pad = 5, .flags = BIAS | IN_PLACE},
    /* more than a GPU's shared memory holds, partly in 16 bits */
    {.op = "cross_entropy", .M = 2, .N = 118006, .pad = 2, .flags = IN_PLACE | WIDE_OUT},
    {.op = "cross_entropy", .M = 2, .N = 118008, .flags = IN_PLACE | L2},
    {.op = "cross_entropy", .M = 2, .N = 50304, .flags = IN_PLACE | COUNTED},
    {.op = "cross_entropy", .M = 2, .N = 50257, .pad = 47, .flags = IN_PLACE | WIDE_OUT | COUNTED},
    {.op = "cross_entropy", .M = 2, .N = 50304, .flags = L2 | IN_PLACE | COUNTED},
    {.op = "cross_entropy", .M = 2, .N = 50304, .flags = LOSS_ONLY | COUNTED},
    {.op = "cross_entropy", .M = 1, .N = 400000, .flags = IN_PLACE | COUNTED | READS_AGAIN},
    {.op = "cross_entropy", .M = 256, .N = 50304, .flags = IN_PLACE | PERF},
    {.op = "cross_entropy", .M = 256, .N = 50304, .flags = IN_PLACE | WIDE_OUT | PERF},
    {.op = "cross_entropy", .M = 8192, .N = 50304, .flags = IN_PLACE | WIDE_OUT | GPU_PERF},
    {.op = "cross_entropy", .M = 4096, .N = 128256, .flags = IN_PLACE | WIDE_OUT | GPU_PERF},

    {.op = "add", .N = 0},
    {.op = "add", .N = 1},
    {.op = "add", .N = 1003},
    {.op = "add", .N = 40001, .flags = IN_PLACE},
    {.op = "add", .N = 1003, .offset = 1},
    {.op = "add", .N = 40001, .K = 1, .flags = IN_PLACE, .offset = 1},
    {.op = "add", .N = 1003, .K = 1},
    {.op = "add", .N = 40004, .flags = COUNTED},
    {.op = "add", .N = 20000000, .flags = PERF},
    {.op = "add", .N = 200000000, .flags = GPU_PERF},

    {.op = "cast", .N = 0},
    {.op = "cast", .N = 1},
    {.op = "cast", .N = 1003},
    {.op = "cast", .N = 40001, .flags = WIDE_OUT},
    {.op = "cast", .N = 1003, .flags = IN_PLACE}, /* both of the same dtype */
    {.op = "cast", .N = 1003, .flags = EXTREME},
    {.op = "cast", .N = 1003, .flags = EXTREME | HALVES},
    {.op = "cast", .N = 40004, .flags = COUNTED},
    {.op = "cast", .N = 20000000, .flags = PERF},
    {.op = "cast", .N = 200000000, .flags = GPU_PERF},

    {.op = "dequantize", .M = 3, .N = 0},
    {.op = "dequantize", .M = 3, .N = 22},
    {.op = "dequantize", .M = 5, .N = 330},
    {.op = "dequantize", .M = 5, .N = 330, .flags = TYPES},
    {.op = "dequantize", .M = 3, .N = 192, .pad = 64, .flags = TYPES | HALVES},
    {.op = "dequantize", .M = 64, .N = 320, .flags = HALVES},
    {.op = "dequantize", .M = 3, .N = 7, .K = QUANTIZED_FP8},
    {.op = "dequantize", .M = 131, .N = 257, .K = QUANTIZED_FP8},
    {.op = "dequantize", .M = 256, .N = 384, .K = QUANTIZED_FP8},
    {.op = "dequantize", .M = 3, .N = 64, .K = QUANTIZED_MXFP4},
    {.op = "dequantize", .M = 70, .N = 288, .K = QUANTIZED_MXFP4},
    {.op = "dequantize", .M = 5, .N = 96, .K = QUANTIZED_MXFP4, .flags = EXTREME},
    {.op = "dequantize", .M = 9, .N = 22, .pad = -60, .flags = TYPES}, /* vectors span blocks */
    {.op = "dequantize", .M = 256, .N = 768, .flags = COUNTED},
    {.op = "dequantize", .M = 256, .N = 768, .flags = TYPES | HALVES | COUNTED},
    {.op = "dequantize", .M = 256, .N = 768, .K = QUANTIZED_FP8, .flags = COUNTED},
    {.op = "dequantize", .M = 256, .N = 768, .K = QUANTIZED_MXFP4, .flags = COUNTED},
    {.op = "dequantize", .M = 1024, .N = 4096, .flags = TYPES | PERF},
    {.op = "dequantize", .M = 1024, .N = 4096, .K = QUANTIZED_FP8, .flags = PERF},
    {.op = "dequantize", .M = 8192, .N = 8192, .flags = TYPES | GPU_PERF},
    {.op = "dequantize", .M = 8192, .N = 8192, .K = QUANTIZED_FP8, .flags = GPU_PERF},

    {.op = "accumulate", .N = 0},
    {.op = "accumulate", .N = 1},
    {.op = "accumulate", .N = 1003},
    {.op = "accumulate", .N = 40001, .flags = ACCUMULATE},
    {.op = "accumulate", .N = 1003, .flags = EXTREME}, /* scaled */
    {.op = "accumulate", .N = 1003, .flags = ACCUMULATE | WIDE_OUT},
    {.op = "accumulate", .N = 1003, .flags = WIDE_OUT},
    {.op = "accumulate", .N = 40004, .flags = COUNTED},
    {.op = "accumulate", .N = 40004, .flags = ACCUMULATE | COUNTED},
    {.op = "accumulate", .N = 20000000, .flags = ACCUMULATE | PERF},
    {.op = "accumulate", .N = 200000000, .flags = ACCUMULATE | GPU_PERF},

    /* M: ranks; K: the own one; pad: elements before each operand */
    {.op = "sum_ranks", .M = 2, .N = 0},
    {.op = "sum_ranks", .M = 1, .N = 1003},
    {.op = "sum_ranks", .M = 1, .N = 1003, .flags = ACCUMULATE},
    {.op = "sum_ranks", .M = 2, .N = 1, .K = 1},
    {.op = "sum_ranks", .M = 2, .N = 1000},
    {.op = "sum_ranks", .M = 2, .N = 1000, .K = 1, .flags = ACCUMULATE},
    {.op = "sum_ranks", .M = 2, .N = 1000, .K = 1, .flags = IN_PLACE},
    {.op = "sum_ranks", .M = 3, .N = 1003, .K = 1},
    {.op = "sum_ranks", .M = 3, .N = 1000, .K = 2, .pad = 1, .flags = ACCUMULATE},
    {.op = "sum_ranks", .M = 4, .N = 40001, .flags = ACCUMULATE},
    {.op = "sum_ranks", .M = 5, .N = 1004, .K = 4},
    {.op = "sum_ranks", .M = 6, .N = 40008, .K = 2, .flags = ACCUMULATE},
    {.op = "sum_ranks", .M = 7, .N = 1003, .K = 3, .pad = 3},
    {.op = "sum_ranks", .M = 8, .N = 40000, .K = 7, .flags = ACCUMULATE},
    {.op = "sum_ranks", .M = 9, .N = 1003, .K = 5, .flags = ACCUMULATE},
    {.op = "sum_ranks", .M = 9, .N = 1000, .K = 8},
    {.op = "sum_ranks", .M = 3, .N = 1003, .K = 1, .flags = NARROW},
    {.op = "sum_ranks", .M = 4, .N = 1000, .K = 2, .flags = NARROW | ACCUMULATE},
    {.op = "sum_ranks", .M = 3, .N = 40008, .K = 1, .flags = COUNTED},
    {.op = "sum_ranks", .M = 3, .N = 40008, .K = 1, .flags = ACCUMULATE | COUNTED},
    {.op = "sum_ranks", .M = 8, .N = 2000000, .K = 3, .flags = ACCUMULATE | PERF},
    {.op = "sum_ranks", .M = 8, .N = 40000000, .K = 3, .flags = ACCUMULATE | GPU_PERF},

    {.op = "sumsq", .N = 0},
    {.op = "sumsq", .N = 1},
    {.op = "sumsq", .N = 1003},
    {.op = "sumsq", .N = 700001},
    {.op = "sumsq", .N = 1003, .flags = EXTREME},
    {.op = "sumsq", .N = 40003, .flags = HALVES},
    {.op = "sumsq", .N = 700004, .flags = COUNTED},
    {.op = "sumsq", .N = 40000000, .flags = PERF},
    {.op = "sumsq", .N = 200000000, .flags = GPU_PERF},

    {.op = "decide_step", .M = 2, .K = 1, .flags = LOSS_ONLY},
    {.op = "decide_step", .M = 14, .K = 3, .window = 1, .flags = LOSS_ONLY}, /* clipped */
    {.op = "decide_step", .M = 14, .K = 3, .window = 100},
    {.op = "decide_step", .M = 98, .K = 8, .flags = ACCUMULATE},
    {.op = "decide_step", .M = 14, .K = 3, .window = 1, .flags = HALVES},
    {.op = "decide_step", .M = 14, .K = 2, .window = 1, .flags = EXTREME},

    {.op = "find_nonfinite", .N = 0},
    {.op = "find_nonfinite", .N = 700001},
    {.op = "find_nonfinite", .N = 700001, .flags = EXTREME},
    {.op = "find_nonfinite", .N = 1003, .flags = EXTREME | LOSS_ONLY},
    {.op = "find_nonfinite", .N = 700001, .flags = EXTREME | HALVES},

    {.op = "adam", .N = 0},
    {.op = "adam", .N = 1},
    {.op = "adam", .N = 1003, .flags = WIDE_OUT},
    {.op = "adam", .N = 40001},
    {.op = "adam", .N = 1003, .flags = L2},
    {.op = "adam", .N = 1003, .flags = EXTREME},   /* skipped */
    {.op = "adam", .N = 1003, .flags = LOSS_ONLY}, /* no second copy of the parameters */
    {.op = "adam", .N = 1003, .flags = IN_PLACE},  /* gradients in bf16 */
    {.op = "adam", .N = 1003, .flags = RMS},       /* master weights in bf16 */
    {.op = "adam", .N = 40001, .flags = HALVES},   /* and moments */
    {.op = "adam", .N = 1003, .flags = HALVES | EXTREME},
    {.op = "adam", .N = 1600, .pad = 48, .flags = HALVES | INVERSE}, /* exactly the keyed bits */
    {.op = "adam", .N = 1003, .pad = 5, .flags = HALVES | INVERSE},
    {.op = "adam", .N = 1003, .flags = TYPES}, /* segments with and without weight decay */
    {.op = "adam", .N = 1003, .flags = TYPES | L2},
    {.op = "adam", .N = 1003, .flags = TYPES | IN_PLACE | WIDE_OUT},
    {.op = "adam", .N = 40001, .pad = 5, .flags = TYPES | HALVES},
    {.op = "adam", .N = 40004, .flags = COUNTED},
    {.op = "adam", .N = 40004, .flags = HALVES | COUNTED},
    {.op = "adam", .N = 20000000, .flags = PERF},
    {.op = "adam", .N = 20000000, .flags = HALVES | PERF},
    {.op = "adam", .N = 200000000, .flags = GPU_PERF},
    {.op = "adam", .N = 200000000, .flags = HALVES | GPU_PERF},
    {.op = "adam8", .N = 0},
    {.op = "adam8", .N = 256, .flags = WIDE_OUT},
    {.op = "adam8", .N = 1280},
    {.op = "adam8", .N = 40192},
    {.op = "adam8", .N = 1280, .flags = EXTREME},   /* skipped */
    {.op = "adam8", .N = 1280, .flags = LOSS_ONLY}, /* no second copy of the parameters */
    {.op = "adam8", .N = 1280, .flags = IN_PLACE},  /* gradients in bf16 */
    {.op = "adam8", .N = 1280, .flags = TYPES},     /* segments with and without weight decay */
    {.op = "adam8", .N = 1280, .flags = RMS},       /* beta1 below a half, no bias correction */
    {.op = "adam8", .N = 1280, .flags = INVERSE},   /* the first step */
    {.op = "adam8", .N = 40192, .flags = COUNTED},
    {.op = "adam8", .N = 19999744, .flags = PERF},
    {.op = "adam8", .N = 199999744, .flags = GPU_PERF},

    {.op = "momentum", .N = 0},
    {.op = "momentum", .N = 1},
    {.op = "momentum", .N = 1003, .flags = WIDE_OUT},
    {.op = "momentum", .N = 40001},
    {.op = "momentum", .N = 1003, .flags = EXTREME},          /* skipped */
    {.op = "momentum", .N = 1003, .flags = LOSS_ONLY},        /* no second copy of the parameters */
    {.op = "momentum", .N = 1003, .flags = HALVES},           /* gradients in bf16 */
    {.op = "momentum", .N = 1003, .flags = L2},               /* SGD with dampening */
    {.op = "momentum", .N = 40001, .flags = L2 | ACCUMULATE}, /* its first update */
    {.op = "momentum", .N = 1003, .flags = L2 | IN_PLACE},    /* Nesterov */
    {.op = "momentum", .N = 1003, .flags = L2 | RMS | HALVES},
    {.op = "momentum", .N = 1003, .flags = L2 | EXTREME},
    {.op = "momentum", .N = 1003, .flags = TYPES}, /* segments with and without weight decay */
    {.op = "momentum", .N = 40001, .flags = TYPES | L2 | HALVES},
    {.op = "momentum", .N = 40004, .flags = COUNTED},
    {.op = "momentum", .N = 20000000, .flags = PERF},
    {.op = "momentum", .N = 20000000, .flags = L2 | PERF},
    {.op = "momentum", .N = 200000000, .flags = GPU_PERF},

    {.op = "muon_momentum", .N = 0},
    {.op = "muon_momentum", .N = 1},
    {.op = "muon_momentum", .N = 1003},
    {.op = "muon_momentum", .N = 40001, .flags = IN_PLACE}, /* Nesterov */
    {.op = "muon_momentum", .N = 1003, .flags = IN_PLACE | HALVES},
    {.op = "muon_momentum", .N = 1003, .flags = EXTREME}, /* skipped */
    {.op = "muon_momentum", .N = 40004, .flags = COUNTED},
    {.op = "muon_momentum", .N = 200000000, .flags = GPU_PERF},

    {.op = "orthogonalize", .M = 1, .N = 1, .K = 5},
    {.op = "orthogonalize", .M = 16, .N = 48, .K = 5},
    {.op = "orthogonalize", .M = 48, .N = 16, .K = 5}, /* more rows than columns */
    {.op = "orthogonalize", .M = 13, .N = 37, .K = 5, .flags = IN_PLACE},
    {.op = "orthogonalize", .M = 45, .N = 11, .K = 1, .flags = IN_PLACE},
    {.op = "orthogonalize", .M = 24, .N = 24, .K = 3},
    {.op = "orthogonalize", .M = 8, .N = 12, .K = 5, .flags = EXTREME}, /* zeros stay zeros */
    {.op = "orthogonalize", .M = 1024, .N = 1024, .K = 5, .flags = PERF},
    {.op = "orthogonalize", .M = 4096, .N = 14336, .K = 5, .flags = GPU_PERF},

    {.op = "muon_update", .N = 0},
    {.op = "muon_update", .N = 1},
    {.op = "muon_update", .N = 1003, .flags = WIDE_OUT},
    {.op = "muon_update", .N = 40001},
    {.op = "muon_update", .N = 1003, .flags = LOSS_ONLY}, /* no second copy of the parameters */
    {.op = "muon_update", .N = 1003, .flags = EXTREME},   /* skipped */
    {.op = "muon_update", .N = 40004, .flags = COUNTED},
    {.op = "muon_update", .N = 200000000, .flags = GPU_PERF},
};
const int op_case_count = (int)COUNT_OF(op_cases);
