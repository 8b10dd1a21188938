/* SPDX-License-Identifier: Apache-2.0 */
/* version.c: `ztrain version`: ztrain, its compiler, its libraries at run time and those that it was built with. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "core/version.h"
#include "cmd/command_line.h"

#include <link.h>
#include <pcre2.h>
#include <sodium.h>
#include <utf8proc.h>
#include <xxhash.h>
#include <yaml.h>
#include <zstd.h>

static const char *version_of_xxhash(void)
{
    static char text[32];
    const unsigned n = XXH_versionNumber();
    snprintf(text, sizeof text, "%u.%u.%u", n / 10000, n / 100 % 100, n % 100);
    return text;
}

struct path_search {
    const char *part;
    char path[PATH_MAX];
};

static int match_library_object(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    struct path_search *search = data;
    if (!info->dlpi_name || !strstr(info->dlpi_name, search->part)) return 0;
    snprintf(search->path, sizeof search->path, "%s", info->dlpi_name);
    return 1;
}

/* liburing 2.4 and later know their version; an earlier one has it in the name of its file. */
extern int io_uring_major_version(void) __attribute__((weak));
extern int io_uring_minor_version(void) __attribute__((weak));

static const char *version_of_uring(void)
{
    static char text[64];
    struct path_search search = {.part = "liburing"};
    char file[PATH_MAX];
    const char *so = NULL;
    if (dl_iterate_phdr(match_library_object, &search) && realpath(search.path, file)) so = strstr(file, ".so.");
    if (io_uring_major_version && io_uring_minor_version)
        snprintf(text, sizeof text, "%d.%d", io_uring_major_version(), io_uring_minor_version());
    else
        snprintf(text, sizeof text, "%s", so ? so + strlen(".so.") : "before 2.4");
    return text;
}

static const char *version_of_pcre2(void)
{
    static char text[64]; /* "10.42 2022-12-11" */
    pcre2_config(PCRE2_CONFIG_VERSION, text);
    text[strcspn(text, " ")] = '\0';
    return text;
}

#define NUMBER_TEXT_(n) #n
#define NUMBER_TEXT(n) NUMBER_TEXT_(n)

static const struct library_row {
    const char *name, *file; /* file: part of the path it is loaded from */
    const char *built_with;  /* NULL: the headers do not have it */
    const char *(*version)(void);
} library_table[] = {
    {"libyaml", "libyaml", NULL, yaml_get_version_string},
    {"jansson", "libjansson", JANSSON_VERSION, jansson_version_str},
    {"zstd", "libzstd", ZSTD_VERSION_STRING, ZSTD_versionString},
    {"xxHash", "libxxhash",
     NUMBER_TEXT(XXH_VERSION_MAJOR) "." NUMBER_TEXT(XXH_VERSION_MINOR) "." NUMBER_TEXT(XXH_VERSION_RELEASE),
     version_of_xxhash},
    {"libsodium", "libsodium", SODIUM_VERSION_STRING, sodium_version_string},
    {"liburing", "liburing", NULL, version_of_uring},
    {"PCRE2", "libpcre2-8", NUMBER_TEXT(PCRE2_MAJOR) "." NUMBER_TEXT(PCRE2_MINOR), version_of_pcre2},
    {"utf8proc", "libutf8proc",
     NUMBER_TEXT(UTF8PROC_VERSION_MAJOR) "." NUMBER_TEXT(UTF8PROC_VERSION_MINOR) "." NUMBER_TEXT(
         UTF8PROC_VERSION_PATCH),
     utf8proc_version},
};

void version_print_libraries(const char *indent, bool paths)
{
    for (size_t i = 0; i < COUNT_OF(library_table); i++) {
        const struct library_row *row = &library_table[i];
        struct path_search search = {.part = row->file};
        const char *version = row->version();
        printf("%s%-16s  %s", indent, row->name, version);
        if (row->built_with && strcmp(row->built_with, version)) printf(" (built with %s)", row->built_with);
        if (paths)
            printf("  %s",
                   dl_iterate_phdr(match_library_object, &search) ? PRINTABLE(search.path) : "linked statically");
        putchar('\n');
    }
}

enum status cmd_version(int argc, char **argv, struct error *err)
{
    static const char usage[] =
        "usage: ztrain version\n\nPrints the versions of ztrain, its compiler and the libraries in use.\n";
    static const struct command_line line = {"version", usage, NULL, 0, NULL, NULL, 0};
    TRY(command_line_parse(&line, argc, argv, NULL, err));
    printf("%-16s  %s\n", "ztrain", ZTRAIN_VERSION);
#ifdef __clang__
    printf("%-16s  clang %s\n", "compiler", __clang_version__);
#else
    printf("%-16s  gcc %s\n", "compiler", __VERSION__);
#endif
    version_print_libraries("", false);
    return STATUS_OK;
}
