/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/input_upload.h"

#include "core/memory.h"

enum { HOST_BUFFERS = 2 };

struct input_upload {
    void *inputs; /* borrowed */
    size_t bytes;
    char *host[HOST_BUFFERS], *staged; /* (bytes) each, borrowed from the arenas */
    struct stream *stream;
    struct event *sent[HOST_BUFFERS]; /* the host buffer is on the device (the upload's stream) */
    struct event *taken;              /* the staged inputs are where the step reads them (the compute stream) */
    int64_t steps;                    /* sent */
};

enum status input_upload_new(struct device *device, struct input_upload **upload, struct error *err)
{
    *upload = NULL;
    RELEASED(input_upload_drop) struct input_upload *u = memory_zeroed(1, sizeof *u);
    TRY(stream_new(device, STREAM_COMM, &u->stream, err));
    TRY(event_new(device, &u->taken, err));
    for (int i = 0; i < HOST_BUFFERS; i++) TRY(event_new(device, &u->sent[i], err));
    *upload = TAKEN(u);
    return STATUS_OK;
}

void input_upload_free(struct input_upload *u)
{
    if (!u) return;
    stream_free(u->stream);
    event_free(u->taken);
    for (int i = 0; i < HOST_BUFFERS; i++) event_free(u->sent[i]);
    free(u);
}

void input_upload_layout(struct input_upload *u, void *inputs, size_t bytes, struct arena *device, struct arena *host)
{
    u->inputs = inputs;
    u->bytes = bytes;
    u->staged = arena_take(device, MEM_DATA, u->bytes);
    for (int i = 0; i < HOST_BUFFERS; i++) u->host[i] = arena_take(host, MEM_DATA, u->bytes);
}

void *input_upload_room(struct input_upload *u)
{
    const int i = (int)(u->steps % HOST_BUFFERS);
    event_sync(u->sent[i]);
    return u->host[i];
}

void input_upload_send(struct input_upload *u, struct stream *compute)
{
    const int i = (int)(u->steps++ % HOST_BUFFERS);
    stream_wait(u->stream, u->taken);
    stream_copy(u->stream, u->staged, u->host[i], u->bytes);
    event_record(u->sent[i], u->stream);
    stream_wait(compute, u->sent[i]);
    stream_copy(compute, u->inputs, u->staged, u->bytes);
    event_record(u->taken, compute);
}
