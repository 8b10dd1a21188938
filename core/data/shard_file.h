/* shard_file.h: one file of a token shard. It must stay as it was when it was opened.
 *
 * Every read compares the file's inode, size and time with those of the first opening: a file that was replaced,
 * truncated or rewritten under a run is STATUS_DATA with its name, and its other bytes reach no batch. A file that
 * stays open may be renamed or deleted. Several threads may read a file; opening and closing it is one thread's. */
#pragma once

#include "core/status.h"

#include <stdint.h>
#include <sys/types.h>
#include <time.h>

struct shard_file {
    char *path;    /* own; NULL: there is no such file */
    int fd;        /* -1: opened for each read */
    int64_t bytes; /* this and the rest: when it was first opened */
    ino_t inode;
    struct timespec written;
};

/* Opens file->path, a regular file, and remembers what it is. STATUS_DATA names it. */
enum status shard_file_open(struct shard_file *file, struct error *err);

/* Closes the descriptor; reads open the file again. */
void shard_file_close(struct shard_file *file);

/* Reads exactly `count` bytes at `offset`; retries while a disk or a file server fails. On success err is unchanged. */
enum status shard_file_read(const struct shard_file *file, int64_t offset, int64_t count, void *out, struct error *err);
