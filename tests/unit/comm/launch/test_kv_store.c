/* SPDX-License-Identifier: Apache-2.0 */
/* test_kv_store.c: the store's protocol from both ends, with clients and servers that violate it. test_wire.c tests the
 * handshake; here wire_connect() makes the connections in one process. */
#include "comm/launch/kv_store.h"
#include "comm/wire/wire.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORLD = 3, VALUE_BYTES = BOOTSTRAP_VALUE_MAX + 1 };

static const unsigned char secret[WIRE_SECRET_BYTES] = {1, 2, 3};

static struct error error;

/* A store with connections of all ranks, and the ends that were reported to their clients. */
struct scene {
    struct kv_server *server;
    struct wire_self self;
    struct wire_address address;
    int fds[WORLD];
    struct kv_client *clients[WORLD];
    struct told {
        atomic_int times;
        enum status code;
        char text[KV_TEXT_MAX + 1];
    } told[WORLD];
};

static void note_end(void *context, enum status code, const char *text)
{
    struct told *told = context;
    told->code = code;
    snprintf(told->text, sizeof told->text, "%s", text);
    atomic_fetch_add(&told->times, 1);
}

static bool comes_true(atomic_int *number, int value)
{
    for (int i = 0; i < 6000 && atomic_load(number) != value; i++) usleep(10000);
    return atomic_load(number) == value;
}

static void scene_open(struct scene *s, int num_connected)
{
    struct wire_server *door;
    int listener;
    memset(s, 0, sizeof *s);
    s->self = (struct wire_self){.world = WORLD, .job = "kv", .secret = secret};
    s->address = (struct wire_address){.text = "127.0.0.1"};
    assert_int_equal(wire_listen(&s->address, &listener, &error), STATUS_OK);
    assert_int_equal(wire_server_new(&s->self, listener, &door, &error), STATUS_OK);
    assert_int_equal(kv_server_new(WORLD, &door, 1, &s->server, &s->fds[0], &error), STATUS_OK);
    for (int r = 1; r < num_connected; r++) {
        struct wire_self self = s->self;
        self.rank = r;
        struct wire_peer zero = {.service = WIRE_STORE, .host = "here", .addresses = &s->address, .num_addresses = 1};
        assert_int_equal(wire_connect(&self, NULL, &zero, 1, 10, &error), STATUS_OK);
        s->fds[r] = zero.fd;
    }
}

static void make_client(struct scene *s, int rank)
{
    assert_int_equal(kv_client_new(s->fds[rank], WORLD, 0, note_end, &s->told[rank], &s->clients[rank], &error),
                     STATUS_OK);
}

static void scene_open_clients(struct scene *s)
{
    scene_open(s, WORLD);
    for (int r = 0; r < WORLD; r++) make_client(s, r);
}

static void scene_close(struct scene *s)
{
    for (int r = 0; r < WORLD; r++) kv_client_free(s->clients[r]);
    kv_server_free(s->server);
}

/* An exchange of a rank, on a thread. */
struct turn {
    struct kv_client *client;
    char own[VALUE_BYTES], values[WORLD * VALUE_BYTES];
    double seconds;
    enum status status;
    struct error err;
    pthread_t thread;
};

static void *run_turn(void *context)
{
    struct turn *turn = context;
    turn->status = kv_exchange(turn->client, turn->own, turn->values, turn->seconds, &turn->err);
    return NULL;
}

static void begin_turn(struct turn *turn, struct kv_client *client, double seconds)
{
    turn->client = client;
    turn->seconds = seconds;
    assert_int_equal(pthread_create(&turn->thread, NULL, run_turn, turn), 0);
}

static enum status end_turn(struct turn *turn)
{
    pthread_join(turn->thread, NULL);
    return turn->status;
}

static enum status exchange(struct kv_client *client, double seconds)
{
    char values[WORLD * VALUE_BYTES];
    return kv_exchange(client, "x", values, seconds, &error);
}

static void test_values(void **state)
{
    (void)state;
    static struct turn turns[WORLD];
    struct scene s;
    scene_open_clients(&s);
    for (int round = 0; round < 3; round++) {
        const int length = round == 0 ? 1 : round == 1 ? BOOTSTRAP_VALUE_MAX : 0;
        for (int r = 0; r < WORLD; r++) {
            memset(turns[r].own, '0' + r, sizeof turns[r].own);
            turns[r].own[length] = 0;
            begin_turn(&turns[r], s.clients[r], 10);
        }
        for (int r = 0; r < WORLD; r++) {
            assert_int_equal(end_turn(&turns[r]), STATUS_OK);
            for (int of = 0; of < WORLD; of++) {
                const char *one = turns[r].values + of * VALUE_BYTES;
                assert_int_equal(strlen(one), length);
                assert_true(length == 0 || one[0] == '0' + of);
            }
        }
    }

    /* in order: rank 0 leaves last, and no client gets an error */
    kv_leave(s.clients[2], 10);
    kv_leave(s.clients[1], 10);
    kv_leave(s.clients[0], 10);
    for (int r = 0; r < WORLD; r++) assert_int_equal(atomic_load(&s.told[r].times), 0);
    assert_int_equal(exchange(s.clients[1], 1), STATUS_PEER);
    scene_close(&s);
}

static void test_fence_without_all(void **state)
{
    (void)state;
    struct scene s;
    scene_open(&s, 2); /* rank 2 never comes */
    make_client(&s, 0);
    make_client(&s, 1);
    assert_int_equal(exchange(s.clients[0], 0.2), STATUS_PEER);
    assert_non_null(strstr(error.text, "rank 1 is not there, rank 2 has not come after 0.2 s"));
    scene_close(&s);

    scene_open_clients(&s); /* rank 1 leaves, rank 2's connection breaks */
    static struct turn other;
    begin_turn(&other, s.clients[0], 10);
    kv_leave(s.clients[1], 10);
    assert_int_equal(end_turn(&other), STATUS_PEER);
    assert_non_null(strstr(other.err.text, "rank 1 has left the job"));
    scene_close(&s);

    scene_open_clients(&s);
    begin_turn(&other, s.clients[0], 10);
    kv_client_free(s.clients[2]);
    s.clients[2] = NULL;
    assert_int_equal(end_turn(&other), STATUS_PEER);
    assert_non_null(strstr(other.err.text, "rank 2 has ended: its connection was lost"));
    scene_close(&s);
}

static void test_abort(void **state)
{
    (void)state;
    struct scene s;
    static struct turn other;
    scene_open_clients(&s);
    begin_turn(&other, s.clients[1], 10);
    usleep(50000);
    kv_abort(s.clients[2], STATUS_DATA, "a shard is damaged");
    assert_int_equal(end_turn(&other), STATUS_DATA);
    assert_non_null(strstr(other.err.text, "a shard is damaged"));
    for (int r = 0; r < 2; r++) {
        assert_true(comes_true(&s.told[r].times, 1));
        assert_int_equal(s.told[r].code, STATUS_DATA);
        assert_string_equal(s.told[r].text, "a shard is damaged");
    }
    assert_int_equal(atomic_load(&s.told[2].times), 0);
    kv_abort(s.clients[0], STATUS_BUG, "too late");
    scene_close(&s);

    /* rank 0 ends without a message */
    scene_open_clients(&s);
    shutdown(s.fds[1], SHUT_RDWR);
    assert_true(comes_true(&s.told[1].times, 1));
    assert_int_equal(s.told[1].code, STATUS_PEER);
    assert_non_null(strstr(s.told[1].text, "connection with rank 0 is lost"));
    assert_int_equal(exchange(s.clients[1], 1), STATUS_PEER);
    /* an orderly end: the store sends its farewell */
    kv_server_free(s.server);
    s.server = NULL;
    usleep(100000);
    assert_int_equal(atomic_load(&s.told[2].times), 0);
    assert_int_equal(exchange(s.clients[2], 1), STATUS_PEER);
    assert_non_null(strstr(error.text, "rank 0 has left the job"));
    scene_close(&s);
}

/* ---- violations of the protocol ------------------------------------------ */

static void send_raw(int fd, enum kv_kind kind, int number, uint32_t length, const void *body, size_t bytes)
{
    const struct kv_frame frame = {kind, number, length};
    assert_int_equal(send(fd, &frame, sizeof frame, MSG_NOSIGNAL), sizeof frame);
    if (bytes) assert_int_equal(send(fd, body, bytes, MSG_NOSIGNAL), bytes);
}

static bool is_closed(int fd)
{
    char byte;
    struct pollfd one = {.fd = fd, .events = POLLIN};
    while (poll(&one, 1, 5000) > 0) {
        ssize_t n = recv(fd, &byte, 1, MSG_DONTWAIT);
        if (n == 0 || n < 0) return true;
    }
    return false;
}

static void test_bad_clients(void **state)
{
    (void)state;
    const struct {
        uint32_t kind;
        int number;
        uint32_t length;
        const void *body;
        size_t bytes;
    } cases[] = {
        {0, 0, 0, NULL, 0},
        {KV_KIND_COUNT, 0, 0, NULL, 0},
        {KV_GIVE, 0, KV_BODY_MAX + 1, NULL, 0},
        {KV_GIVE, 0, 0xffffffff, NULL, 0},
        {KV_GIVE, 0, 4, "a\0bc", 4},
        {KV_VALUE, 0, 3, "abc", 3},
        {KV_LOST, 0, 0, NULL, 0},
        {KV_ABORTED, 6, 3, "abc", 3},
    };
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        struct scene s;
        scene_open(&s, WORLD);
        make_client(&s, 0);
        make_client(&s, 2);
        send_raw(s.fds[1], (enum kv_kind)cases[c].kind, cases[c].number, cases[c].length, cases[c].body,
                 cases[c].bytes);
        if (!is_closed(s.fds[1])) fail_msg("case %zu: not dropped", c);
        /* the others get the reason why they wait in vain */
        assert_int_equal(exchange(s.clients[0], 10), STATUS_PEER);
        assert_non_null(strstr(error.text, "rank 1 has ended"));
        close(s.fds[1]);
        scene_close(&s);
    }

    /* a second value before the answers to the first */
    struct scene s;
    scene_open(&s, WORLD);
    for (int i = 0; i < 2; i++) send_raw(s.fds[1], KV_GIVE, 0, 1, "v", 1);
    assert_true(is_closed(s.fds[1]));
    for (int r = 0; r < WORLD; r++) close(s.fds[r]);
    scene_close(&s);
}

/* A message that arrives byte by byte. */
static void test_slow_client(void **state)
{
    (void)state;
    static struct turn turns[WORLD];
    struct scene s;
    char message[sizeof(struct kv_frame) + 5];
    const struct kv_frame frame = {KV_GIVE, 0, 5};
    scene_open(&s, WORLD);
    make_client(&s, 0);
    make_client(&s, 2);
    memcpy(message, &frame, sizeof frame);
    memcpy(message + sizeof frame, "value", 5);
    for (size_t i = 0; i < sizeof message; i++) {
        assert_int_equal(send(s.fds[1], message + i, 1, MSG_NOSIGNAL), 1);
        usleep(1000);
    }
    begin_turn(&turns[2], s.clients[2], 10);
    begin_turn(&turns[0], s.clients[0], 10);
    assert_int_equal(end_turn(&turns[0]), STATUS_OK);
    assert_int_equal(end_turn(&turns[2]), STATUS_OK);
    assert_string_equal(turns[0].values + VALUE_BYTES, "value");
    assert_string_equal(turns[2].values + VALUE_BYTES, "value");
    close(s.fds[1]);
    scene_close(&s);
}

/* A server that does not follow the protocol. */
static void test_bad_servers(void **state)
{
    (void)state;
    static char body[BOOTSTRAP_VALUE_MAX + 2];
    memset(body, 'x', sizeof body);
    const struct {
        enum kv_kind kind;
        int number;
        uint32_t length;
        size_t bytes;
        enum status code; /* that the client returns */
        const char *words;
    } cases[] = {
        {KV_VALUE, 0, 3, 3, STATUS_PEER, "an invalid answer"},
        {KV_GIVE, 0, 0, 0, STATUS_PEER, "an invalid answer"},
        {KV_VALUE, 0, KV_BODY_MAX + 1, 0, STATUS_PEER, "lost"},
        {KV_KIND_COUNT, 0, 0, 0, STATUS_PEER, "lost"},
        {KV_ABORTED, 0, 1, 1, STATUS_PEER, "x"},
        {KV_ABORTED, -7, 1, 1, STATUS_PEER, "x"},
        {KV_ABORTED, 300, KV_BODY_MAX, KV_BODY_MAX, STATUS_PEER, "xxxxxxxx"},
        {KV_ABORTED, STATUS_CHECKPOINT, 1, 1, STATUS_CHECKPOINT, "x"},
    };
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        int pair[2];
        struct kv_client *client;
        struct told told = {.times = 0};
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        assert_int_equal(kv_client_new(pair[0], WORLD, 0, note_end, &told, &client, &error), STATUS_OK);
        send_raw(pair[1], cases[c].kind, cases[c].number, cases[c].length, body, cases[c].bytes);
        assert_true(comes_true(&told.times, 1));
        if (told.code != cases[c].code || !strstr(told.text, cases[c].words))
            fail_msg("case %zu: %d, '%s'", c, told.code, told.text);
        kv_client_free(client);
        close(pair[1]);
    }

    /* a silent server, and one whose value is too long for any client */
    int pair[2];
    struct kv_client *client;
    struct told told = {.times = 0};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    assert_int_equal(kv_client_new(pair[0], WORLD, 0, note_end, &told, &client, &error), STATUS_OK);
    assert_int_equal(exchange(client, 0.1), STATUS_PEER);
    assert_non_null(strstr(error.text, "no answer from rank 0's key-value store for 0.1 s"));
    kv_client_free(client);
    close(pair[1]);
    assert_int_equal(atomic_load(&told.times), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),      cmocka_unit_test(test_fence_without_all),
        cmocka_unit_test(test_abort),       cmocka_unit_test(test_bad_clients),
        cmocka_unit_test(test_slow_client), cmocka_unit_test(test_bad_servers),
    };
    return cmocka_run_group_tests_name("kv_store", tests, NULL, NULL);
}
