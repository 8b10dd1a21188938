/* SPDX-License-Identifier: Apache-2.0 */
/* record_file.h: records of fixed sizes in a scratch file, and the memory through which they pass.
 *
 *     file      | record 0 | record 1 | record 2 | …                  each starts at a multiple of ASYNC_IO_ALIGN
 *     buffers   | as large as the largest record | … |                memory of the caller
 *
 * The caller chooses the buffer of each transfer:
 *
 *     load    starts to read a record into a buffer, unless it is there
 *     use     waits until the record is in the buffer; its bytes may then be read and changed
 *     claim   the same without reading: all bytes will be overwritten
 *     store   starts to write the buffer to its record; the bytes may be read meanwhile, but not changed
 *
 * A buffer keeps its record until another one is loaded or claimed there; a load of the record that is there reads
 * nothing. load, use and claim wait for an earlier write of the buffer, and of the record in another buffer. A record
 * that was never stored reads as zeros.
 *
 * The first failure stays: use then returns memory with unknown bytes, and record_file_status() the error. Several
 * threads may use the file, each with buffers of its own. */
#pragma once

#include "core/storage/disk.h"

struct record_file;

/* The bytes that records of these sizes take in the file, and those of one buffer. */
int64_t record_file_bytes(const int64_t *bytes, int records);
size_t record_file_buffer_bytes(const int64_t *bytes, int records);

/* Takes over a file of record_file_bytes(). bytes: (records), copied; a record of 0 bytes is never used. */
struct record_file *record_file_new(struct disk_file *disk, const int64_t *bytes, int records, int buffers);
/* Waits for all transfers and closes the file; may be NULL. */
void record_file_free(struct record_file *file);

/* memory: buffers × record_file_buffer_bytes(), aligned to ASYNC_IO_ALIGN, of the caller. */
void record_file_set_memory(struct record_file *file, void *memory);

void record_file_load(struct record_file *file, int record, int buffer);
void *record_file_use(struct record_file *file, int record, int buffer);
void *record_file_claim(struct record_file *file, int record, int buffer);
void record_file_store(struct record_file *file, int record, int buffer);

/* The memory of a buffer; its bytes are a record's from use or claim to the next load or claim. */
void *record_file_buffer(const struct record_file *file, int buffer);

/* A part of a record, at once, past the buffers; aligned to ASYNC_IO_ALIGN. No transfer of it may start meanwhile. */
enum status record_file_part(struct record_file *file, bool write, int record, int64_t offset, void *memory,
                             int64_t bytes, struct error *err);

/* Waits for all transfers. */
enum status record_file_flush(struct record_file *file, struct error *err);
/* The first failure so far, without waiting. */
enum status record_file_status(struct record_file *file, struct error *err);
