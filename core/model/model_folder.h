/* SPDX-License-Identifier: Apache-2.0 */
/* model_folder.h: the folder of a model that is named by its path, or by its name in the local Hugging Face cache.
 *
 * The cache is HF_HUB_CACHE, or else hub/ in HF_HOME, or else in huggingface/ of XDG_CACHE_HOME or ~/.cache. It keeps a
 * model "org/name" in models--org--name: refs/main has the revision of snapshots/REVISION. Nothing is downloaded. */
#pragma once

#include "core/fsutil.h"

/* Whether a text may be the name of a model: "gpt2", "Qwen/Qwen2.5-0.5B". */
bool model_folder_is_name(const char *text);

/* Writes the folder that `name` stands for: `name` itself if it is one, else that of the cache. false: neither. */
bool model_folder_find(const char *name, char folder[FS_PATH_MAX]);

/* The error for a possible name that has no folder: `code`, with the command that downloads it. */
enum status model_folder_missing(const char *name, enum status code, struct error *err);
