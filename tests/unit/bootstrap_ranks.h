/* bootstrap_ranks.h: processes of a test that are ranks of a launcher: the test program again, with a launcher's
 * variables and with fake_pmi.c instead of the launcher's library. */
#pragma once

#include "core/status.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PLAY_MAX = 8, PLAY_SECONDS = 60 };

static const char play_secret[] = "00112233445566778899aabbccddeeffffeeddccbbaa99887766554433221100";

enum play_launcher { BY_PMI2, BY_PMIX, BY_SRUN_NONE, BY_TORCHRUN, BY_COUNT };
static const char *const play_launchers[] = {"srun --mpi=pmi2", "srun --mpi=pmix", "srun --mpi=none", "torchrun"};
_Static_assert(COUNT_OF(play_launchers) == BY_COUNT, "every launcher has a name");

/* A job of `world` processes that run `scene`. */
struct play {
    enum play_launcher launcher;
    int world;
    const char *scene;
    const int *nodes;     /* (world) SLURM_NODEID or GROUP_RANK; NULL: all 0 */
    const char *fake;     /* FAKE_PMI, or NULL */
    int lacking_fd;       /* PMI_FD of rank 1, which has no library; 0: it has one */
    const char *extra[8]; /* more variables: name, value ("-": unset), … */
    char folder[64];      /* of fake_pmi.c, with the ranks' output: said.R */
    pid_t pids[PLAY_MAX];
    int codes[PLAY_MAX]; /* exit codes, 128 + signal */
};

static char play_libraries[64]; /* folder of the two libraries */

/* Removes every variable that bootstrap.c looks at. */
static inline void clear_launchers(void)
{
    static const char *const prefixes[] = {
        "SLURM",  "PMI",     "OMPI_",     "RANK=", "WORLD_SIZE=",   "LOCAL_RANK=", "LOCAL_WORLD_SIZE=",
        "GROUP_", "MASTER_", "MPI_LOCAL", "OMP_",  "TORCHELASTIC_", "ZTRAIN_",     "FAKE_PMI"};
    extern char **environ;
    for (int i = 0; environ[i];) {
        char name[128];
        bool ours = false;
        for (size_t p = 0; p < COUNT_OF(prefixes) && !ours; p++)
            ours = !strncmp(environ[i], prefixes[p], strlen(prefixes[p]));
        snprintf(name, sizeof name, "%.*s", (int)strcspn(environ[i], "="), environ[i]);
        if (ours)
            unsetenv(name); /* environ[i] is the next one now */
        else
            i++;
    }
}

static inline void set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static inline void become_player(const struct play *play, int rank)
{
    int node = play->nodes ? play->nodes[rank] : 0;
    clear_launchers();
    setenv("LD_LIBRARY_PATH", play_libraries, 1);
    setenv("FAKE_PMI_DIR", play->folder, 1);
    if (play->fake)
        setenv("FAKE_PMI", play->fake, 1);
    if (play->launcher == BY_TORCHRUN) {
        set_number("RANK", rank);
        set_number("WORLD_SIZE", play->world);
        set_number("GROUP_RANK", node);
        setenv("MASTER_ADDR", "127.0.0.1", 1);
        setenv("TORCHELASTIC_RUN_ID", play->folder, 1);
    } else {
        set_number("SLURM_JOB_ID", (int)getppid());
        setenv("SLURM_STEP_ID", "3", 1);
        set_number("SLURM_PROCID", rank);
        set_number("SLURM_STEP_NUM_TASKS", play->world);
        set_number("SLURM_NODEID", node);
        setenv("SLURM_STEP_NODELIST", "localhost", 1);
    }
    if (play->launcher == BY_SRUN_NONE || play->launcher == BY_TORCHRUN)
        setenv("ZTRAIN_JOB_SECRET", play_secret, 1);
    if (play->launcher == BY_PMI2) {
        set_number("PMI_RANK", rank);
        set_number("PMI_SIZE", play->world);
        set_number("PMI_FD", open("/dev/null", O_RDWR));
    }
    if (play->lacking_fd && rank == 1) {
        char path[96];
        snprintf(path, sizeof path, "%s/BROKEN", play_libraries);
        setenv("LD_LIBRARY_PATH", path, 1);
        set_number("PMI_FD", play->lacking_fd);
    }
    if (play->launcher == BY_PMIX) {
        set_number("PMIX_RANK", rank);
        setenv("PMIX_NAMESPACE", "test", 1);
    }
    for (int i = 0; i < 8 && play->extra[i]; i += 2)
        if (strcmp(play->extra[i + 1], "-") != 0)
            setenv(play->extra[i], play->extra[i + 1], 1);
        else
            unsetenv(play->extra[i]);
}

static inline void play_start(struct play *play)
{
    if (!play->folder[0]) {
        snprintf(play->folder, sizeof play->folder, "/tmp/ztrain-boot-XXXXXX");
        if (!mkdtemp(play->folder))
            abort();
    }
    for (int r = 0; r < play->world; r++) {
        play->pids[r] = fork();
        if (play->pids[r] == 0) {
            become_player(play, r);
            alarm(PLAY_SECONDS);
            execl("/proc/self/exe", "test", play->scene, (char *)NULL);
            _exit(99);
        }
    }
}

static inline void play_wait_rank(struct play *play, int rank)
{
    int status = 0;
    while (waitpid(play->pids[rank], &status, 0) < 0)
        ;
    play->codes[rank] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static inline void play_wait(struct play *play)
{
    for (int r = 0; r < play->world; r++)
        play_wait_rank(play, r);
}

/* Waits for rank 0 and ends the others. */
static inline void play_wait_first(struct play *play)
{
    play_wait_rank(play, 0);
    for (int r = 1; r < play->world; r++) {
        kill(play->pids[r], SIGKILL);
        play_wait_rank(play, r);
    }
}

static inline void play_run(struct play *play)
{
    play_start(play);
    play_wait(play);
}

/* A rank's output, or a file of fake_pmi.c; "" if there is none. */
static inline const char *play_read(const struct play *play, const char *name, int rank, char *text, size_t size)
{
    char path[128];
    snprintf(path, sizeof path, rank < 0 ? "%s/%s" : "%s/%s.%d", play->folder, name, rank);
    text[0] = 0;
    FILE *file = fopen(path, "r");
    if (file) {
        text[fread(text, 1, size - 1, file)] = 0;
        fclose(file);
    }
    return text;
}

static inline void run_shell(const char *command)
{
    if (system(command) != 0) {
        fprintf(stderr, "failed: %s\n", command);
        abort();
    }
}

static inline void play_end(struct play *play)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", play->folder);
    run_shell(command);
    play->folder[0] = 0;
}

/* In a rank: prints its result and ends. */
static inline void say_and_exit(int rank, int code, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/said.%d", getenv("FAKE_PMI_DIR"), rank);
    FILE *file = fopen(path, "w");
    if (!file || fputs(text, file) < 0 || fclose(file) != 0)
        abort();
    exit(code);
}
