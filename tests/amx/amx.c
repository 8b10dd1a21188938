/* SPDX-License-Identifier: Apache-2.0 */
/* amx.c: AMX for a CPU without it, so that the path that CPUs with AMX take by default runs in every test run.
 *
 * It is preloaded into a program whose `cpuid` and `xgetbv` tests/amx/prepare.py has replaced by undefined instructions.
 * The CPU refuses those, and AMX's instructions, with SIGILL; the handler computes what a CPU with AMX would have
 * computed and continues after them. An operation that such a CPU refuses (a tile that is not configured, sizes that do
 * not fit, no permission from the kernel) ends the program with a message. When the program ends, it appends
 * "PID TDPBF16PS", the number of products of tiles, to the file $ZTRAIN_AMX_COUNT.
 *
 * Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter "Programming with Intel AMX",
 * and volume 2, the instructions; Linux's Documentation/arch/x86/xstate.rst for the permission. */
#define _GNU_SOURCE
#include <cpuid.h>
#include <errno.h>
#include <immintrin.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { TILES = 8, ROWS = 16, ROW_BYTES = 64, LANES = ROW_BYTES / 4 };

typedef float lanes __attribute__((vector_size(ROW_BYTES)));
typedef uint32_t words __attribute__((vector_size(ROW_BYTES)));

struct tile {
    int rows, bytes; /* configured: rows, bytes of a row; 0: not configured */
    _Alignas(ROW_BYTES) uint8_t row[ROWS][ROW_BYTES];
};

static _Thread_local bool configured;
static _Thread_local uint8_t configuration[64]; /* as LDTILECFG read it */
static _Thread_local struct tile tiles[TILES];
static _Atomic bool permitted;
static _Atomic uint64_t products;

static _Noreturn void refuse(const char *what)
{
    fprintf(stderr, "amx: a CPU with AMX refuses this: %s\n", what);
    _exit(99);
}

/* ---- the instructions that say what the CPU has -------------------------- */

static void emulate_cpuid(greg_t *r)
{
    const uint32_t leaf = (uint32_t)r[REG_RAX], part = (uint32_t)r[REG_RCX];
    uint32_t a = 0, b = 0, c = 0, d = 0;
    __cpuid_count(leaf, part, a, b, c, d);
    if (leaf == 0 && a < 0x1e)
        a = 0x1e;
    if (leaf == 7 && part == 0)
        d |= 1u << 22 | 1u << 24; /* AMX-BF16, AMX-TILE */
    if (leaf == 0xd && part == 0)
        a |= 3u << 17;
    if (leaf == 0x1d) { /* one palette: 8 KiB of tiles of 1 KiB, rows of 64 bytes, 8 tiles of 16 rows */
        a = part == 0 ? 1 : part == 1 ? 8192u | 1024u << 16 : 0;
        b = part == 1 ? ROW_BYTES | TILES << 16 : 0;
        c = part == 1 ? ROWS : 0;
        d = 0;
    }
    if (leaf == 0x1e) {
        a = c = d = 0;
        b = part == 0 ? ROWS | ROW_BYTES << 8 : 0;
    }
    r[REG_RAX] = a;
    r[REG_RBX] = b;
    r[REG_RCX] = c;
    r[REG_RDX] = d;
}

static void emulate_xgetbv(greg_t *r)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"((uint32_t)r[REG_RCX]));
    r[REG_RAX] = (uint32_t)r[REG_RCX] == 0 ? low | 3u << 17 : low;
    r[REG_RDX] = high;
}

/* The kernel is asked for the permission to use tiles through libc's syscall(). */
long syscall(long number, ...)
{
    enum { GET_PERMISSION = 0x1022, REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    va_list list;
    va_start(list, number);
    long arg[6];
    for (int i = 0; i < 6; i++)
        arg[i] = va_arg(list, long);
    va_end(list);
    if (number == SYS_arch_prctl && arg[0] == REQUEST_PERMISSION && arg[1] == TILE_DATA) {
        permitted = true;
        return 0;
    }
    register long r10 __asm__("r10") = arg[3], r8 __asm__("r8") = arg[4], r9 __asm__("r9") = arg[5];
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(arg[0]), "S"(arg[1]), "d"(arg[2]), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    if (result < 0 && result >= -4095) {
        errno = (int)-result;
        return -1;
    }
    if (number == SYS_arch_prctl && arg[0] == GET_PERMISSION && permitted)
        *(uint64_t *)arg[1] |= 1u << TILE_DATA;
    return result;
}

/* ---- tiles --------------------------------------------------------------- */

static struct tile *tile_of(int number)
{
    if (!configured || number >= TILES || tiles[number].rows == 0)
        refuse("a tile that is not configured");
    return &tiles[number];
}

static void release(void)
{
    configured = false;
    memset(configuration, 0, sizeof configuration);
    memset(tiles, 0, sizeof tiles);
}

static void configure(const uint8_t *memory)
{
    release();
    memcpy(configuration, memory, sizeof configuration);
    if (configuration[0] == 0)
        return;
    bool right = configuration[0] == 1;
    for (int i = 2; i < 16; i++)
        right = right && configuration[i] == 0;
    for (int i = 0; i < 16; i++) {
        const int bytes = configuration[16 + 2 * i] | configuration[17 + 2 * i] << 8, rows = configuration[48 + i];
        right = right && bytes <= ROW_BYTES && rows <= ROWS && (bytes == 0) == (rows == 0);
        right = right && (i < TILES || bytes == 0);
        if (i < TILES && right)
            tiles[i].rows = rows, tiles[i].bytes = bytes;
    }
    if (!right)
        refuse("a configuration of tiles with reserved bits or sizes out of range");
    configured = true;
}

static void load(struct tile *t, const uint8_t *memory, int64_t stride)
{
    memset(t->row, 0, sizeof t->row);
    for (int i = 0; i < t->rows; i++)
        memcpy(t->row[i], memory + i * stride, (size_t)t->bytes);
}

static void store(const struct tile *t, uint8_t *memory, int64_t stride)
{
    for (int i = 0; i < t->rows; i++)
        memcpy(memory + i * stride, t->row[i], (size_t)t->bytes);
}

static lanes as_lanes(words w)
{
    lanes x;
    memcpy(&x, &w, sizeof x);
    return x;
}

/* sums (rows, n) += a (rows, pairs of k) · b (pairs of k, n pairs); the two numbers of a pair are summed apart. */
static void multiply(struct tile *sums, const struct tile *a, const struct tile *b)
{
    if (sums == a || sums == b || a == b)
        refuse("TDPBF16PS with one tile twice");
    if (sums->bytes % 4 || a->bytes % 4 || sums->rows != a->rows || a->bytes / 4 != b->rows || sums->bytes != b->bytes)
        refuse("TDPBF16PS of tiles whose sizes do not fit");
    _mm_setcsr(_mm_getcsr() | 0x8040); /* denormal numbers are zero, in and out */
    for (int i = 0; i < sums->rows; i++) {
        lanes even = {0}, odd = {0}, sum;
        for (int k = 0; k < b->rows; k++) {
            words column, pair;
            uint32_t both;
            memcpy(&column, b->row[k], sizeof column);
            memcpy(&both, a->row[i] + 4 * k, sizeof both);
            pair = both - (words){0};
            even += as_lanes(pair << 16) * as_lanes(column << 16);
            odd += as_lanes(pair & 0xffff0000u) * as_lanes(column & 0xffff0000u);
        }
        memcpy(&sum, sums->row[i], sizeof sum);
        sum += even + odd;
        memcpy(sums->row[i], &sum, (size_t)sums->bytes);
    }
    products++;
}

/* ---- decoding ------------------------------------------------------------ */

/* The operand in memory of an instruction whose ModRM byte is at `at`. Moves *at past it. Tiles are read and written
 * row by row, *stride (the index register) apart. */
static uint8_t *address_of(const greg_t *r, const uint8_t **at, bool index_high, bool base_high, int64_t *stride)
{
    static const int registers[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                      REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    const int mode = **at >> 6;
    int base = *(*at)++ & 7;
    int64_t address = 0;
    bool has_base = true, from_end = false; /* of the instruction */
    *stride = 0;
    if (base == 4) {
        const uint8_t sib = *(*at)++;
        const int index = (sib >> 3 & 7) | index_high << 3;
        if (index != 4)
            *stride = r[registers[index]] << (sib >> 6);
        base = sib & 7;
        has_base = base != 5 || mode != 0;
    } else if (base == 5 && mode == 0) {
        has_base = false;
        from_end = true;
    }
    if (has_base)
        address = r[registers[base | base_high << 3]];
    if (mode == 1) {
        address += (int8_t) * (*at)++;
    } else if (mode == 2 || !has_base) {
        int32_t displacement;
        memcpy(&displacement, *at, sizeof displacement);
        *at += sizeof displacement;
        address += displacement;
    }
    if (from_end)
        address += (int64_t)(uintptr_t)*at;
    return (uint8_t *)address;
}

/* An instruction of AMX at `at`: VEX with three bytes, map 0F38. Returns its end, or NULL if it is something else. */
static const uint8_t *emulate_amx(greg_t *r, const uint8_t *at)
{
    enum { CONFIGURE = 0x49, MOVE = 0x4b, MULTIPLY = 0x5c };
    enum { NONE, P66, PF3, PF2 };
    if (at[0] != 0xc4 || (at[1] & 0x1f) != 2 || at[2] & 0x84)
        return NULL;
    const bool index_high = !(at[1] & 0x40), base_high = !(at[1] & 0x20);
    const int third = ~(at[2] >> 3) & 0xf, prefix = at[2] & 3, opcode = at[3], modrm = at[4], reg = modrm >> 3 & 7;
    const bool memory = modrm >> 6 != 3;
    int64_t stride = 0;
    if (opcode != CONFIGURE && opcode != MOVE && opcode != MULTIPLY)
        return NULL;
    if (!permitted)
        refuse("tiles before the kernel permitted them");
    at += 4;
    uint8_t *operand = memory ? address_of(r, &at, index_high, base_high, &stride) : NULL;
    if (!memory)
        at++;
    if (opcode == CONFIGURE && memory && prefix == NONE && reg == 0)
        configure(operand);
    else if (opcode == CONFIGURE && memory && prefix == P66 && reg == 0)
        memcpy(operand, configuration, sizeof configuration);
    else if (opcode == CONFIGURE && modrm == 0xc0 && prefix == NONE)
        release();
    else if (opcode == CONFIGURE && !memory && prefix == PF2)
        memset(tile_of(reg)->row, 0, sizeof tiles[0].row);
    else if (opcode == MOVE && memory && (prefix == PF2 || prefix == P66))
        load(tile_of(reg), operand, stride);
    else if (opcode == MOVE && memory && prefix == PF3)
        store(tile_of(reg), operand, stride);
    else if (opcode == MULTIPLY && !memory && prefix == PF3)
        multiply(tile_of(reg), tile_of(modrm & 7), tile_of(third));
    else
        return NULL;
    return at;
}

static void on_illegal(int number, siginfo_t *info, void *context)
{
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    const uint8_t *at = (const uint8_t *)r[REG_RIP], *end = NULL;
    (void)info;
    if (at[0] == 0x0f && at[1] == 0x0b) { /* ud2 */
        emulate_cpuid(r);
        end = at + 2;
    } else if (at[0] == 0x0f && at[1] == 0xb9 && at[2] == 0xc0) { /* ud1 */
        emulate_xgetbv(r);
        end = at + 3;
    } else {
        end = emulate_amx(r, at);
    }
    if (!end) {
        signal(number, SIG_DFL); /* not ours: again, and to the end */
        return;
    }
    r[REG_RIP] = (greg_t)(uintptr_t)end;
}

__attribute__((constructor)) static void start(void)
{
    struct sigaction action = {.sa_sigaction = on_illegal, .sa_flags = SA_SIGINFO};
    sigaction(SIGILL, &action, NULL);
}

__attribute__((destructor)) static void end(void)
{
    const char *path = getenv("ZTRAIN_AMX_COUNT");
    FILE *file = path ? fopen(path, "ae") : NULL;
    if (!file)
        return;
    fprintf(file, "%ld %llu\n", (long)getpid(), (unsigned long long)products);
    fclose(file);
}
