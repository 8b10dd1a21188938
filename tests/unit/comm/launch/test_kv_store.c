/* test_kv_store.c: the store's protocol from both ends, with clients and servers that violate it. test_wire.c tests the
 * handshake; here wire_connect() makes the connections in one process. */
#include "comm/launch/kv_frame.h"
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
    for (int i = 0; i < 6000 && atomic_load(number) != value; i++)
        usleep(10000);
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
        assert_int_equal(wire_connect(&self, 0, "here", WIRE_STORE, &s->address, 1, 10, &s->fds[r], &error), STATUS_OK);
    }
}

static void make_client(struct scene *s, int rank)
{
    assert_int_equal(kv_client_new(s->fds[rank], rank, WORLD, note_end, &s->told[rank], &s->clients[rank], &error),
                     STATUS_OK);
}

static void scene_open_clients(struct scene *s)
{
    scene_open(s, WORLD);
    for (int r = 0; r < WORLD; r++)
        make_client(s, r);
}

static void scene_close(struct scene *s)
{
    for (int r = 0; r < WORLD; r++)
        kv_client_free(s->clients[r]);
    kv_server_free(s->server);
}

/* A fence of another rank, on a thread. */
struct other_fence {
    struct kv_client *client;
    double seconds;
    enum status status;
    struct error err;
    pthread_t thread;
};

static void *run_fence(void *context)
{
    struct other_fence *fence = context;
    fence->status = kv_fence(fence->client, fence->seconds, &fence->err);
    return NULL;
}

static void begin_fence(struct other_fence *fence, struct kv_client *client, double seconds)
{
    fence->client = client;
    fence->seconds = seconds;
    assert_int_equal(pthread_create(&fence->thread, NULL, run_fence, fence), 0);
}

static enum status end_fence(struct other_fence *fence)
{
    pthread_join(fence->thread, NULL);
    return fence->status;
}

static enum status fence_all(struct scene *s)
{
    struct other_fence others[WORLD];
    enum status status = STATUS_OK;
    for (int r = 1; r < WORLD; r++)
        begin_fence(&others[r], s->clients[r], 10);
    status = kv_fence(s->clients[0], 10, &error);
    for (int r = 1; r < WORLD; r++)
        if (end_fence(&others[r]) != STATUS_OK)
            status = STATUS_PEER;
    return status;
}

static void test_values(void **state)
{
    (void)state;
    struct scene s;
    char key[BOOTSTRAP_KEY_MAX + 1], value[VALUE_BYTES], values[WORLD * VALUE_BYTES];
    scene_open_clients(&s);
    for (int round = 0; round < 3; round++) {
        memset(key, 'a' + round, BOOTSTRAP_KEY_MAX);
        key[BOOTSTRAP_KEY_MAX] = 0;
        for (int r = 0; r < WORLD; r++) {
            memset(value, '0' + r, sizeof value);
            value[round == 0 ? 1 : BOOTSTRAP_VALUE_MAX] = 0;
            assert_int_equal(kv_put(s.clients[r], key, value, &error), STATUS_OK);
        }
        assert_int_equal(fence_all(&s), STATUS_OK);
        for (int r = 0; r < WORLD; r++) {
            assert_int_equal(kv_get(s.clients[r], -1, key, values, 10, &error), STATUS_OK);
            for (int of = 0; of < WORLD; of++) {
                const char *one = values + of * VALUE_BYTES;
                assert_int_equal(strlen(one), round == 0 ? 1 : BOOTSTRAP_VALUE_MAX);
                assert_int_equal(one[0], '0' + of);
            }
            assert_int_equal(kv_get(s.clients[r], 2, key, value, 10, &error), STATUS_OK);
            assert_int_equal(value[0], '2');
        }
    }
    assert_int_equal(kv_get(s.clients[1], 2, "nothing", value, 10, &error), STATUS_PEER);
    assert_non_null(strstr(error.text, "rank 2 has put no 'nothing'"));
    assert_int_equal(kv_put(s.clients[0], "some", "x", &error), STATUS_OK);
    assert_int_equal(kv_get(s.clients[0], -1, "some", values, 10, &error), STATUS_PEER);
    assert_non_null(strstr(error.text, "rank 1 has put no 'some'"));

    /* in order: rank 0 leaves last, and no client gets an error */
    kv_leave(s.clients[2], 10);
    kv_leave(s.clients[1], 10);
    kv_leave(s.clients[0], 10);
    for (int r = 0; r < WORLD; r++)
        assert_int_equal(atomic_load(&s.told[r].times), 0);
    assert_int_equal(kv_fence(s.clients[1], 1, &error), STATUS_PEER);
    scene_close(&s);
}

static void test_fence_without_all(void **state)
{
    (void)state;
    struct scene s;
    scene_open(&s, 2); /* rank 2 never comes */
    make_client(&s, 0);
    make_client(&s, 1);
    assert_int_equal(kv_fence(s.clients[0], 0.2, &error), STATUS_PEER);
    assert_non_null(strstr(error.text, "rank 1 is not there, rank 2 has not come after 0.2 s"));
    scene_close(&s);

    scene_open_clients(&s); /* rank 1 leaves, rank 2's connection breaks */
    struct other_fence other;
    begin_fence(&other, s.clients[0], 10);
    kv_leave(s.clients[1], 10);
    assert_int_equal(end_fence(&other), STATUS_PEER);
    assert_non_null(strstr(other.err.text, "rank 1 has left the job"));
    scene_close(&s);

    scene_open_clients(&s);
    begin_fence(&other, s.clients[0], 10);
    kv_client_free(s.clients[2]);
    s.clients[2] = NULL;
    assert_int_equal(end_fence(&other), STATUS_PEER);
    assert_non_null(strstr(other.err.text, "rank 2 has ended: its connection was lost"));
    scene_close(&s);
}

static void test_abort(void **state)
{
    (void)state;
    struct scene s;
    struct other_fence other;
    scene_open_clients(&s);
    begin_fence(&other, s.clients[1], 10);
    usleep(50000);
    kv_abort(s.clients[2], STATUS_DATA, "a shard is damaged");
    assert_int_equal(end_fence(&other), STATUS_DATA);
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
    assert_int_equal(kv_put(s.clients[1], "k", "v", &error), STATUS_PEER);
    assert_int_equal(kv_get(s.clients[1], 0, "k", s.told[1].text, 1, &error), STATUS_PEER);
    /* an orderly end: the store sends its farewell */
    kv_server_free(s.server);
    s.server = NULL;
    usleep(100000);
    assert_int_equal(atomic_load(&s.told[2].times), 0);
    assert_int_equal(kv_fence(s.clients[2], 1, &error), STATUS_PEER);
    assert_non_null(strstr(error.text, "rank 0 has left the job"));
    scene_close(&s);
}

/* ---- violations of the protocol ------------------------------------------ */

static void send_raw(int fd, enum kv_kind kind, int number, uint32_t length, const void *body, size_t bytes)
{
    unsigned char header[KV_HEADER_BYTES];
    kv_frame_write(&(struct kv_frame){kind, number, length}, header);
    assert_int_equal(send(fd, header, sizeof header, MSG_NOSIGNAL), sizeof header);
    if (bytes)
        assert_int_equal(send(fd, body, bytes, MSG_NOSIGNAL), bytes);
}

static bool is_closed(int fd)
{
    char byte;
    struct pollfd one = {.fd = fd, .events = POLLIN};
    while (poll(&one, 1, 5000) > 0) {
        ssize_t n = recv(fd, &byte, 1, MSG_DONTWAIT);
        if (n == 0 || n < 0)
            return true;
    }
    return false;
}

static void test_bad_clients(void **state)
{
    (void)state;
    static char long_key[BOOTSTRAP_KEY_MAX + 3], long_value[BOOTSTRAP_VALUE_MAX + 4];
    memset(long_key, 'k', sizeof long_key - 2);
    memset(long_value, 'v', sizeof long_value);
    memcpy(long_value, "k", 2);
    const struct {
        uint32_t kind;
        int number;
        uint32_t length;
        const void *body;
        size_t bytes;
    } cases[] = {
        {0, 0, 0, NULL, 0},
        {KV_KIND_COUNT, 0, 0, NULL, 0},
        {KV_PUT, 0, KV_BODY_MAX + 1, NULL, 0},
        {KV_PUT, 0, 0xffffffff, NULL, 0},
        {KV_PUT, 0, 3, "abc", 3},
        {KV_PUT, 0, 0, NULL, 0},
        {KV_PUT, 0, 4, "\0abc", 4},
        {KV_PUT, 0, sizeof long_key - 1, long_key, sizeof long_key - 1},
        {KV_PUT, 0, sizeof long_value, long_value, sizeof long_value},
        {KV_GET, WORLD, 3, "abc", 3},
        {KV_GET, INT32_MAX, 3, "abc", 3},
        {KV_DONE, 0, 0, NULL, 0},
        {KV_ABORTED, 6, 3, "abc", 3},
    };
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        struct scene s;
        char values[WORLD * VALUE_BYTES];
        scene_open(&s, WORLD);
        make_client(&s, 0);
        make_client(&s, 2);
        send_raw(s.fds[1], (enum kv_kind)cases[c].kind, cases[c].number, cases[c].length, cases[c].body,
                 cases[c].bytes);
        if (!is_closed(s.fds[1]))
            fail_msg("case %zu: not dropped", c);
        /* the others continue, and get the reason why they wait in vain */
        assert_int_equal(kv_put(s.clients[2], "k", "v", &error), STATUS_OK);
        assert_int_equal(kv_get(s.clients[2], 2, "k", values, 10, &error), STATUS_OK);
        assert_int_equal(kv_fence(s.clients[0], 10, &error), STATUS_PEER);
        assert_non_null(strstr(error.text, "rank 1 has ended"));
        close(s.fds[1]);
        scene_close(&s);
    }

    /* more keys than there is room for */
    struct scene s;
    scene_open(&s, WORLD);
    for (int i = 0; i <= KV_KEYS_MAX; i++)
        send_raw(s.fds[1], KV_PUT, 0, 3, "k\0v", 3);
    assert_true(is_closed(s.fds[1]));
    for (int r = 0; r < WORLD; r++)
        close(s.fds[r]);
    scene_close(&s);
}

/* A message that arrives byte by byte. */
static void test_slow_client(void **state)
{
    (void)state;
    struct scene s;
    unsigned char message[KV_HEADER_BYTES + 5];
    char value[VALUE_BYTES];
    scene_open(&s, WORLD);
    make_client(&s, 0);
    kv_frame_write(&(struct kv_frame){KV_PUT, 0, 5}, message);
    memcpy(message + KV_HEADER_BYTES, "key\0v", 5);
    for (size_t i = 0; i < sizeof message; i++) {
        assert_int_equal(send(s.fds[1], message + i, 1, MSG_NOSIGNAL), 1);
        usleep(1000);
    }
    enum status status = STATUS_PEER;
    for (int i = 0; i < 6000 && status != STATUS_OK; i++, usleep(10000))
        status = kv_get(s.clients[0], 1, "key", value, 10, &error);
    assert_int_equal(status, STATUS_OK);
    assert_string_equal(value, "v");
    close(s.fds[1]);
    close(s.fds[2]);
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
        {KV_PUT, 0, 0, 0, STATUS_PEER, "an invalid answer"},
        {KV_VALUE, 0, KV_BODY_MAX + 1, 0, STATUS_PEER, "lost"},
        {KV_KIND_COUNT, 0, 0, 0, STATUS_PEER, "lost"},
        {KV_ABORTED, 0, 1, 1, STATUS_PEER, "x"},
        {KV_ABORTED, -7, 1, 1, STATUS_PEER, "x"},
        {KV_ABORTED, 300, sizeof body, sizeof body, STATUS_PEER, "xxxxxxxx"},
        {KV_ABORTED, STATUS_CHECKPOINT, 1, 1, STATUS_CHECKPOINT, "x"},
    };
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        int pair[2];
        struct kv_client *client;
        struct told told = {.times = 0};
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        assert_int_equal(kv_client_new(pair[0], 1, WORLD, note_end, &told, &client, &error), STATUS_OK);
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
    char value[VALUE_BYTES];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    assert_int_equal(kv_client_new(pair[0], 1, WORLD, note_end, &told, &client, &error), STATUS_OK);
    assert_int_equal(kv_get(client, 0, "key", value, 0.1, &error), STATUS_PEER);
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
