/* launcher.h: the programs that start ranks on several nodes, behind one table of verbs. bootstrap.c chooses one and
 * checks the keys, values and sizes that it passes; no other module uses this header.
 *
 * All verbs except abort are called by one thread at a time. After a verb has failed, only abort and release may be
 * called. */
#pragma once

#include "comm/launch/bootstrap.h"

struct launcher_verbs {
    /* Connects with the server of the exchange; before any other verb. interface: see bootstrap_connect(). */
    enum status (*connect)(struct launcher *launcher, double seconds, const char *interface, struct error *err);
    /* Collective. own: a text of at most BOOTSTRAP_VALUE_MAX printable characters, without ';'; values: those of all
     * ranks, BOOTSTRAP_VALUE_MAX + 1 bytes apart. key: another one for each exchange. Each of its calls fails after
     * `seconds`. */
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

/* Both open the library, so that a missing one is an error at once; they do not communicate. */
enum status launcher_pmi2_new(int rank, int world, struct launcher **launcher, struct error *err);
enum status launcher_pmix_new(int rank, int world, struct launcher **launcher, struct error *err);

/* For a rank without the library: puts `value` as its own and takes part in the first fence. fd: that of PMI_FD. */
enum status launcher_pmi2_refuse(int fd, int rank, const char *key, const char *value, double seconds,
                                 struct error *err);

/* ztrain's own store at rank 0, for ranks that have only the environment in common. */
struct launcher_rendezvous {
    char hosts[2][256]; /* where rank 0 may be found; "": none */
    int port;           /* 0: one of a few that are derived from job and secret */
    bool several_nodes; /* or unknown: a loopback address is not enough */
    unsigned char secret[32];
    char job_id[64];
};
enum status launcher_store_new(int rank, int world, const struct launcher_rendezvous *rendezvous,
                               struct launcher **launcher, struct error *err);
