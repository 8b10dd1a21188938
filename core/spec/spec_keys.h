/* SPDX-License-Identifier: Apache-2.0 */
/* spec_keys.h: the key table of the run spec, from which parsing, help, the printed spec, the manifest and the
 * comparison on resume derive. Only core/spec uses it. The rows of a section follow the row of the section itself. */
#pragma once

#include "core/core.h"
#include "core/spec/spec.h"
#include "core/spec/spec_tree.h"

/* Types of keys, and what the help calls them. */
#define SPEC_KEY_TYPES(X)                                                                                             \
    X(SECTION, "section") /* a mapping whose keys are rows of their own */                                            \
    X(FOREIGN, "section") /* a section of DeepSpeed's that ztrain lacks: only whether it is switched on matters */    \
    X(ALIAS, "old name")  /* an old name or place; `fallback` is the path of the key it stands for */                 \
    X(BOOL, "true, false")                                                                                            \
    X(INT, "integer")                                                                                                 \
    X(REAL, "number")                                                                                                 \
    X(REAL_PAIR, "[number, number]")                                                                                  \
    X(SIZE, "size") /* bytes: size_text.h; its JSON is the shortest text; int64_t, 0: unset */                        \
    X(STRING, "text")                                                                                                 \
    X(STRING_LIST, "text or list")   /* one string, or a list of them */                                              \
    X(SOURCES, "text or list")       /* the same, or a list of mappings */                                            \
    X(PROMPTS, "list")               /* texts and lists of token ids */                                               \
    X(MODULES, "expression or list") /* a regular expression, or a list of names; its JSON is a string or an array */ \
    X(PATTERNS, "mapping")           /* a mapping of regular expressions to numbers */                                \
    X(BLOCKS, "integer or list")     /* a number of a block, or a list of them */                                     \
    X(CHOICE, "choice")                                                                                               \
    X(MODEL_CONFIG, "path or mapping")                                                                                \
    X(ANY, "any") /* any value; it is not read */

#define SPEC_KEY_TYPE(name, word) KEY_##name,
enum spec_key_type { SPEC_KEY_TYPES(SPEC_KEY_TYPE) KEY_TYPE_COUNT };

enum spec_verdict {
    VERDICT_USED,
    VERDICT_LATER,   /* any value but the default: "not supported yet" */
    VERDICT_NOTICE,  /* any value but the default: a notice with the reason why it has no effect */
    VERDICT_REFUSED, /* any value but the default: an error with the reason */
    VERDICT_ALIAS,   /* a choice under another name: it is taken as `why`, with a notice */
    VERDICT_SYNONYM  /* not a choice, but likely to be tried: did you mean `why`? */
};

/* The effect of a changed value on a resumed run. CONTENTS: a path; if the contents are the same, a notice. */
enum spec_resume { RESUME_SILENT, RESUME_NOTICE, RESUME_CONTENTS, RESUME_ERROR };

enum {
    KEY_AUTO = 1,      /* "auto" derives the value, as for an absent key */
    KEY_REQUIRED = 2,  /* its absence is an error */
    KEY_ABOVE_MIN = 8, /* the minimum itself is too small */
    KEY_ANY_CASE = 16, /* a choice in small or capital letters */
    KEY_NULL = 32,     /* null stands for the default, as in DeepSpeed */
    KEY_NEEDED = 64,   /* required, unless another key stands in for it: a rule of spec_key_conflicts.c */
    KEY_WHOLE = 128,   /* a real number that is written as an integer where it is one */
    KEY_PATH = 256     /* names files or folders: a ~ at its beginning is the home folder */
};

struct spec_choice {
    const char *name;
    int value;
    enum spec_verdict verdict; /* USED, LATER, REFUSED or SYNONYM */
    const char *why;           /* REFUSED: the explanation and hint; SYNONYM: the choice that is meant */
};

struct spec_key {
    const char *path;
    enum spec_key_type type;
    enum spec_verdict verdict;
    enum spec_resume resume;
    unsigned flags;
    unsigned schedules;   /* scheduler.params: a bit for each enum schedule_type that has the key; 0: not a parameter */
    unsigned optimizers;  /* optimizer.params: a bit for each enum optimizer_type that has the key; 0: all */
    size_t offset, size;  /* of the field in struct spec_full; size 0: no field */
    const char *fallback; /* the default as YAML; NULL: no default, the key may be unset */
    double min, max;      /* numbers */
    const struct spec_choice *choices;
    const char *help; /* USED: its effect; LATER: the missing feature; NOTICE, REFUSED: the reason, with a hint */
};

/* A key that one of the files had as "auto", or the one that neither has: spec_auto_clipping(). */
struct spec_auto {
    const struct spec_key *key;
    const char *was;  /* "auto", or "unset": DeepSpeed's default, which is not ztrain's */
    const char *from; /* the origin of its value */
    bool derived;     /* from the model: spec_resolve_model() */
    struct spec_auto *next;
};

extern const struct spec_key spec_keys[]; /* the last has no path */

enum { PEFT_TASK_AUTO = -1 };

/* The whole run spec. Callers see `spec`, whose private_ points back here. */
struct spec_full {
    struct run_spec spec;
    bool adam_w_mode, bf16, fp16;
    int peft_type, peft_task;      /* LORA; enum model_task or PEFT_TASK_AUTO */
    bool activation_checkpointing; /* spec.transformer.recompute is not RECOMPUTE_NONE */
    double static_loss_scale;      /* 0: dynamic */
    int64_t initial_scale_power;
    int64_t given_batch[3];    /* train, micro, accumulation as given; 0: derived by spec_resolve_batch() */
    int64_t given_total_steps; /* 0: derived by spec_resolve_steps() */
    bool auto_document_mask;   /* data.document_mask is auto, or was it until it was resolved */
    bool unset_clipping;       /* gradient_clipping is DeepSpeed's default */
    double former_epochs;      /* of the run that is resumed, like train.epochs and train.max_steps */
    int64_t former_max_steps;
    bool former_follows;     /* a run is resumed whose schedule ended with it */
    const char *batch_where; /* the place of the batch keys, for messages */
    struct spec_auto *autos; /* in the order of the table */
    int64_t hidden_size;     /* of the model; 0 before spec_resolve_model() */
    json_t *lists;           /* KEY_STRING_LIST to KEY_BLOCKS: {path: value}, without those that are empty */
    struct spec_arena arena; /* holds all strings, and this struct */
};

struct spec_full *spec_full_new(void); /* in its own arena; spec_free() */

static inline struct spec_full *spec_full(const struct run_spec *spec)
{
    return spec->private_;
}

/* ---- rows ---------------------------------------------------------------- */

const struct spec_key *spec_key_find(const char *path); /* NULL: there is none */

/* The part of a path after its last dot; the length of the part before that dot (0 at top level). */
const char *spec_key_leaf(const char *path);
size_t spec_key_section_length(const char *path);
bool spec_key_in(const struct spec_key *key, const char *section); /* directly; "": at top level */
bool spec_adapter_has(const struct spec_key *key);                 /* a key of `peft` */

/* Whether it is a parameter of the optimizer or schedule in use, or none; `peft`: whether there is an adapter. */
bool spec_key_applies(const struct spec_full *full, const struct spec_key *key);

/* Whether a section is the params of an optimizer or scheduler that ztrain does not have, whose rows do not apply. */
bool spec_is_unknown_territory(const struct spec_node *root, const char *section);

/* Whether `text` names this choice; whether ztrain has it, under any name (true: no choices); a used one as JSON. */
bool spec_choice_is(const struct spec_key *key, const struct spec_choice *choice, const char *text);
bool spec_choice_is_available(const struct spec_key *key, const char *text);
json_t *spec_choice_json(const char *name);

/* ---- values, as JSON (new references) ------------------------------------ */

/* The value of a node (a choice by its name in the table); NULL after an error: it has not the row's type or range. */
json_t *spec_key_convert(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node);
bool spec_is_quoted_value(const struct spec_key *key, const struct spec_node *node); /* a number or truth value */

/* The default, or NULL where the key may be unset; whether a value is the default. */
json_t *spec_key_default(const struct spec_key *key);
bool spec_key_is_default(const struct spec_key *key, const json_t *value);

/* Stores a value in its field (NULL: unset), and releases it; the value (NULL: it is unset or does not apply). */
void spec_key_store(struct spec_full *full, const struct spec_key *key, json_t *value);
json_t *spec_key_fetch(const struct spec_full *full, const struct spec_key *key);

/* A number that is an integer where it is one; {PATTERN: value, …} of such numbers. */
json_t *spec_number_json(double value);
json_t *spec_adapter_patterns(const struct pattern_value *patterns, int count);

enum { SPEC_MAX_ADAPTERS = 16 };

/* `peft` as a list (spec_adapters.c): whether its items have names; a copy of the tree that trains one of them. */
bool spec_adapters_check(struct spec_context *ctx, const struct spec_node *list);
struct spec_node *spec_adapters_pick(struct spec_context *ctx, const struct spec_node *root,
                                     const struct spec_node *item);

char *spec_json_text(const json_t *value);    /* for a message, and free(); NULL is "unset" */
extern const char *const spec_amount_names[]; /* enum spec_amount: "weight", "epochs" */

/* Writes {"data.seq_length": 1024, …} as YAML in block style, in the order of the table. */
void spec_write_values(const json_t *values, FILE *out);

/* ---- "auto" -------------------------------------------------------------- */

bool spec_auto_is_allowed(const struct spec_key *key); /* for DeepSpeed's keys */

/* The value of a key with "auto" that no other file sets; NULL: unset, or derived later. */
json_t *spec_auto_value(const struct spec_key *key);

/* Records that a key was "auto" and whence its value is (NULL: rules[]); corrects that; whether the model gives it. */
struct spec_auto *spec_auto_record(struct spec_full *full, const struct spec_key *key, const char *from);
void spec_auto_origin(struct spec_full *full, const struct spec_key *key, const char *from);
bool spec_auto_is_derived(const struct spec_full *full, const struct spec_key *key);

/* A gradient_clipping that is not set is DeepSpeed's default if there is a DeepSpeed file. */
void spec_auto_clipping(const struct spec_context *ctx, struct spec_full *full, const struct spec_node *root);

/* ---- names of other trainers --------------------------------------------- */

/* What `ztrain convert` does with a key of another trainer. */
enum foreign_use {
    FOREIGN_COPY,    /* it is `key` under another name */
    FOREIGN_RULE,    /* a rule of spec_convert_….c reads it */
    FOREIGN_NOTHING, /* it has no meaning here: all such keys are one line of the notes */
    FOREIGN_MISSING  /* it changes what is learned, and ztrain lacks it: a note says what happens instead */
};

/* What other trainers call something. At least one of key and note is set. */
struct spec_foreign_name {
    enum foreign_use use;
    bool unlisted;     /* the table in docs/run-spec.md leaves it out */
    const char *names; /* with blanks between them; "eval_*": all that begin so, and have no row before */
    const char *key;   /* the path of the key to write instead, which ztrain uses; NULL: there is none */
    const char *note;  /* what the key takes, or why there is none; or NULL */
};
extern const struct spec_foreign_name spec_foreign_names[];
extern const int spec_num_foreign_names;

const struct spec_foreign_name *spec_foreign_name_find(const char *name); /* NULL: there is none */

/* ---- a whole tree -------------------------------------------------------- */

/* Replaces old names and places by those of the table. */
void spec_normalise(struct spec_context *ctx, struct spec_node *root);

/* An error for each key below `section` ("": the root) that the table does not have. */
void spec_find_unknown(struct spec_context *ctx, const struct spec_node *root, const struct spec_node *section,
                       const char *section_path);

/* Checks a tree against the table, stores values and defaults. complete: all files were read; then rules apply. */
void spec_check(struct spec_context *ctx, struct spec_full *full, struct spec_node *root, bool complete);
void spec_apply_rules(struct spec_context *ctx, struct spec_full *full, const struct spec_node *root);
void spec_adapter_check(struct spec_context *ctx, struct spec_full *full, const struct spec_node *root);
bool spec_foreign_is_on(const struct spec_node *section); /* whether a section that ztrain lacks is switched on */
