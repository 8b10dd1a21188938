#include "cmd/engine/gpu_test_record.h"

#include "cmd/engine/machine_record.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/status.h"
#include "gpu/autotune_cache.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <link.h>
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
    if (!autotune_cache_folder(folder, sizeof folder))
        return false;
    autotune_cache_file_words(device->name, name);
    return snprintf(path, size, "%.3900s/gpu-test-%s.txt", folder, name) < (int)size;
}

/* ---- what was tested ----------------------------------------------------- */

struct build_id {
    unsigned char bytes[64];
    size_t size; /* 0: none is found */
};

/* Finds the build ID among the notes of a segment: names and contents are padded to four bytes. */
static void read_notes(const char *notes, size_t size, struct build_id *id)
{
    for (size_t at = 0; at + sizeof(ElfW(Nhdr)) <= size;) {
        ElfW(Nhdr) note;
        memcpy(&note, notes + at, sizeof note);
        const size_t name = at + sizeof note, content = name + (note.n_namesz + 3) / 4 * 4;
        at = content + (note.n_descsz + 3) / 4 * 4;
        if (at > size || note.n_type != NT_GNU_BUILD_ID || note.n_namesz != 4 || memcmp(notes + name, "GNU", 4) != 0)
            continue;
        id->size = note.n_descsz < sizeof id->bytes ? note.n_descsz : sizeof id->bytes;
        memcpy(id->bytes, notes + content, id->size);
    }
}

/* The first object is the program itself. */
static int read_program(struct dl_phdr_info *info, size_t size, void *id)
{
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_NOTE)
            read_notes((const char *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr), info->dlpi_phdr[i].p_memsz, id);
    return 1;
}

/* What a test is valid for: the GPU itself, its driver, the libraries, this build of ztrain, and what the environment
 * chooses among products. The linker makes the build ID from all that it links, kernels included. Returns false if the
 * program has none. */
static bool hash_of_machine(const struct device *device, uint64_t *result)
{
    static const char *const variables[] = {"ZTRAIN_GEMM_EPILOGUES", "ZTRAIN_CUDA_TF32"};
    struct build_id id = {.size = 0};
    dl_iterate_phdr(read_program, &id);
    if (id.size == 0)
        return false;
    json_t *machine = machine_record_to_json(device);
    char *text = json_dumps(machine, JSON_SORT_KEYS | JSON_COMPACT);
    XXH64_hash_t hash = XXH64(device->id, strlen(device->id), XXH64(id.bytes, id.size, 0));
    for (size_t i = 0; i < COUNT_OF(variables); i++) {
        const char *value = getenv(variables[i]);
        hash = XXH64(value ? value : "", value ? strlen(value) : 0, hash);
    }
    if (text)
        hash = XXH64(text, strlen(text), hash);
    free(text);
    json_decref(machine);
    *result = hash;
    return true;
}

/* ---- the file ------------------------------------------------------------ */

static int print_record(char *line, size_t size, uint64_t hash, unsigned avoid)
{
    const int n = snprintf(line, size, "%016" PRIx64 " %u", hash, avoid);
    return n + snprintf(line + n, size - (size_t)n, " %016" PRIx64 "\n", (uint64_t)XXH64(line, (size_t)n, 0));
}

bool gpu_test_record_find(const struct device *device, unsigned *avoid)
{
    char path[RECORD_PATH], line[RECORD_LINE], right[RECORD_LINE];
    bool found = false;
    uint64_t hash;
    FILE *file =
        hash_of_machine(device, &hash) && record_path(device, path, sizeof path) ? memory_fopen(path, "re") : NULL;
    if (!file)
        return false;
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

/* Whether the last line has been cut off: by a disk that was full, or a machine that stopped. */
static bool is_torn(int fd)
{
    char last;
    const off_t size = lseek(fd, 0, SEEK_END);
    return size > 0 && pread(fd, &last, 1, size - 1) == 1 && last != '\n';
}

void gpu_test_record_add(const struct device *device, unsigned avoid)
{
    char path[RECORD_PATH], line[1 + RECORD_LINE] = "\n";
    uint64_t hash;
    if (!hash_of_machine(device, &hash) || !record_path(device, path, sizeof path))
        return;
    autotune_cache_make_folder();
    const int fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    const int before = fd >= 0 && is_torn(fd); /* the line's own newline ends the torn one */
    const int n = before + print_record(line + before, RECORD_LINE, hash, avoid);
    const bool written = fd >= 0 && write(fd, line, (size_t)n) == n;
    if (!written)
        log_info("cannot write '%s': %s; the GPU is tested again next time", path, strerror(errno));
    if (fd >= 0)
        close(fd);
}
