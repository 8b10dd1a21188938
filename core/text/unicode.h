/* unicode.h: what Unicode says about characters (unicode_tables.c, made by scripts/make-unicode-tables.py). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* The general categories, in the order of the script's list. */
enum unicode_category {
    UNICODE_CN,
    UNICODE_CC,
    UNICODE_CF,
    UNICODE_CO,
    UNICODE_CS,
    UNICODE_LU,
    UNICODE_LL,
    UNICODE_LT,
    UNICODE_LM,
    UNICODE_LO,
    UNICODE_MN,
    UNICODE_MC,
    UNICODE_ME,
    UNICODE_ND,
    UNICODE_NL,
    UNICODE_NO,
    UNICODE_PC,
    UNICODE_PD,
    UNICODE_PS,
    UNICODE_PE,
    UNICODE_PI,
    UNICODE_PF,
    UNICODE_PO,
    UNICODE_SM,
    UNICODE_SC,
    UNICODE_SK,
    UNICODE_SO,
    UNICODE_ZS,
    UNICODE_ZL,
    UNICODE_ZP,
    UNICODE_CATEGORIES
};
enum unicode_category unicode_category(uint32_t point);

/* The categories that a name like "L" or "Lu" stands for, a bit for each; 0: there is no such name. */
uint32_t unicode_categories_named(const char *name);

/* The property White_Space: \s. */
bool unicode_is_space(uint32_t point);

/* A number of any kind: category N, in the version of Unicode that Rust's library has. */
bool unicode_is_number(uint32_t point);

/* Part of a word: \w, which is Alphabetic, marks, digits, connectors, joiners. */
bool unicode_is_word(uint32_t point);

/* The tables. A run of categories: first code point << 5 | category; it ends where the next begins. */
extern const uint32_t unicode_category_runs[];
extern const int unicode_category_count;

/* Canonical decompositions by code point; second is 0 for a single one. Hangul has none here. */
struct unicode_pair {
    uint32_t point, first, second;
};
extern const struct unicode_pair unicode_pairs[];
extern const int unicode_pair_count;

/* Indices into unicode_pairs of those that are composed again, by (first, second). */
extern const uint16_t unicode_compositions[];
extern const int unicode_composition_count;

/* Code points with a combining class other than 0. */
struct unicode_class_run {
    uint32_t first, last;
    int combining_class;
};
extern const struct unicode_class_run unicode_class_runs[];
extern const int unicode_class_count;
