/* SPDX-License-Identifier: Apache-2.0 */
/* token_set.c: shard files as one stream of tokens and documents.
 *
 * Every look-up is a pread into the caller's memory: a file that shrinks is an error, not a signal; threads may share.
 *
 *     Megatron-LM  PREFIX.idx   magic "MMIDIDX\0\0"  9 bytes
 *                               version 1            u64
 *                               token type           u8     8 uint16, 4 int32
 *                               S sequences          u64
 *                               D document entries   u64    documents + 1
 *                               sizes                i32[S] tokens of each sequence
 *                               pointers             i64[S] byte offset of each sequence in PREFIX.bin
 *                               document index       i64[D] first sequence of each document; the last entry is S
 *                               set                  digests of all files of the shard (shard_file.h); may be absent
 *                  PREFIX.bin   tokens, nothing else
 *     llm.c        FILE.bin     header               i32[256]: magic, version, tokens; the rest is 0
 *                               tokens
 *     both         PREFIX.mask  u8 for each token of the .bin: 1, its prediction counts for the loss; 0, it does not.
 *                               The file may be absent.
 *
 * Sequences must follow one another without gaps, as Megatron-LM writes them: then the .bin is the stream, and packed
 * samples do not need the index. All integers are little-endian, as is every machine that ztrain is built for. */
#include "core/data/token_set.h"

#include "core/data/permute.h"
#include "core/data/shard_file.h"

#include <glob.h>
#include <xxhash.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "token files are read in place");

#define INDEX_HEADER 34
#define LLMC_HEADER 1024
#define MAX_OPEN_SHARDS 128 /* files of further shards are opened for each read, to stay below usual limits */
#define COMPARED_BLOCKS 256 /* of each of its files (shard_file.h), divided among the shards; one of each at least */

static const char index_magic[9] = "MMIDIDX\0";

struct token_type {
    int bytes;
    bool is_signed;
};

/* Megatron-LM's codes; it has more, which no tokenizer's ids need. */
static const struct index_type {
    uint8_t code;
    struct token_type type;
} index_types[] = {{8, {2, false}}, {4, {4, true}}};

/* llm.c's writer (dev/data/data_common.py) has version 1 for GPT-2 and 7 for Llama 3. The layout is the same in all. */
static const struct llmc_type {
    int32_t magic;
    int32_t versions[2];
    struct token_type type;
} llmc_types[] = {{20240520, {1, 1}, {2, false}}, {20240801, {1, 7}, {4, false}}};

struct shard {
    struct shard_file bin;
    struct shard_file idx;  /* path NULL: an llm.c file */
    struct shard_file mask; /* path NULL: every token counts */
    int64_t header;         /* bytes before the first token of bin */
    int64_t digests;        /* where they are in idx (shard_file.h); 0: it has none */
    struct token_type type;
    int64_t tokens, sequences, documents;
    int64_t first_token, first_document; /* of the set's */
};

struct token_set {
    struct shard *shards; /* own (num_shards) */
    int num_shards;
    int64_t tokens, documents;
    bool has_mask; /* some shard has one */
};

/* ---- from patterns to shards --------------------------------------------- */

static size_t token_set_base_length(const char *path)
{
    return strlen(path) - (fs_has_suffix(path, ".bin") || fs_has_suffix(path, ".idx") ? 4 : 0);
}

static enum status token_set_no_shard(const char *path, const char *bin, struct error *err)
{
    if (fs_is_dir(path))
        return error_set(err, STATUS_DATA,
                         "'%s' is a folder, expected token shards; hint: name a prefix in it, or all shards with the "
                         "glob '%s/*.bin'",
                         path, path);
    error_set(err, STATUS_DATA,
              "no token shard '%s': neither '%s' nor its '.idx' exists; hint: name a Megatron-LM prefix, an llm.c .bin "
              "file, or a glob; ztrain-tokenize makes token shards",
              path, bin);
    error_cause(err, ENOENT);
    return STATUS_DATA;
}

/* Sets the paths of the shard that `path` names (prefix, .bin or .idx), without opening its files. */
static enum status token_set_find_files(const char *path, struct shard *shard, struct error *err)
{
    const int length = (int)token_set_base_length(path);
    char *bin = memory_printf("%.*s.bin", length, path), *idx = memory_printf("%.*s.idx", length, path);
    char *mask = memory_printf("%.*s.mask", length, path);
    *shard = (struct shard){
        .bin = {.path = bin, .fd = -1}, .idx = {.path = idx, .fd = -1}, .mask = {.path = mask, .fd = -1}};
    if (fs_is_absent(mask)) {
        free(mask);
        shard->mask.path = NULL;
    }
    if (!fs_is_absent(idx) || fs_has_suffix(path, ".idx")) return STATUS_OK;
    free(idx);
    shard->idx.path = NULL;
    if (path[length] || !fs_is_absent(bin)) return STATUS_OK;
    if (fs_is_dir(path) || fs_is_absent(path)) return token_set_no_shard(path, bin, err);
    bin[length] = '\0'; /* an llm.c file without .bin in its name */
    return STATUS_OK;
}

static void token_shard_release(struct shard *shard)
{
    free(shard->bin.path);
    free(shard->idx.path);
    free(shard->mask.path);
}

/* Adds the shard `path`. One added since `own` (by the same glob) counts once; one added before is refused. */
static enum status set_add(struct token_set *set, int own, const char *path, struct error *err)
{
    RELEASED(token_shard_release) struct shard shard = {.header = 0};
    int same = 0;
    TRY(token_set_find_files(path, &shard, err));
    while (same < set->num_shards && strcmp(set->shards[same].bin.path, shard.bin.path) != 0) same++;
    if (same < own)
        return error_set(err, STATUS_DATA, "token shard '%s' is named twice; hint: name each shard once",
                         shard.bin.path);
    if (same < set->num_shards) return STATUS_OK;
    set->shards = memory_grow(set->shards, (size_t)set->num_shards, sizeof *set->shards);
    set->shards[set->num_shards++] = shard;
    shard = (struct shard){.header = 0}; /* the set has its paths */
    return STATUS_OK;
}

static enum status set_add_matches(struct token_set *set, const char *pattern, struct error *err)
{
    RELEASED(globfree) glob_t found = {0};
    struct slow_call slow;
    heartbeat_slow_begin(&slow, "looking for", pattern, -1);
    int own = set->num_shards, rc = glob(pattern, 0, NULL, &found); /* in the order of bytes: LC_COLLATE is C */
    heartbeat_slow_end(&slow);
    if (rc == GLOB_NOSPACE) memory_exhausted(0);
    for (size_t i = 0; rc == 0 && i < found.gl_pathc; i++) {
        const char *path = found.gl_pathv[i];
        if (token_set_base_length(path) < strlen(path) && !fs_is_dir(path)) TRY(set_add(set, own, path, err));
    }
    return STATUS_OK;
}

static enum status set_add_pattern(struct token_set *set, const char *pattern, struct error *err)
{
    int own = set->num_shards;
    if (!strpbrk(pattern, "*?[") || !fs_is_absent(pattern)) return set_add(set, own, pattern, err);
    TRY(set_add_matches(set, pattern, err));
    if (set->num_shards == own) { /* a glob of prefixes */
        OWNED char *with_end = memory_printf("%s.bin", pattern);
        TRY(set_add_matches(set, with_end, err));
    }
    if (set->num_shards == own) {
        error_set(err, STATUS_DATA,
                  "no token shard (.bin or .idx) matches '%s'; hint: ztrain-tokenize makes token shards", pattern);
        return error_cause(err, ENOENT);
    }
    return STATUS_OK;
}

/* ---- headers ------------------------------------------------------------- */

static enum status shard_wrong_size(const struct shard_file *file, int64_t expected, struct error *err)
{
    return error_set(err, STATUS_DATA, "'%s' has %lld bytes, expected %lld by its header: %s at byte %lld", file->path,
                     (long long)file->bytes, (long long)expected,
                     file->bytes < expected ? "it is truncated" : "there are trailing bytes",
                     (long long)(file->bytes < expected ? file->bytes : expected));
}

static enum status token_llmc_open(struct shard *shard, struct error *err)
{
    const char *path = shard->bin.path;
    int32_t header[3] = {0};
    if (shard->bin.bytes == 0) return error_set(err, STATUS_DATA, "token shard '%s' is empty", path);
    if (shard->bin.bytes >= (int64_t)sizeof header) TRY(shard_file_read(&shard->bin, 0, sizeof header, header, err));
    const struct llmc_type *type = llmc_types;
    while (type < llmc_types + COUNT_OF(llmc_types) && type->magic != header[0]) type++;
    if (type == llmc_types + COUNT_OF(llmc_types))
        return error_set(err, STATUS_DATA,
                         "'%s' is not an llm.c token file (magic at byte 0: expected 20240520 or 20240801, found %d) "
                         "and has no Megatron-LM index next to it; hint: the .idx file is missing, or this is not a "
                         "token shard",
                         path, header[0]);
    if (header[1] != type->versions[0] && header[1] != type->versions[1])
        return error_set(err, STATUS_DATA, "'%s' has version %d at byte 4, expected %d of an llm.c file with magic %d",
                         path, header[1], type->versions[1], type->magic);
    if (header[2] <= 0)
        return error_set(err, STATUS_DATA, "'%s' holds no tokens: the count at byte 8 is %d", path, header[2]);
    shard->header = LLMC_HEADER;
    shard->type = type->type;
    shard->tokens = header[2];
    shard->documents = 1;
    int64_t expected = LLMC_HEADER + shard->tokens * type->type.bytes;
    if (shard->bin.bytes != expected) return shard_wrong_size(&shard->bin, expected, err);
    return STATUS_OK;
}

enum index_list { INDEX_SIZES, INDEX_POINTERS, INDEX_ENTRIES };

/* Where item i of a list is in the index. */
static int64_t token_index_at(const struct shard *shard, enum index_list list, int64_t i)
{
    const int64_t pointers = INDEX_HEADER + 4 * shard->sequences;
    if (list == INDEX_SIZES) return INDEX_HEADER + 4 * i;
    return pointers + 8 * (list == INDEX_POINTERS ? i : shard->sequences + i);
}

static enum status token_index_wrong_pointer(const struct shard *shard, int64_t i, int64_t pointer, int64_t expected,
                                             struct error *err)
{
    return error_set(err, STATUS_DATA,
                     "'%s' at byte %lld: sequence %lld starts at byte %lld of the .bin, expected %lld, the end of the "
                     "sequence before it; hint: sequences must follow one another without gaps",
                     shard->idx.path, (long long)token_index_at(shard, INDEX_POINTERS, i), (long long)i,
                     (long long)pointer, (long long)expected);
}

static enum status token_index_wrong_entry(const struct shard *shard, int64_t i, int64_t entry, struct error *err)
{
    return error_set(err, STATUS_DATA,
                     "'%s' at byte %lld: entry %lld of the document index is %lld, expected rising numbers from 0 to "
                     "the shard's %lld sequences",
                     shard->idx.path, (long long)token_index_at(shard, INDEX_ENTRIES, i), (long long)i,
                     (long long)entry, (long long)shard->sequences);
}

#define CHUNK 4096

/* Checks a whole index: the sequences follow one another, the document entries rise, everything is within the .bin. */
static enum status token_index_check(const struct shard *shard, struct error *err)
{
    int32_t sizes[CHUNK];
    int64_t values[CHUNK];
    int64_t position = 0, before = 0;
    for (int64_t i = 0; i < shard->sequences; i += CHUNK) {
        int64_t count = shard->sequences - i < CHUNK ? shard->sequences - i : CHUNK;
        TRY(shard_file_read(&shard->idx, token_index_at(shard, INDEX_SIZES, i), 4 * count, sizes, err));
        TRY(shard_file_read(&shard->idx, token_index_at(shard, INDEX_POINTERS, i), 8 * count, values, err));
        for (int64_t j = 0; j < count; j++) {
            if (values[j] != position) return token_index_wrong_pointer(shard, i + j, values[j], position, err);
            if (sizes[j] < 0 || sizes[j] > (shard->bin.bytes - position) / shard->type.bytes)
                return error_set(err, STATUS_DATA,
                                 "'%s' at byte %lld: sequence %lld has %d tokens, more than '%s' has from byte "
                                 "%lld on; hint: one of the two files is damaged, or they do not belong together",
                                 shard->idx.path, (long long)token_index_at(shard, INDEX_SIZES, i + j),
                                 (long long)(i + j), sizes[j], shard->bin.path, (long long)position);
            position += (int64_t)sizes[j] * shard->type.bytes;
        }
    }
    for (int64_t i = 0; i <= shard->documents; i += CHUNK) {
        int64_t count = shard->documents + 1 - i < CHUNK ? shard->documents + 1 - i : CHUNK;
        TRY(shard_file_read(&shard->idx, token_index_at(shard, INDEX_ENTRIES, i), 8 * count, values, err));
        for (int64_t j = 0; j < count; j++) {
            if (values[j] < before || values[j] > shard->sequences)
                return token_index_wrong_entry(shard, i + j, values[j], err);
            before = values[j];
        }
    }
    return STATUS_OK;
}

/* Checks the first and last element of each list, in an index of any size. The shard has at least one sequence. */
static enum status token_index_ends(const struct shard *shard, struct error *err)
{
    int64_t last = shard->sequences - 1, pointer, entry;
    int32_t size;
    TRY(shard_file_read(&shard->idx, token_index_at(shard, INDEX_POINTERS, 0), 8, &pointer, err));
    if (pointer != 0) return token_index_wrong_pointer(shard, 0, pointer, 0, err);
    TRY(shard_file_read(&shard->idx, token_index_at(shard, INDEX_POINTERS, last), 8, &pointer, err));
    TRY(shard_file_read(&shard->idx, token_index_at(shard, INDEX_SIZES, last), 4, &size, err));
    if (pointer < 0 || size < 0 || pointer > shard->bin.bytes ||
        shard->bin.bytes - pointer != (int64_t)size * shard->type.bytes)
        return error_set(err, STATUS_DATA,
                         "'%s' has %lld bytes, but in '%s' its last sequence is %d tokens of %d bytes from byte %lld "
                         "on; hint: one of the two files is truncated, or they do not belong together",
                         shard->bin.path, (long long)shard->bin.bytes, shard->idx.path, size, shard->type.bytes,
                         (long long)pointer);
    TRY(shard_file_read(&shard->idx, token_index_at(shard, INDEX_ENTRIES, 0), 8, &entry, err));
    if (entry != 0) return token_index_wrong_entry(shard, 0, entry, err);
    TRY(shard_file_read(&shard->idx, token_index_at(shard, INDEX_ENTRIES, shard->documents), 8, &entry, err));
    if (entry != shard->sequences) return token_index_wrong_entry(shard, shard->documents, entry, err);
    return STATUS_OK;
}

static enum status token_megatron_open(struct shard *shard, struct error *err)
{
    const struct shard_file *idx = &shard->idx;
    unsigned char header[INDEX_HEADER];
    uint64_t version, sequences, entries;
    if (idx->bytes < INDEX_HEADER)
        return error_set(err, STATUS_DATA,
                         "'%s' has %lld bytes, a Megatron-LM index has at least %d; hint: it is empty or truncated",
                         idx->path, (long long)idx->bytes, INDEX_HEADER);
    TRY(shard_file_read(idx, 0, INDEX_HEADER, header, err));
    memcpy(&version, header + 9, 8);
    memcpy(&sequences, header + 18, 8);
    memcpy(&entries, header + 26, 8);
    if (memcmp(header, index_magic, sizeof index_magic) != 0)
        return error_set(err, STATUS_DATA, "'%s' is not a Megatron-LM index: it does not begin with MMIDIDX",
                         idx->path);
    if (version != 1)
        return error_set(err, STATUS_DATA, "'%s' has version %llu at byte 9, expected 1", idx->path,
                         (unsigned long long)version);
    const struct index_type *type = index_types;
    while (type < index_types + COUNT_OF(index_types) && type->code != header[17]) type++;
    if (type == index_types + COUNT_OF(index_types))
        return error_set(err, STATUS_DATA, "'%s' has token type %d at byte 17; supported are 8 (uint16) and 4 (int32)",
                         idx->path, header[17]);
    shard->type = type->type;

    /* divisions, because a product of damaged counts may overflow */
    uint64_t rest = (uint64_t)idx->bytes - INDEX_HEADER;
    if (sequences > rest / 12 || entries > (rest - 12 * sequences) / 8)
        return error_set(err, STATUS_DATA,
                         "'%s' has %lld bytes, too few for the %llu sequences and %llu document entries that its "
                         "header names; hint: it is truncated",
                         idx->path, (long long)idx->bytes, (unsigned long long)sequences, (unsigned long long)entries);
    const int64_t lists = (int64_t)(INDEX_HEADER + 12 * sequences + 8 * entries);
    int64_t digests;
    TRY(shard_digests_size(idx, lists, &digests, err));
    if (lists + digests != idx->bytes) return shard_wrong_size(idx, lists + digests, err);
    if (sequences == 0 || entries < 2 || shard->bin.bytes == 0)
        return error_set(
            err, STATUS_DATA, "token shard '%s' is empty: %lld bytes, %llu sequences, %llu document entries",
            shard->bin.path, (long long)shard->bin.bytes, (unsigned long long)sequences, (unsigned long long)entries);
    if (shard->bin.bytes % shard->type.bytes != 0)
        return error_set(err, STATUS_DATA,
                         "'%s' has %lld bytes, not a multiple of a token's %d; hint: it is truncated, or the index "
                         "belongs to another shard",
                         shard->bin.path, (long long)shard->bin.bytes, shard->type.bytes);
    shard->header = 0;
    shard->digests = digests ? lists : 0;
    shard->tokens = shard->bin.bytes / shard->type.bytes;
    shard->sequences = (int64_t)sequences;
    shard->documents = (int64_t)entries - 1;
    TRY(token_index_ends(shard, err));
    return idx->bytes <= TOKEN_INDEX_CHECKED ? token_index_check(shard, err) : STATUS_OK;
}

static void token_shard_close(struct shard *shard)
{
    shard_file_close(&shard->bin);
    shard_file_close(&shard->idx);
    shard_file_close(&shard->mask);
}

/* blocks: of each file, to compare with the digests of its set; seed chooses them. */
static enum status token_shard_open(struct shard *shard, int64_t blocks, uint64_t seed, struct error *err)
{
    enum status status = shard_file_open(&shard->bin, err);
    if (status == STATUS_OK && shard->idx.path) status = shard_file_open(&shard->idx, err);
    if (status != STATUS_OK && shard->idx.path) error_hint(err, "a Megatron-LM shard is two files, .bin and .idx");
    TRY(status);
    TRY(shard->idx.path ? token_megatron_open(shard, err) : token_llmc_open(shard, err));
    if (shard->mask.path) TRY(shard_file_open(&shard->mask, err));
    if (shard->digests)
        TRY(shard_digests_check(&shard->idx, shard->digests, &shard->bin, &shard->mask, blocks, seed, err));
    if (!shard->mask.path || shard->mask.bytes == shard->tokens) return STATUS_OK;
    return error_set(err, STATUS_DATA,
                     "'%s' has %lld bytes, but '%s' has %lld tokens: a loss mask has a byte for each; hint: the two do "
                     "not belong together; make both again, or remove the mask to learn from every token",
                     shard->mask.path, (long long)shard->mask.bytes, shard->bin.path, (long long)shard->tokens);
}

/* ---- the set ------------------------------------------------------------- */

enum status token_set_open(const char *const *patterns, int num_patterns, struct token_set **set, struct error *err)
{
    ASSERT(num_patterns > 0);
    *set = NULL;
    RELEASED(token_set_drop) struct token_set *new = memory_zeroed(1, sizeof *new);
    for (int i = 0; i < num_patterns; i++) TRY(set_add_pattern(new, patterns[i], err));
    const int64_t blocks = new->num_shards < COMPARED_BLOCKS ? COMPARED_BLOCKS / new->num_shards : 1;
    for (int i = 0; i < new->num_shards; i++) {
        struct shard *shard = &new->shards[i];
        TRY(token_shard_open(shard, blocks, (uint64_t)i, err));
        if (i >= MAX_OPEN_SHARDS) token_shard_close(shard);
        heartbeat_beat();
        shard->first_token = new->tokens;
        shard->first_document = new->documents;
        new->tokens += shard->tokens; /* the bytes of all files of a machine fit in int64_t */
        new->documents += shard->documents;
        new->has_mask = new->has_mask || shard->mask.path;
    }
    *set = TAKEN(new);
    return STATUS_OK;
}

void token_set_close(struct token_set *set)
{
    if (!set) return;
    for (int i = 0; i < set->num_shards; i++) {
        token_shard_close(&set->shards[i]);
        token_shard_release(&set->shards[i]);
    }
    free(set->shards);
    free(set);
}

int64_t token_set_tokens(const struct token_set *set)
{
    return set->tokens;
}

int64_t token_set_documents(const struct token_set *set)
{
    return set->documents;
}

int64_t token_set_samples(const struct token_set *set, int64_t seq_length, bool packing)
{
    ASSERT(seq_length > 0);
    return packing ? (set->tokens - 1) / seq_length : set->documents;
}

/* The shard of a token (or, with `documents`, of a document): the last one that begins at or before it. */
static const struct shard *shard_of(const struct token_set *set, int64_t index, bool documents)
{
    int low = 0, high = set->num_shards - 1;
    while (low < high) {
        int middle = low + (high - low + 1) / 2;
        const struct shard *shard = &set->shards[middle];
        if ((documents ? shard->first_document : shard->first_token) <= index)
            low = middle;
        else
            high = middle - 1;
    }
    return &set->shards[low];
}

/* Reads tokens [first, first + count) of one shard. The raw tokens go to the end of `out` and are widened from the
 * front on: the four bytes of token i end before raw token i + 1. */
static enum status token_shard_read(const struct shard *shard, int64_t first, int64_t count, int64_t vocab_size,
                                    int32_t *out, struct error *err)
{
    int bytes = shard->type.bytes;
    int64_t offset = shard->header + first * bytes;
    unsigned char *raw = (unsigned char *)out + (4 - bytes) * count;
    TRY(shard_file_read(&shard->bin, offset, count * bytes, raw, err));
    for (int64_t i = 0; i < count; i++) {
        uint32_t value = 0;
        if (bytes == 2)
            memcpy(&value, raw + 2 * i, 2);
        else
            memcpy(&value, raw + 4 * i, 4);
        const int64_t id = shard->type.is_signed ? (int64_t)(int32_t)value : (int64_t)value;
        if (id < 0 && vocab_size == INT32_MAX) /* the caller knows of no model */
            return error_set(err, STATUS_DATA, "'%s' at byte %lld: token id %lld is negative", shard->bin.path,
                             (long long)(offset + i * bytes), (long long)id);
        if (id < 0 || id >= vocab_size)
            return error_set(err, STATUS_DATA,
                             "'%s' at byte %lld: token id %lld is outside the vocabulary of %lld ids (0 to %lld); "
                             "hint: the data were made for another tokenizer, or the model's vocab_size is too small",
                             shard->bin.path, (long long)(offset + i * bytes), (long long)id, (long long)vocab_size,
                             (long long)(vocab_size - 1));
        out[i] = (int32_t)id;
    }
    return STATUS_OK;
}

bool token_set_has_mask(const struct token_set *set)
{
    return set->has_mask;
}

static enum status token_shard_mask(const struct shard *s, int64_t from, int64_t count, uint8_t *out, struct error *err)
{
    if (!s->mask.path) {
        memset(out, 1, (size_t)count);
        return STATUS_OK;
    }
    TRY(shard_file_read(&s->mask, from, count, out, err));
    for (int64_t i = 0; i < count; i++)
        if (out[i] > 1)
            return error_set(err, STATUS_DATA,
                             "'%s' at byte %lld: %d is neither 0 nor 1; hint: a loss mask has a byte for each token of "
                             "'%s'",
                             s->mask.path, (long long)(from + i), out[i], s->bin.path);
    return STATUS_OK;
}

enum status token_set_read(const struct token_set *set, int64_t first, int64_t count, int64_t vocab_size, int32_t *ids,
                           uint8_t *mask, struct error *err)
{
    ASSERT(first >= 0 && count >= 0 && count <= set->tokens - first && vocab_size <= INT32_MAX);
    for (int64_t done = 0, here; done < count; done += here) {
        const struct shard *shard = shard_of(set, first + done, false);
        const int64_t start = first + done - shard->first_token, rest = count - done;
        here = shard->tokens - start < rest ? shard->tokens - start : rest;
        if (ids) TRY(token_shard_read(shard, start, here, vocab_size, ids + done, err));
        if (mask) TRY(token_shard_mask(shard, start, here, mask + done, err));
    }
    return STATUS_OK;
}

bool data_fingerprint_equal(const struct data_fingerprint *a, const struct data_fingerprint *b)
{
    return a->first == b->first && (!a->sampled || !b->sampled || a->sampled == b->sampled);
}

enum { CHECK_BLOCK = 4096 }; /* tokens that are checked at once */

/* Continues *hash with the tokens [start, start + count) of a shard, and with their loss masks. */
static enum status check_token_block(const struct shard *shard, int64_t start, int64_t count, int64_t vocab_size,
                                     uint64_t *hash, struct error *err)
{
    int32_t ids[CHECK_BLOCK];
    uint8_t counts[CHECK_BLOCK];
    TRY(token_shard_read(shard, start, count, vocab_size, ids, err));
    heartbeat_beat();
    *hash = XXH64(ids, (size_t)count * sizeof *ids, *hash);
    if (!shard->mask.path) return STATUS_OK;
    TRY(token_shard_mask(shard, start, count, counts, err));
    *hash = XXH64(counts, (size_t)count, *hash);
    return STATUS_OK;
}

/* The same with the start of a shard. Checkpoints have this hash: what it covers must not change. */
static enum status check_first(const struct token_set *set, int index, int64_t vocab, uint64_t *hash, struct error *err)
{
    enum { FEWEST = 64, IN_ALL = 16 * CHECK_BLOCK }; /* tokens of a shard, of all shards while they are few */
    int64_t each = IN_ALL / set->num_shards;
    each = each > CHECK_BLOCK ? CHECK_BLOCK : each < FEWEST ? FEWEST : each;
    const int64_t tokens = set->shards[index].tokens;
    return check_token_block(&set->shards[index], 0, tokens < each ? tokens : each, vocab, hash, err);
}

/* The same with blocks from anywhere in a shard. Checkpoints have this hash, too. */
static enum status check_sampled(const struct token_set *set, int at, int64_t vocab, uint64_t *hash, struct error *err)
{
    enum { IN_ALL = 128, SEED = 1 }; /* blocks of all shards while they are fewer */
    const struct shard *shard = &set->shards[at];
    const int64_t blocks = (shard->tokens + CHECK_BLOCK - 1) / CHECK_BLOCK;
    int64_t sampled = set->num_shards < IN_ALL ? IN_ALL / set->num_shards : 1;
    sampled = sampled < blocks ? sampled : blocks;
    for (int64_t i = 0; i < sampled; i++) {
        const int64_t start = CHECK_BLOCK * (int64_t)permute_index((uint64_t)i, (uint64_t)blocks, SEED, (uint64_t)at);
        const int64_t rest = shard->tokens - start;
        TRY(check_token_block(shard, start, rest < CHECK_BLOCK ? rest : CHECK_BLOCK, vocab, hash, err));
    }
    return STATUS_OK;
}

enum status token_set_check(const struct token_set *set, int64_t vocab, struct data_fingerprint *out, struct error *err)
{
    struct data_fingerprint hash = {0};
    for (int i = 0; i < set->num_shards; i++) {
        const int64_t sizes[2] = {set->shards[i].tokens, set->shards[i].documents};
        hash.first = XXH64(sizes, sizeof sizes, hash.first);
    }
    hash.sampled = hash.first;
    for (int i = 0; i < set->num_shards; i++) {
        TRY(check_first(set, i, vocab, &hash.first, err));
        TRY(check_sampled(set, i, vocab, &hash.sampled, err));
    }
    if (out) *out = hash;
    return STATUS_OK;
}

const char *token_set_common(const struct token_set *a, const struct token_set *b)
{
    for (int i = 0; i < a->num_shards; i++)
        for (int k = 0; k < b->num_shards; k++)
            if (strcmp(a->shards[i].bin.path, b->shards[k].bin.path) == 0) return a->shards[i].bin.path;
    return NULL;
}

const char *token_set_shard(const struct token_set *set, int index, int64_t *documents, int64_t *tokens)
{
    ASSERT(index >= 0);
    if (index >= set->num_shards) return NULL;
    *documents = set->shards[index].documents;
    *tokens = set->shards[index].tokens;
    return set->shards[index].bin.path;
}

enum status token_set_document(const struct token_set *set, int64_t n, int64_t *first, int64_t *len, struct error *err)
{
    ASSERT(n >= 0 && n < set->documents);
    const struct shard *shard = shard_of(set, n, true);
    if (!shard->idx.path) {
        *first = shard->first_token;
        *len = shard->tokens;
        return STATUS_OK;
    }
    int64_t document = n - shard->first_document;
    int64_t entries[2], pointers[2] = {shard->bin.bytes, shard->bin.bytes};
    TRY(shard_file_read(&shard->idx, token_index_at(shard, INDEX_ENTRIES, document), sizeof entries, entries, err));
    for (int i = 0; i < 2; i++) { /* the first sequences of this document and of the next */
        if (entries[i] < 0 || entries[i] > shard->sequences || entries[i] < entries[0])
            return token_index_wrong_entry(shard, document + i, entries[i], err);
        if (entries[i] < shard->sequences)
            TRY(shard_file_read(&shard->idx, token_index_at(shard, INDEX_POINTERS, entries[i]), 8, &pointers[i], err));
        if (pointers[i] < 0 || pointers[i] > shard->bin.bytes || pointers[i] % shard->type.bytes != 0 ||
            pointers[i] < pointers[0])
            return error_set(err, STATUS_DATA,
                             "'%s' at byte %lld: sequence %lld starts at byte %lld of the .bin, which is before the "
                             "previous sequence, within a token, or beyond the end at %lld",
                             shard->idx.path, (long long)token_index_at(shard, INDEX_POINTERS, entries[i]),
                             (long long)entries[i], (long long)pointers[i], (long long)shard->bin.bytes);
    }
    *first = shard->first_token + pointers[0] / shard->type.bytes;
    *len = (pointers[1] - pointers[0]) / shard->type.bytes;
    return STATUS_OK;
}
