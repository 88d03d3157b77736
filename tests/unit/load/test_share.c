/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shares of one model's bytes by loads of one host: two columns, each with a thread that reads units and
 * threads that use them, in whatever order they meet. When all is used, no unit's memory is left.
 */
#include "effort.h"
#include "load/share.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#define UNITS EFFORT(4000u, 1500u) /* files of a page: each is a unit */
#define PAGE 4096u
#define ROUNDS EFFORT(4, 2)
#define LOADS 2
#define USERS 2 /* threads of each load */

struct folder {
    char path[64];
    struct heft_manifest *manifest;
};

static int setup(void **state)
{
    static struct folder folder;
    uint32_t index;

    (void)snprintf(folder.path, sizeof(folder.path), "/dev/shm/heft-test-share-XXXXXX");
    assert_non_null(mkdtemp(folder.path));
    folder.manifest = heft_manifest_new();
    assert_non_null(folder.manifest);
    for (index = 0; index < UNITS; index++) {
        char name[32];
        uint32_t at;

        (void)snprintf(name, sizeof(name), "file-%u", index);
        assert_int_equal(heft_manifest_add_file(folder.manifest, name, PAGE, 0, &at, NULL), 0);
    }
    folder.manifest->identity.model = "model";
    folder.manifest->identity.revision = "1";
    assert_int_equal(heft_manifest_finish(folder.manifest, NULL), 0);
    *state = &folder;
    return 0;
}

static void find_share(const struct folder *folder, char path_out[400])
{
    DIR *listing = opendir(folder->path);
    const struct dirent *entry;

    path_out[0] = 0;
    assert_non_null(listing);
    while ((entry = readdir(listing)) != NULL)
        if (strstr(entry->d_name, ".share"))
            (void)snprintf(path_out, 400, "%s/%s", folder->path, entry->d_name);
    (void)closedir(listing);
}

static int teardown(void **state)
{
    struct folder *folder = *state;
    char path[400];

    find_share(folder, path);
    if (path[0])
        (void)unlink(path);
    heft_manifest_free(folder->manifest);
    return rmdir(folder->path);
}

/* ---- threads ---- */

struct load {
    struct heft_share *share;
    uint32_t position; /* atomic: how far its reader is; its users stay near, where they meet it */
    uint32_t reads;
};

struct user {
    struct load *load;
    uint32_t first;
    unsigned seed;
};

static uint8_t byte_of(uint64_t unit)
{
    return (uint8_t)(unit * 7 + 1);
}

static void *read_units(void *context)
{
    struct load *load = context;
    uint32_t unit;

    for (unit = 0; unit < UNITS; unit++) {
        int rc = heft_share_claim(load->share, unit, NULL);

        if (rc == 0) {
            *heft_share_file(load->share, unit) = byte_of(unit);
            heft_share_settle(load->share, unit, 1);
            load->reads++;
        } else if (rc != HEFT_ERR_BUSY && rc != HEFT_ERR_EXISTS) {
            return (void *)1;
        }
        __atomic_store_n(&load->position, unit + 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

/* Before it is read, in the moment in which it is there, or after that. */
static void choose_moment(struct user *user, uint64_t unit)
{
    int moment = rand_r(&user->seed) % 4;

    if (moment == 0)
        return;
    while (__atomic_load_n(&user->load->position, __ATOMIC_ACQUIRE) <= unit &&
           !(moment > 1 && heft_share_is_present(user->load->share, unit)))
        if (moment == 1)
            (void)sched_yield();
}

/* Each of a load's users has units of its own; together they use all. */
static void *use_units(void *context)
{
    struct user *user = context;
    uint32_t unit;
    int wrong = 0;

    for (unit = user->first; unit < UNITS; unit += USERS) {
        choose_moment(user, unit);
        if (heft_share_is_present(user->load->share, unit))
            wrong |= *heft_share_file(user->load->share, unit) != byte_of(unit);
        heft_share_use(user->load->share, unit);
    }
    return wrong ? (void *)1 : NULL;
}

static void expect_nothing_left(const struct folder *folder, const struct heft_share *share)
{
    char path[400];
    uint64_t unit;
    int fd;

    for (unit = 0; unit < UNITS; unit++)
        if (heft_share_is_present(share, unit))
            fail_msg("unit %u was used by all and not given back", (unsigned)unit);
    find_share(folder, path);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(lseek(fd, (off_t)HEFT_SHARE_UNIT_BYTES, SEEK_DATA), -1);
    assert_int_equal(errno, ENXIO);
    (void)close(fd);
}

static void a_unit_that_all_have_used_is_given_back_whoever_meets_whom(void **state)
{
    const struct folder *folder = *state;
    int round, index, user;

    for (round = 0; round < ROUNDS; round++) {
        struct load loads[LOADS] = {{0}};
        struct user users[LOADS * USERS];
        pthread_t readers[LOADS], threads[LOADS * USERS];
        void *failed;

        for (index = 0; index < LOADS; index++)
            assert_int_equal(
                heft_share_open(folder->path, folder->manifest, LOADS, &loads[index].share, NULL), 0);
        for (index = 0; index < LOADS; index++) {
            assert_int_equal(pthread_create(&readers[index], NULL, read_units, &loads[index]), 0);
            for (user = 0; user < USERS; user++) {
                int at = index * USERS + user;

                users[at] = (struct user){&loads[index], (uint32_t)user, (unsigned)(round * 100 + at)};
                assert_int_equal(pthread_create(&threads[at], NULL, use_units, &users[at]), 0);
            }
        }
        for (index = 0; index < LOADS; index++) {
            (void)pthread_join(readers[index], &failed);
            assert_null(failed);
        }
        for (index = 0; index < LOADS * USERS; index++) {
            (void)pthread_join(threads[index], &failed);
            assert_null(failed);
        }
        assert_true(loads[0].reads + loads[1].reads >= UNITS);
        expect_nothing_left(folder, loads[0].share);
        for (index = 0; index < LOADS; index++)
            heft_share_close(loads[index].share, 1);
    }
}

/* ---- a lock that is held in the moment of the last use ---- */

#define LOCK_UNIT ((off_t)1 << 62) /* the lock of a share's unit 0, as share.c has it */

static void *hold_a_while(void *context)
{
    int fd = *(const int *)context;
    struct flock range = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = LOCK_UNIT, .l_len = 1};

    (void)usleep(50 * 1000);
    return fcntl(fd, F_OFD_SETLK, &range) ? (void *)1 : NULL;
}

static void who_holds_the_lock_for_a_moment_keeps_no_unit_from_being_given_back(void **state)
{
    const struct folder *folder = *state;
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LOCK_UNIT, .l_len = 1};
    struct heft_share *shares[LOADS];
    pthread_t thread;
    char path[400];
    void *failed;
    int index, fd;

    for (index = 0; index < LOADS; index++)
        assert_int_equal(heft_share_open(folder->path, folder->manifest, LOADS, &shares[index], NULL), 0);
    assert_int_equal(heft_share_claim(shares[0], 0, NULL), 0);
    *heft_share_file(shares[0], 0) = 1;
    heft_share_settle(shares[0], 0, 1);
    find_share(folder, path);
    fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(fcntl(fd, F_OFD_SETLK, &range), 0);
    heft_share_use(shares[0], 0);
    assert_true(heft_share_is_present(shares[1], 0));
    assert_int_equal(pthread_create(&thread, NULL, hold_a_while, &fd), 0);
    heft_share_use(shares[1], 0);
    assert_false(heft_share_is_present(shares[0], 0));
    (void)pthread_join(thread, &failed);
    assert_null(failed);
    assert_int_equal(lseek(fd, (off_t)HEFT_SHARE_UNIT_BYTES, SEEK_DATA), -1);
    (void)close(fd);
    for (index = 0; index < LOADS; index++)
        heft_share_close(shares[index], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_unit_that_all_have_used_is_given_back_whoever_meets_whom, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(who_holds_the_lock_for_a_moment_keeps_no_unit_from_being_given_back,
                                        setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
