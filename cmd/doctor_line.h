/* doctor_line.h: a line of `ztrain doctor`. */
#pragma once

/* Prints "  NAME    TEXT" to stdout; characters that are not printable are escaped. */
void doctor_line(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));
