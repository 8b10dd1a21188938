/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/cpu/cpuid.h"

#include <sys/syscall.h>
#include <sys/utsname.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

static const char *const isa_names[CPU_ISA_COUNT] = {"baseline", "avx2", "avx512"};

const char *cpu_isa_name(enum cpu_isa isa)
{
    return isa_names[isa];
}

#if defined(__x86_64__)

static bool cpuid_bit(uint32_t word, unsigned bit)
{
    return word >> bit & 1;
}

/* Linux lets a process use AMX's tiles only on request: Documentation/arch/x86/xstate.rst. */
static bool cpuid_tiles_permitted(void)
{
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

static void cpuid_detect_name(char *name, size_t size)
{
    uint32_t words[12];
    for (unsigned i = 0; i < 3; i++)
        if (!__get_cpuid(0x80000002u + i, &words[4 * i], &words[4 * i + 1], &words[4 * i + 2], &words[4 * i + 3]))
            return;
    char brand[49];
    memcpy(brand, words, 48);
    brand[48] = '\0';
    const char *start = brand + strspn(brand, " ");
    size_t length = strlen(start);
    while (length && start[length - 1] == ' ') length--;
    if (length) snprintf(name, size, "%.*s", (int)length, start);
}

static void cpuid_detect(struct cpu_features *f)
{
    enum { SSE_AVX = 0x6, AVX512 = 0xe0, AMX = 0x60000 };
    uint32_t a, b, c, d, b7 = 0, d7 = 0, a7_1 = 0, extended = 0, states; /* states: the low half of XCR0 */
    cpuid_detect_name(f->name, sizeof f->name);
    if (!__get_cpuid(1, &a, &b, &c, &d) || !cpuid_bit(c, 27 /* OSXSAVE */)) return;
    __asm__ volatile("xgetbv" : "=a"(states), "=d"(d) : "c"(0));
    bool fma = cpuid_bit(c, 12), f16c = cpuid_bit(c, 29), avx = cpuid_bit(c, 28), movbe = cpuid_bit(c, 22);
    uint32_t unused;
    if (__get_cpuid_count(7, 0, &a, &b7, &c, &d7) && a >= 1) __get_cpuid_count(7, 1, &a7_1, &unused, &c, &d);
    __get_cpuid(0x80000001u, &a, &b, &extended, &d);
    bool lzcnt = cpuid_bit(extended, 5), bmi = cpuid_bit(b7, 3) && cpuid_bit(b7, 8);
    if (!(avx && fma && f16c && movbe && lzcnt && bmi && cpuid_bit(b7, 5 /* AVX2 */) && (states & SSE_AVX) == SSE_AVX))
        return;
    f->isa = CPU_ISA_AVX2;
    bool avx512 = cpuid_bit(b7, 16) && cpuid_bit(b7, 17) && cpuid_bit(b7, 28) && cpuid_bit(b7, 30) &&
                  cpuid_bit(b7, 31); /* F DQ CD BW VL */
    if (!avx512 || (states & AVX512) != AVX512) return;
    f->isa = CPU_ISA_AVX512;
    f->avx512_bf16 = cpuid_bit(a7_1, 5);
    f->amx_bf16 = cpuid_bit(d7, 22) && cpuid_bit(d7, 24) && (states & AMX) == AMX && cpuid_tiles_permitted();
}

#else

static void cpuid_detect(struct cpu_features *f)
{
    (void)f;
}

#endif

void cpu_features_detect(struct cpu_features *f)
{
    struct utsname system;
    memset(f, 0, sizeof *f);
    snprintf(f->name, sizeof f->name, "%s CPU", uname(&system) == 0 ? system.machine : "unknown");
    cpuid_detect(f);
}
