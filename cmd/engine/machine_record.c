/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/engine/machine_record.h"

#include "core/version.h"
#include "gpu/cpu/cpu_bf16.h"
#include "gpu/cpu/device_cpu.h"
#if ZTRAIN_CUDA
#include "gpu/cuda/cuda_library_info.h"
#endif

enum { MACHINE_TEXT = 2048 }; /* bytes of JSON */

/* The members of machine_record_to_json() that decide the bits of results, in the order of messages. */
static const char *const members[] = {
    "device",
    "gpu",
    "compute_capability",
    "driver",
    "cuda",
    "cublasLt",
    "cuDNN",
    "NCCL",
    "isa",
    "avx512_bf16",
    "amx_bf16",
    "bf16_products",
    "gemm_fp32",
    "gemm_bf16",
    "multiprocessors_left",
    "ZTRAIN_CUDA_TF32",
    "ZTRAIN_CUDA_ATTENTION",
    "ZTRAIN_GEMM_EPILOGUES",
    "avoids",
    "lost_kernel",
};

static void set_text(json_t *machine, const char *name, const char *text)
{
    char clean[256];
    size_t n = 0;
    for (; text[n] && n + 1 < sizeof clean; n++) clean[n] = text[n] >= ' ' && text[n] < 127 ? text[n] : '?';
    clean[n] = 0;
    if (n) json_object_set_new(machine, name, json_string(clean));
}

static void set_gpu(json_t *machine, const struct device *device)
{
    set_text(machine, "gpu", device->name);
    set_text(machine, "compute_capability", device->capability);
    set_text(machine, "driver", device->driver);
    set_text(machine, "cuda", device->runtime);
    for (size_t i = 0; i < COUNT_OF(members); i++) /* environment variables, where they are set */
        if (!strncmp(members[i], "ZTRAIN_", 7) && getenv(members[i])) set_text(machine, members[i], getenv(members[i]));
#if ZTRAIN_CUDA
    for (int i = 0; i < CUDA_LIBRARY_COUNT; i++) {
        struct cuda_library_info info;
        if (cuda_library_is_open((enum cuda_library)i)) {
            cuda_library_describe((enum cuda_library)i, &info);
            set_text(machine, info.name, info.version);
        }
    }
#endif
}

json_t *machine_record_to_json(const struct device *device)
{
    struct cpu_features features;
    json_t *machine = json_object();
    cpu_features_detect(&features);
    set_text(machine, "device", device->kind == DEVICE_CPU ? "cpu" : "cuda");
    set_text(machine, "cpu", features.name);
    if (device->kind != DEVICE_CPU) {
        set_gpu(machine, device);
        return machine;
    }
    const struct cpu_kernels *k = device_cpu_kernels(device);
    set_text(machine, "isa", cpu_isa_name(k->isa));
    json_object_set_new(machine, "avx512_bf16", json_boolean(k->avx512_bf16));
    json_object_set_new(machine, "amx_bf16", json_boolean(k->amx_bf16));
    set_text(machine, "bf16_products", cpu_bf16_name(k->bf16));
    set_text(machine, "gemm_fp32", "builtin"); /* earlier versions: or "oneDNN 2.6.3" */
    set_text(machine, "gemm_bf16", "builtin");
    return machine;
}

void machine_record_add_choices(json_t *machine, const struct device *device, const struct run_spec *spec)
{
    if (spec->train.virtual_ranks && device->multiprocessors_left)
        json_object_set_new(machine, "multiprocessors_left", json_integer(device->multiprocessors_left));
    if (spec->train.virtual_ranks && device->avoided & DEVICE_EPILOGUES)
        set_text(machine, "avoids", device_part_name(DEVICE_EPILOGUES));
    if (*device->lost_kernel) set_text(machine, MACHINE_LOST_KERNEL, device->lost_kernel);
}

static bool is_text(const json_t *machine, const char *name, const char *expected)
{
    const char *text = json_string_value(json_object_get(machine, name));
    return text && !strcmp(text, expected);
}

bool machine_record_kernels(const json_t *machine, struct cpu_kernels *kernels)
{
    memset(kernels, 0, sizeof *kernels);
    int isa = 0;
    while (isa < CPU_ISA_COUNT && !is_text(machine, "isa", cpu_isa_name((enum cpu_isa)isa))) isa++;
    if (!is_text(machine, "device", "cpu") || isa == CPU_ISA_COUNT) return false;
    kernels->isa = (enum cpu_isa)isa;
    kernels->avx512_bf16 = json_is_true(json_object_get(machine, "avx512_bf16"));
    kernels->amx_bf16 = json_is_true(json_object_get(machine, "amx_bf16"));
    bool widens = !kernels->avx512_bf16 || is_text(machine, "bf16_products", cpu_bf16_name(CPU_BF16_WIDEN));
    kernels->bf16 = widens ? CPU_BF16_WIDEN : CPU_BF16_DOT;
    return true;
}

/* A member's value in a message; "none" if it is absent. */
static const char *value_text(const json_t *machine, const char *name, char *text, size_t size)
{
    const json_t *value = json_object_get(machine, name);
    if (json_is_string(value))
        snprintf(text, size, "%s", json_string_value(value));
    else if (json_is_integer(value))
        snprintf(text, size, "%lld", (long long)json_integer_value(value));
    else
        snprintf(text, size, "%s", json_is_boolean(value) ? json_is_true(value) ? "yes" : "no" : "none");
    return text;
}

/* "isa: avx512BETWEENavx2; …" of the members that decide bits. Returns text. */
static const char *machine_differences(const json_t *a, const json_t *b, const struct run_spec *spec,
                                       const char *between, char *text, size_t size)
{
    size_t used = 0;
    text[0] = 0;
    for (size_t i = 0; i < COUNT_OF(members) && used + 1 < size; i++) {
        char one[256], other[256];
        if (spec->train.virtual_ranks && !strcmp(members[i], "NCCL")) continue;
        if (!strcmp(value_text(a, members[i], one, sizeof one), value_text(b, members[i], other, sizeof other)))
            continue;
        snprintf(text + used, size - used, "%s%s: %s%s%s", used ? "; " : "", members[i], one, between, other);
        used += strlen(text + used);
    }
    return text;
}

const char *machine_record_differences(const struct checkpoint *checkpoint, const json_t *now,
                                       const struct run_spec *spec, char *text, size_t size)
{
    const char *writer = json_string_value(json_object_get(checkpoint->manifest, "ztrain_version"));
    char rest[1024] = "";
    if (checkpoint->machine) machine_differences(checkpoint->machine, now, spec, ", now ", rest, sizeof rest);
    if (writer && strcmp(writer, ZTRAIN_VERSION) != 0)
        snprintf(text, size, "ztrain: %.40s, now %s%s%s", writer, ZTRAIN_VERSION, *rest ? "; " : "", rest);
    else
        snprintf(text, size, "%s", rest);
    return text;
}

bool machine_record_is_strict(const struct run_spec *spec)
{
    return spec->train.virtual_ranks && spec->train.virtual_ranks_strict;
}

static const char strict_hint[] =
    "train.virtual_ranks_strict: false continues with other bits, and metrics.jsonl records it";

/* "NVIDIA H100 …" or "AMD EPYC …". */
static const char *machine_name(const json_t *machine)
{
    const char *gpu = json_string_value(json_object_get(machine, "gpu"));
    const char *cpu = json_string_value(json_object_get(machine, "cpu"));
    return gpu ? gpu : cpu ? cpu : "a machine that it does not name";
}

enum status machine_record_refuse(const struct checkpoint *checkpoint, const json_t *now, const char *differences,
                                  struct error *err)
{
    error_set(err, STATUS_USAGE,
              "with train.virtual_ranks a run keeps its kernels: this one began on %s, and this %s lacks them (%s)",
              machine_name(checkpoint->machine), machine_name(now), differences);
    return error_hint(err, "%s", strict_hint);
}

enum status machine_record_compare_ranks(struct comm *comm, const struct bootstrap *boot, const json_t *own,
                                         const struct run_spec *spec, char *text, struct error *err)
{
    char json[MACHINE_TEXT] = "", differences[MACHINE_DIFFERENCES / 2] = "";
    text[0] = 0;
    if (boot->world == 1 || is_text(own, "device", "cpu")) /* the ranks have agreed on CPU kernels: choose.c */
        return STATUS_OK;
    OWNED char(*all)[MACHINE_TEXT] = memory_alloc((size_t)boot->world * sizeof *all);
    size_t length = json_dumpb(own, json, sizeof json, JSON_COMPACT);
    ASSERT(length < sizeof json);
    TRY(comm_exchange(comm, json, sizeof json, all, err));
    json_auto_t *first = json_loadb(all[0], strnlen(all[0], MACHINE_TEXT), 0, NULL);
    for (int r = 1; first && r < boot->world && !*differences; r++) {
        json_auto_t *other = json_loadb(all[r], strnlen(all[r], MACHINE_TEXT), 0, NULL);
        if (other && *machine_differences(first, other, spec, " and ", differences, sizeof differences))
            snprintf(text, MACHINE_DIFFERENCES,
                     "rank 0 on %s and rank %d on %s compute with different hardware or libraries (%s)",
                     boot->places[0].host, r, boot->places[r].host, differences);
    }
    if (!*text) return STATUS_OK;
    if (machine_record_is_strict(spec)) {
        error_set(err, STATUS_USAGE, "train.virtual_ranks: %s", text);
        return error_hint(err, "%s", strict_hint);
    }
    if (boot->rank == 0)
        log_warn("%s%s", text,
                 spec->zero.stage == 0 ? ": at ZeRO stage 0 their replicas of the parameters may drift apart; hint: "
                                         "stage 1 keeps them equal"
                                       : "");
    return STATUS_OK;
}
