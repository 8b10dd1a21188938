/* pattern_program.h: what pattern_compile.c makes of an expression, and pattern.c runs. */
#pragma once

#include "core/text/pattern.h"

enum { PATTERN_NODES = 1024, PATTERN_ITEMS = 4096, PATTERN_MANY = INT32_MAX };

/* A part of a character class: code points first … last, or categories, or white space. */
struct pattern_item {
    bool negated; /* \P{…}, \S, \D */
    bool space;
    uint32_t categories; /* a bit for each general category; 0: the range counts */
    uint32_t first, last;
};

enum pattern_kind {
    PATTERN_MATCH, /* the end */
    PATTERN_CLASS, /* min … max characters of the items */
    PATTERN_FORK,  /* goes to `next`, or else to `other` (-1: there is no other way) */
    PATTERN_LOOK,  /* goes to `next` if what begins at `other` matches here, or, negated, does not */
};

struct pattern_node {
    enum pattern_kind kind;
    bool negated, possessive;
    int32_t min, max;
    int first_item, items;
    uint64_t ascii[2]; /* class: which code points below 128 are in it */
    int next, other;
};

struct pattern {
    struct pattern_node nodes[PATTERN_NODES];
    struct pattern_item items[PATTERN_ITEMS];
    int node_count, item_count, start;
};

/* Whether a code point is in a node's class; the compiler fills `ascii` with it. */
bool pattern_in_class(const struct pattern *pattern, const struct pattern_node *node, uint32_t point);
