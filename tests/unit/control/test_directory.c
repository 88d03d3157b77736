/* SPDX-License-Identifier: Apache-2.0 */
/* The directory service and its client over a real connection, in one process. */
#include "base/clock.h"
#include "control/directory_service.h"
#include "control/grpc_client.h"
#include "control/record_proto.h"
#include "load/directory.h"

#include <arpa/inet.h>
#include <heft/control.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

struct fixture {
    struct heft_directory_service *service;
    struct heft_grpc_server *server;
    struct heft_directory *directory;
    char address[32];
    uint64_t now_ns;
    int puts, touches, removes, fail_puts;
};

static uint64_t read_ns(void *context)
{
    return __atomic_load_n((uint64_t *)context, __ATOMIC_SEQ_CST);
}

static int on_put(void *context, const struct heft_stored_record *record, struct heft_error *error)
{
    struct fixture *fixture = context;

    (void)record;
    (void)__atomic_fetch_add(&fixture->puts, 1, __ATOMIC_SEQ_CST);
    if (!__atomic_load_n(&fixture->fail_puts, __ATOMIC_SEQ_CST))
        return 0;
    error->code = HEFT_ERR_NO_SPACE;
    (void)snprintf(error->text, sizeof(error->text), "disk full");
    return HEFT_ERR_NO_SPACE;
}

static int on_touch(void *context, const char *name, const struct heft_generation *generation,
                    uint64_t lease_ms, uint64_t end_wall_ms, struct heft_error *error)
{
    (void)name;
    (void)generation;
    (void)lease_ms;
    (void)end_wall_ms;
    (void)error;
    (void)__atomic_fetch_add(&((struct fixture *)context)->touches, 1, __ATOMIC_SEQ_CST);
    return 0;
}

static int on_remove(void *context, const char *name, struct heft_error *error)
{
    (void)name;
    (void)error;
    (void)__atomic_fetch_add(&((struct fixture *)context)->removes, 1, __ATOMIC_SEQ_CST);
    return 0;
}

static int echo(void *context, const struct heft_grpc_request *request, struct heft_buf *reply,
                struct heft_error *error)
{
    (void)context;
    (void)error;
    heft_buf_bytes(reply, request->data, request->size_bytes);
    return 0;
}

static int refuse(void *context, const struct heft_grpc_request *request, struct heft_buf *reply,
                  struct heft_error *error)
{
    (void)request;
    (void)reply;
    error->code = __atomic_load_n((int *)context, __ATOMIC_SEQ_CST);
    (void)snprintf(error->text, sizeof(error->text), "because\nof 100%% reasons");
    return error->code;
}

static int refusal;

static void start(struct fixture *fixture, const char *listen, uint64_t epoch)
{
    struct heft_grpc_server_options server_options = {
        .listen = listen, .max_request_bytes = 65536, .max_call_ms = 20000, .handshake_ms = 1000};
    struct heft_directory_service_options options = {.limits = HEFT_LEASE_LIMITS_INIT,
                                                     .clock = {read_ns, &fixture->now_ns},
                                                     .wall = {read_ns, &fixture->now_ns},
                                                     .epoch = epoch};
    struct heft_error error = HEFT_ERROR_INIT;

    options.limits.max_record_bytes = 50000;
    options.persistence = (struct heft_directory_persistence){on_put, on_touch, on_remove, fixture, "test:"};
    assert_int_equal(heft_directory_service_new(&options, &fixture->service, &error), 0);
    assert_int_equal(heft_grpc_server_new(&server_options, &fixture->server, &error), 0);
    assert_int_equal(heft_directory_service_register(fixture->service, fixture->server, &error), 0);
    assert_int_equal(heft_grpc_server_add(fixture->server, "/test.Test/Echo", echo, NULL, &error), 0);
    assert_int_equal(heft_grpc_server_add(fixture->server, "/test.Test/Refuse", refuse, &refusal, &error), 0);
    if (heft_grpc_server_start(fixture->server, &error))
        fail_msg("%s", error.text);
}

static void stop(struct fixture *fixture)
{
    heft_grpc_server_free(fixture->server, 1000);
    heft_directory_service_free(fixture->service);
}

static int set_up(void **state)
{
    struct fixture *fixture = calloc(1, sizeof(*fixture));
    struct heft_directory_options options = HEFT_DIRECTORY_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;

    assert_non_null(fixture);
    heft_control_init();
    fixture->now_ns = 1000 * HEFT_NS_PER_S;
    start(fixture, "127.0.0.1:0", 5);
    (void)snprintf(fixture->address, sizeof(fixture->address), "127.0.0.1:%u",
                   heft_grpc_server_port(fixture->server));
    options.address = fixture->address;
    if (heft_directory_open(&options, &fixture->directory, &error))
        fail_msg("%s", error.text);
    *state = fixture;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *fixture = *state;

    heft_directory_close(fixture->directory);
    stop(fixture);
    free(fixture);
    return 0;
}

static struct heft_record make_record(const char *name, uint8_t generation)
{
    static const struct heft_identity_pair pairs[] = {{"dtype", "bf16"}, {"quant", "none"}};
    static const struct heft_identity identity = {"org/m", "abc", "processed", "fp1", "tp=0/2", pairs, 2};
    struct heft_record record;

    memset(&record, 0, sizeof(record));
    record.name = strdup(name);
    record.addresses = strdup("unix:@heft-x,tcp:127.0.0.1:1");
    record.generation.bytes[0] = generation;
    record.token.bytes[31] = 9;
    record.table_digest = UINT64_C(0xfedcba9876543210);
    record.content_digest = 7;
    record.tensor_count = 3;
    record.total_bytes = (uint64_t)1 << 40;
    record.block_count = 12;
    record.held_blocks = 3;
    record.held = malloc(2);
    record.held[0] = 0x81;
    record.held[1] = 0x08;
    record.lease_ms = 10000;
    assert_int_equal(heft_record_set_identity(&record, &identity), 0);
    return record;
}

static void every_field_survives_the_round_trip(void **state)
{
    struct fixture *fixture = *state;
    struct heft_record record = make_record("r1", 1);
    struct heft_record_list list;
    struct heft_error error = HEFT_ERROR_INIT;
    const struct heft_record *got;
    uint64_t epoch = 0;

    if (fixture->directory->ops->publish(fixture->directory, &record, &epoch, &error))
        fail_msg("%s", error.text);
    assert_int_equal(epoch, 5);
    (void)__atomic_fetch_add(&fixture->now_ns, 1500 * HEFT_NS_PER_MS, __ATOMIC_SEQ_CST);
    if (fixture->directory->ops->list(fixture->directory, NULL, &list, &error))
        fail_msg("%s", error.text);
    assert_int_equal(list.count, 1);
    assert_int_equal(list.epoch, 5);
    got = &list.records[0];
    assert_string_equal(got->name, "r1");
    assert_string_equal(got->addresses, record.addresses);
    assert_memory_equal(&got->generation, &record.generation, sizeof(record.generation));
    assert_memory_equal(&got->token, &record.token, sizeof(record.token));
    assert_int_equal(heft_identity_compare(&got->identity, &record.identity, NULL), 0);
    assert_true(got->table_digest == record.table_digest);
    assert_true(got->content_digest == 7 && got->tensor_count == 3 && got->total_bytes == record.total_bytes);
    assert_true(got->block_count == 12 && got->held_blocks == 3);
    assert_memory_equal(got->held, record.held, 2);
    assert_int_equal(got->lease_ms, 10000);
    assert_int_equal(got->lease_left_ms, 8500);
    assert_int_equal(got->published_wall_ms, 1000000);
    assert_int_equal(got->epoch, 5);
    heft_record_list_free(&list);
    heft_record_free(&record);
}

static void codes_of_the_directory_reach_the_caller(void **state)
{
    struct fixture *fixture = *state;
    struct heft_directory *directory = fixture->directory;
    struct heft_record old = make_record("r1", 1), new = make_record("r1", 2);
    struct heft_generation one = old.generation;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_record_list list;

    assert_int_equal(directory->ops->renew(directory, "r1", &one, 10000, NULL, &error), HEFT_ERR_NOT_FOUND);
    assert_int_equal(directory->ops->publish(directory, &old, NULL, &error), 0);
    assert_int_equal(directory->ops->renew(directory, "r1", &one, 20000, NULL, &error), 0);
    assert_int_equal(__atomic_load_n(&fixture->touches, __ATOMIC_SEQ_CST), 1);
    assert_int_equal(directory->ops->publish(directory, &new, NULL, &error), 0);
    assert_int_equal(directory->ops->renew(directory, "r1", &one, 10000, NULL, &error), HEFT_ERR_STALE);
    assert_non_null(strstr(error.text, "generation 02"));
    assert_int_equal(directory->ops->publish(directory, &old, NULL, &error), HEFT_ERR_STALE);
    assert_int_equal(directory->ops->withdraw(directory, "r1", &one, &error), HEFT_ERR_STALE);
    assert_int_equal(directory->ops->withdraw(directory, "r1", &new.generation, &error), 0);
    assert_int_equal(__atomic_load_n(&fixture->removes, __ATOMIC_SEQ_CST), 1);
    assert_int_equal(directory->ops->withdraw(directory, "r1", &new.generation, &error), HEFT_ERR_NOT_FOUND);
    assert_int_equal(directory->ops->list(directory, NULL, &list, &error), 0);
    assert_int_equal(list.count, 0);
    heft_record_list_free(&list);
    new.held_blocks = 4;
    assert_int_equal(directory->ops->publish(directory, &new, NULL, &error), HEFT_ERR_INVALID);
    assert_non_null(strstr(error.text, "bitmap"));
    new.held_blocks = 3;
    new.lease_ms = 99999999;
    assert_int_equal(directory->ops->publish(directory, &new, NULL, &error), HEFT_ERR_TOO_LARGE);
    assert_non_null(strstr(error.text, "lease-max"));
    heft_record_free(&old);
    heft_record_free(&new);
}

static void an_expired_record_is_not_listed_and_its_renewal_says_publish_again(void **state)
{
    struct fixture *fixture = *state;
    struct heft_directory *directory = fixture->directory;
    struct heft_record record = make_record("r1", 1);
    struct heft_record_query all = {.all = 1};
    struct heft_record_list list;
    struct heft_error error = HEFT_ERROR_INIT;

    assert_int_equal(directory->ops->publish(directory, &record, NULL, &error), 0);
    (void)__atomic_fetch_add(&fixture->now_ns, 10 * HEFT_NS_PER_S, __ATOMIC_SEQ_CST);
    assert_int_equal(directory->ops->list(directory, NULL, &list, &error), 0);
    assert_int_equal(list.count, 0);
    heft_record_list_free(&list);
    assert_int_equal(directory->ops->list(directory, &all, &list, &error), 0);
    assert_int_equal(list.count, 1);
    assert_int_equal(list.records[0].lease_left_ms, 0);
    heft_record_list_free(&list);
    assert_int_equal(directory->ops->renew(directory, "r1", &record.generation, 0, NULL, &error),
                     HEFT_ERR_NOT_FOUND);
    assert_int_equal(heft_directory_service_reap(fixture->service), 1);
    assert_int_equal(__atomic_load_n(&fixture->removes, __ATOMIC_SEQ_CST), 1);
    heft_record_free(&record);
}

static void a_restarted_daemon_is_found_by_the_next_call(void **state)
{
    struct fixture *fixture = *state;
    struct heft_directory *directory = fixture->directory;
    struct heft_record record = make_record("r1", 1);
    struct heft_error error = HEFT_ERROR_INIT;
    uint64_t epoch = 0;

    assert_int_equal(directory->ops->publish(directory, &record, NULL, &error), 0);
    stop(fixture);
    assert_int_equal(directory->ops->renew(directory, "r1", &record.generation, 0, NULL, &error),
                     HEFT_ERR_UNAVAILABLE);
    assert_non_null(strstr(error.text, "heftd --listen"));
    assert_non_null(strstr(error.text, fixture->address));
    start(fixture, fixture->address, 6);
    assert_int_equal(directory->ops->renew(directory, "r1", &record.generation, 0, NULL, &error),
                     HEFT_ERR_NOT_FOUND);
    assert_int_equal(directory->ops->publish(directory, &record, &epoch, &error), 0);
    assert_int_equal(epoch, 6);
    heft_record_free(&record);
}

static void a_silent_listener_ends_in_a_deadline(void **state)
{
    struct heft_directory_options options = HEFT_DIRECTORY_OPTIONS_INIT;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct heft_record_list list;
    struct heft_directory *directory;
    struct heft_error error = HEFT_ERROR_INIT;
    uint64_t begin_ns = heft_now_ns();
    char text[32];

    (void)state;
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(fd, 4), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    (void)snprintf(text, sizeof(text), "127.0.0.1:%u", ntohs(address.sin_port));
    options.address = text;
    options.timeout_ms = 200;
    assert_int_equal(heft_directory_open(&options, &directory, &error), 0);
    assert_int_equal(directory->ops->list(directory, NULL, &list, &error), HEFT_ERR_DEADLINE);
    assert_true(heft_now_ns() - begin_ns < 5 * HEFT_NS_PER_S);
    assert_non_null(strstr(error.text, "200 ms"));
    heft_directory_close(directory);
    (void)close(fd);
}

static void a_list_of_many_pages_is_whole_and_in_order(void **state)
{
    struct fixture *fixture = *state;
    struct heft_directory *directory = fixture->directory;
    struct heft_record record = make_record("x", 1);
    struct heft_record_query query = {.model = "org/m", .revision = "abc", .stage = "processed"};
    struct heft_record_list list;
    struct heft_error error = HEFT_ERROR_INIT;
    char name[32];
    size_t index;

    free(record.held);
    record.block_count = 300000; /* 37.5 kB each: three pages */
    record.held_blocks = 299999;
    record.held = malloc(37500);
    memset(record.held, 255, 37500);
    record.held[0] = 254;
    for (index = 0; index < 60; index++) {
        (void)snprintf(name, sizeof(name), "r%02zu", index);
        free(record.name);
        record.name = strdup(name);
        if (directory->ops->publish(directory, &record, NULL, &error))
            fail_msg("%s", error.text);
    }
    if (directory->ops->list(directory, &query, &list, &error))
        fail_msg("%s", error.text);
    assert_int_equal(list.count, 60);
    for (index = 0; index < 60; index++) {
        (void)snprintf(name, sizeof(name), "r%02zu", index);
        assert_string_equal(list.records[index].name, name);
        assert_memory_equal(list.records[index].held, record.held, 37500);
    }
    heft_record_list_free(&list);
    query.stage = "raw";
    assert_int_equal(directory->ops->list(directory, &query, &list, &error), 0);
    assert_int_equal(list.count, 0);
    heft_record_list_free(&list);
    heft_record_free(&record);
}

static void a_record_over_a_limit_is_refused_with_its_name(void **state)
{
    struct fixture *fixture = *state;
    struct heft_directory *directory = fixture->directory;
    struct heft_record record = make_record("big", 1);
    struct heft_error error = HEFT_ERROR_INIT;

    free(record.held);
    record.block_count = 8 * 51000;
    record.held = calloc(1, 51000);
    record.held_blocks = 0;
    assert_int_equal(directory->ops->publish(directory, &record, NULL, &error), HEFT_ERR_TOO_LARGE);
    assert_non_null(strstr(error.text, "max-record-bytes"));
    free(record.held);
    record.block_count = 8 * 70000; /* over the server's message limit: gRPC itself refuses */
    record.held = calloc(1, 70000);
    assert_int_equal(directory->ops->publish(directory, &record, NULL, &error), HEFT_ERR_TOO_LARGE);
    assert_non_null(strstr(error.text, "65536"));
    heft_record_free(&record);
}

static void a_token_does_not_leave_the_host_over_a_plain_connection(void **state)
{
    struct heft_directory_options options = HEFT_DIRECTORY_OPTIONS_INIT;
    struct heft_record record = make_record("r1", 1);
    struct heft_directory *directory;
    struct heft_error error = HEFT_ERROR_INIT;
    size_t index;
    static const char *const remote[] = {"192.0.2.1:8001", "grpc://[2001:db8::1]:8001", "heftd.example:8001"};

    (void)state;
    options.timeout_ms = 100;
    for (index = 0; index < 3; index++) {
        options.address = remote[index];
        options.allow_plain = 0;
        assert_int_equal(heft_directory_open(&options, &directory, &error), 0);
        assert_int_equal(directory->ops->publish(directory, &record, NULL, &error), HEFT_ERR_DENIED);
        assert_non_null(strstr(error.text, "token"));
        heft_directory_close(directory);
    }
    options.address = remote[0];
    options.allow_plain = 1; /* now it is tried, and nobody is there */
    assert_int_equal(heft_directory_open(&options, &directory, &error), 0);
    error.code = directory->ops->publish(directory, &record, NULL, &error);
    assert_true(error.code == HEFT_ERR_DEADLINE || error.code == HEFT_ERR_UNAVAILABLE);
    heft_directory_close(directory);
    heft_record_free(&record);
}

static void addresses_that_can_not_be_are_refused(void **state)
{
    static const char *const wrong[] = {
        "",        "host",       ":80",      "host:",     "host:99999",     "host:8x",     "[::1:80",
        "[zz]:80", "a b:80",     "etcd://h", "etcd:///x", "etcds://h:1,:2", "redis://h:1", "127.0.0.1:0",
        "h\n:80",  "/some/file", "./file",   "file:"};
    struct heft_directory_options options = HEFT_DIRECTORY_OPTIONS_INIT;
    struct heft_directory *directory;
    struct heft_error error = HEFT_ERROR_INIT;
    size_t index;
    int result;

    (void)state;
    for (index = 0; index < sizeof(wrong) / sizeof(wrong[0]); index++) {
        options.address = wrong[index];
        result = heft_directory_open(&options, &directory, &error);
        if (result != HEFT_ERR_INVALID && result != HEFT_ERR_UNSUPPORTED)
            fail_msg("'%s' gave %d", wrong[index], result);
    }
}

static void statuses_of_the_server_keep_their_code_and_sentence(void **state)
{
    struct fixture *fixture = *state;
    struct heft_grpc_client_options options = {.address = fixture->address, .service = "heftd"};
    struct heft_grpc_unary unary = {.method = "/test.Test/Refuse", .data = "x", .size_bytes = 1};
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_grpc_client *client;
    struct heft_buf reply;
    uint8_t big[60000];
    static const int codes[] = {
#define CODE(name, value, text) -(value),
        HEFT_ERROR_LIST(CODE)
#undef CODE
    };
    size_t index;

    assert_int_equal(heft_grpc_client_open(&options, &client, &error), 0);
    heft_buf_init(&reply, 100000);
    for (index = 0; index < sizeof(codes) / sizeof(codes[0]); index++) {
        __atomic_store_n(&refusal, codes[index], __ATOMIC_SEQ_CST);
        assert_int_equal(heft_grpc_client_call(client, &unary, &reply, &error), codes[index]);
        assert_string_equal(error.text, "because.of 100% reasons");
    }
    unary.method = "/test.Test/Nothing";
    assert_int_equal(heft_grpc_client_call(client, &unary, &reply, &error), HEFT_ERR_UNSUPPORTED);
    assert_int_equal(reply.size, 0);
    unary.method = "/test.Test/Echo";
    for (index = 0; index < sizeof(big); index++)
        big[index] = (uint8_t)(index * 31);
    unary.data = big;
    unary.size_bytes = sizeof(big);
    assert_int_equal(heft_grpc_client_call(client, &unary, &reply, &error), 0);
    assert_int_equal(reply.size, sizeof(big));
    assert_memory_equal(reply.data, big, sizeof(big));
    unary.method = "/grpc.health.v1.Health/Check";
    unary.size_bytes = 0;
    reply.size = 0;
    assert_int_equal(heft_grpc_client_call(client, &unary, &reply, &error), 0);
    assert_int_equal(reply.size, 2); /* field 1, SERVING */
    assert_memory_equal(reply.data, "\x08\x01", 2);
    heft_buf_free(&reply);
    heft_grpc_client_close(client);
}

/* Calls a method with raw bytes. */
static int call_raw(struct fixture *fixture, const char *method, const void *data, size_t size,
                    struct heft_buf *reply, struct heft_error *error)
{
    struct heft_grpc_client_options options = {.address = fixture->address, .service = "heftd"};
    struct heft_grpc_unary unary = {.method = method, .data = data, .size_bytes = size};
    struct heft_grpc_client *client;
    int result;

    assert_int_equal(heft_grpc_client_open(&options, &client, error), 0);
    result = heft_grpc_client_call(client, &unary, reply, error);
    heft_grpc_client_close(client);
    return result;
}

static void fields_of_a_later_version_are_kept_for_their_readers(void **state)
{
    struct fixture *fixture = *state;
    struct heft_record record = make_record("r1", 1);
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_record_list list;
    struct heft_buf body, request, reply;
    uint8_t head[12] = {1 << 3 | 2};

    heft_buf_init(&body, 4096);
    heft_buf_init(&request, 4096);
    heft_buf_init(&reply, 4096);
    assert_int_equal(heft_record_proto_encode(&record, &body, &error), 0);
    heft_buf_bytes(&body,
                   "\xa2\x06\x0b"
                   "from-future",
                   14); /* field 100, a string */
    heft_buf_bytes(&request, head, 1 + heft_proto_varint(head + 1, body.size));
    heft_buf_bytes(&request, body.data, body.size);
    heft_buf_bytes(&request, "\x98\x06\x2a", 3); /* field 99 of the request, a number */
    assert_int_equal(
        call_raw(fixture, "/heft.v1.Directory/Publish", request.data, request.size, &reply, &error), 0);
    reply.size = 0;
    assert_int_equal(call_raw(fixture, "/heft.v1.Directory/Get", "\x0a\x02r1", 4, &reply, &error), 0);
    assert_non_null(memmem(reply.data, reply.size, "from-future", 11));
    assert_int_equal(fixture->directory->ops->list(fixture->directory, NULL, &list, &error), 0);
    assert_int_equal(list.count, 1);
    heft_record_list_free(&list);
    heft_buf_free(&body);
    heft_buf_free(&request);
    heft_buf_free(&reply);
    heft_record_free(&record);
}

static void malformed_messages_are_refused_and_the_next_is_served(void **state)
{
    static const char *const methods[] = {"Publish", "Renew", "Withdraw", "List", "Get", "Status"};
    struct fixture *fixture = *state;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_record_list list;
    struct heft_buf reply;
    uint8_t bytes[4000];
    char method[64];
    size_t index, at, size;
    uint64_t seed = 12345;

    heft_buf_init(&reply, 1 << 20);
    for (index = 0; index < 6; index++) {
        (void)snprintf(method, sizeof(method), "/heft.v1.Directory/%s", methods[index]);
        for (size = 0; size < 40; size++) {
            for (at = 0; at < size; at++) {
                seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
                bytes[at] = (uint8_t)(seed >> 40);
            }
            (void)call_raw(fixture, method, bytes, size, &reply, &error);
        }
        for (at = 0; at < sizeof(bytes); at += 2) /* thousands of empty pairs, or as many empty records */
            memcpy(bytes + at, at % 4 ? "\x32\x00" : "\x0a\x00", 2);
        (void)call_raw(fixture, method, bytes, sizeof(bytes), &reply, &error);
    }
    assert_int_equal(call_raw(fixture, "/heft.v1.Directory/Publish", "", 0, &reply, &error),
                     HEFT_ERR_INVALID);
    assert_int_equal(call_raw(fixture, "/heft.v1.Directory/Publish", "\x0a\x00", 2, &reply, &error),
                     HEFT_ERR_INVALID);
    assert_int_equal(call_raw(fixture, "/heft.v1.Directory/Publish",
                              "\x0a\x05\x0a\x03"
                              "a\nb",
                              7, &reply, &error),
                     HEFT_ERR_INVALID);
    assert_int_equal(call_raw(fixture, "/heft.v1.Directory/Publish",
                              "\x0a\x05\x0a\x7f"
                              "abc",
                              7, &reply, &error),
                     HEFT_ERR_INVALID);
    assert_int_equal(fixture->directory->ops->list(fixture->directory, NULL, &list, &error), 0);
    assert_int_equal(list.count, 0);
    heft_record_list_free(&list);
    heft_buf_free(&reply);
}

static void garbage_on_the_port_does_not_disturb_the_next_client(void **state)
{
    struct fixture *fixture = *state;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_record_list list;
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    uint8_t bytes[4096];
    size_t index, at;
    uint64_t seed = 99;
    int fd;

    address.sin_port = htons(heft_grpc_server_port(fixture->server));
    for (index = 0; index < 60; index++) {
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
        for (at = 0; at < sizeof(bytes); at++) {
            seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
            bytes[at] = (uint8_t)(seed >> 40);
        }
        if (index % 2)
            memcpy(bytes, preface, sizeof(preface) - 1);
        (void)send(fd, bytes, 1 + index * 60, MSG_NOSIGNAL);
        (void)close(fd);
    }
    if (fixture->directory->ops->list(fixture->directory, NULL, &list, &error))
        fail_msg("%s", error.text);
    heft_record_list_free(&list);
}

static void a_store_that_fails_is_told_and_fails_no_call(void **state)
{
    struct fixture *fixture = *state;
    struct heft_directory *directory = fixture->directory;
    struct heft_directory_status status = HEFT_DIRECTORY_STATUS_INIT;
    struct heft_record record = make_record("r1", 1);
    struct heft_error error = HEFT_ERROR_INIT;

    __atomic_store_n(&fixture->fail_puts, 1, __ATOMIC_SEQ_CST);
    assert_int_equal(directory->ops->publish(directory, &record, NULL, &error), 0);
    assert_int_equal(heft_directory_get_status(directory, &status, &error), 0);
    assert_string_equal(status.store_error, "disk full");
    assert_string_equal(status.store, "test:");
    assert_string_equal(status.version, "0.1.0");
    assert_int_equal(status.records, 1);
    assert_int_equal(status.epoch, 5);
    __atomic_store_n(&fixture->fail_puts, 0, __ATOMIC_SEQ_CST);
    assert_int_equal(directory->ops->publish(directory, &record, NULL, &error), 0);
    assert_int_equal(heft_directory_get_status(directory, &status, &error), 0);
    assert_string_equal(status.store_error, "");
    assert_int_equal(status.publishes, 2);
    heft_record_free(&record);
}

#ifdef __SANITIZE_THREAD__
#define CLIENTS 8 /* the sanitizer makes each of them slow */
#else
#define CLIENTS 64
#endif

struct worker {
    struct fixture *fixture;
    pthread_t thread;
    uint32_t number;
    int failures;
};

static void *work(void *context)
{
    struct worker *worker = context;
    struct heft_directory_options options = HEFT_DIRECTORY_OPTIONS_INIT;
    struct heft_directory *directory;
    struct heft_record record;
    struct heft_record_list list;
    char name[32];
    int index;

    (void)snprintf(name, sizeof(name), "w%u", worker->number);
    record = make_record(name, (uint8_t)worker->number);
    options.address = worker->fixture->address;
    options.timeout_ms = 30000;
    if (heft_directory_open(&options, &directory, NULL)) {
        worker->failures++;
        heft_record_free(&record);
        return NULL;
    }
    for (index = 0; index < 10; index++) {
        worker->failures += directory->ops->publish(directory, &record, NULL, NULL) != 0;
        worker->failures += directory->ops->renew(directory, name, &record.generation, 0, NULL, NULL) != 0;
        if (directory->ops->list(directory, NULL, &list, NULL))
            worker->failures++;
        else
            heft_record_list_free(&list);
        if (index % 2)
            worker->failures += directory->ops->withdraw(directory, name, &record.generation, NULL) != 0;
    }
    heft_directory_close(directory);
    heft_record_free(&record);
    return NULL;
}

static void sixty_four_clients_at_once(void **state)
{
    struct fixture *fixture = *state;
    struct worker workers[CLIENTS];
    struct heft_grpc_server_counts counts;
    uint32_t index;
    int failures = 0;

    for (index = 0; index < CLIENTS; index++) {
        workers[index] = (struct worker){.fixture = fixture, .number = index};
        assert_int_equal(pthread_create(&workers[index].thread, NULL, work, &workers[index]), 0);
    }
    for (index = 0; index < CLIENTS; index++) {
        assert_int_equal(pthread_join(workers[index].thread, NULL), 0);
        failures += workers[index].failures;
    }
    assert_int_equal(failures, 0);
    heft_grpc_server_get_counts(fixture->server, &counts);
    assert_true(counts.calls >= CLIENTS * 35);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(every_field_survives_the_round_trip),
        TEST(codes_of_the_directory_reach_the_caller),
        TEST(an_expired_record_is_not_listed_and_its_renewal_says_publish_again),
        TEST(a_restarted_daemon_is_found_by_the_next_call),
        TEST(a_silent_listener_ends_in_a_deadline),
        TEST(a_list_of_many_pages_is_whole_and_in_order),
        TEST(a_record_over_a_limit_is_refused_with_its_name),
        TEST(a_token_does_not_leave_the_host_over_a_plain_connection),
        TEST(addresses_that_can_not_be_are_refused),
        TEST(statuses_of_the_server_keep_their_code_and_sentence),
        TEST(fields_of_a_later_version_are_kept_for_their_readers),
        TEST(malformed_messages_are_refused_and_the_next_is_served),
        TEST(garbage_on_the_port_does_not_disturb_the_next_client),
        TEST(a_store_that_fails_is_told_and_fails_no_call),
        TEST(sixty_four_clients_at_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
