/* last_words.h: what ranks say that fail before they can agree on who says it (agree.h).
 *
 * Ranks of one node often find the same wrong, a secret that is missing or a peer that does not come. The first of them
 * to say it takes a name in the kernel, an abstract unix socket of the job and the message; the others find it taken
 * and leave it at that. Whoever cannot make sure that a living rank of this job and user has said it says it itself. */
#ifndef ZTRAIN_CMD_TRAIN_LAST_WORDS_H
#define ZTRAIN_CMD_TRAIN_LAST_WORDS_H

#include "comm/launch/bootstrap.h"

/* Prints the error, unless another rank of this node has, and empties its text: it is said. Gives the others a moment,
 * as the launcher may end them all when this rank ends. */
void last_words(const struct bootstrap *boot, struct error *err);

#endif
