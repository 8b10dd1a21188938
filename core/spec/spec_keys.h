/* spec_keys.h: the key table of the run spec. Only core/spec uses it.
 *
 * The table has one row per key. Parsing, types, ranges, defaults, --help-spec, docs/run-spec.md, the effective spec
 * that is printed, the flat JSON in a checkpoint's manifest, and the comparison on resume all derive from it. The rows
 * of a section follow the row of the section itself. */
#ifndef ZTRAIN_CORE_SPEC_SPEC_KEYS_H
#define ZTRAIN_CORE_SPEC_SPEC_KEYS_H

#include "core/spec/spec.h"
#include "core/spec/spec_tree.h"

enum spec_key_type {
    KEY_SECTION, /* a mapping whose keys are rows of their own */
    KEY_FOREIGN, /* a section of DeepSpeed's that ztrain lacks: only whether it is switched on matters */
    KEY_ALIAS,   /* an old name; `fallback` is the path of the key it stands for */
    KEY_BOOL,
    KEY_INT,
    KEY_REAL,
    KEY_REAL_PAIR,
    KEY_STRING,
    KEY_STRING_LIST, /* one string, or a list of them */
    KEY_CHOICE,
    KEY_MODEL_CONFIG, /* a path, or a mapping */
    KEY_ANY,          /* any value; it is not read */
    KEY_TYPE_COUNT
};

enum spec_verdict {
    VERDICT_USED,
    VERDICT_LATER,   /* any value but the default: "not supported yet" */
    VERDICT_NOTICE,  /* any value but the default: a notice with the reason why it has no effect */
    VERDICT_REFUSED, /* any value but the default: an error with the reason */
    VERDICT_PASSIVE, /* matters only if its feature is on, and the row of the feature's switch has the verdict on that
                      */
    VERDICT_SYNONYM  /* not a choice, but likely to be tried: did you mean `why`? */
};

/* The effect of a changed value on a resumed run. CONTENTS: a path; if the contents are the same, a notice. */
enum spec_resume { RESUME_SILENT, RESUME_NOTICE, RESUME_CONTENTS, RESUME_ERROR };

enum {
    KEY_AUTO = 1,      /* "auto" derives the value, as for an absent key */
    KEY_REQUIRED = 2,  /* its absence is an error */
    KEY_ALWAYS = 4,    /* printed even if it equals the default, which depends on the file's name */
    KEY_ABOVE_MIN = 8, /* the minimum itself is too small */
    KEY_ANY_CASE = 16  /* a choice in small or capital letters */
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
    size_t offset, size;  /* of the field in struct spec_full; size 0: no field */
    const char *fallback; /* the default as YAML; NULL: no default, the key may be unset */
    double min, max;      /* numbers */
    const struct spec_choice *choices;
    const char
        *help; /* USED: its effect. LATER: the feature that is missing. NOTICE, REFUSED: the reason, with a hint */
};

extern const struct spec_key spec_keys[];
extern const int spec_num_keys;

/* The whole run spec. Callers see `spec`, whose private_ points back here. */
struct spec_full {
    struct run_spec spec;
    bool adam_w_mode, bf16, fp16;
    double static_loss_scale; /* 0: dynamic */
    int64_t initial_scale_power;
    int64_t given_batch[3];    /* train, micro, accumulation as given; 0: derived by spec_resolve_batch() */
    int64_t given_total_steps; /* 0: derived by spec_resolve_steps() */
    const char *batch_where;   /* the place of the batch keys, for messages */
    struct spec_arena arena;   /* holds all strings, and this struct */
};

static inline struct spec_full *spec_full(const struct run_spec *spec)
{
    return spec->private_;
}

/* The row of a path, or NULL. */
const struct spec_key *spec_key_find(const char *path);

/* The part of a path after its last dot; the length of the part before that dot (0 at top level). */
const char *spec_key_leaf(const char *path);
size_t spec_key_section_length(const char *path);

/* Checks that a node has the type and range of a row, and returns its value as JSON (a choice by its name as in the
 * table, a list always as an array; new reference), or NULL after an error. */
json_t *spec_key_convert(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node);

/* Whether `text` names this choice of a row. */
bool spec_choice_is(const struct spec_key *key, const struct spec_choice *choice, const char *text);

/* The default as JSON (new reference), or NULL where the key may be unset. */
json_t *spec_key_default(const struct spec_key *key);

/* Stores a value in its field; NULL: unset. */
void spec_key_store(struct spec_full *full, const struct spec_key *key, const json_t *value);

/* The value of the field (new reference), or NULL if it is unset or not a parameter of the scheduler in use. */
json_t *spec_key_fetch(const struct spec_full *full, const struct spec_key *key);

/* Checks a tree against the table (unknown keys, types, ranges, verdicts) and stores values and defaults
 * (spec_check.c). complete: all files could be read; only then the rules that tie keys together are checked. */
void spec_check(struct spec_context *ctx, struct spec_full *full, struct spec_node *root, bool complete);

#endif
