/* SPDX-License-Identifier: Apache-2.0 */
/* machine_record.h: what of the machine decides the bits of a run: the device, CPU kernels, versions of GPU libraries.
 * Each checkpoint has it ("machine" in its manifest); a run that continues elsewhere logs the differences. */
#pragma once

#include "ckpt/checkpoint.h"
#include "comm/comm.h"
#include "comm/launch/bootstrap.h"
#include "gpu/cpu/cpu_kernels.h"
#include "gpu/device.h"

/* A flat object of strings, numbers and booleans, owned by the caller (json_decref). After the device's memory is laid
 * out: it may open libraries until then. */
json_t *machine_record_to_json(const struct device *device);

/* The CPU kernels that a checkpoint was computed with. False: it does not record them, or was not computed on a CPU. */
bool machine_record_kernels(const json_t *machine, struct cpu_kernels *kernels);

/* The differences that change bits: "isa: avx512, now avx2; …"; "": none is recorded. Returns text. */
const char *machine_record_differences(const struct checkpoint *checkpoint, const json_t *now, char *text, size_t size);

/* Collective: compares the ranks' machines; rank 0 warns if one differs. replicas: each rank updates all
 * parameters by itself (ZeRO stage 0). */
enum status machine_record_compare_ranks(struct comm *comm, const struct bootstrap *boot, const json_t *own,
                                         bool replicas, struct error *err);
