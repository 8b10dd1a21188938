/* SPDX-License-Identifier: Apache-2.0 */
/* launcher.h: the programs that start ranks on several nodes, behind one table of verbs. All verbs but abort are called
 * by one thread at a time; after one has failed, only abort and release. */
#pragma once

#include "comm/launch/bootstrap.h"

struct launcher_verbs {
    /* Before any other verb. interface: see bootstrap_connect(). */
    enum status (*connect)(struct launcher *launcher, double seconds, const char *interface, struct error *err);
    /* Collective. own: at most BOOTSTRAP_VALUE_MAX printable characters without ';'; values: those of all ranks,
     * BOOTSTRAP_VALUE_MAX + 1 bytes apart. key: another one each time. Each of its calls fails after `seconds`. */
    enum status (*exchange)(struct launcher *launcher, const char *key, const char *own, char *values, double seconds,
                            struct error *err);
    /* text: one line without ';' */
    void (*abort)(struct launcher *launcher, enum status code, const char *text);
    void (*finish)(struct launcher *launcher);
    void (*release)(struct launcher *launcher);
};

/* First member of each launcher. */
struct launcher {
    const struct launcher_verbs *verbs;
    int rank, world;
    const unsigned char *secret; /* (32) the job's, if every rank was given it; NULL: rank 0 makes one */
};

/* Both open the library; they do not communicate. */
enum status launcher_pmi2_new(int rank, int world, struct launcher **launcher, struct error *err);
enum status launcher_pmix_new(int rank, int world, struct launcher **launcher, struct error *err);

/* For a rank without the library: puts `value` as its own and takes part in the first fence. fd: that of PMI_FD. False:
 * it could not. */
bool launcher_pmi2_refuse(int fd, int rank, const char *key, const char *value, double seconds);

/* ztrain's own store at rank 0, for ranks that have only the environment in common. */
struct launcher_rendezvous {
    char hosts[2][256]; /* where rank 0 may be found; the second may be "" */
    int port;           /* 0: one of a few that are derived from job and secret */
    bool several_nodes; /* or unknown: a loopback address is not enough */
    unsigned char secret[32];
    char job_id[64];
};
enum status launcher_store_new(int rank, int world, const struct launcher_rendezvous *rendezvous,
                               struct launcher **launcher, struct error *err);
