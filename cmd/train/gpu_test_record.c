#include "cmd/train/gpu_test_record.h"

#include "cmd/train/machine_record.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/version.h"
#include "gpu/gemm_cache.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { RECORD_PATH = 4096, RECORD_LINE = 80 };

/* Sets the path of the record of this model of GPU. Returns false if there is no folder for records. */
static bool record_path(const struct device *device, char *path, size_t size)
{
    char folder[RECORD_PATH], name[sizeof device->name];
    size_t n = 0;
    if (!gemm_cache_folder(folder, sizeof folder))
        return false;
    for (const char *c = device->name; *c; c++)
        name[n++] = isalnum((unsigned char)*c) ? *c : '-';
    name[n] = '\0';
    return snprintf(path, size, "%.3900s/gpu-test-%s.txt", folder, name) < (int)size;
}

/* What a test is valid for: the GPU itself, its driver, the libraries, this ztrain, and which epilogues it tried. */
static uint64_t hash_of_machine(const struct device *device)
{
    json_t *machine = machine_record_to_json(device);
    char *text = json_dumps(machine, JSON_SORT_KEYS | JSON_COMPACT);
    const char *epilogues = getenv("ZTRAIN_GEMM_EPILOGUES");
    XXH64_hash_t hash = XXH64(device->id, strlen(device->id), 0);
    if (epilogues && *epilogues)
        hash = XXH64(epilogues, strlen(epilogues), hash);
    if (text)
        hash = XXH64(text, strlen(text), hash);
    free(text);
    json_decref(machine);
    return XXH64(ZTRAIN_VERSION, strlen(ZTRAIN_VERSION), hash);
}

static int print_record(char *line, size_t size, uint64_t hash, unsigned avoid)
{
    const int n = snprintf(line, size, "%016" PRIx64 " %u", hash, avoid);
    return n + snprintf(line + n, size - (size_t)n, " %016" PRIx64 "\n", (uint64_t)XXH64(line, (size_t)n, 0));
}

bool gpu_test_record_find(const struct device *device, unsigned *avoid)
{
    char path[RECORD_PATH], line[RECORD_LINE], right[RECORD_LINE];
    bool found = false;
    FILE *file = record_path(device, path, sizeof path) ? memory_fopen(path, "re") : NULL;
    if (!file)
        return false;
    const uint64_t hash = hash_of_machine(device);
    while (fgets(line, sizeof line, file)) {
        uint64_t its;
        unsigned parts;
        if (sscanf(line, "%16" SCNx64 " %9u ", &its, &parts) != 2 || its != hash)
            continue;
        print_record(right, sizeof right, its, parts);
        if (strcmp(line, right) != 0)
            continue;
        *avoid = parts;
        found = true;
    }
    fclose(file);
    return found;
}

void gpu_test_record_add(const struct device *device, unsigned avoid)
{
    char path[RECORD_PATH], line[RECORD_LINE];
    if (!record_path(device, path, sizeof path))
        return;
    gemm_cache_make_folder();
    const int n = print_record(line, sizeof line, hash_of_machine(device), avoid);
    const int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    const bool written = fd >= 0 && write(fd, line, (size_t)n) == n;
    if (!written)
        log_info("cannot write '%s': %s; the GPU is tested again next time", path, strerror(errno));
    if (fd >= 0)
        close(fd);
}
