#include "core/text/nfc.h"

#include "core/memory.h"
#include "core/text/unicode.h"
#include "core/text/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { /* Hangul syllables are composed by a formula */
       L_BASE = 0x1100,
       V_BASE = 0x1161,
       T_BASE = 0x11a7,
       S_BASE = 0xac00,
       L_COUNT = 19,
       V_COUNT = 21,
       T_COUNT = 28,
       S_COUNT = L_COUNT * V_COUNT * T_COUNT,
       FIRST_TO_CHANGE = 0xc0, /* code points below stand for themselves */
       LONG_RUN = 32
};

struct character {
    uint32_t point;
    int combining_class;
};

/* A character without a combining class and the marks after it: what is ordered and composed together, with the
 * character before it. */
struct run {
    struct character *items; /* own */
    size_t count, room;
    struct character *spare; /* own, for sorting */
    size_t spare_room;
};

/* ---- look-ups ------------------------------------------------------------ */

static int combining_class(uint32_t point)
{
    int low = 0, high = unicode_class_count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (unicode_class_runs[middle].last < point)
            low = middle + 1;
        else
            high = middle;
    }
    return low < unicode_class_count && unicode_class_runs[low].first <= point ? unicode_class_runs[low].combining_class
                                                                               : 0;
}

static const struct unicode_pair *decomposition(uint32_t point)
{
    int low = 0, high = unicode_pair_count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (unicode_pairs[middle].point < point)
            low = middle + 1;
        else
            high = middle;
    }
    return low < unicode_pair_count && unicode_pairs[low].point == point ? &unicode_pairs[low] : NULL;
}

static uint32_t compose_hangul(uint32_t first, uint32_t second)
{
    if (first >= L_BASE && first < L_BASE + L_COUNT && second >= V_BASE && second < V_BASE + V_COUNT)
        return S_BASE + ((first - L_BASE) * V_COUNT + (second - V_BASE)) * T_COUNT;
    if (first >= S_BASE && first < S_BASE + S_COUNT && (first - S_BASE) % T_COUNT == 0 && second > T_BASE &&
        second < T_BASE + T_COUNT)
        return first + (second - T_BASE);
    return 0;
}

/* The character that two make; 0: none. */
static uint32_t compose(uint32_t first, uint32_t second)
{
    uint32_t hangul = compose_hangul(first, second);
    int low = 0, high = unicode_composition_count;
    while (!hangul && low < high) {
        int middle = (low + high) / 2;
        const struct unicode_pair *pair = &unicode_pairs[unicode_compositions[middle]];
        if (pair->first < first || (pair->first == first && pair->second < second))
            low = middle + 1;
        else
            high = middle;
    }
    if (hangul || low == unicode_composition_count)
        return hangul;
    const struct unicode_pair *pair = &unicode_pairs[unicode_compositions[low]];
    return pair->first == first && pair->second == second ? pair->point : 0;
}

/* ---- a run --------------------------------------------------------------- */

/* Stable, by counting: a run of marks may be as long as the text. */
static void sort_marks(struct run *run, size_t first, size_t count)
{
    size_t starts[257] = {0};
    struct character *marks = run->items + first;
    if (count > run->spare_room) {
        run->spare_room = 2 * count;
        run->spare = memory_resize(run->spare, run->spare_room * sizeof *run->spare);
    }
    for (size_t i = 0; i < count; i++)
        starts[marks[i].combining_class + 1]++;
    for (int class = 0; class < 256; class ++)
        starts[class + 1] += starts[class];
    for (size_t i = 0; i < count; i++)
        run->spare[starts[marks[i].combining_class]++] = marks[i];
    memcpy(marks, run->spare, count * sizeof *marks);
}

static void order_marks(struct run *run)
{
    size_t first = run->count && run->items[0].combining_class == 0;
    bool ordered = true;
    for (size_t i = first + 1; i < run->count; i++)
        ordered = ordered && run->items[i - 1].combining_class <= run->items[i].combining_class;
    if (!ordered)
        sort_marks(run, first, run->count - first);
}

/* Composes the marks with the character before them, each unless another mark of its class is in between. */
static void compose_marks(struct run *run)
{
    if (!run->count || run->items[0].combining_class != 0)
        return;
    size_t kept = 1;
    int last_class = 0;
    for (size_t i = 1; i < run->count; i++) {
        struct character mark = run->items[i];
        uint32_t composed = last_class < mark.combining_class ? compose(run->items[0].point, mark.point) : 0;
        if (composed) {
            run->items[0].point = composed;
        } else {
            run->items[kept++] = mark;
            last_class = mark.combining_class;
        }
    }
    run->count = kept;
}

static void write_run(struct run *run, struct text *out)
{
    for (size_t i = 0; i < run->count; i++) {
        char bytes[UTF8_MAX];
        text_add(out, bytes, (size_t)utf8_put(run->items[i].point, bytes));
    }
    run->count = 0;
}

static void push(struct run *run, struct character character)
{
    if (run->count == run->room) {
        run->room = run->room ? 2 * run->room : LONG_RUN;
        run->items = memory_resize(run->items, run->room * sizeof *run->items);
    }
    run->items[run->count++] = character;
}

/* Takes a decomposed character. One of class 0 closes the run before it, unless the two compose. */
static void take_point(struct run *run, uint32_t point, struct text *out)
{
    struct character character = {point, combining_class(point)};
    if (character.combining_class == 0 && run->count) {
        order_marks(run);
        compose_marks(run);
        uint32_t composed =
            run->count == 1 && run->items[0].combining_class == 0 ? compose(run->items[0].point, point) : 0;
        if (composed) {
            run->items[0].point = composed;
            return;
        }
        write_run(run, out);
    }
    push(run, character);
}

static void take_decomposed(struct run *run, uint32_t point, struct text *out)
{
    if (point >= S_BASE && point < S_BASE + S_COUNT) {
        uint32_t order = point - S_BASE, tail = order % T_COUNT;
        take_point(run, L_BASE + order / (V_COUNT * T_COUNT), out);
        take_point(run, V_BASE + order % (V_COUNT * T_COUNT) / T_COUNT, out);
        if (tail)
            take_point(run, T_BASE + tail, out);
        return;
    }
    const struct unicode_pair *pair = point < FIRST_TO_CHANGE ? NULL : decomposition(point);
    if (!pair) {
        take_point(run, point, out);
        return;
    }
    take_decomposed(run, pair->first, out); /* four times at most */
    if (pair->second)
        take_decomposed(run, pair->second, out);
}

void nfc_add(const char *text, size_t count, struct text *out)
{
    struct run run = {0};
    for (size_t at = 0; at < count;) {
        int length;
        uint32_t point = utf8_at(text + at, &length);
        at += (size_t)length;
        take_decomposed(&run, point, out);
    }
    order_marks(&run);
    compose_marks(&run);
    write_run(&run, out);
    free(run.items);
    free(run.spare);
}
