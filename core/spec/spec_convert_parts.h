/* SPDX-License-Identifier: Apache-2.0 */
/* spec_convert_parts.h: what the files spec_convert….c share. A rule takes its keys out of the source's, `from`, and
 * sets keys of the run spec, `to`. What no rule has taken goes the way that its row in spec_unknown_key.c says. */
#pragma once

#include "core/spec/spec_keys.h"

enum convert_kind { CONVERT_TRAINER, CONVERT_SFT, CONVERT_AXOLOTL, CONVERT_FACTORY, CONVERT_KINDS };

struct convert {
    struct spec_context *ctx;
    enum convert_kind kind;
    struct spec_node *from, *to;
    struct string_list *notes, *errors;
    const char *nothing;   /* names without a meaning here: "a, b"; NULL: none */
    const char *folder;    /* of the last file */
    const char *model;     /* the model's folder or name; NULL: none is named */
    const char *deepspeed; /* --deepspeed, or NULL */
    const struct convert_request *request;
    bool prefers;                                 /* the data are preferences */
    bool shards;                                  /* a DeepSpeed configuration counts */
    const struct spec_node *optimizer, *schedule; /* of a file, under the source's names; NULL: none */
};

/* ---- the source ---------------------------------------------------------- */

/* Takes a key out of the source; of names of one thing ("a b") the last that a file has. NULL: none, or null. */
struct spec_node *convert_take(struct convert *c, const char *name);
struct spec_node *convert_take_one(struct convert *c, const char *names);

/* The same as text, as a mapping (also JSON in a string), as a truth value; what is none gets a note. */
const char *convert_take_text(struct convert *c, const char *name);
struct spec_node *convert_take_mapping(struct convert *c, const char *name);
struct spec_node *convert_json(struct convert *c, struct spec_node *node); /* node, or the mapping that its text is */
bool convert_take_switch(struct convert *c, const char *name);

/* Not false, 0, "", none, no, or an empty list; the same, with a note for other values; whether a file has it. */
bool convert_is_on(const struct spec_node *node);
bool convert_truth(struct convert *c, const struct spec_node *node);
bool convert_is_given(const struct spec_node *node);

/* A mapping's key, and its text (NULL: none). convert_children() notes what is on and unread; `name`: of it. */
struct spec_node *convert_child(const struct spec_node *mapping, const char *key);
const char *convert_child_text(const struct spec_node *mapping, const char *key);
void convert_children(struct convert *c, const char *name, const struct spec_node *mapping);

char *convert_text(struct convert *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *convert_word(struct convert *c, const char **words); /* the next of words; NULL: there is none */
void convert_mark(struct spec_node *node, int source);           /* makes it the source of a value and all in it */
void convert_unquote(struct spec_node *node); /* a number in quotes becomes one, as every source takes it */

/* STATUS_USAGE: the file is that of --out, under whatever name. */
enum status convert_check_input(const struct convert *c, const char *path, struct error *err);

/* ---- the run spec -------------------------------------------------------- */

/* Sets a key of the run spec, or takes it out. A quoted number becomes one, but for a text. */
void convert_set(struct convert *c, const char *path, const struct spec_node *value);
void convert_set_yaml(struct convert *c, const char *path, const char *yaml);
void convert_set_text(struct convert *c, const char *path, const char *text);
void convert_unset(struct convert *c, const char *path);
struct spec_node *convert_scalar(struct convert *c, const char *key, const char *yaml);
struct spec_node *convert_commas(struct convert *c, const struct spec_node *text); /* "a, b" as a list */
struct spec_node *convert_list(struct convert *c);                                 /* an empty one, and texts for it */
void convert_append(struct convert *c, struct spec_node *list, const char *text);

/* ---- notes --------------------------------------------------------------- */

void convert_note(struct convert *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
void convert_odd(struct convert *c, const struct spec_node *node); /* a value was taken but not understood */
void convert_nothing(struct convert *c, const char *name);         /* adds a name to those without a meaning here */
const char *convert_show(struct convert *c, const struct spec_node *node); /* what a value is called in a note */

/* The rules, in the order in which they run. */
void convert_model(struct convert *c);       /* spec_convert_run.c */
void convert_length(struct convert *c);      /* epochs, steps, batches */
void convert_whole_batch(struct convert *c); /* after the DeepSpeed configuration */
void convert_optimizer(struct convert *c);
void convert_schedule(struct convert *c);
void convert_precision(struct convert *c);
void convert_memory(struct convert *c); /* recomputation, FSDP */
void convert_checkpoints(struct convert *c);
void convert_evaluation(struct convert *c);
void convert_output(struct convert *c);
void convert_adapter(struct convert *c);     /* spec_convert_adapter.c */
void convert_preferences(struct convert *c); /* spec_convert_preference.c */
void convert_data(struct convert *c);        /* spec_convert_data.c */

/* Lays the DeepSpeed configuration over the run spec; `named`: by the files, or NULL. STATUS_USAGE: it is none. */
enum status convert_deepspeed(struct convert *c, struct spec_node *named, struct error *err);
