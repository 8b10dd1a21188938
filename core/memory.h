/* SPDX-License-Identifier: Apache-2.0 */
/* memory.h: allocations whose failure ends the process, with exit code 5 and a message.
 *
 * What scales with the model comes from malloc(), and its lack is STATUS_DEVICE. This header is for all else, whose
 * failure must not look like something else: a text that was not copied is not an unset key. Libraries that cannot
 * report a failure (jansson) use it too. Any thread: the final error is printed, peers are told, no destructor runs. */
#pragma once

#include "core/status.h"

#include <dirent.h>
#include <sys/types.h>

/* For free(). */
void *memory_alloc(size_t bytes) __attribute__((malloc, returns_nonnull));
void *memory_zeroed(size_t count, size_t bytes) __attribute__((malloc, returns_nonnull));
void *memory_resize(void *old, size_t bytes) __attribute__((returns_nonnull));

/* A list of `count` items of `bytes` each with room for one more: for 1, 2, 4, 8, … items, by the count alone. */
void *memory_grow(void *items, size_t count, size_t bytes);
char *memory_text(const char *text) __attribute__((malloc, returns_nonnull)); /* strdup() */
char *memory_printf(const char *format, ...) __attribute__((malloc, returns_nonnull, format(printf, 1, 2)));

/* open_memstream() whose text is never cut: *bytes (or NULL) and a NUL after fflush(); for free() after fclose(). */
FILE *memory_stream(char **text, size_t *bytes);

/* libc's functions of these names. NULL never means a lack of memory. */
FILE *memory_fopen(const char *path, const char *mode);
FILE *memory_fdopen(int fd, const char *mode);
DIR *memory_opendir(const char *path);
ssize_t memory_getline(char **text, size_t *room, FILE *file);

/* A stream, or NULL: the end of its block closes it. */
#define OWNED_FILE RELEASED(memory_drop_file) FILE
static inline void memory_drop_file(FILE **file)
{
    if (*file) fclose(*file);
}

/* The same. *why (may be NULL): dlerror()'s text. */
void *memory_dlopen(const char *file, int flags, const char **why);

/* Ends the process. bytes: the size of the request; 0: not known. */
void memory_exhausted(size_t bytes) __attribute__((noreturn));

/* Sets the function that prints the final error (NULL: to stderr as it stands). It must not ask for memory. */
void memory_set_final_error(void (*print)(const struct error *err));

/* Sets the function that is called after it; NULL: none. It must not ask for memory. */
void memory_on_exhausted(void (*tell)(const struct error *err));

/* jansson uses this allocator. A library that calls exit() from now on ends the process with an error and word to the
 * peers: OpenMP as memory_exhausted(), others with STATUS_BROKEN. Once, before any other thread. */
void memory_serve_libraries(void);

/* The exit() that follows is the program's own. */
void memory_leave_libraries(void);
