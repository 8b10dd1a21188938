/* hardware.h: what decides the bits of a run's results beside its run spec: the device, the CPU's kernels, versions of
 * GPU libraries. Each checkpoint says it ("machine" in its manifest), and a run that goes on elsewhere is told. */
#ifndef ZTRAIN_CMD_TRAIN_HARDWARE_H
#define ZTRAIN_CMD_TRAIN_HARDWARE_H

#include "ckpt/checkpoint.h"
#include "comm/comm.h"
#include "comm/launch/bootstrap.h"
#include "gpu/cpu/cpu_kernels.h"
#include "gpu/device.h"

/* What this rank computes with: a flat object of strings, numbers and booleans, the caller's (json_decref). When the
 * device's memory is laid out: until then it may not have opened the libraries that it uses. */
json_t *hardware_to_json(const struct device *device);

/* The CPU kernels that a checkpoint was computed with. false: it does not say, or it was not the CPU. */
bool hardware_kernels(const json_t *machine, struct cpu_kernels *kernels);

/* In what a checkpoint was computed otherwise than it is now, as far as that decides bits: "isa: avx512, now avx2; …".
 * "": in nothing that it says. Returns text. */
const char *hardware_differences(const struct checkpoint *checkpoint, const json_t *now, char *text, size_t size);

/* Collective: compares what the ranks compute with; rank 0 warns if one differs. replicas: each rank updates all
 * parameters by itself (ZeRO stage 0). */
enum status hardware_compare_ranks(struct comm *comm, const struct bootstrap *boot, const json_t *own, bool replicas,
                                   struct error *err);

#endif
