/* checkpoint_case.h: a small model's state, ranks as forked processes, and file damage, for the checkpoint tests.
 *
 * The test brings its own four comm_ functions (process-shared barrier and a mapped buffer), so that a rank can be
 * made to fail or die in the middle without the real communicator's ways of noticing. */
#ifndef TESTS_CHECKPOINT_CASE_H
#define TESTS_CHECKPOINT_CASE_H

#include "ckpt/checkpoint.h"
#include "core/faults.h"
#include "core/fsutil.h"
#include "core/model/shard.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include <cmocka.h>

/* ---- communicator -------------------------------------------------------- */

enum { CASE_RANKS = 6 };

struct comm {
    int rank, world;
    pthread_barrier_t *barrier; /* shared; NULL if world is 1 */
    char (*slots)[8192];        /* shared: [world] */
};

int comm_rank(const struct comm *comm)
{
    return comm->rank;
}

int comm_world(const struct comm *comm)
{
    return comm->world;
}

enum status comm_exchange(struct comm *comm, const void *own, size_t bytes, void *all, struct error *err)
{
    (void)err;
    if (comm->world == 1) {
        memcpy(all, own, bytes);
        return STATUS_OK;
    }
    assert_true(bytes <= sizeof comm->slots[0]);
    memcpy(comm->slots[comm->rank], own, bytes);
    pthread_barrier_wait(comm->barrier);
    for (int r = 0; r < comm->world; r++)
        memcpy((char *)all + (size_t)r * bytes, comm->slots[r], bytes);
    pthread_barrier_wait(comm->barrier);
    return STATUS_OK;
}

/* ---- a model ------------------------------------------------------------- */

enum { CASE_UNITS = 3, CASE_TENSORS = 4 };

/* Unit 1 has a gap between its tensors; with `large`, unit 2 fills several frames. */
static void case_table(struct tensor_table *table, bool large)
{
    static struct tensor_info tensors[2][CASE_TENSORS];
    static struct unit_info units[2][CASE_UNITS];
    struct tensor_info *t = tensors[large];
    struct unit_info *u = units[large];
    const int64_t rows = large ? 3000 : 5;
    const struct tensor_info fresh[CASE_TENSORS] = {
        {.name = "wte.weight", .unit = 0, .ndim = 2, .shape = {7, 11}, .numel = 77, .offset = 0},
        {.name = "h.0.ln.bias", .unit = 1, .ndim = 1, .shape = {30, 1}, .numel = 30, .offset = 0},
        {.name = "h.0.mlp.weight", .unit = 1, .ndim = 2, .shape = {20, 10}, .numel = 200, .offset = 64},
        {.name = "lm_head.weight", .unit = 2, .ndim = 2, .shape = {rows, 211}, .numel = rows * 211, .offset = 0},
    };
    memcpy(t, fresh, sizeof fresh);
    const struct unit_info fresh_units[CASE_UNITS] = {
        {"embedding", 0, 1, 77}, {"block 0", 1, 2, 264}, {"head", 3, 1, rows * 211}};
    memcpy(u, fresh_units, sizeof fresh_units);
    *table = (struct tensor_table){CASE_TENSORS, CASE_UNITS, t, u, 307 + rows * 211};
}

/* The value of an element after `step` steps, some of them odd: every bit pattern must survive. */
static float case_value(int state, int unit, int64_t element, int64_t step)
{
    static const uint32_t odd[] = {0x7fc00001u, 0xff800000u, 0x00000001u, 0x80000000u, 0x7f7fffffu, 0xffffffffu};
    uint64_t x = (uint64_t)element * 0x9E3779B97F4A7C15u + (uint64_t)(state * 100 + unit) * 0xD1B54A32D192ED03u +
                 (uint64_t)step * 0x8CB92BA72F3D8DD7u;
    x ^= x >> 29;
    x *= 0xBF58476D1CE4E5B9u;
    x ^= x >> 32;
    uint32_t bits = x % 50 == 0 ? odd[(x >> 8) % 6] : (uint32_t)(x & 0x00ffffffu) | 0x3c000000u;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* One rank's slices. */
struct case_state {
    const struct tensor_table *table;
    struct shard_layout layout;
    int rank;
    float *data[STATE_KIND_COUNT];
};

static float *case_slice(void *context, enum state_kind state, int unit)
{
    struct case_state *s = context;
    return s->data[state] + s->layout.shard_offset[unit];
}

static enum status case_get_slice(void *context, enum slice_access access, enum state_kind state, int unit,
                                  float **slice, struct error *err)
{
    (void)access;
    (void)err;
    *slice = case_slice(context, state, unit);
    return STATUS_OK;
}

static struct state_slices case_slices(struct case_state *s)
{
    return (struct state_slices){.owner = s, .count = STATE_KIND_COUNT, .get = case_get_slice};
}

static void case_state_init(struct case_state *s, const struct tensor_table *table, int rank, int world)
{
    memset(s, 0, sizeof *s);
    s->table = table;
    s->rank = rank;
    assert_int_equal(shard_layout_init(&s->layout, table, world, NULL), STATUS_OK);
    for (int i = 0; i < STATE_KIND_COUNT; i++) {
        s->data[i] = malloc((size_t)s->layout.shard_numel * sizeof(float));
        memset(s->data[i], 0xAB, (size_t)s->layout.shard_numel * sizeof(float));
    }
}

static void case_state_release(struct case_state *s)
{
    for (int i = 0; i < STATE_KIND_COUNT; i++)
        free(s->data[i]);
    shard_layout_release(&s->layout);
}

/* The value of element i of this rank's slice after `step` steps; 0 in the padding. */
static float case_expected(const struct case_state *s, int state, int unit, int64_t i, int64_t step)
{
    int64_t element = s->rank * s->layout.slice[unit] + i;
    return element < s->table->units[unit].numel ? case_value(state, unit, element, step) : 0.0f;
}

static void case_fill(struct case_state *s, int64_t step)
{
    for (int state = 0; state < STATE_KIND_COUNT; state++)
        for (int unit = 0; unit < s->table->num_units; unit++)
            for (int64_t i = 0; i < s->layout.slice[unit]; i++)
                case_slice(s, (enum state_kind)state, unit)[i] = case_expected(s, state, unit, i, step);
}

/* Whether all slices have the values after `step` steps, bit for bit. */
static bool case_holds(struct case_state *s, int64_t step)
{
    for (int state = 0; state < STATE_KIND_COUNT; state++)
        for (int unit = 0; unit < s->table->num_units; unit++)
            for (int64_t i = 0; i < s->layout.slice[unit]; i++) {
                float expected = case_expected(s, state, unit, i, step);
                if (memcmp(&case_slice(s, (enum state_kind)state, unit)[i], &expected, sizeof expected) != 0)
                    return false;
            }
    return true;
}

/* ---- a folder ------------------------------------------------------------ */

static char case_dir[FS_PATH_MAX];

static void case_path(char *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void case_path(char *out, const char *format, ...)
{
    char name[512];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    assert_int_equal(fs_join(out, case_dir, name, STATUS_BUG, NULL), STATUS_OK);
}

static void case_remove(const char *path)
{
    struct dirent *entry;
    char inner[FS_PATH_MAX];
    if (remove(path) == 0 || errno == ENOENT)
        return;
    DIR *folder = opendir(path);
    assert_non_null(folder);
    while ((entry = readdir(folder)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            assert_int_equal(fs_join(inner, path, entry->d_name, STATUS_BUG, NULL), STATUS_OK);
            case_remove(inner);
        }
    closedir(folder);
    assert_int_equal(rmdir(path), 0);
}

static int case_setup(void **unused)
{
    (void)unused;
    const char *tmp = getenv("TMPDIR");
    snprintf(case_dir, sizeof case_dir, "%.200s/ztrain-checkpoint-XXXXXX", tmp ? tmp : "/tmp");
    return mkdtemp(case_dir) ? 0 : -1;
}

static int case_teardown(void **unused)
{
    (void)unused;
    case_remove(case_dir);
    return 0;
}

__attribute__((noinline, unused)) static char *case_read(const char *path,
                                                         size_t *bytes) /* gcc 12 sees ghosts if inlined */
{
    char *data = NULL;
    assert_int_equal(fs_read_file(path, (size_t)1 << 30, STATUS_BUG, &data, bytes, NULL), STATUS_OK);
    return data;
}

static void case_write(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

/* ---- saving -------------------------------------------------------------- */

struct case_save {
    int world;
    int64_t step, epoch; /* epoch > 0: this save ends it */
    bool evaluation_due;
    int64_t keep_last, keep_best, keep_every_steps;
    double eval_loss; /* of the evaluation at this step; 0: there was none */
    int level;
    bool large;
    const char *tokenizer_dir;
    struct checkpoint_save_cache *cache; /* of several saves in one process; NULL: one for this save */
    int64_t file_limit;                  /* rank_limited cannot write files of more bytes; 0: no limit */
    int rank_limited;
    void (*before)(void); /* in each rank's process */
};

static struct train_position case_position(const struct case_save *how)
{
    struct train_position position = {.step = how->step,
                                      .optimizer_step = how->step - (how->step > 2),
                                      .epoch = how->epoch ? how->epoch : 1,
                                      .step_in_epoch = how->step % 7,
                                      .skipped_in_row = how->step % 2,
                                      .epoch_loss_sum = 1.0 / 3 + (double)how->step,
                                      .epoch_targets = how->step * 640,
                                      .tokens = how->step * 12345678901,
                                      .epoch_end = how->epoch > 0,
                                      .evaluation_due = how->evaluation_due};
    if (how->step % 3 == 2)
        position.mean_loss = (struct loss_mean){.mean = 1.0 / 3 + (double)how->step, .steps = how->step};
    if (how->eval_loss != 0) {
        position.scores = (struct eval_scores){.known = true, .values = {how->eval_loss, NAN, 0.25}};
        position.stopping = (struct early_stop){.begun = true, .best = how->eval_loss - 1, .evaluations = how->step};
        position.stopped_early = how->step % 2;
    }
    return position;
}

/* Saves as one rank, in this process. */
static enum status case_save_rank(const struct case_save *how, struct comm *comm, char name[64], int64_t *bytes,
                                  struct error *err)
{
    struct tensor_table table;
    struct case_state state;
    case_table(&table, how->large);
    case_state_init(&state, &table, comm->rank, comm->world);
    case_fill(&state, how->step);
    json_t *spec = json_pack("{s:i, s:s, s:f}", "run.seed", 1234, "run.name", "ünï", "optimizer.params.lr", 0.1);
    json_t *model = json_pack("{s:s}", "model_type", "gpt2");
    struct checkpoint_save_cache *cache = how->cache;
    if (comm->rank == 0 && !cache)
        TRY(checkpoint_save_cache_new(how->tokenizer_dir, how->tokenizer_dir, &cache, err));
    struct checkpoint_writer writer = {
        .dir = case_dir,
        .compression_level = how->level,
        .keep = {.last = how->keep_last, .best = how->keep_best, .every_steps = how->keep_every_steps},
        .table = &table,
        .layout = &state.layout,
        .comm = comm,
        .host = "here",
        .spec = spec,
        .model = model,
        .dtype = DTYPE_BF16,
        .cache = cache};
    struct train_position position = case_position(how);
    enum status status = checkpoint_save(&writer, &position, case_slices(&state), name, bytes, err);
    if (!how->cache)
        checkpoint_save_cache_free(cache);
    json_decref(spec);
    json_decref(model);
    case_state_release(&state);
    return status;
}

/* The end of a rank's process: its status, or that it was killed. */
struct case_end {
    enum status status;
    bool killed;
    char name[64];
    int64_t bytes, calls; /* calls that could have failed: faults.h */
    struct error err;
};

/* Saves with how->world forked ranks; ends: [world]. When one is killed, so are the others. */
static void case_save_ranks(const struct case_save *how, struct case_end *ends)
{
    struct shared {
        pthread_barrier_t barrier;
        char slots[CASE_RANKS][8192];
        struct case_end ends[CASE_RANKS];
    } *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED && how->world <= CASE_RANKS);
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->barrier, &attributes, (unsigned)how->world);
    pid_t ranks[CASE_RANKS];
    fflush(NULL);
    for (int r = 0; r < how->world; r++) {
        ranks[r] = fork();
        assert_true(ranks[r] >= 0);
        if (ranks[r])
            continue;
#ifdef _OPENMP
        omp_set_num_threads(2);
#endif
        if (how->before)
            how->before();
        if (how->file_limit && r == how->rank_limited) {
            struct rlimit limit = {(rlim_t)how->file_limit, (rlim_t)how->file_limit};
            signal(SIGXFSZ, SIG_IGN);
            setrlimit(RLIMIT_FSIZE, &limit);
        }
        struct comm comm = {r, how->world, &shared->barrier, shared->slots};
        struct case_end *end = &shared->ends[r];
        end->status = case_save_rank(how, &comm, end->name, &end->bytes, &end->err);
#ifdef ZTRAIN_FAULTS
        end->calls = faults_count();
#endif
        _exit(0);
    }
    bool one_died = false;
    for (int left = how->world; left > 0; left--) {
        int wait_status, r;
        pid_t pid = waitpid(one_died || how->world > 1 ? -1 : ranks[0], &wait_status, 0);
        assert_true(pid > 0);
        for (r = 0; r < how->world && ranks[r] != pid; r++)
            ;
        assert_true(r < how->world);
        shared->ends[r].killed = WIFSIGNALED(wait_status);
        assert_true(WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) == SIGKILL : WEXITSTATUS(wait_status) == 0);
        for (int other = 0; WIFSIGNALED(wait_status) && !one_died && other < how->world; other++)
            if (other != r)
                kill(ranks[other], SIGKILL);
        one_died = one_died || WIFSIGNALED(wait_status);
        ranks[r] = -1;
    }
    memcpy(ends, shared->ends, (size_t)how->world * sizeof *ends);
    munmap(shared, sizeof *shared);
}

/* The same where all ranks must succeed; returns the checkpoint's path. */
static inline void case_save_ok(const struct case_save *how, char path[FS_PATH_MAX])
{
    struct case_end ends[CASE_RANKS];
    case_save_ranks(how, ends);
    for (int r = 0; r < how->world; r++) {
        if (ends[r].status != STATUS_OK)
            print_message("rank %d: %s\n", r, ends[r].err.text);
        assert_int_equal(ends[r].status, STATUS_OK);
        assert_string_equal(ends[r].name, ends[0].name);
        assert_true(ends[r].bytes == ends[0].bytes);
    }
    case_path(path, "%s", ends[0].name);
}

/* Loads a checkpoint as every rank of `world` and compares with the state after its step. */
static inline void case_load_ok(const char *dir, bool large, int world, int64_t step)
{
    struct checkpoint *checkpoint;
    struct error err = {0};
    struct tensor_table table;
    case_table(&table, large);
    if (checkpoint_open(dir, false, &checkpoint, &err) != STATUS_OK)
        fail_msg("%s", err.text);
    assert_true(checkpoint->position.step == step);
    for (int r = 0; r < world; r++) {
        struct case_state state;
        case_state_init(&state, &table, r, world);
        if (checkpoint_load(checkpoint, &table, &state.layout, r, case_slices(&state), &err) != STATUS_OK)
            fail_msg("%s", err.text);
        assert_true(case_holds(&state, step));
        case_state_release(&state);
    }
    checkpoint_close(checkpoint);
}

/* Names in the folder that begin with `prefix`. */
static inline int case_count(const char *prefix)
{
    int n = 0;
    DIR *folder = opendir(case_dir);
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder));)
        n += strncmp(entry->d_name, prefix, strlen(prefix)) == 0 && strcmp(entry->d_name, ".") != 0 &&
             strcmp(entry->d_name, "..") != 0;
    closedir(folder);
    return n;
}

static inline bool case_has(const char *name)
{
    char path[FS_PATH_MAX];
    case_path(path, "%s", name);
    return fs_exists(path);
}

/* Saves in this process, with the state that is kept from save to save. */
static inline void case_save_here(const struct case_save *how)
{
    struct comm alone = {.rank = 0, .world = 1};
    struct error err = {0};
    char name[64];
    int64_t bytes;
    if (case_save_rank(how, &alone, name, &bytes, &err) != STATUS_OK)
        fail_msg("%s", err.text);
}

/* Begins to count the files that are opened in the folders of this run's steps up to `last`. */
static inline int case_watch_opens(int64_t last)
{
    char path[FS_PATH_MAX];
    int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    for (int64_t i = 1; i <= last; i++) {
        case_path(path, "step-%08d", (int)i);
        /* with the closes, because two equal events in a row become one */
        assert_true(inotify_add_watch(watch, path, IN_OPEN | IN_CLOSE) >= 0);
    }
    return watch;
}

/* How many there were. */
static inline int case_count_opens(int watch)
{
    char events[64 * 1024];
    int count = 0;
    for (ssize_t n; (n = read(watch, events, sizeof events)) > 0;)
        for (ssize_t at = 0; at < n;) {
            const struct inotify_event *event = (void *)(events + at);
            count += (event->mask & IN_OPEN) != 0;
            at += (ssize_t)(sizeof *event + event->len);
        }
    close(watch);
    return count;
}

#endif
