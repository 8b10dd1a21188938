/* SPDX-License-Identifier: Apache-2.0 */
#include "core/data/label_set.h"

#include <xxhash.h>

enum { PIECE = 1 << 16, MAX_NAMES_BYTES = 16 << 20 };

struct shard_labels {
    const char *prefix;         /* the path of the .bin, or without its end */
    int64_t first, first_token; /* its first document and token in the set */
    int64_t count, tokens;      /* documents and tokens */
};

static enum status companion_path(const struct shard_labels *shard, const char *end, char out[FS_PATH_MAX],
                                  struct error *err)
{
    const int length = (int)strlen(shard->prefix) - (fs_has_suffix(shard->prefix, ".bin") ? 4 : 0);
    if (snprintf(out, FS_PATH_MAX, "%.*s%s", length, shard->prefix, end) >= FS_PATH_MAX)
        return error_set(err, STATUS_DATA, "path too long: '%.200s…'", shard->prefix);
    return STATUS_OK;
}

static enum status read_labels(struct label_set *set, const struct shard_labels *shard, struct error *err)
{
    char path[FS_PATH_MAX];
    RELEASED(fs_close) int fd = -1;
    int64_t bytes;
    TRY(companion_path(shard, ".labels", path, err));
    if (fs_is_absent(path)) {
        error_set(err, STATUS_DATA,
                  "'%s' has no labels: there is no '%s'; hint: ztrain-tokenize --label COLUMN, or --preference, writes "
                  "them",
                  shard->prefix, path);
        return error_cause(err, ENOENT);
    }
    TRY(fs_open_read(path, STATUS_DATA, &fd, &bytes, err));
    if (bytes != 4 * shard->count)
        return error_set(err, STATUS_DATA,
                         "'%s' has %lld bytes, expected 4 for each of the %lld documents of '%s'; hint: the two do "
                         "not belong together; make both again",
                         path, (long long)bytes, (long long)shard->count, shard->prefix);
    TRY(fs_pread(fd, path, set->labels + shard->first, (size_t)bytes, 0, STATUS_DATA, err));
    for (int64_t i = 0; i < shard->count; i++)
        if (set->labels[shard->first + i] < 0)
            return error_set(err, STATUS_DATA, "'%s' at byte %lld: label %d is negative; hint: labels count from 0",
                             path, (long long)(4 * i), set->labels[shard->first + i]);
    return STATUS_OK;
}

/* Counts the tokens of type 0 that begin a document of `length` tokens at byte `first`. */
static enum status count_first_labels(int fd, const char *path, int64_t first, int64_t length, int32_t *count,
                                      struct error *err)
{
    uint8_t types[PIECE];
    *count = 0;
    for (int64_t i = 0; i < length; i++) {
        const int64_t at = i % PIECE, rest = length - i;
        if (at == 0) TRY(fs_pread(fd, path, types, (size_t)(rest < PIECE ? rest : PIECE), first + i, STATUS_DATA, err));
        if (types[at] > 1 || (types[at] == 0 && *count < i))
            return error_set(err, STATUS_DATA,
                             "'%s' at byte %lld: type %d does not continue 0 … 0 1 … 1, the types of a pair of texts",
                             path, (long long)(first + i), types[at]);
        *count += types[at] == 0;
    }
    return STATUS_OK;
}

static enum status read_types(struct label_set *set, const struct token_set *tokens, const struct shard_labels *shard,
                              struct error *err)
{
    char path[FS_PATH_MAX];
    TRY(companion_path(shard, ".types", path, err));
    if (fs_is_absent(path)) return STATUS_OK;
    RELEASED(fs_close) int fd = -1;
    int64_t bytes;
    TRY(fs_open_read(path, STATUS_DATA, &fd, &bytes, err));
    if (bytes != shard->tokens)
        return error_set(err, STATUS_DATA,
                         "'%s' has %lld bytes, expected one for each of the %lld tokens of '%s'; hint: the two do not "
                         "belong together; make both again",
                         path, (long long)bytes, (long long)shard->tokens, shard->prefix);
    for (int64_t i = 0; i < shard->count; i++) {
        int64_t first, length;
        TRY(token_set_document(tokens, shard->first + i, &first, &length, err));
        TRY(count_first_labels(fd, path, first - shard->first_token, length, &set->first_text[shard->first + i], err));
        set->pairs += set->first_text[shard->first + i] < length;
    }
    return STATUS_OK;
}

static enum status check_label_names(const json_t *names, const char *path, struct error *err)
{
    bool good = json_is_object(names) && json_object_size(names) > 0;
    for (size_t i = 0; good && i < json_object_size(names); i++) {
        char id[24];
        snprintf(id, sizeof id, "%zu", i);
        good = json_is_string(json_object_get(names, id));
    }
    if (good) return STATUS_OK;
    return error_set(err, STATUS_DATA, "'%s': id2label must be an object that maps \"0\", \"1\", … to names", path);
}

static enum status read_names(struct label_set *set, const struct shard_labels *shard, struct error *err)
{
    char path[FS_PATH_MAX];
    json_auto_t *whole = NULL;
    TRY(companion_path(shard, ".labels.json", path, err));
    if (!fs_is_absent(path)) TRY(fs_read_json(path, MAX_NAMES_BYTES, 0, &whole, err));
    json_t *names = json_object_get(whole, "id2label");
    if (whole) TRY(check_label_names(names, path, err));
    bool same = shard->first == 0 || (names && set->names ? json_equal(names, set->names) : names == set->names);
    if (shard->first == 0) set->names = json_incref(names);
    if (!same)
        return error_set(err, STATUS_DATA,
                         "the shards name their labels differently: '%s' is not like that of the first shard; hint: "
                         "ztrain-tokenize --labels-from PREFIX gives further shards the labels of the first",
                         path);
    return STATUS_OK;
}

static enum status measure_documents(struct label_set *set, const struct token_set *tokens,
                                     const struct shard_labels *shard, struct error *err)
{
    for (int64_t i = shard->first; i < shard->first + shard->count; i++) {
        int64_t first, length;
        TRY(token_set_document(tokens, i, &first, &length, err));
        if (length == 0)
            return error_set(err, STATUS_DATA, "document %lld has a label, but no tokens; hint: make the shard again",
                             (long long)i);
        if (i % PIECE == 0) heartbeat_beat();
        if (length > set->longest) {
            set->longest = length;
            set->longest_document = i;
        }
        set->first_text[i] = length < INT32_MAX ? (int32_t)length : INT32_MAX;
        set->classes = set->labels[i] + (int64_t)1 > set->classes ? set->labels[i] + (int64_t)1 : set->classes;
    }
    return STATUS_OK;
}

static enum status read_shards(struct label_set *set, const struct token_set *tokens, struct error *err)
{
    struct shard_labels shard = {.first = 0};
    for (int i = 0; (shard.prefix = token_set_shard(tokens, i, &shard.count, &shard.tokens)); i++) {
        TRY(read_labels(set, &shard, err));
        TRY(read_names(set, &shard, err));
        TRY(measure_documents(set, tokens, &shard, err));
        TRY(read_types(set, tokens, &shard, err));
        shard.first += shard.count;
        shard.first_token += shard.tokens;
    }
    return STATUS_OK;
}

enum status label_set_open(const struct token_set *tokens, struct label_set **labels, struct error *err)
{
    *labels = NULL;
    RELEASED(label_set_drop) struct label_set *set = memory_zeroed(1, sizeof *set);
    set->documents = token_set_documents(tokens);
    set->labels = memory_zeroed((size_t)set->documents, sizeof *set->labels);
    set->first_text = memory_zeroed((size_t)set->documents, sizeof *set->first_text);
    TRY(read_shards(set, tokens, err));
    const int64_t names = (int64_t)json_object_size(set->names);
    if (set->names && names < set->classes)
        return error_set(err, STATUS_DATA, "the data hold label %lld, but names for only %lld labels",
                         (long long)set->classes - 1, (long long)names);
    if (set->names) set->classes = names;
    *labels = TAKEN(set);
    return STATUS_OK;
}

enum status label_set_find(const struct token_set *tokens, struct label_set **labels, struct error *err)
{
    const char *bin;
    bool found = false;
    for (int i = 0; (bin = token_set_shard(tokens, i, &(int64_t){0}, &(int64_t){0})); i++) {
        const int stem = (int)strlen(bin) - (fs_has_suffix(bin, ".bin") ? 4 : 0);
        OWNED char *path = memory_printf("%.*s.labels", stem, bin);
        found |= !fs_is_absent(path);
    }
    *labels = NULL;
    return found ? label_set_open(tokens, labels, err) : STATUS_OK;
}

void label_set_close(struct label_set *set)
{
    if (!set) return;
    json_decref(set->names);
    free(set->labels);
    free(set->first_text);
    free(set);
}

bool label_set_is_preference(const struct label_set *set)
{
    const char *name = json_string_value(json_object_get(set->names, "0"));
    return name && (!strcmp(name, "rejected") || !strcmp(name, "undesirable"));
}

uint64_t label_set_fingerprint(const struct label_set *set, uint64_t before)
{
    const size_t bytes = (size_t)set->documents * sizeof(int32_t);
    return XXH64(set->first_text, bytes, XXH64(set->labels, bytes, before));
}
