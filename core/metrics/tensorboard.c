/* SPDX-License-Identifier: Apache-2.0 */
#include "core/metrics/tensorboard.h"

#include "core/text_buffer.h"

struct tensorboard {
    int fd;
    char *path;
};

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers of files are in memory's order");

/* ---- protobuf ------------------------------------------------------------ */

/* Numbers of the fields, and the wire types that these messages use. */
enum { EVENT_WALL_TIME = 1, EVENT_STEP = 2, EVENT_FILE_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION_LOG = 7 };
enum { SESSION_STATUS = 1, SESSION_START = 1 };
enum { SUMMARY_VALUE = 1 };
enum { VALUE_TAG = 1, VALUE_SIMPLE = 2, VALUE_TENSOR = 8, VALUE_METADATA = 9 };
enum { METADATA_PLUGIN = 1, PLUGIN_NAME = 1 };
enum { TENSOR_DTYPE = 1, TENSOR_SHAPE = 2, TENSOR_STRINGS = 8, DTYPE_STRING = 7 };
enum { SHAPE_DIM = 2, DIM_SIZE = 1 };
enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

static void proto_put_varint(struct text *m, uint64_t x)
{
    do {
        unsigned char byte = (unsigned char)((x & 127) | (x > 127 ? 128 : 0));
        text_add(m, &byte, 1);
        x >>= 7;
    } while (x);
}

static void proto_put_key(struct text *m, int field, int wire)
{
    proto_put_varint(m, (uint64_t)(field << 3 | wire));
}

static void proto_put_integer(struct text *m, int field, int64_t x)
{
    proto_put_key(m, field, WIRE_VARINT);
    proto_put_varint(m, (uint64_t)x);
}

static void proto_put_bytes(struct text *m, int field, const void *data, size_t bytes)
{
    proto_put_key(m, field, WIRE_BYTES);
    proto_put_varint(m, bytes);
    text_add(m, data, bytes);
}

static void proto_put_text(struct text *m, int field, const char *text)
{
    proto_put_bytes(m, field, text, strlen(text));
}

/* Adds `inner` as a field of `m`, and empties it. */
static void proto_put_message(struct text *m, int field, struct text *inner)
{
    proto_put_bytes(m, field, inner->bytes, inner->count);
    text_release(inner);
}

static void proto_put_fixed(struct text *m, int field, int wire, const void *x, size_t bytes)
{
    proto_put_key(m, field, wire);
    text_add(m, x, bytes);
}

/* ---- records ------------------------------------------------------------- */

/* And its CRC-32C. TensorFlow masks it, so that a file within a file does not look like one. */
static void add_checked(struct text *m, const void *data, size_t bytes)
{
    const uint32_t polynomial = 0x82f63b78; /* reflected */
    uint32_t crc = ~(uint32_t)0;
    text_add(m, data, bytes);
    for (size_t i = 0; i < bytes; i++) {
        crc ^= ((const unsigned char *)data)[i];
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ polynomial : crc >> 1;
    }
    crc = ~crc;
    crc = (crc >> 15 | crc << 17) + 0xa282ead8;
    text_add(m, &crc, sizeof crc);
}

/* Writes an Event with one member that is set, and empties it. */
static enum status write_event(struct tensorboard *t, int64_t step, int field, struct text *part, struct error *err)
{
    RELEASED(text_release) struct text event = {0}, record = {0};
    const double wall = clock_seconds(CLOCK_REALTIME);
    proto_put_fixed(&event, EVENT_WALL_TIME, WIRE_64, &wall, sizeof wall);
    proto_put_integer(&event, EVENT_STEP, step);
    proto_put_message(&event, field, part);

    const uint64_t length = event.count;
    add_checked(&record, &length, sizeof length);
    add_checked(&record, event.bytes, event.count);
    return fs_write(t->fd, t->path, record.bytes, record.count, STATUS_CHECKPOINT, err);
}

/* ---- the file ------------------------------------------------------------ */

static enum status write_beginning(struct tensorboard *t, int64_t step, struct error *err)
{
    struct text version = {0}, session = {0};
    const char words[] = "brain.Event:2";
    text_add(&version, words, strlen(words));
    TRY(write_event(t, 0, EVENT_FILE_VERSION, &version, err));
    proto_put_integer(&session, SESSION_STATUS, SESSION_START);
    return write_event(t, step, EVENT_SESSION_LOG, &session, err);
}

enum status tensorboard_open(const char *folder, int64_t step, struct tensorboard **out, struct error *err)
{
    char name[256], host[128], path[FS_PATH_MAX];
    if (gethostname(host, sizeof host) != 0) strcpy(host, "localhost");
    host[sizeof host - 1] = '\0';
    TRY(fs_mkdirs(folder, STATUS_CHECKPOINT, err));
    snprintf(name, sizeof name, "events.out.tfevents.%010lld.%s.%d.0", (long long)time(NULL), host, (int)getpid());
    TRY(fs_join(path, folder, name, STATUS_CHECKPOINT, err));
    int fd = io_open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) return error_system(err, STATUS_CHECKPOINT, errno, "cannot create '%s'", path);
    RELEASED(tensorboard_drop) struct tensorboard *t = memory_alloc(sizeof *t);
    *t = (struct tensorboard){fd, memory_text(path)};
    TRY(write_beginning(t, step, err));
    *out = TAKEN(t);
    return STATUS_OK;
}

void tensorboard_close(struct tensorboard *t)
{
    if (!t) return;
    io_close(t->fd);
    free(t->path);
    free(t);
}

enum status tensorboard_scalars(struct tensorboard *t, int64_t step, const struct scalar *scalars, int count,
                                struct error *err)
{
    struct text summary = {0};
    for (int i = 0; i < count; i++) {
        struct text value = {0};
        if (!isfinite(scalars[i].value)) continue;
        proto_put_text(&value, VALUE_TAG, scalars[i].tag);
        const float narrow = (float)scalars[i].value;
        proto_put_fixed(&value, VALUE_SIMPLE, WIRE_32, &narrow, sizeof narrow);
        proto_put_message(&summary, SUMMARY_VALUE, &value);
    }
    return summary.count ? write_event(t, step, EVENT_SUMMARY, &summary, err) : STATUS_OK;
}

/* A tensor of one string, which the plugin for texts shows. */
enum status tensorboard_text(struct tensorboard *t, const char *tag, const char *text, struct error *err)
{
    struct text summary = {0}, value = {0}, metadata = {0}, plugin = {0}, tensor = {0}, shape = {0}, dim = {0};
    proto_put_text(&plugin, PLUGIN_NAME, "text");
    proto_put_message(&metadata, METADATA_PLUGIN, &plugin);
    proto_put_integer(&dim, DIM_SIZE, 1);
    proto_put_message(&shape, SHAPE_DIM, &dim);
    proto_put_integer(&tensor, TENSOR_DTYPE, DTYPE_STRING);
    proto_put_message(&tensor, TENSOR_SHAPE, &shape);
    proto_put_text(&tensor, TENSOR_STRINGS, text);
    proto_put_text(&value, VALUE_TAG, tag);
    proto_put_message(&value, VALUE_TENSOR, &tensor);
    proto_put_message(&value, VALUE_METADATA, &metadata);
    proto_put_message(&summary, SUMMARY_VALUE, &value);
    return write_event(t, 0, EVENT_SUMMARY, &summary, err);
}
