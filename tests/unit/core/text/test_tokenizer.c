/* SPDX-License-Identifier: Apache-2.0 */
/* test_tokenizer.c: core/text/tokenizer.h against what `tokenizers` did (tests/text/encodings.json), streams, long
 * words, and files that are refused or damaged. */
#include "core/fsutil.h"
#include "core/text/added_tokens.h"
#include "core/text/tokenizer_json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define TEXT_FOLDER "tests/text/"

enum { LONG_TEXT = 1 << 18 };

static struct tokenizer *open_made(const char *name)
{
    char path[256];
    struct tokenizer *tokenizer = NULL;
    struct error err;
    snprintf(path, sizeof path, TEXT_FOLDER "%s", name);
    if (tokenizer_folder_open(path, &tokenizer, &err) != STATUS_OK) fail_msg("%s", err.text);
    return tokenizer;
}

static struct token_list encode(const struct tokenizer *tokenizer, const char *text, size_t bytes, bool special)
{
    struct token_list ids = {0};
    struct error err;
    if (tokenizer_encode(tokenizer, text, bytes, special, &ids, &err) != STATUS_OK) fail_msg("%s", err.text);
    return ids;
}

/* ---- against the package ------------------------------------------------- */

static void check_ids(const char *name, const json_t *text, const json_t *expected, struct token_list ids)
{
    size_t i;
    bool same = ids.count == json_array_size(expected);
    for (i = 0; same && i < ids.count; i++) same = ids.ids[i] == json_integer_value(json_array_get(expected, i));
    if (!same) fail_msg("%s: '%s' has other tokens from number %zu on", name, json_string_value(text), i);
}

static void check_text(const char *name, struct text *text, const json_t *expected)
{
    if (text->count != json_string_length(expected) ||
        memcmp(text->count ? text->bytes : "", json_string_value(expected), text->count) != 0)
        fail_msg("%s: '%s', not '%s'", name, text->count ? text->bytes : "", json_string_value(expected));
    text_release(text);
}

static void check_encodings(const char *name, const json_t *texts, const json_t *expected)
{
    struct tokenizer *tokenizer = open_made(name);
    const json_t *text;
    size_t i;
    json_array_foreach ((json_t *)texts, i, text) {
        const char *bytes = json_string_value(text);
        struct text decoded = {0};
        struct token_list ids = encode(tokenizer, bytes, json_string_length(text), false);
        check_ids(name, text, json_array_get(json_object_get(expected, "plain"), i), ids);
        token_list_release(&ids);
        ids = encode(tokenizer, bytes, json_string_length(text), true);
        check_ids(name, text, json_array_get(json_object_get(expected, "encodings"), i), ids);
        tokenizer_decode(tokenizer, ids.ids, ids.count, true, &decoded);
        check_text(name, &decoded, json_array_get(json_object_get(expected, "decoded"), i));
        token_list_release(&ids);
    }
    tokenizer_free(tokenizer);
}

/* Ids that are no text by themselves; the stream gives the same, and never a part of a character. */
static void check_decodings(const char *name, const json_t *rows)
{
    struct tokenizer *tokenizer = open_made(name);
    const json_t *row, *id;
    size_t i, k;
    json_array_foreach ((json_t *)rows, i, row)
        for (int skip = 0; skip < 2; skip++) {
            struct token_list ids = {0};
            struct text whole = {0}, streamed = {0};
            struct text_stream stream = {0};
            json_array_foreach (json_array_get(row, 0), k, id) {
                token_list_add(&ids, (int32_t)json_integer_value(id));
                text_stream_push(&stream, tokenizer, ids.ids[k], skip, &streamed);
                json_t *printable = json_stringn(streamed.count ? streamed.bytes : "", streamed.count);
                assert_non_null(printable); /* jansson takes UTF-8 only */
                json_decref(printable);
            }
            text_stream_end(&stream, &streamed);
            tokenizer_decode(tokenizer, ids.ids, ids.count, skip, &whole);
            check_text(name, &whole, json_array_get(row, skip ? 2 : 1));
            check_text(name, &streamed, json_array_get(row, skip ? 2 : 1));
            token_list_release(&ids);
        }
    tokenizer_free(tokenizer);
}

static void tokens_and_texts_are_those_of_the_package(void **state)
{
    (void)state;
    static const char *const names[] = {"gpt2", "llama3", "qwen2", "mixed", "o200k", "holes"};
    json_t *golden = json_load_file(TEXT_FOLDER "encodings.json", JSON_ALLOW_NUL, NULL);
    assert_non_null(golden);
    assert_true(json_array_size(json_object_get(golden, "texts")) > 50);
    assert_int_equal(json_object_size(golden), COUNT_OF(names) + 1);
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const json_t *expected = json_object_get(golden, names[i]);
        assert_true(json_array_size(json_object_get(expected, "decodings")) > 12);
        check_encodings(names[i], json_object_get(golden, "texts"), expected);
        check_decodings(names[i], json_object_get(expected, "decodings"));
    }
    json_decref(golden);
}

/* ---- size, names, hostile texts ------------------------------------------ */

static void a_text_that_is_not_utf8_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {"ab\xff", "ab\xc0\xaf", "ab\xed\xa0\x80", "ab\xf4\x90\x80\x80", "ab\xe2\x82"};
    struct tokenizer *tokenizer = open_made("gpt2");
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        struct token_list ids = {0};
        struct error err;
        assert_int_equal(tokenizer_encode(tokenizer, texts[i], strlen(texts[i]), true, &ids, &err), STATUS_USAGE);
        assert_non_null(strstr(err.text, "not UTF-8: byte 2 "));
        token_list_release(&ids);
    }
    tokenizer_free(tokenizer);
}

/* A quarter of a megabyte that is one word, or one letter with accents: the square of its length would take minutes. */
static void long_words_take_no_square_of_their_length(void **state)
{
    (void)state;
    static const char *const pieces[] = {"a", " ", "ab", "\xcc\x81\xcc\x96", "\n", "'", "<"};
    static const char *const names[] = {"gpt2", "qwen2", "llama3"};
    char *text = malloc(LONG_TEXT);
    for (size_t k = 0; k < COUNT_OF(names); k++) {
        struct tokenizer *tokenizer = open_made(names[k]);
        for (size_t i = 0; i < COUNT_OF(pieces); i++) {
            size_t bytes = strlen(pieces[i]);
            for (size_t at = 0; at < LONG_TEXT; at++) text[at] = pieces[i][at % bytes];
            struct token_list ids = encode(tokenizer, text, LONG_TEXT, false);
            assert_true(ids.count > 1000);
            token_list_release(&ids);
        }
        tokenizer_free(tokenizer);
    }
    free(text);
}

/* ---- files --------------------------------------------------------------- */

static char folder[] = "/tmp/test_tokenizer.XXXXXX";

static const char *in_folder(const char *name)
{
    static char path[FS_PATH_MAX];
    struct error err;
    assert_int_equal(fs_join(path, folder, name, STATUS_DATA, &err), STATUS_OK);
    return path;
}

static void put(const char *name, const char *text)
{
    FILE *file = fopen(in_folder(name), "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static void take_away(const char *name)
{
    assert_int_equal(unlink(in_folder(name)), 0);
}

static void expect_refusal(const char *path, enum status code, const char *part)
{
    struct tokenizer *tokenizer = NULL;
    struct error err = {0};
    enum status status = tokenizer_folder_open(path, &tokenizer, &err);
    if (status != code || !strstr(err.text, part))
        fail_msg("%d '%s', expected %d '%s'", (int)status, err.text, (int)code, part);
    assert_null(tokenizer);
}

/* A small tokenizer with the given parts in place of its own. */
struct parts {
    const char *model, *cuts, *more; /* NULL: the usual ones */
};
#define VOCABULARY "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2}"
#define BPE_WITH(settings) "{\"type\":\"BPE\"," VOCABULARY ",\"merges\":[[\"a\",\"b\"]]" settings "}"
#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"
#define SPLIT(expression)                                                                                \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" expression \
    "\"},\"behavior\":\"Isolated\"}," BYTE_LEVEL "]}"

static void put_parts(struct parts parts)
{
    char text[4096];
    snprintf(text, sizeof text, "{\"model\":%s,\"pre_tokenizer\":%s%s}", parts.model ? parts.model : BPE_WITH(""),
             parts.cuts ? parts.cuts : BYTE_LEVEL, parts.more ? parts.more : ",\"decoder\":{\"type\":\"ByteLevel\"}");
    put("tokenizer.json", text);
}

static const struct {
    struct parts parts;
    const char *part; /* of the message */
} refused[] = {
    {{.model = "{\"type\":\"Unigram\",\"vocab\":[]}"}, "the model 'Unigram'"},
    {{.model = "{\"type\":\"WordPiece\",\"vocab\":{}}"}, "the model 'WordPiece'"},
    {{.model = "{\"vocab\":{}}"}, "the model '?'"},
    {{.model = BPE_WITH(",\"byte_fallback\":true")}, "'byte_fallback'"},
    {{.model = BPE_WITH(",\"dropout\":0.1")}, "'dropout'"},
    {{.model = BPE_WITH(",\"end_of_word_suffix\":\"</w>\"")}, "'end_of_word_suffix'"},
    {{.model = BPE_WITH(",\"continuing_subword_prefix\":\"##\"")}, "'continuing_subword_prefix'"},
    {{.cuts = "null"}, "the pre-tokenizer 'null'"},
    {{.cuts = "{\"type\":\"Metaspace\"}"}, "the pre-tokenizer 'Metaspace'"},
    {{.cuts = "{\"type\":\"Digits\"}"}, "the pre-tokenizer without ByteLevel 'Digits'"},
    {{.cuts = "{\"type\":\"Sequence\",\"pretokenizers\":[" BYTE_LEVEL ",{\"type\":\"Digits\"}]}"}, "after ByteLevel"},
    {{.cuts = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},"
              "\"behavior\":\"Isolated\"}]}"},
     "Split without a Regex"},
    {{.cuts = "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"MergedWithNext\"}"}, "MergedWithNext"},
    {{.cuts = SPLIT("(?<=a)b")}, "(?<"},
    {{.more = ",\"decoder\":{\"type\":\"WordPiece\"}"}, "the decoder 'WordPiece'"},
    {{.more = ""}, "the decoder 'null'"},
    {{.more = ",\"decoder\":{\"type\":\"ByteLevel\"},\"normalizer\":{\"type\":\"NFKC\"}"}, "the normalizer 'NFKC'"},
    {{.more = ",\"decoder\":{\"type\":\"ByteLevel\"},\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":"
              "[{\"type\":\"Lowercase\"}]}"},
     "the normalizer 'Lowercase'"},
    {{.more = ",\"decoder\":{\"type\":\"ByteLevel\"},\"post_processor\":{\"type\":\"BertProcessing\"}"},
     "the post-processor 'BertProcessing'"},
};

static void other_kinds_are_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(refused); i++) {
        put_parts(refused[i].parts);
        expect_refusal(folder, STATUS_USAGE, refused[i].part);
    }
    take_away("tokenizer.json");
    expect_refusal(folder, STATUS_USAGE, "has no tokenizer.json");
    put("tokenizer.model", "");
    expect_refusal(folder, STATUS_USAGE, "its tokenizer.model is not read; hint: transformers' AutoTokenizer");
    take_away("tokenizer.model");
}

#define MODEL(vocabulary, merges) "{\"type\":\"BPE\",\"vocab\":" vocabulary ",\"merges\":" merges "}"
#define MORE(text) ",\"decoder\":{\"type\":\"ByteLevel\"}," text
#define TEMPLATE(text) MORE("\"post_processor\":{\"type\":\"TemplateProcessing\"," text "}")

static const struct {
    struct parts parts;
    const char *part;
} damaged[] = {
    {{.model = "7"}, "there is no 'model'"},
    {{.model = MODEL("[]", "[]")}, "no 'vocab'"},
    {{.model = MODEL("{\"a\":0}", "7")}, "no 'merges'"},
    {{.model = MODEL("{\"a\":99999999999}", "[]")}, "id of 'a'"},
    {{.model = MODEL("{\"a\":4194304}", "[]")}, "id of 'a'"},
    {{.model = MODEL("{\"a\":-1}", "[]")}, "id of 'a'"},
    {{.model = MODEL("{\"a\":\"0\"}", "[]")}, "id of 'a'"},
    {{.model = MODEL("{\"a\":1,\"b\":1}", "[]")}, "two tokens have the id 1"},
    {{.model = MODEL("{\"a\":1,\"a\":2}", "[]")}, "not valid JSON"},
    {{.model = MODEL("{\"a\":0,\"b\":1}", "[\"a b\"]")}, "needs the token 'ab'"},
    {{.model = MODEL("{\"a\":0,\"ab\":1}", "[\"a b\"]")}, "needs the token 'b'"},
    {{.model = MODEL("{\"a\":0}", "[\"a  b\"]")}, "merge 0 does not have two parts"},
    {{.model = MODEL("{\"a\":0}", "[\"ab\"]")}, "merge 0 does not have two parts"},
    {{.model = MODEL("{\"a\":0}", "[[\"a\"]]")}, "merge 0 does not have two parts"},
    {{.model = MODEL("{\"a\":0}", "[[\"a\",\"a\",\"a\"]]")}, "merge 0 does not have two parts"},
    {{.model = MODEL("{\"a\":0}", "[7]")}, "merge 0 does not have two parts"},
    {{.model = BPE_WITH(",\"unk_token\":\"<unk>\"")}, "unknown token '<unk>'"},
    {{.model = BPE_WITH(",\"ignore_merges\":1")}, "'ignore_merges' is neither"},
    {{.cuts = SPLIT("(a")}, "( without )"},
    {{.cuts = SPLIT("[a")}, "[ without ]"},
    {{.more = MORE("\"added_tokens\":7")}, "no list"},
    {{.more = MORE("\"added_tokens\":[{\"id\":3}]")}, "without 'content'"},
    {{.more = MORE("\"added_tokens\":[{\"content\":\"x\"}]")}, "without 'content' or 'id'"},
    {{.more = MORE("\"added_tokens\":[{\"content\":\"x\",\"id\":9}]")}, "the next id is 3"},
    {{.more = MORE("\"added_tokens\":[{\"content\":\"b\",\"id\":3}]")}, "in the vocabulary 1"},
    {{.more = MORE("\"added_tokens\":[{\"content\":\"x\",\"id\":3},{\"content\":\"x\",\"id\":3}]")}, "there twice"},
    {{.more = MORE("\"added_tokens\":[{\"content\":\"x\",\"id\":3},{\"content\":\"b\",\"id\":1},"
                   "{\"content\":\"y\",\"id\":4},{\"content\":\"z\",\"id\":4}]")},
     "the added token 'z' has the id 4, but the next id is 5"},
    {{.more = MORE("\"added_tokens\":[{\"content\":\"x\",\"id\":4294967299}]")}, "has the id 4294967299, but"},
    {{.more = TEMPLATE("\"single\":[]")}, "the text 0 times"},
    {{.more = TEMPLATE("\"single\":[{\"Sequence\":{\"id\":\"B\"}}]")}, "neither a SpecialToken"},
    {{.more = TEMPLATE("\"single\":[{\"SpecialToken\":{\"id\":\"s\"}}]")}, "'s' has no ids"},
    {{.more = TEMPLATE("\"single\":[{\"SpecialToken\":{\"id\":\"s\"}}],\"special_tokens\":{\"s\":{\"ids\":[-1]}}")},
     "an id of the template's token 's'"},
};

static void damaged_files_are_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(damaged); i++) {
        put_parts(damaged[i].parts);
        expect_refusal(folder, STATUS_DATA, damaged[i].part);
    }
    static const char *const texts[] = {"", "{", "[]", "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0", "\xff"};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        put("tokenizer.json", texts[i]);
        expect_refusal(folder, STATUS_DATA, "tokenizer.json");
    }
    take_away("tokenizer.json");
    expect_refusal(in_folder("tokenizer.json"), STATUS_DATA, "cannot open");
}

static void a_pair_of_files_is_gpt2(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = NULL;
    struct error err;
    put("vocab.json", "{\"a\":0,\"b\":1,\"ab\":2,\"\u0120\":3,\"\u0120ab\":4,\"<|endoftext|>\":5}");
    put("merges.txt", "#version: 0.2\r\na b\r\n\u0120 ab");
    put("tokenizer_config.json", "{\"tokenizer_class\":\"GPT2Tokenizer\",\"bos_token\":{\"content\":\"<|endoftext|>\"},"
                                 "\"eos_token\":\"<new>\"}");
    assert_int_equal(tokenizer_folder_open(folder, &tokenizer, &err), STATUS_OK);
    struct token_list ids = encode(tokenizer, "ab ab<|endoftext|>b<new>", strlen("ab ab<|endoftext|>b<new>"), true);
    static const int32_t expected[] = {2, 4, 5, 1, 6}; /* <new> is the one after the vocabulary */
    assert_int_equal(ids.count, COUNT_OF(expected));
    assert_memory_equal(ids.ids, expected, sizeof expected);
    token_list_release(&ids);
    tokenizer_free(tokenizer);
    tokenizer_free(NULL);
    put("merges.txt", "a\n");
    expect_refusal(folder, STATUS_DATA, "merge 0");
    put("merges.txt", "a \xff\n");
    expect_refusal(folder, STATUS_DATA, "not UTF-8");
    put("tokenizer_config.json", "{\"tokenizer_class\":\"CTRLTokenizer\"}");
    expect_refusal(folder, STATUS_USAGE, "CTRLTokenizer");
    put("tokenizer_config.json", "{");
    expect_refusal(folder, STATUS_DATA, "tokenizer_config.json");
    put("tokenizer_config.json", "{}");
    put("config.json", "{\"model_type\":\"llama\"}");
    expect_refusal(folder, STATUS_USAGE, "of a model of type llama, and no tokenizer.json; hint: transformers'");
    take_away("config.json");
    take_away("vocab.json");
    take_away("merges.txt");
    take_away("tokenizer_config.json");
}

static void expect_ids(const char *text, const int32_t *expected, size_t count)
{
    struct tokenizer *tokenizer = NULL;
    struct error err;
    if (tokenizer_folder_open(folder, &tokenizer, &err) != STATUS_OK) fail_msg("%s", err.text);
    struct token_list ids = encode(tokenizer, text, strlen(text), true);
    assert_int_equal(ids.count, count);
    assert_memory_equal(ids.ids, expected, count * sizeof *expected);
    token_list_release(&ids);
    tokenizer_free(tokenizer);
}

/* The class decides how digits are cut and whether texts become NFC; added_tokens_decoder has tokens after the
 * vocabulary, and split_special_tokens makes text of the special ones. */
static void a_folder_adds_its_own_tokens(void **state)
{
    (void)state;
    static const char decoder[] = "\"added_tokens_decoder\":{\"7\":{\"content\":\"<b>\",\"special\":false},"
                                  "\"6\":{\"content\":\"<a>\",\"special\":true}}";
    char config[512];
    put("vocab.json", "{\"1\":0,\"11\":1,\"<\":2,\"a\":3,\">\":4,\"\u00c3\":5}");
    put("merges.txt", "1 1\n");
    snprintf(config, sizeof config,
             "{\"tokenizer_class\":\"Qwen2Tokenizer\",\"eos_token\":\"<a>\",\"pad_token\":\"<a>\","
             "\"unk_token\":null,%s}",
             decoder);
    put("tokenizer_config.json", config);
    expect_ids("11<a><b>A\u0300", (const int32_t[]){0, 0, 6, 7, 5}, 5); /* A with a grave is two bytes, c3 80 */
    snprintf(config, sizeof config,
             "{\"tokenizer_class\":\"GPT2Tokenizer\",\"bos_token\":\"<a>\",\"add_bos_token\":true,"
             "\"split_special_tokens\":true,%s}",
             decoder);
    put("tokenizer_config.json", config);
    expect_ids("11<a><b>", (const int32_t[]){6, 1, 2, 3, 4, 7}, 6);
    put("tokenizer_config.json", "{\"added_tokens_decoder\":{\"9\":{\"content\":\"<b>\"}}}");
    expect_refusal(folder, STATUS_DATA,
                   "gives the token '<b>' the id 9, and after its vocabulary and the tokens before it the "
                   "next id is 6");
    put("tokenizer_config.json", "{\"added_tokens_decoder\":{\"x\":{\"content\":\"<b>\"}}}");
    expect_refusal(folder, STATUS_DATA, "are not ids with tokens: added_tokens_decoder has 'x'");
    put("tokenizer_config.json", "{}");
    put("added_tokens.json", "{\"<b>\":\"6\"}");
    expect_refusal(folder, STATUS_DATA, "added_tokens.json has '<b>'");
    put("added_tokens.json", "{\"<b>\":6}");
    expect_ids("<b>", (const int32_t[]){6}, 1);
    take_away("added_tokens.json");
    take_away("vocab.json");
    take_away("merges.txt");
    take_away("tokenizer_config.json");
}

/* ---- added tokens -------------------------------------------------------- */

/* As added_tokens.h has it: the longest at each place, the first of equal ones. */
static const struct added_token *simple_search(const struct added_tokens *tokens, int set, const char *text,
                                               size_t left)
{
    const struct added_token *longest = NULL;
    for (size_t i = 0; i < tokens->count; i++) {
        const struct added_token *token = &tokens->items[i];
        if (token->normalized == (set == 1) && token->length <= left && !memcmp(token->pattern, text, token->length) &&
            (!longest || token->length > longest->length))
            longest = token;
    }
    return longest;
}

static void check_added_tokens(const struct added_tokens *tokens, int set, const char *text, size_t count)
{
    struct added_walk walk = {.text = text, .count = count, .set = set};
    struct added_part part;
    size_t at = 0, found = 0;
    while (added_tokens_next(tokens, &walk, &part)) {
        assert_int_equal(part.start, at);
        for (; at < part.end; at++) assert_null(simple_search(tokens, set, text + at, count - at));
        if (!part.token) break;
        assert_ptr_equal(part.token, simple_search(tokens, set, text + at, count - at));
        at += part.token->length;
        found++;
    }
    assert_true(at == count && found > count / 20);
}

/* A thousand tokens of a few letters, which begin alike, contain each other, and are there twice. */
static void added_tokens_are_found_as_by_a_simple_search(void **state)
{
    (void)state;
    static const char letters[] = "<<<\xff|a>";
    struct added_tokens tokens = {0};
    unsigned random = 7;
    char text[3000];
    for (int32_t id = 0; id < 1000; id++) {
        char pattern[8] = "<";
        const size_t length = 1 + (random = random * 1664525 + 1013904223) / 65536 % 7;
        for (size_t i = 1; i < length; i++) pattern[i] = letters[(random = random * 1664525 + 1013904223) / 65536 % 7];
        pattern[0] = id % 5 ? '<' : letters[id % 7];
        const struct added_token token = {.content = strdup(pattern),
                                          .pattern = strdup(pattern),
                                          .length = length,
                                          .id = id,
                                          .normalized = id % 3 == 0};
        added_tokens_add(&tokens, token);
    }
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = "<<<\xff|a>bcdefgh"[(random = random * 1664525 + 1013904223) / 65536 % 15];
    check_added_tokens(&tokens, 0, text, sizeof text);
    check_added_tokens(&tokens, 1, text, sizeof text);
    added_tokens_release(&tokens);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_and_texts_are_those_of_the_package),
        cmocka_unit_test(a_text_that_is_not_utf8_is_refused),
        cmocka_unit_test(long_words_take_no_square_of_their_length),
        cmocka_unit_test(other_kinds_are_refused_by_name),
        cmocka_unit_test(damaged_files_are_named),
        cmocka_unit_test(a_pair_of_files_is_gpt2),
        cmocka_unit_test(a_folder_adds_its_own_tokens),
        cmocka_unit_test(added_tokens_are_found_as_by_a_simple_search),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
