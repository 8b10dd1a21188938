/* SPDX-License-Identifier: Apache-2.0 */
/* tokens_of FOLDER: prints what the tokenizer of a folder makes of texts, for test_tokenizers.py.
 *
 * stdin: texts, each as its length in bytes (decimal), a newline, and the bytes. stdout: a line for each text: the ids
 * with special tokens, a bar, the ids without them, a bar, and the number of bytes of the decoded ids; then that text.
 * The decoded text is made by the stream, one id at a time, and has to be the one that is made at once. */
#include "core/text/tokenizer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_ids(const struct token_list *ids)
{
    for (size_t i = 0; i < ids->count; i++) printf("%" PRId32 " ", ids->ids[i]);
    fputs("|", stdout);
}

static void stop_on(enum status status, const struct error *err)
{
    if (status == STATUS_OK) return;
    fprintf(stderr, "%s\n", err->text);
    exit((int)status);
}

static void print_text(const struct tokenizer *tokenizer, const struct token_list *ids)
{
    struct text whole = {0}, streamed = {0};
    struct text_stream stream = {0};
    tokenizer_decode(tokenizer, ids->ids, ids->count, false, &whole);
    for (size_t i = 0; i < ids->count; i++) text_stream_push(&stream, tokenizer, ids->ids[i], false, &streamed);
    text_stream_end(&stream, &streamed);
    if (whole.count != streamed.count || (whole.count && memcmp(whole.bytes, streamed.bytes, whole.count) != 0)) {
        fputs("the stream differs\n", stderr);
        exit(1);
    }
    printf("%zu\n", whole.count);
    fwrite(whole.bytes ? whole.bytes : "", 1, whole.count, stdout);
    putchar('\n');
    text_release(&whole);
    text_release(&streamed);
}

int main(int argc, char **argv)
{
    struct tokenizer *tokenizer;
    struct error err;
    char line[32];
    if (argc != 2) return 2;
    stop_on(tokenizer_folder_open(argv[1], &tokenizer, &err), &err);
    while (fgets(line, sizeof line, stdin)) {
        size_t bytes = strtoull(line, NULL, 10);
        char *text = malloc(bytes + 1);
        if (!text || fread(text, 1, bytes, stdin) != bytes) return 1;
        struct token_list special = {0}, plain = {0};
        stop_on(tokenizer_encode(tokenizer, text, bytes, true, &special, &err), &err);
        stop_on(tokenizer_encode(tokenizer, text, bytes, false, &plain, &err), &err);
        print_ids(&special);
        print_ids(&plain);
        print_text(tokenizer, &plain);
        token_list_release(&special);
        token_list_release(&plain);
        free(text);
    }
    tokenizer_free(tokenizer);
    return 0;
}
