/* class_scores.h: accuracy and F1 of a classifier, from counts that ranks can add up. */
#pragma once

#include <stdint.h>

struct class_scores {
    double accuracy; /* NAN without samples */
    double f1;       /* two classes: that of class 1; more: the mean over the classes that occur or are predicted */
};

/* counts (3, classes): for each class the samples that are of it and predicted as it, those predicted as it, those of
 * it. */
enum { CLASS_COUNT_ROWS = 3 };

/* Counts one sample of class `label` < classes. Its prediction is the largest of logits (classes), the first of equals.
 */
void class_counts_add(double *counts, int64_t classes, const float *logits, int32_t label);

/* As scikit-learn's accuracy_score and f1_score (average "binary" or "macro", 0 where a class has no prediction and no
 * sample that is found). */
struct class_scores class_scores_of(const double *counts, int64_t classes);
