/* SPDX-License-Identifier: Apache-2.0 */
/* spec_convert_data.c: another trainer's data are text: the run spec names shards, and a note the command for them. */
#include "core/spec/spec_convert_parts.h"

#include "core/model/model_folder.h"

enum data_form { FORM_TEXT, FORM_CHAT, FORM_PAIRS };

struct data_set {
    const char *input;            /* a file or folder, or a name on the hub */
    const struct spec_node *more; /* further files: an item of a list, and those after it */
    enum data_form form;
    const char *fields;
    bool unlisted; /* a name of LLaMA-Factory's that stands in no list here */
};

struct data_sets {
    struct convert *c;
    struct spec_node *train, *validation; /* lists */
    const char *share;                    /* of the documents, for validation; NULL: none */
};

/* ---- a data set and its command ------------------------------------------ */

static const char *data_word(struct convert *c, const char *text)
{
    OWNED char *word = shell_word(text);
    return spec_arena_text(c->ctx->arena, word);
}

static bool data_has(const struct spec_node *list, const char *text)
{
    for (const struct spec_node *item = list->first; item; item = item->next)
        if (strcmp(item->text, text) == 0) return true;
    return false;
}

/* "data/alpaca" for "tatsu-lab/alpaca" and "sets/alpaca.jsonl.gz", with a number if another set has the name. */
static const char *data_shards(struct data_sets *sets, const char *input, const struct spec_node *list)
{
    size_t length, used = 0;
    const char *base = fs_last_part(input, &length);
    char *name = spec_arena_alloc(sets->c->ctx->arena, length + 1);
    for (const char *end = base + length; base < end && *base != '.'; base++)
        name[used++] = strchr(" \t\n'\"*?[]{}$\\", *base) || (unsigned char)*base < 0x20 ? '-' : *base;
    const char *prefix = convert_text(sets->c, "data/%s", used ? name : "train");
    const char *found = prefix;
    for (int n = 2; data_has(list, found); n++) found = convert_text(sets->c, "%s-%d", prefix, n);
    return found;
}

/* Where the set is or will be: a word for a shell. */
static const char *data_place(struct convert *c, const struct data_set *set, const char *shards)
{
    const char *input = set->input;
    const bool file = spec_text_stem(input) > 0 || fs_has_suffix(input, ".gz") || fs_has_suffix(input, ".zst") ||
                      fs_has_suffix(input, ".arrow");
    if (fs_exists(input)) return data_word(c, input);
    if (set->unlisted || file || !model_folder_is_name(input)) {
        convert_note(c, "the data '%s' are not here", input);
        return data_word(c, input);
    }
    const char *raw = data_word(c, convert_text(c, "data/raw/%s", basename(shards)));
    convert_note(c, "the data set '%s' is not here: hf download %s --repo-type dataset --local-dir %s", input, input,
                 raw);
    return raw;
}

static const char *data_places(struct convert *c, const struct data_set *set, const char *shards)
{
    struct data_set file = {.input = set->input, .unlisted = set->unlisted || set->more};
    const char *words = data_place(c, &file, shards);
    for (const struct spec_node *item = set->more; item; item = item->next) {
        file.input = item->text;
        words = convert_text(c, "%s %s", words, data_place(c, &file, shards));
    }
    return words;
}

static void data_add(struct data_sets *sets, const struct data_set *set, bool validates)
{
    struct convert *c = sets->c;
    struct spec_node *list = validates ? sets->validation : sets->train;
    const struct spec_node *own = spec_find(c->to, "model.tokenizer");
    const char *tokenizer = own && own->text ? own->text : c->model ? c->model : "MODEL";
    const char *shards = data_shards(sets, set->input, sets->train);
    if (validates && data_has(list, shards)) shards = convert_text(c, "%s-%d", shards, list->count + 1);
    const char *place = data_places(c, set, shards);
    const char *form = c->prefers                ? " --preference"
                       : set->form == FORM_CHAT  ? " --chat-template"
                       : set->form == FORM_PAIRS ? convert_text(c, " --completion %s", data_word(c, set->fields))
                                                 : "";
    const char *fields = c->prefers || set->form == FORM_PAIRS || !set->fields
                             ? ""
                             : convert_text(c, " --fields %s", data_word(c, set->fields));
    const char *share = validates || !sets->share ? "" : convert_text(c, " --validation %s", sets->share);
    convert_append(c, list, shards);
    convert_note(c, "data.%s has %s, which this makes: ztrain-tokenize %s%s%s --tokenizer %s --output %s%s",
                 validates ? "validation" : "train", shards, place, form, fields, data_word(c, tokenizer),
                 data_word(c, shards), share);
    if (*share) convert_append(c, sets->validation, convert_text(c, "%s-validation", shards));
}

/* ---- each source's sets -------------------------------------------------- */

static const char *data_share_text(struct convert *c, double share)
{
    return share > 0 ? convert_text(c, "%.15g", share) : NULL;
}

/* The share of the documents that are for validation; NULL: none. From 1 on the number counts rows. */
static const char *data_share(struct convert *c, const struct spec_node *node)
{
    if (!node || node->real < 1) return node ? data_share_text(c, node->real) : NULL;
    convert_note(c, "'%s' %s counts rows: --validation takes a share of the documents, and 0.02 is written", node->key,
                 convert_show(c, node));
    return "0.02";
}

#define OR(text, other) ((text) ? (text) : (other))

static void data_axolotl_input(const struct spec_node *item, struct data_set *set)
{
    const struct spec_node *files = spec_child(item, "data_files");
    set->input = convert_child_text(item, "path");
    if (files && files->kind == NODE_LIST) {
        const struct spec_node *file = files->first;
        while (file && file->kind == NODE_STRING) file = file->next;
        files = file ? NULL : files->first;
    }
    if (!files || files->kind != NODE_STRING) return;
    if (set->input && strchr(set->input, '/')) /* not the files' kind, but a place that they are in */
        spec_child(item, "path")->taken = false;
    set->input = files->text;
    set->more = files->key ? NULL : files->next;
    convert_child(item, "data_files");
}

/* "instruction,input,output", of which the second may be absent. */
static const char *data_pair(struct convert *c, const char *prompt, const char *input, const char *response)
{
    return convert_text(c, "%s%s%s,%s", OR(prompt, "instruction"), input ? "," : "", OR(input, ""),
                        OR(response, "output"));
}

static void data_axolotl_form(struct convert *c, const struct spec_node *item, struct data_set *set)
{
    const struct spec_node *type = convert_child(item, "type");
    const char *name = type && type->kind != NODE_MAPPING   ? convert_show(c, type)
                       : type && type->kind == NODE_MAPPING ? ""
                                                            : "alpaca";
    if (strcmp(name, "completion") == 0 || strcmp(name, "pretrain") == 0) {
        set->form = FORM_TEXT;
        set->fields = OR(convert_child_text(item, "field"), convert_child_text(item, "text_column"));
    } else if (strcmp(name, "chat_template") == 0 || strncmp(name, "sharegpt", 8) == 0) {
        set->form = FORM_CHAT;
        set->fields = convert_child_text(item, "field_messages");
    } else if (!*name) { /* fields of one's own */
        set->form = FORM_PAIRS;
        set->fields = data_pair(c, convert_child_text(type, "field_instruction"),
                                convert_child_text(type, "field_input"), convert_child_text(type, "field_output"));
        convert_child(type, "no_input_format");
        if (convert_child(type, "format"))
            convert_note(c, "'datasets' format: ztrain-tokenize joins the fields with line ends; write the prompt that "
                            "you want into the data");
    } else {
        set->form = FORM_PAIRS;
        set->fields = "instruction,input,output";
        if (strcmp(name, "alpaca") == 0)
            convert_note(c, "'datasets' type alpaca: the prompt is the fields, without Alpaca's sentences around them");
        else
            convert_note(c,
                         "'datasets' type %s is not here: Alpaca's fields are assumed; for rows of messages give "
                         "--chat-template",
                         spec_show(c->ctx, name));
    }
}

/* --preference finds pairs in the forms of TRL and axolotl by their columns. */
static void data_axolotl_pairs(struct convert *c, const struct spec_node *item)
{
    const char *names = "field_messages field_prompt field_chosen field_rejected";
    bool named = false;
    for (const char *name; (name = convert_word(c, &names));) named |= convert_child(item, name) != NULL;
    convert_child(item, "type");
    if (named) convert_note(c, "'datasets' has fields of its own: ztrain-tokenize --preference has --fields for them");
}

static void data_axolotl_list(struct data_sets *sets, struct spec_node *list, bool validates, bool pretrains)
{
    for (const struct spec_node *item = spec_items(list); item; item = item->next) {
        struct data_set set = {.input = item->text};
        if (item->kind == NODE_MAPPING) data_axolotl_input(item, &set);
        if (!set.input || (item->kind != NODE_MAPPING && item->kind != NODE_STRING)) {
            convert_note(sets->c, "'%s' has a set without a path", OR(list->key, "datasets"));
            continue;
        }
        if (pretrains)
            set.fields = convert_child_text(item, "text_column");
        else if (sets->c->prefers)
            data_axolotl_pairs(sets->c, item);
        else
            data_axolotl_form(sets->c, item, &set);
        data_add(sets, &set, validates);
        convert_children(sets->c, OR(list->key, "datasets"), spec_child(item, "type"));
        convert_children(sets->c, OR(list->key, "datasets"), item);
    }
}

static void data_axolotl(struct data_sets *sets)
{
    struct convert *c = sets->c;
    struct spec_node *pretrain = convert_take(c, "pretraining_dataset"), *tests = convert_take(c, "test_datasets");
    struct spec_node *train = convert_take(c, "datasets"), *packing = convert_take(c, "sample_packing");
    const char *template = convert_take_text(c, "chat_template"), *jinja = convert_take_text(c, "chat_template_jinja");
    const bool all = convert_take_switch(c, "train_on_inputs");
    convert_take_switch(c, "batch_flattening"); /* padding is left out anyway */
    const char *longer = convert_take_text(c, "excess_length_strategy");
    data_axolotl_list(sets, train, false, false);
    data_axolotl_list(sets, pretrain, false, true);
    data_axolotl_list(sets, tests, true, false);
    if (jinja || (template && strncmp(template, "tokenizer_default", 17) != 0))
        convert_note(c,
                     "'chat_template' %s: ztrain-tokenize takes the tokenizer folder's; put this one there as "
                     "chat_template.jinja",
                     jinja ? "of your own" : spec_show(c->ctx, template));
    if (train && !c->prefers && (!longer || strcmp(longer, "truncate") != 0))
        convert_note(c, "axolotl leaves out a sample that is longer than sequence_len; here it is cut");
    if (all) convert_note(c, "'train_on_inputs' true: here only answers are learned from a chat or a completion");
    const bool packs = convert_truth(c, packing);
    convert_set_yaml(c, "data.packing", pretrain ? "true" : packs ? "first_fit" : "false");
    if (pretrain || packs) convert_set_yaml(c, "data.document_mask", "true");
}

/* LLaMA-Factory's list of data sets, dataset_info.json; NULL: there is none. *folder becomes the folder that has it. */
static const struct spec_node *data_factory_info(struct convert *c, const char **folder)
{
    const char *folders[] = {*folder, convert_text(c, "%s/%s", c->folder, *folder)};
    for (size_t i = 0; i < COUNT_OF(folders); i++) {
        const char *path = convert_text(c, "%s/dataset_info.json", folders[i]);
        struct spec_context ctx = {.arena = c->ctx->arena, .sources = &path, .num_sources = 1};
        OWNED char *text = NULL;
        size_t size;
        if (fs_read_file(path, SPEC_MAX_BYTES, STATUS_DATA, &text, &size, NULL) != STATUS_OK) continue;
        const struct spec_node *info = spec_parse_json(&ctx, 0, text, size);
        *folder = folders[i];
        if (info && ctx.errors.count == 0) return info;
        convert_note(c, "'%s' is not a list of data sets", path);
    }
    return NULL;
}

static void data_factory_set(struct data_sets *sets, const char *name, const struct spec_node *info, const char *folder,
                             bool pretrains, bool validates)
{
    struct convert *c = sets->c;
    static const char *const elsewhere[] = {"ms_hub_url", "om_hub_url", "script_url", "file_name", "hf_hub_url"};
    const struct spec_node *entry = spec_child(info, name), *columns = convert_child(entry, "columns");
    const char *file = convert_child_text(entry, "file_name"), *hub = convert_child_text(entry, "hf_hub_url");
    const char *form = OR(convert_child_text(entry, "formatting"), "alpaca");
    struct data_set set = {.input = file ? convert_text(c, "%s/%s", folder, file) : hub ? hub : name};
    if (pretrains) {
        set.fields = OR(convert_child_text(columns, "prompt"), "text");
    } else if (strcmp(form, "alpaca") != 0) {
        set.form = FORM_CHAT;
        set.fields = OR(convert_child_text(columns, "messages"), "conversations");
    } else {
        set.form = FORM_PAIRS;
        set.fields = data_pair(c, convert_child_text(columns, "prompt"),
                               entry && columns ? convert_child_text(columns, "query") : "input",
                               convert_child_text(columns, "response"));
    }
    for (size_t i = 0; i < COUNT_OF(elsewhere); i++) convert_child(entry, elsewhere[i]);
    convert_children(c, name, columns);
    convert_children(c, name, entry);
    set.unlisted = !entry;
    if (!entry)
        convert_note(c, "'%s' is in no dataset_info.json here: give its file to ztrain-tokenize; %s",
                     spec_show(c->ctx, name),
                     pretrains ? "the field text is assumed"
                               : "Alpaca's fields are assumed; for rows of messages give --chat-template");
    data_add(sets, &set, validates);
}

/* Names with commas between them, or a list. */
static void data_factory_names(struct data_sets *sets, const struct spec_node *names, const struct spec_node *info,
                               const char *folder, bool pretrains, bool validates)
{
    for (const struct spec_node *item = spec_items(names); item; item = item->next) {
        const struct spec_node *each = item->text ? convert_commas(sets->c, item)->first : NULL;
        for (; each; each = each->next) data_factory_set(sets, each->text, info, folder, pretrains, validates);
    }
}

static void data_factory(struct data_sets *sets)
{
    struct convert *c = sets->c;
    const struct spec_node *stage = spec_child(c->from, "stage");
    const bool pretrains = spec_is_text(stage, "pt");
    struct spec_node *names = convert_take(c, "dataset"), *tests = convert_take(c, "eval_dataset");
    struct spec_node *packs = convert_take(c, "packing");
    const char *folder = convert_take_text(c, "dataset_dir"), *template = convert_take_text(c, "template");
    const bool neat = convert_take_switch(c, "neat_packing"), whole = convert_take_switch(c, "train_on_prompt");
    const bool last = convert_take_switch(c, "mask_history");
    convert_take_one(c, "do_train do_eval default_system");
    folder = OR(folder, "data");
    const struct spec_node *info = data_factory_info(c, &folder);
    data_factory_names(sets, names, info, folder, pretrains, false);
    data_factory_names(sets, tests, info, folder, pretrains, true);
    if (template && !pretrains)
        convert_note(c,
                     "'template' %s: ztrain-tokenize takes the tokenizer folder's chat template, and renders rows of "
                     "messages; Alpaca's fields stand without it",
                     spec_show(c->ctx, template));
    if (whole) convert_note(c, "'train_on_prompt' true: here only answers are learned from a chat or a completion");
    if (last)
        convert_note(
            c, "'mask_history' true: here each answer of a chat is learned; \"weight\": 0 in a turn leaves it out");
    const bool joins = packs ? convert_truth(c, packs) : pretrains;
    convert_set_yaml(c, "data.packing", neat || (joins && !pretrains) ? "first_fit" : joins ? "true" : "false");
    if (neat || joins) convert_set_yaml(c, "data.document_mask", neat ? "true" : "false");
}

/* ---- Trainer, TRL -------------------------------------------------------- */

static void data_sft(struct data_sets *sets, const char *name, const char *split)
{
    struct convert *c = sets->c;
    const char *field = convert_take_text(c, "dataset_text_field"),
               *template = convert_take_text(c, "chat_template_path");
    const bool answers = convert_take_switch(c, "assistant_only_loss");
    const bool pairs = convert_take_switch(c, "completion_only_loss");
    struct spec_node *list = convert_take(c, "datasets");
    struct data_set set = {.input = name, .form = field ? FORM_TEXT : FORM_CHAT};
    if (field) set.fields = field;
    if (pairs && !answers) set = (struct data_set){.input = name, .form = FORM_PAIRS, .fields = "prompt,completion"};
    for (const struct spec_node *item = list && list->kind == NODE_LIST ? list->first : NULL; item; item = item->next) {
        set.input = convert_child_text(item, "path");
        if (set.input) data_add(sets, &set, false);
        convert_children(c, "datasets", item);
    }
    set.input = name;
    if (name && (!list || !list->first)) data_add(sets, &set, false);
    if (!name && (!list || !list->first)) return;
    if (set.form == FORM_CHAT)
        convert_note(
            c, "the data are taken as rows of messages; for a text give --fields text in place of --chat-template%s",
            answers ? ""
                    : ". TRL learns from every token without assistant_only_loss, and --chat-template from what the "
                      "assistant says");
    if (template)
        convert_note(c, "'chat_template_path' %s: put this template into the tokenizer folder",
                     spec_show(c->ctx, template));
    if (split) convert_note(c, "the split '%s' is for evaluation: make data.validation from its files", split);
}

static void data_trainer(struct data_sets *sets)
{
    struct convert *c = sets->c;
    const bool sft = c->kind == CONVERT_SFT;
    const struct spec_node *strategy = spec_child(c->from, "eval_strategy"),
                           *old = spec_child(c->from, "evaluation_strategy");
    const bool evaluates = (convert_is_on(strategy) && convert_is_given(strategy)) || convert_is_on(old) ||
                           convert_take_switch(c, "do_eval");
    const char *name = convert_take_text(c, "dataset_name"), *files = convert_take_text(c, "train_file");
    const char *tests = convert_take_text(c, "validation_file"), *split = convert_take_text(c, "dataset_test_split");
    const struct spec_node *percentage = convert_take(c, "validation_split_percentage");
    const char *share = data_share(c, convert_take(c, "test_split_size"));
    convert_take_one(c, "dataset_train_split dataset_config dataset_config_name do_train");
    if (share) sets->share = share;
    if (!sft && evaluates && !tests && percentage && !(percentage->real < 100))
        convert_odd(c, percentage);
    else if (!sft && evaluates && !tests)
        sets->share = data_share_text(c, percentage ? percentage->real / 100 : 0.05);
    if (sft) {
        const bool packs = convert_take_switch(c, "packing");
        const char *way = convert_take_text(c, "packing_strategy");
        const bool cut = way && strcmp(way, "wrapped") == 0;
        convert_take(c, "padding_free");
        convert_set_yaml(c, "data.packing", !packs ? "false" : cut ? "true" : "first_fit");
        if (packs) convert_set_yaml(c, "data.document_mask", cut ? "false" : "true");
        data_sft(sets, OR(files, name), evaluates && !share && !tests ? OR(split, "test") : NULL);
    } else {
        struct data_set set = {.input = OR(files, name)};
        if (set.input) data_add(sets, &set, false);
        convert_set_yaml(c, "data.packing", "true");
        convert_set_yaml(c, "data.document_mask", "false");
    }
    if (tests) data_add(sets, &(struct data_set){.input = tests, .form = sft ? FORM_CHAT : FORM_TEXT}, true);
}

/* The longest sample; a value of a file counts before the source's default. */
static void data_length(struct convert *c)
{
    struct spec_node *length = convert_take_one(
        c, "sequence_len cutoff_len max_length max_seq_length max_seq_len model_max_length block_size");
    if (length) {
        convert_unquote(length);
        convert_set(c, "data.seq_length", length);
        if (c->kind == CONVERT_TRAINER && !convert_is_given(length))
            convert_note(c,
                         "no block_size is given: data.seq_length is %s, as in run_clm; for arguments of TRL's SFT add "
                         "max_length",
                         length->text);
    }
    struct spec_node *most = convert_take(c, "max_samples");
    if (convert_is_on(most))
        convert_note(c, "'max_samples' %s: all of the data are read; train.max_steps limits the steps",
                     convert_show(c, most));
}

void convert_data(struct convert *c)
{
    struct data_sets sets = {.c = c, .train = convert_list(c), .validation = convert_list(c)};
    const char *names = "tokenizer tokenizer_name tokenizer_name_or_path tokenizer_config"; /* the commands name it */
    for (const char *name; (name = convert_word(c, &names));) {
        const struct spec_node *node = convert_take(c, name);
        if (node && node->text && (!c->model || strcmp(node->text, c->model) != 0))
            convert_set(c, "model.tokenizer", node);
    }
    data_length(c);
    const char *share = data_share(c, convert_take(c, "val_set_size"));
    const char *other = data_share(c, convert_take(c, "val_size"));
    sets.share = OR(share, other);
    if (c->kind == CONVERT_AXOLOTL)
        data_axolotl(&sets);
    else if (c->kind == CONVERT_FACTORY)
        data_factory(&sets);
    else
        data_trainer(&sets);
    if (sets.train->count) convert_set(c, "data.train", sets.train);
    if (sets.validation->count) convert_set(c, "data.validation", sets.validation);
}
