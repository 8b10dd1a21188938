/* SPDX-License-Identifier: Apache-2.0 */
/* data.c: `ztrain data PREFIX…`: what token shards hold, and documents with what is learned in green or ⟦⟧. */
#include "cmd/command_line.h"
#include "cmd/report/terminal.h"
#include "core/data/data_summary.h"
#include "core/data/document_fit.h"
#include "core/spec/spec.h"
#include "core/text/tokenizer.h"

#include <signal.h>

enum {
    MOST_WORDS = 64,
    MOST_SHOWN = 1000,      /* documents */
    SHOWN_TOKENS = 1 << 12, /* of a document */
    SHOWN_LABELS = 20
};

static const char USAGE[] =
    "usage: ztrain data PREFIX… [--seq-length N] [--show N [--tokenizer DIR]]\n\n"
    "Reads token shards, and prints counts, lengths of documents, the largest token id and, with --seq-length, the\n"
    "samples of an epoch. With --show it prints documents: what is learned (PREFIX.mask) is green on a terminal, else\n"
    "in white square brackets.\n\n"
    "  PREFIX           as data.train names shards: a Megatron-LM prefix, an llm.c .bin file, or a glob in quotes\n"
    "  --seq-length N   tokens of a sample (data.seq_length)\n"
    "  --show N         print the first N documents, each up to 4096 tokens; of preference data the first N pairs\n"
    "  --tokenizer DIR  decode them with the tokenizer of a Hugging Face folder (byte-level BPE); byte: ids are "
    "bytes;\n"
    "                   without this option they are printed as ids\n";

struct arguments {
    const char *words[MOST_WORDS];
    const char *seq_length, *show, *tokenizer; /* or NULL */
};

struct data_view {
    struct token_set *set;
    struct label_set *labels;    /* NULL: there are none */
    struct tokenizer *tokenizer; /* NULL: bytes or ids */
    bool bytes;
    bool paired;              /* a chosen document, then the rejected one, as ztrain-tokenize --preference makes them */
    int64_t seq_length, show; /* 0: not asked for */
};

struct shown_document {
    int64_t length, count; /* tokens; those that are read */
    int32_t ids[SHOWN_TOKENS];
    uint8_t mask[SHOWN_TOKENS];
};

static void print_data_counts(const struct data_view *view, const struct data_summary *sum)
{
    const struct length_summary *l = &sum->lengths;
    int shards = 0;
    while (token_set_shard(view->set, shards, &(int64_t){0}, &(int64_t){0})) shards++;
    printf("documents   %s in %d shard%s\n", FIGURE(count, sum->documents), shards, PLURAL(shards));
    printf("tokens      %s\n", FIGURE(count, sum->tokens));
    if (token_set_has_mask(view->set)) {
        printf("learned     %s tokens", FIGURE(count, sum->learned));
        printf(" (%s) by the loss mask", FIGURE(percent, (double)sum->learned / (double)sum->tokens));
        if (sum->unlearned) printf("; nothing in %s document%s", FIGURE(count, sum->unlearned), PLURAL(sum->unlearned));
        putchar('\n');
    }
    printf("vocabulary  largest id %" PRId64 ": the model needs vocab_size %" PRId64 " or more\n", sum->largest_id,
           sum->largest_id + 1);
    printf("lengths     min %s, median %s", FIGURE(count, l->least), FIGURE(count, l->median));
    printf(", 90 %% %s, 99 %% %s, max %s\n", FIGURE(count, l->p90), FIGURE(count, l->p99), FIGURE(count, l->most));
}

/* "LABEL_1" where the shards have no names, as in transformers. */
static const char *data_label_name(const struct label_set *labels, int64_t label, char text[32])
{
    snprintf(text, 32, "%" PRId64, label);
    const char *name = json_string_value(json_object_get(labels->names, text));
    if (!name) snprintf(text, 32, "LABEL_%" PRId64, label);
    return name ? name : text;
}

static bool are_pairs(const struct token_set *set, const struct label_set *labels)
{
    const char *rejected = json_string_value(json_object_get(labels->names, "0"));
    const char *chosen = json_string_value(json_object_get(labels->names, "1"));
    if (!token_set_has_mask(set) || !rejected || !chosen || strcmp(rejected, "rejected") || strcmp(chosen, "chosen"))
        return false;
    int64_t i = 0;
    while (i < labels->documents && labels->labels[i] == (i + 1) % 2) i++;
    return i == labels->documents && i % 2 == 0;
}

static void print_data_labels(const struct label_set *labels)
{
    OWNED int64_t *counts = data_summary_labels(labels);
    int shown = 0;
    printf("labels      %s\n", FIGURE(count, labels->classes));
    for (int64_t i = 0; i < labels->classes && shown < SHOWN_LABELS; i++) {
        char text[32];
        if (!counts[i] && !labels->names) continue;
        printf("  %-24s %s", PRINTABLE(data_label_name(labels, i, text)), FIGURE(count, counts[i]));
        printf(" (%s)\n", FIGURE(percent, (double)counts[i] / (double)labels->documents));
        if (++shown == SHOWN_LABELS && i + 1 < labels->classes)
            printf("  … and labels %" PRId64 " to %" PRId64 "\n", i + 1, labels->classes - 1);
    }
    if (labels->pairs)
        printf("types       %s document%s of two texts\n", FIGURE(count, labels->pairs), PLURAL(labels->pairs));
}

/* ---- documents ----------------------------------------------------------- */

/* Prints tokens that are learned, or not, as one piece. */
static void print_data_piece(const struct data_view *view, const int32_t *ids, int64_t count)
{
    RELEASED(text_release) struct text text = {0};
    char id[16];
    for (int64_t i = 0; i < count && !view->tokenizer; i++) {
        const int bytes = snprintf(id, sizeof id, view->bytes ? "<%" PRId32 ">" : i ? " %" PRId32 : "%" PRId32, ids[i]);
        if (view->bytes && ids[i] < 256)
            text_add(&text, &(char){(char)ids[i]}, 1);
        else
            text_add(&text, id, (size_t)bytes);
    }
    if (view->tokenizer) tokenizer_decode(view->tokenizer, ids, (size_t)count, false, &text);
    printable_put(stdout, text.bytes, text.count);
}

static enum status read_document(const struct data_view *view, int64_t number, struct shown_document *doc,
                                 struct error *err)
{
    int64_t first;
    TRY(token_set_document(view->set, number, &first, &doc->length, err));
    doc->count = doc->length < SHOWN_TOKENS ? doc->length : SHOWN_TOKENS;
    return token_set_read(view->set, first, doc->count, INT32_MAX, doc->ids, doc->mask, err);
}

/* Prints the tokens [first, last), and after the last one how many more there are. */
static void print_data_tokens(const struct data_view *view, const struct shown_document *doc, int64_t first,
                              int64_t last)
{
    const bool masked = token_set_has_mask(view->set), words = !view->tokenizer && !view->bytes;
    for (int64_t i = first, n; i < last; i += n) {
        for (n = 1; i + n < last && doc->mask[i + n] == doc->mask[i];) n++;
        if (i > first && words) putchar(' ');
        fputs(!masked || !doc->mask[i] ? "" : terminal.colour ? "\033[32m" : "⟦", stdout);
        print_data_piece(view, doc->ids + i, n);
        fputs(!masked || !doc->mask[i] ? "" : terminal.colour ? "\033[0m" : "⟧", stdout);
    }
    const int64_t more = last == doc->count ? doc->length - last : 0;
    printf(more ? "\n… %s more tokens\n" : "\n", FIGURE(count, more));
}

static enum status show_document(const struct data_view *view, int64_t number, struct error *err)
{
    struct shown_document doc;
    char label[32];
    TRY(read_document(view, number, &doc, err));
    printf("\ndocument %s: %s token%s", FIGURE(count, number + 1), FIGURE(count, doc.length), PLURAL(doc.length));
    if (view->labels)
        printf(", label %s", PRINTABLE(data_label_name(view->labels, view->labels->labels[number], label)));
    putchar('\n');
    print_data_tokens(view, &doc, 0, doc.count);
    return STATUS_OK;
}

/* The prompt once, then both answers. */
static enum status show_pair(const struct data_view *view, int64_t number, struct error *err)
{
    struct shown_document pair[2];
    int64_t same = 0;
    for (int i = 0; i < 2; i++) TRY(read_document(view, 2 * number + i, &pair[i], err));
    while (same < pair[0].count && same < pair[1].count && pair[0].ids[same] == pair[1].ids[same] &&
           !pair[0].mask[same] && !pair[1].mask[same])
        same++;
    printf("\npair %s: %s and %s tokens\n", FIGURE(count, number + 1), FIGURE(count, pair[0].length),
           FIGURE(count, pair[1].length));
    if (same) print_data_tokens(view, &pair[0], 0, same);
    for (int i = 0; i < 2; i++) {
        puts(i ? "rejected" : "chosen");
        print_data_tokens(view, &pair[i], same, pair[i].count);
    }
    return STATUS_OK;
}

static enum status show_data(const struct arguments *a, struct data_view *view, struct error *err)
{
    struct data_summary sum;
    int words = 0;
    while (words < MOST_WORDS && a->words[words]) words++;
    TRY(option_integer("seq-length", a->seq_length, "a number", 1, INT32_MAX, &view->seq_length, err));
    TRY(option_integer("show", a->show, "a number", 1, MOST_SHOWN, &view->show, err));
    if (a->tokenizer && !view->show)
        return error_set(err, STATUS_USAGE, "--tokenizer decodes what --show prints; hint: --show 3");
    view->bytes = a->tokenizer && !strcmp(a->tokenizer, "byte");
    if (a->tokenizer && !view->bytes && tokenizer_folder_open(a->tokenizer, &view->tokenizer, err) != STATUS_OK)
        return err->code == STATUS_USAGE ? error_hint(err, "without --tokenizer, documents are printed as token ids")
                                         : err->code;
    for (int i = 0; i < words; i++) {
        const size_t stem = spec_text_stem(a->words[i]);
        if (stem > 0 && fs_exists(a->words[i])) {
            error_set(err, STATUS_DATA, "'%s' is text, and not token shards", PRINTABLE(a->words[i]));
            return error_hint(err, "ztrain-tokenize makes shards of it: --output %.*s", (int)stem, a->words[i]);
        }
    }
    TRY(token_set_open(a->words, words, &view->set, err));
    TRY(label_set_find(view->set, &view->labels, err));
    TRY(data_summary_read(view->set, view->seq_length, &sum, err));
    signal(SIGPIPE, SIG_DFL); /* a reader that has seen enough (head) ends this without a message */
    print_data_counts(view, &sum);
    if (view->seq_length) {
        RELEASED(first_fit_drop) struct first_fit *fit = NULL;
        const int64_t longer = sum.lengths.longer;
        TRY(first_fit_new(view->set, view->seq_length, &fit, err));
        printf("seq_length  %s: %s document%s", FIGURE(count, view->seq_length), FIGURE(count, longer), PLURAL(longer));
        printf(" (%s) %s longer\n", FIGURE(percent, (double)longer / (double)sum.documents),
               longer == 1 ? "is" : "are");
        printf("epoch       samples by data.packing: true %s",
               FIGURE(count, token_set_samples(view->set, view->seq_length, true)));
        printf(", first_fit %s, false %s\n", FIGURE(count, fit->samples),
               FIGURE(count, token_set_samples(view->set, view->seq_length, false)));
    }
    view->paired = view->labels && are_pairs(view->set, view->labels);
    const int64_t documents = token_set_documents(view->set), pieces = view->paired ? documents / 2 : documents;
    const int64_t shown = view->show < pieces ? view->show : pieces;
    if (view->paired)
        printf("pairs       %s: a chosen document, then the rejected one\n", FIGURE(count, pieces));
    else if (view->labels)
        print_data_labels(view->labels);
    if (shown && token_set_has_mask(view->set))
        printf("\n%s is learned\n", terminal.colour ? "what is green" : "what stands between ⟦ and ⟧");
    for (int64_t i = 0; i < shown; i++) TRY((view->paired ? show_pair : show_document)(view, i, err));
    return STATUS_OK;
}

enum status cmd_data(int argc, char **argv, struct error *err)
{
    struct arguments arguments = {.words = {NULL}};
    static const struct option_row options[] = {OPTION(struct arguments, seq_length, "seq-length", "N"),
                                                OPTION(struct arguments, show, "show", "N"),
                                                OPTION(struct arguments, tokenizer, "tokenizer", "DIR")};
    static const struct command_line line = {
        "data", USAGE, "shard", MOST_WORDS, "ztrain data PREFIX --show 3", options, COUNT_OF(options)};
    TRY(command_line_parse(&line, argc, argv, &arguments, err));
    struct data_view view = {.set = NULL};
    terminal_start();
    const enum status status = show_data(&arguments, &view, err);
    label_set_close(view.labels);
    tokenizer_free(view.tokenizer);
    token_set_close(view.set);
    return status;
}
