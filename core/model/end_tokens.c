/* SPDX-License-Identifier: Apache-2.0 */
#include "core/model/end_tokens.h"

#include "core/fsutil.h"
#include "core/printable.h"

static enum status add_id(struct end_tokens *tokens, const json_t *value, const char *where, struct error *err)
{
    if (!value || json_is_null(value)) return STATUS_OK;
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return error_set(err, STATUS_DATA, "%s: eos_token_id must be a token id or a list of them", where);
    if (tokens->count == END_TOKENS_MAX)
        return error_set(err, STATUS_DATA, "%s: eos_token_id has more than %d ids", where, (int)END_TOKENS_MAX);
    tokens->ids[tokens->count++] = json_integer_value(value);
    return STATUS_OK;
}

static enum status add_ids(struct end_tokens *tokens, const json_t *config, const char *where, struct error *err)
{
    if (!json_object_get(config, "eos_token_id") && json_object_get(config, "text_config")) /* a multimodal folder's */
        config = json_object_get(config, "text_config");
    const json_t *value = json_object_get(config, "eos_token_id"), *begin = json_object_get(config, "bos_token_id");
    tokens->begin = json_is_integer(begin) && json_integer_value(begin) >= 0 ? json_integer_value(begin) : -1;
    if (!json_is_array(value)) return add_id(tokens, value, where, err);
    for (size_t i = 0; i < json_array_size(value); i++) TRY(add_id(tokens, json_array_get(value, i), where, err));
    return STATUS_OK;
}

enum status end_tokens_read(const char *dir, const json_t *config, struct end_tokens *tokens, struct error *err)
{
    enum { MAX_BYTES = 1 << 20 };
    char path[FS_PATH_MAX];
    json_auto_t *object = NULL;
    *tokens = (struct end_tokens){.begin = -1};
    if (dir) TRY(fs_join(path, dir, "generation_config.json", STATUS_DATA, err));
    if (!dir || !fs_exists(path)) return add_ids(tokens, config, "config.json", err);
    TRY(fs_read_json(path, MAX_BYTES, 0, &object, err));
    return json_is_object(object) ? add_ids(tokens, object, "generation_config.json", err)
                                  : error_set(err, STATUS_DATA, "'%s' is not a JSON object", PRINTABLE(path));
}

bool end_tokens_have(const struct end_tokens *tokens, int64_t id)
{
    for (int i = 0; i < tokens->count; i++)
        if (tokens->ids[i] == id) return true;
    return false;
}
