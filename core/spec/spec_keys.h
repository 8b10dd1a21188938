/* spec_keys.h: the key table of the run spec. Used by the spec's own files only.
 *
 * One row per key. From it derive: parsing, types, ranges, defaults, --help-spec and docs/run-spec.md, the effective
 * spec that is printed, the flat JSON in a checkpoint's manifest, and the comparison on resume. Rows of a section stand
 * together, behind the section's own row. */
#ifndef ZTRAIN_CORE_SPEC_SPEC_KEYS_H
#define ZTRAIN_CORE_SPEC_SPEC_KEYS_H

#include "core/spec/spec.h"
#include "core/spec/spec_tree.h"

enum spec_key_type {
    KEY_SECTION, /* a mapping whose keys are rows of their own */
    KEY_FOREIGN, /* a section of DeepSpeed's that we lack: its content counts only by whether it is switched on */
    KEY_ALIAS,   /* an old name: `fallback` has the path that it stands for */
    KEY_BOOL,
    KEY_INT,
    KEY_REAL,
    KEY_REAL_PAIR,
    KEY_STRING,
    KEY_STRING_LIST, /* one string, or a list of them */
    KEY_CHOICE,
    KEY_MODEL_CONFIG, /* a path, or a mapping */
    KEY_ANY,          /* not looked at */
    KEY_TYPE_COUNT
};

enum spec_verdict {
    VERDICT_USED,
    VERDICT_LATER,   /* anything but the default: "not supported yet" */
    VERDICT_NOTICE,  /* anything but the default: a notice that says why it has no effect */
    VERDICT_REFUSED, /* anything but the default: an error that explains */
    VERDICT_PASSIVE, /* counts only where the feature is on, and the feature's switch answers for that */
    VERDICT_SYNONYM  /* a choice that is none: did you mean `why`? */
};

/* What a changed value means to a resumed run. CONTENTS: of a path, a notice if what is there is the same. */
enum spec_resume { RESUME_SILENT, RESUME_NOTICE, RESUME_CONTENTS, RESUME_ERROR };

enum {
    KEY_AUTO = 1,      /* "auto" derives the value: like an absent key */
    KEY_REQUIRED = 2,  /* an error where absent */
    KEY_ALWAYS = 4,    /* printed also where it equals the default: the default depends on the file's name */
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
    unsigned schedules;   /* scheduler.params: a bit per enum schedule_type that has the key; 0: no matter */
    size_t offset, size;  /* of the field in struct spec_full; size 0: no field */
    const char *fallback; /* the default as YAML; NULL: none, the key may be unset */
    double min, max;      /* numbers */
    const struct spec_choice *choices;
    const char *help; /* USED: what it does. LATER: what is lacking. NOTICE, REFUSED: why, with a hint */
};

extern const struct spec_key spec_keys[];
extern const int spec_num_keys;

/* The run spec and what stands behind it; `spec` is what callers see, spec->private_ points back here. */
struct spec_full {
    struct run_spec spec;
    bool adam_w_mode, bf16, fp16;
    double static_loss_scale; /* 0: dynamic */
    int64_t initial_scale_power;
    int64_t given_batch[3];    /* train, micro, accumulation as given; 0: derived by spec_resolve_batch() */
    int64_t given_total_steps; /* 0: derived by spec_resolve_steps() */
    const char *batch_where;   /* place of the batch keys, for messages */
    struct spec_arena arena;   /* all strings */
};

static inline struct spec_full *spec_full(const struct run_spec *spec)
{
    return spec->private_;
}

/* Row of a path, or NULL. */
const struct spec_key *spec_key_find(const char *path);

/* The part of a path behind its last dot; the length of the part before it (0 at top level). */
const char *spec_key_leaf(const char *path);
size_t spec_key_section_length(const char *path);

/* Checks that a node has a row's type and range: the value as JSON (choices by their own name, lists always as arrays;
 * new reference), or NULL after an error. */
json_t *spec_key_convert(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node);

/* Whether `text` names this choice of a row. */
bool spec_choice_is(const struct spec_key *key, const struct spec_choice *choice, const char *text);

/* The default as JSON (new reference), or NULL where the key may be unset. */
json_t *spec_key_default(const struct spec_key *key);

/* Puts a value into its field; NULL: unset. */
void spec_key_store(struct spec_full *full, const struct spec_key *key, const json_t *value);

/* The field's value (new reference), or NULL where it is unset or does not belong to the scheduler in use. */
json_t *spec_key_fetch(const struct spec_full *full, const struct spec_key *key);

/* Checks a tree against the table: unknown keys, types, ranges, verdicts; stores values and defaults (spec_check.c).
 * complete: no file is missing from the tree because it could not be read; only then what keys say together is
 * checked. */
void spec_check(struct spec_context *ctx, struct spec_full *full, struct spec_node *root, bool complete);

#endif
