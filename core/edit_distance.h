/* edit_distance.h: how near two names are, for "did you mean …?" */
#ifndef ZTRAIN_CORE_EDIT_DISTANCE_H
#define ZTRAIN_CORE_EDIT_DISTANCE_H

/* Insertions, deletions, replacements and swaps of neighbours that make one name of the other; letters without case;
 * 99 for names of more than 64 bytes. */
int edit_distance(const char *a, const char *b);

/* The largest distance at which another name may be meant. */
int edit_distance_limit(const char *text);

#endif
