/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/run/places_list.h"

#include "comm/gpu_binding.h"
#include "core/clock.h"
#include "core/env_switch.h"
#include "gpu/open/device_open.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const double driver_patience = 120; /* seconds: it may initialise every GPU of the machine */

/* "GPU-5c1d…", the entry of CUDA_VISIBLE_DEVICES for a part of a GPU, or the number where the UUID is not known. */
static void place_name_gpu(const char *visible, int index, const unsigned char uuid[DEVICE_UUID_BYTES],
                           char name[PLACE_NAME_MAX])
{
    static const unsigned char unknown[DEVICE_UUID_BYTES];
    const char *entry = NULL;
    size_t length = 0, used = 4;
    const bool named = visible && gpu_visible_entry(visible, index, &entry, &length) && length < PLACE_NAME_MAX;
    if (named && (!strncmp(entry, "MIG-", 4) || !memcmp(uuid, unknown, sizeof unknown))) {
        snprintf(name, PLACE_NAME_MAX, "%.*s", (int)length, entry);
        return;
    }
    snprintf(name, PLACE_NAME_MAX, "%d", index);
    if (!memcmp(uuid, unknown, sizeof unknown))
        return;
    memcpy(name, "GPU-", used);
    for (int i = 0; i < DEVICE_UUID_BYTES; i++)
        used += (size_t)snprintf(name + used, PLACE_NAME_MAX - used, "%s%02x",
                                 i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}

/* In the child: writes a name for each GPU. */
static void places_tell_gpus(int to)
{
    unsigned char uuids[GPU_VIEW_MAX][DEVICE_UUID_BYTES] = {{0}};
    char why[256];
    const int found = device_cuda_available(why) ? device_cuda_list(uuids, GPU_VIEW_MAX) : 0;
    for (int i = 0; i < found && i < GPU_VIEW_MAX; i++) {
        char name[PLACE_NAME_MAX] = "";
        place_name_gpu(getenv("CUDA_VISIBLE_DEVICES"), i, uuids[i], name);
        if (write(to, name, sizeof name) != (ssize_t)sizeof name)
            return;
    }
}

/* Reads the names until the child closes its end. false: it does not answer in time. */
static bool places_hear_gpus(int from, struct place_list *list)
{
    const double end = seconds_now() + driver_patience;
    char *at = list->names[0];
    size_t used = 0;
    for (;;) {
        struct pollfd ready = {.fd = from, .events = POLLIN};
        const double left = end - seconds_now();
        if (left <= 0)
            return false;
        if (poll(&ready, 1, (int)(left * 1000) + 1) <= 0)
            continue;
        const ssize_t n = read(from, at + used, sizeof list->names - used);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        used += (size_t)n;
    }
    list->count = (int)(used / PLACE_NAME_MAX);
    return true;
}

static enum status places_ask_driver(struct place_list *list, struct error *err)
{
    int ends[2], status;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return error_set(err, STATUS_DEVICE, "cannot ask for the GPUs: %s", strerror(errno));
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        places_tell_gpus(ends[1]);
        _exit(0);
    }
    const int error = errno;
    close(ends[1]);
    const bool heard = child > 0 && places_hear_gpus(ends[0], list);
    close(ends[0]);
    if (child < 0)
        return error_set(err, STATUS_DEVICE, "cannot ask for the GPUs: %s", strerror(error));
    if (!heard)
        kill(child, SIGKILL);
    while (waitpid(child, &status, heard ? 0 : WNOHANG) < 0 && errno == EINTR) /* one that hangs may not be killed */
        ;
    return heard ? STATUS_OK
                 : error_set(err, STATUS_DEVICE, "the GPU driver has not listed its GPUs within %g s", driver_patience);
}

enum status places_list(enum spec_device device, int most, bool were_gpus, struct place_list *list, struct error *err)
{
    bool shared = false;
    memset(list, 0, sizeof *list);
    TRY(env_switch("ZTRAIN_SHARE_GPUS", "ranks may share a GPU", &shared, err));
    if (device != SPEC_DEVICE_CPU && !shared)
        TRY(places_ask_driver(list, err));
    list->gpus = list->count > 0 || (were_gpus && !shared);
    if (list->gpus)
        return STATUS_OK;
    ASSERT(most <= PLACES_MAX);
    for (list->count = 0; list->count < most; list->count++)
        snprintf(list->names[list->count], PLACE_NAME_MAX, "%d", list->count);
    return STATUS_OK;
}
