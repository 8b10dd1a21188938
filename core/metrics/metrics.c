/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.c: a line is one JSON object and one write(), so that a reader sees no half line. */
#include "core/metrics/metrics.h"

#include "core/faults.h"
#include "core/metrics/line_queue.h"

/* ---- a step's numbers ---------------------------------------------------- */

#define AT(member) offsetof(struct step_metrics, member)

/* clang-format off */
#define PREFERENCE_FIELD(name, word, runs, place) [STEP_##name] = {"", word, AS_EXACT, AT(preference_values[PREFERENCE_##name]), \
    .curve = true, .order = place, .tag = "Train/Samples/" word, .of = runs}
const struct step_field step_fields[STEP_FIELDS] = {
    [STEP_NUMBER] = {"", "step", AS_INTEGER, AT(step), .curve = false},
    [STEP_EPOCH] = {"", "epoch", AS_INTEGER, AT(epoch), .curve = false},
    [STEP_LOSS] = {"", "loss", AS_EXACT, AT(loss), .curve = true, .order = 1, .tag = "Train/Samples/train_loss"},
    [STEP_GRAD_NORM] = {"", "grad_norm", AS_EXACT, AT(grad_norm), .curve = true, .order = 4, .tag = "Train/Samples/grad_norm"},
    [STEP_LR] = {"", "lr", AS_EXACT, AT(lr), .curve = true, .order = 2, .tag = "Train/Samples/lr"},
    [STEP_LOSS_SCALE] = {"", "loss_scale", AS_EXACT, AT(loss_scale), .curve = true, .order = 3, .tag = "Train/Samples/loss_scale"},
    [STEP_SKIPPED] = {"", "skipped", AS_FLAG, AT(skipped), .curve = false},
    [STEP_TOKENS] = {"", "tokens", AS_INTEGER, AT(tokens), .curve = false},
    [STEP_TARGETS] = {"", "targets", AS_INTEGER, AT(targets), .curve = false},
    [STEP_RATE] = {"", "tokens_per_s", AS_ROUGH, AT(tokens_per_s), .curve = true, .order = 5, .tag = "Train/Samples/tokens_per_s"},
    [STEP_MFU] = {"", "mfu", AS_SHARE, AT(mfu), .curve = true, .order = 6, .tag = "Train/Samples/mfu"},
    [STEP_AUX_LOSS] = {"", "aux_loss", AS_EXACT, AT(aux_loss), .curve = true, .order = 8, .tag = "Train/Samples/aux_loss", .of = OF_EXPERTS},
    PREFERENCE_FIELD(REWARDS_CHOSEN, "rewards/chosen", OF_PREFERENCES, 9),
    PREFERENCE_FIELD(REWARDS_REJECTED, "rewards/rejected", OF_PREFERENCES, 10),
    PREFERENCE_FIELD(REWARDS_ACCURACIES, "rewards/accuracies", OF_PAIRS, 11),
    PREFERENCE_FIELD(REWARDS_MARGINS, "rewards/margins", OF_PREFERENCES, 12),
    PREFERENCE_FIELD(LOGPS_CHOSEN, "logps/chosen", OF_LOGPS, 13),
    PREFERENCE_FIELD(LOGPS_REJECTED, "logps/rejected", OF_LOGPS, 14),
    PREFERENCE_FIELD(KL, "kl", OF_KTO, 15),
    [STEP_DEVICE] = {"memory_bytes", "device", AS_INTEGER, AT(memory_device), .curve = true},
    [STEP_HOST] = {"memory_bytes", "host", AS_INTEGER, AT(memory_host), .curve = true},
    [STEP_SECONDS] = {"seconds", "step", AS_SECONDS, AT(seconds.step), .curve = true, .order = 7, .tag = "Train/Samples/step_seconds"},
    [STEP_DATA] = {"seconds", "data", AS_ROUGH, AT(seconds.data), .curve = true},
    [STEP_FORWARD] = {"seconds", "forward", AS_ROUGH, AT(seconds.forward), .curve = true},
    [STEP_BACKWARD] = {"seconds", "backward", AS_ROUGH, AT(seconds.backward), .curve = true},
    [STEP_REDUCE] = {"seconds", "reduce", AS_ROUGH, AT(seconds.reduce), .curve = true},
    [STEP_OPTIMIZER] = {"seconds", "optimizer", AS_ROUGH, AT(seconds.optimizer), .curve = true},
    [STEP_CHECKPOINT] = {"seconds", "checkpoint", AS_ROUGH, AT(seconds.checkpoint), .curve = true},
    [STEP_ENTROPY] = {"experts", "entropy", AS_ROUGH, AT(load_entropy), .curve = true, .of = OF_EXPERTS},
    [STEP_MAX_LOAD] = {"experts", "max_load", AS_ROUGH, AT(max_load), .curve = true, .of = OF_EXPERTS},
};
/* clang-format on */

bool step_field_is_of(enum step_field_index field, const struct step_metrics *m)
{
    switch (step_fields[field].of) {
    case OF_EXPERTS: return m->num_experts > 0;
    case OF_PREFERENCES: return m->preference != PREFERENCE_NONE;
    case OF_LOGPS: return m->preference != PREFERENCE_NONE && m->preference != PREFERENCE_REWARD;
    case OF_PAIRS: return m->preference != PREFERENCE_NONE && m->preference != PREFERENCE_KTO;
    case OF_KTO: return m->preference == PREFERENCE_KTO;
    default: return true;
    }
}

double step_field_value(const struct step_metrics *metrics, enum step_field_index field)
{
    const struct step_field *f = &step_fields[field];
    const void *at = (const char *)metrics + f->offset;
    if (f->type == AS_FLAG) return *(const bool *)at;
    if (f->type == AS_INTEGER) return (double)*(const int64_t *)at;
    const double value = *(const double *)at;
    return f->type == AS_SHARE && value < 0 ? NAN : value;
}

/* ---- the file ------------------------------------------------------------ */

struct metrics {
    int fd;
    char *path;
    struct line_queue queue;
    FILE *line; /* what is being written */
    char *text;
    size_t bytes;
};

enum status metrics_open(const char *path, const struct metrics_history *past, struct metrics **out, struct error *err)
{
    bool open_end, has_checkpoint = true;
    RELEASED(metrics_drop) struct metrics *metrics = memory_zeroed(1, sizeof *metrics);
    metrics->path = memory_text(path);
    metrics->fd = -1;
    if (past)
        TRY(metrics_history_take(path, past, &open_end, &has_checkpoint, err));
    else
        TRY(metrics_history_leave(path, err));
    TRY(fs_open_regular(path, O_RDWR | O_CREAT | O_APPEND, STATUS_CHECKPOINT, &metrics->fd, NULL, err));
    line_queue_init(&metrics->queue, metrics->fd, metrics->path);
    if (past && open_end) TRY(line_queue_add(&metrics->queue, "\n", 1, err));
    if (!has_checkpoint) TRY(metrics_checkpoint(metrics, past->checkpoint, past->step, past->bytes, NAN, NAN, err));
    *out = TAKEN(metrics);
    return STATUS_OK;
}

void metrics_ask_owner(struct metrics *metrics, enum status (*still_owner)(void *owner, struct error *err), void *owner)
{
    metrics->queue.still_owner = still_owner;
    metrics->queue.owner = owner;
}

bool metrics_drain(struct metrics *metrics, double seconds)
{
    return line_queue_drain(&metrics->queue, seconds);
}

void metrics_close(struct metrics *metrics)
{
    if (!metrics) return;
    if (metrics->queue.waiting) line_queue_drain(&metrics->queue, 0);
    line_queue_release(&metrics->queue);
    if (metrics->fd >= 0) io_close(metrics->fd);
    free(metrics->path);
    free(metrics);
}

/* ---- lines --------------------------------------------------------------- */

static FILE *metrics_line_begin(struct metrics *m)
{
    return m->line = memory_stream(&m->text, &m->bytes);
}

/* Adds the line without its last brace to the file. */
static enum status line_end(struct metrics *m, struct error *err)
{
    fputs("}\n", m->line);
    fclose(m->line);
    OWNED char *text = m->text;
    return line_queue_add(&m->queue, text, m->bytes, err);
}

enum { EXACT = 17, ROUGH = 6 }; /* digits */

/* null for NaN and infinity, which JSON does not have. */
static void metrics_put_number(FILE *out, double value, int digits)
{
    if (isfinite(value))
        fprintf(out, "%.*g", digits, value);
    else
        fputs("null", out);
}

/* ,"name":value */
static void metrics_put_real(FILE *out, const char *name, double value, int digits)
{
    fprintf(out, ",\"%s\":", name);
    metrics_put_number(out, value, digits);
}

/* before"name":value (owned; NULL: null). */
static void metrics_put_json(FILE *out, const char *before, const char *name, json_t *value)
{
    OWNED char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(ROUGH));
    fprintf(out, "%s\"%s\":%s", before, name, text ? text : "null");
    json_decref(value);
}

/* The sources of a mixture, {"PATH":{"samples":…,"epochs":…,"targets":…},…} */
static json_t *sources_to_json(const struct step_metrics *m)
{
    json_t *all = json_object();
    for (int i = 0; i < m->num_sources; i++) {
        const struct source_metrics *s = &m->sources[i];
        json_object_set_new(all, s->path,
                            json_pack("{sIsfsI}", "samples", (json_int_t)s->samples, "epochs", s->epochs, "targets",
                                      (json_int_t)s->targets));
    }
    return all;
}

static double total_load(const struct step_metrics *m)
{
    double total = 0;
    for (int e = 0; e < m->num_experts; e++) total += m->loads[e];
    return total > 0 ? total : 1;
}

void step_metrics_count_loads(struct step_metrics *m)
{
    const double total = total_load(m);
    m->load_entropy = m->max_load = 0;
    for (int e = 0; e < m->num_experts; e++) {
        const double share = m->loads[e] / total;
        if (share > 0) m->load_entropy -= share * log(share);
        m->max_load = fmax(m->max_load, share);
    }
}

/* Adds "dropped", which is always 0, and "load", each expert's share of the choices. */
static void put_loads(FILE *out, const struct step_metrics *m)
{
    json_t *load = json_array();
    const double total = total_load(m);
    for (int e = 0; e < m->num_experts; e++) json_array_append_new(load, json_real(m->loads[e] / total));
    fputs(",\"dropped\":0", out);
    metrics_put_json(out, ",", "load", load);
}

static void put_field(FILE *out, const struct step_metrics *m, enum step_field_index field)
{
    const struct step_field *f = &step_fields[field];
    const void *at = (const char *)m + f->offset;
    fprintf(out, "\"%s\":", f->member);
    if (f->type == AS_FLAG)
        fputs(*(const bool *)at ? "true" : "false", out);
    else if (f->type == AS_INTEGER)
        fprintf(out, "%" PRId64, *(const int64_t *)at);
    else if (f->type == AS_SECONDS)
        fprintf(out, "%.6f", *(const double *)at);
    else
        metrics_put_number(out, step_field_value(m, field), f->type == AS_EXACT ? EXACT : ROUGH);
}

enum status metrics_step(struct metrics *metrics, const struct step_metrics *m, struct error *err)
{
    const char *object = "", *before = "{";
    FILE *out = metrics_line_begin(metrics);
    for (int f = 0; f < STEP_FIELDS; f++) {
        if (!step_field_is_of((enum step_field_index)f, m)) continue;
        if (strcmp(step_fields[f].object, object) != 0) {
            fprintf(out, "%s,\"%s\":", *object ? "}" : "", step_fields[f].object);
            object = step_fields[f].object;
            before = "{";
        }
        fputs(before, out);
        put_field(out, m, (enum step_field_index)f);
        before = ",";
    }
    if (m->num_experts) put_loads(out, m);
    fputs("}", out); /* of the last object */
    if (m->hashed) fprintf(out, ",\"hash\":\"%s\"", hash_digits(m->hash).text);
    if (m->num_sources > 0) metrics_put_json(out, ",", "sources", sources_to_json(m));
    return line_end(metrics, err);
}

enum status metrics_eval(struct metrics *metrics, int64_t step, int64_t epoch, double eval_loss, int64_t targets,
                         const struct class_scores *scores, const double *preference, struct error *err)
{
    static const char *const preferences[] = {PREFERENCE_VALUE_LIST(LISTED_WORD)};
    FILE *out = metrics_line_begin(metrics);
    fprintf(out, "{\"step\":%" PRId64 ",\"epoch\":%" PRId64, step, epoch);
    metrics_put_real(out, "eval_loss", eval_loss, EXACT);
    if (scores) {
        metrics_put_real(out, "accuracy", scores->accuracy, EXACT);
        metrics_put_real(out, "f1", scores->f1, EXACT);
    } else if (preference) {
        for (int i = 0; i < PREFERENCE_VALUES; i++)
            if (!isnan(preference[i])) metrics_put_real(out, preferences[i], preference[i], EXACT);
    } else {
        metrics_put_real(out, "perplexity", exp(eval_loss), EXACT);
    }
    fprintf(out, ",\"%s\":%" PRId64, scores || preference ? "eval_samples" : "eval_tokens", targets);
    return line_end(metrics, err);
}

enum status metrics_epoch(struct metrics *m, bool ends, int64_t epoch, int64_t step, double loss, struct error *err)
{
    FILE *out = metrics_line_begin(m);
    fprintf(out, "{\"%s\":%" PRId64 ",\"step\":%" PRId64, ends ? "epoch_end" : "epoch_part", epoch, step);
    metrics_put_real(out, "train_loss", loss, EXACT);
    return line_end(m, err);
}

static json_t *metrics_token_array(const int32_t *tokens, int64_t count)
{
    json_t *array = json_array();
    for (int64_t i = 0; i < count; i++) json_array_append_new(array, json_integer(tokens[i]));
    return array;
}

enum status metrics_sample(struct metrics *metrics, int64_t step, int64_t epoch, const struct sample_metrics *s,
                           struct error *err)
{
    FILE *out = metrics_line_begin(metrics);
    fprintf(out, "{\"step\":%" PRId64 ",\"epoch\":%" PRId64 ",\"sample\":%d", step, epoch, s->number);
    if (s->prompt) {
        metrics_put_json(out, ",", "prompt", json_string(s->prompt));
        metrics_put_json(out, ",", "text", json_string(s->text));
    } else {
        metrics_put_json(out, ",", "prompt_tokens", metrics_token_array(s->prompt_tokens, s->num_prompt));
        metrics_put_json(out, ",", "tokens", metrics_token_array(s->tokens, s->num_tokens));
    }
    return line_end(metrics, err);
}

/* The numbers of the samples from one source of a mixture, or (-1) of all samples. */
static json_t *metrics_sample_numbers(const struct spike_metrics *spike, int source)
{
    json_t *array = json_array();
    for (int64_t i = 0; i < spike->num_samples; i++)
        if (source < 0 || spike->sources[i] == source) json_array_append_new(array, json_integer(spike->samples[i]));
    return array;
}

enum status metrics_spike(struct metrics *metrics, const struct spike_metrics *spike, struct error *err)
{
    FILE *out = metrics_line_begin(metrics);
    json_t *samples = spike->num_sources ? json_object() : metrics_sample_numbers(spike, -1);
    for (int s = 0; s < spike->num_sources; s++)
        json_object_set_new(samples, spike->paths[s], metrics_sample_numbers(spike, s));
    fprintf(out, "{\"loss_spike\":%.*g,\"step\":%" PRId64 ",\"epoch\":%" PRId64, ROUGH, spike->factor, spike->of->step,
            spike->of->epoch);
    metrics_put_real(out, "spike_loss", spike->of->loss, EXACT);
    metrics_put_real(out, "mean_loss", spike->mean, EXACT);
    metrics_put_real(out, "spike_grad_norm", spike->of->grad_norm, EXACT);
    metrics_put_json(out, ",", "samples", samples);
    return line_end(metrics, err);
}

enum status metrics_corruption(struct metrics *metrics, const struct corruption_metrics *m, struct error *err)
{
    FILE *out = metrics_line_begin(metrics);
    fprintf(out, "{\"corruption\":\"%s\",\"step\":%" PRId64, m->what, m->step);
    if (m->other >= 0) {
        fprintf(out, ",\"ranks\":[%d,%d]", m->other, m->rank);
    } else {
        fprintf(out, ",\"rank\":%d", m->rank);
        metrics_put_json(out, ",", "host", json_string(m->host));
    }
    metrics_put_json(out, ",", "tensor", json_string(m->tensor));
    return line_end(metrics, err);
}

enum status metrics_early_stop(struct metrics *m, int64_t step, const struct early_stop *stopping, struct error *err)
{
    FILE *out = metrics_line_begin(m);
    fprintf(out, "{\"early_stop\":\"%s\",\"step\":%" PRId64, eval_metric_name(stopping->metric), step);
    metrics_put_real(out, "best", stopping->best, EXACT);
    fprintf(out, ",\"evaluations\":%" PRId64, stopping->evaluations);
    return line_end(m, err);
}

enum status metrics_checkpoint(struct metrics *metrics, const char *folder, int64_t step, int64_t bytes,
                               double seconds_stalled, double seconds_total, struct error *err)
{
    FILE *out = metrics_line_begin(metrics);
    metrics_put_json(out, "{", "checkpoint", json_string(folder));
    fprintf(out, ",\"step\":%" PRId64 ",\"bytes\":%" PRId64, step, bytes);
    metrics_put_real(out, "seconds_stalled", seconds_stalled, ROUGH);
    metrics_put_real(out, "seconds_total", seconds_total, ROUGH);
    return line_end(metrics, err);
}

enum status metrics_resume(struct metrics *metrics, const char *folder, int64_t step, int ranks, struct error *err)
{
    FILE *out = metrics_line_begin(metrics);
    metrics_put_json(out, "{", "resumed_from", json_string(folder));
    fprintf(out, ",\"step\":%" PRId64 ",\"ranks\":%d", step, ranks);
    return line_end(metrics, err);
}

enum status metrics_kernels_changed(struct metrics *metrics, const char *text, int64_t step, struct error *err)
{
    FILE *out = metrics_line_begin(metrics);
    metrics_put_json(out, "{", "kernels_changed", json_string(text));
    fprintf(out, ",\"step\":%" PRId64, step);
    return line_end(metrics, err);
}

/* kind: "restart" or "gave_up". */
static void metrics_put_failure(FILE *out, const char *kind, int number, int64_t step, int code, const char *cause)
{
    fprintf(out, "{\"%s\":%d,\"step\":%" PRId64 ",\"exit_code\":%d", kind, number, step, code);
    metrics_put_json(out, ",", "cause", json_string(cause));
}

enum status metrics_restart(struct metrics *metrics, int number, int64_t step, int code, const char *cause,
                            struct error *err)
{
    metrics_put_failure(metrics_line_begin(metrics), "restart", number, step, code, cause);
    return line_end(metrics, err);
}

/* Killed ranks may have left half a line at the file's end. */
enum status metrics_gave_up(const char *path, int times, int64_t step, int code, const char *cause, struct error *err)
{
    char last = '\n';
    OWNED char *text = NULL;
    size_t bytes;
    struct stat facts;
    int fd;
    TRY(fs_open_regular(path, O_RDWR | O_APPEND, STATUS_CHECKPOINT, &fd, NULL, err));
    FILE *out = memory_stream(&text, &bytes);
    if (fstat(fd, &facts) == 0 && facts.st_size > 0 && io_pread(fd, &last, 1, facts.st_size - 1) == 1 && last != '\n')
        fputs("\n", out);
    metrics_put_failure(out, "gave_up", times, step, code, cause);
    fputs("}\n", out);
    fclose(out);
    enum status status = fs_write(fd, path, text, bytes, STATUS_CHECKPOINT, err);
    if (io_close(fd) != 0 && status == STATUS_OK)
        status = error_system(err, STATUS_CHECKPOINT, errno, "cannot close '%s'", path);
    return status;
}

enum status metrics_flush(struct metrics *metrics, struct error *err)
{
    struct error local = {.code = STATUS_OK}, *why = err ? err : &local;
    line_queue_drain(&metrics->queue, 0);
    if (FAULT(FSYNC, io_fsync(metrics->fd)) == 0) return STATUS_OK;
    enum status status = error_system(why, STATUS_CHECKPOINT, errno, "cannot flush '%s'", metrics->path);
    if (!error_is_transient(why)) return status;
    log_warn("%s; its newest lines may be lost; training continues", why->text);
    return STATUS_OK;
}
