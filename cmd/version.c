/* version.c: `ztrain version`: the versions of ztrain, its compiler and its libraries, one a line. */
#include "core/version.h"
#include "cmd/commands.h"
#include "cmd/libraries.h"

#include <stdio.h>
#include <string.h>

enum status cmd_version(int argc, char **argv, struct error *err)
{
    if (argc == 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) {
        printf("usage: ztrain version\n\nPrints the versions of ztrain, its compiler and the libraries in use.\n");
        return STATUS_OK;
    }
    if (argc > 1)
        return error_set(err, STATUS_USAGE, "version: unexpected argument '%s'; hint: it takes none", argv[1]);
    printf("%-16s  %s\n", "ztrain", ZTRAIN_VERSION);
#ifdef __clang__
    printf("%-16s  clang %s\n", "compiler", __clang_version__);
#else
    printf("%-16s  gcc %s\n", "compiler", __VERSION__);
#endif
    libraries_print(stdout, "", false);
    return STATUS_OK;
}
