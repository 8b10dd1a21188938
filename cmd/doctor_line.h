/* doctor_line.h: a line of `ztrain doctor`. */
#ifndef ZTRAIN_CMD_DOCTOR_LINE_H
#define ZTRAIN_CMD_DOCTOR_LINE_H

/* Prints "  NAME    TEXT" to stdout; characters that are not printable are escaped. */
void doctor_line(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
