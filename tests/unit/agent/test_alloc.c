/* SPDX-License-Identifier: Apache-2.0 */
/* Posting allocates nothing: every call of an allocator that heft makes is counted (the linker's --wrap). */
#include "agent/list.h"
#include "pair.h"

#define ITEMS 512u
#define ITEM_BYTES 64u
#define ROUNDS 200

static uint64_t all;           /* atomic */
static __thread uint64_t mine; /* of this thread */

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *data, size_t size);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *data, size_t size);
char *__wrap_strdup(const char *text);

/* The control workers send heartbeats meanwhile. */
static const struct heft_worker *ignored[2];

static void count(void)
{
    const struct heft_worker *self = heft_worker_self();

    mine++;
    if (!self || (self != __atomic_load_n(&ignored[0], __ATOMIC_RELAXED) &&
                  self != __atomic_load_n(&ignored[1], __ATOMIC_RELAXED)))
        (void)__atomic_add_fetch(&all, 1, __ATOMIC_RELAXED);
}

void *__wrap_malloc(size_t size)
{
    count();
    return __real_malloc(size);
}

void *__wrap_calloc(size_t number, size_t size)
{
    count();
    return __real_calloc(number, size);
}

void *__wrap_realloc(void *data, size_t size)
{
    count();
    return __real_realloc(data, size);
}

char *__wrap_strdup(const char *text)
{
    count();
    return __real_strdup(text);
}

/* ITEMS scattered pieces of the source, read or written from the target. */
struct scene {
    struct pair pair;
    struct heft_memory *memory[2];
    struct heft_region *region[2];
    struct heft_list *list[2];
};

static struct heft_region *register_memory(struct heft_agent *agent, struct heft_memory *memory)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    struct heft_region *region = NULL;

    options.memory = memory;
    options.flags = HEFT_REGION_REMOTE_READ | HEFT_REGION_REMOTE_WRITE;
    assert_int_equal(heft_region_register(agent, &options, &region, NULL), 0);
    return region;
}

static void open_scene(struct scene *scene, const char *listen, const char *transport, int shareable)
{
    struct heft_list_run runs[ITEMS];
    uint32_t index;
    int side;

    memset(scene, 0, sizeof(*scene));
    pair_open(&scene->pair, listen, transport);
    for (side = 0; side < 2; side++) {
        struct heft_agent *agent = side ? scene->pair.server : scene->pair.client;
        struct heft_memory_info info;

        assert_int_equal(heft_memory_alloc(2 * ITEMS * ITEM_BYTES, 0, &scene->memory[side], NULL), 0);
        heft_memory_get_info(scene->memory[side], &info);
        scene->region[side] = shareable ? register_memory(agent, scene->memory[side])
                                        : register_bytes(agent, info.address, info.length_bytes,
                                                         HEFT_REGION_REMOTE_READ | HEFT_REGION_REMOTE_WRITE);
    }
    /* The new region is known there before a document that was asked for after it is answered. */
    {
        void *data = NULL;
        uint64_t size;

        assert_int_equal(heft_agent_set_document(scene->pair.server, "now", "x", 1, NULL), 0);
        assert_int_equal(heft_peer_read_document(scene->pair.peer, "now", 100, 20000, &data, &size, NULL), 0);
        heft_free(data);
    }
    for (side = 0; side < 2; side++) {
        for (index = 0; index < ITEMS; index++)
            runs[index] =
                (struct heft_list_run){.region = heft_region_id(scene->region[side]),
                                       .offset_bytes = (uint64_t)((index * 37 + 11) % ITEMS) * 2 * ITEM_BYTES,
                                       .length_bytes = ITEM_BYTES,
                                       .count = 1};
        assert_int_equal(heft_list_create(scene->pair.client, side ? scene->pair.peer : NULL, runs, ITEMS,
                                          &scene->list[side], NULL),
                         0);
    }
}

static void close_scene(struct scene *scene)
{
    heft_list_destroy(scene->list[0]);
    heft_list_destroy(scene->list[1]);
    pair_close(&scene->pair);
    heft_memory_free(scene->memory[0]);
    heft_memory_free(scene->memory[1]);
}

static uint64_t post_many(struct scene *scene, struct heft_xfer_options *options, uint64_t *mine_out)
{
    struct heft_xfer *xfer = NULL;
    uint64_t before = 0, before_all = 0;
    int round;

    assert_int_equal(heft_xfer_create_indexed(scene->pair.client, HEFT_OP_WRITE, scene->list[0], NULL,
                                              scene->list[1], NULL, ITEMS, options, &xfer, NULL),
                     0);
    __atomic_store_n(&ignored[0], scene->pair.client->control, __ATOMIC_RELAXED);
    __atomic_store_n(&ignored[1], scene->pair.server->control, __ATOMIC_RELAXED);
    for (round = -2; round < ROUNDS; round++) { /* the first two may find something to set up */
        if (round == 0) {
            before = mine;
            before_all = __atomic_load_n(&all, __ATOMIC_RELAXED);
        }
        assert_int_equal(heft_xfer_post(xfer, NULL), 0);
        assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
    }
    *mine_out = mine - before;
    before_all = __atomic_load_n(&all, __ATOMIC_RELAXED) - before_all;
    assert_int_equal(heft_xfer_release(xfer), 0);
    return before_all;
}

static void check(const char *listen, const char *transport, int shareable, uint32_t flags, int note)
{
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct scene scene;
    uint64_t own, every;

    open_scene(&scene, listen, transport, shareable);
    options.require = transport;
    options.flags = flags;
    options.notification = note ? "done" : NULL;
    options.notification_bytes = note ? 4 : 0;
    every = post_many(&scene, &options, &own);
    assert_int_equal(own, 0);
    if (!note && strcmp(transport, "local") == 0)
        assert_true(every < ROUNDS / 4); /* no thread of either agent does so for a post either */
    close_scene(&scene);
}

static void the_allocators_are_counted(void **state)
{
    uint64_t before = mine;
    struct heft_agent *agent = open_agent("counted", NULL, "local");

    (void)state;
    assert_true(mine > before);
    assert_int_equal(heft_agent_close(agent, NULL), 0);
}

static void posting_a_list_allocates_nothing(void **state)
{
    (void)state;
    check("unix", "local", 1, HEFT_XFER_INLINE, 0);
    check("unix", "local", 1, 0, 0);
    check("unix", "local", 0, HEFT_XFER_INLINE, 0);
    check("unix", "local", 0, 0, 0);
    check("127.0.0.1:0", "tcp", 0, 0, 0);
}

static void posting_with_a_count_allocates_nothing(void **state)
{
    (void)state;
    check("unix", "local", 1, HEFT_XFER_INLINE | HEFT_XFER_COUNT, 0);
    check("unix", "local", 1, HEFT_XFER_COUNT, 0);
}

static void posting_with_a_notification_allocates_nothing(void **state)
{
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_notification note = {.size = sizeof(note)};
    struct heft_xfer *xfer = NULL;
    struct scene scene;
    uint64_t before;
    int round;

    (void)state;
    open_scene(&scene, "unix", "local", 1);
    options.flags = HEFT_XFER_INLINE;
    options.notification = "done";
    options.notification_bytes = 4;
    assert_int_equal(heft_xfer_create_indexed(scene.pair.client, HEFT_OP_WRITE, scene.list[0], NULL,
                                              scene.list[1], NULL, ITEMS, &options, &xfer, NULL),
                     0);
    for (round = 0; round < ROUNDS; round++) {
        before = mine;
        assert_int_equal(heft_xfer_post(xfer, NULL), 0);
        assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
        assert_int_equal(mine, before);
        assert_int_equal(heft_agent_next_notification(scene.pair.server, &note, 20000), 0);
        heft_free(note.data);
    }
    assert_int_equal(heft_xfer_release(xfer), 0);
    close_scene(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_allocators_are_counted),
        cmocka_unit_test(posting_a_list_allocates_nothing),
        cmocka_unit_test(posting_with_a_count_allocates_nothing),
        cmocka_unit_test(posting_with_a_notification_allocates_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
