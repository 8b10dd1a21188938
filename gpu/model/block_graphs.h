/* SPDX-License-Identifier: Apache-2.0 */
/* block_graphs.h: the work of a block between two points where the host has a part in it (copies to and from host
 * memory, collectives), captured as a graph and launched as one piece from then on.
 *
 * A piece of work has a key: the pointers and sizes of its ops that may differ between calls. Its first call runs op by
 * op, which loads kernels and lets libraries choose; the second is captured; later ones launch the graph. Beyond
 * BLOCK_GRAPHS_KEPT graphs of a piece it runs op by op. The bits are the same. */
#pragma once

#include "gpu/model/transformer_unit.h"

enum { BLOCK_GRAPHS_KEPT = 4 };

/* FORWARD reaches to the point where the block's input is kept (activation_verbs.h), FORWARD_END from there. Where
 * nothing is kept, FORWARD is all of it. */
enum block_piece { BLOCK_FORWARD, BLOCK_FORWARD_END, BLOCK_BACKWARD, BLOCK_PIECES };

struct block_graphs *block_graphs_new(int64_t blocks);
void block_graphs_free(struct block_graphs *graphs); /* waits for their launches; may be NULL */

/* Enqueues `work` of a training pass, as a graph if transformer_replay() is on. If a piece cannot be captured, it and
 * all others run op by op from then on, and a warning says why; where graphs are demanded, that is an error. */
enum status block_run(const struct pass *pass, const struct unit *unit, int64_t block, enum block_piece piece,
                      void (*work)(const struct pass *pass, const struct unit *unit, int64_t block));
