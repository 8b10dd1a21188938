/* SPDX-License-Identifier: Apache-2.0 */
/* metrics_reader.h: reads a metrics.jsonl line by line. Lines may have any length and any bytes. */
#pragma once

#include "core/status.h"

#include <jansson.h>

struct metrics_reader {
    FILE *file;
    const char *path; /* borrowed */
    char *text;       /* the line, with its newline if it has one; owned */
    size_t room, length;
    int64_t number; /* of the line, from 1 */
    json_t *object; /* owned; NULL: the line is damaged, no object with an integer "step" */
    int64_t step;   /* of a sound line */
};

/* `path` must outlive the reader, which is closed also after an error. */
enum status metrics_reader_open(struct metrics_reader *reader, const char *path, struct error *err);
void metrics_reader_close(struct metrics_reader *reader);

/* Reads the next line. Beats. false: the end, an error (metrics_reader_check()), a file that could not be opened. */
bool metrics_reader_next(struct metrics_reader *reader);

/* STATUS_CHECKPOINT: the file could not be read to its end. */
enum status metrics_reader_check(const struct metrics_reader *reader, struct error *err);

/* The last part of the path that a member such as "checkpoint" holds, "step-00000020"; "" if there is none. */
const char *metrics_reader_folder(const struct metrics_reader *reader, const char *member);
