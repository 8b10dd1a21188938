/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/engine/gpu_test.h"

#include "cmd/engine/machine_record.h"
#include "comm/agree.h"
#include "gpu/autotune_cache.h"
#include "gpu/model/self_test_step.h"
#include "gpu/open/device_open.h"
#include "gpu/self_test.h"

#include <link.h>
#include <xxhash.h>

enum { TEXT = 320 };

struct gpu_test {
    struct device *device; /* borrowed: under test */
    struct device *cpu;    /* owned */
    struct self_test *checker;
    gpu_test_line report;
    unsigned avoid;
    struct error failed; /* the first check without an alternative that failed; code STATUS_OK: none */
};

static void tell(struct gpu_test *test, const char *check, const char *differs)
{
    if (test->report) test->report(check, differs);
}

/* An op whose result differs is checked once more without the parts that it can do without. */
static enum status test_op(struct gpu_test *test, int op, struct error *err)
{
    char differs[TEXT], again[TEXT], name[64];
    const unsigned parts = (strncmp(op_name(op), "linear_", 7) == 0 ? DEVICE_EPILOGUES : 0) & ~test->avoid;
    snprintf(name, sizeof name, "op %s", op_name(op));
    TRY(self_test_op(test->checker, op, differs, sizeof differs, err));
    tell(test, name, differs);
    if (!*differs) return STATUS_OK;
    if (parts) {
        device_avoid(test->device, parts);
        TRY(self_test_op(test->checker, op, again, sizeof again, err));
        snprintf(name, sizeof name, "op %s without %s", op_name(op), device_part_name(parts));
        tell(test, name, again);
        if (!*again) {
            test->avoid |= parts;
            return STATUS_OK;
        }
    }
    if (test->failed.code != STATUS_OK) return STATUS_OK;
    error_set(&test->failed, STATUS_DEVICE, "the self-test of %s failed: %s: %s", test->device->name, name,
              parts ? again : differs);
    error_hint(&test->failed,
               "the GPU, its driver or a library is faulty: `ztrain doctor --gpu-test` shows every check");
    return STATUS_OK;
}

static enum status test_all(struct gpu_test *test, struct error *err)
{
    char differs[TEXT];
    TRY(device_open(DEVICE_CPU, 0, test->device->threads, &test->cpu, err));
    TRY(self_test_new(test->device, test->cpu, &test->checker, err));
    for (int op = 0; op < OPS_COUNT; op++) TRY(test_op(test, op, err));
    if (test->failed.code != STATUS_OK) *err = test->failed;
    TRY(test->failed.code);
    if (!device_has_graphs(test->device)) return STATUS_OK;
    TRY(self_test_step(test->device, differs, sizeof differs, err));
    tell(test, "a captured step", differs);
    if (*differs) test->avoid |= DEVICE_GRAPHS;
    return STATUS_OK;
}

enum status gpu_test_run(struct device *device, gpu_test_line report, unsigned *avoid, struct error *err)
{
    struct gpu_test test = {.device = device, .report = report, .failed.code = STATUS_OK};
    enum status status = test_all(&test, err);
    self_test_free(test.checker);
    device_close(test.cpu);
    *avoid = test.avoid;
    return status;
}

enum { RECORD_PATH = 4096, RECORD_LINE = 80 };

/* ---- the record: what was tested ----------------------------------------- */

struct build_id {
    unsigned char bytes[64];
    size_t size; /* 0: none is found */
};

/* Names and contents of a segment's notes are padded to four bytes. */
static int gpu_test_read_build(struct dl_phdr_info *info, size_t size, void *context)
{
    struct build_id *id = context;
    (void)size;
    for (const ElfW(Phdr) *part = info->dlpi_phdr; part < info->dlpi_phdr + info->dlpi_phnum; part++) {
        const char *notes = (const char *)(info->dlpi_addr + part->p_vaddr);
        for (size_t at = 0; part->p_type == PT_NOTE && at + sizeof(ElfW(Nhdr)) <= part->p_memsz;) {
            ElfW(Nhdr) note;
            memcpy(&note, notes + at, sizeof note);
            const size_t name = at + sizeof note, content = name + (note.n_namesz + 3) / 4 * 4;
            at = content + (note.n_descsz + 3) / 4 * 4;
            if (at > part->p_memsz || note.n_type != NT_GNU_BUILD_ID || note.n_namesz != 4 ||
                memcmp(notes + name, "GNU", 4) != 0)
                continue;
            id->size = note.n_descsz < sizeof id->bytes ? note.n_descsz : sizeof id->bytes;
            memcpy(id->bytes, notes + content, id->size);
        }
    }
    return 1;
}

/* What a test is valid for: the GPU, its driver, the libraries, the environment's choices, and this build, whose ID the
 * linker makes from all that it links. path: of the file of records. false: there is no ID, or no folder. */
static bool gpu_test_locate(const struct device *device, char path[RECORD_PATH], uint64_t *result)
{
    char folder[RECORD_PATH], name[sizeof device->name];
    struct build_id id = {.size = 0};
    dl_iterate_phdr(gpu_test_read_build, &id);
    if (id.size == 0 || !autotune_cache_folder(folder, sizeof folder)) return false;
    autotune_cache_file_words(device->name, name);
    json_auto_t *machine = machine_record_to_json(device);
    OWNED char *text = json_dumps(machine, JSON_SORT_KEYS | JSON_COMPACT);
    XXH64_hash_t hash = XXH64(device->id, strlen(device->id), XXH64(id.bytes, id.size, 0));
    if (text) hash = XXH64(text, strlen(text), hash);
    *result = hash;
    return snprintf(path, RECORD_PATH, "%.3900s/gpu-test-%s.txt", folder, name) < RECORD_PATH;
}

/* ---- the file ------------------------------------------------------------ */

static int print_gpu_test_record(char *line, size_t size, uint64_t hash, unsigned avoid)
{
    const int n = snprintf(line, size, "%016" PRIx64 " %u", hash, avoid);
    return n + snprintf(line + n, size - (size_t)n, " %016" PRIx64 "\n", (uint64_t)XXH64(line, (size_t)n, 0));
}

static bool find_gpu_test_record(const struct device *device, unsigned *avoid)
{
    char path[RECORD_PATH], line[RECORD_LINE], right[RECORD_LINE];
    bool found = false;
    uint64_t hash;
    FILE *file = gpu_test_locate(device, path, &hash) ? memory_fopen(path, "re") : NULL;
    if (!file) return false;
    while (fgets(line, sizeof line, file)) {
        uint64_t its;
        unsigned parts;
        if (sscanf(line, "%16" SCNx64 " %9u ", &its, &parts) != 2 || its != hash) continue;
        print_gpu_test_record(right, sizeof right, its, parts);
        if (strcmp(line, right) != 0) continue;
        *avoid = parts;
        found = true;
    }
    fclose(file);
    return found;
}

/* ---- before a run -------------------------------------------------------- */

enum { WISH_NEVER, WISH_ALWAYS, WISH_COUNT };

static enum status find_own_gpu_test(const struct engine *t, unsigned *avoid, struct error *err)
{
    static const char *const words[WISH_COUNT] = {[WISH_NEVER] = "never", [WISH_ALWAYS] = "always"};
    int wish;
    *avoid = 0;
    TRY(env_choice("ZTRAIN_GPU_TEST", words, WISH_COUNT, &wish, err));
    if (wish == WISH_NEVER || (wish != WISH_ALWAYS && find_gpu_test_record(t->device, avoid))) return STATUS_OK;
    const double start = seconds_now();
    TRY(gpu_test_run(t->device, NULL, avoid, err));
    log_detail("GPU self-test: %d ops and a captured step, in %.1f s", (int)OPS_COUNT, seconds_now() - start);
    char path[RECORD_PATH], line[1 + RECORD_LINE] = "\n", last = '\n';
    uint64_t hash;
    if (!gpu_test_locate(t->device, path, &hash)) return STATUS_OK;
    autotune_cache_make_folder(); /* remembers the test; if it cannot, a line of the log says that it is repeated */
    RELEASED(fs_close) int fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    const off_t size = lseek(fd, 0, SEEK_END);
    if (size > 0 && pread(fd, &last, 1, size - 1) != 1) last = '\n';
    const int before = last != '\n'; /* the line's own newline ends the torn one */
    const int n = before + print_gpu_test_record(line + before, RECORD_LINE, hash, *avoid);
    const bool written = fd >= 0 && write(fd, line, (size_t)n) == n;
    if (!written) log_info("cannot write '%s': %s; the GPU is tested again next time", path, strerror(errno));
    return STATUS_OK;
}

static enum status apply_gpu_test(struct engine *t, unsigned avoid, struct error *err)
{
    if ((avoid & DEVICE_GRAPHS) && t->graphs && t->spec->train.cuda_graphs == SPEC_ON)
        return error_set(
            err, STATUS_DEVICE,
            "train.cuda_graphs is true, but in the self-test of %s a captured step differed from one op by "
            "op; hint: auto launches steps op by op then",
            t->device->name);
    for (unsigned part = 1; part <= DEVICE_PARTS_LAST; part <<= 1)
        if ((avoid & part) && t->rank == 0)
            log_warn("the self-test of %s found wrong results with %s: the run does without, and is slower",
                     t->device->name, device_part_name(part));
    if (avoid & DEVICE_GRAPHS) t->graphs = GRAPHS_NONE;
    device_avoid(t->device, avoid);
    return STATUS_OK;
}

enum status gpu_test_before_run(struct engine *t, struct error *err)
{
    unsigned own = 0, all = 0;
    TRY(agree(t->comm, t->device->kind == DEVICE_CUDA ? find_own_gpu_test(t, &own, err) : STATUS_OK, err));
    OWNED unsigned *masks = memory_zeroed((size_t)t->world, sizeof *masks);
    TRY(comm_exchange(t->comm, &own, sizeof own, masks, err));
    for (int r = 0; r < t->world; r++) all |= masks[r];
    return agree(t->comm, apply_gpu_test(t, all, err), err);
}
