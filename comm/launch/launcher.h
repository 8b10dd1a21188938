/* launcher.h: what starts ranks on several nodes, behind one table of verbs. bootstrap.c chooses one and checks what it
 * passes in (keys, values, sizes); nothing else includes this.
 *
 * All verbs but abort are called by one thread at a time. A call that fails leaves a launcher with which only abort and
 * release make sense. */
#ifndef ZTRAIN_COMM_LAUNCH_LAUNCHER_H
#define ZTRAIN_COMM_LAUNCH_LAUNCHER_H

#include "comm/launch/bootstrap.h"

struct launcher_verbs {
    const char *name; /* for messages */
    /* Meets whoever serves the exchange; before any other verb. interface: see bootstrap_connect(). */
    enum status (*connect)(struct launcher *launcher, double seconds, const char *interface, struct error *err);
    /* This and the next ones give up after `seconds`. */
    enum status (*put)(struct launcher *launcher, const char *key, const char *value, double seconds,
                       struct error *err);
    enum status (*fence)(struct launcher *launcher, double seconds, struct error *err);
    /* values: world texts, BOOTSTRAP_VALUE_MAX + 1 bytes apart; all ranks' (rank < 0) or the one of `rank` at [0] */
    enum status (*get)(struct launcher *launcher, int rank, const char *key, char *values, double seconds,
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

/* Both open the library, which says at once if it is not there; they talk to nobody. */
enum status launcher_pmi2_new(int rank, int world, struct launcher **launcher, struct error *err);
enum status launcher_pmix_new(int rank, int world, struct launcher **launcher, struct error *err);

/* For a rank that has no library: puts `value` as its own in the first fence of all. fd: PMI_FD's. */
enum status launcher_pmi2_refuse(int fd, int rank, const char *key, const char *value, double seconds,
                                 struct error *err);

/* A store of our own at rank 0, for ranks that know each other from the environment only. */
struct launcher_meeting {
    char hosts[2][256]; /* where rank 0 may be found; "": none */
    int port;           /* 0: one of a few that follow from job and secret */
    bool several_nodes; /* or not known: a loopback address is not enough */
    unsigned char secret[32];
    char job_id[64];
};
enum status launcher_store_new(int rank, int world, const struct launcher_meeting *meeting, struct launcher **launcher,
                               struct error *err);

#endif
