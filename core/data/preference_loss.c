/* SPDX-License-Identifier: Apache-2.0 */
#include "core/data/preference_loss.h"

/* An answer. */
struct answer {
    int64_t first, end;  /* its rows */
    double logp, tokens; /* of the completion; tokens: at least 1 */
    double score;        /* s */
};

static struct answer answer_of(const struct batch *batch, const float *row_losses, int sequence)
{
    struct answer answer = {batch->seq_start[sequence], batch->seq_start[sequence + 1], 0, 0, 0};
    for (int64_t i = answer.first; i < answer.end; i++) {
        if (!batch->completion[i]) continue;
        answer.logp -= (double)row_losses[i];
        answer.tokens++;
    }
    answer.tokens = fmax(answer.tokens, 1);
    answer.score = answer.logp - (batch->references ? batch->references[sequence] : 0);
    return answer;
}

void preference_kl(const struct batch *batch, const float *row_losses, double sums[2])
{
    for (int s = 1; s < batch->num_seqs; s += 2) sums[0] += answer_of(batch, row_losses, s).score;
    sums[1] += batch->num_seqs / 2;
}

static double sigmoid(double x)
{
    return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x));
}

static double minus_log_sigmoid(double x)
{
    return fmax(-x, 0) + log1p(exp(-fabs(x)));
}

/* A pair's loss, and its gradients by both log-probabilities. */
struct pair_loss {
    double loss, by_chosen, by_rejected;
};

/* Of weight · -log σ(x) + flipped · -log σ(-x) */
static struct pair_loss logistic(double x, double weight, double flipped, double by_chosen, double by_rejected)
{
    const double by_x = flipped * sigmoid(x) - weight * sigmoid(-x);
    return (struct pair_loss){weight * minus_log_sigmoid(x) + flipped * minus_log_sigmoid(-x), by_x * by_chosen,
                              by_x * by_rejected};
}

/* log(1 - exp(x)), x < 0, and its derivative. */
static double log_one_minus_exp(double x, double *slope)
{
    *slope = -1 / expm1(-x);
    return x < -M_LN2 ? log1p(-exp(x)) : log(-expm1(x));
}

static struct pair_loss orpo_loss(const struct preference_settings *s, const struct answer *c, const struct answer *r)
{
    double slope_c, slope_r;
    const double nearly_sure = -0x1p-24; /* of 1 the odds are infinite, and float has nothing between */
    const double mean_c = fmin(c->logp / c->tokens, nearly_sure), mean_r = fmin(r->logp / r->tokens, nearly_sure);
    const double odds = mean_c - mean_r - log_one_minus_exp(mean_c, &slope_c) + log_one_minus_exp(mean_r, &slope_r);
    return logistic(odds, s->beta, 0, (1 - slope_c) / c->tokens, (slope_r - 1) / r->tokens);
}

static struct pair_loss ipo_loss(const struct preference_settings *s, const struct answer *c, const struct answer *r)
{
    const double apart = c->score / c->tokens - r->score / r->tokens - 1 / (2 * s->beta);
    return (struct pair_loss){apart * apart, 2 * apart / c->tokens, -2 * apart / r->tokens};
}

static struct pair_loss pair_loss_of(const struct preference_settings *s, const struct answer *c,
                                     const struct answer *r)
{
    const double beta = s->beta, x = beta * (c->score - r->score), smoothing = s->label_smoothing;
    const double by_c = sigmoid(beta * c->score), by_r = sigmoid(beta * r->score), by_x = sigmoid(x);
    switch (s->loss) {
    case PREFERENCE_IPO: return ipo_loss(s, c, r);
    case PREFERENCE_ORPO: return orpo_loss(s, c, r);
    case PREFERENCE_HINGE: return (struct pair_loss){fmax(1 - x, 0), x < 1 ? -beta : 0, x < 1 ? beta : 0};
    case PREFERENCE_ROBUST:
        return logistic(x, (1 - smoothing) / (1 - 2 * smoothing), -smoothing / (1 - 2 * smoothing), beta, -beta);
    case PREFERENCE_SIMPO:
        return logistic(beta * (c->logp / c->tokens - r->logp / r->tokens) - s->gamma, 1 - smoothing, smoothing,
                        beta / c->tokens, -beta / r->tokens);
    case PREFERENCE_APO_ZERO:
        return (struct pair_loss){1 - by_c + by_r, -beta * by_c * (1 - by_c), beta * by_r * (1 - by_r)};
    case PREFERENCE_APO_DOWN:
        return (struct pair_loss){by_c + 1 - by_x, beta * (by_c * (1 - by_c) - by_x * (1 - by_x)),
                                  beta * by_x * (1 - by_x)};
    default: return logistic(x, 1 - smoothing, smoothing, beta, -beta);
    }
}

static void weigh_answer(const struct batch *batch, const struct answer *answer, double by_logp, float *row_scale)
{
    for (int64_t i = answer->first; row_scale && i < answer->end; i++)
        row_scale[i] = batch->completion[i] ? (float)-by_logp : 0;
}

/* Returns its reward. */
static double count_answer(const struct preference_settings *s, const struct answer *answer, bool chosen, double *sums)
{
    const bool mean = s->loss == PREFERENCE_SIMPO || s->loss == PREFERENCE_ORPO;
    const double logp = mean ? answer->logp / answer->tokens : answer->logp;
    const double reward = s->beta * (mean ? logp : answer->score);
    sums[chosen ? PREFERENCE_SUM_CHOSEN : PREFERENCE_SUM_REJECTED] += reward;
    sums[chosen ? PREFERENCE_SUM_LOGPS_CHOSEN : PREFERENCE_SUM_LOGPS_REJECTED] += logp;
    sums[chosen ? PREFERENCE_SUM_NUM_CHOSEN : PREFERENCE_SUM_NUM_REJECTED]++;
    return reward;
}

static double nll_weight(const struct preference_settings *settings)
{
    return settings->loss == PREFERENCE_ORPO ? 1 : settings->rpo_alpha;
}

/* That of the chosen sequences' targets; orpo: of those of their prompts, too. */
static void add_nll(const struct preference_settings *settings, const struct batch *batch, const float *row_losses,
                    float *row_scale, double *loss, double *sums)
{
    const bool all = settings->loss == PREFERENCE_ORPO;
    double sum = 0;
    const double tokens = (double)batch->step_chosen_tokens;
    const double of_row = tokens > 0 ? nll_weight(settings) * (double)batch->step_targets / tokens : 0;
    for (int s = 0; s + 1 < batch->num_seqs; s += 2)
        for (int i = batch->seq_start[s]; i < batch->seq_start[s + 1]; i++) {
            if (!(all ? batch->targets[i] >= 0 : batch->completion[i])) continue;
            sum += (double)row_losses[i];
            sums[PREFERENCE_SUM_NLL_TOKENS]++;
            if (row_scale) row_scale[i] += (float)of_row;
        }
    sums[PREFERENCE_SUM_NLL] += sum;
    if (row_scale) *loss += of_row * sum;
}

double preference_nll(const struct preference_settings *settings, const double sums[PREFERENCE_SUMS])
{
    const double tokens = sums[PREFERENCE_SUM_NLL_TOKENS];
    return tokens > 0 ? nll_weight(settings) * sums[PREFERENCE_SUM_NLL] / tokens : 0;
}

static void weigh_labelled(const struct preference_settings *s, const struct batch *batch, const float *row_losses,
                           double kl, int sample, float *row_scale, double *loss, double *sums)
{
    const struct answer own = answer_of(batch, row_losses, 2 * sample),
                        mismatched = answer_of(batch, row_losses, 2 * sample + 1);
    const bool chosen = batch->labels[2 * sample] != 0;
    const double weight = chosen ? s->desirable_weight : s->undesirable_weight, sign = chosen ? s->beta : -s->beta;
    const double good = sigmoid(sign * (own.score - kl));
    *loss += weight * (1 - good);
    weigh_answer(batch, &own, -weight * sign * good * (1 - good), row_scale);
    weigh_answer(batch, &mismatched, 0, row_scale);
    count_answer(s, &own, chosen, sums);
    sums[PREFERENCE_SUM_KL] += kl;
}

static void weigh_pair(const struct preference_settings *s, const struct batch *batch, const float *row_losses,
                       int pair, float *row_scale, double *loss, double *sums)
{
    const struct answer c = answer_of(batch, row_losses, 2 * pair), r = answer_of(batch, row_losses, 2 * pair + 1);
    const struct pair_loss of = pair_loss_of(s, &c, &r);
    *loss += of.loss;
    weigh_answer(batch, &c, of.by_chosen, row_scale);
    weigh_answer(batch, &r, of.by_rejected, row_scale);
    const double chosen = count_answer(s, &c, true, sums), rejected = count_answer(s, &r, false, sums);
    sums[PREFERENCE_SUM_ACCURACY] += chosen > rejected;
}

void preference_weigh(const struct preference_settings *settings, const struct batch *batch, const float *row_losses,
                      double kl, float *row_scale, double *loss, double sums[PREFERENCE_SUMS])
{
    for (int64_t i = 0; row_scale && i < batch->num_tokens; i++) row_scale[i] = 0;
    for (int sample = 0; sample < batch->num_seqs / 2; sample++) {
        if (settings->loss == PREFERENCE_KTO)
            weigh_labelled(settings, batch, row_losses, kl, sample, row_scale, loss, sums);
        else
            weigh_pair(settings, batch, row_losses, sample, row_scale, loss, sums);
    }
    if (nll_weight(settings) > 0) add_nll(settings, batch, row_losses, row_scale, loss, sums);
}

void preference_means(const struct preference_settings *settings, const double sums[PREFERENCE_SUMS],
                      double values[PREFERENCE_VALUES])
{
    const double chosen = sums[PREFERENCE_SUM_NUM_CHOSEN], rejected = sums[PREFERENCE_SUM_NUM_REJECTED];
    const bool labelled = settings->loss == PREFERENCE_KTO, reward = settings->loss == PREFERENCE_REWARD;
    values[PREFERENCE_REWARDS_CHOSEN] = sums[PREFERENCE_SUM_CHOSEN] / chosen;
    values[PREFERENCE_REWARDS_REJECTED] = sums[PREFERENCE_SUM_REJECTED] / rejected;
    values[PREFERENCE_REWARDS_ACCURACIES] = labelled ? NAN : sums[PREFERENCE_SUM_ACCURACY] / chosen;
    values[PREFERENCE_REWARDS_MARGINS] = values[PREFERENCE_REWARDS_CHOSEN] - values[PREFERENCE_REWARDS_REJECTED];
    values[PREFERENCE_LOGPS_CHOSEN] = reward ? NAN : sums[PREFERENCE_SUM_LOGPS_CHOSEN] / chosen;
    values[PREFERENCE_LOGPS_REJECTED] = reward ? NAN : sums[PREFERENCE_SUM_LOGPS_REJECTED] / rejected;
    values[PREFERENCE_KL] = labelled ? sums[PREFERENCE_SUM_KL] / (chosen + rejected) : NAN;
}
