/* main.c: picks the command, prints the last words, exits. The only file that calls exit(). */
#include "cmd/commands.h"
#include "core/log.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    enum status (*run)(int argc, char **argv, struct error *err);
} commands[] = {
    {"plan", cmd_plan},       {"export", cmd_export}, {"verify", cmd_verify},
    {"inspect", cmd_inspect}, {"doctor", cmd_doctor}, {"version", cmd_version},
};

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is an error of the write, not a death */
    struct error err = {.code = STATUS_OK, .text = ""};
    enum status status = STATUS_OK;
    bool found = false;
    for (size_t i = 0; argc > 1 && i < COUNT_OF(commands) && !found; i++) {
        if (!strcmp(argv[1], commands[i].name)) {
            found = true;
            status = commands[i].run(argc - 1, argv + 1, &err);
        }
    }
    if (!found)
        status = cmd_train(argc, argv, &err);
    if (status != STATUS_OK && err.text[0])
        log_error(&err);
    log_close();
    if (fflush(stdout) && status == STATUS_OK)
        status = STATUS_USAGE; /* what was to be printed is lost */
    exit(status);
}
