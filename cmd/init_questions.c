/* SPDX-License-Identifier: Apache-2.0 */
/* init_questions.c: the questions of `ztrain init`, on a terminal. See init.h. */
#include "cmd/init.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/printable.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INIT_TRIES = 3 };

void init_note(const char *format, ...)
{
    char text[1024], line[1100];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    snprintf(line, sizeof line, "ztrain: note: %s", PRINTABLE(text));
    log_line(line);
}

/* A line of the terminal without blanks around it, for free(); ~/ is HOME. NULL: the input ended. */
static char *init_read_answer(void)
{
    char *line = NULL;
    size_t room = 0;
    const ssize_t length = memory_getline(&line, &room, stdin);
    if (length < 0) {
        free(line);
        return NULL;
    }
    char *start = line + strspn(line, " \t");
    size_t end = strlen(start);
    while (end > 0 && strchr(" \t\r\n", start[end - 1]))
        end--;
    start[end] = '\0';
    const char *home = strncmp(start, "~/", 2) == 0 ? getenv("HOME") : NULL;
    char *answer = home ? memory_printf("%s%s", home, start + 1) : memory_text(start);
    free(line);
    return answer;
}

static enum status init_ask(struct init *t, const char *question, const char *usual, init_take *take, struct error *err)
{
    for (int i = 0; i < INIT_TRIES; i++) {
        fprintf(stderr, usual ? "%s [%s]: " : "%s: ", question, usual);
        fflush(stderr);
        char *answer = init_read_answer();
        if (!answer) {
            fputc('\n', stderr);
            error_set(err, STATUS_USAGE, "the input ended at the question '%s'", question);
            return error_hint(err, "flags answer as well: ztrain init --help");
        }
        const enum status status = take(t, *answer || !usual ? answer : usual, err);
        free(answer);
        if (status == STATUS_OK)
            return STATUS_OK;
        fprintf(stderr, "  %s\n", PRINTABLE(err->text));
    }
    error_set(err, STATUS_USAGE, "%d answers to the question '%s' were wrong", INIT_TRIES, question);
    return error_hint(err, "flags answer as well: ztrain init --help");
}

enum status init_take_flag(struct init *t, const char *flag, const char *given, const char *question, const char *usual,
                           init_take *take, struct error *err)
{
    if (!given && question && t->asks)
        return init_ask(t, question, usual, take, err);
    if (!given && !usual) {
        error_set(err, STATUS_USAGE, "--%s is missing", flag);
        return error_hint(err, "ztrain init --model DIR --data PREFIX");
    }
    const enum status status = take(t, given ? given : usual, err);
    if (status == STATUS_OK || strncmp(err->text, "--", 2) == 0) /* gpu_catalog_find() names its option */
        return status;
    return error_prefix(err, "--%s", flag);
}
