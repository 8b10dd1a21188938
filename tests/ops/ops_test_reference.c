/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/ops/ops_test.h"

#include <math.h>
#include <stdlib.h>

double ref_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

double ref_gelu(double x, bool erf_form)
{
    if (erf_form) return 0.5 * x * erfc(-x / sqrt(2));
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

double ref_gelu_grad(double x, bool erf_form)
{
    if (erf_form) return 0.5 * erfc(-x / sqrt(2)) + x * exp(-0.5 * x * x) / sqrt(2 * M_PI);
    double t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

void ref_linear(int64_t M, int64_t N, int64_t K, bool in_out, const double *x, const double *w, const double *b,
                double *y)
{
    for (int64_t i = 0; i < M; i++) {
        for (int64_t j = 0; j < N; j++) {
            double sum = b ? b[j] : 0;
            for (int64_t l = 0; l < K; l++) sum += x[i * K + l] * (in_out ? w[l * N + j] : w[j * K + l]);
            y[i * N + j] = sum;
        }
    }
}

void ref_norm(bool rms, int64_t M, int64_t C, double eps, const double *x, const double *w, const double *b, double *y,
              double *mean, double *rstd)
{
    for (int64_t i = 0; i < M; i++) {
        const double *row = x + i * C;
        double m = 0, v = 0;
        for (int64_t j = 0; j < C && !rms; j++) m += row[j] / (double)C;
        for (int64_t j = 0; j < C; j++) v += (row[j] - m) * (row[j] - m) / (double)C;
        double r = 1 / sqrt(v + eps);
        for (int64_t j = 0; j < C; j++) y[i * C + j] = (row[j] - m) * r * w[j] + (b ? b[j] : 0);
        if (mean) mean[i] = m;
        if (rstd) rstd[i] = r;
    }
}

void ref_norm_bwd(bool rms, int64_t M, int64_t C, const double *x, const double *w, const double *dy,
                  const double *mean, const double *rstd, double *dx, double *dw, double *db)
{
    for (int64_t i = 0; i < M; i++) {
        double sum_g = 0, sum_gn = 0, m = rms ? 0 : mean[i];
        for (int64_t j = 0; j < C; j++) {
            double d = dy[i * C + j], n = (x[i * C + j] - m) * rstd[i];
            sum_g += rms ? 0 : d * w[j];
            sum_gn += d * w[j] * n;
            dw[j] += d * n;
            if (db) db[j] += d;
        }
        for (int64_t j = 0; j < C; j++) {
            double n = (x[i * C + j] - m) * rstd[i];
            dx[i * C + j] = rstd[i] * (dy[i * C + j] * w[j] - sum_g / (double)C - n * sum_gn / (double)C);
        }
    }
}

void ref_rope(int64_t M, int64_t heads, int64_t D, int64_t R, int64_t ld, double *x, const int32_t *positions,
              const double *cosines, const double *sines, bool inverse, bool pairs)
{
    for (int64_t i = 0; i < M; i++) {
        for (int64_t h = 0; h < heads; h++) {
            double *v = x + i * ld + h * D;
            for (int64_t j = 0; j < R / 2; j++) {
                double c = cosines[positions[i] * (R / 2) + j], s = sines[positions[i] * (R / 2) + j];
                double *a = &v[pairs ? 2 * j : j], *b = &v[pairs ? 2 * j + 1 : j + R / 2], low = *a, high = *b;
                s = inverse ? -s : s;
                *a = low * c - high * s;
                *b = high * c + low * s;
            }
        }
    }
}

/* What the softmax is taken of. */
static double capped(const struct ref_attention *a, double score)
{
    return a->cap > 0 ? a->cap * tanh(score * a->scale / a->cap) : score * a->scale;
}

/* The derivative of capped() with respect to the score of two rows. */
static double capped_slope(const struct ref_attention *a, const double *q, const double *k)
{
    double score = 0;
    for (int64_t j = 0; j < a->D; j++) score += q[j] * k[j];
    double c = a->cap > 0 ? cosh(score * a->scale / a->cap) : 1;
    return a->scale / (c * c);
}

/* The last key that a row of sequence s sees. */
static int64_t last_key(const struct ref_attention *a, int s, int64_t row)
{
    return a->bidirectional ? a->seq_start[s + 1] - 1 : row;
}

/* Probabilities of one row's keys, first … last; returns the log of the sum of exponentials. */
static double probabilities(const struct ref_attention *a, int64_t start, int64_t row, int64_t last, int64_t h,
                            int64_t *first, double *p)
{
    const double *q = a->q + row * a->ld_q + h * a->D;
    int64_t kv = h / (a->H / a->KV);
    *first = a->window > 0 && row - a->window + 1 > start ? row - a->window + 1 : start;
    double highest = a->sinks ? a->sinks[h] : -INFINITY;
    for (int64_t key = *first; key <= last; key++) {
        const double *k = a->k + key * a->ld_k + kv * a->D;
        double score = 0;
        for (int64_t j = 0; j < a->D; j++) score += q[j] * k[j];
        p[key - *first] = capped(a, score);
        highest = fmax(highest, p[key - *first]);
    }
    double sum = a->sinks ? exp(a->sinks[h] - highest) : 0;
    for (int64_t key = *first; key <= last; key++) sum += exp(p[key - *first] - highest);
    for (int64_t key = *first; key <= last; key++) p[key - *first] = exp(p[key - *first] - highest) / sum;
    return highest + log(sum);
}

static double kept(const struct ref_attention *a, int64_t start, int64_t row, int64_t key, int64_t h)
{
    return a->kept ? a->kept(start, row - start, key - start, h) : 1;
}

void ref_attention(const struct ref_attention *a, double *out, double *lse)
{
    double *p = malloc((size_t)(a->M + 1) * sizeof *p);
    for (int s = 0; s < a->num_seqs; s++) {
        for (int64_t row = a->seq_start[s]; row < a->seq_start[s + 1]; row++) {
            for (int64_t h = 0; h < a->H; h++) {
                int64_t first, last = last_key(a, s, row), kv = h / (a->H / a->KV);
                double *o = out + row * a->ld_o + h * a->D;
                double l = probabilities(a, a->seq_start[s], row, last, h, &first, p);
                if (lse) lse[h * a->M + row] = l;
                for (int64_t key = first; key <= last; key++) p[key - first] *= kept(a, a->seq_start[s], row, key, h);
                for (int64_t j = 0; j < a->D; j++) {
                    o[j] = 0;
                    for (int64_t key = first; key <= last; key++)
                        o[j] += p[key - first] * a->v[key * a->ld_v + kv * a->D + j];
                }
            }
        }
    }
    free(p);
}

void ref_attention_bwd(const struct ref_attention *a, const double *dout, double *dq, double *dk, double *dv)
{
    double *p = malloc((size_t)(2 * a->M + 2) * sizeof *p), *dp = p + a->M + 1;
    for (int64_t i = 0; i < a->M; i++) {
        for (int64_t j = 0; j < a->H * a->D; j++) dq[i * a->ld_q + j] = 0;
        for (int64_t j = 0; j < a->KV * a->D; j++) dk[i * a->ld_k + j] = dv[i * a->ld_v + j] = 0;
    }
    for (int s = 0; s < a->num_seqs; s++) {
        for (int64_t row = a->seq_start[s]; row < a->seq_start[s + 1]; row++) {
            for (int64_t h = 0; h < a->H; h++) {
                int64_t first, last = last_key(a, s, row), kv = h / (a->H / a->KV);
                const double *d = dout + row * a->ld_o + h * a->D;
                double delta = 0;
                probabilities(a, a->seq_start[s], row, last, h, &first, p);
                for (int64_t key = first; key <= last; key++) {
                    const double factor = kept(a, a->seq_start[s], row, key, h);
                    dp[key - first] = 0;
                    for (int64_t j = 0; j < a->D; j++) {
                        dp[key - first] += factor * d[j] * a->v[key * a->ld_v + kv * a->D + j];
                        dv[key * a->ld_v + kv * a->D + j] += factor * p[key - first] * d[j];
                    }
                    delta += p[key - first] * dp[key - first];
                }
                for (int64_t key = first; key <= last; key++) {
                    double slope = capped_slope(a, a->q + row * a->ld_q + h * a->D, a->k + key * a->ld_k + kv * a->D);
                    double ds = p[key - first] * (dp[key - first] - delta) * slope;
                    for (int64_t j = 0; j < a->D; j++) {
                        dq[row * a->ld_q + h * a->D + j] += ds * a->k[key * a->ld_k + kv * a->D + j];
                        dk[key * a->ld_k + kv * a->D + j] += ds * a->q[row * a->ld_q + h * a->D + j];
                    }
                }
            }
        }
    }
    free(p);
}
