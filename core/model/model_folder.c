/* SPDX-License-Identifier: Apache-2.0 */
#include "core/model/model_folder.h"

#include "core/printable.h"

bool model_folder_is_name(const char *text)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    const size_t first = strspn(text, letters);
    const char *second = text[first] == '/' ? text + first + 1 : NULL;
    const char *end = second ? second + strspn(second, letters) : text + first;
    return first > 0 && text[0] != '.' && !*end && (!second || (*second && *second != '.')) &&
           !fs_has_suffix(text, ".json");
}

/* The variable's value with "/rest"; false: it is unset or empty, or the path is too long. */
static bool model_folder_below(const char *variable, const char *rest, char out[FS_PATH_MAX])
{
    const char *value = getenv(variable);
    return value && *value && snprintf(out, FS_PATH_MAX, "%s%s", value, rest) < FS_PATH_MAX;
}

static void find_model_cache(char out[FS_PATH_MAX])
{
    if (!model_folder_below("HF_HUB_CACHE", "", out) && !model_folder_below("HF_HOME", "/hub", out) &&
        !model_folder_below("XDG_CACHE_HOME", "/huggingface/hub", out) &&
        !model_folder_below("HOME", "/.cache/huggingface/hub", out))
        out[0] = '\0';
}

static bool folder_revision(const char *model, char revision[128])
{
    char path[FS_PATH_MAX];
    struct error err;
    OWNED char *text = NULL;
    size_t size;
    if (fs_join(path, model, "refs/main", STATUS_DATA, &err) != STATUS_OK ||
        fs_read_file(path, 4096, STATUS_DATA, &text, &size, &err) != STATUS_OK)
        return false;
    text[strcspn(text, " \r\n")] = '\0';
    return *text && *text != '.' && !strchr(text, '/') && snprintf(revision, 128, "%s", text) < 128;
}

bool model_folder_find(const char *name, char folder[FS_PATH_MAX])
{
    char cache[FS_PATH_MAX], model[FS_PATH_MAX], revision[128];
    if (fs_is_dir(name)) return snprintf(folder, FS_PATH_MAX, "%s", name) < FS_PATH_MAX;
    find_model_cache(cache);
    if (!model_folder_is_name(name) || !*cache) return false;
    const int organisation = (int)strcspn(name, "/");
    const char *rest = name[organisation] ? name + organisation + 1 : "";
    return snprintf(model, sizeof model, "%s/models--%.*s%s%s", cache, organisation, name, *rest ? "--" : "", rest) <
               FS_PATH_MAX &&
           folder_revision(model, revision) &&
           snprintf(folder, FS_PATH_MAX, "%s/snapshots/%s", model, revision) < FS_PATH_MAX && fs_is_dir(folder);
}

enum status model_folder_missing(const char *name, enum status code, struct error *err)
{
    char cache[FS_PATH_MAX];
    find_model_cache(cache);
    error_set(err, code, "there is no folder '%s', and no model of that name in the local Hugging Face cache '%s'",
              name, PRINTABLE(cache));
    return error_hint(err, "correct the path, or download the model: hf download %s", name);
}
