/* SPDX-License-Identifier: Apache-2.0 */
/* manifest.h: manifest.json, which describes a checkpoint and covers every byte of its other files with checksums. Its
 * last member is the XXH3 of all bytes before the checksum's first digit; the bytes after the digits are fixed.
 * docs/checkpoint-format.md lists the members. */
#pragma once

#include "ckpt/checkpoint.h"
#include "ckpt/rankfile.h"

#define MANIFEST_NAME "manifest.json"

/* The folder of a model's additional chat templates; in a checkpoint its "/x.jinja" is TEMPLATES_FOLDER "-x.jinja". */
#define TEMPLATES_FOLDER "additional_chat_templates"

enum {
    MANIFEST_VERSION = 5, /* the latest */
    MANIFEST_MAX_BYTES = 64 << 20,
    MANIFEST_MAX_WORLD = 1 << 17,
    MANIFEST_NAME_MAX = 64, /* of a file, with its NUL */
};

struct manifest_unit {
    const char *name; /* borrowed from root */
    int64_t numel;
};

struct manifest_tensor {
    const char *name; /* borrowed from root */
    int unit, ndim;
    int64_t shape[3]; /* 1 from ndim on */
    int64_t numel, offset;
};

/* A file next to the manifest. The first `world` ones are the rank files, in order. */
struct manifest_file {
    char name[MANIFEST_NAME_MAX];
    int64_t bytes;
    int64_t num_frames; /* of a rank file; else 0 */
    uint64_t checksum;  /* of a rank file's index (rankfile.h); of any other file: XXH3 of the whole file */
};

/* A checked manifest: every number is in range, every list consistent with the others. */
struct manifest {
    struct checkpoint facts; /* what it has for the struct; .manifest is owned */
    int num_units, num_tensors, num_files;
    int num_trained;                 /* units that rank files hold: those before an adapter's base */
    struct manifest_unit *units;     /* [num_units] owned */
    int64_t *slice;                  /* [num_units] owned: elements of each unit's slice */
    struct moment_map map;           /* moments in 8 bits; else without blocks */
    int64_t *moments;                /* [num_units] owned: words of each unit's slice of a moment */
    struct manifest_tensor *tensors; /* [num_tensors] owned; by unit, then by offset, without overlap */
    int64_t num_params;              /* elements of all tensors */
    struct manifest_file *files;     /* [num_files] owned */
};

/* Encodes a checkpoint's manifest with num_states kinds of state, which have these hashes (state_hash.h; NULL: left
 * out), as manifest_decode() takes it. The caller frees *text. */
enum status manifest_encode(const struct checkpoint_writer *writer, const struct train_position *position,
                            int num_states, const uint64_t *hashes, const struct manifest_file *files, int num_files,
                            char **text, size_t *bytes, struct error *err);

/* Parses and checks `bytes` of text; `path` is for messages. The caller frees *manifest (manifest_free). */
enum status manifest_decode(const char *text, size_t bytes, const char *path, struct manifest **manifest,
                            struct error *err);

/* Reads folder/manifest.json; with `files` checks that every file exists and has its size. */
enum status manifest_load(const char *folder, bool files, struct manifest **manifest, struct error *err);

/* Whether files [first, end) of the list exist next to the manifest and have their sizes. */
enum status manifest_check_files(const struct manifest *manifest, const char *folder, int first, int end,
                                 struct error *err);

/* Reads a file that is not a rank file, and verifies it. The caller frees *data (file->bytes bytes). */
enum status manifest_read_file(const char *folder, const struct manifest_file *file, char **data, struct error *err);

void manifest_free(struct manifest *manifest); /* NULL is allowed */
RELEASER(manifest_drop, struct manifest, manifest_free)

/* That of an open checkpoint. */
const struct manifest *checkpoint_manifest(const struct checkpoint *checkpoint);

/* The required contents of rank file `rank`; borrows from the manifest. */
struct rankfile_shape manifest_shape(const struct manifest *manifest, int rank);

/* "rank-00003.zst" */
void manifest_rank_name(int rank, char name[MANIFEST_NAME_MAX]);
