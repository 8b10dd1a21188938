#include "gpu/phase_times.h"

#include "core/memory.h"
#include "gpu/span_recorder.h"

#include <stdlib.h>
#include <string.h>

/* More phases than the host is usually ahead of the device. */
enum { PHASES_AHEAD = 512 };

struct phase_times {
    struct span_recorder *recorder; /* owned */
    double seconds[PHASE_COUNT];
};

static bool is_timed(void *context, const struct span *span)
{
    (void)context;
    return span->kind == SPAN_PHASE && span->what != PHASE_HEAD &&
           (span->outer.phase == PHASE_OTHER || span->outer.phase == PHASE_HEAD);
}

static void add_phase(void *context, const struct span *span)
{
    struct phase_times *times = context;
    times->seconds[span->what] += span->seconds;
}

enum status phase_times_new(struct device *device, struct phase_times **times, struct error *err)
{
    struct phase_times *t = memory_zeroed(1, sizeof *t);
    const struct span_recorder_config config = {
        .capacity = PHASES_AHEAD, .wants = is_timed, .deliver = add_phase, .context = t};
    enum status status = span_recorder_new(device, &config, &t->recorder, err);
    *times = status == STATUS_OK ? t : NULL;
    if (status != STATUS_OK)
        free(t);
    return status;
}

void phase_times_free(struct phase_times *times)
{
    if (times)
        span_recorder_free(times->recorder);
    free(times);
}

void phase_times_read(struct phase_times *times, double seconds[PHASE_COUNT])
{
    span_recorder_collect(times->recorder, false);
    memcpy(seconds, times->seconds, sizeof times->seconds);
    memset(times->seconds, 0, sizeof times->seconds);
}
