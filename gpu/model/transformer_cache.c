#include "gpu/model/transformer_cache.h"

/* k or v of a block: (KV, capacity, D) */
static void *of_block(const struct pass *pass, void *base, int64_t block)
{
    const struct transformer *t = pass->transformer;
    return row_at(t, base, block * t->KV * pass->cache->capacity, t->D);
}

static struct attention_decode_args decode_args(const struct pass *pass, int64_t block,
                                                const struct attention_fwd_args *a)
{
    const struct kv_cache *cache = pass->cache;
    return (struct attention_decode_args){
        .dtype = a->dtype,
        .M = a->M,
        .H = a->H,
        .KV = a->KV,
        .D = a->D,
        .ld_q = a->ld_q,
        .ld_k = a->ld_k,
        .ld_v = a->ld_v,
        .ld_o = a->ld_o,
        .scale = a->scale,
        .softcap = a->softcap,
        .window = a->window,
        .start = cache->held,
        .capacity = cache->capacity,
        .k = a->k,
        .v = a->v,
        .k_cache = of_block(pass, cache->keys, block),
        .v_cache = of_block(pass, cache->values, block),
    };
}

void cached_attention(const struct pass *pass, int64_t block, const struct attention_fwd_args *args)
{
    const struct op_table *ops = pass->transformer->device->ops;
    struct attention_decode_args decode = decode_args(pass, block, args);
    if (pass->cache->held == 0) {
        ops->attention_fwd(pass->stream, args);
    } else {
        decode.q = args->q;
        decode.out = args->out;
    }
    ops->attention_decode(pass->stream, &decode);
}
