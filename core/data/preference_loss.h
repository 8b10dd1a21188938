/* SPDX-License-Identifier: Apache-2.0 */
/* preference_loss.h: the losses of pairs of answers, from the log-probabilities of their tokens (TRL's DPOTrainer,
 * CPOTrainer, ORPOTrainer and KTOTrainer).
 *
 *     lp    the sum over a completion's tokens of log p; l̄p their mean      s   lp - the reference's lp
 *     Δ     s_c - s_r, of the chosen and the rejected answer                Δ̄   the same of means per token
 *
 *     sigmoid    -(1 - ε) log σ(βΔ) - ε log σ(-βΔ)              robust     the same with -ε for ε, over 1 - 2ε
 *     hinge      max(0, 1 - βΔ)                                 ipo        (Δ̄ - 1 / 2β)²
 *     simpo      sigmoid's with β (l̄p_c - l̄p_r) - γ for βΔ      apo_zero   1 - σ(β s_c) + σ(β s_r)
 *     apo_down   σ(β s_c) + 1 - σ(βΔ)
 *     orpo       NLL - β log σ(log odds of l̄p_c - log odds of l̄p_r), NLL the mean over the chosen prompts and answers
 *     kto        w_d (1 - σ(β (s - kl))), w_u (1 - σ(β (kl - s))), kl the mean s of mismatched answers, 0 or more
 *
 * rpo_alpha adds rpo_alpha · NLL of the chosen answers. NLLs are means over the tokens of a step, or of an evaluation:
 * TRL has those of a micro-batch, which depend on the accumulation and on the ranks. */
#pragma once

#include "core/data/token_stream.h"

/* Sums over samples, and of how many: those of KTO have one label. */
enum preference_sum {
    PREFERENCE_SUM_CHOSEN, /* rewards: β s; simpo, orpo: β l̄p */
    PREFERENCE_SUM_REJECTED,
    PREFERENCE_SUM_LOGPS_CHOSEN, /* lp; simpo, orpo: l̄p */
    PREFERENCE_SUM_LOGPS_REJECTED,
    PREFERENCE_SUM_ACCURACY, /* the chosen answer's reward is the larger one */
    PREFERENCE_SUM_KL,       /* the same in all samples of a micro-batch */
    PREFERENCE_SUM_NUM_CHOSEN,
    PREFERENCE_SUM_NUM_REJECTED,
    PREFERENCE_SUM_NLL, /* of tokens, and their number */
    PREFERENCE_SUM_NLL_TOKENS,
    PREFERENCE_SUMS
};

/* What NLL adds to the mean loss of an evaluation. */
double preference_nll(const struct preference_settings *settings, const double sums[PREFERENCE_SUMS]);

/* Means over samples; NAN: KTO has no accuracies, pairs no KL, reward models no log-probabilities. */
void preference_means(const struct preference_settings *settings, const double sums[PREFERENCE_SUMS],
                      double values[PREFERENCE_VALUES]);

/* KTO: adds to sums[0] s of the mismatched answers of a micro-batch, to sums[1] their number. row_losses (M): -log p of
 * the targets, 0 without one. */
void preference_kl(const struct batch *batch, const float *row_losses, double sums[2]);

/* Adds to *loss the losses of a micro-batch's samples, and to `sums`. kl: KTO's. row_scale (M): the gradient of the
 * losses by that of each row; NULL in an evaluation, whose *loss has no NLL. */
void preference_weigh(const struct preference_settings *settings, const struct batch *batch, const float *row_losses,
                      double kl, float *row_scale, double *loss, double sums[PREFERENCE_SUMS]);
