/* doctor.h: what the files of `ztrain doctor` share. */
#pragma once

#include "core/printable.h"
#include "core/size_text.h"
#include "core/status.h"

#include <stdarg.h>
#include <stdio.h>

/* Prints a line "name  text". */
__attribute__((format(printf, 2, 3))) static inline void doctor_line(const char *name, const char *format, ...)
{
    char text[4096];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    printf("  %-16s  %s\n", name, PRINTABLE(text));
}

static inline const char *doctor_bytes(uint64_t bytes, char text[SIZE_TEXT_MAX])
{
    return bytes == UINT64_MAX ? "unknown" : size_round((int64_t)bytes, text);
}

/* Prints the driver, its GPUs, CUDA's libraries, and what the first GPU reaches: rates of products, attention and
 * copies. */
void doctor_report_gpu(void);

/* --gpu-test: runs the self-test of the first GPU and prints each check. */
enum status doctor_test_gpu(struct error *err);
