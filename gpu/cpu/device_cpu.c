/* SPDX-License-Identifier: Apache-2.0 */
/* device_cpu.c: the CPU as a device.
 *
 * Opening the device sets the size of the calling thread's OpenMP team, so the same thread uses the compute stream. A
 * communication stream is a worker thread that takes closures from a ring:
 *
 *     stream_submit -> | closure | closure | … |  -> worker        head: next to run, tail: next free (both only grow)
 *
 * An event is a pair of counters: `issued` grows when the event is recorded, `done` when the stream reaches that point.
 * A wait is a closure that blocks until `done` reaches the value of `issued` at its call. */
#include "gpu/cpu/device_cpu.h"

#include "core/core.h"
#include "gpu/cpu/ops_cpu.h"
#include "gpu/host_pages.h"
#include "gpu/noise.h"

#ifdef _OPENMP
#include <omp.h>
#endif

/* ---- memory -------------------------------------------------------------- */

static enum status cpu_alloc(struct device *device, size_t bytes, void **memory, struct error *err)
{
    (void)device;
    if (host_pages_new(bytes, memory, err) == STATUS_OK) return STATUS_OK;
    return error_hint(err, "use a smaller micro batch or sequence, activation recomputation, a higher ZeRO stage, or "
                           "more ranks");
}

static void cpu_free(struct device *device, void *memory, size_t bytes)
{
    (void)device;
    host_pages_free(memory, bytes);
}

/* ---- streams ------------------------------------------------------------- */

enum { RING_SLOTS = 256 };

struct closure {
    void (*function)(void *argument);
    _Alignas(16) unsigned char argument[STREAM_ARGUMENT_MAX];
};

struct cpu_stream {
    struct stream stream; /* first */
    bool worker;          /* else inline, and the members below are not used */
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t work, room; /* signalled when there is work; when a slot becomes free */
    uint64_t head, tail;       /* numbers of closures finished and submitted */
    bool stop;
    struct closure ring[RING_SLOTS];
};

static struct cpu_stream *cpu_stream_of(struct stream *stream)
{
    return (struct cpu_stream *)stream;
}

static void *cpu_worker_main(void *argument)
{
    struct cpu_stream *s = argument;
#ifdef _OPENMP
    omp_set_num_threads(1); /* the cores belong to the compute stream */
#endif
    LOCKED(&s->mutex);
    for (;;) {
        while (s->head == s->tail && !s->stop) pthread_cond_wait(&s->work, &s->mutex);
        if (s->head == s->tail) break;
        struct closure *closure = &s->ring[s->head % RING_SLOTS];
        pthread_mutex_unlock(&s->mutex);
        closure->function(closure->argument);
        pthread_mutex_lock(&s->mutex);
        s->head++;
        pthread_cond_broadcast(&s->room);
    }
    return NULL;
}

static enum status cpu_stream_new(struct device *device, enum stream_kind kind, struct stream **out, struct error *err)
{
    struct cpu_stream *s = memory_zeroed(1, sizeof *s);
    s->stream.device = device;
    s->worker = kind == STREAM_COMM;
    if (s->worker) {
        pthread_mutex_init(&s->mutex, NULL);
        pthread_cond_init(&s->work, NULL);
        pthread_cond_init(&s->room, NULL);
        int code = thread_start(&s->thread, 0, cpu_worker_main, s);
        if (code) {
            free(s);
            return error_set(err, STATUS_DEVICE, "cannot start the thread of a stream: %s", strerror(code));
        }
    }
    *out = &s->stream;
    return STATUS_OK;
}

static void cpu_submit(struct stream *stream, void (*function)(void *argument), const void *argument, size_t size)
{
    struct cpu_stream *s = cpu_stream_of(stream);
    if (!s->worker) {
        _Alignas(16) unsigned char copy[STREAM_ARGUMENT_MAX];
        memcpy(copy, argument, size);
        function(copy);
        return;
    }
    ASSERT(!pthread_equal(pthread_self(), s->thread)); /* if the queue is full, it would wait for itself */
    LOCKED(&s->mutex);
    while (s->tail - s->head == RING_SLOTS) pthread_cond_wait(&s->room, &s->mutex);
    struct closure *closure = &s->ring[s->tail % RING_SLOTS];
    closure->function = function;
    memcpy(closure->argument, argument, size);
    s->tail++;
    pthread_cond_signal(&s->work);
}

static void cpu_stream_sync(struct stream *stream)
{
    struct cpu_stream *s = cpu_stream_of(stream);
    if (!s->worker) return;
    LOCKED(&s->mutex);
    uint64_t target = s->tail;
    while (s->head < target) pthread_cond_wait(&s->room, &s->mutex);
}

static void cpu_stream_free(struct stream *stream)
{
    struct cpu_stream *s = cpu_stream_of(stream);
    if (s->worker) {
        thread_tell(&s->stop, &s->mutex, &s->work);
        pthread_join(s->thread, NULL);
        pthread_mutex_destroy(&s->mutex);
        pthread_cond_destroy(&s->work);
        pthread_cond_destroy(&s->room);
    }
    free(s);
}

enum { PARALLEL_BYTES = 1 << 20, CHUNK_BYTES = 1 << 18 };

struct copy {
    char *dst;
    const char *src; /* NULL: zeros */
    size_t bytes;
};

static void cpu_run_copy(void *argument)
{
    const struct copy *c = argument;
    int64_t chunks = (int64_t)((c->bytes + CHUNK_BYTES - 1) / CHUNK_BYTES);
#pragma omp parallel for schedule(static) if (c->bytes >= PARALLEL_BYTES)
    for (int64_t i = 0; i < chunks; i++) {
        size_t at = (size_t)i * CHUNK_BYTES, n = c->bytes - at < CHUNK_BYTES ? c->bytes - at : CHUNK_BYTES;
        if (c->src)
            memcpy(c->dst + at, c->src + at, n);
        else
            memset(c->dst + at, 0, n);
    }
    heartbeat_beat();
}

static void cpu_copy(struct stream *stream, void *dst, const void *src, size_t bytes)
{
    struct copy copy = {dst, src, bytes};
    cpu_submit(stream, cpu_run_copy, &copy, sizeof copy);
}

static void cpu_fill_zero(struct stream *stream, void *dst, size_t bytes)
{
    cpu_copy(stream, dst, NULL, bytes);
}

struct noise {
    void *dst;
    enum dtype dtype;
    size_t count;
    uint32_t seed;
};

static void run_noise(void *argument)
{
    const struct noise *noise = argument;
    for (size_t i = 0; i < noise->count; i++)
        dtype_store(noise->dst, (int64_t)i, noise_value(noise->seed, i), noise->dtype);
}

static void cpu_fill_noise(struct stream *stream, void *dst, enum dtype dtype, size_t count, uint32_t seed)
{
    struct noise noise = {dst, dtype, count, seed};
    cpu_submit(stream, run_noise, &noise, sizeof noise);
}

/* ---- events -------------------------------------------------------------- */

struct cpu_event {
    struct event event; /* first */
    pthread_mutex_t mutex;
    pthread_cond_t reached;
    uint64_t issued, done;
    double reached_at; /* seconds_now() at the latest mark */
};

struct event_point {
    struct cpu_event *event;
    uint64_t ticket;
};

static enum status cpu_event_new(struct device *device, bool timed, struct event **event, struct error *err)
{
    (void)timed, (void)err; /* every event keeps the time */
    struct cpu_event *e = memory_zeroed(1, sizeof *e);
    e->event.device = device;
    pthread_mutex_init(&e->mutex, NULL);
    pthread_cond_init(&e->reached, NULL);
    *event = &e->event;
    return STATUS_OK;
}

static uint64_t event_latest(struct cpu_event *e)
{
    LOCKED(&e->mutex);
    return e->issued;
}

static void cpu_run_record(void *argument)
{
    const struct event_point *point = argument;
    struct cpu_event *e = point->event;
    LOCKED(&e->mutex);
    if (e->done < point->ticket) e->done = point->ticket;
    e->reached_at = seconds_now();
    pthread_cond_broadcast(&e->reached);
}

static void cpu_run_wait(void *argument)
{
    const struct event_point *point = argument;
    struct cpu_event *e = point->event;
    LOCKED(&e->mutex);
    while (e->done < point->ticket) pthread_cond_wait(&e->reached, &e->mutex);
}

static void cpu_event_record(struct event *event, struct stream *stream)
{
    struct cpu_event *e = (struct cpu_event *)event;
    pthread_mutex_lock(&e->mutex);
    struct event_point point = {e, ++e->issued};
    pthread_mutex_unlock(&e->mutex);
    cpu_submit(stream, cpu_run_record, &point, sizeof point);
}

static void cpu_event_wait(struct stream *stream, struct event *event)
{
    struct cpu_event *e = (struct cpu_event *)event;
    struct event_point point = {e, event_latest(e)};
    if (point.ticket) cpu_submit(stream, cpu_run_wait, &point, sizeof point);
}

static void cpu_event_sync(struct event *event)
{
    struct cpu_event *e = (struct cpu_event *)event;
    struct event_point point = {e, event_latest(e)};
    cpu_run_wait(&point);
}

static bool event_time(struct cpu_event *e, double *seconds)
{
    LOCKED(&e->mutex);
    bool reached = e->issued > 0 && e->done == e->issued;
    *seconds = e->reached_at;
    return reached;
}

static bool cpu_event_elapsed(struct event *from, struct event *to, double *seconds)
{
    double start, end;
    bool reached = event_time((struct cpu_event *)from, &start) && event_time((struct cpu_event *)to, &end);
    if (reached) *seconds = end - start;
    return reached;
}

static void cpu_event_free(struct event *event)
{
    struct cpu_event *e = (struct cpu_event *)event;
    cpu_event_sync(event);
    pthread_mutex_destroy(&e->mutex);
    pthread_cond_destroy(&e->reached);
    free(e);
}

/* ---- the device ---------------------------------------------------------- */

static void cpu_close(struct device *device)
{
    free(device->private_);
}

/* clang-format off */
static const struct device_backend cpu_backend = {
    .close = cpu_close, .alloc = cpu_alloc, .free = cpu_free, .alloc_host = cpu_alloc, .free_host = cpu_free,
    .workspace_bytes = ops_cpu_workspace_bytes, .stream_new = cpu_stream_new, .stream_free = cpu_stream_free,
    .submit = cpu_submit, .sync = cpu_stream_sync, .copy = cpu_copy, .copy_in_order = cpu_copy,
    .fill_zero = cpu_fill_zero, .fill_noise = cpu_fill_noise, .event_new = cpu_event_new,
    .event_elapsed = cpu_event_elapsed, .event_free = cpu_event_free, .event_record = cpu_event_record,
    .event_wait = cpu_event_wait, .event_sync = cpu_event_sync};
/* clang-format on */

#ifdef _OPENMP
static void *cpu_wait_for_release(void *argument)
{
    pthread_mutex_lock(argument);
    pthread_mutex_unlock(argument);
    return NULL;
}

/* OpenMP exits the process if it cannot start a thread: so as many are tried first, then it starts its team. */
static enum status cpu_start_team(int threads, struct error *err)
{
    pthread_mutex_t release = PTHREAD_MUTEX_INITIALIZER;
    pthread_t *started = memory_zeroed((size_t)threads, sizeof *started);
    int n = 0, code = 0;
    pthread_mutex_lock(&release);
    while (n < threads - 1 && !(code = thread_start(&started[n], 0, cpu_wait_for_release, &release))) n++;
    pthread_mutex_unlock(&release);
    while (n > 0) pthread_join(started[--n], NULL);
    free(started);
    pthread_mutex_destroy(&release);
    if (code)
        return error_set(err, STATUS_DEVICE,
                         "cannot start %d threads: %s; hint: see `ulimit -u`, `ulimit -v` and `ulimit -s`, or let it "
                         "use fewer cores (taskset)",
                         threads, strerror(code));
    omp_set_dynamic(0);
    omp_set_num_threads(threads);
    int members = 0;
#pragma omp parallel reduction(+ : members)
    members++;
    ASSERT(members > 0);
    return STATUS_OK;
}
#endif

enum status device_cpu_open(const struct cpu_kernels *kernels, int threads, struct device **device, struct error *err)
{
#ifdef _OPENMP
    threads = threads > 0 ? threads : machine_cores();
    TRY(cpu_start_team(threads, err));
#else
    (void)err;
    threads = 1;
#endif
    struct device_cpu *cpu = memory_zeroed(1, sizeof *cpu);
    struct cpu_features features;
    char instructions[CPU_KERNELS_TEXT], products[CPU_KERNELS_TEXT];
    cpu_features_detect(&features);
    cpu->private_.backend = &cpu_backend;
    memcpy(&cpu->kernels, kernels, sizeof cpu->kernels);
    cpu->device.kind = DEVICE_CPU;
    cpu->device.private_ = cpu;
    cpu->device.threads = threads;
    cpu->device.ops = cpu->device.host_ops = &ops_cpu_of(kernels->isa)->table;
    snprintf(cpu->device.name, sizeof cpu->device.name, "%s", features.name);
    snprintf(cpu->device.detail, sizeof cpu->device.detail, "%s kernels, GEMM: %s",
             cpu_kernels_instructions(kernels, instructions), cpu_kernels_products(kernels, products));
    *device = &cpu->device;
    return STATUS_OK;
}
