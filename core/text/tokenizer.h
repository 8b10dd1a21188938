/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.h: text to token ids and back, as the tokenizer.json of a Hugging Face folder says.
 *
 * Read are tokenizers of byte-level BPE as GPT-2, Llama 3 and Qwen have them; the ids are those of the Rust package
 * `tokenizers`, token for token. In the order of an encoding:
 *
 *   added tokens    <|endoftext|> and its like are found in the text first (added_tokens.h)
 *   normalizer      none, or NFC (unicode.h)
 *   pre-tokenizer   ByteLevel, Split by a regular expression, Digits, and sequences of them, which cut the text into
 *                   words (pattern.h)
 *   model           BPE over the bytes of a word (bpe.h)
 *   post-processor  ByteLevel, TemplateProcessing (the first token of Llama 3), and sequences of them
 *   decoder         ByteLevel
 *
 * Everything else is refused by its name, with STATUS_USAGE: callers then work with token ids, and say why.
 * `truncation` and `padding` have no effect, as in transformers, which sets them for each call.
 *
 * A tokenizer never changes; any thread may use it. */
#pragma once

#include "core/core.h"
#include "core/text_buffer.h"

struct tokenizer;

/* Opens a tokenizer.json, a folder with one, or with vocab.json and merges.txt, which its class completes; special
 * tokens come from the files beside it (tokenizer_json.h). STATUS_USAGE: no tokenizer that this reader knows (none,
 * SentencePiece, WordPiece, Unigram, …); STATUS_DATA: a file is damaged or unreadable. */
enum status tokenizer_folder_open(const char *path, struct tokenizer **out, struct error *err);
void tokenizer_free(struct tokenizer *tokenizer); /* NULL: nothing */
RELEASER(tokenizer_drop, struct tokenizer, tokenizer_free)

/* Whether a folder has files of a tokenizer, also of one that this reader does not know. */
bool tokenizer_folder_has(const char *folder);

/* Appends the ids of a text to `out`. add_special: with what the post-processor puts around a text. STATUS_USAGE: the
 * text is not UTF-8 (the message has the byte's place); STATUS_DATA: the expression takes too long for this text. */
enum status tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t bytes, bool add_special,
                             struct token_list *out, struct error *err);

/* Appends the text of the ids to `out`. Bytes that are no UTF-8 become U+FFFD as in `tokenizers` (one for each maximal
 * part of a sequence), and ids without a token are nothing. skip_special: special tokens are left out. */
void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t count, bool skip_special, struct text *out);

/* The same one id at a time: a character that is not complete waits for its last byte. {0} is a new stream. */
struct text_stream {
    unsigned char waiting[4]; /* the beginning of a character */
    int count;
};
void text_stream_push(struct text_stream *stream, const struct tokenizer *tokenizer, int32_t id, bool skip_special,
                      struct text *out);
void text_stream_end(struct text_stream *stream, struct text *out);
