/* test_op_check.c: the check of a device's ops finds every op that computes nothing, and none that is right. The device
 * is the CPU, next to itself. */
#include "gpu/op_check.h"
#include "gpu/open/device_open.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define LOST(op)                                                               \
    static void lost_##op(struct stream *stream, const struct op##_args *args) \
    {                                                                          \
        (void)stream, (void)args;                                              \
    }
OPS_LIST(LOST)
#define LOST_ENTRY(op) .op = lost_##op,
static const struct op_table lost_ops = {OPS_LIST(LOST_ENTRY)};

/* A device whose op number `op` does nothing. */
static struct op_table table_without(const struct op_table *table, int op)
{
    struct op_table without = *table;
    memcpy((char *)&without + (size_t)op * sizeof table->add, (const char *)&lost_ops + (size_t)op * sizeof table->add,
           sizeof table->add);
    return without;
}

static void every_lost_op_is_found(void **state)
{
    (void)state;
    struct device *device, *reference;
    struct op_checker *checker;
    struct error err = {.text = ""};
    char differs[256];
    assert_int_equal(device_open(DEVICE_CPU, 0, 1, &device, &err), STATUS_OK);
    assert_int_equal(device_open(DEVICE_CPU, 0, 1, &reference, &err), STATUS_OK);
    assert_int_equal(op_checker_new(device, reference, &checker, &err), STATUS_OK);
    const struct op_table *right = device->ops;
    for (int op = 0; op < OPS_COUNT; op++) {
        assert_int_equal(op_check_run(checker, op, differs, sizeof differs, &err), STATUS_OK);
        if (*differs)
            fail_msg("%s differs from itself: %s", op_check_name(op), differs);
        const struct op_table wrong = table_without(right, op);
        device->ops = &wrong;
        assert_int_equal(op_check_run(checker, op, differs, sizeof differs, &err), STATUS_OK);
        device->ops = right;
        if (!strstr(differs, "variant") || !strstr(differs, "is right"))
            fail_msg("a lost %s is not found", op_check_name(op));
    }
    op_checker_free(checker);
    device_close(reference);
    device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_lost_op_is_found)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
