/* SPDX-License-Identifier: Apache-2.0 */
/* wire_address.c: which addresses a machine has, and which of them its peers reach. See wire.h. */
#include "comm/wire/wire.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sodium.h>
#include <sys/socket.h>

/* ---- text ---------------------------------------------------------------- */

const char *wire_address_print(const struct wire_address *address, char text[WIRE_PRINTED])
{
    bool six = strchr(address->text, ':') != NULL;
    snprintf(text, WIRE_PRINTED, six ? "[%s]:%u" : "%s:%u", address->text, address->port);
    return text;
}

static bool is_numeric_address(const char *text)
{
    struct in6_addr any;
    return inet_pton(AF_INET, text, &any) == 1 || inet_pton(AF_INET6, text, &any) == 1;
}

static bool is_network(const struct wire_host_address *address)
{
    return memchr(address->text, 0, sizeof address->text) && is_numeric_address(address->text) &&
           address->prefix >= 0 && address->prefix <= (strchr(address->text, ':') ? 128 : 32);
}

bool wire_host_is_valid(const struct wire_host *host)
{
    bool valid = host->count >= 0 && host->count <= WIRE_HOST_ADDRESSES;
    for (int i = 0; valid && i < host->count; i++) valid = is_network(&host->addresses[i]);
    return valid;
}

bool wire_address_is_valid(const struct wire_address *address)
{
    return memchr(address->text, 0, sizeof address->text) && is_numeric_address(address->text);
}

struct addrinfo *wire_socket_address(const char *text, uint16_t port)
{
    const struct addrinfo want = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    char service[8];
    snprintf(service, sizeof service, "%u", port);
    int code = getaddrinfo(text, service, &want, &list);
    if (code == EAI_MEMORY) memory_exhausted(0);
    return code == 0 ? list : NULL;
}

enum status wire_resolve(const char *name, uint16_t port, struct wire_address *addresses, int max, int *count,
                         struct error *err)
{
    const struct addrinfo want = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list;
    *count = 0;
    int code = getaddrinfo(name, NULL, &want, &list);
    if (code == EAI_MEMORY) memory_exhausted(0);
    if (code != 0)
        return error_set(err, STATUS_PEER, "cannot find the address of host '%s': %s", name,
                         code == EAI_SYSTEM ? strerror(errno) : gai_strerror(code));
    for (struct addrinfo *one = list; one && *count < max; one = one->ai_next) {
        struct wire_address *out = &addresses[*count];
        if (getnameinfo(one->ai_addr, one->ai_addrlen, out->text, sizeof out->text, NULL, 0, NI_NUMERICHOST) != 0)
            continue;
        out->port = port;
        (*count)++;
    }
    freeaddrinfo(list);
    if (*count == 0) return error_set(err, STATUS_PEER, "host '%s' has no address", name);
    return STATUS_OK;
}

/* ---- this machine -------------------------------------------------------- */

uint64_t wire_kernel_identity(void)
{
    unsigned char hash[crypto_generichash_BYTES_MIN];
    char text[256] = "";
    struct stat space = {0};
    RELEASED(fs_close) int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    const ssize_t n = read(fd, text, 64);
    text[n > 0 ? n : 0] = 0;
    if (stat("/proc/self/ns/net", &space) != 0) space.st_ino = 0;
    size_t length = strlen(text);
    snprintf(text + length, sizeof text - length, "%ju", (uintmax_t)space.st_ino);
    crypto_generichash(hash, sizeof hash, (const unsigned char *)text, strlen(text), NULL, 0);
    uint64_t identity;
    memcpy(&identity, hash, sizeof identity);
    return identity;
}

static const void *address_bits(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET) return &((const struct sockaddr_in *)(const void *)address)->sin_addr;
    return &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
}

static int count_address_bits(const struct sockaddr *mask)
{
    if (!mask) return 0;
    const unsigned char *bits = address_bits(mask);
    int n = 0, size = mask->sa_family == AF_INET ? 4 : 16;
    for (int i = 0; i < size; i++) n += __builtin_popcount(bits[i]);
    return n;
}

static bool link_local(const struct sockaddr *address)
{
    const unsigned char *bits = address_bits(address);
    if (address->sa_family == AF_INET) return bits[0] == 169 && bits[1] == 254;
    return bits[0] == 0xfe && (bits[1] & 0xc0) == 0x80;
}

static bool same_network(const struct wire_host_address *a, const struct wire_host_address *b)
{
    unsigned char x[16], y[16];
    int family = strchr(a->text, ':') ? AF_INET6 : AF_INET;
    if (inet_pton(family, a->text, x) != 1 || inet_pton(family, b->text, y) != 1) return false;
    for (int bit = 0; bit < a->prefix; bit++)
        if ((x[bit / 8] ^ y[bit / 8]) >> (7 - bit % 8) & 1) return false;
    return true;
}

static bool parse_network(const char *text, struct wire_host_address *out)
{
    const char *slash = strchr(text, '/');
    char *end;
    if (!slash || (size_t)(slash - text) >= sizeof out->text || slash[1] < '0' || slash[1] > '9') return false;
    snprintf(out->text, sizeof out->text, "%.*s", (int)(slash - text), text);
    long prefix = strtol(slash + 1, &end, 10);
    out->prefix = (int16_t)(prefix < INT16_MAX ? prefix : INT16_MAX);
    return !*end && is_network(out);
}

/* Whether peers may use the address; fills out. flags: IFF_ flags that its interface must have. */
static bool usable(const struct ifaddrs *one, const char *interface, unsigned flags, struct wire_host_address *out)
{
    if (!inet_ntop(one->ifa_addr->sa_family, address_bits(one->ifa_addr), out->text, sizeof out->text)) return false;
    out->prefix = (int16_t)count_address_bits(one->ifa_netmask);
    struct wire_host_address network; /* that the user means; else a name or an address */
    if (interface &&
        !(parse_network(interface, &network) ? same_network(&network, out)
                                             : !strcmp(interface, one->ifa_name) || !strcmp(interface, out->text)))
        return false;
    if (!interface && (one->ifa_flags & IFF_LOOPBACK)) return false;
    /* a link-local IPv6 address means nothing without the name of the peer's interface */
    if (link_local(one->ifa_addr) && (!interface || one->ifa_addr->sa_family == AF_INET6)) return false;
    return (one->ifa_flags & flags) == flags;
}

static void add_usable(const struct ifaddrs *list, const char *interface, unsigned flags, struct wire_host *host)
{
    const int families[] = {AF_INET, AF_INET6};
    for (size_t f = 0; f < COUNT_OF(families); f++)
        for (const struct ifaddrs *one = list; one; one = one->ifa_next) {
            struct wire_host_address found;
            if (host->count < WIRE_HOST_ADDRESSES && one->ifa_addr && one->ifa_addr->sa_family == families[f] &&
                usable(one, interface, flags, &found))
                host->addresses[host->count++] = found;
        }
}

/* "lo 127.0.0.1, eth0 10.0.0.1", for messages */
static void list_address_names(const struct ifaddrs *list, char *names, size_t size)
{
    names[0] = 0;
    for (const struct ifaddrs *one = list; one; one = one->ifa_next) {
        char text[64];
        size_t length = strlen(names);
        if (one->ifa_addr && (one->ifa_addr->sa_family == AF_INET || one->ifa_addr->sa_family == AF_INET6) &&
            inet_ntop(one->ifa_addr->sa_family, address_bits(one->ifa_addr), text, sizeof text))
            snprintf(names + length, size - length, "%s%s %s", length ? ", " : "", one->ifa_name, text);
    }
}

enum status wire_host_read(const char *interface, struct wire_host *host, struct error *err)
{
    struct ifaddrs *list;
    char names[256] = "";
    *host = (struct wire_host){.kernel = wire_kernel_identity(), .named = interface && *interface};
    if (!host->named) interface = NULL;
    if (getifaddrs(&list) != 0)
        return error_set(err, STATUS_PEER, "cannot list this machine's network interfaces: %s", strerror(errno));
    add_usable(list, interface, host->named ? IFF_UP : IFF_UP | IFF_RUNNING, host);
    if (host->count == 0) /* a cable that was plugged in a moment ago */
        add_usable(list, interface, IFF_UP, host);
    list_address_names(list, names, sizeof names);
    freeifaddrs(list);
    if (host->named && host->count == 0) {
        error_set(err, STATUS_USAGE,
                  "comm.interface: this machine has no interface that is up with name, address or network '%s'",
                  interface);
        return error_hint(err, "it has %s", names);
    }
    return STATUS_OK;
}

/* ---- the one that the peers reach ---------------------------------------- */

/* Whether a machine other than `owner` has the same address. */
static bool ambiguous(const struct wire_host *hosts, int count, const struct wire_host *owner, const char *text)
{
    for (int h = 0; h < count; h++)
        for (int i = 0; hosts[h].kernel != owner->kernel && i < hosts[h].count; i++)
            if (!strcmp(hosts[h].addresses[i].text, text)) return true;
    return false;
}

/* Whether packets to `to` carry the address `from`. Sends nothing. */
static bool address_routed_from(const char *from, const char *to)
{
    struct addrinfo *list = wire_socket_address(to, 9);
    struct sockaddr_storage own;
    socklen_t size = sizeof own;
    char text[64] = "";
    if (!list) return false;
    RELEASED(fs_close) int fd = socket(list->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, list->ai_addr, list->ai_addrlen) == 0 &&
        getsockname(fd, (struct sockaddr *)&own, &size) == 0)
        inet_ntop(own.ss_family, address_bits((struct sockaddr *)&own), text, sizeof text);
    freeaddrinfo(list);
    return !strcmp(text, from);
}

enum { HOST_TEXT = 448 };

/* "10.0.0.1/24, fd00::1/64", for messages */
static const char *list_addresses(const struct wire_host *host, char text[HOST_TEXT])
{
    snprintf(text, HOST_TEXT, "no address");
    for (int i = 0, at = 0; i < host->count && at < HOST_TEXT; i++)
        at += snprintf(text + at, (size_t)(HOST_TEXT - at), "%s%s/%d", i ? ", " : "", host->addresses[i].text,
                       host->addresses[i].prefix);
    return text;
}

enum { UNREACHABLE, ROUTED, NEIGHBOUR };

static int reach(const struct wire_host *hosts, int count, int me, const struct wire_host_address *address,
                 const struct wire_host *peer)
{
    if (peer->kernel == hosts[me].kernel) return NEIGHBOUR;
    int best = UNREACHABLE;
    for (int i = 0; i < peer->count && best < NEIGHBOUR; i++) {
        const struct wire_host_address *other = &peer->addresses[i];
        if (ambiguous(hosts, count, peer, other->text)) continue;
        if (same_network(address, other))
            best = NEIGHBOUR;
        else if (best < ROUTED && address_routed_from(address->text, other->text))
            best = ROUTED;
    }
    return best;
}

enum status wire_choose(const struct wire_host *hosts, int count, int me, struct wire_address *address,
                        struct error *err)
{
    const struct wire_host *own = &hosts[me];
    bool one_kernel = true;
    *address = (struct wire_address){.port = 0};
    for (int h = 0; h < count; h++) one_kernel &= hosts[h].kernel == own->kernel;
    if (one_kernel && !own->named) {
        snprintf(address->text, sizeof address->text, "127.0.0.1");
        return STATUS_OK;
    }
    int64_t best = 0;
    int lonely = me == 0 ? 1 : 0; /* a node that the address examined last does not reach */
    for (int i = 0; i < own->count; i++) {
        const struct wire_host_address *one = &own->addresses[i];
        int64_t score = 1;
        if (ambiguous(hosts, count, own, one->text)) continue;
        for (int h = 0; h < count && score > 0; h++) {
            int way = h == me ? NEIGHBOUR : reach(hosts, count, me, one, &hosts[h]);
            if (way == UNREACHABLE) lonely = h;
            score = way == UNREACHABLE ? 0 : score + way;
        }
        if (score > best) {
            best = score;
            snprintf(address->text, sizeof address->text, "%s", one->text);
        }
    }
    if (best > 0) return STATUS_OK;
    char ours[HOST_TEXT], theirs[HOST_TEXT];
    error_set(err, own->named ? STATUS_USAGE : STATUS_PEER, /* a restart does not fix a name that the user gave */
              "no address of node %d (%s) and node %d (%s) is in one network or has a route (addresses that several "
              "nodes share do not count)",
              me, list_addresses(own, ours), lonely, list_addresses(&hosts[lonely], theirs));
    return error_hint(err, own->named ? "comm.interface has to name an interface or a network that connects all nodes"
                                      : "name an interface that connects all nodes in comm.interface");
}
