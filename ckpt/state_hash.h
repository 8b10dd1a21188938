/* SPDX-License-Identifier: Apache-2.0 */
/* state_hash.h: hashes of the training state that do not depend on the ZeRO stage, nor with train.virtual_ranks on the
 * number of ranks. A kind of state has one hash: the XXH3 of the hashes of its W canonical slices (core/model/shard.h)
 * in order; that of a canonical slice is the piece_hash() of its fp32 values, padding included, unit by unit (of
 * moments in 8 bits: of its words, without the room after them). Without virtual ranks W is the number of ranks. */
#pragma once

#include "comm/comm.h"
#include "core/model/shard.h"

struct state_hash {
    const struct shard_layout *layout; /* borrowed */
    int rank, states;                  /* the first ones of enum state_kind */
    uint64_t *parts;                   /* (parts × states) owned; of this rank's canonical slices */
};

void state_hash_init(struct state_hash *hash, const struct shard_layout *layout, int rank, int states);
void state_hash_release(struct state_hash *hash); /* all zero is allowed */

/* Adds this rank's slice (state_words() floats); the units of a kind in order. */
void state_hash_add(struct state_hash *hash, enum state_kind kind, int unit, const float *slice);

/* Once all is added: hashes[states], the same on all ranks. Collective. */
enum status state_hash_join(const struct state_hash *hash, struct comm *comm, uint64_t *hashes, struct error *err);

/* "parameters", "exp_avg", "exp_avg_sq": in manifests and messages. */
const char *state_hash_name(enum state_kind kind);
