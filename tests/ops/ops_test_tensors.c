/* SPDX-License-Identifier: Apache-2.0 */
/* ops_test_tensors.c: the memory, random numbers and tensors of a case. */
#include "tests/ops/ops_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifdef ZTRAIN_EMULATION
enum { DEVICE_GUARD = 0 }; /* the emulated GPU has red zones */
#else
enum { DEVICE_GUARD = 256 }; /* bytes before and after a tensor, which show writes out of bounds */
#endif
enum { GUARD_BYTE = 0xa5, MAX_BLOCKS = 4096 };

/* ---- memory and random numbers of a case --------------------------------- */

static void *blocks[MAX_BLOCKS];
static int num_blocks;

void *host_memory(struct harness *h, size_t bytes)
{
    (void)h;
    ASSERT(num_blocks < MAX_BLOCKS);
    void *block = calloc(1, bytes ? bytes : 1);
    ASSERT(block);
    return blocks[num_blocks++] = block;
}

int host_blocks(void)
{
    return num_blocks;
}

void host_release_from(int first)
{
    while (num_blocks > first) free(blocks[--num_blocks]);
}

static uint64_t random_bits(struct harness *h)
{
    uint64_t z = h->random += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double random_uniform(struct harness *h)
{
    return (double)(int64_t)random_bits(h) * 0x1p-63;
}

int32_t *random_ints(struct harness *h, int64_t n, int64_t below)
{
    int32_t *ints = host_memory(h, (size_t)n * sizeof *ints);
    for (int64_t i = 0; i < n; i++) ints[i] = (int32_t)(random_bits(h) % (uint64_t)below);
    return ints;
}

/* ---- tensors ------------------------------------------------------------- */

size_t tensor_element_size(const struct tensor *t)
{
    return t->is_byte ? 1 : t->is_double || t->is_index ? sizeof(double) : dtype_size(t->dtype);
}

double tensor_round(const struct tensor *t, double x)
{
    if (t->is_double || t->is_index || t->is_byte || t->is_int) return x;
    switch (t->dtype) {
    case DTYPE_F32: return (double)(float)x;
    case DTYPE_BF16: return (double)bf16_to_f32(bf16_from_f32((float)x));
    default: return (double)f16_to_f32(f16_from_f32((float)x));
    }
}

void tensor_set(struct tensor *t, int64_t i, double value)
{
    t->host[i] = tensor_round(t, value);
}

static struct tensor *tensor_new(struct harness *h, const char *name, enum dtype dtype, int64_t n, bool is_double)
{
    ASSERT(h->count < MAX_TENSORS);
    struct tensor *t = &h->tensors[h->count++];
    memset(t, 0, sizeof *t);
    t->name = name;
    t->dtype = dtype;
    t->n = n;
    t->is_double = is_double;
    t->device =
        (char *)arena_take(&h->arena, MEM_DATA, (size_t)n * tensor_element_size(t) + 2 * DEVICE_GUARD) + DEVICE_GUARD;
    if (!h->timing) {
        t->host = host_memory(h, 3 * (size_t)n * sizeof *t->host);
        t->expected = t->host + n;
        t->actual = t->expected + n;
    }
    return t;
}

struct tensor *tensor_in(struct harness *h, const char *name, enum dtype dtype, int64_t n, double scale)
{
    struct tensor *t = tensor_new(h, name, dtype, n, false);
    for (int64_t i = 0; !h->timing && i < n; i++) tensor_set(t, i, scale * random_uniform(h));
    return t;
}

struct tensor *tensor_out(struct harness *h, const char *name, enum dtype dtype, int64_t n, bool accumulate)
{
    struct tensor *t = tensor_new(h, name, dtype, n, false);
    t->output = true;
    t->accumulated = accumulate;
    for (int64_t i = 0; !h->timing && i < n; i++) tensor_set(t, i, accumulate ? random_uniform(h) : NAN);
    return t;
}

struct tensor *tensor_double(struct harness *h, const char *name, double value)
{
    struct tensor *t = tensor_new(h, name, DTYPE_F32, 1, true);
    t->output = true;
    if (!h->timing) t->host[0] = value;
    return t;
}

struct tensor *tensor_doubles_in(struct harness *h, const char *name, int64_t n)
{
    struct tensor *t = tensor_new(h, name, DTYPE_F32, n, true);
    for (int64_t i = 0; !h->timing && i < n; i++) tensor_set(t, i, fabs(random_uniform(h)));
    return t;
}

struct tensor *tensor_index(struct harness *h, const char *name, int64_t value)
{
    struct tensor *t = tensor_double(h, name, (double)value);
    t->is_double = false;
    t->is_index = true;
    return t;
}

struct tensor *tensor_alias(struct harness *h, const char *name, void *device, int64_t n, bool is_double)
{
    struct tensor *t = tensor_new(h, name, DTYPE_F32, n, is_double);
    t->device = device;
    t->output = t->alias = true;
    return t;
}

struct tensor *tensor_bytes(struct harness *h, const char *name, const uint8_t *bytes, int64_t n)
{
    struct tensor *t = tensor_new(h, name, DTYPE_F32, n, false); /* four times as much memory as it needs */
    t->is_byte = t->output = t->exact = true;
    for (int64_t i = 0; !h->timing && i < n; i++) t->host[i] = bytes[i];
    return t;
}

struct tensor *tensor_ints(struct harness *h, const char *name, int64_t n)
{
    struct tensor *t = tensor_new(h, name, DTYPE_F32, n, false); /* of the same size */
    t->is_int = t->output = t->exact = true;
    for (int64_t i = 0; !h->timing && i < n; i++) t->host[i] = -1;
    return t;
}

void *device_bytes(struct harness *h, const void *bytes, size_t size)
{
    void *memory = arena_take(&h->arena, MEM_DATA, size);
    stream_copy(h->stream, memory, bytes, size);
    stream_sync(h->stream);
    return memory;
}

int32_t *device_ints(struct harness *h, const int32_t *values, int64_t n)
{
    int32_t *ints = arena_take(&h->arena, MEM_DATA, (size_t)(n ? n : 1) * sizeof *ints);
    stream_copy(h->stream, ints, values, (size_t)n * sizeof *ints);
    stream_sync(h->stream);
    return ints;
}

/* Writes a value, rounded to the tensor's type, into its memory. */
static void encode(const struct tensor *t, double value, unsigned char *to)
{
    float f = (float)value;
    int64_t index =
        t->is_index || t->is_byte || t->is_int ? (int64_t)value : 0; /* little-endian: its first bytes count */
    uint16_t half = t->dtype == DTYPE_BF16 ? bf16_from_f32(f) : f16_from_f32(f);
    const void *from = &half;
    if (t->is_double)
        from = &value;
    else if (t->is_index || t->is_byte || t->is_int)
        from = &index;
    else if (t->dtype == DTYPE_F32)
        from = &f;
    memcpy(to, from, tensor_element_size(t));
}

/* Reads a value from the tensor's memory. */
static double decode(const struct tensor *t, const unsigned char *from)
{
    double value;
    float f;
    int64_t index;
    uint16_t half;
    if (t->is_double) {
        memcpy(&value, from, sizeof value);
        return value;
    }
    if (t->is_byte) return *from;
    if (t->is_int) {
        int32_t number;
        memcpy(&number, from, sizeof number);
        return number;
    }
    if (t->is_index) {
        memcpy(&index, from, sizeof index);
        return (double)index;
    }
    if (t->dtype == DTYPE_F32) {
        memcpy(&f, from, sizeof f);
        return f;
    }
    memcpy(&half, from, sizeof half);
    return t->dtype == DTYPE_BF16 ? bf16_to_f32(half) : f16_to_f32(half);
}

void upload(struct harness *h, const struct tensor *t)
{
    size_t size = tensor_element_size(t), bytes = (size_t)t->n * size;
    unsigned char *staging = host_memory(h, bytes + 2 * DEVICE_GUARD);
    memset(staging, GUARD_BYTE, bytes + 2 * DEVICE_GUARD);
    for (int64_t i = 0; i < t->n; i++) encode(t, t->host[i], staging + DEVICE_GUARD + (size_t)i * size);
    stream_copy(h->stream, (char *)t->device - DEVICE_GUARD, staging, bytes + 2 * DEVICE_GUARD);
    stream_sync(h->stream);
}

void fill_for_timing(struct harness *h, const struct tensor *t)
{
    if (t->is_double || t->is_index || t->is_byte || t->is_int)
        stream_fill_zero(h->stream, t->device, (size_t)t->n * tensor_element_size(t));
    else
        stream_fill_noise(h->stream, t->device, t->dtype, (size_t)t->n, 1);
    stream_sync(h->stream);
}

bool download(struct harness *h, struct tensor *t)
{
    size_t size = tensor_element_size(t), bytes = (size_t)t->n * size, guard = t->alias ? 0 : DEVICE_GUARD;
    unsigned char *staging = host_memory(h, bytes + 2 * guard);
    stream_copy(h->stream, staging, (char *)t->device - guard, bytes + 2 * guard);
    stream_sync(h->stream);
    for (int64_t i = 0; i < t->n; i++) t->actual[i] = decode(t, staging + guard + (size_t)i * size);
    bool whole = true;
    for (size_t i = 0; i < guard; i++)
        whole = whole && staging[i] == GUARD_BYTE && staging[guard + bytes + i] == GUARD_BYTE;
    return whole;
}
