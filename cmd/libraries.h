/* libraries.h: the libraries that ztrain uses, for `ztrain version` and `ztrain doctor`. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

/* A line per library, after `indent`: name, version in use, version it was built with if that differs, and with
 * `paths` the file it was loaded from. */
void libraries_print(FILE *out, const char *indent, bool paths);

/* The file of a loaded library whose path contains `part`, or NULL. out: at least size bytes. */
const char *libraries_path(const char *part, char *out, size_t size);
