/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/model/block_graphs.h"

#include "core/log.h"
#include "core/memory.h"

/* What the ops of a piece read from the pass and the unit, where it is not the same in every call. */
struct piece_key {
    const void *tokens, *numbers; /* the batch's other arrays lie with its tokens */
    struct unit_params params;
    struct unit_grads to;
    int64_t M, num_filler;
    int32_t num_seqs, max_seq;
};

/* M 0: not in use. graph NULL: seen once. */
struct kept_graph {
    struct piece_key key;
    struct graph *graph; /* owned */
};

struct piece {
    struct kept_graph kept[BLOCK_GRAPHS_KEPT];
    int next; /* the entry that is tried first for a new key */
};

struct block_graphs {
    int64_t blocks;
    struct stream *stream; /* borrowed: of the last launch; NULL: none was */
    bool failed;           /* a piece could not be captured */
    struct piece *pieces;  /* (blocks, BLOCK_PIECES) owned */
};

struct block_graphs *block_graphs_new(int64_t blocks)
{
    struct block_graphs *g = memory_zeroed(1, sizeof *g);
    g->blocks = blocks;
    g->pieces = memory_zeroed((size_t)(blocks * BLOCK_PIECES), sizeof *g->pieces);
    return g;
}

void block_graphs_free(struct block_graphs *g)
{
    if (!g) return;
    if (g->stream) stream_sync(g->stream);
    for (int64_t i = 0; i < g->blocks * BLOCK_PIECES; i++)
        for (int k = 0; k < BLOCK_GRAPHS_KEPT; k++) graph_free(g->pieces[i].kept[k].graph);
    free(g->pieces);
    free(g);
}

static struct piece_key block_graph_key(const struct pass *pass, const struct unit *unit)
{
    return (struct piece_key){.params = unit->params,
                              .tokens = pass->batch.tokens,
                              .numbers = pass->batch.numbers,
                              .to = unit->to,
                              .M = pass->M,
                              .num_filler = pass->batch.num_filler,
                              .num_seqs = pass->batch.num_seqs,
                              .max_seq = pass->batch.max_seq};
}

static bool same_block_graph(const struct piece_key *a, const struct piece_key *b)
{
    return memcmp(&a->params, &b->params, sizeof a->params) == 0 && a->tokens == b->tokens &&
           a->numbers == b->numbers && memcmp(a->to.grads, b->to.grads, sizeof a->to.grads) == 0 &&
           memcmp(a->to.matrix_sums, b->to.matrix_sums, sizeof a->to.matrix_sums) == 0 && a->to.adds == b->to.adds &&
           a->to.matrix_adds == b->to.matrix_adds && a->M == b->M && a->num_filler == b->num_filler &&
           a->num_seqs == b->num_seqs && a->max_seq == b->max_seq;
}

/* The entry of the key; NULL: this is its first call, which is noted if an entry has no graph. */
static struct kept_graph *find_or_note(struct piece *piece, const struct piece_key *key)
{
    for (int i = 0; i < BLOCK_GRAPHS_KEPT; i++)
        if (same_block_graph(&piece->kept[i].key, key)) return &piece->kept[i];
    for (int i = 0; i < BLOCK_GRAPHS_KEPT; i++) {
        struct kept_graph *entry = &piece->kept[(piece->next + i) % BLOCK_GRAPHS_KEPT];
        if (entry->graph) continue;
        entry->key = *key;
        piece->next = (piece->next + i + 1) % BLOCK_GRAPHS_KEPT;
        break;
    }
    return NULL;
}

/* The reason why a piece was not captured: an error, or a warning and op by op from now on. */
static enum status block_graphs_give_up(const struct pass *pass, struct error *why)
{
    struct transformer *t = pass->transformer;
    t->graphs->failed = true;
    if (t->config.graphs_demanded) {
        *pass->err = *why;
        return error_hint(pass->err, "train.cuda_graphs: false");
    }
    log_warn("CUDA graphs: none: %s", why->text);
    return STATUS_OK;
}

enum status block_run(const struct pass *pass, const struct unit *unit, int64_t block, enum block_piece which,
                      void (*work)(const struct pass *pass, const struct unit *unit, int64_t block))
{
    struct block_graphs *g = pass->transformer->graphs;
    const struct piece_key key = block_graph_key(pass, unit);
    struct error why = {.code = STATUS_OK};
    struct kept_graph *kept = NULL;
    if (pass->training && pass->transformer->replays && !g->failed)
        kept = find_or_note(&g->pieces[block * BLOCK_PIECES + which], &key);
    if (kept && !kept->graph && graph_begin(&(struct stream *){pass->stream}, 1, &kept->graph, &why) == STATUS_OK) {
        work(pass, unit, block);
        if (graph_end(kept->graph, &why) != STATUS_OK) kept->graph = NULL;
    }
    if (kept && kept->graph) {
        g->stream = pass->stream;
        graph_launch(kept->graph);
        return STATUS_OK;
    }
    if (kept) TRY(block_graphs_give_up(pass, &why));
    work(pass, unit, block);
    return STATUS_OK;
}
