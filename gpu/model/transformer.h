/* transformer.h: GPT-2 and the Llama family over the op table, forward and backward, knowing no device and no stage. */
#ifndef ZTRAIN_GPU_MODEL_TRANSFORMER_H
#define ZTRAIN_GPU_MODEL_TRANSFORMER_H

#include "core/data/token_stream.h"
#include "core/tensors.h"
#include "gpu/arena.h"
#include "gpu/ops.h"
#include "gpu/params.h"

struct transformer_config {
    const struct model_desc *desc;    /* borrowed */
    const struct tensor_table *table; /* borrowed */
    enum dtype dtype;                 /* of parameters and activations */
    int64_t max_tokens;               /* M of a micro-batch at most (token_stream_limits) */
    int32_t max_seqs, max_seq;
    int64_t max_position; /* rows of the RoPE tables: seq_length */
    bool training;        /* keep activations for backward */
    bool recompute;       /* keep only each block's input; run its forward again in backward */
    int32_t inputs;       /* micro-batches that transformer_load() can hold; 0: one */
    int64_t logit_chunk;  /* rows of logits that exist at a time; 0: chosen (at most 512 and 256 MiB, or 64 rows) */
};

struct transformer;

/* Creates it (small host structures only; no device memory). */
enum status transformer_new(const struct transformer_config *config, struct device *device,
                            struct transformer **transformer, struct error *err);
void transformer_free(struct transformer *transformer);

/* Takes its buffers; run with a dry arena for the plan, then with the real one (see arena.h). */
void transformer_layout(struct transformer *transformer, struct arena *arena);

/* The limits that its ops stay within, for ops_workspace_bytes(). */
void transformer_op_limits(const struct transformer *transformer, struct op_limits *limits);

/* After the dry layout, before memory is allocated: tells the device which matrix products a step will ask for
 * (ops_prepare). accumulates: more than one micro-batch adds to the same gradients. */
enum status transformer_prepare(const struct transformer *transformer, bool accumulates, struct error *err);

/* After layout with a real arena: fills constant tables (RoPE). */
enum status transformer_start(struct transformer *transformer, struct stream *stream, struct error *err);

/* Copies a micro-batch's arrays to the device, in stream order, and makes *batch name the copies; its own arrays may be
 * reused when the call returns. The copies stay until another micro-batch is loaded as `input` (from 0). */
void transformer_load(struct transformer *transformer, int input, struct batch *batch, struct stream *stream);

/* Forward and backward of one micro-batch: *loss_sum (device, double) += sum of the losses of its targets; gradients of
 * grad_scale · *loss_scale · loss sum go through the verbs (loss_scale: device scalar, or NULL for 1). A batch that
 * transformer_load() has not loaded is loaded as input 0. A batch with num_tokens 0 only calls the verbs (gradients are
 * zeroed or kept). */
enum status transformer_train(struct transformer *transformer, const struct batch *batch, float grad_scale,
                              const float *loss_scale, const struct param_verbs *verbs, struct stream *stream,
                              double *loss_sum, struct error *err);

/* Forward only: *loss_sum += sum of losses. */
enum status transformer_evaluate(struct transformer *transformer, const struct batch *batch,
                                 const struct param_verbs *verbs, struct stream *stream, double *loss_sum,
                                 struct error *err);

/* Seconds that forward and backward took since the last call, waiting for the verbs included, as far as the device has
 * got (CPU: to the end; CUDA: the newest part may come with the next call). */
void transformer_times(struct transformer *transformer, double *forward, double *backward);

/* FLOPs of a trained token, forward and backward: 6 · matmul parameters + 6 · layers · H · D · T (causal): the formula
 * of MFU. The head counts as a matmul though tied; the embedding does not. */
double transformer_flops_per_token(const struct model_desc *desc, int64_t seq_length);

#endif
