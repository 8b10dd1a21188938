/* SPDX-License-Identifier: Apache-2.0 */
/* machine_record.h: what of the machine decides the bits of a run: the device, CPU kernels, versions of GPU libraries.
 * Each checkpoint has it ("machine" in its manifest); a run that continues elsewhere logs the differences. */
#pragma once

#include "ckpt/checkpoint.h"
#include "comm/comm.h"
#include "comm/launch/bootstrap.h"
#include "core/spec/spec.h"
#include "gpu/cpu/cpu_kernels.h"
#include "gpu/device.h"

/* A flat JSON object, owned by the caller. After the device's memory is laid out: it may open libraries until then. */
json_t *machine_record_to_json(const struct device *device);

/* After ops_prepare(), of a run: adds what else decides its bits with virtual ranks. MACHINE_LOST_KERNEL: what a kernel
 * of the run's is missing for here; the caller deletes it once it is compared. */
#define MACHINE_LOST_KERNEL "lost_kernel"
void machine_record_add_choices(json_t *machine, const struct device *device, const struct run_spec *spec);

/* The CPU kernels that a checkpoint was computed with. False: it does not record them, or was not computed on a CPU. */
bool machine_record_kernels(const json_t *machine, struct cpu_kernels *kernels);

/* What changes bits: "isa: avx512, now avx2; …", "": nothing. Returns text. With virtual ranks NCCL counts not. */
enum { MACHINE_DIFFERENCES = 1024 };
const char *machine_record_differences(const struct checkpoint *checkpoint, const json_t *now,
                                       const struct run_spec *spec, char *text, size_t size);

/* Whether such differences end the run: with virtual ranks, unless train.virtual_ranks_strict is false. */
bool machine_record_is_strict(const struct run_spec *spec);

/* STATUS_USAGE: the checkpoint's machine and this one, and their differences. */
enum status machine_record_refuse(const struct checkpoint *checkpoint, const json_t *now, const char *differences,
                                  struct error *err);

/* Collective: compares the ranks' machines. If one differs, rank 0 warns, and `text` (MACHINE_DIFFERENCES bytes), else
 * empty, says so on all ranks; or all return STATUS_USAGE (machine_record_is_strict()). */
enum status machine_record_compare_ranks(struct comm *comm, const struct bootstrap *boot, const json_t *own,
                                         const struct run_spec *spec, char *text, struct error *err);
