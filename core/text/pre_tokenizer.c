#include "core/text/pre_tokenizer.h"

void pre_tokenizer_release(struct pre_tokenizer *cutter)
{
    for (int i = 0; i < cutter->count; i++)
        pattern_free(cutter->cuts[i].pattern);
    cutter->count = 0;
}

/* A word on its way through the steps from `step` on. */
struct way {
    const struct pre_tokenizer *cutter;
    int step;
    word_taker *take;
    void *context;
    struct error *err;
};

static enum status run_step(struct way way, const char *text, size_t bytes);

static enum status next_step(struct way way, const char *text, size_t bytes)
{
    way.step++;
    return bytes ? run_step(way, text, bytes) : STATUS_OK;
}

static enum status cut_by_pattern(struct way way, const struct cut *cut, const char *text, size_t bytes)
{
    struct pattern_search search = {0};
    size_t done = 0, start, end;
    for (;;) {
        TRY(pattern_next(cut->pattern, text, bytes, &search, &start, &end, way.err));
        bool last = start > bytes;
        if (!cut->drop_others)
            TRY(next_step(way, text + done, (last ? bytes : start) - done));
        if (last)
            return STATUS_OK;
        if (!cut->drop_matches)
            TRY(next_step(way, text + start, end - start));
        done = end;
    }
}

static enum status prefix_space(struct way way, const char *text, size_t bytes)
{
    if (text[0] == ' ')
        return next_step(way, text, bytes);
    struct text longer = {0};
    text_add(&longer, " ", 1);
    text_add(&longer, text, bytes);
    enum status status = next_step(way, longer.bytes, longer.count);
    text_release(&longer);
    return status;
}

static enum status run_step(struct way way, const char *text, size_t bytes)
{
    if (way.step == way.cutter->count) {
        way.take(way.context, text, bytes);
        return STATUS_OK;
    }
    const struct cut *cut = &way.cutter->cuts[way.step];
    return cut->pattern ? cut_by_pattern(way, cut, text, bytes) : prefix_space(way, text, bytes);
}

enum status pre_tokenizer_run(const struct pre_tokenizer *cutter, const char *text, size_t bytes, word_taker *take,
                              void *context, struct error *err)
{
    return bytes ? run_step((struct way){cutter, 0, take, context, err}, text, bytes) : STATUS_OK;
}
