/* params.h: the four verbs through which the transformer sees parameters. It knows no ZeRO stage; comm/zero implements
 * them, this floor only declares them.
 *
 *   acquire      unit's parameters are readable by work that is put on `stream` from now on
 *   release      that work was put on the stream; the memory may be reused after it
 *   grads        where unit's gradients go (fp32, laid out as the unit); accumulate: add to what is there, else
 *                overwrite every element of every tensor (gaps are not written, or with zeros)
 *   grads_ready  all gradients of unit for this micro-batch were put on the stream; the reduction may start after it
 *
 * Call order of one micro-batch, L blocks, head L+1 (every unit named is acquired and released, unless it says not):
 *
 *   training     PASS_FORWARD 0, 1 … L; then PASS_BACKWARD: L+1 with its forward too (and 0 held besides, if tied),
 *                L … 1, each with grads before its ops and grads_ready after its release; last 0: grads, grads_ready,
 *                not acquired
 *   evaluation   PASS_EVALUATION 0, 1 … L, L+1 (and 0 held besides, if tied)
 *
 * grads may be called more than once before grads_ready and gives the same answer (the tied embedding: head first,
 * embedding last); the caller overwrites only in its first use of a tensor. After an error no further verb is called.
 */
#ifndef ZTRAIN_GPU_PARAMS_H
#define ZTRAIN_GPU_PARAMS_H

#include "gpu/device.h"

enum param_pass { PASS_FORWARD, PASS_BACKWARD, PASS_EVALUATION };

struct param_verbs {
    void *self;
    /* *params: compute dtype, unit's flat range */
    enum status (*acquire)(void *self, int unit, enum param_pass pass, struct stream *stream, const void **params,
                           struct error *err);
    void (*release)(void *self, int unit, enum param_pass pass, struct stream *stream);
    enum status (*grads)(void *self, int unit, struct stream *stream, float **grads, bool *accumulate,
                         struct error *err);
    enum status (*grads_ready)(void *self, int unit, struct stream *stream, struct error *err);
};

#endif
