/* machine_record.h: the machine as far as it decides the bits of a run's results beyond the run spec: the device, the
 * CPU kernels, the versions of GPU libraries. Each checkpoint records it ("machine" in its manifest), and a run that
 * continues with other hardware logs the differences. */
#pragma once

#include "ckpt/checkpoint.h"
#include "comm/comm.h"
#include "comm/launch/bootstrap.h"
#include "gpu/cpu/cpu_kernels.h"
#include "gpu/device.h"

/* Describes the machine that this rank computes with: a flat object of strings, numbers and booleans, owned by the
 * caller (json_decref). To be called after the device's memory is laid out, because the device may open its libraries
 * until then. */
json_t *machine_record_to_json(const struct device *device);

/* The CPU kernels that a checkpoint was computed with. False: it does not record them, or was not computed on a CPU. */
bool machine_record_kernels(const json_t *machine, struct cpu_kernels *kernels);

/* Lists the differences that change bits between the checkpoint's machine and `now`: "isa: avx512, now avx2; …"; "" if
 * it records none. Returns text. */
const char *machine_record_differences(const struct checkpoint *checkpoint, const json_t *now, char *text, size_t size);

/* Collective: compares the ranks' machines; rank 0 warns if one differs. replicas: each rank updates all
 * parameters by itself (ZeRO stage 0). */
enum status machine_record_compare_ranks(struct comm *comm, const struct bootstrap *boot, const json_t *own,
                                         bool replicas, struct error *err);
