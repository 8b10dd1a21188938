/* tokenizer_json.h: the parts of a tokenizer.json, each read by a function of its own (tokenizer_file.c calls them). */
#pragma once

#include "core/text/tokenizer_parts.h"

/* What is read, and where messages go. */
struct tokenizer_source {
    const char *where; /* the file */
    struct error *err;
};

/* "'FILE': the WHAT is a NAME, which …": STATUS_USAGE. */
enum status tokenizer_refuse(const struct tokenizer_source *source, const char *what, const char *name);

/* STATUS_DATA with a message about the file. */
__attribute__((format(printf, 2, 3))) enum status tokenizer_damaged(const struct tokenizer_source *source,
                                                                    const char *format, ...);

/* A member that is true or false; absent or null: `absent`. */
enum status tokenizer_flag(const struct tokenizer_source *source, const json_t *object, const char *key, bool absent,
                           bool *out);

/* The "type" of a component, "?" without one. */
const char *tokenizer_type(const json_t *component);

/* The parts. Absent components are NULL or JSON's null. */
enum status tokenizer_read_model(const struct tokenizer_source *source, const json_t *model, struct bpe *bpe);
enum status tokenizer_read_normalizer(const struct tokenizer_source *source, const json_t *normalizer, bool *nfc);
enum status tokenizer_read_cuts(const struct tokenizer_source *source, const json_t *component,
                                struct pre_tokenizer *cutter);
enum status tokenizer_read_added(const struct tokenizer_source *source, const json_t *added, struct tokenizer *out);
enum status tokenizer_read_processor(const struct tokenizer_source *source, const json_t *processor,
                                     struct tokenizer *out);
enum status tokenizer_read_decoder(const struct tokenizer_source *source, const json_t *decoder);
