/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/library_places.h"

#include "core/core.h"

#include <dlfcn.h>
#include <glob.h>

/* Of a site-packages folder. */
#define IN_PACKAGES "/nvidia/*/lib"
/* Of a prefix: Debian's own Python has dist-packages, Fedora's a lib64 next to lib. */
#define IN_PREFIX "/lib*/python3*/*-packages" IN_PACKAGES

struct search {
    const char *file;
    char *why; /* (size) */
    size_t size;
    bool refused; /* `why` is that of a file that is there */
};

/* `folder` as a part of a pattern of glob(); the caller frees it. */
static char *library_literal(const char *folder)
{
    char *text = memory_alloc(2 * strlen(folder) + 1), *at = text;
    for (; *folder; folder++) {
        if (strchr("*?[]\\", *folder)) *at++ = '\\';
        *at++ = *folder;
    }
    *at = '\0';
    return text;
}

/* Opens the first file in a folder of the pattern `folder``below`; `below` may have wildcards. */
static void *open_library_below(struct search *search, const char *folder, const char *below)
{
    if (!folder || !*folder) return NULL;
    glob_t found;
    void *handle = NULL;
    OWNED char *start = library_literal(folder), *pattern = memory_printf("%s%s/%s", start, below, search->file);
    int rc = glob(pattern, 0, NULL, &found);
    if (rc == GLOB_NOSPACE) memory_exhausted(0);
    for (size_t i = 0; rc == 0 && !handle && i < found.gl_pathc; i++) {
        const char *reason = NULL;
        handle = memory_dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_LOCAL, &reason);
        if (!handle && !search->refused) snprintf(search->why, search->size, "%s", reason);
        search->refused = search->refused || !handle;
    }
    if (rc == 0) globfree(&found);
    return handle;
}

/* Warns of folders of $ZTRAIN_CUDA_LIBRARIES that are not there, once for each value of the variable. */
static void check_named_library(const char *list)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* protects `checked` */
    static char *checked;                                     /* kept until the process ends */
    struct stat info;
    pthread_mutex_lock(&mutex);
    const bool known = checked && strcmp(checked, list) == 0;
    if (!known) {
        free(checked);
        checked = memory_text(list);
    }
    pthread_mutex_unlock(&mutex);
    while (!known && *list) {
        const size_t length = strcspn(list, ":");
        OWNED char *folder = memory_printf("%.*s", (int)length, list);
        if (length && (stat(folder, &info) != 0 || !S_ISDIR(info.st_mode)))
            log_warn(
                "ZTRAIN_CUDA_LIBRARIES: there is no folder '%s'; ztrain searches the other places for the libraries",
                folder);
        list += length + (list[length] == ':');
    }
}

static void *open_named_library(struct search *search)
{
    const char *list = getenv("ZTRAIN_CUDA_LIBRARIES");
    void *handle = NULL;
    if (list) check_named_library(list);
    while (list && *list && !handle && !search->refused) {
        size_t length = strcspn(list, ":");
        OWNED char *folder = memory_printf("%.*s", (int)length, list);
        handle = open_library_below(search, folder, "");
        if (!handle && !search->refused) handle = open_library_below(search, folder, IN_PACKAGES);
        list += length + (list[length] == ':');
    }
    return handle;
}

/* The folder above that of PATH's python3, whose link is not followed (a virtual environment); for free(), or NULL. */
static char *library_python_prefix(void)
{
    for (const char *path = getenv("PATH"); path && *path;) {
        size_t length = strcspn(path, ":");
        OWNED char *program = memory_printf("%.*s/python3", (int)length, path);
        if (access(program, X_OK) == 0) return memory_printf("%.*s/..", (int)length, path);
        path += length + (path[length] == ':');
    }
    return NULL;
}

static void *open_packaged_library(struct search *search)
{
    const char *home = getenv("HOME");
    OWNED char *python = library_python_prefix(), *local = memory_printf("%s/.local", home ? home : "");
    const char *const prefixes[] = {getenv("VIRTUAL_ENV"), getenv("CONDA_PREFIX"), python,
                                    home ? local : NULL,   "/usr/local",           "/usr"};
    void *handle = open_library_below(search, getenv("CONDA_PREFIX"), "/lib");
    for (size_t i = 0; !handle && i < COUNT_OF(prefixes); i++)
        handle = open_library_below(search, prefixes[i], IN_PREFIX);
    return handle;
}

static void name_library_packages(const char *file, char *why, size_t size)
{
    static const struct {
        const char *file, *pypi, *distribution;
    } packages[] = {
        {"libcublasLt.so.12", "nvidia-cublas-cu12", "libcublas-12-N, as libcublas-12-8"},
        {"libcublasLt.so.13", "nvidia-cublas", "libcublas-13-N, as libcublas-13-0"},
        {"libcudnn.so.9", "nvidia-cudnn-cu13 or nvidia-cudnn-cu12", "libcudnn9-cuda-13 or libcudnn9-cuda-12"},
        {"libnccl.so.2", "nvidia-nccl-cu13 or nvidia-nccl-cu12", "libnccl2"}};
    const size_t used = strlen(why);
    for (size_t i = 0; i < COUNT_OF(packages); i++)
        if (!strcmp(packages[i].file, file))
            snprintf(why + used, size - used,
                     "; PyPI's package is %s, that of NVIDIA's repository for Debian and Ubuntu %s", packages[i].pypi,
                     packages[i].distribution);
}

void *library_places_open(const char *file, char *why, size_t size)
{
    struct search search = {.file = file, .why = why, .size = size};
    const char *const toolkits[] = {getenv("CUDA_HOME"), getenv("CUDA_PATH"), "/usr/local/cuda"};
    const char *reason = NULL;
    void *handle = open_named_library(&search);
    if (handle || search.refused) return handle;
    handle = memory_dlopen(file, RTLD_NOW | RTLD_LOCAL, &reason);
    if (handle) return handle;
    snprintf(why, size, "%s", reason);
    for (size_t i = 0; !handle && i < COUNT_OF(toolkits); i++)
        handle = open_library_below(&search, toolkits[i], "/lib64");
    if (!handle) handle = open_packaged_library(&search);
    if (!handle) name_library_packages(file, why, size);
    return handle;
}
