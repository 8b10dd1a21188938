/* orthogonalize_reference.h: the op orthogonalize in double, with roundings to bf16 where the op has them. */
#pragma once

#include "core/dtype.h"
#include "core/status.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static inline double reference_halves(double x)
{
    return (double)bf16_to_f32(bf16_from_f32((float)x));
}

/* out (rows, columns) = round(a · base + b · left (rows, inner) · right); right is (inner, columns), or (columns,
 * inner) if transposed. */
static inline void reference_blend(double *out, double a, const double *base, double b, const double *left,
                                   const double *right, bool transposed, int64_t rows, int64_t columns, int64_t inner)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            double sum = 0;
            for (int64_t l = 0; l < inner; l++)
                sum += left[i * inner + l] * right[transposed ? j * inner + l : l * columns + j];
            out[i * columns + j] = reference_halves((a != 0 ? a * base[i * columns + j] : 0) + b * sum);
        }
}

/* y (rows, columns) from x (rows, columns), which are values of bf16; y may be x. */
static inline void reference_orthogonalize(double *y, const double *x, int64_t rows, int64_t columns, int64_t steps)
{
    const bool tall = rows > columns;
    const int64_t numel = rows * columns, n = tall ? columns : rows, k = tall ? rows : columns;
    double *at = calloc((size_t)(2 * numel + 2 * n * n), sizeof *at), *next = at + numel, *gram = next + numel;
    double *polynomial = gram + n * n, sum = 0;
    ASSERT(at);
    for (int64_t i = 0; i < numel; i++)
        sum += x[i] * x[i];
    const double norm = fmax(reference_halves(sqrt(sum)), reference_halves(1e-7));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            at[tall ? j * k + i : i * k + j] = reference_halves(x[i * columns + j] / norm);
    for (int64_t step = 0; step < steps; step++) {
        reference_blend(gram, 0, NULL, 1, at, at, true, n, n, k);
        reference_blend(polynomial, (double)-4.775f, gram, (double)2.0315f, gram, gram, false, n, n, n);
        reference_blend(next, (double)3.4445f, at, 1, polynomial, at, false, n, k, n);
        memcpy(at, next, (size_t)numel * sizeof *at);
    }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            y[i * columns + j] = at[tall ? j * k + i : i * k + j];
    free(at);
}
