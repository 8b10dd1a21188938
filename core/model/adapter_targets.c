/* SPDX-License-Identifier: Apache-2.0 */
/* adapter_targets.c: which modules an adapter changes: PEFT's rules, on the names of the tensor table.
 *
 * A module is what PyTorch calls so: a tensor's name without ".weight", and what holds it, up to the model itself.
 * Expressions have Python's syntax as far as PCRE2 shares it, which is all that names of modules need. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "core/fsutil.h"
#include "core/memory.h"
#include "core/model/adapter.h"

#include <pcre2.h>

enum { MATCH_STEPS = 1000000 }; /* of a search: a name is short */
enum { TIED_HEAD = -1, CONTAINER = -2 };

struct target_module {
    char name[96];
    int tensor;  /* the weight; TIED_HEAD; CONTAINER: it holds other modules */
    bool target; /* it gets A and B */
};

/* What PEFT takes for parameters where transformers 4 had modules: the router, gate, up and down. */
enum { OLD_GATE = 1, OLD_UP, OLD_COUNT = 4 };
static const char *const OLD_PARAMETERS[OLD_COUNT] = {"gate.weight", "gate_up_proj", "gate_up_proj", "down_proj"};

struct target_search {
    const struct adapter_settings *settings;
    const struct model_desc *desc;
    const struct tensor_table *table;
    struct target_module *modules;
    int num_modules;
    struct string_list targets;           /* those of the settings, or the family's */
    struct string_list parameters, found; /* found: their whole names */
    bool listed;                          /* targets are all: the settings' expression or all-linear is among them */
    bool doubled;                         /* r and lora_alpha of experts.gate_up_proj: gate and up are targets */
    struct string_list to_save;           /* with the head of a classifier */
    bool left_out;                        /* exclude_modules or modules_to_save leave a module out */
    struct error *err;
};

/* ---- expressions --------------------------------------------------------- */

/* A user's text, a value of `key`, with what PEFT puts around it; whole: it has to match the whole name, as
 * re.fullmatch; else the beginning, as re.match. *number (or NULL): that of the last group, -1 without one. */
struct target_expression {
    const char *key, *shown, *before, *after;
    bool whole;
    int64_t *number;
};

static int run_expression(const struct target_expression *e, pcre2_code *code, const char *name)
{
    pcre2_match_data *data = pcre2_match_data_create_from_pattern(code, NULL);
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    if (!data || !context) memory_exhausted(0);
    pcre2_set_match_limit(context, MATCH_STEPS);
    const int found = pcre2_match(code, (PCRE2_SPTR)name, strlen(name), 0, PCRE2_NO_UTF_CHECK, data, context);
    if (found == PCRE2_ERROR_NOMEMORY) memory_exhausted(0);
    if (e->number)
        *e->number =
            found > 1 ? strtoll(name + pcre2_get_ovector_pointer(data)[2 * (size_t)(found - 1)], NULL, 10) : -1;
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
    return found;
}

static enum status target_match(const struct target_search *s, const struct target_expression *e, const char *name,
                                bool *matches)
{
    int fault;
    size_t at;
    OWNED char *text = memory_printf("%s%s%s", e->before, e->shown, e->after);
    char why[128];
    pcre2_code *code =
        pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
                      PCRE2_UTF | PCRE2_ANCHORED | (e->whole ? PCRE2_ENDANCHORED : 0), &fault, &at, NULL);
    const int found = code ? run_expression(e, code, name) : PCRE2_ERROR_NOMATCH;
    pcre2_code_free(code);
    *matches = found >= 0;
    if (!code) {
        if (fault == PCRE2_ERROR_HEAP_FAILED) memory_exhausted(0);
        pcre2_get_error_message(fault, (PCRE2_UCHAR *)why, sizeof why);
        return error_set(s->err, STATUS_USAGE, "'peft.%s': '%.200s' is not a regular expression (%s)", e->key, e->shown,
                         why);
    }
    if (found < 0 && found != PCRE2_ERROR_NOMATCH)
        return error_set(s->err, STATUS_USAGE,
                         "'peft.%s': '%.200s' takes too long to match '%s' (error %d of PCRE2); hint: use fewer "
                         "repetitions in a row",
                         e->key, e->shown, name, found);
    return STATUS_OK;
}

void adapter_parameter_name(const struct model_desc *desc, const struct tensor_info *tensor, char *name, size_t size)
{
    const bool granite = desc->family == FAMILY_GRANITE_MOE, routers = granite || desc->family == FAMILY_GPT_OSS;
    const char *end = tensor->role == ROLE_ROUTER_W        ? routers ? "router.weight" : "gate.weight"
                      : tensor->role == ROLE_EXPERT_DOWN_W ? "experts.down_proj"
                      : role_is_expert(tensor->role)       ? "experts.gate_up_proj"
                                                           : NULL;
    const char *mlp = strstr(tensor->name, ".mlp."), *at = mlp ? mlp : strstr(tensor->name, ".block_sparse_moe.");
    if (end)
        snprintf(name, size, "%.*s%s.%s", (int)(at - tensor->name), tensor->name,
                 granite ? ".block_sparse_moe" : ".mlp", end);
    else
        snprintf(name, size, "%s", tensor->name);
}

/* ---- modules ------------------------------------------------------------- */

static void add_module(struct target_search *s, const char *name, size_t length, int tensor)
{
    for (int i = 0; i < s->num_modules && tensor == CONTAINER; i++)
        if (strlen(s->modules[i].name) == length && memcmp(s->modules[i].name, name, length) == 0) return;
    struct target_module *module = &s->modules[s->num_modules++];
    ASSERT(length < sizeof module->name);
    snprintf(module->name, sizeof module->name, "%.*s", (int)length, name);
    module->tensor = tensor;
}

/* The prefixes of a module's name that the name before it does not share. */
static void add_containers(struct target_search *s, const char *name, const char *previous)
{
    for (const char *dot = strchr(name, '.'); dot; dot = strchr(dot + 1, '.')) {
        const size_t length = (size_t)(dot - name);
        if (strncmp(name, previous, length + 1) != 0 && strcmp(dot, ".weight") != 0)
            add_module(s, name, length, CONTAINER);
    }
}

static void target_list_modules(struct target_search *s)
{
    static const char suffix[] = ".weight";
    size_t room = 1;
    char name[sizeof s->table->tensors->name], previous[sizeof name] = "";
    for (int i = 0; i < s->table->num_tensors; i++)
        for (const char *c = s->table->tensors[i].name; *c; c++) room += *c == '.';
    s->modules = memory_zeroed(room, sizeof *s->modules);
    for (int i = 0; i < s->table->num_tensors; i++) {
        const struct tensor_info *tensor = &s->table->tensors[i];
        adapter_parameter_name(s->desc, tensor, name, sizeof name);
        const size_t length = strlen(name) - (sizeof suffix - 1);
        const bool module = strlen(name) >= sizeof suffix && strcmp(name + length, suffix) == 0;
        if (tensor->part != PART_BASE || (!module && !role_is_expert(tensor->role))) continue;
        add_containers(s, name, previous);
        if (module) add_module(s, name, length, i);
        memcpy(previous, name, sizeof previous);
    }
    if (s->desc->tied) add_module(s, "lm_head", strlen("lm_head"), TIED_HEAD);
}

static const struct tensor_info *module_tensor(const struct target_search *s, const struct target_module *module)
{
    return module->tensor >= 0 ? &s->table->tensors[module->tensor] : NULL;
}

static bool module_is_embedding(const struct tensor_info *tensor)
{
    return tensor && role_is_embedding(tensor->role);
}

/* A layer that PEFT takes for a linear one, the head among them. */
static bool module_is_linear(const struct target_search *s, const struct target_module *module)
{
    const struct tensor_info *tensor = module_tensor(s, module);
    return module->tensor == TIED_HEAD ||
           (tensor && tensor->ndim == 2 && !module_is_embedding(tensor) && tensor->role != ROLE_ROUTER_W);
}

static bool module_is_head(const struct target_search *s, const struct target_module *module)
{
    const struct tensor_info *tensor = module_tensor(s, module);
    return module->tensor == TIED_HEAD || (tensor && (tensor->role == ROLE_LM_HEAD || tensor->role == ROLE_SCORE_W));
}

/* Adds the names of matrices to the hint of an error. */
static enum status hint_modules(const struct target_search *s)
{
    char names[512] = "";
    for (int i = 0; i < s->num_modules; i++) {
        const char *dot = strrchr(s->modules[i].name, '.'), *leaf = dot ? dot + 1 : s->modules[i].name;
        char quoted[112];
        const size_t used = strlen(names);
        snprintf(quoted, sizeof quoted, "%s%s", used ? ", " : "", leaf);
        bool known = !module_is_linear(s, &s->modules[i]);
        for (const char *at = names; !known && (at = strstr(at, leaf)); at++)
            known = (at == names || at[-1] == ' ') && strchr(",", at[strlen(leaf)]);
        if (!known) snprintf(names + used, sizeof names - used, "%s", quoted);
    }
    return error_hint(s->err, "its matrices are %s", names);
}

/* ---- PEFT's rules -------------------------------------------------------- */

/* "q_proj" is the end of "layers.0.q_proj", after a dot. */
static bool is_suffix(const char *name, const char *end)
{
    const size_t all = strlen(name), length = strlen(end);
    return length < all && name[all - length - 1] == '.' && fs_has_suffix(name, end);
}

static bool is_listed(const struct string_list *list, const char *name)
{
    for (int i = 0; i < list->count; i++)
        if (strcmp(list->items[i], name) == 0 || is_suffix(name, list->items[i])) return true;
    return false;
}

/* Whether exclude_modules names it, or modules_to_save it or what holds it. */
static enum status is_left_out(struct target_search *s, const char *name, bool *out)
{
    const struct module_names *exclude = &s->settings->exclude_modules;
    *out = is_listed(&exclude->list, name);
    if (exclude->expression)
        TRY(target_match(s, &(struct target_expression){"exclude_modules", exclude->expression, "", "", true, NULL},
                         name, out));
    for (int i = 0; i < s->to_save.count && !*out; i++)
        TRY(target_match(s,
                         &(struct target_expression){"modules_to_save", s->to_save.items[i], "(?:^|.*\\.)",
                                                     "(?:$|\\..*)", false, NULL},
                         name, out));
    s->left_out |= *out;
    return STATUS_OK;
}

/* Whether layers_to_transform, if it is set, has the block of the module. */
static enum status is_in_block(const struct target_search *s, const char *name, bool *in)
{
    const struct adapter_settings *settings = s->settings;
    int64_t block = -1;
    *in = settings->num_layers_to_transform == 0;
    if (*in) return STATUS_OK;
    struct target_expression any = {"layers_pattern", "[^.]*", ".*?\\.", "\\.(\\d+)\\.", false, &block};
    bool found = false;
    if (settings->layers_pattern.count == 0) TRY(target_match(s, &any, name, &found));
    any.before = "(?:^|.*?\\.)";
    for (int i = 0; i < settings->layers_pattern.count && !found; i++) {
        any.shown = settings->layers_pattern.items[i];
        TRY(target_match(s, &any, name, &found));
    }
    for (int i = 0; i < settings->num_layers_to_transform && found; i++)
        *in |= settings->layers_to_transform[i] == block;
    return STATUS_OK;
}

/* Whether the expression of target_modules matches. */
static enum status is_match(const struct target_search *s, const char *name, bool *matches)
{
    const char *expression = s->settings->target_modules.expression;
    return target_match(s, &(struct target_expression){"target_modules", expression, "", "", true, NULL}, name,
                        matches);
}

static enum status is_target(struct target_search *s, const struct target_module *module, bool *target)
{
    const struct adapter_settings *settings = s->settings;
    const char *expression = settings->target_modules.expression;
    const bool all = settings->all_linear && !s->listed;
    bool out;
    TRY(is_left_out(s, module->name, &out));
    *target = !out && all && module_is_linear(s, module) && !module_is_head(s, module);
    if (out || all) return STATUS_OK;
    if (expression && !s->listed) return is_match(s, module->name, target);
    for (int i = 0; i < s->targets.count; i++) *target |= strcmp(s->targets.items[i], module->name) == 0;
    return !*target && is_listed(&s->targets, module->name) ? is_in_block(s, module->name, target) : STATUS_OK;
}

static enum status pattern_of(const struct target_search *s, const char *key, const struct pattern_value *patterns,
                              int count, const char *name, double *value)
{
    bool found = false;
    for (int i = 0; i < count && !found; i++) {
        TRY(target_match(s, &(struct target_expression){key, patterns[i].pattern, "(?:.*\\.)?(?:", ")$", false, NULL},
                         name, &found));
        if (found) *value = patterns[i].value;
    }
    return STATUS_OK;
}

static enum status scale_target(const struct target_search *s, const char *name, bool doubled,
                                struct adapter_choice *choice)
{
    const struct adapter_settings *settings = s->settings;
    const int times = doubled ? 2 : 1;
    double r = (double)(times * settings->r), alpha = times * settings->lora_alpha;
    TRY(pattern_of(s, "rank_pattern", settings->rank_pattern, settings->num_rank_patterns, name, &r));
    TRY(pattern_of(s, "alpha_pattern", settings->alpha_pattern, settings->num_alpha_patterns, name, &alpha));
    *choice = (struct adapter_choice){ADAPTER_LORA, (int64_t)r, alpha / (settings->use_rslora ? sqrt(r) : r)};
    return STATUS_OK;
}

/* ---- experts ------------------------------------------------------------- */

/* The names that a family's router, gate, up and down had as modules, if PEFT knows them. */
static const char *const *old_modules(enum model_family family)
{
    static const char *const qwen[OLD_COUNT] = {"gate", "gate_proj", "up_proj", "down_proj"};
    static const char *const mixtral[OLD_COUNT] = {"gate", "w1", "w3", "w2"};
    const bool known = family == FAMILY_QWEN3_MOE || family == FAMILY_OLMOE || family == FAMILY_GLM4_MOE;
    return known ? qwen : family == FAMILY_MIXTRAL ? mixtral : NULL;
}

/* The index in `old` of the name that a target ends with. OLD_COUNT: it ends with none. */
static int old_target(const char *const *old, const char *name)
{
    int k = 0;
    while (old && k < OLD_COUNT && strcmp(name, old[k]) != 0 && !is_suffix(name, old[k])) k++;
    return old ? k : OLD_COUNT;
}

bool adapter_is_parameter(const struct model_desc *desc, const struct tensor_info *a)
{
    char module[sizeof a->name];
    const char *end = strstr(a->name, ".lora_A.weight");
    snprintf(module, sizeof module, "%.*s", end ? (int)(end - a->name) : 0, a->name);
    return role_is_expert(a->role) || a->role == ROLE_ROUTER_W ||
           old_target(old_modules(desc->family), module) < OLD_COUNT;
}

/* Adds the last part of a name that the expression matches. */
static enum status add_leaf(struct target_search *s, const char *name)
{
    bool out, matches = false;
    TRY(is_left_out(s, name, &out));
    if (!out) TRY(is_match(s, name, &matches));
    const char *dot = strrchr(name, '.');
    if (matches) string_list_add(&s->targets, dot ? dot + 1 : name);
    return STATUS_OK;
}

/* PEFT makes a list of an expression and of all-linear: the last parts of the names that match, wherever they are. */
static enum status list_leaves(struct target_search *s, const char *const *old)
{
    char name[sizeof s->table->tensors->name], last[sizeof name] = "", other[sizeof name + 16];
    for (int k = 0; s->settings->all_linear && k < OLD_COUNT; k++) string_list_add(&s->targets, old[k]);
    for (int i = 0; i < s->num_modules; i++) {
        const struct target_module *module = &s->modules[i];
        const bool linear = module_is_linear(s, module) && !module_is_head(s, module);
        if (!s->settings->all_linear)
            TRY(add_leaf(s, module->name));
        else if (linear)
            string_list_add(&s->targets, strrchr(module->name, '.') + 1);
    }
    for (int i = 0; !s->settings->all_linear && i < s->table->num_tensors; i++) {
        adapter_parameter_name(s->desc, &s->table->tensors[i], name, sizeof name);
        if (!role_is_expert(s->table->tensors[i].role) || strcmp(name, last) == 0) continue;
        memcpy(last, name, sizeof last);
        TRY(add_leaf(s, name));
        for (int k = OLD_GATE; k < OLD_COUNT; k++) {
            if (strcmp(strrchr(name, '.') + 1, OLD_PARAMETERS[k]) != 0) continue;
            snprintf(other, sizeof other, "%.*s.%s", (int)(strrchr(name, '.') - name), name, old[k]);
            TRY(add_leaf(s, other));
        }
    }
    s->listed = s->targets.count > 0;
    return STATUS_OK;
}

/* Targets that were modules become parameters. */
static enum status move_targets(struct target_search *s)
{
    const char *const *old = old_modules(s->desc->family);
    bool found[OLD_COUNT] = {false};
    if (!old) return STATUS_OK;
    if (s->settings->all_linear || s->settings->target_modules.expression) TRY(list_leaves(s, old));
    RELEASED(string_list_release) struct string_list given = s->targets;
    s->targets = (struct string_list){0};
    for (int i = 0; i < given.count; i++) {
        const int k = old_target(old, given.items[i]);
        string_list_add(k < OLD_COUNT ? &s->parameters : &s->targets,
                        k < OLD_COUNT ? OLD_PARAMETERS[k] : given.items[i]);
        if (k < OLD_COUNT) found[k] = true;
    }
    s->doubled = found[OLD_GATE] && found[OLD_UP];
    if (found[OLD_GATE] == found[OLD_UP]) return STATUS_OK;
    return error_set(s->err, STATUS_USAGE,
                     "'peft.target_modules' has %s without %s, which are one parameter of the experts, gate_up_proj; "
                     "hint: name both, or neither",
                     old[found[OLD_GATE] ? OLD_GATE : OLD_UP], old[found[OLD_GATE] ? OLD_UP : OLD_GATE]);
}

/* Whether the tensor can have A and B as a parameter; else an error. */
static enum status check_parameter(const struct target_search *s, const struct tensor_info *tensor, const char *name)
{
    const struct target_module *module = s->modules;
    while (module < s->modules + s->num_modules && module_tensor(s, module) != tensor) module++;
    const bool listed = module < s->modules + s->num_modules;
    if (s->settings->lora_dropout > 0)
        return error_set(s->err, STATUS_USAGE,
                         "'peft.lora_dropout' is for modules, and '%s' is a parameter, as in PEFT: the router and the "
                         "experts; hint: lora_dropout: 0, or other target_modules",
                         name);
    if (listed && module->target)
        return error_set(s->err, STATUS_USAGE,
                         "'%s' is both in peft.target_modules and in peft.target_parameters ('%s'); hint: name it in "
                         "one of them",
                         module->name, name);
    if (role_is_expert(tensor->role) || tensor->role == ROLE_ROUTER_W || (listed && module_is_linear(s, module)))
        return STATUS_OK;
    return error_set(s->err, STATUS_USAGE,
                     "'peft.target_parameters' matches '%s', which is not a matrix of products; hint: "
                     "[experts.gate_up_proj, experts.down_proj]",
                     name);
}

/* The last tensors of a unit's experts have the name of the first. */
static enum status find_parameters(struct target_search *s, struct adapter_choice *choices, int *count)
{
    char name[sizeof s->table->tensors->name], last[sizeof name] = "";
    for (int i = 0; i < s->table->num_tensors; i++) {
        const struct tensor_info *tensor = &s->table->tensors[i];
        adapter_parameter_name(s->desc, tensor, name, sizeof name);
        if (!is_listed(&s->parameters, name) || strcmp(name, last) == 0) continue;
        memcpy(last, name, sizeof last);
        TRY(check_parameter(s, tensor, name));
        string_list_add(&s->found, name);
        TRY(scale_target(s, name, s->doubled && tensor->role == ROLE_EXPERT_GATE_W, &choices[i]));
        ++*count;
    }
    return STATUS_OK;
}

/* ---- targets ------------------------------------------------------------- */

/* The family's default, as in PEFT, unless the settings name targets. */
static enum status list_targets(struct target_search *s)
{
    static const char *const defaults[FAMILY_COUNT][4] = {
        [FAMILY_GPT2] = {"c_attn"},
        [FAMILY_LLAMA] = {"q_proj", "v_proj"},
        [FAMILY_MISTRAL] = {"q_proj", "v_proj"},
        [FAMILY_QWEN2] = {"q_proj", "v_proj"},
        [FAMILY_QWEN3] = {"q_proj", "v_proj"},
        [FAMILY_GEMMA2] = {"q_proj", "v_proj"},
        [FAMILY_GEMMA3] = {"q_proj", "v_proj"},
        [FAMILY_GEMMA4] = {"q_proj", "v_proj"}, /* of the multimodal folder only */
        [FAMILY_GPTJ] = {"q_proj", "v_proj"},
        [FAMILY_GPT_NEOX] = {"query_key_value"},
        [FAMILY_PHI] = {"q_proj", "v_proj", "fc1", "fc2"},
        [FAMILY_BERT] = {"query", "value"},
    };
    const struct adapter_settings *settings = s->settings;
    for (int i = 0; i < settings->target_modules.list.count; i++)
        string_list_add(&s->targets, settings->target_modules.list.items[i]);
    for (int i = 0; i < settings->target_parameters.count; i++)
        string_list_add(&s->parameters, settings->target_parameters.items[i]);
    if (s->parameters.count && s->desc->experts.count == 0)
        return error_set(s->err, STATUS_USAGE,
                         "'peft.target_parameters' is for models with experts; hint: name modules in target_modules");
    if (settings->all_linear || settings->target_modules.expression || s->targets.count || s->parameters.count)
        return move_targets(s);
    const bool known = s->desc->family != FAMILY_GEMMA4 || s->desc->multimodal;
    for (int i = 0; i < 4 && known && defaults[s->desc->family][i]; i++)
        string_list_add(&s->targets, defaults[s->desc->family][i]);
    if (s->targets.count) return STATUS_OK;
    error_set(s->err, STATUS_USAGE, "'peft.target_modules' is not set, and PEFT has no default for %s",
              model_family_name(s->desc->family));
    return hint_modules(s);
}

static enum status find_targets(struct target_search *s, int *count)
{
    for (int i = 0; i < s->num_modules; i++) {
        struct target_module *module = &s->modules[i];
        const struct tensor_info *tensor = module_tensor(s, module);
        TRY(is_target(s, module, &module->target));
        if (!module->target) continue;
        if (!module_is_linear(s, module) && !module_is_embedding(tensor)) {
            error_set(s->err, STATUS_USAGE, "'peft.target_modules' matches '%s', which is not a matrix", module->name);
            return hint_modules(s);
        }
        if (s->desc->tied && s->settings->ensure_weight_tying &&
            (module_is_head(s, module) || module_is_embedding(tensor)))
            return error_set(
                s->err, STATUS_USAGE,
                "'peft.ensure_weight_tying' is for modules_to_save: '%s' and the matrix that it is tied to "
                "cannot have one A and B; hint: remove it",
                module->name);
        ++*count;
    }
    return STATUS_OK;
}

static enum status check_targets(const struct target_search *s, int count)
{
    if (count > 0) return STATUS_OK;
    error_set(s->err, STATUS_USAGE, "'peft.target_modules' matches no module of the model%s%s",
              s->settings->num_layers_to_transform ? " in the blocks of layers_to_transform and layers_pattern" : "",
              s->left_out ? " but those that exclude_modules and modules_to_save leave out" : "");
    if (s->parameters.count || s->desc->experts.count > 0)
        return error_hint(s->err, "experts are parameters: target_parameters: [experts.gate_up_proj, "
                                  "experts.down_proj]");
    if (s->settings->target_modules.expression)
        return error_hint(s->err, "a text is a regular expression for whole names, or all-linear; a list, such as "
                                  "[q_proj], has their ends");
    return hint_modules(s);
}

/* ---- modules_to_save ----------------------------------------------------- */

static bool is_saved(const struct string_list *to_save, const char *name)
{
    for (int i = 0; i < to_save->count; i++)
        if (fs_has_suffix(name, to_save->items[i])) return true;
    return false;
}

/* A tied embedding and its head are one tensor: trained as one, or not at all. */
static enum status check_tied(const struct target_search *s, const struct target_module *module)
{
    const struct tensor_info *tensor = module_tensor(s, module);
    const bool embedding = tensor && tensor->role == ROLE_WTE;
    if (!s->desc->tied || s->settings->ensure_weight_tying || !(module->tensor == TIED_HEAD || embedding))
        return STATUS_OK;
    return error_set(s->err, STATUS_USAGE,
                     "'peft.modules_to_save' has '%s', and the model has one matrix for the embedding and the head "
                     "(tie_word_embeddings), and PEFT would train two; hint: set peft.ensure_weight_tying to true, "
                     "and both are trained as one",
                     module->name);
}

static enum status save_module(const struct target_search *s, const struct target_module *module,
                               struct adapter_choice *choices)
{
    const size_t length = strlen(module->name);
    TRY(check_tied(s, module));
    for (int i = 0; i < s->num_modules; i++) {
        const struct target_module *other = &s->modules[i];
        const bool inside = strncmp(other->name, module->name, length) == 0 && strchr(".", other->name[length]);
        if (inside && other->target)
            return error_set(s->err, STATUS_USAGE,
                             "'%s' is both in peft.target_modules and in peft.modules_to_save ('%s'); hint: write the "
                             "whole name in one of them",
                             other->name, module->name);
        if (inside) TRY(check_tied(s, other));
    }
    for (int i = 0; i < s->table->num_tensors; i++) {
        const struct tensor_info *tensor = &s->table->tensors[i];
        const bool tied = module->tensor == TIED_HEAD && tensor->role == ROLE_WTE;
        char name[sizeof tensor->name];
        adapter_parameter_name(s->desc, tensor, name, sizeof name);
        if (!tied && (strncmp(name, module->name, length) != 0 || name[length] != '.')) continue;
        if (strcmp(name, tensor->name) != 0 || choices[i].use == ADAPTER_LORA)
            return error_set(s->err, STATUS_USAGE,
                             "'peft.modules_to_save' has '%s', which holds '%s': %s not saved; hint: name others, or "
                             "the parameter in target_parameters",
                             module->name, name, role_is_expert(tensor->role) ? "experts are" : "this matrix is");
        choices[i].use = ADAPTER_SAVE;
    }
    return STATUS_OK;
}

/* The matrices of a fused group are trained together. */
static enum status check_groups(const struct target_search *s, const struct adapter_choice *choices)
{
    const struct tensor_info *tensors = s->table->tensors;
    for (int i = 1; i < s->table->num_tensors; i++) {
        const bool saved = choices[i].use == ADAPTER_SAVE;
        if (tensors[i].joined && saved != (choices[i - 1].use == ADAPTER_SAVE))
            return error_set(s->err, STATUS_USAGE,
                             "'peft.modules_to_save' has '%s' without '%s', which are one matrix here; hint: name all "
                             "of q, k and v, gate and up, or a layer's in_proj matrices",
                             tensors[saved ? i : i - 1].name, tensors[saved ? i - 1 : i].name);
    }
    return STATUS_OK;
}

/* ---- names that match nothing -------------------------------------------- */

static void note_unmatched(const struct target_search *s, const char *key, const char *name, bool found,
                           struct string_list *notices)
{
    if (found) return;
    OWNED char *line = memory_printf("'peft.%s': '%s' matches no module of this %s model, and has no effect", key, name,
                                     model_family_name(s->desc->family));
    string_list_add(notices, line);
}

static void note_list(const struct target_search *s, const char *key, const struct string_list *list, bool any_end,
                      struct string_list *notices)
{
    for (int i = 0; i < list->count; i++) {
        const struct string_list one = {1, &list->items[i]};
        /* PEFT puts both names of a classifier's head into its files */
        bool found = s->desc->num_labels > 0 &&
                     (strcmp(list->items[i], "classifier") == 0 || strcmp(list->items[i], "score") == 0);
        for (int k = 0; k < s->num_modules && !found; k++)
            found = any_end ? is_saved(&one, s->modules[k].name) : is_listed(&one, s->modules[k].name);
        for (int k = 0; k < s->found.count && !found; k++) found = is_listed(&one, s->found.items[k]);
        found = found || old_target(old_modules(s->desc->family), list->items[i]) < OLD_COUNT;
        note_unmatched(s, key, list->items[i], found, notices);
    }
}

static void note_patterns(struct target_search *s, const char *key, const struct pattern_value *patterns, int count,
                          struct string_list *notices)
{
    for (int i = 0; i < count; i++) {
        double value = -1;
        for (int k = 0; k < s->num_modules && value < 0; k++)
            if (s->modules[k].target) pattern_of(s, key, &patterns[i], 1, s->modules[k].name, &value);
        for (int k = 0; k < s->found.count && value < 0; k++)
            pattern_of(s, key, &patterns[i], 1, s->found.items[k], &value);
        note_unmatched(s, key, patterns[i].pattern, value >= 0, notices);
    }
}

static void note_unmatched_names(struct target_search *s, struct string_list *notices)
{
    const struct adapter_settings *settings = s->settings;
    note_list(s, "target_modules", &settings->target_modules.list, false, notices);
    note_list(s, "target_parameters", &settings->target_parameters, false, notices);
    note_list(s, "exclude_modules", &settings->exclude_modules.list, false, notices);
    note_list(s, "modules_to_save", &settings->modules_to_save, true, notices);
    note_patterns(s, "rank_pattern", settings->rank_pattern, settings->num_rank_patterns, notices);
    note_patterns(s, "alpha_pattern", settings->alpha_pattern, settings->num_alpha_patterns, notices);
}

/* ---- the whole ----------------------------------------------------------- */

static void target_search_end(struct target_search *s)
{
    string_list_release(&s->targets);
    string_list_release(&s->parameters);
    string_list_release(&s->found);
    string_list_release(&s->to_save);
    free(s->modules);
}

static enum status target_search_run(struct target_search *s, struct adapter_choice *choices,
                                     struct adapter_choice *tied_head)
{
    int count = 0;
    TRY(list_targets(s));
    TRY(find_targets(s, &count));
    TRY(find_parameters(s, choices, &count));
    TRY(check_targets(s, count));
    for (int i = 0; i < s->num_modules; i++) {
        const struct target_module *module = &s->modules[i];
        if (module->target)
            TRY(scale_target(s, module->name, false,
                             module->tensor == TIED_HEAD ? tied_head : &choices[module->tensor]));
    }
    for (int i = 0; i < s->num_modules; i++)
        if (is_saved(&s->to_save, s->modules[i].name)) TRY(save_module(s, &s->modules[i], choices));
    return check_groups(s, choices);
}

enum status adapter_choose(const struct adapter_settings *settings, const struct model_desc *desc,
                           const struct tensor_table *table, struct adapter_choice *choices,
                           struct adapter_choice *tied_head, struct string_list *notices, struct error *err)
{
    RELEASED(target_search_end)
    struct target_search s = {.settings = settings, .desc = desc, .table = table, .err = err};
    memset(choices, 0, (size_t)table->num_tensors * sizeof *choices);
    *tied_head = (struct adapter_choice){0};
    target_list_modules(&s);
    for (int i = 0; i < settings->modules_to_save.count; i++)
        string_list_add(&s.to_save, settings->modules_to_save.items[i]);
    if (desc->num_labels > 0) { /* as PEFT does for task_type SEQ_CLS */
        string_list_add(&s.to_save, "classifier");
        string_list_add(&s.to_save, "score");
    }
    TRY(target_search_run(&s, choices, tied_head));
    if (notices) note_unmatched_names(&s, notices);
    return STATUS_OK;
}

bool adapter_doubles_gate_up(const struct adapter_settings *settings, const struct model_desc *desc,
                             const struct tensor_table *table)
{
    struct error err;
    RELEASED(target_search_end)
    struct target_search s = {.settings = settings, .desc = desc, .table = table, .err = &err};
    target_list_modules(&s);
    return list_targets(&s) == STATUS_OK && s.doubled;
}
