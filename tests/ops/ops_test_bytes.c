/* ops_test_bytes.c: the bytes that an op's kernels move, next to those that it must (op_cost.h).
 *
 * The emulated GPU counts them (tests/emulation/emulation_traffic.h); other devices cannot, which is an error. */
#include "tests/ops/ops_test.h"

#include "tests/emulation/emulation_traffic.h"

#include <stdio.h>

__attribute__((weak)) void emulation_traffic_begin(void);
__attribute__((weak)) void emulation_traffic_end(struct emulation_traffic *traffic);

/* What the bytes may exceed their floor by: operands that all rows share, a row's statistics, scratch memory. */
static const double slack = 0.05;

bool bytes_are_counted(const struct device *device)
{
    return device->kind == DEVICE_CUDA && emulation_traffic_begin && emulation_traffic_end;
}

void bytes_begin(void)
{
    emulation_traffic_begin();
}

bool bytes_end(const struct op_case *c, const char *text, double floor)
{
    const bool wasteful = c->flags & READS_AGAIN;
    struct emulation_traffic traffic;
    emulation_traffic_end(&traffic);
    const double moved = traffic.moved / floor, touched = traffic.touched / floor, shared = traffic.shared / floor;
    printf("%-72s %10.0f bytes, moved %.3f, touched %.3f, shared %.3f\n", text, floor, moved, touched, shared);
    if (!(touched >= 1 - 1e-9 && touched <= 1 + slack))
        printf("FAILED %s: it touches %.0f bytes, its cost says %.0f\n", text, traffic.touched, floor);
    else if (!(shared <= slack))
        printf("FAILED %s: %.0f bytes are read over and over\n", text, traffic.shared);
    else if (wasteful ? !(moved > 1 + slack) : !(moved <= 1 + slack))
        printf("FAILED %s: it moves %.0f bytes; %s%.0f\n", text, traffic.moved,
               wasteful ? "what it reads again was not seen: more than " : "at most ", (1 + slack) * floor);
    else
        return true;
    return false;
}
