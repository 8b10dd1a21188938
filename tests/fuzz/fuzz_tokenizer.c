/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a tokenizer.json, whose member "config" is the tokenizer_config.json, and after a NUL a text: refused,
 * or tokens whose text is UTF-8, and the same from the stream. */
#include "core/text/tokenizer.h"
#include "core/text/tokenizer_json.h"
#include "core/text/unicode.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_text(const struct tokenizer *tokenizer, const char *text, size_t bytes)
{
    struct token_list ids = {0};
    struct text whole = {0}, streamed = {0};
    struct text_stream stream = {0};
    struct error err;
    if (tokenizer_encode(tokenizer, text, bytes, true, &ids, &err) != STATUS_OK) ASSERT(err.text[0]);
    token_list_add(&ids, INT32_MAX);
    tokenizer_decode(tokenizer, ids.ids, ids.count, false, &whole);
    for (size_t i = 0; i < ids.count; i++) text_stream_push(&stream, tokenizer, ids.ids[i], false, &streamed);
    text_stream_end(&stream, &streamed);
    ASSERT(whole.count == streamed.count && (!whole.count || memcmp(whole.bytes, streamed.bytes, whole.count) == 0));
    ASSERT(utf8_check(whole.count ? whole.bytes : "", whole.count) == whole.count);
    token_list_release(&ids);
    text_release(&whole);
    text_release(&streamed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tokenizer *tokenizer;
    struct error err;
    const uint8_t *end = size ? memchr(data, 0, size) : NULL;
    size_t length = end ? (size_t)(end - data) : size;
    json_t *json = json_loadb((const char *)data, length, JSON_REJECT_DUPLICATES, NULL);
    if (!json) return 0;
    const struct tokenizer_folder folder = {.path = ".", .values = json_object_get(json, "config")};
    if (tokenizer_folder_apply(&folder, json, &err) == STATUS_OK &&
        tokenizer_from_json(json, "tokenizer.json", &tokenizer, &err) == STATUS_OK) {
        check_text(tokenizer, end ? (const char *)end + 1 : "", end ? size - length - 1 : 0);
        tokenizer_free(tokenizer);
    } else {
        ASSERT(err.text[0]);
    }
    json_decref(json);
    return 0;
}
