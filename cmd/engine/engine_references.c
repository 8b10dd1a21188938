/* SPDX-License-Identifier: Apache-2.0 */
/* engine_references.c: what a loss of preferences compares answers with. See engine.h. */
#include "cmd/engine/engine.h"
#include "core/data/logps_file.h"
#include "core/model/model_folder.h"

struct token_source *engine_reference_source(struct engine *t, int number)
{
    if (number < t->sources.count) return &t->sources.items[number];
    return number == t->sources.count && t->validation.set ? &t->validation : NULL;
}

enum status engine_find_reference(const struct engine *t, struct reference *found, struct error *err)
{
    const struct preference_settings *p = t->train_config.preference;
    *found = (struct reference){.kind = REFERENCE_NONE};
    if (!p || p->loss == PREFERENCE_SIMPO || p->loss == PREFERENCE_ORPO || p->loss == PREFERENCE_REWARD)
        return STATUS_OK;
    const char *name = p->reference;
    if (name && strcmp(name, "none") == 0) return STATUS_OK;
    found->kind = REFERENCE_START;
    if (!name || strcmp(name, "adapter-off") == 0) return STATUS_OK;
    found->kind = REFERENCE_FOLDER;
    if (model_folder_find(name, found->folder)) {
        if (!t->next && !t->first) return STATUS_OK;
        error_set(err, STATUS_USAGE, "preference.reference is a folder, and the run has several adapters on one base");
        return error_hint(err, "ztrain score makes a file");
    }
    found->kind = REFERENCE_FILE;
    return STATUS_OK;
}

enum status engine_reference_file(const struct engine *t, int number, char path[FS_PATH_MAX], struct error *err)
{
    const struct string_list *validation = &t->spec->data.validation;
    const bool of_validation = number == t->sources.count;
    if (of_validation ? validation->count > 1 : t->sources.count > 1)
        return error_set(err, STATUS_USAGE,
                         "preference.reference is a file, and %s; hint: name a folder, which is scored at the start",
                         of_validation ? "data.validation has several shards" : "data.train is a mixture");
    const char *name = of_validation ? validation->items[0] : t->spec->preference.reference;
    const int stem = (int)strlen(name) - (of_validation && fs_has_suffix(name, ".bin") ? 4 : 0);
    snprintf(path, FS_PATH_MAX, "%.*s%s", stem, name, of_validation ? ".logps" : "");
    if (fs_exists(path)) return STATUS_OK;
    if (!of_validation)
        return error_set(err, STATUS_USAGE, "preference.reference: '%s' is neither a file nor a folder",
                         PRINTABLE(name));
    error_set(err, STATUS_DATA, "there is no '%s' for data.validation: preference.reference is a file", path);
    return error_hint(err, "ztrain score MODEL --data %s --out %s", name, path);
}

static enum status check_numbers(const char *path, const struct token_source *source, bool kto, struct error *err)
{
    for (int64_t i = 0; i < source->fit->starts[source->fit->samples]; i++) {
        const uint32_t document = source->fit->documents[i];
        if (isfinite(source->references[document]) && !(kto && !isfinite(source->kl_references[document]))) continue;
        return error_set(
            err, STATUS_DATA,
            "'%s' has no finite log-probability of document %u: it is not finished, or left the document out", path,
            document);
    }
    return STATUS_OK;
}

enum status engine_read_reference(const struct engine *t, const char *path, struct token_source *source,
                                  struct error *err)
{
    struct logps_header header;
    const bool kto = t->train_config.preference->loss == PREFERENCE_KTO;
    const int64_t together = t->train_config.micro_batch_size, longest = t->spec->data.seq_length;
    free(TAKEN(source->references));
    free(TAKEN(source->kl_references));
    TRY(logps_read(path, source->labels->documents, &header, &source->references, &source->kl_references, err));
    if (header.data && header.data != source->fingerprint)
        return error_set(err, STATUS_DATA, "'%s' was scored on other data; hint: ztrain score makes it again", path);
    if (!kto || (header.together == together && header.longest == longest))
        return check_numbers(path, source, kto, err);
    error_set(err, STATUS_DATA,
              "'%s' was scored for micro-batches of %d and samples of up to %d tokens, and the run has %" PRId64
              " and %" PRId64 ": mismatched answers differ",
              path, header.together, header.longest, together, longest);
    return error_hint(err, "ztrain score … --mismatched %" PRId64 " --set data.seq_length=%" PRId64, together, longest);
}

enum status engine_check_model(const struct engine *t, const char *what, const char *folder, const json_t *config,
                               struct error *err)
{
    RELEASED(model_desc_release) struct model_desc other = {0};
    RELEASED(string_list_release) struct string_list differences = {0};
    TRY(config ? model_desc_from_json(config, folder, &other, err) : model_desc_load(folder, &other, err));
    model_desc_compare(&other, &t->desc, &differences);
    if (differences.count == 0) return STATUS_OK;
    const char *key = differences.items[0]; /* "'hidden_size' of the model was …" */
    return error_set(err, STATUS_USAGE, "%s '%s' is of another model than this run's: its %.*s differs", what, folder,
                     (int)strcspn(key, " "), key);
}

/* A folder's model is this run's; that of a file may be any. */
static enum status check_folder(const struct engine *t, const char *folder, struct error *err)
{
    RELEASED(checkpoint_drop) struct checkpoint *checkpoint = NULL;
    char config[FS_PATH_MAX], adapter[FS_PATH_MAX];
    TRY(fs_join(config, folder, "config.json", STATUS_USAGE, err));
    TRY(fs_join(adapter, folder, "adapter_config.json", STATUS_USAGE, err));
    if (fs_exists(adapter))
        return error_set(err, STATUS_USAGE,
                         "preference.reference '%s' is an adapter; hint: ztrain export RUN --merge makes a model",
                         folder);
    if (!fs_exists(config)) TRY(checkpoint_open(folder, false, &checkpoint, err));
    if (checkpoint && (t->table.adapted || checkpoint->adapter)) {
        error_set(err, STATUS_USAGE, "preference.reference '%s' is a checkpoint, and there is an adapter", folder);
        return error_hint(err, "ztrain export makes a folder that can be a reference");
    }
    if (engine_check_model(t, "preference.reference", folder, checkpoint ? checkpoint->model : NULL, err) == STATUS_OK)
        return STATUS_OK;
    return error_hint(err, "ztrain score makes a file that can be the reference");
}

enum status engine_check_reference(struct engine *t, struct error *err)
{
    struct reference found;
    char path[FS_PATH_MAX];
    TRY(engine_find_reference(t, &found, err));
    if (found.kind == REFERENCE_FOLDER) return check_folder(t, found.folder, err);
    for (int i = 0; found.kind == REFERENCE_FILE && engine_reference_source(t, i); i++) {
        TRY(engine_reference_file(t, i, path, err));
        TRY(engine_read_reference(t, path, engine_reference_source(t, i), err));
    }
    return STATUS_OK;
}

void engine_use_references(struct engine *t)
{
    for (int i = 0; i < t->mixture.order.count; i++) t->mixture.sources[i] = t->sources.items[i];
    if (!t->train_config.mixture) t->train_config.source = t->sources.items[0];
    t->validation_config.source = t->validation;
}
