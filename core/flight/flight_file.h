/* SPDX-License-Identifier: Apache-2.0 */
/* flight_file.h: the folder RUN/flight, with a folder for each start of the run and a record of each rank in it,
 * RUN/flight/START/rank-00003.ring.
 *
 *     bytes 0, 4096   two heads, written in turn; the valid one with the larger count is the newest: a line
 *                     "ztrain-flight 2 HASH LENGTH COUNT", then LENGTH bytes of JSON; HASH is their XXH3
 *     bytes 8192 …    FLIGHT_ENTRIES entries of eight 64-bit words, little-endian (flight.c)
 *
 * The file has its full size from the start, and is renewed in place. Heads and entries have checks of their own: what
 * is torn or damaged is left out. Functions that write neither allocate nor beat: their thread may wait for a disk. */
#pragma once

#include "core/core.h"
#include "core/flight/flight.h"

enum { FLIGHT_FILE_BYTES = 8192 + FLIGHT_ENTRIES * FLIGHT_ENTRY_WORDS * 8 };

/* Why a record was written last. The names are in files. */
enum flight_reason { FLIGHT_RUNNING, FLIGHT_FAILURE, FLIGHT_QUIT, FLIGHT_STALL, FLIGHT_ENDED, FLIGHT_REASON_COUNT };

struct flight_head {
    int rank, world, pid;
    char host[64];
    enum flight_reason reason;
    int code;             /* of a failure: enum status */
    int culprit;          /* of a failure: the rank that the error is about; -1: none */
    enum failure failure; /* … what befell it; FAILURE_ERROR, FAILURE_SOFTWARE: it ended by an error of its own */
    char error[1024];     /* of a failure; else "" */
    int witness;          /* the rank that wrote this record of another rank, which could not; -1: its own */
    char process;         /* the state in which a witness found the process (proc(5)), 'X': gone; else '?' */
    int asked;            /* the signal that has asked the rank to stop; 0: none */
    int64_t written;      /* nanoseconds of the monotonic clock */
    int64_t wall;         /* nanoseconds since 1970 at `written` */
    double interval;      /* seconds between two writes */
    char waiting[256];    /* slow calls in progress: "reading '/data/x.bin' for 12 s"; else "" */
    int64_t bad_first;    /* step of the first of the last non-finite gradients or losses; 0: none */
    int64_t bad_last;     /* … of the last of them */
    int bad_rank;         /* that contributed the first; -1: unknown */
    char bad_tensor[128]; /* or "" */
};

/* ---- writing ------------------------------------------------------------- */

struct flight_file {
    int fd; /* -1: not open */
    uint64_t count;
    struct flight_image last; /* as the file has it */
};

/* In the name of a file that is not whole, which a rank that is killed leaves for ever. */
#define FLIGHT_FILE_TORN ".tmp-"

/* Makes the file anew and opens it. Returns 0 or an errno. */
int flight_file_create(struct flight_file *file, const char *path, const struct flight_head *head,
                       const struct flight_image *image);
/* Writes what has changed. Returns 0 or an errno. */
int flight_file_renew(struct flight_file *file, const struct flight_head *head, const struct flight_image *image);
void flight_file_close(struct flight_file *file);

/* ---- reading ------------------------------------------------------------- */

struct flight_record {
    struct flight_head head;
    int64_t phase, phase_since, step, micro, next; /* as in struct flight_ring */
    int64_t median_step;                           /* nanoseconds; 0: unknown */
    struct flight_entry *entries;                  /* owned, by their numbers */
    int count;
    int torn; /* places whose words do not fit together */
};

/* STATUS_CHECKPOINT: the file cannot be read or has no valid head. */
enum status flight_record_read(const char *path, struct flight_record *record, struct error *err);
/* The same of a file's bytes; false: they have no valid head. */
bool flight_record_parse(const char *data, size_t size, struct flight_record *record);
void flight_record_release(struct flight_record *record);

/* A time of the rank's monotonic clock in seconds since 1970. */
double flight_wall(const struct flight_record *record, int64_t clock);

/* ---- starts -------------------------------------------------------------- */

/* A start's name: its count, which orders them, and the time, "0007-20261126-143050-569"; without a count: first. */
enum { FLIGHT_START_BYTES = 40 };

/* The starts in RUN/flight, the earliest first, as scandir() gives them. */
int flight_starts(const char *flight, struct dirent ***names);

/* Below 0: a is earlier than b; above 0: later. "" is earlier than all. */
int flight_start_compare(const char *a, const char *b);

/* The count of a start that begins now. RUN/flight may be absent. */
int64_t flight_start_next(const char *flight);

void flight_start_name(int64_t count, struct timespec now, char name[FLIGHT_START_BYTES]);

/* RUN/flight/ended, "START SECONDS": the last start that ended in order, if an earlier one has left records. */
struct flight_end {
    char start[FLIGHT_START_BYTES];
    int64_t wall; /* seconds since 1970 */
};

int flight_ended_write(const char *flight, const struct flight_end *end); /* 0 or an errno */
int flight_ended_delete(const char *flight);                              /* 0, also without the file, or an errno */
bool flight_ended_read(const char *flight, struct flight_end *end);       /* false: no file, or an incomplete one */
