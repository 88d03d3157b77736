/* SPDX-License-Identifier: Apache-2.0 */
/* TLS between agents: who is let in, what each side says to the other that lacks it, and what is read again.
 */
#include "pair.h"

#include "certs.h"

#include <openssl/ssl.h>

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#define BIG_BYTES ((uint64_t)12 << 20)
#define DAY_S 86400L

static struct test_authority ours, theirs;
static char server_folder[64], client_folder[64];

static int make_files(void **state)
{
    (void)state;
    certs_authority_make(&ours, "ours");
    certs_authority_make(&theirs, "theirs");
    certs_folder_make(server_folder);
    certs_folder_make(client_folder);
    return 0;
}

static int remove_files(void **state)
{
    (void)state;
    certs_folder_remove(server_folder);
    certs_folder_remove(client_folder);
    certs_authority_free(&ours);
    certs_authority_free(&theirs);
    return 0;
}

static int fresh_files(void **state)
{
    (void)state;
    certs_write(server_folder, &ours, &ours, "a-server", -60, DAY_S);
    certs_write(client_folder, &ours, &ours, "a-client", -60, DAY_S);
    return 0;
}

struct tls_paths {
    char ca[96], cert[96], key[96];
};

static void use_files(struct heft_agent_options *options, struct tls_paths *paths, const char *folder)
{
    (void)snprintf(paths->ca, sizeof(paths->ca), "%s/ca.pem", folder);
    (void)snprintf(paths->cert, sizeof(paths->cert), "%s/cert.pem", folder);
    (void)snprintf(paths->key, sizeof(paths->key), "%s/key.pem", folder);
    options->tls_ca = paths->ca;
    options->tls_cert = paths->cert;
    options->tls_key = paths->key;
}

/* folder NULL: without TLS. */
static struct heft_agent *open_tls(const char *name, const char *listen, const char *folder)
{
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_agent *agent = NULL;
    struct tls_paths paths;

    options.name = name;
    options.listen = listen;
    options.transports = "tcp";
    options.workers = 2;
    options.heartbeat_ms = 50;
    options.peer_timeout_ms = 4000;
    options.handshake_timeout_ms = 2000;
    if (folder)
        use_files(&options, &paths, folder);
    if (heft_agent_open(&options, &agent, &error))
        fail_msg("opening %s: %s", name, error.text);
    return agent;
}

static int connect_error(struct heft_agent *client, struct heft_agent *server, struct heft_error *error)
{
    char addresses[2048];
    struct heft_peer_options options = peer_options(server, addresses);
    struct heft_peer *peer = NULL;
    int rc = heft_peer_connect(client, &options, &peer, error);

    if (peer)
        assert_int_equal(heft_peer_close(peer, NULL), 0);
    return rc;
}

static void assert_says(const struct heft_error *error, const char *words)
{
    if (!strstr(error->text, words))
        fail_msg("'%s' does not say '%s'", error->text, words);
}

static void move(struct heft_agent *agent, struct heft_peer *peer, enum heft_op op, struct heft_region *near,
                 struct heft_region *far, uint64_t length, uint64_t count)
{
    struct heft_run run = {.local_region = near,
                           .remote_region = heft_region_id(far),
                           .length_bytes = length,
                           .count = count,
                           .local_stride_bytes = 2 * length,
                           .remote_stride_bytes = 2 * length};
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_xfer *xfer = NULL;

    if (heft_xfer_create(agent, op, peer, &run, 1, NULL, &xfer, &error) || heft_xfer_post(xfer, &error))
        fail_msg("%s", error.text);
    assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
    assert_int_equal(heft_xfer_release(xfer), 0);
}

static void bytes_go_both_ways_and_documents_come_whole(void **state)
{
    struct heft_agent *server = open_tls("server", "127.0.0.1:0", server_folder);
    struct heft_agent *client = open_tls("client", NULL, client_folder);
    uint8_t *far = malloc(BIG_BYTES), *near = calloc(1, BIG_BYTES), *told;
    struct heft_region *far_region, *near_region;
    struct heft_peer *peer;
    struct heft_error error = HEFT_ERROR_INIT;
    uint64_t size = 0;
    void *document = NULL;

    (void)state;
    for (uint64_t i = 0; i < BIG_BYTES; i++)
        far[i] = (uint8_t)(i * 7 + i / 251);
    assert_int_equal(heft_agent_set_document(server, "d", far, BIG_BYTES / 2, NULL), 0);
    far_region = register_bytes(server, far, BIG_BYTES, HEFT_REGION_REMOTE_READ | HEFT_REGION_REMOTE_WRITE);
    near_region = register_bytes(client, near, BIG_BYTES, 0);
    peer = connect_to(client, server);
    move(client, peer, HEFT_OP_READ, near_region, far_region, BIG_BYTES, 1);
    assert_memory_equal(near, far, BIG_BYTES);
    /* pieces far smaller than a record, with gaps */
    memset(far, 0, BIG_BYTES);
    move(client, peer, HEFT_OP_WRITE, near_region, far_region, 100, 20000);
    for (uint64_t i = 0; i < 20000; i++) {
        assert_memory_equal(far + i * 200, near + i * 200, 100);
        assert_int_equal(far[i * 200 + 100], 0);
    }
    memset(near, 0x55, BIG_BYTES);
    move(client, peer, HEFT_OP_READ, near_region, far_region, 1, 50000);
    for (uint64_t i = 0; i < 50000; i++) {
        assert_int_equal(near[2 * i], far[2 * i]);
        assert_int_equal(near[2 * i + 1], 0x55);
    }
    move(client, peer, HEFT_OP_WRITE, near_region, far_region, BIG_BYTES, 1);
    assert_memory_equal(near, far, BIG_BYTES);
    if (heft_peer_read_document(peer, "d", BIG_BYTES, 20000, &document, &size, &error))
        fail_msg("%s", error.text);
    assert_int_equal(size, BIG_BYTES / 2);
    told = document;
    for (uint64_t i = 0; i < size; i += 997)
        assert_int_equal(told[i], (uint8_t)(i * 7 + i / 251));
    heft_free(document);
    assert_int_equal(heft_agent_close(client, NULL), 0);
    assert_int_equal(heft_agent_close(server, NULL), 0);
    free(near);
    free(far);
}

static void a_plain_client_is_told_that_the_server_speaks_tls(void **state)
{
    struct heft_agent *server = open_tls("server", "127.0.0.1:0", server_folder);
    struct heft_agent *client = open_tls("client", NULL, NULL);
    struct heft_error error = HEFT_ERROR_INIT;

    (void)state;
    assert_int_equal(connect_error(client, server, &error), HEFT_ERR_DENIED);
    assert_says(&error, "speaks TLS only");
    assert_says(&error, "tls_ca");
    assert_true(STAT(server, handshakes_refused) == 1);
    assert_int_equal(heft_agent_close(client, NULL), 0);
    assert_int_equal(heft_agent_close(server, NULL), 0);
}

static void a_tls_client_is_told_that_the_server_speaks_none(void **state)
{
    struct heft_agent *server = open_tls("server", "127.0.0.1:0", NULL);
    struct heft_agent *client = open_tls("client", NULL, client_folder);
    struct heft_error error = HEFT_ERROR_INIT;

    (void)state;
    assert_int_equal(connect_error(client, server, &error), HEFT_ERR_DENIED);
    assert_says(&error, "the server does not speak TLS");
    assert_says(&error, "tls_ca");
    assert_int_equal(heft_agent_close(client, NULL), 0);
    assert_int_equal(heft_agent_close(server, NULL), 0);
}

static void unix_sockets_stay_plain_beside_tls(void **state)
{
    struct heft_agent *server = open_tls("server", "unix,127.0.0.1:0", server_folder);
    struct heft_agent *client = open_tls("client", NULL, NULL);
    struct heft_error error = HEFT_ERROR_INIT;

    (void)state;
    assert_int_equal(connect_error(client, server, &error), 0);
    assert_int_equal(heft_agent_close(client, NULL), 0);
    assert_int_equal(heft_agent_close(server, NULL), 0);
}

static void an_untrusted_certificate_is_named_to_whoever_must_mend_it(void **state)
{
    static const struct {
        int server_strange;
        const char *says, *also;
    } table[] = {
        {0, "the server does not trust this side's certificate", "tls_ca"},
        {1, "CN=a-server", "is not trusted here"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct heft_error error = HEFT_ERROR_INIT;
        struct heft_agent *server, *client;

        /* each still trusts ours; the stranger was signed by theirs */
        certs_write(server_folder, &ours, table[i].server_strange ? &theirs : &ours, "a-server", -60, DAY_S);
        certs_write(client_folder, &ours, table[i].server_strange ? &ours : &theirs, "a-client", -60, DAY_S);
        server = open_tls("server", "127.0.0.1:0", server_folder);
        client = open_tls("client", NULL, client_folder);
        assert_int_equal(connect_error(client, server, &error), HEFT_ERR_DENIED);
        assert_says(&error, table[i].says);
        assert_says(&error, table[i].also);
        assert_true(STAT(server, peers_accepted) == 0);
        assert_int_equal(heft_agent_close(client, NULL), 0);
        assert_int_equal(heft_agent_close(server, NULL), 0);
    }
}

static void an_expired_certificate_is_said_to_be_expired(void **state)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_agent *server, *client;

    (void)state;
    certs_write(server_folder, &ours, &ours, "a-server", -2 * DAY_S, DAY_S);
    server = open_tls("server", "127.0.0.1:0", server_folder);
    client = open_tls("client", NULL, client_folder);
    assert_int_equal(connect_error(client, server, &error), HEFT_ERR_DENIED);
    assert_says(&error, "expired");
    assert_says(&error, "give that agent a new one");
    assert_int_equal(heft_agent_close(client, NULL), 0);
    assert_int_equal(heft_agent_close(server, NULL), 0);
}

static void replaced_files_are_used_by_the_next_connection(void **state)
{
    struct heft_agent *server = open_tls("server", "127.0.0.1:0", server_folder);
    struct heft_agent *client = open_tls("client", NULL, client_folder);
    struct heft_peer *before = connect_to(client, server);
    struct heft_error error = HEFT_ERROR_INIT;
    char path[128];
    FILE *file;

    (void)state;
    certs_write(server_folder, &theirs, &theirs, "a-server", -60, DAY_S);
    assert_int_equal(connect_error(client, server, &error), HEFT_ERR_DENIED);
    certs_write(client_folder, &theirs, &theirs, "a-client", -60, DAY_S);
    assert_int_equal(connect_error(client, server, &error), 0);
    /* half-written files change nothing */
    (void)snprintf(path, sizeof(path), "%s/cert.pem", server_folder);
    file = fopen(path, "we");
    assert_non_null(file);
    (void)fputs("-----BEGIN CERTIFICATE-----\nnot yet", file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(connect_error(client, server, &error), 0);
    /* and the connection of before lives */
    assert_int_equal(heft_peer_status(before, NULL), 0);
    assert_int_equal(heft_peer_close(before, NULL), 0);
    assert_int_equal(heft_agent_close(client, NULL), 0);
    assert_int_equal(heft_agent_close(server, NULL), 0);
}

static int open_error(const struct heft_agent_options *options, struct heft_error *error)
{
    struct heft_agent *agent = NULL;
    int rc = heft_agent_open(options, &agent, error);

    if (agent)
        (void)heft_agent_close(agent, NULL);
    return rc;
}

static void wrong_files_are_refused_by_name_when_the_agent_opens(void **state)
{
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct tls_paths paths, others;

    (void)state;
    use_files(&options, &others, client_folder);
    use_files(&options, &paths, server_folder);
    options.tls_key = NULL;
    assert_int_equal(open_error(&options, &error), HEFT_ERR_INVALID);
    assert_says(&error, "tls_key is missing");
    options.tls_key = others.key;
    assert_int_equal(open_error(&options, &error), HEFT_ERR_INVALID);
    assert_says(&error, others.key);
    options.tls_key = paths.key;
    options.tls_ca = "/nonexistent/ca.pem";
    assert_int_equal(open_error(&options, &error), HEFT_ERR_INVALID);
    assert_says(&error, "/nonexistent/ca.pem");
    options.tls_ca = paths.ca;
    options.tls_cert = paths.key;
    assert_int_equal(open_error(&options, &error), HEFT_ERR_INVALID);
    assert_says(&error, "tls_cert");
}

/* ---- strangers ---- */

static int raw_connect(struct heft_agent *server)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char addresses[2048];
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_int_equal(heft_agent_addresses(server, addresses, sizeof(addresses)), 0);
    address.sin_port = htons((uint16_t)strtol(strrchr(addresses, ':') + 1, NULL, 10));
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

static void await_end(int fd)
{
    char waste[4096];

    for (;;) {
        struct pollfd watched = {fd, POLLIN, 0};

        if (poll(&watched, 1, 20000) != 1)
            fail_msg("the server did not hang up");
        if (recv(fd, waste, sizeof(waste), 0) <= 0)
            break;
    }
    (void)close(fd);
}

/* Whether a TLS client of this version, with or without the certificate, gets an answer to a frame. */
static int raw_tls(struct heft_agent *server, int version, int with_certificate)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    char path[128], byte;
    SSL *ssl;
    int fd = raw_connect(server), answered = 0;

    assert_int_equal(SSL_CTX_set_max_proto_version(ctx, version), 1);
    if (with_certificate) {
        (void)snprintf(path, sizeof(path), "%s/cert.pem", client_folder);
        assert_int_equal(SSL_CTX_use_certificate_chain_file(ctx, path), 1);
        (void)snprintf(path, sizeof(path), "%s/key.pem", client_folder);
        assert_int_equal(SSL_CTX_use_PrivateKey_file(ctx, path, SSL_FILETYPE_PEM), 1);
    }
    ssl = SSL_new(ctx);
    assert_int_equal(SSL_set_fd(ssl, fd), 1);
    if (SSL_connect(ssl) == 1) {
        char frame[64] = "GET / HTTP/1.1\r\n\r\n";

        (void)SSL_write(ssl, frame, sizeof(frame));
        answered = SSL_read(ssl, &byte, 1) == 1;
    }
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    (void)close(fd);
    return answered;
}

static void strangers_get_no_answer_and_harm_nothing(void **state)
{
    struct heft_agent *server = open_tls("server", "127.0.0.1:0", server_folder);
    struct heft_agent *client = open_tls("client", NULL, client_folder);
    struct heft_error error = HEFT_ERROR_INIT;
    unsigned seed = 7;

    (void)state;
    assert_int_equal(raw_tls(server, TLS1_3_VERSION, 1), 1); /* a REFUSE frame */
    assert_int_equal(raw_tls(server, TLS1_3_VERSION, 0), 0);
    assert_int_equal(raw_tls(server, TLS1_2_VERSION, 1), 0);
    for (int round = 0; round < 40; round++) {
        int fd = raw_connect(server);
        char bytes[600];

        for (size_t i = 0; i < sizeof(bytes); i++)
            bytes[i] = (char)rand_r(&seed);
        if (round % 2 == 0) { /* looks like the beginning of TLS */
            bytes[0] = 22;
            bytes[1] = 3;
            bytes[2] = 1;
        }
        (void)send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL);
        (void)shutdown(fd, SHUT_WR);
        await_end(fd);
    }
    await_end(raw_connect(server)); /* says nothing: the handshake's time runs out */
    assert_int_equal(connect_error(client, server, &error), 0);
    assert_int_equal(heft_agent_close(client, NULL), 0);
    assert_int_equal(heft_agent_close(server, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(bytes_go_both_ways_and_documents_come_whole, fresh_files),
        cmocka_unit_test_setup(a_plain_client_is_told_that_the_server_speaks_tls, fresh_files),
        cmocka_unit_test_setup(a_tls_client_is_told_that_the_server_speaks_none, fresh_files),
        cmocka_unit_test_setup(unix_sockets_stay_plain_beside_tls, fresh_files),
        cmocka_unit_test_setup(an_untrusted_certificate_is_named_to_whoever_must_mend_it, fresh_files),
        cmocka_unit_test_setup(an_expired_certificate_is_said_to_be_expired, fresh_files),
        cmocka_unit_test_setup(replaced_files_are_used_by_the_next_connection, fresh_files),
        cmocka_unit_test_setup(wrong_files_are_refused_by_name_when_the_agent_opens, fresh_files),
        cmocka_unit_test_setup(strangers_get_no_answer_and_harm_nothing, fresh_files),
    };

    return cmocka_run_group_tests_name("tls", tests, make_files, remove_files);
}
