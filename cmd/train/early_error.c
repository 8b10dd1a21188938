/* SPDX-License-Identifier: Apache-2.0 */
/* early_error.c: the errors of ranks that fail before they can agree on who prints them (agree.h).
 *
 * Ranks of one node often fail alike. The first to print the error takes a name in the kernel, an abstract unix socket
 * for the job and the message (agree_likeness()); the others find it taken and stay silent. A rank that cannot make
 * sure that a living rank of this job and user has the name prints the error itself. */
#include "cmd/train/rank_main.h"
#include "comm/agree.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <xxhash.h>

/* Whether a process of this user listens there. */
static bool early_error_is_taken(const struct sockaddr_un *name, socklen_t size)
{
    struct ucred owner = {.uid = (uid_t)-1};
    socklen_t owner_size = sizeof owner;
    RELEASED(fs_close) int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return fd >= 0 && connect(fd, (const struct sockaddr *)name, size) == 0 &&
           getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &owner, &owner_size) == 0 && owner.uid == getuid();
}

/* Whether another rank of this node has printed the same. If not, this rank has the name from now until its end. */
static bool is_early_error_said(const struct bootstrap *boot, const struct error *err)
{
    const char *address = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT");
    char job[256];
    snprintf(job, sizeof job, "%s", boot->job_id); /* distinguishes this start of the job from others */
    if (!*job && address && port) snprintf(job, sizeof job, "%.200s:%.20s", address, port);
    if (boot->world == 1 || !*job) return false;
    uint64_t seed = XXH3_64bits(job, strlen(job)), likeness = agree_likeness(err, boot->rank);
    struct sockaddr_un name = {.sun_family = AF_UNIX}; /* abstract: its first byte is 0 */
    int length = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "ztrain-%ju-%016" PRIx64, (uintmax_t)getuid(),
                          XXH3_64bits_withSeed(&likeness, sizeof likeness, seed));
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (const struct sockaddr *)&name, size) == 0 && listen(fd, 128) == 0)
        return false; /* the socket stays open */
    bool others = fd >= 0 && errno == EADDRINUSE;
    if (fd >= 0) close(fd);
    return others && early_error_is_taken(&name, size);
}

void early_error_print(const struct bootstrap *boot, struct error *err)
{
    const struct timespec moment = {.tv_sec = 1};
    if (!err->printed && is_early_error_said(boot, err)) error_mark_printed(err);
    log_error_once(err);
    if (boot->world > 1 && !boot->failed_together && !bootstrap_is_local_rank()) nanosleep(&moment, NULL);
}
