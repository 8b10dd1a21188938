/* SPDX-License-Identifier: Apache-2.0 */
/* test_wire.c: addresses, the handshake with ranks of the job and with strangers, and the mesh, over loopback. Ranks
 * are threads here. */
#include "comm/wire/wire.h"

#include "core/clock.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { HELLO_BYTES = 120, CHALLENGE_BYTES = 64 };

static const unsigned char secret[WIRE_SECRET_BYTES] = "thirty-two bytes of a job's key",
                           other_secret[WIRE_SECRET_BYTES] = "of another job";
static struct error error;

static struct wire_self self_of(int rank, int world)
{
    return (struct wire_self){.rank = rank, .world = world, .job = "7.0", .secret = secret, .timeout_seconds = 10};
}

static void assert_contains(const char *text, const char *part)
{
    if (!strstr(text, part)) fail_msg("'%s' is not in '%s'", part, text);
}

/* Connects with one rank. */
static enum status connect_to(const struct wire_self *self, int peer, enum wire_service service,
                              const struct wire_address *addresses, int count, double seconds, int *fd,
                              struct error *err)
{
    struct wire_peer one = {
        .rank = peer, .service = service, .host = "first-host", .addresses = addresses, .num_addresses = count};
    enum status status = wire_connect(self, NULL, &one, 1, seconds, err);
    *fd = one.fd;
    return status;
}

/* ---- addresses ----------------------------------------------------------- */

static void test_addresses_of_other_ranks(void **state)
{
    (void)state;
    struct wire_address address = {.text = "10.1.2.3", .port = 4711};
    char text[WIRE_PRINTED];
    assert_true(wire_address_is_valid(&address));
    assert_string_equal(wire_address_print(&address, text), "10.1.2.3:4711");
    address = (struct wire_address){.text = "fd00::1", .port = 65535};
    assert_true(wire_address_is_valid(&address));
    assert_string_equal(wire_address_print(&address, text), "[fd00::1]:65535");
    static const char *const wrong[] = {"", "10.1.2", "host", "[::1]", "1.2.3.4:80", "1.2.3.4 "};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        snprintf(address.text, sizeof address.text, "%s", wrong[i]);
        if (wire_address_is_valid(&address)) fail_msg("'%s' is taken for an address", wrong[i]);
    }
    memset(address.text, '1', sizeof address.text); /* without an end */
    assert_false(wire_address_is_valid(&address));
}

static void test_hosts_of_other_ranks(void **state)
{
    (void)state;
    static const struct {
        struct wire_host host;
        bool valid;
    } cases[] = {
        {{.count = 0}, true},
        {{.count = 2, .addresses = {{"10.0.0.1", 24}, {"fd00:1111:2222:3333:4444:5555:6666:7777", 128}}}, true},
        {{.count = -1}, false},
        {{.count = WIRE_HOST_ADDRESSES + 1}, false},
        {{.count = 1, .addresses = {{"10.0.0.1", 33}}}, false},
        {{.count = 1, .addresses = {{"10.0.0.1", -1}}}, false},
        {{.count = 1, .addresses = {{"::1", 129}}}, false},
        {{.count = 1, .addresses = {{"host", 8}}}, false},
        {{.count = 2, .addresses = {{"10.0.0.1", 24}}}, false},
    };
    for (size_t c = 0; c < COUNT_OF(cases); c++)
        if (wire_host_is_valid(&cases[c].host) != cases[c].valid) fail_msg("case %zu", c);
    struct wire_host endless = {.count = 1};
    memset(endless.addresses[0].text, '1', sizeof endless.addresses[0].text);
    assert_false(wire_host_is_valid(&endless));
}

static void test_host_of_this_machine(void **state)
{
    (void)state;
    struct wire_host any, named;
    assert_int_equal(wire_host_read(NULL, &any, &error), STATUS_OK);
    assert_int_equal(wire_host_read("lo", &named, &error), STATUS_OK);
    assert_true(any.kernel == named.kernel && any.kernel != 0 && named.named && !any.named);
    assert_string_equal(named.addresses[0].text, "127.0.0.1");
    assert_int_equal(named.addresses[0].prefix, 8);
    for (int i = 0; i < any.count; i++)
        assert_true(strncmp(any.addresses[i].text, "127.", 4) && strncmp(any.addresses[i].text, "fe80", 4));
    assert_int_equal(wire_host_read("127.0.0.1", &named, &error), STATUS_OK);
    assert_int_equal(named.count, 1);
    assert_int_equal(wire_host_read("127.4.0.0/8", &named, &error), STATUS_OK);
    assert_string_equal(named.addresses[0].text, "127.0.0.1");
    assert_int_equal(wire_host_read("127.4.0.0/16", &named, &error), STATUS_USAGE);
    assert_int_equal(wire_host_read("::/0", &named, &error), STATUS_OK);
    for (int i = 0; i < named.count; i++) assert_non_null(strchr(named.addresses[i].text, ':'));
    assert_int_equal(wire_host_read("nothing0", &named, &error), STATUS_USAGE);
    assert_contains(error.text, "comm.interface");
    assert_contains(error.text, "'nothing0'");
    assert_contains(error.text, "lo 127.0.0.1");
}

/* "any,KERNEL,ADDRESS/PREFIX,…" or "named,…" */
static struct wire_host host_of(const char *text)
{
    char copy[256], *rest = copy;
    struct wire_host host = {.count = 0};
    snprintf(copy, sizeof copy, "%s", text);
    host.named = !strcmp(strsep(&rest, ","), "named");
    host.kernel = strtoull(strsep(&rest, ","), NULL, 16);
    while (rest) {
        struct wire_host_address *one = &host.addresses[host.count++];
        char *address = strsep(&rest, ","), *slash = strchr(address, '/');
        snprintf(one->text, sizeof one->text, "%.*s", (int)(slash - address), address);
        one->prefix = (int16_t)atoi(slash + 1);
    }
    assert_true(wire_host_is_valid(&host));
    return host;
}

/* chosen: NULL: an error */
static void check_choice(const char *const *texts, int count, int me, const char *chosen)
{
    struct wire_host hosts[4];
    struct wire_address address;
    for (int i = 0; i < count; i++) hosts[i] = host_of(texts[i]);
    enum status status = wire_choose(hosts, count, me, &address, &error);
    assert_int_equal(status, chosen ? STATUS_OK : hosts[me].named ? STATUS_USAGE : STATUS_PEER);
    if (chosen)
        assert_string_equal(address.text, chosen);
    else
        assert_contains(error.text, "comm.interface");
    assert_int_equal(address.port, 0);
}

static void test_choice_of_an_address(void **state)
{
    (void)state;
    /* one kernel: loopback, unless an interface was named */
    const char *const alone[] = {"any,1,10.0.0.1/24", "any,1,10.0.0.1/24"};
    check_choice(alone, 2, 1, "127.0.0.1");
    const char *const asked[] = {"named,1,10.0.0.1/24", "named,1,10.0.0.1/24"};
    check_choice(asked, 2, 0, "10.0.0.1");
    /* a bridge that both hosts have; a second network that only one has */
    const char *const bridge[] = {"any,1,172.17.0.1/16,192.168.7.1/24,10.0.0.1/24", "any,2,172.17.0.1/16,10.0.0.2/24"};
    check_choice(bridge, 2, 0, "10.0.0.1");
    check_choice(bridge, 2, 1, "10.0.0.2");
    /* two nodes on one machine, the third elsewhere: their common address is not ambiguous */
    const char *const shared[] = {"any,1,10.0.0.1/24", "any,1,10.0.0.1/24", "any,2,10.0.0.2/24"};
    check_choice(shared, 3, 0, "10.0.0.1");
    check_choice(shared, 3, 2, "10.0.0.2");
    /* the network that all hosts have, not that of a pair */
    const char *const pair[] = {"any,1,10.0.0.1/24,10.9.0.1/16", "any,2,10.0.0.2/24,10.9.0.2/16", "any,3,10.9.0.3/16"};
    check_choice(pair, 3, 0, "10.9.0.1");
    const char *const six[] = {"any,1,10.0.0.1/24,fd00::1/64", "any,2,fd00::2/64"};
    check_choice(six, 2, 0, "fd00::1");
    check_choice(six, 2, 1, "fd00::2");
    /* no common network, but a route (on this machine: the loopback's) */
    const char *const route[] = {"any,1,10.77.0.1/32,127.0.0.1/32", "any,2,127.3.2.1/32"};
    check_choice(route, 2, 0, "127.0.0.1");
    /* nothing */
    const char *const apart[] = {"any,1,10.77.0.1/32", "any,2,127.3.2.1/32"};
    check_choice(apart, 2, 0, NULL);
    assert_contains(error.text, "no address of node 0 (10.77.0.1/32) and node 1 (127.3.2.1/32) is in one network");
    const char *const docker0[] = {"named,1,172.17.0.1/16", "named,2,172.17.0.1/16"};
    check_choice(docker0, 2, 0, NULL);
    check_choice(docker0, 2, 1, NULL);
    const char *const none[] = {"any,1", "any,2,10.0.0.1/24"};
    check_choice(none, 2, 0, NULL);
    assert_contains(error.text, "node 0 (no address) and node 1 (10.0.0.1/24)");
    const char *const alike[] = {"named,1,10.0.0.1/24", "named,2,10.0.0.1/24"};
    check_choice(alike, 2, 0, NULL);
}

static void test_resolve(void **state)
{
    (void)state;
    struct wire_address addresses[4];
    int count;
    assert_int_equal(wire_resolve("localhost", 80, addresses, 4, &count, &error), STATUS_OK);
    assert_true(count >= 1 && (!strcmp(addresses[0].text, "127.0.0.1") || !strcmp(addresses[0].text, "::1")));
    assert_int_equal(addresses[0].port, 80);
    assert_int_equal(wire_resolve("::1", 81, addresses, 4, &count, &error), STATUS_OK);
    assert_true(count == 1 && !strcmp(addresses[0].text, "::1"));
    assert_int_equal(wire_resolve("no.such.host.invalid", 80, addresses, 4, &count, &error), STATUS_PEER);
    assert_contains(error.text, "host 'no.such.host.invalid'");
}

static void test_listen_errors(void **state)
{
    (void)state;
    struct wire_address address = {.text = "127.0.0.1"}, again;
    int listener, second;
    assert_int_equal(wire_listen(&address, &listener, &error), STATUS_OK);
    assert_true(address.port > 0);
    again = address;
    assert_int_equal(wire_listen(&again, &second, &error), STATUS_PEER);
    assert_contains(error.text, "cannot listen at 127.0.0.1:");
    assert_int_equal(second, -1);
    struct wire_address nowhere = {.text = "203.0.113.77"}, name = {.text = "localhost"};
    assert_int_equal(wire_listen(&nowhere, &second, &error), STATUS_PEER);
    assert_int_equal(wire_listen(&name, &second, &error), STATUS_PEER);
    assert_contains(error.text, "not a numeric address");
    close(listener);
}

/* ---- one server, run by a thread ----------------------------------------- */

struct host {
    struct wire_self self;
    struct wire_address address;
    struct wire_server *server;
    pthread_t thread;
    _Atomic int stop, taken;
    struct wire_connection last;
};

static void *serve(void *argument)
{
    struct host *host = argument;
    struct wire_connection connection;
    while (!host->stop) {
        struct pollfd ready = {.fd = wire_server_fd(host->server), .events = POLLIN};
        poll(&ready, 1, 50);
        while (wire_server_next(host->server, &connection)) {
            if (host->taken) close(host->last.fd);
            host->last = connection;
            host->taken++;
        }
    }
    return NULL;
}

static void host_start_at(struct host *host, const struct wire_address *address)
{
    int listener;
    *host = (struct host){.self = self_of(0, 8), .address = *address};
    assert_int_equal(wire_listen(&host->address, &listener, &error), STATUS_OK);
    assert_int_equal(wire_server_new(&host->self, listener, &host->server, &error), STATUS_OK);
    assert_int_equal(pthread_create(&host->thread, NULL, serve, host), 0);
}

static void host_start(struct host *host, const char *text)
{
    struct wire_address address = {.port = 0};
    snprintf(address.text, sizeof address.text, "%s", text);
    host_start_at(host, &address);
}

static void host_stop(struct host *host)
{
    host->stop = 1;
    pthread_join(host->thread, NULL);
    if (host->taken) close(host->last.fd);
    wire_server_free(host->server);
}

static void wait_taken(struct host *host, int count)
{
    for (int i = 0; i < 500 && host->taken < count; i++) usleep(10000);
    assert_int_equal(host->taken, count);
}

static enum status connect_as(const struct wire_self *self, const struct wire_address *address, double seconds, int *fd)
{
    return connect_to(self, 0, WIRE_STORE, address, 1, seconds, fd, &error);
}

static int option_of(int fd, int level, int option)
{
    int value = -1;
    socklen_t size = sizeof value;
    assert_int_equal(getsockopt(fd, level, option, &value, &size), 0);
    return value;
}

static void test_friends(void **state)
{
    (void)state;
    static const char *const addresses[] = {"127.0.0.1", "::1"};
    for (size_t i = 0; i < COUNT_OF(addresses); i++) {
        struct host host;
        struct wire_self self = self_of(3, 8);
        int fd;
        char text[6] = "";
        host_start(&host, addresses[i]);
        /* no host has the first address */
        struct wire_address tried[2] = {host.address, host.address};
        tried[0].port = 1;
        assert_int_equal(connect_to(&self, 0, WIRE_AGENT, tried, 2, 20, &fd, &error), STATUS_OK);
        wait_taken(&host, 1);
        assert_int_equal(host.last.rank, 3);
        assert_int_equal(host.last.service, WIRE_AGENT);
        int ends[] = {fd, host.last.fd};
        for (int end = 0; end < 2; end++) {
            assert_int_equal(option_of(ends[end], IPPROTO_TCP, TCP_NODELAY), 1);
            assert_int_equal(option_of(ends[end], SOL_SOCKET, SO_KEEPALIVE), 1);
            assert_int_equal(option_of(ends[end], IPPROTO_TCP, TCP_USER_TIMEOUT), 10000);
            assert_true(fcntl(ends[end], F_GETFD) & FD_CLOEXEC);
            assert_true(fcntl(ends[end], F_GETFL) & O_NONBLOCK);
        }
        assert_int_equal(write(host.last.fd, "hello", 5), 5);
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        assert_int_equal(poll(&ready, 1, 5000), 1);
        assert_int_equal(read(fd, text, 5), 5);
        assert_string_equal(text, "hello");
        close(fd);
        /* a rank may come again; data connections have no separate timeout */
        assert_int_equal(connect_to(&self, 0, WIRE_DATA, &host.address, 1, 20, &fd, &error), STATUS_OK);
        wait_taken(&host, 2);
        assert_int_equal(option_of(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), 0);
        close(fd);
        host_stop(&host);
    }
}

static void test_wrong_ranks(void **state)
{
    (void)state;
    struct host host;
    int fd;
    host_start(&host, "127.0.0.1");
    struct wire_self wrong[] = {self_of(3, 8), self_of(3, 8), self_of(3, 9), self_of(8, 8), self_of(0, 8)};
    wrong[0].secret = other_secret;
    wrong[1].job = "8.0";
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        assert_int_equal(connect_as(&wrong[i], &host.address, 0.3, &fd), STATUS_PEER);
        assert_int_equal(fd, -1);
        assert_contains(error.text, "with rank 0 on first-host at 127.0.0.1:");
        assert_contains(error.text, "key-value store");
        assert_contains(error.text, "it closed the connection during the handshake");
        assert_contains(error.text, "same secret (ZTRAIN_JOB_SECRET)");
        assert_null(strstr(error.text, "firewall"));
    }
    struct wire_self self = self_of(3, 8); /* it expects another rank */
    assert_int_equal(connect_to(&self, 1, WIRE_DATA, &host.address, 1, 0.3, &fd, &error), STATUS_PEER);
    assert_int_equal(host.taken, 0);
    host_stop(&host);
}

static int plain_connect(const struct wire_address *address)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(address->port)};
    inet_pton(AF_INET, address->text, &to.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

/* Whether the other end closes within the time without having sent anything. */
static bool closed_silently(int fd, double seconds)
{
    char byte;
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    if (poll(&ready, 1, (int)(seconds * 1000)) != 1) return false;
    return recv(fd, &byte, 1, 0) <= 0;
}

static void test_strangers(void **state)
{
    (void)state;
    struct host host;
    struct wire_self self = self_of(5, 8);
    int fd, many[300];
    host_start(&host, "127.0.0.1");

    int garbage = plain_connect(&host.address);
    assert_int_equal(write(garbage, "GET / HTTP/1.1\r\n\r\n", 18), 18);
    assert_true(closed_silently(garbage, 1));
    close(garbage);

    int prefix = plain_connect(&host.address); /* begins correctly */
    char hello[HELLO_BYTES] = "ztrain\0\1";
    assert_int_equal(write(prefix, hello, sizeof hello), sizeof hello);
    assert_true(closed_silently(prefix, 1));
    close(prefix);

    /* silent strangers, and one that sends a byte now and then, do not delay a rank */
    double start = seconds_now();
    for (size_t i = 0; i < COUNT_OF(many); i++) many[i] = plain_connect(&host.address);
    assert_int_equal(connect_as(&self, &host.address, 10, &fd), STATUS_OK);
    assert_true(seconds_now() - start < 8); /* one after the other they would take 600 s */
    wait_taken(&host, 1);
    close(fd);
    int slow = plain_connect(&host.address);
    start = seconds_now();
    bool open = true;
    for (size_t i = 0; i < 40 && open; i++) {
        if (i < 8) send(slow, hello + i, 1, MSG_NOSIGNAL);
        open = !closed_silently(slow, 0.1);
    }
    assert_false(open);
    assert_true(seconds_now() - start > 1.5);
    for (size_t i = 0; i < COUNT_OF(many); i++) {
        assert_true(closed_silently(many[i], 20));
        close(many[i]);
    }
    close(slow);
    assert_int_equal(host.taken, 1);
    host_stop(&host);
}

/* More strangers than a server keeps: the oldest are dropped. */
static void test_too_many_strangers(void **state)
{
    (void)state;
    struct host host;
    struct wire_self self = self_of(5, 8);
    enum { MANY = 700 };
    static int many[MANY];
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max < 4096 ? files.rlim_max : 4096;
    setrlimit(RLIMIT_NOFILE, &files);
    host_start(&host, "127.0.0.1");
    double start = seconds_now();
    for (int i = 0; i < MANY; i++) many[i] = plain_connect(&host.address);
    assert_true(closed_silently(many[0], 1.9));
    int fd;
    assert_int_equal(connect_as(&self, &host.address, 10, &fd), STATUS_OK);
    assert_true(seconds_now() - start < 5);
    close(fd);
    for (int i = 0; i < MANY; i++) close(many[i]);
    host_stop(&host);
}

/* No file descriptor is left, so a stranger is dropped. */
static void test_no_descriptors_left(void **state)
{
    (void)state;
    struct host host;
    struct wire_self self = self_of(5, 8);
    int outside[4], fd;
    struct rlimit files, few;
    getrlimit(RLIMIT_NOFILE, &files);
    host_start(&host, "127.0.0.1");
    for (int i = 0; i < 4; i++) outside[i] = plain_connect(&host.address);
    usleep(100000);
    few = files;
    int top = dup(0);
    close(top);
    few.rlim_cur = (rlim_t)top + 1; /* for the socket that connects, none for the one that is accepted */
    setrlimit(RLIMIT_NOFILE, &few);
    enum status status = connect_as(&self, &host.address, 10, &fd);
    setrlimit(RLIMIT_NOFILE, &files);
    assert_int_equal(status, STATUS_OK);
    int gone = 0;
    for (int i = 0; i < 4; i++) {
        gone += closed_silently(outside[i], 0.05);
        close(outside[i]);
    }
    assert_true(gone >= 1);
    close(fd);
    host_stop(&host);
}

/* ---- imitating one end --------------------------------------------------- */

struct imitation {
    int listener;
    unsigned char hello[HELLO_BYTES];
    size_t got;
    const void *answer; /* to the hello */
    size_t answer_bytes;
};

static void *imitate(void *argument)
{
    struct imitation *fake = argument;
    struct pollfd ready = {.fd = fake->listener, .events = POLLIN};
    poll(&ready, 1, 5000);
    int fd = accept(fake->listener, NULL, NULL);
    fake->got = 0;
    while (fake->got < sizeof fake->hello) {
        ssize_t n = read(fd, fake->hello + fake->got, sizeof fake->hello - fake->got);
        if (n <= 0) break;
        fake->got += (size_t)n;
    }
    if (fake->answer) send(fd, fake->answer, fake->answer_bytes, MSG_NOSIGNAL);
    usleep(200000);
    close(fd);
    return NULL;
}

/* A replayed hello gets a challenge, but no connection; a forged challenge is detected. */
static void test_replay(void **state)
{
    (void)state;
    struct host host;
    host_start(&host, "127.0.0.1");
    struct wire_address address = {.text = "127.0.0.1"};
    unsigned char false_challenge[CHALLENGE_BYTES] = {1, 2, 3};
    struct imitation fake = {.answer = false_challenge, .answer_bytes = sizeof false_challenge};
    assert_int_equal(wire_listen(&address, &fake.listener, &error), STATUS_OK);
    fcntl(fake.listener, F_SETFL, 0);
    pthread_t thread;
    pthread_create(&thread, NULL, imitate, &fake);
    struct wire_self self = self_of(5, 8);
    int fd;
    assert_int_equal(connect_as(&self, &address, 0.15, &fd), STATUS_PEER);
    assert_contains(error.text, "cannot prove that it belongs to this job");
    pthread_join(thread, NULL);
    close(fake.listener);
    assert_int_equal(fake.got, HELLO_BYTES);
    /* the hello does not contain the secret */
    assert_null(memmem(fake.hello, sizeof fake.hello, secret, 8));

    unsigned char challenge[CHALLENGE_BYTES], proofs[2][32] = {{0}, {0}};
    memcpy(proofs[1], fake.hello + HELLO_BYTES - 32, 32); /* a MAC that was valid in another message */
    for (int i = 0; i < 2; i++) {
        int replay = plain_connect(&host.address);
        assert_int_equal(send(replay, fake.hello, sizeof fake.hello, 0), HELLO_BYTES);
        assert_int_equal(recv(replay, challenge, sizeof challenge, MSG_WAITALL), CHALLENGE_BYTES);
        assert_int_equal(send(replay, proofs[i], 32, 0), 32);
        assert_true(closed_silently(replay, 1));
        close(replay);
    }
    /* one changed bit makes it invalid */
    for (size_t at = 8; at < HELLO_BYTES; at += 13) {
        fake.hello[at] ^= 1;
        int altered = plain_connect(&host.address);
        assert_int_equal(send(altered, fake.hello, sizeof fake.hello, 0), HELLO_BYTES);
        assert_true(closed_silently(altered, 1));
        close(altered);
        fake.hello[at] ^= 1;
    }
    assert_int_equal(host.taken, 0);
    host_stop(&host);
}

/* Both ends accept the bytes in portions of any size. */
struct relay {
    int listener;
    struct wire_address to;
};

static void *relay_bytes(void *argument)
{
    struct relay *relay = argument;
    int ends[2];
    ends[0] = accept(relay->listener, NULL, NULL);
    ends[1] = plain_connect(&relay->to);
    int one = 1;
    for (int i = 0; i < 2; i++) setsockopt(ends[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    for (;;) {
        struct pollfd ready[2] = {{ends[0], POLLIN, 0}, {ends[1], POLLIN, 0}};
        poll(ready, 2, 5000);
        for (int i = 0; i < 2; i++) {
            char byte;
            if (!ready[i].revents) continue;
            if (recv(ends[i], &byte, 1, 0) <= 0) {
                close(ends[0]);
                close(ends[1]);
                return NULL;
            }
            send(ends[1 - i], &byte, 1, MSG_NOSIGNAL);
            usleep(500);
        }
    }
}

static void test_bytes_one_by_one(void **state)
{
    (void)state;
    struct host host;
    host_start(&host, "127.0.0.1");
    struct relay relay = {.to = host.address};
    struct wire_address address = {.text = "127.0.0.1"};
    assert_int_equal(wire_listen(&address, &relay.listener, &error), STATUS_OK);
    fcntl(relay.listener, F_SETFL, 0);
    pthread_t thread;
    pthread_create(&thread, NULL, relay_bytes, &relay);
    struct wire_self self = self_of(5, 8);
    int fd;
    assert_int_equal(connect_as(&self, &address, 20, &fd), STATUS_OK);
    wait_taken(&host, 1);
    close(fd);
    pthread_join(thread, NULL);
    close(relay.listener);
    host_stop(&host);
}

/* No listener, and a listener that never answers. */
static void test_no_answer(void **state)
{
    (void)state;
    struct wire_self self = self_of(5, 8);
    struct wire_address address = {.text = "127.0.0.1"};
    int listener, fd;
    assert_int_equal(wire_listen(&address, &listener, &error), STATUS_OK);
    double start = seconds_now();
    assert_int_equal(connect_as(&self, &address, 0.5, &fd), STATUS_PEER);
    assert_contains(error.text, "within 0.5 s: no answer");
    assert_true(seconds_now() - start >= 0.5);
    close(listener);
    assert_int_equal(connect_as(&self, &address, 0.3, &fd), STATUS_PEER);
    assert_contains(error.text, "rank 5 cannot connect with rank 0 on first-host at 127.0.0.1:");
    assert_contains(error.text, "Connection refused");
    struct wire_address name = {.text = "localhost", .port = 80};
    assert_int_equal(connect_as(&self, &name, 0.1, &fd), STATUS_PEER);
    assert_contains(error.text, "not a numeric address");
}

/* A listener at the first address that never answers does not delay the connection to the second address. */
static void test_silent_address(void **state)
{
    (void)state;
    struct host host;
    struct wire_self self = self_of(2, 8);
    struct wire_address tried[2] = {{.text = "127.0.0.1"}};
    int listener, fd;
    assert_int_equal(wire_listen(&tried[0], &listener, &error), STATUS_OK);
    host_start(&host, "127.0.0.1");
    tried[1] = host.address;
    assert_int_equal(connect_to(&self, 0, WIRE_STORE, tried, 2, 8, &fd, &error), STATUS_OK);
    wait_taken(&host, 1);
    assert_int_equal(host.last.rank, 2);
    close(fd);
    close(listener);
    host_stop(&host);
}

struct late {
    struct wire_address tried[2];
    enum status status;
    int fd;
};

static void *connect_early(void *argument)
{
    struct late *late = argument;
    struct wire_self self = self_of(2, 8);
    struct error err;
    late->status = connect_to(&self, 0, WIRE_STORE, late->tried, 2, 20, &late->fd, &err);
    return NULL;
}

/* It does not delay it if both start late either: refusals do not lengthen the patience. */
static void test_silent_address_later(void **state)
{
    (void)state;
    struct host host;
    struct late late = {.tried = {{.text = "127.0.0.1"}}, .fd = -1};
    struct wire_address where = {.text = "127.0.0.1"}, again;
    pthread_t thread;
    int silent, listener;
    assert_int_equal(wire_listen(&late.tried[0], &silent, &error), STATUS_OK);
    assert_int_equal(wire_listen(&where, &listener, &error), STATUS_OK);
    late.tried[1] = where;
    again = late.tried[0]; /* the thread reads the other */
    close(silent);
    close(listener);
    assert_int_equal(pthread_create(&thread, NULL, connect_early, &late), 0);
    usleep(2500000);
    assert_int_equal(wire_listen(&again, &silent, &error), STATUS_OK);
    host_start_at(&host, &where);
    pthread_join(thread, NULL);
    assert_int_equal(late.status, STATUS_OK);
    close(late.fd);
    close(silent);
    host_stop(&host);
}

/* ---- mesh ---------------------------------------------------------------- */

enum { WORLD = 5 };

struct mesh_rank {
    struct wire_self self;
    const char *address;
    struct wire_address *all; /* (WORLD) */
    pthread_barrier_t *published;
    int late_ms;
    bool absent;
    double timeout;
    enum status status;
    struct error err;
    int wrong;
    pthread_t thread;
};

static void *mesh_run(void *argument)
{
    struct mesh_rank *me = argument;
    struct wire_server *server;
    struct wire_peer peers[2 * WORLD];
    int listener, count = 0, rank = me->self.rank;
    snprintf(me->all[rank].text, sizeof me->all[rank].text, "%s", me->address);
    me->status = wire_listen(&me->all[rank], &listener, &me->err);
    if (me->status == STATUS_OK) me->status = wire_server_new(&me->self, listener, &server, &me->err);
    pthread_barrier_wait(me->published);
    if (me->status != STATUS_OK) return NULL;
    if (me->absent) {
        wire_server_free(server);
        return NULL;
    }
    usleep((useconds_t)me->late_ms * 1000);
    for (int r = 0; r < WORLD; r++)
        for (int service = WIRE_DATA; r != rank && service <= WIRE_AGENT; service++)
            peers[count++] = (struct wire_peer){.rank = r,
                                                .service = (enum wire_service)service,
                                                .host = "mesh-host",
                                                .addresses = &me->all[r],
                                                .num_addresses = 1};
    me->status = wire_connect(&me->self, server, peers, count, me->timeout, &me->err);
    wire_server_free(server);
    if (me->status != STATUS_OK) {
        for (int i = 0; i < count; i++) me->wrong += peers[i].fd != -1;
        return NULL;
    }
    for (int i = 0; i < count; i++) {
        int word[2] = {rank, (int)peers[i].service};
        if (write(peers[i].fd, word, sizeof word) != sizeof word) me->wrong++;
    }
    for (int i = 0; i < count; i++) {
        int word[2] = {0};
        struct pollfd ready = {.fd = peers[i].fd, .events = POLLIN};
        if (poll(&ready, 1, 5000) != 1 || read(peers[i].fd, word, sizeof word) != sizeof word ||
            word[0] != peers[i].rank || word[1] != (int)peers[i].service)
            me->wrong++;
        close(peers[i].fd);
    }
    return NULL;
}

static void mesh_start(struct mesh_rank ranks[WORLD], const char *address, struct wire_address all[WORLD],
                       pthread_barrier_t *published, double timeout)
{
    pthread_barrier_init(published, NULL, WORLD + 1);
    for (int r = 0; r < WORLD; r++)
        ranks[r] = (struct mesh_rank){
            .self = self_of(r, WORLD), .address = address, .all = all, .published = published, .timeout = timeout};
}

static void mesh_threads(struct mesh_rank ranks[WORLD], pthread_barrier_t *published)
{
    for (int r = 0; r < WORLD; r++) pthread_create(&ranks[r].thread, NULL, mesh_run, &ranks[r]);
    pthread_barrier_wait(published);
}

static void mesh_end(struct mesh_rank ranks[WORLD], pthread_barrier_t *published)
{
    for (int r = 0; r < WORLD; r++) pthread_join(ranks[r].thread, NULL);
    pthread_barrier_destroy(published);
}

static void test_mesh(void **state)
{
    (void)state;
    static const char *const addresses[] = {"127.0.0.1", "::1"};
    for (size_t i = 0; i < COUNT_OF(addresses); i++) {
        struct mesh_rank ranks[WORLD];
        struct wire_address all[WORLD];
        pthread_barrier_t published;
        mesh_start(ranks, addresses[i], all, &published, 20);
        ranks[0].late_ms = 300; /* the others connect before it answers */
        ranks[3].late_ms = 100;
        mesh_threads(ranks, &published);
        /* strangers connect to every rank in the meantime */
        int strangers[WORLD * 20], n = 0;
        for (int r = 0; i == 0 && r < WORLD; r++)
            for (int k = 0; k < 20; k++) {
                struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(all[r].port)};
                inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
                int fd = socket(AF_INET, SOCK_STREAM, 0);
                if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0 && k % 2)
                    send(fd, "ztrain, open the door", 21, MSG_NOSIGNAL);
                strangers[n++] = fd;
            }
        mesh_end(ranks, &published);
        for (int k = 0; k < n; k++) close(strangers[k]);
        for (int r = 0; r < WORLD; r++) {
            if (ranks[r].status != STATUS_OK) fail_msg("rank %d: %s", r, ranks[r].err.text);
            assert_int_equal(ranks[r].wrong, 0);
        }
    }
}

static void test_mesh_without_one(void **state)
{
    (void)state;
    struct mesh_rank ranks[WORLD];
    struct wire_address all[WORLD];
    pthread_barrier_t published;
    mesh_start(ranks, "127.0.0.1", all, &published, 0.7);
    ranks[2].absent = true;
    mesh_threads(ranks, &published);
    mesh_end(ranks, &published);
    for (int r = 0; r < WORLD; r++) {
        if (r == 2) continue;
        assert_int_equal(ranks[r].status, STATUS_PEER);
        assert_int_equal(ranks[r].wrong, 0);
        assert_contains(ranks[r].err.text, "rank 2 on mesh-host");
        assert_contains(ranks[r].err.text, r < 2 ? "has not connected with rank" : "cannot connect with rank 2");
        assert_contains(ranks[r].err.text, "data connection");
        assert_contains(ranks[r].err.text, "within 0.7 s");
        assert_contains(ranks[r].err.text, "and 1 more");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_addresses_of_other_ranks),
        cmocka_unit_test(test_hosts_of_other_ranks),
        cmocka_unit_test(test_host_of_this_machine),
        cmocka_unit_test(test_choice_of_an_address),
        cmocka_unit_test(test_resolve),
        cmocka_unit_test(test_listen_errors),
        cmocka_unit_test(test_friends),
        cmocka_unit_test(test_wrong_ranks),
        cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_too_many_strangers),
        cmocka_unit_test(test_no_descriptors_left),
        cmocka_unit_test(test_replay),
        cmocka_unit_test(test_bytes_one_by_one),
        cmocka_unit_test(test_no_answer),
        cmocka_unit_test(test_silent_address),
        cmocka_unit_test(test_silent_address_later),
        cmocka_unit_test(test_mesh),
        cmocka_unit_test(test_mesh_without_one),
    };
    return cmocka_run_group_tests_name("wire", tests, NULL, NULL);
}
