#include "cmd/doctor_line.h"

#include "core/printable.h"

#include <stdarg.h>
#include <stdio.h>

void doctor_line(const char *name, const char *format, ...)
{
    char text[4096];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    printf("  %-16s  %s\n", name, PRINTABLE(text));
}
