/* SPDX-License-Identifier: Apache-2.0 */
/* bench_checkpoints.c: a run folder with many checkpoints of many ranks, and what rank 0 does in it.
 *
 *     make build/tests/bench_checkpoints
 *     build/tests/bench_checkpoints make CHECKPOINT DIR RANKS COUNT
 *     build/tests/bench_checkpoints measure DIR WORK
 *
 * `make` writes COUNT checkpoints of RANKS ranks into DIR, a run's checkpoints/, with the state, the spec and the
 * tensors of CHECKPOINT: one of any run, at step COUNT or later. The newest has its position; those before it have the
 * steps before, scores of an evaluation, and every tenth the name of an epoch. Their rank files are hard links to one
 * set.
 *
 * `measure` publishes new checkpoints in DIR as rank 0 of that many ranks, with files from the newest one, and prints
 * the seconds of each, those of parts of it, and the bytes of memory. Before each it prints a line "== NAME" by one
 * write(), at which scripts/bench-checkpoints.py divides the system calls. WORK: an empty folder on the same file
 * system. What is measured changes DIR. */
#include "ckpt/checkpoint.h"
#include "ckpt/checkpoint_folders.h"
#include "ckpt/checkpoint_rewind.h"
#include "ckpt/checkpoint_save.c"
#include "ckpt/manifest.h"
#include "core/clock.h"
#include "core/memory.h"

#include <inttypes.h>
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void die(const struct error *err)
{
    fprintf(stderr, "bench_checkpoints: %s\n", err->text);
    exit(1);
}

#define MUST(call)                         \
    do {                                   \
        struct error err_ = {0};           \
        struct error *err = &err_;         \
        if ((call) != STATUS_OK) die(err); \
    } while (0)

/* What the manifest of a checkpoint describes, for a writer. */
struct described {
    struct manifest *manifest;
    struct tensor_info *tensors;
    struct unit_info *units;
    struct tensor_table table;
};

static void describe(const char *folder, struct described *d)
{
    MUST(manifest_load(folder, true, &d->manifest, err));
    const struct manifest *m = d->manifest;
    d->tensors = memory_zeroed((size_t)m->num_tensors, sizeof *d->tensors);
    d->units = memory_zeroed((size_t)m->num_units, sizeof *d->units);
    int64_t elements = 0;
    for (int i = 0; i < m->num_tensors; i++) {
        const struct manifest_tensor *t = &m->tensors[i];
        struct tensor_info *to = &d->tensors[i];
        snprintf(to->name, sizeof to->name, "%s", t->name);
        to->unit = t->unit;
        to->ndim = t->ndim;
        to->numel = t->numel;
        to->offset = t->offset;
        memcpy(to->shape, t->shape, sizeof to->shape);
        elements += t->numel;
        if (!d->units[t->unit].num_tensors++) d->units[t->unit].first_tensor = i;
    }
    for (int u = 0; u < m->num_units; u++) {
        snprintf(d->units[u].name, sizeof d->units[u].name, "%s", m->units[u].name);
        d->units[u].numel = m->units[u].numel;
    }
    d->table = (struct tensor_table){.num_tensors = m->num_tensors,
                                     .num_units = m->num_units,
                                     .tensors = d->tensors,
                                     .units = d->units,
                                     .num_params = elements};
}

static void described_release(struct described *d)
{
    manifest_free(d->manifest);
    free(d->tensors);
    free(d->units);
}

static struct checkpoint_writer writer_of(const struct described *d, const struct shard_layout *layout)
{
    const struct manifest *m = d->manifest;
    return (struct checkpoint_writer){.compression_level = 3,
                                      .table = &d->table,
                                      .layout = layout,
                                      .spec = m->facts.spec,
                                      .model = m->facts.model,
                                      .machine = m->facts.machine,
                                      .dtype = m->facts.dtype,
                                      .data_fingerprint = m->facts.data_fingerprint};
}

static void join(char out[FS_PATH_MAX], const char *folder, const char *name)
{
    MUST(fs_join(out, folder, name, STATUS_USAGE, err));
}

/* ---- make ---------------------------------------------------------------- */

struct shard {
    const struct shard_layout *layout;
    float *data[STATE_KIND_COUNT];
};

static enum status slice_of(void *context, enum slice_access access, enum state_kind state, int unit, float **slice,
                            struct error *err)
{
    (void)access, (void)err;
    const struct shard *shard = context;
    *slice = shard->data[state] + shard->layout->shard_offset[unit];
    return STATUS_OK;
}

static void write_rank(const struct checkpoint *source, const struct described *d, const struct shard_layout *layout,
                       int rank, const char *folder, struct manifest_file *file)
{
    const struct manifest *m = d->manifest;
    struct shard shard = {.layout = layout};
    for (int s = 0; s < m->facts.num_states; s++)
        shard.data[s] = memory_zeroed((size_t)layout->shard_numel, sizeof(float));
    const struct state_slices slices = {.owner = &shard, .count = m->facts.num_states, .get = slice_of};
    MUST(checkpoint_load(source, &d->table, layout, rank, slices, err));
    struct rankfile_shape shape = {.rank = rank,
                                   .world = layout->world,
                                   .num_states = m->facts.num_states,
                                   .num_units = layout->num_units,
                                   .slice = layout->slice,
                                   .state_name = state_kind_names};
    char path[FS_PATH_MAX];
    struct rankfile_writer *out;
    struct rankfile_facts facts;
    manifest_rank_name(rank, file->name);
    join(path, folder, file->name);
    MUST(rankfile_writer_new(path, &shape, 3, &out, err));
    for (int s = 0; s < m->facts.num_states; s++)
        for (int u = 0; u < layout->num_units; u++)
            MUST(rankfile_writer_slice(out, s, u, shard.data[s] + layout->shard_offset[u], err));
    MUST(rankfile_writer_finish(out, &facts, err));
    rankfile_writer_free(out);
    file->bytes = facts.bytes;
    file->num_frames = facts.num_frames;
    file->checksum = facts.index_checksum;
    for (int s = 0; s < m->facts.num_states; s++) free(shard.data[s]);
}

static void link_files(const char *from, const char *to, const struct manifest_file *files, int count)
{
    char a[FS_PATH_MAX], b[FS_PATH_MAX];
    for (int i = 0; i < count; i++) {
        join(a, from, files[i].name);
        join(b, to, files[i].name);
        if (link(a, b) != 0) {
            perror(b);
            exit(1);
        }
    }
}

static void write_whole(const char *folder, const char *name, const char *text, size_t bytes)
{
    char path[FS_PATH_MAX];
    join(path, folder, name);
    FILE *out = fopen(path, "wb");
    if (!out || fwrite(text, 1, bytes, out) != bytes || fclose(out)) {
        perror(path);
        exit(1);
    }
}

/* The position of checkpoint i of `count`, of which the newest is the source's. */
static struct train_position position_of(const struct train_position *newest, int i, int count)
{
    struct train_position position = *newest;
    if (i == count) return position;
    position.step = newest->step - count + i;
    position.optimizer_step = position.step;
    position.evaluation_due = false;
    position.epoch = i / 10 + 1;
    position.step_in_epoch = i % 10;
    position.epoch_end = i % 10 == 0;
    position.epoch -= position.epoch_end;
    position.scores = (struct eval_scores){.known = true, .data = 1, .values = {4 - 0.001 * (i * 37 % 200), NAN, NAN}};
    return position;
}

static void make(const char *from, const char *dir, int ranks, int count)
{
    struct checkpoint *source;
    struct described d = {0};
    struct shard_layout layout;
    char first[FS_PATH_MAX] = "", folder[FS_PATH_MAX], name[64];
    MUST(checkpoint_open(from, true, &source, err));
    describe(from, &d);
    shard_layout_init(&layout, &d.table, ranks);
    struct manifest_file *files = memory_zeroed((size_t)ranks, sizeof *files);
    struct checkpoint_writer writer = writer_of(&d, &layout);
    MUST(fs_mkdirs(dir, STATUS_USAGE, err));
    for (int i = 1; i <= count; i++) {
        const struct train_position position = position_of(&source->position, i, count);
        char *text;
        size_t bytes;
        checkpoint_name(&position, name);
        join(folder, dir, name);
        MUST(fs_mkdirs(folder, STATUS_USAGE, err));
        if (*first) {
            link_files(first, folder, files, ranks);
        } else {
            strcpy(first, folder);
            for (int r = 0; r < ranks; r++) write_rank(source, &d, &layout, r, folder, &files[r]);
        }
        MUST(manifest_encode(&writer, &position, d.manifest->facts.num_states, NULL, files, ranks, &text, &bytes, err));
        write_whole(folder, MANIFEST_NAME, text, bytes);
        if (i == count)
            printf("%d checkpoints of %d ranks, %d units and %d tensors; a manifest has %zu bytes\n", count, ranks,
                   d.table.num_units, d.table.num_tensors, bytes);
        free(text);
    }
    free(files);
    shard_layout_release(&layout);
    described_release(&d);
    checkpoint_close(source);
}

/* ---- measure ------------------------------------------------------------- */

static double began;

static void begin(const char *name)
{
    char line[128];
    int n = snprintf(line, sizeof line, "== %s\n", name);
    fflush(stdout);
    if (write(STDOUT_FILENO, line, (size_t)n) != n) exit(1);
    began = seconds_now();
}

static void end(void)
{
    double seconds = seconds_now() - began;
    begin("-");
    printf("%.4f s\n", seconds);
}

/* The newest checkpoint, as a start finds it, and the plan of its rewind. */
static void measure_start(const char *dir, char newest[FS_PATH_MAX])
{
    struct checkpoint *checkpoint;
    struct checkpoint_rewind rewind;
    char run[FS_PATH_MAX];
    begin("open the newest");
    MUST(checkpoint_open(dir, false, &checkpoint, err));
    end();
    snprintf(newest, FS_PATH_MAX, "%s", checkpoint->path);
    fs_parent(dir, run);
    begin("plan the rewind");
    MUST(checkpoint_rewind_plan(run, checkpoint, true, &rewind, err));
    end();
    checkpoint_rewind_release(&rewind);
    checkpoint_close(checkpoint);
}

static void measure_manifest(const char *newest)
{
    struct manifest *manifest;
    struct mallinfo2 before = mallinfo2();
    begin("parse a manifest");
    MUST(manifest_load(newest, false, &manifest, err));
    end();
    printf("%zu bytes of memory\n", mallinfo2().uordblks - before.uordblks);
    manifest_free(manifest);
}

/* One rank's share of a load with another number of ranks: the middle one's. */
static void measure_load(const char *newest, int world)
{
    struct checkpoint *checkpoint;
    struct described d = {0};
    struct shard_layout layout;
    struct shard shard = {.layout = &layout};
    char name[64];
    MUST(checkpoint_open(newest, false, &checkpoint, err));
    describe(newest, &d);
    shard_layout_init(&layout, &d.table, world);
    for (int s = 0; s < d.manifest->facts.num_states; s++)
        shard.data[s] = memory_zeroed((size_t)layout.shard_numel, sizeof(float));
    snprintf(name, sizeof name, "load as rank %d of %d", world / 2, world);
    begin(name);
    MUST(checkpoint_load(checkpoint, &d.table, &layout, world / 2,
                         (struct state_slices){.owner = &shard, .count = d.manifest->facts.num_states, .get = slice_of},
                         err));
    end();
    for (int s = 0; s < d.manifest->facts.num_states; s++) free(shard.data[s]);
    shard_layout_release(&layout);
    described_release(&d);
    checkpoint_close(checkpoint);
}

/* Publishes a checkpoint of `step` as rank 0 does when all ranks have written their files. */
static void measure_publish(const char *dir, const char *work, const struct described *d,
                            struct checkpoint_writer *writer, int64_t step, const char *name)
{
    const struct manifest *m = d->manifest;
    struct checkpoint_saving save = {
        .writer = writer, .position = m->facts.position, .world = m->facts.world, .num_states = m->facts.num_states};
    save.position.step = save.position.optimizer_step = step;
    save.position.evaluation_due = save.position.epoch_end = false;
    save.position.scores = (struct eval_scores){.known = true, .data = 1, .values = {3, NAN, NAN}};
    checkpoint_name(&save.position, save.name);
    save.reports = memory_zeroed((size_t)m->facts.world, sizeof *save.reports);
    for (int r = 0; r < m->facts.world; r++)
        save.reports[r].facts =
            (struct rankfile_facts){m->files[r].bytes, m->files[r].num_frames, m->files[r].checksum};
    snprintf(save.tmp, sizeof save.tmp, "%s/.tmp-%s", dir, save.name);
    MUST(fs_mkdirs(save.tmp, STATUS_USAGE, err));
    link_files(work, save.tmp, m->files, m->facts.world);
    join(save.final, dir, save.name);
    begin(name);
    if (writer->keep.best) checkpoint_is_among_best(writer->cache, dir, &writer->keep, &save.position);
    MUST(publish(&save, err));
    end();
    free(save.files);
    free(save.reports);
}

static void measure_saves(const char *dir, const char *work, const char *newest, const char *what,
                          const struct checkpoint_keep *keep, int64_t *step)
{
    struct described d = {0};
    struct shard_layout layout;
    char name[128];
    describe(newest, &d);
    shard_layout_init(&layout, &d.table, d.manifest->facts.world);
    struct checkpoint_writer writer = writer_of(&d, &layout);
    writer.dir = dir;
    writer.keep = *keep;
    MUST(checkpoint_save_cache_new(NULL, NULL, &writer.cache, err));
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "%s save, %s", i ? "second" : "first", what);
        measure_publish(dir, work, &d, &writer, ++*step, name);
    }
    checkpoint_save_cache_free(writer.cache);
    shard_layout_release(&layout);
    described_release(&d);
}

static void measure(const char *dir, const char *work)
{
    static const struct {
        const char *what;
        struct checkpoint_keep keep;
    } ways[] = {{"all kept", {0}},
                {"keep_every_steps, keep_last", {.last = 3, .every_steps = 1}},
                {"keep_best, all kept", {.best = 3, .data = 1}},
                {"keep_best, keep_every_steps, keep_last", {.last = 3, .best = 3, .every_steps = 1, .data = 1}}};
    struct described d = {0};
    char newest[FS_PATH_MAX];
    measure_start(dir, newest);
    measure_manifest(newest);
    describe(newest, &d);
    measure_load(newest, d.manifest->facts.world / 2);
    int64_t step = d.manifest->facts.position.step;
    link_files(newest, work, d.manifest->files, d.manifest->facts.world);
    for (size_t i = 0; i < COUNT_OF(ways); i++) measure_saves(dir, work, newest, ways[i].what, &ways[i].keep, &step);
    described_release(&d);
}

int main(int argc, char **argv)
{
    if (argc == 6 && !strcmp(argv[1], "make"))
        make(argv[2], argv[3], atoi(argv[4]), atoi(argv[5]));
    else if (argc == 4 && !strcmp(argv[1], "measure"))
        measure(argv[2], argv[3]);
    else {
        fputs("usage: bench_checkpoints make CHECKPOINT DIR RANKS COUNT\n"
              "       bench_checkpoints measure DIR WORK\n",
              stderr);
        return 2;
    }
    return 0;
}
