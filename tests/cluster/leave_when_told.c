/* leave_when_told.c: a rank that leaves without a word. Loaded with LD_PRELOAD; a thread waits for the file
 * $ZTRAIN_TEST_LEAVE with "RANK CODE" in it, and where the rank is this process's, it ends the process with _exit(CODE). */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *watch(void *unused)
{
    (void)unused;
    const char *path = getenv("ZTRAIN_TEST_LEAVE"), *own = getenv("SLURM_PROCID");
    for (;;) {
        int rank, code;
        FILE *file = fopen(path, "re");
        if (file) {
            if (fscanf(file, "%d %d", &rank, &code) == 2 && rank == atoi(own))
                _exit(code);
            fclose(file);
        }
        usleep(2000);
    }
}

__attribute__((constructor)) static void start(void)
{
    pthread_t thread;
    if (getenv("ZTRAIN_TEST_LEAVE") && getenv("SLURM_STEP_ID") && !strcmp(program_invocation_short_name, "ztrain"))
        pthread_create(&thread, NULL, watch, NULL);
}
