/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_tokens.c: token shards and indexes of any bytes: an error or tokens within the vocabulary, never more.
 *
 * Input: byte 0 has the kind of file (bit 0: Megatron-LM, else llm.c; bit 1: packed; bits 2-4: token_multiple - 1, at
 * most T
 * - 1; bit 5: evaluation), byte 1 is T - 1, byte 2 the micro-batch - 1, byte 3 the vocabulary; then the .idx, its
 * length in two bytes in front of it (not for llm.c), and the .bin. Besides what the sanitizers see, the shape of every
 * batch is checked. */
#include "core/data/token_stream.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition) ((condition) ? (void)0 : abort())

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[64];
static char bin_path[80], idx_path[80];

static void clean_up(void)
{
    unlink(bin_path);
    unlink(idx_path);
    rmdir(folder);
}

static void write_file(const char *path, const uint8_t *bytes, size_t count)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && write(fd, bytes, count) == (ssize_t)count && close(fd) == 0);
}

static void check_batch(const struct token_stream_config *config, const struct batch *batch)
{
    const struct batch_limits limits = token_stream_limits(config);
    int64_t targets = 0;
    CHECK(batch->num_tokens <= limits.max_tokens && batch->num_seqs <= limits.max_seqs && batch->seq_start[0] == 0);
    CHECK(batch->seq_start[batch->num_seqs] == batch->num_tokens);
    for (int32_t i = 0; i < batch->num_seqs; i++) CHECK(batch->seq_start[i] < batch->seq_start[i + 1]);
    for (int64_t i = 0; i < batch->num_tokens; i++) {
        CHECK(batch->tokens[i] >= 0 && batch->tokens[i] < config->vocab_size);
        CHECK(batch->targets[i] >= -1 && batch->targets[i] < config->vocab_size);
        CHECK(batch->positions[i] >= 0 && batch->positions[i] < batch->max_seq);
        targets += batch->targets[i] >= 0;
    }
    CHECK(targets == batch->num_targets);
}

static void run_stream(struct token_set *set, const uint8_t *data)
{
    bool evaluation = data[0] >> 5 & 1;
    int multiple = (data[0] >> 2 & 7) + 1, length = data[1] + 1;
    struct token_stream_config config = {.source = {.set = set},
                                         .data = {.seq_length = length,
                                                  .shuffle = true,
                                                  .packing = data[0] >> 1 & 1 ? SPEC_PACKING_CUT : SPEC_PACKING_NONE},
                                         .vocab_size = data[3] + 1,
                                         .seed = data[2],
                                         .world = 1,
                                         .batch_size = data[2] % 8 + 1,
                                         .micro_batch_size = data[2] % 8 + 1,
                                         .token_multiple = multiple < length ? multiple : length,
                                         .evaluation = evaluation};
    struct error err;
    struct token_stream *stream;
    struct batch batch;
    bool end = false;
    if (token_stream_open(&config, 1, &stream, &err) != STATUS_OK) return;
    for (int i = 0; i < 4; i++) {
        if (token_stream_next(stream, &batch, &end, &err) != STATUS_OK) {
            CHECK(err.code == STATUS_DATA && err.text[0] != '\0');
            break;
        }
        if (end) break;
        check_batch(&config, &batch);
    }
    token_stream_close(stream);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (bin_path[0] == '\0') {
        bool in_memory = access("/dev/shm", W_OK) == 0; /* several times as fast */
        snprintf(folder, sizeof folder, "%s/fuzz_tokens.XXXXXX", in_memory ? "/dev/shm" : "/tmp");
        CHECK(mkdtemp(folder));
        snprintf(bin_path, sizeof bin_path, "%s/x.bin", folder);
        snprintf(idx_path, sizeof idx_path, "%s/x.idx", folder);
        atexit(clean_up);
    }
    if (size < 6) return 0;
    const uint8_t *rest = data + 4, *limit = data + size;
    unlink(idx_path);
    if (data[0] & 1) {
        size_t length = rest[0] | (size_t)rest[1] << 8;
        rest += 2;
        length = length < (size_t)(limit - rest) ? length : (size_t)(limit - rest);
        write_file(idx_path, rest, length);
        rest += length;
    }
    write_file(bin_path, rest, (size_t)(limit - rest));

    const char *path = bin_path;
    struct token_set *set;
    struct error err = {.code = STATUS_OK};
    if (token_set_open(&path, 1, &set, &err) != STATUS_OK) {
        CHECK(err.code == STATUS_DATA && err.text[0] != '\0');
        return 0;
    }
    int64_t position = 0;
    for (int64_t i = 0; i < token_set_documents(set) && i < 64; i++) {
        int64_t first, length;
        CHECK(token_set_document(set, i, &first, &length, &err) == STATUS_OK); /* a small index was checked at open */
        CHECK(first == position && length >= 0);
        position += length;
    }
    CHECK(position <= token_set_tokens(set));
    run_stream(set, data);
    token_set_close(set);
    return 0;
}
