/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a manifest.json, as they are and with the right checksum at their end: refused with words, or every
 * number that later code multiplies or indexes with is in range. */
#include "ckpt/manifest.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_manifest(const struct manifest *manifest)
{
    struct rankfile_shape shape = manifest_shape(manifest, manifest->facts.world - 1);
    ASSERT(manifest->facts.world >= 1 && manifest->num_files >= manifest->facts.world &&
           rankfile_num_frames(&shape) > 0);
    ASSERT(manifest->facts.bytes > 0 && json_is_object(manifest->facts.spec) && json_is_object(manifest->facts.model));
    ASSERT(!manifest->facts.machine || json_is_object(manifest->facts.machine));
    for (int u = 0; u < manifest->num_units; u++)
        ASSERT(manifest->units[u].numel >= 1 && manifest->slice[u] * manifest->facts.world >= manifest->units[u].numel);
    for (int i = 0; i < manifest->num_tensors; i++) {
        const struct manifest_tensor *t = &manifest->tensors[i];
        ASSERT(t->name && t->numel >= 1 && t->numel == t->shape[0] * t->shape[1] && t->offset >= 0);
        ASSERT(t->unit < manifest->num_units && t->offset + t->numel <= manifest->units[t->unit].numel);
    }
    for (int i = 0; i < manifest->num_files; i++)
        ASSERT(!strchr(manifest->files[i].name, '/') && manifest->files[i].name[0] != '.' &&
               manifest->files[i].bytes >= 0 && (manifest->files[i].num_frames > 0) == (i < manifest->facts.world));
}

static void decode(const char *text, size_t size)
{
    struct manifest *manifest;
    struct error err = {.code = STATUS_OK};
    if (manifest_decode(text, size, "manifest.json", &manifest, &err) == STATUS_OK) {
        check_manifest(manifest);
        manifest_free(manifest);
    } else {
        ASSERT(err.code == STATUS_CHECKPOINT && err.text[0]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char head[] = ",\n \"checksum\": \"", tail[] = "\"\n}\n";
    decode((const char *)data, size);

    /* the same content, sealed: what stands before the checksum member is kept */
    const size_t end = sizeof head - 1 + 16 + sizeof tail - 1;
    size_t kept = size >= end && !memcmp(data + size - end, head, sizeof head - 1) ? size - end : size;
    char *text = malloc(kept + end + 1);
    memcpy(text, data, kept);
    memcpy(text + kept, head, sizeof head - 1);
    size_t covered = kept + sizeof head - 1;
    snprintf(text + covered, 16 + sizeof tail, "%016" PRIx64 "%s", (uint64_t)XXH3_64bits(text, covered), tail);
    decode(text, kept + end);
    free(text);
    return 0;
}
