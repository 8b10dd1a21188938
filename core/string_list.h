/* SPDX-License-Identifier: Apache-2.0 */
/* string_list.h: a list that owns its strings. {0} is the empty list. */
#pragma once

#include <sys/cdefs.h>

__BEGIN_DECLS

struct string_list {
    int count;
    char **items; /* the array and each string are owned */
};

void string_list_add(struct string_list *list, const char *text); /* a copy */
void string_list_sort(struct string_list *list);
void string_list_release(struct string_list *list);

__END_DECLS
