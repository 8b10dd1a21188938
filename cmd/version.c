/* version.c: `ztrain version`: the versions of ztrain, its compiler and its libraries, one a line. */
#include "core/version.h"
#include "cmd/command_line.h"
#include "cmd/commands.h"
#include "cmd/libraries.h"

#include <stdio.h>

enum status cmd_version(int argc, char **argv, struct error *err)
{
    static const char usage[] =
        "usage: ztrain version\n\nPrints the versions of ztrain, its compiler and the libraries in use.\n";
    static const struct command_line line = {"version", usage, NULL, 0, NULL, NULL, 0};
    bool helped;
    TRY(command_line_parse(&line, argc, argv, NULL, &helped, err));
    if (helped)
        return STATUS_OK;
    printf("%-16s  %s\n", "ztrain", ZTRAIN_VERSION);
#ifdef __clang__
    printf("%-16s  clang %s\n", "compiler", __clang_version__);
#else
    printf("%-16s  gcc %s\n", "compiler", __VERSION__);
#endif
    libraries_print("", false);
    return STATUS_OK;
}
