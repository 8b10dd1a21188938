/* SPDX-License-Identifier: Apache-2.0 */
/* forgetful_wait.h: in the emulated build, every file of comm/zero is compiled with this header before it. Its calls of
 * stream_wait() and event_record() then do nothing at the line that ZTRAIN_EMULATION_FORGETS names as FILE:LINE, say
 * zero_offload.c:176. tests/emulation/test_forgotten_events.py leaves out each of them once. */
#pragma once

#include "gpu/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Prints the place when it is forgotten for the first time. */
static inline bool emulation_forgets(const char *file, int line)
{
    static _Atomic bool said;
    const char *place = getenv("ZTRAIN_EMULATION_FORGETS"), *slash = strrchr(file, '/');
    char here[256];
    if (!place)
        return false;
    snprintf(here, sizeof here, "%s:%d", slash ? slash + 1 : file, line);
    if (strcmp(place, here) != 0)
        return false;
    if (!said)
        fprintf(stderr, "emulation: forgotten: %s\n", here);
    said = true;
    return true;
}

static inline void forgetful_wait(struct stream *stream, struct event *event, const char *file, int line)
{
    if (!emulation_forgets(file, line))
        stream_wait(stream, event);
}

static inline void forgetful_record(struct event *event, struct stream *stream, const char *file, int line)
{
    if (!emulation_forgets(file, line))
        event_record(event, stream);
}

#define stream_wait(stream, event) forgetful_wait(stream, event, __FILE__, __LINE__)
#define event_record(event, stream) forgetful_record(event, stream, __FILE__, __LINE__)
