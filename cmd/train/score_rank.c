/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/train/score_rank.h"

#include "ckpt/base_hash.h"
#include "cmd/run/score_data.h"
#include "core/spec/adapter_config.h"

#include <xxhash.h>

/* Tokens of a document that its log-probability is the sum over. */
static enum status scored_tokens(const struct token_set *set, int64_t document, int64_t *tokens, struct error *err)
{
    int64_t first, length;
    TRY(token_set_document(set, document, &first, &length, err));
    *tokens = length - 1;
    if (!token_set_has_mask(set)) return STATUS_OK;
    OWNED uint8_t *mask = memory_alloc((size_t)length);
    TRY(token_set_read(set, first, length, INT32_MAX, NULL, mask, err));
    *tokens = 0;
    for (int64_t i = 1; i < length; i++) *tokens += mask[i];
    return STATUS_OK;
}

static enum status print_scores(const struct run *run, const struct token_set *set, const double *logps,
                                struct error *err)
{
    double sum = 0, all = 0;
    int64_t documents = 0;
    for (int64_t i = 0; i < token_set_documents(set); i++) {
        int64_t tokens;
        if (isnan(logps[i])) continue;
        TRY(scored_tokens(set, i, &tokens, err));
        documents++;
        sum += logps[i];
        all += (double)tokens;
        if (run->options->score_lines)
            printf("document %" PRId64 "  logp %.6f  tokens %" PRId64 "  perplexity %.4f\n", i, logps[i], tokens,
                   exp(-logps[i] / fmax((double)tokens, 1)));
    }
    printf("%" PRId64 " documents, %.0f tokens: logp %.6f a token, perplexity %.4f\n", documents, all,
           sum / fmax(all, 1), exp(-sum / fmax(all, 1)));
    return STATUS_OK;
}

enum status score_model(struct run *run, uint64_t *model, struct error *err)
{
    struct engine *t = &run->engine;
    const struct state_slices slices = zero_slices(t->zero);
    json_t *adapter = t->table.adapted ? adapter_config_to_json(&t->spec->adapter, &t->desc, &t->table, NULL) : NULL;
    json_auto_t *both = json_pack("[O, o?]", t->desc.source, adapter);
    OWNED char *config = json_dumps(both, JSON_SORT_KEYS);
    uint64_t weights = 0;
    enum status status = STATUS_OK;
    for (int unit = 0; unit < t->layout.num_trained && status == STATUS_OK; unit++) {
        float *own;
        status = state_slice(slices, SLICE_READ, STATE_MASTER, unit, &own, err);
        if (status == STATUS_OK) weights += base_hash_part(&t->table, &t->layout, t->rank, unit, own);
    }
    TRY(run_agree(run, status, err));
    TRY(base_hash_join(t->comm, &weights, err));
    const uint64_t facts[] = {weights, t->base.hash, (uint64_t)t->spec->dtype, XXH3_64bits(config, strlen(config))};
    *model = XXH3_64bits(facts, sizeof facts) | 1; /* 0 stands for unknown ones */
    return STATUS_OK;
}

enum status score_rank(struct run *run, struct error *err)
{
    struct engine *t = &run->engine;
    const struct token_source *source = &t->sources.items[0];
    struct score_job job = {.name = run->spec->data.train.items[0],
                            .path = run->options->score,
                            .data = source->fingerprint,
                            .config = t->train_config};
    bool complete;
    OWNED double *logps = NULL, *mismatched = NULL;
    job.config.evaluation = true;
    job.config.data.shuffle = false;
    TRY(score_model(run, &job.model, err));
    const int64_t left = token_set_documents(source->set) - source->fit->samples;
    if (left > 0 && t->rank == 0)
        log_warn("%" PRId64 " of %" PRId64 " documents are left out: they have more than data.seq_length %" PRId64
                 " tokens, or fewer than two",
                 left, token_set_documents(source->set), run->spec->data.seq_length);
    if (source->fit->samples == 0)
        return error_set(err, STATUS_DATA, "'%s' has no document of 2 to %" PRId64 " tokens (data.seq_length)",
                         job.name, run->spec->data.seq_length);
    if (run->options->score_top_k)
        TRY(score_teacher(t, &job, (int32_t)run->options->score_top_k, &complete, err));
    else
        TRY(score_data(t, &job, &logps, &mismatched, &complete, err));
    if (!complete)
        return error_set(err, STATUS_REQUEUE, "stopped; '%s' has what was scored, and the same command does the rest",
                         run->options->score);
    if (run->options->score_top_k) return STATUS_OK;
    return run_agree(run, t->rank == 0 ? print_scores(run, source->set, logps, err) : STATUS_OK, err);
}
