/* SPDX-License-Identifier: Apache-2.0 */
/* init_facts.c: what `ztrain init` reads of the model and the data. See init.h. */
#include "ckpt/huggingface/huggingface.h"
#include "cmd/init.h"
#include "core/memory.h"
#include "core/model/model_folder.h"
#include "core/model/tensor_table.h"
#include "core/printable.h"
#include "core/spec/spec.h"
#include "core/text/tokenizer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void init_release(struct init *t)
{
    label_set_close(t->labels);
    token_set_close(t->set);
    string_list_release(&t->data);
    string_list_release(&t->validation);
    model_desc_release(&t->desc);
    free(t->model);
}

/* YAML is UTF-8, and a run spec takes a ~ at the beginning for a home folder, which a shell has put in already. */
static enum status init_check_text(const char *text, struct error *err)
{
    if (text[0] == '~') {
        error_set(err, STATUS_USAGE, "'%s' begins with ~, which a run spec takes for a home folder", PRINTABLE(text));
        return error_hint(err, "./%s", PRINTABLE(text));
    }
    json_t *utf8 = json_string(text);
    json_decref(utf8);
    return utf8 ? STATUS_OK : error_set(err, STATUS_USAGE, "'%s' is not text in UTF-8", PRINTABLE(text));
}

/* ---- the model ----------------------------------------------------------- */

/* Whether a model's folder (NULL: there is a config.json only) has weights of any kind. */
static bool init_has_weights(const char *folder, const struct model_desc *desc, int64_t *params)
{
    struct tensor_table table;
    struct error err;
    bool absent = true;
    tensor_table_build(desc, &table);
    const struct huggingface_source source = {.dir = folder, .desc = desc, .table = &table};
    if (folder)
        huggingface_check(&source, &absent, &err); /* its other errors: init_plan() */
    *params = table.num_params;
    tensor_table_release(&table);
    return !absent;
}

enum status init_take_model(struct init *t, const char *text, struct error *err)
{
    char folder[FS_PATH_MAX];
    TRY(init_check_text(text, err));
    const bool found = model_folder_find(text, folder);
    if (!found && !fs_exists(text))
        return model_folder_missing(text, STATUS_DATA, err);
    model_desc_release(&t->desc);
    t->desc = (struct model_desc){.layers = NULL};
    TRY(model_desc_load(found ? folder : text, &t->desc, err));
    t->pretrained = init_has_weights(found ? folder : NULL, &t->desc, &t->params);
    free(t->model);
    t->model = memory_text(text);
    if (!t->pretrained)
        init_note("'%s' is %s: the run trains from scratch (model.config), from random weights", text,
                  found ? "a folder without weights (safetensors)" : "a config.json");
    return STATUS_OK;
}

enum status init_find_method(const char *name, enum init_method *method, struct error *err)
{
    static const char *const names[] = {[INIT_FULL] = "full", [INIT_LORA] = "lora", [INIT_QLORA] = "qlora"};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (strcasecmp(name, names[i]) == 0) {
            *method = (enum init_method)i;
            return STATUS_OK;
        }
    error_set(err, STATUS_USAGE, "'%s' is not known", PRINTABLE(name));
    return error_hint(err, "full, lora or qlora");
}

enum status init_take_method(struct init *t, const char *text, struct error *err)
{
    TRY(init_find_method(text, &t->method, err));
    if (t->method == INIT_FULL || t->pretrained)
        return STATUS_OK;
    error_set(err, STATUS_USAGE, "an adapter needs trained weights below it, and '%s' has none", t->model);
    return error_hint(err, "full trains from scratch");
}

/* ---- the data ------------------------------------------------------------ */

/* Whether the first line of a file has this JSON key. */
static bool init_line_has(const char *line, const char *key)
{
    const char *found = strstr(line, key);
    if (!found)
        return false;
    found += strlen(key);
    return found[strspn(found, " ")] == ':';
}

/* The options of ztrain-tokenize for what the first line of a .jsonl file holds. */
static const char *init_text_form(const char *path)
{
    char line[1 << 16] = "";
    FILE *file = fs_has_suffix(path, ".jsonl") ? memory_fopen(path, "r") : NULL;
    const bool read = file && fgets(line, sizeof line, file);
    if (file)
        fclose(file);
    if (!read)
        return "";
    if (init_line_has(line, "\"messages\"") || init_line_has(line, "\"conversations\""))
        return " --chat-template";
    if (init_line_has(line, "\"prompt\"") && init_line_has(line, "\"completion\""))
        return " --completion prompt,completion";
    return "";
}

/* Data that are text yet: names the command that makes shards of them. */
static enum status init_refuse_text(const struct init *t, const char *name, size_t stem, struct error *err)
{
    char prefix[FS_PATH_MAX], folder[FS_PATH_MAX];
    const bool tokenizer = model_folder_find(t->model, folder) && tokenizer_folder_has(folder);
    if (!fs_exists(name))
        return error_set(err, STATUS_DATA, "there is no file '%s'", PRINTABLE(name));
    snprintf(prefix, sizeof prefix, "%.*s", (int)stem, name);
    while (stem > 1 && prefix[stem - 1] == '/')
        prefix[--stem] = '\0';
    char *file = shell_word(name), *output = shell_word(prefix), *model = shell_word(t->model);
    error_set(err, STATUS_DATA, "'%s' is text, and ztrain trains on token shards", PRINTABLE(name));
    error_hint(err, "ztrain-tokenize %s --output %s --tokenizer %s%s; then --data %s", file, output,
               tokenizer ? model : "DIR", init_text_form(name), output);
    free(file);
    free(output);
    free(model);
    return err->code;
}

static enum status init_find_text(const struct init *t, const struct string_list *shards, struct error *err)
{
    for (int i = 0; i < shards->count; i++) {
        const char *name = shards->items[i];
        const size_t stem = fs_is_dir(name) ? strlen(name) : spec_text_stem(name);
        TRY(init_check_text(name, err));
        if (stem > 0)
            return init_refuse_text(t, name, stem, err);
    }
    return STATUS_OK;
}

/* Counts the documents by length. */
static enum status init_count_lengths(struct init *t, struct error *err)
{
    const int64_t documents = token_set_documents(t->set);
    t->longest = 0;
    memset(t->within, 0, sizeof t->within);
    for (int64_t i = 0; i < documents; i++) {
        int64_t first, length;
        TRY(token_set_document(t->set, i, &first, &length, err));
        t->longest = length > t->longest ? length : t->longest;
        for (int k = 0; k < INIT_LENGTHS; k++)
            t->within[k] += length <= INT64_C(1) << k;
    }
    return STATUS_OK;
}

/* A glob may match PREFIX-validation as well as PREFIX. */
static void init_note_validation(const struct init *t, const struct string_list *shards)
{
    const char *bin;
    int64_t documents, tokens;
    for (int i = 0; (bin = token_set_shard(t->set, i, &documents, &tokens)); i++) {
        bool named = false;
        for (int k = 0; k < shards->count; k++)
            named |= strstr(shards->items[k], "-validation") != NULL;
        if (!named && fs_has_suffix(bin, "-validation.bin"))
            init_note("'%s' is trained on too: --data matches it", bin);
    }
}

/* A classifier's labels lie beside the first shard. */
static enum status init_read_labels(struct init *t, struct error *err)
{
    int64_t documents, tokens;
    const char *bin = token_set_shard(t->set, 0, &documents, &tokens);
    char path[FS_PATH_MAX];
    snprintf(path, sizeof path, "%.*s.labels", (int)(strlen(bin) - strlen(".bin")), bin);
    label_set_close(t->labels);
    t->labels = NULL;
    if (fs_exists(path)) {
        TRY(label_set_open(t->set, &t->labels, err));
        t->longest = t->labels->longest;
        return STATUS_OK;
    }
    if (t->desc.num_labels > 0) {
        error_set(err, STATUS_DATA, "the model is a classifier, and '%s' is not there", PRINTABLE(path));
        return error_hint(err, "ztrain-tokenize FILE --output PREFIX --tokenizer MODEL --label COLUMN writes labels");
    }
    return model_desc_check_causal(&t->desc, err);
}

enum status init_take_shards(struct init *t, const struct string_list *shards, struct error *err)
{
    TRY(init_find_text(t, shards, err));
    token_set_close(t->set);
    t->set = NULL;
    TRY(token_set_open((const char *const *)shards->items, shards->count, &t->set, err));
    TRY(token_set_check(t->set, t->desc.vocab_size, NULL, err));
    TRY(init_read_labels(t, err));
    t->masked = token_set_has_mask(t->set) && !t->labels;
    if (t->masked)
        TRY(init_count_lengths(t, err));
    init_note_validation(t, shards);
    string_list_release(&t->data);
    t->data = (struct string_list){.count = 0};
    for (int i = 0; i < shards->count; i++)
        string_list_add(&t->data, shards->items[i]);
    return STATUS_OK;
}

enum status init_take_data(struct init *t, const char *text, struct error *err)
{
    char *items[] = {memory_text(text)};
    const enum status status = init_take_shards(t, &(struct string_list){1, items}, err);
    free(items[0]);
    return status;
}

/* ---- validation data ----------------------------------------------------- */

enum status init_take_validation(struct init *t, const char *text, struct error *err)
{
    struct token_set *set = NULL;
    char *items[] = {memory_text(text)};
    const struct string_list shards = {1, items};
    enum status status = init_find_text(t, &shards, err);
    if (status == STATUS_OK)
        status = token_set_open((const char *const *)items, 1, &set, err);
    const char *both = status == STATUS_OK ? token_set_common(t->set, set) : NULL;
    if (both)
        status = error_set(err, STATUS_DATA, "'%s' is in the training data too", PRINTABLE(both));
    if (status == STATUS_OK)
        string_list_add(&t->validation, text);
    token_set_close(set);
    free(items[0]);
    return status;
}

enum status init_find_validation(struct init *t, struct error *err)
{
    for (int i = 0; i < t->data.count; i++) {
        const char *name = t->data.items[i];
        const bool ends = fs_has_suffix(name, ".bin") || fs_has_suffix(name, ".idx");
        char *prefix = memory_printf("%.*s-validation", (int)(strlen(name) - (ends ? 4 : 0)), name);
        char *index = memory_printf("%s.idx", prefix);
        const enum status status = fs_exists(index) ? init_take_validation(t, prefix, err) : STATUS_OK;
        free(index);
        free(prefix);
        TRY(status);
    }
    return STATUS_OK;
}
