/* memory.h: allocations whose failure ends the process, with exit code 5 and a message.
 *
 * Large memory (arenas, staging, everything that scales with the model) comes from malloc(), and a function
 * that gets none returns STATUS_DEVICE. This header is for the many small allocations whose failure no caller can
 * handle and which must never look like something else: a text that could not be copied is not an unset key, a folder
 * that could not be listed is not an empty one, and a rank that left out a collective because a few bytes were missing
 * would be in the wrong one for its peers. Libraries that cannot report a failure (jansson's json_*_new() silently put
 * NULL into an object) get their memory here.
 *
 * Any thread may call these functions. Without memory the calling thread prints the final error, informs the rank's
 * peers through the hook that cmd/ has set, and ends the process at once: no destructor runs, and nothing else is
 * written. */
#pragma once

#include "core/status.h"

#include <dirent.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

/* These never return NULL. free() takes what they return. */
void *memory_alloc(size_t bytes) __attribute__((malloc, returns_nonnull));
void *memory_zeroed(size_t count, size_t bytes) __attribute__((malloc, returns_nonnull));
void *memory_resize(void *old, size_t bytes) __attribute__((returns_nonnull));
char *memory_text(const char *text) __attribute__((malloc, returns_nonnull)); /* strdup() */
char *memory_printf(const char *format, ...) __attribute__((malloc, returns_nonnull, format(printf, 1, 2)));

/* A stream that writes to memory, as open_memstream() makes it, whose text is never cut short: after fflush() or
 * fclose() *text has *bytes bytes, followed by a NUL. The caller frees it after fclose(). */
FILE *memory_stream(char **text, size_t *bytes);

/* libc's functions of these names. NULL never means a lack of memory, so a file or folder that could not be opened is
 * not taken for an absent one. */
FILE *memory_fopen(const char *path, const char *mode);
FILE *memory_fdopen(int fd, const char *mode);
DIR *memory_opendir(const char *path);
ssize_t memory_getline(char **text, size_t *room, FILE *file);

/* dlopen(). If it returns NULL, *why (may be NULL) is dlerror()'s text, and the reason is not a lack of memory. */
void *memory_dlopen(const char *file, int flags, const char **why);

/* Ends the process. bytes: the size of the request; 0: not known. */
void memory_exhausted(size_t bytes) __attribute__((noreturn));

/* Sets the function that prints the final error: log_error() in the program. NULL, and at the start: the text goes to
 * stderr as it stands, so that memory needs no log. It must not ask for memory. */
void memory_set_final_error(void (*print)(const struct error *err));

/* Sets the function that is called between the final error and the end; NULL: none. It must not ask for memory. */
void memory_on_exhausted(void (*tell)(const struct error *err));

/* Makes the libraries that take an allocator use this one. Called once, before any other thread is started.
 *
 * From now on a library that calls exit() ends the process as a failure does, with a final error and word to the peers:
 * the OpenMP run time, which does so without memory or threads, as memory_exhausted(); others with STATUS_BROKEN. */
void memory_serve_libraries(void);

/* The exit() that follows is the program's own. */
void memory_leave_libraries(void);
