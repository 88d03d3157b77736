/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/address.h"

#include "agent/agent_internal.h"
#include "base/error.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

static int bad(struct heft_error *error, const char *text, size_t size, const char *why)
{
    return heft_error_set(error, HEFT_ERR_INVALID,
                          "address '%.*s': %s (write HOST:PORT, [IPv6]:PORT, or unix for peers on this host)",
                          (int)(size < 200 ? size : 200), text, why);
}

static int parse_port(const char *text, size_t size, char port_out[8])
{
    unsigned value = 0;
    size_t index;

    if (size == 0 || size > 5)
        return -1;
    for (index = 0; index < size; index++) {
        if (text[index] < '0' || text[index] > '9')
            return -1;
        value = value * 10 + (unsigned)(text[index] - '0');
    }
    if (value > 65535)
        return -1;
    (void)snprintf(port_out, 8, "%u", value);
    return 0;
}

static int parse_tcp(const char *text, size_t size, struct heft_address *address, struct heft_error *error)
{
    const char *colon = memrchr(text, ':', size);
    const char *host = text;
    size_t host_size;

    if (!colon || parse_port(colon + 1, size - (size_t)(colon + 1 - text), address->port))
        return bad(error, text, size, "no port");
    host_size = (size_t)(colon - text);
    if (host_size >= 2 && host[0] == '[' && host[host_size - 1] == ']') {
        host++;
        host_size -= 2;
    } else if (memchr(host, ':', host_size)) {
        return bad(error, text, size, "an IPv6 address stands in brackets");
    }
    if (host_size == 0 || host_size >= sizeof(address->host))
        return bad(error, text, size, "no host");
    memcpy(address->host, host, host_size);
    address->host[host_size] = 0;
    return 0;
}

int heft_address_next(const char **list, struct heft_address *address_out, struct heft_error *error)
{
    const char *text = *list;
    struct heft_address address = {0};
    size_t size;
    int rc;

    text += strspn(text, ", ");
    if (!*text) {
        *list = text;
        return 0;
    }
    size = strcspn(text, ", ");
    if (size >= 5 && memcmp(text, "unix:", 5) == 0) {
        /* 107 bytes of an abstract name fit a sockaddr_un. */
        if (size < 7 || text[5] != '@' || size - 6 > 107)
            return bad(error, text, size, "not the name of an abstract socket");
        address.is_unix = 1;
        memcpy(address.host, text + 6, size - 6);
    } else {
        size_t skip = size >= 4 && memcmp(text, "tcp:", 4) == 0 ? 4 : 0;

        rc = parse_tcp(text + skip, size - skip, &address, error);
        if (rc)
            return rc;
    }
    *list = text + size;
    *address_out = address;
    return 1;
}

void heft_address_text(const struct heft_address *address, char *text_out, size_t size_bytes)
{
    if (address->is_unix)
        (void)snprintf(text_out, size_bytes, "unix:@%s", address->host);
    else if (strchr(address->host, ':'))
        (void)snprintf(text_out, size_bytes, "tcp:[%s]:%s", address->host, address->port);
    else
        (void)snprintf(text_out, size_bytes, "tcp:%s:%s", address->host, address->port);
}

/* ---- names ---- */

struct lookup {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    int done, abandoned, rc;
    struct heft_address address;
    struct addrinfo *found;
};

static void lookup_free(struct lookup *lookup)
{
    if (lookup->found)
        freeaddrinfo(lookup->found);
    (void)pthread_mutex_destroy(&lookup->lock);
    (void)pthread_cond_destroy(&lookup->cond);
    free(lookup);
}

static void *lookup_main(void *argument)
{
    struct lookup *lookup = argument;
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    int rc = getaddrinfo(lookup->address.host, lookup->address.port, &hints, &found);
    int abandoned;

    (void)pthread_mutex_lock(&lookup->lock);
    lookup->rc = rc;
    lookup->found = rc == 0 ? found : NULL;
    lookup->done = 1;
    abandoned = lookup->abandoned;
    (void)pthread_cond_signal(&lookup->cond);
    (void)pthread_mutex_unlock(&lookup->lock);
    if (abandoned)
        lookup_free(lookup);
    return NULL;
}

/* getaddrinfo has no deadline: it runs in a thread that can be left behind. */
static int look_up(const struct heft_address *address, uint64_t until_ns, struct addrinfo **found_out,
                   struct heft_error *error)
{
    struct lookup *lookup = calloc(1, sizeof(*lookup));
    pthread_attr_t attributes;
    pthread_t thread;
    int rc, done;

    if (!lookup)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory");
    (void)pthread_mutex_init(&lookup->lock, NULL);
    heft_cond_init(&lookup->cond);
    lookup->address = *address;
    (void)pthread_attr_init(&attributes);
    (void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    rc = pthread_create(&thread, &attributes, lookup_main, lookup);
    (void)pthread_attr_destroy(&attributes);
    if (rc) {
        lookup_free(lookup);
        return heft_error_set_errno(error, rc, "starting a thread to look up '%s'", address->host);
    }
    (void)pthread_mutex_lock(&lookup->lock);
    while (!lookup->done && heft_cond_wait_until(&lookup->cond, &lookup->lock, until_ns) == 0)
        ;
    done = lookup->done;
    lookup->abandoned = !done;
    rc = lookup->rc;
    *found_out = lookup->found;
    if (done)
        lookup->found = NULL;
    (void)pthread_mutex_unlock(&lookup->lock);
    if (!done)
        return heft_error_set(error, HEFT_ERR_DEADLINE, "looking up the host '%s' took too long",
                              address->host);
    lookup_free(lookup);
    if (rc)
        return heft_error_set(error, HEFT_ERR_NOT_FOUND, "host '%s' was not found: %s", address->host,
                              gai_strerror(rc));
    return 0;
}

int heft_address_resolve(const struct heft_address *address, int passive, uint64_t until_ns,
                         struct heft_socket_address *addresses_out, size_t *count_out,
                         struct heft_error *error)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | (passive ? AI_PASSIVE : 0)};
    struct addrinfo *found = NULL, *each;
    size_t count = 0;
    int rc;

    if (address->is_unix) {
        struct sockaddr_un unix_address = {.sun_family = AF_UNIX};
        size_t size = strlen(address->host);

        memcpy(unix_address.sun_path + 1, address->host, size);
        memset(&addresses_out[0], 0, sizeof(addresses_out[0]));
        memcpy(&addresses_out[0].address, &unix_address, sizeof(unix_address));
        addresses_out[0].length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + size);
        *count_out = 1;
        return 0;
    }
    if (getaddrinfo(address->host, address->port, &hints, &found) != 0) {
        rc = look_up(address, until_ns, &found, error);
        if (rc)
            return rc;
    }
    for (each = found; each && count < HEFT_ADDRESS_RESOLVED_MAX; each = each->ai_next) {
        if (each->ai_family != AF_INET && each->ai_family != AF_INET6)
            continue;
        memset(&addresses_out[count], 0, sizeof(addresses_out[count]));
        memcpy(&addresses_out[count].address, each->ai_addr, each->ai_addrlen);
        addresses_out[count++].length = each->ai_addrlen;
    }
    freeaddrinfo(found);
    if (!count)
        return heft_error_set(error, HEFT_ERR_NOT_FOUND, "host '%s' has no IP address", address->host);
    *count_out = count;
    return 0;
}
