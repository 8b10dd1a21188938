/* train_sources.h: the data of data.train, opened: one stream of shards, or the sources of a mixture. */
#pragma once

#include "core/data/token_stream.h"
#include "core/spec/spec.h"

struct train_sources {
    int count; /* 1 unless a mixture */
    struct token_set *sets[SPEC_MAX_SOURCES];
    struct label_set *labels[SPEC_MAX_SOURCES]; /* of a classifier's documents; else NULL */
    struct first_fit *fits[SPEC_MAX_SOURCES];   /* the caller's to fill, with data.packing first_fit; else NULL */
    struct data_fingerprint fingerprint;        /* of all data in order, and of the weights or epochs of a mixture */
};

/* Opens everything that data.train names, checks a sample of every shard against the vocabulary, and reads a
 * classifier's labels. STATUS_DATA: token_set_open(), token_set_check(), label_set_open(); a shard is in two sources;
 * two sources name their labels differently. On failure too, the caller releases `sources`. */
enum status train_sources_open(const struct run_spec *spec, int64_t vocab_size, struct train_sources *sources,
                               struct error *err);
void train_sources_release(struct train_sources *sources); /* all zero: nothing */

/* Whether data.train has a loss mask, from the names and headers of its files. Data that cannot be opened count as
 * data without one: a plan needs no data, and train_sources_open() reports the error. */
bool train_sources_probe_mask(const struct run_spec *spec);

/* Whether any of them has a loss mask. */
bool train_sources_have_mask(const struct train_sources *sources);

/* *labels: of a classifier's data.train, the most that any source has. */
enum status train_sources_count_labels(const struct run_spec *spec, int64_t *labels, struct error *err);

/* How a mixture takes its samples; config: how they are packed (the source and mixture in it are not read).
 * STATUS_DATA: a source has no whole sample, or its epochs are less than one. */
enum status train_sources_mix(const struct train_sources *sources, const struct run_spec *spec,
                              const struct token_stream_config *config, struct mixture *mixture, struct error *err);

/* Logs each source of a mixture: its samples, and what an epoch of the run takes of them. */
void train_sources_print(const struct run_spec *spec, const struct mixture *mixture);
