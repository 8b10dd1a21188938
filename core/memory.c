/* SPDX-License-Identifier: Apache-2.0 */
#include "core/memory.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <jansson.h>
#include <stdatomic.h>

static void (*_Atomic print_final_error)(const struct error *err);
static void (*_Atomic tell_peers)(const struct error *err);

void memory_set_final_error(void (*print)(const struct error *err))
{
    atomic_store(&print_final_error, print);
}

void memory_on_exhausted(void (*tell)(const struct error *err))
{
    atomic_store(&tell_peers, tell);
}

__attribute__((noreturn)) static void memory_end_process(const struct error *err)
{
    static atomic_flag ending = ATOMIC_FLAG_INIT;
    while (atomic_flag_test_and_set(&ending)) /* another thread is ending the process */
        pause();
    void (*print)(const struct error *) = atomic_load(&print_final_error);
    if (print)
        print(err);
    else
        dprintf(STDERR_FILENO, "ztrain: error: %s\n", err->text);
    void (*tell)(const struct error *) = atomic_load(&tell_peers);
    if (tell) tell(err);
    _exit((int)err->code);
}

void memory_exhausted(size_t bytes)
{
    struct error err;
    if (bytes)
        error_set(&err, STATUS_DEVICE, "out of memory: %zu bytes were refused", bytes);
    else
        error_set(&err, STATUS_DEVICE, "out of memory");
    error_hint(&err, "free memory on this machine, or raise the limit of this job (ulimit -v, cgroup, --mem)");
    memory_end_process(&err);
}

void *memory_alloc(size_t bytes)
{
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory) memory_exhausted(bytes);
    return memory;
}

void *memory_zeroed(size_t count, size_t bytes)
{
    void *memory = calloc(count ? count : 1, bytes ? bytes : 1);
    if (!memory) memory_exhausted(count * bytes);
    return memory;
}

void *memory_resize(void *old, size_t bytes)
{
    void *memory = realloc(old, bytes ? bytes : 1);
    if (!memory) memory_exhausted(bytes);
    return memory;
}

void *memory_grow(void *items, size_t count, size_t bytes)
{
    return count & (count - 1) ? items : memory_resize(items, (count ? 2 * count : 1) * bytes);
}

char *memory_text(const char *text)
{
    size_t bytes = strlen(text) + 1;
    return memcpy(memory_alloc(bytes), text, bytes);
}

char *memory_printf(const char *format, ...)
{
    int length;
    WITH_ARGS(format, length = vsnprintf(NULL, 0, format, args));
    ASSERT(length >= 0);
    char *text = memory_alloc((size_t)length + 1);
    WITH_ARGS(format, vsnprintf(text, (size_t)length + 1, format, args));
    return text;
}

/* ---- libc ---------------------------------------------------------------- */

static void *unless_out_of_memory(void *result)
{
    if (!result && errno == ENOMEM) memory_exhausted(0);
    return result;
}

FILE *memory_fopen(const char *path, const char *mode)
{
    return unless_out_of_memory(fopen(path, mode));
}

FILE *memory_fdopen(int fd, const char *mode)
{
    return unless_out_of_memory(fdopen(fd, mode));
}

DIR *memory_opendir(const char *path)
{
    return unless_out_of_memory(opendir(path));
}

ssize_t memory_getline(char **text, size_t *room, FILE *file)
{
    errno = 0;
    ssize_t length = getline(text, room, file);
    if (length < 0 && errno == ENOMEM) memory_exhausted(0);
    return length;
}

/* Whether glibc's linker reports a lack of memory; a full block of static thread-local storage is another error. */
static bool is_linkers_memory(const char *text)
{
    static const char *const words[] = {"out of memory", "cannot create ", "cannot allocate "};
    for (size_t i = 0; i < COUNT_OF(words); i++)
        if (strstr(text, words[i])) return !strstr(text, "static TLS block");
    return false;
}

void *memory_dlopen(const char *file, int flags, const char **why)
{
    void *library = dlopen(file, flags);
    const char *text = library ? NULL : dlerror();
    if (text && is_linkers_memory(text)) memory_exhausted(0);
    if (why) *why = text ? text : "the dynamic linker gives no reason";
    return library;
}

/* ---- streams ------------------------------------------------------------- */

struct memory_stream {
    char **text;
    size_t *bytes, used, room;
};

static ssize_t memory_stream_write(void *cookie, const char *data, size_t count)
{
    struct memory_stream *stream = cookie;
    if (stream->room - stream->used <= count) {
        stream->room = 2 * (stream->used + count) + 1;
        *stream->text = memory_resize(*stream->text, stream->room);
    }
    memcpy(*stream->text + stream->used, data, count);
    (*stream->text)[stream->used += count] = '\0';
    if (stream->bytes) *stream->bytes = stream->used;
    return (ssize_t)count;
}

static int memory_stream_close(void *cookie)
{
    free(cookie);
    return 0;
}

FILE *memory_stream(char **text, size_t *bytes)
{
    const cookie_io_functions_t functions = {.write = memory_stream_write, .close = memory_stream_close};
    struct memory_stream *stream = memory_alloc(sizeof *stream);
    *stream = (struct memory_stream){.text = text, .bytes = bytes, .room = 256};
    *text = memory_zeroed(1, stream->room);
    if (bytes) *bytes = 0;
    FILE *file = fopencookie(stream, "w", functions);
    if (!file) memory_exhausted(0); /* fopencookie() fails only without memory */
    return file;
}

/* ---- libraries ----------------------------------------------------------- */

enum { THREADS_ENDING = 16, FRAMES = 64 };

static atomic_bool leaving; /* the program calls exit() itself */

/* The file that called exit(): of the first frame below those of libc. Asks for no memory. "": it is not known. */
static const char *memory_caller_of_exit(void)
{
    void *frames[FRAMES];
    Dl_info libc, at;
    bool in_libc = false;
    const int count = backtrace(frames, FRAMES);
    if (!dladdr(dlsym(RTLD_DEFAULT, "gnu_get_libc_version"), &libc)) return "";
    for (int i = 0; i < count; i++) {
        const bool known = dladdr(frames[i], &at) != 0, inside = known && at.dli_fbase == libc.dli_fbase;
        if (in_libc && !inside) return known && at.dli_fname ? at.dli_fname : "";
        in_libc = inside;
    }
    return "";
}

/* The OpenMP run times of gcc, clang and Intel: libgomp, libomp, libiomp5. */
static bool memory_is_openmp(const char *file)
{
    const char *name = basename(file);
    return !strncmp(name, "libgomp", 7) || !strncmp(name, "libomp", 6) || !strncmp(name, "libiomp", 7);
}

static void memory_end_of_library(int code, void *unused)
{
    struct error err;
    (void)unused;
    if (atomic_load(&leaving)) return;
    const char *file = memory_caller_of_exit();
    if (memory_is_openmp(file)) memory_exhausted(0);
    error_set(&err, STATUS_BROKEN, "%s%s%s ended the process with exit code %d", *file ? "the library '" : "a library",
              file, *file ? "'" : "", code);
    error_hint(&err, "look for a message of its own above");
    memory_end_process(&err);
}

void memory_serve_libraries(void)
{
    void *frame;
    json_set_alloc_funcs(memory_alloc, free);
    backtrace(&frame, 1);                    /* opens the library that it needs, while there is memory */
    for (int i = 0; i < THREADS_ENDING; i++) /* each thread that calls exit() uses one; the first ends them all */
        if (on_exit(memory_end_of_library, NULL) != 0) memory_exhausted(0);
}

void memory_leave_libraries(void)
{
    atomic_store(&leaving, true);
}
