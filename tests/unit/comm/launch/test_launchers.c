/* SPDX-License-Identifier: Apache-2.0 */
/* test_launchers.c: ranks that meet through each launcher, and the failures of each. fake_pmi.c provides the
 * libraries. */
#include "comm/launch/bootstrap.h"
#include "comm/launch/launcher.h"
#include "comm/launch/launcher_environment.h"
#include "tests/unit/fixtures/bootstrap_ranks.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include <cmocka.h>

enum { NUMBERS = 125 };

static const char *hex_of(const unsigned char *bytes, char text[65])
{
    for (int i = 0; i < 32; i++) snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    return text;
}

/* Uses every function once and prints the rank's place. */
static void play_meet(struct bootstrap *boot)
{
    struct error error = {.code = STATUS_OK};
    int32_t own[NUMBERS], *all = malloc((size_t)boot->world * sizeof own);
    char text[512], secret[65];
    _Static_assert(sizeof own == BOOTSTRAP_EXCHANGE_MAX, "the longest exchange");
    for (int i = 0; i < NUMBERS; i++) own[i] = boot->rank * 1000 + i;
    if (bootstrap_exchange(boot, "key-that-is-as-long-as-any-key-is-allowed-to-be", own, sizeof own, all, &error) !=
        STATUS_OK)
        say_and_exit(boot->rank, 90, error.text);
    for (int i = 0; i < boot->world * NUMBERS; i++)
        if (all[i] != i / NUMBERS * 1000 + i % NUMBERS) say_and_exit(boot->rank, 91, "wrong numbers");
    free(all);
    if (boot->places[boot->rank].pid != getpid() || strcmp(boot->places[boot->rank].host, boot->host) != 0)
        say_and_exit(boot->rank, 94, "wrong place");
    const char *fd = getenv("PMI_FD");
    if (fd && !(fcntl(atoi(fd), F_GETFD) & FD_CLOEXEC)) say_and_exit(boot->rank, 95, "PMI_FD is inherited");
    bootstrap_finish(boot);
    snprintf(text, sizeof text, "node %d of %d, local %d of %d; %s; %s; %s", boot->node, boot->num_nodes,
             boot->local_rank, boot->local_world, boot->source, boot->job_id, hex_of(boot->secret, secret));
    bootstrap_release(boot);
    say_and_exit(boot->rank, 0, text);
}

static enum status exchange_ranks(struct bootstrap *boot, const char *key, struct error *err)
{
    int own = boot->rank, all[PLAY_MAX];
    return bootstrap_exchange(boot, key, &own, sizeof own, all, err);
}

/* A process of a play (bootstrap_ranks.h): rank and scene. */
static int play_rank(const char *scene)
{
    struct bootstrap boot;
    struct error error = {.code = STATUS_OK};
    enum status status = bootstrap_init(&boot, &error);
    if (status != STATUS_OK) bootstrap_refuse(&boot, status);
    if (status != STATUS_OK)
        say_and_exit(atoi(getenv("SLURM_PROCID") ? getenv("SLURM_PROCID") : getenv("RANK")), status,
                     error.printed ? "" : error.text);
    status = bootstrap_connect(&boot, 1, getenv("PLAY_INTERFACE"), &error);
    int rank = boot.rank;
    if (status == STATUS_OK && !strcmp(scene, "meet")) play_meet(&boot);
    if (status == STATUS_OK && !strcmp(scene, "late-fence")) {
        boot.start_seconds = 0.5;
        if (rank == 1)
            sleep(2);
        else
            status = exchange_ranks(&boot, "late", &error);
    }
    if (status == STATUS_OK && !strcmp(scene, "again")) status = exchange_ranks(&boot, "again", &error);
    if (status == STATUS_OK && !strcmp(scene, "slow")) {
        boot.start_seconds = 0.5;
        status = exchange_ranks(&boot, "slow-key", &error);
    }
    if (status == STATUS_OK && !strcmp(scene, "die")) {
        if (rank == 1) _exit(9);
        status = exchange_ranks(&boot, "last", &error);
    }
    if (status == STATUS_OK && !strcmp(scene, "abort")) {
        if (rank == 1) {
            bootstrap_abort(&boot, STATUS_DATA, "first line; then\na second one");
            bootstrap_release(&boot);
            _exit(STATUS_DATA);
        }
        sleep(30);
    }
    if (status != STATUS_OK) {
        bootstrap_release(&boot);
        say_and_exit(rank, status, error.printed ? "" : error.text);
    }
    bootstrap_finish(&boot);
    bootstrap_release(&boot);
    return 0;
}

static void test_meeting(void **state)
{
    (void)state;
    static const int one_node[] = {0, 0, 0, 0}, in_turn[] = {1, 0, 1, 2};
    static const char *const words[][4] = {
        {"node 0 of 1, local 0 of 4", "node 0 of 1, local 1 of 4", "node 0 of 1, local 2 of 4",
         "node 0 of 1, local 3 of 4"},
        {"node 0 of 3, local 0 of 2", "node 1 of 3, local 0 of 1", "node 0 of 3, local 1 of 2",
         "node 2 of 3, local 0 of 1"},
    };
    for (int by = 0; by < BY_COUNT; by++)
        for (int nodes = 0; nodes < 2; nodes++) {
            struct play play = {.launcher = (enum play_launcher)by,
                                .world = 4,
                                .scene = "meet",
                                .nodes = nodes ? in_turn : one_node,
                                .extra = {"SLURM_RESTART_COUNT", "2"}};
            char first[512] = "", text[512], expected[160];
            play_run(&play);
            snprintf(expected, sizeof expected, "; %s, 4 ranks on %s; ", play_launchers[by],
                     nodes ? "3 nodes" : "1 node");
            for (int r = 0; r < 4; r++) {
                play_read(&play, "said", r, text, sizeof text);
                if (play.codes[r] != 0 || !strstr(text, words[nodes][r]) || !strstr(text, expected))
                    fail_msg("%s, rank %d: %d: %s", play_launchers[by], r, play.codes[r], text);
                const char *same = strstr(text, expected) + strlen(expected); /* name of the job, and secret */
                assert_int_equal(strlen(strstr(same, "; ") + 2), 64);
                if (r == 0) snprintf(first, sizeof first, "%s", same);
                assert_string_equal(first, same);
                if (by != BY_TORCHRUN) assert_non_null(strstr(same, ".3.r2; "));
                bool given = by == BY_SRUN_NONE || by == BY_TORCHRUN;
                assert_true(given == (strstr(same, play_secret) != NULL));
                char path[128];
                snprintf(path, sizeof path, "%s/finalized.%d", play.folder, r);
                assert_int_equal(access(path, F_OK), given ? -1 : 0);
            }
            play_end(&play);
        }
}

struct failure_case {
    enum play_launcher launcher;
    const char *scene, *fake;
    enum status status; /* of rank 0 */
    const char *words[3];
    const char *extra[8];
};

static const struct failure_case failures[] = {
    {BY_PMI2, "meet", "init=14", STATUS_USAGE, {"PMI2_Init over PMI_FD=", "error 14", "srun --mpi=pmi2 -n 2"}, {NULL}},
    {BY_PMI2, "meet", "rank=1", STATUS_USAGE, {"PMI-2 reports rank 1 of 2", "rank 0 of 2"}, {NULL}},
    {BY_PMI2, "meet", "size=3", STATUS_USAGE, {"PMI-2 reports rank 0 of 3", "rank 0 of 2"}, {NULL}},
    {BY_PMI2, "again", "put=1", STATUS_PEER, {"PMI2_KVS_Put", "error 1"}, {NULL}},
    {BY_PMI2, "again", "fence=1", STATUS_PEER, {"PMI2_KVS_Fence failed", "error 1"}, {NULL}},
    {BY_PMI2, "meet", "lose=place.1", STATUS_PEER, {"'place' of rank 1", "no such key"}, {NULL}},
    {BY_PMI2, "meet", "get=3", STATUS_PEER, {"PMI2_KVS_Get of 'place' of rank 0", "error"}, {NULL}},
    {BY_PMI2, "meet", "long=place", STATUS_PEER, {"'place' of rank 0", "too long"}, {NULL}},
    {BY_PMI2, "meet", "garble=place.1", STATUS_PEER, {"rank 1 has put 'place'", "same ztrain"}, {NULL}},
    {BY_PMI2, "meet", "damage=place.1", STATUS_USAGE, {"rank 1 on", "runs ztrain", "the same version"}, {NULL}},
    {BY_PMI2, "late-fence", NULL, STATUS_PEER, {"PMI2_KVS_Fence has not returned after 0.5 s", "srun -K"}, {NULL}},
    /* the start's time limit: 10 s and a quarter of one for each rank */
    {BY_PMI2, "meet", "hang=init", STATUS_PEER, {"PMI2_Init has not returned after 10.5 s"}, {NULL}},
    {BY_PMI2, "slow", "hang=put", STATUS_PEER, {"PMI2_KVS_Put has not returned after 0.5 s"}, {NULL}},
    {BY_PMI2, "slow", "hang=get", STATUS_PEER, {"PMI2_KVS_Get has not returned after 0.5 s"}, {NULL}},
    {BY_PMI2,
     "meet",
     NULL,
     STATUS_USAGE,
     {"cannot open libpmi2.so.0", "LD_LIBRARY_PATH"},
     {"LD_LIBRARY_PATH", "BROKEN"}},
    {BY_PMI2, "meet", NULL, STATUS_USAGE, {"libpmi2.so.0 has no PMI2_Init", "hint"}, {"LD_LIBRARY_PATH", "EMPTY"}},
    {BY_PMIX, "meet", "init=-25", STATUS_USAGE, {"PMIx_Init failed: SOME-ERROR", "srun --mpi=pmi2 -n 2"}, {NULL}},
    {BY_PMIX, "meet", "rank=1", STATUS_USAGE, {"PMIx reports rank 1 of 2", "rank 0 of 2"}, {NULL}},
    {BY_PMIX, "meet", "size=3", STATUS_USAGE, {"PMIx reports rank 0 of 3", "rank 0 of 2"}, {NULL}},
    {BY_PMIX, "again", "put=-1", STATUS_PEER, {"PMIx_Put", "SOME-ERROR"}, {NULL}},
    {BY_PMIX, "again", "fence=-1", STATUS_PEER, {"PMIx_Fence failed: SOME-ERROR"}, {NULL}},
    {BY_PMIX, "meet", "lose=place@1", STATUS_PEER, {"'place' of rank 1", "NOT-FOUND"}, {NULL}},
    {BY_PMIX, "meet", "long=place", STATUS_PEER, {"'place' of rank 0", "not a text or a number"}, {NULL}},
    {BY_PMIX, "meet", "garble=place@1", STATUS_PEER, {"rank 1 has put 'place'", "same ztrain"}, {NULL}},
    {BY_PMIX, "meet", "damage=place@1", STATUS_USAGE, {"rank 1 on", "runs ztrain", "the same version"}, {NULL}},
    {BY_PMIX, "late-fence", NULL, STATUS_PEER, {"PMIx_Fence has not returned after 0.5 s", "srun -K"}, {NULL}},
    {BY_PMIX, "slow", "hang=put", STATUS_PEER, {"PMIx_Put has not returned after 0.5 s"}, {NULL}},
    {BY_PMIX, "slow", "hang=get", STATUS_PEER, {"PMIx_Get has not returned after 0.5 s"}, {NULL}},
    {BY_PMIX, "meet", "version=3", STATUS_USAGE, {"OpenPMIx 3.0", "PMIx 4 to 6", "--mpi=pmi2"}, {NULL}},
    {BY_PMIX, "meet", "version=7", STATUS_USAGE, {"OpenPMIx 7.0", "PMIx 4 to 6"}, {NULL}},
    {BY_PMIX,
     "meet",
     NULL,
     STATUS_USAGE,
     {"cannot open libpmix.so.2", "LD_LIBRARY_PATH"},
     {"LD_LIBRARY_PATH", "BROKEN"}},
    {BY_PMIX,
     "meet",
     NULL,
     STATUS_USAGE,
     {"libpmix.so.2 has no PMIx_Get_version", "hint"},
     {"LD_LIBRARY_PATH", "EMPTY"}},
    {BY_SRUN_NONE,
     "late-fence",
     NULL,
     STATUS_PEER,
     {"rank 1 is not there after 0.5 s", "another ZTRAIN_JOB_SECRET"},
     {NULL}},
    {BY_SRUN_NONE, "die", NULL, STATUS_PEER, {"rank 1 has ended"}, {NULL}},
    {BY_SRUN_NONE,
     "meet",
     NULL,
     STATUS_USAGE,
     {"ZTRAIN_JOB_SECRET is not 64 hexadecimal digits"},
     {"ZTRAIN_JOB_SECRET", "12"}},
    {BY_SRUN_NONE,
     "meet",
     NULL,
     STATUS_USAGE,
     {"SLURM_STEP_NODELIST='n[", "not a list of nodes"},
     {"SLURM_STEP_NODELIST", "n["}},
    {BY_SRUN_NONE,
     "meet",
     NULL,
     STATUS_USAGE,
     {"does not know where rank 0 is", "MASTER_ADDR"},
     {"SLURM_STEP_NODELIST", "-"}},
    {BY_TORCHRUN, "meet", NULL, STATUS_USAGE, {"does not know where rank 0 is", "MASTER_ADDR"}, {"MASTER_ADDR", "-"}},
    {BY_TORCHRUN, "meet", NULL, STATUS_USAGE, {"MASTER_PORT=70000", "1 to 65535", "hint: "}, {"MASTER_PORT", "70000"}},
    {BY_TORCHRUN,
     "meet",
     NULL,
     STATUS_PEER,
     {"no-such-host.invalid", "MASTER_ADDR"},
     {"MASTER_ADDR", "no-such-host.invalid"}},
    {BY_TORCHRUN, "meet", NULL, STATUS_USAGE, {"comm.interface", "nonesuch0"}, {"PLAY_INTERFACE", "nonesuch0"}},
    /* an address that no machine has: rank 0 cannot listen there */
    {BY_TORCHRUN,
     "meet",
     NULL,
     STATUS_PEER,
     {"192.0.2.1", "address of rank 0's machine"},
     {"MASTER_ADDR", "192.0.2.1"}},
};

static void test_failures(void **state)
{
    (void)state;
    for (size_t c = 0; c < COUNT_OF(failures); c++) {
        const struct failure_case *one = &failures[c];
        struct play play = {.launcher = one->launcher, .world = 2, .scene = one->scene, .fake = one->fake};
        char text[2048], folder[96];
        for (int i = 0; i < 8 && one->extra[i]; i++) {
            play.extra[i] = one->extra[i];
            if (!strcmp(one->extra[i], "BROKEN") || !strcmp(one->extra[i], "EMPTY")) {
                snprintf(folder, sizeof folder, "%s/%s", play_libraries, one->extra[i]);
                play.extra[i] = folder;
            }
        }
        play_start(&play);
        play_wait_first(&play); /* the other one may look for it for a long time */
        play_read(&play, "said", 0, text, sizeof text);
        if (play.codes[0] != (int)one->status)
            fail_msg("case %zu (%s, %s): code %d: %s", c, play_launchers[one->launcher],
                     one->fake ? one->fake : one->scene, play.codes[0], text);
        for (int w = 0; w < 3 && one->words[w]; w++)
            if (!strstr(text, one->words[w])) fail_msg("case %zu: '%s' is not in '%s'", c, one->words[w], text);
        play_end(&play);
    }
}

/* A failure that all ranks share, and can know that they share, is printed by one of them. */
static void test_another_version(void **state)
{
    (void)state;
    struct play play = {.launcher = BY_PMI2, .world = 2, .scene = "meet", .fake = "damage=place.1"};
    char text[2048];
    play_run(&play);
    assert_int_equal(play.codes[0], STATUS_USAGE);
    assert_int_equal(play.codes[1], STATUS_USAGE);
    assert_non_null(strstr(play_read(&play, "said", 0, text, sizeof text), "the same version"));
    assert_string_equal(play_read(&play, "said", 1, text, sizeof text), "");
    play_end(&play);
}

/* ---- a rank without libpmi2 ---------------------------------------------- */

/* Plays slurmstepd: receives one message of the rank, which contains `words`, and sends the answer. */
static void answer_rank(int fd, const char *words)
{
    char text[512] = "", length[7] = "";
    assert_int_equal(recv(fd, length, 6, MSG_WAITALL), 6);
    assert_in_range(atoi(length), 1, sizeof text - 1);
    assert_int_equal(recv(fd, text, (size_t)atoi(length), MSG_WAITALL), atoi(length));
    if (!strstr(text, words)) fail_msg("'%s' is not in '%s'", words, text);
    snprintf(text, sizeof text, "%-6dcmd=response;rc=0;", (int)strlen("cmd=response;rc=0;"));
    assert_int_equal(send(fd, text, strlen(text), 0), strlen(text));
}

static void play_file(const struct play *play, const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", play->folder, name);
    FILE *file = fopen(path, "w");
    assert_true(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

/* Rank 1 reports why it does not join, and rank 0 ends with its code instead of waiting. play: rank 1 is refused. */
static void check_refusal(struct play *play, const char *why)
{
    int pair[2];
    char text[2048], line[64] = "";
    static const char greeting[] = "cmd=init pmi_version=2 pmi_subversion=0\n",
                      answer[] = "cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0\n";
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    fcntl(pair[0], F_SETFD, FD_CLOEXEC);
    play->lacking_fd = pair[1];
    play_start(play);
    close(pair[1]);
    assert_int_equal(recv(pair[0], line, sizeof greeting - 1, MSG_WAITALL), sizeof greeting - 1);
    assert_string_equal(line, greeting);
    assert_int_equal(send(pair[0], answer, sizeof answer - 1, 0), sizeof answer - 1);
    answer_rank(pair[0], "cmd=fullinit;pmijobid=0;pmirank=1;");
    answer_rank(pair[0], "cmd=kvs-put;key=ztrain.place.1;value=refused-with-2;");
    play_file(play, "ztrain.place.1", "refused-with-2");
    play_file(play, "fence.1.1", "");
    answer_rank(pair[0], "cmd=kvs-fence;");
    play_wait(play);
    assert_int_equal(play->codes[0], STATUS_USAGE);
    assert_int_equal(play->codes[1], STATUS_USAGE);
    assert_string_equal(play_read(play, "said", 0, text, sizeof text), "");
    assert_non_null(strstr(play_read(play, "said", 1, text, sizeof text), why));
    play_end(play);
    close(pair[0]);
}

static void test_a_rank_without_the_library(void **state)
{
    (void)state;
    struct play play = {.launcher = BY_PMI2, .world = 2, .scene = "meet"};
    check_refusal(&play, "cannot open libpmi2.so.0");
}

/* Only the variables of rank 0 are consistent. */
static void test_variables_that_fit_one_rank(void **state)
{
    (void)state;
    struct play play = {.launcher = BY_PMI2, .world = 2, .scene = "meet", .extra = {"RANK", "0", "WORLD_SIZE", "2"}};
    check_refusal(&play, "the environment contradicts itself: RANK=0, WORLD_SIZE=2, but PMI_RANK=1");
}

/* Any program may be at the other end of PMI_FD. */
static void test_refusing_in_vain(void **state)
{
    (void)state;
#define GREETED "cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0\n"
#define DONE "18    cmd=response;rc=0;"
    static const struct {
        const char *answers;
        bool closed, told;
    } cases[] = {
        {GREETED DONE DONE DONE, false, true},
        {"", true, false},                                  /* the connection was closed */
        {"", false, false},                                 /* none came in time */
        {GREETED DONE, true, false},                        /* the connection was closed */
        {GREETED DONE DONE, false, false},                  /* none came in time */
        {"cmd=response_to_init rc=1\n", false, false},      /* it does not speak PMI-2 */
        {GREETED "    18cmd=response;rc=1;", false, false}, /* cmd=response;rc=1; */
        {GREETED "garbage", false, false},                  /* the answer has no length */
        {GREETED "     0", false, false},                   /* the answer has no length */
        {GREETED "999999", false, false},                   /* the answer has no length */
        {GREETED "1 8   cmd=response;rc=0;", false, false}, /* the answer has no length */
        {GREETED "      ", false, false},                   /* the answer has no length */
    };
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        int pair[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        assert_int_equal(send(pair[0], cases[c].answers, strlen(cases[c].answers), 0), strlen(cases[c].answers));
        if (cases[c].closed) shutdown(pair[0], SHUT_WR);
        if (launcher_pmi2_refuse(pair[1], 3, "place", "refused-with-2", 0.2) != cases[c].told) fail_msg("case %zu", c);
        close(pair[0]);
        close(pair[1]);
    }
    int pair[2];
    char line[300]; /* without an end */
    memset(line, 'x', sizeof line);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    assert_int_equal(send(pair[0], line, sizeof line, 0), sizeof line);
    assert_false(launcher_pmi2_refuse(pair[1], 3, "k", "v", 0.2));
    close(pair[0]);
    assert_false(launcher_pmi2_refuse(pair[1], 3, "k", "v", 0.2)); /* it cannot send */
    close(pair[1]);
}

static void test_abort(void **state)
{
    (void)state;
    for (int by = 0; by < BY_COUNT; by++) {
        struct play play = {.launcher = (enum play_launcher)by, .world = 2, .scene = "abort"};
        char text[256];
        play_start(&play);
        if (by == BY_PMI2 || by == BY_PMIX) { /* the library informs the launcher, which would end rank 0 */
            for (int i = 0; i < 3000 && !*play_read(&play, "abort", -1, text, sizeof text); i++) usleep(20000);
            assert_string_equal(text,
                                by == BY_PMI2 ? "first line, then,a second one" : "3 first line, then,a second one");
            kill(play.pids[0], SIGKILL);
        }
        play_wait(&play);
        assert_int_equal(play.codes[1], STATUS_DATA);
        if (by == BY_SRUN_NONE || by == BY_TORCHRUN) /* rank 0 ends itself */
            assert_int_equal(play.codes[0], STATUS_DATA);
        play_end(&play);
    }
}

/* Another program has taken the port, or a rank has another secret. */
static void test_strangers(void **state)
{
    (void)state;
    char text[2048], port[16];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, size), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    snprintf(port, sizeof port, "%d", ntohs(address.sin_port));
    struct play play = {.launcher = BY_TORCHRUN, .world = 2, .scene = "meet", .extra = {"MASTER_PORT", port}};
    play_start(&play);
    play_wait_first(&play);
    assert_int_equal(play.codes[0], STATUS_PEER);
    assert_non_null(strstr(play_read(&play, "said", 0, text, sizeof text), "in use"));
    play_end(&play);

    /* torchrun's store has the port, so another one is chosen */
    play.extra[2] = "TORCHELASTIC_USE_AGENT_STORE";
    play.extra[3] = "True";
    play_run(&play);
    assert_int_equal(play.codes[0], 0);
    assert_int_equal(play.codes[1], 0);
    play_end(&play);
    close(fd);
}

static void test_first_node(void **state)
{
    (void)state;
    static const struct {
        const char *list, *first; /* NULL: not a list */
    } lists[] = {
        {"n0", "n0"},
        {"n[0-3,5]", "n0"},
        {"a-[01-10],b", "a-01"},
        {"gpu[7],n1", "gpu7"},
        {"a[1-2]b[3,9]-x", "a1b3-x"},
        {"n1.cluster.org,n2", "n1.cluster.org"},
        {"n_1", "n_1"},
        {"", NULL},
        {",n1", NULL},
        {"n[", NULL},
        {"n[]", NULL},
        {"n[a-b]", NULL},
        {"n[1", NULL},
        {"n 1", NULL},
        {"n[1x3]", NULL},
        {"n]1", NULL},
        {"a-name-too-long", NULL},
    };
    for (size_t i = 0; i < COUNT_OF(lists); i++) {
        char name[15];
        bool good = slurm_first_node(lists[i].list, name, sizeof name);
        if (good != (lists[i].first != NULL) || (good && strcmp(name, lists[i].first) != 0))
            fail_msg("'%s': %s", lists[i].list, good ? name : "refused");
    }
}

static void test_task_count(void **state)
{
    (void)state;
    static const struct {
        const char *list;
        int tasks;
    } lists[] = {
        {"1", 1},
        {"2(x2)", 4},
        {"4(x2),3", 11},
        {"1,2,3", 6},
        {"0", 0},
        {"", -1},
        {"2(x)", -1},
        {"2(x2", -1},
        {"2(x0)", -1},
        {"2,", -1},
        {",2", -1},
        {"2x3", -1},
        {"n[0-1]", -1},
        {"-1", -1},
        {"2147483647", INT32_MAX},
        {"2147483647,1", -1},
        {"65536(x65536)", -1},
        {"99999999999999999999", -1},
    };
    for (size_t i = 0; i < COUNT_OF(lists); i++)
        if (slurm_task_count(lists[i].list) != lists[i].tasks)
            fail_msg("'%s': %d", lists[i].list, slurm_task_count(lists[i].list));
}

/* The two libraries, a file that is not a library, and an empty file. */
static int make_libraries(void **state)
{
    (void)state;
    char command[1024];
    const char *cc = getenv("CC") ? getenv("CC") : "cc";
    snprintf(play_libraries, sizeof play_libraries, "/tmp/ztrain-libs-XXXXXX");
    if (!mkdtemp(play_libraries)) return -1;
    snprintf(
        command, sizeof command,
        "cd '%s' && mkdir BROKEN EMPTY && echo nonsense > BROKEN/libpmi2.so.0 && cp BROKEN/libpmi2.so.0 "
        "BROKEN/libpmix.so.2 && echo 'extern int none; int none;' | %s -shared -fPIC -x c -o EMPTY/libpmi2.so.0 - && "
        "cp EMPTY/libpmi2.so.0 EMPTY/libpmix.so.2",
        play_libraries, cc);
    run_shell(command);
    snprintf(
        command, sizeof command,
        "%s -D_GNU_SOURCE -shared -fPIC -o '%s/libpmi2.so.0' tests/unit/fixtures/fake_pmi.c && cp '%s/libpmi2.so.0' "
        "'%s/libpmix.so.2'",
        cc, play_libraries, play_libraries, play_libraries);
    run_shell(command);
    return 0;
}

static int remove_libraries(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", play_libraries);
    run_shell(command);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1) return play_rank(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_meeting),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_another_version),
        cmocka_unit_test(test_a_rank_without_the_library),
        cmocka_unit_test(test_variables_that_fit_one_rank),
        cmocka_unit_test(test_refusing_in_vain),
        cmocka_unit_test(test_abort),
        cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_first_node),
        cmocka_unit_test(test_task_count),
    };
    return cmocka_run_group_tests_name("launchers", tests, make_libraries, remove_libraries);
}
