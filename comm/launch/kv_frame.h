/* kv_frame.h: messages between the two ends of a key-value store (kv_store.h). */
#pragma once

#include "comm/launch/bootstrap.h"

#include <stdint.h>

enum kv_kind {
    KV_PUT = 1,
    KV_FENCE,
    KV_GET,
    KV_WHO,
    KV_ABORT,
    KV_LEAVE,
    KV_DONE,
    KV_LOST,
    KV_VALUE,
    KV_MISSING,
    KV_ABSENT,
    KV_ABORTED,
    KV_BYE,
    KV_KIND_COUNT
};

enum {
    KV_HEADER_BYTES = 12,
    KV_TEXT_MAX = 512, /* bytes of a text for people */
    KV_BODY_MAX = BOOTSTRAP_KEY_MAX + 1 + BOOTSTRAP_VALUE_MAX
};
_Static_assert((int)KV_TEXT_MAX <= (int)KV_BODY_MAX, "a text fits a body");

struct kv_frame {
    enum kv_kind kind;
    int32_t number;  /* a rank or an exit code */
    uint32_t length; /* bytes of the body that follows */
};

static inline void kv_store_u32(unsigned char *out, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        out[i] = (unsigned char)(value >> 8 * i);
}

static inline uint32_t kv_load_u32(const unsigned char *in)
{
    return (uint32_t)in[0] | (uint32_t)in[1] << 8 | (uint32_t)in[2] << 16 | (uint32_t)in[3] << 24;
}

static inline void kv_frame_write(const struct kv_frame *frame, unsigned char out[KV_HEADER_BYTES])
{
    kv_store_u32(out, (uint32_t)frame->kind);
    kv_store_u32(out + 4, (uint32_t)frame->number);
    kv_store_u32(out + 8, frame->length);
}

/* False: the bytes are not a header. */
static inline bool kv_frame_read(const unsigned char in[KV_HEADER_BYTES], struct kv_frame *frame)
{
    uint32_t kind = kv_load_u32(in);
    *frame = (struct kv_frame){(enum kv_kind)kind, (int32_t)kv_load_u32(in + 4), kv_load_u32(in + 8)};
    return kind >= KV_PUT && kind < KV_KIND_COUNT && frame->length <= KV_BODY_MAX;
}
