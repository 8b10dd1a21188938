/* libraries.h: the libraries that ztrain uses, for `ztrain version` and `ztrain doctor`. */
#pragma once

#include <stdbool.h>

/* Prints a line per library, after `indent`: name, version in use, version it was built with if that differs, and with
 * `paths` the file it was loaded from. */
void libraries_print(const char *indent, bool paths);
