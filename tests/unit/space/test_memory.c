/* SPDX-License-Identifier: Apache-2.0 */
/* Shareable host memory: what it promises about addresses, sharing, zeroes, limits and descriptors. */
#include "space/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)

static uint64_t now_us(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static struct heft_memory *must_alloc(uint64_t bytes, uint32_t flags, struct heft_memory_info *info)
{
    struct heft_memory *memory = NULL;
    struct heft_error error = HEFT_ERROR_INIT;

    if (heft_memory_alloc(bytes, flags, &memory, &error))
        fail_msg("alloc of %llu: %s", (unsigned long long)bytes, error.text);
    heft_memory_get_info(memory, info);
    return memory;
}

/* A tmpfs of `size`, or -1 where mounting is refused. */
static int small_mount(const char *size)
{
    int context = fsopen("tmpfs", FSOPEN_CLOEXEC), fd = -1;

    if (context < 0)
        return -1;
    if (fsconfig(context, FSCONFIG_SET_STRING, "size", size, 0) == 0 &&
        fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
        fd = fsmount(context, FSMOUNT_CLOEXEC, 0);
    (void)close(context);
    return fd;
}

static void every_size_is_zeroed_aligned_and_shared(void **state)
{
    static const uint64_t sizes[] = {1,   4095,        4096,    4097,        65536,
                                     MIB, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 9 * MIB + 5};
    int mode;

    (void)state;
    for (mode = 0; mode < 2; mode++) {
        size_t index;

        heft_memory_use_mount(mode ? -1 : HEFT_MEMORY_MOUNT_OWN);
        for (index = 0; index < sizeof(sizes) / sizeof(sizes[0]); index++) {
            struct heft_memory_info info;
            struct heft_memory *memory = must_alloc(sizes[index], 0, &info);
            uint8_t *bytes = info.address, *other;
            uint64_t at;

            assert_int_equal(info.length_bytes, sizes[index]);
            assert_int_equal((uintptr_t)info.address % info.page_bytes, 0);
            assert_int_equal((uintptr_t)info.address % (2 * MIB), 0);
            if (mode)
                assert_string_equal(info.kind, "memfd");
            for (at = 0; at < sizes[index]; at += 509)
                assert_int_equal(bytes[at], 0);
            bytes[0] = 1;
            bytes[sizes[index] - 1] = 2;
            other = mmap(NULL, sizes[index], PROT_READ, MAP_SHARED, info.fd, 0);
            assert_ptr_not_equal(other, MAP_FAILED);
            assert_int_equal(other[sizes[index] - 1], 2);
            if (sizes[index] > 1)
                assert_int_equal(other[0], 1);
            (void)munmap(other, sizes[index]);
            heft_memory_free(memory);
        }
    }
    heft_memory_use_mount(HEFT_MEMORY_MOUNT_OWN);
}

static void no_memory_takes_more_than_its_length_in_pages(void **state)
{
    static const uint64_t sizes[] = {4096, MIB, 2 * MIB, 3 * MIB, 7 * MIB + 4096};
    size_t index;

    (void)state;
    for (index = 0; index < sizeof(sizes) / sizeof(sizes[0]); index++) {
        struct heft_memory_info info;
        struct heft_memory *memory = must_alloc(sizes[index], HEFT_MEMORY_PREFAULT, &info);
        struct stat status;

        assert_int_equal(fstat(info.fd, &status), 0);
        assert_int_equal((uint64_t)status.st_blocks * 512, sizes[index]);
        heft_memory_free(memory);
    }
}

static void zero_length_is_legal(void **state)
{
    struct heft_memory_info info;
    struct heft_memory *memory = must_alloc(0, HEFT_MEMORY_PREFAULT, &info);

    (void)state;
    assert_int_equal(info.length_bytes, 0);
    assert_int_equal(heft_memory_prefault(memory, 0, 0, NULL), 0);
    assert_int_equal(heft_memory_prefault(memory, 0, 1, NULL), HEFT_ERR_RANGE);
    assert_int_equal(heft_memory_prefault(memory, 1, 0, NULL), HEFT_ERR_RANGE);
    heft_memory_free(memory);
    heft_memory_free(NULL);
}

static void more_than_the_machine_has_is_refused_with_the_numbers(void **state)
{
    struct heft_memory *memory = NULL;
    struct heft_error error = HEFT_ERROR_INIT;

    (void)state;
    assert_int_equal(heft_memory_alloc((uint64_t)1 << 45, 0, &memory, &error), HEFT_ERR_NO_MEMORY);
    assert_non_null(strstr(error.text, "35184372088832"));
    assert_non_null(strstr(error.text, "available"));
    assert_int_equal(heft_memory_alloc(UINT64_MAX, 0, &memory, &error), HEFT_ERR_NO_MEMORY);
    assert_int_equal(heft_memory_alloc(UINT64_MAX - 4096, 0, &memory, NULL), HEFT_ERR_NO_MEMORY);
    assert_int_equal(heft_memory_alloc(1, 0x80, &memory, &error), HEFT_ERR_INVALID);
    assert_null(memory);
}

static void untouched_promises_count_against_a_small_tmpfs(void **state)
{
    struct heft_memory *first = NULL, *second = NULL;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_memory_info info;
    int mount = small_mount("8M");

    (void)state;
    if (mount < 0) {
        print_message("skipped: this user may not make a tmpfs mount\n");
        skip();
    }
    heft_memory_use_mount(mount);
    assert_int_equal(heft_memory_alloc(9 * MIB, 0, &first, &error), HEFT_ERR_NO_MEMORY);
    first = must_alloc(5 * MIB, 0, &info);
    assert_string_equal(info.kind, "huge tmpfs");
    assert_int_equal(heft_memory_alloc(5 * MIB, 0, &second, &error), HEFT_ERR_NO_MEMORY);
    assert_non_null(strstr(error.text, "promised"));
    second = must_alloc(3 * MIB, HEFT_MEMORY_PREFAULT, &info);
    assert_int_equal(heft_memory_prefault(first, 0, 5 * MIB, &error), 0);
    heft_memory_free(second);
    heft_memory_free(first);
    heft_memory_use_mount(HEFT_MEMORY_MOUNT_OWN);
    (void)close(mount);
}

/* Somebody else fills the mount after the promise was made: an error, where a touch would be a bus error. */
static void prefault_of_a_full_tmpfs_is_an_error_and_no_signal(void **state)
{
    struct heft_memory *memory;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_memory_info info;
    int mount = small_mount("8M"), thief;

    (void)state;
    if (mount < 0) {
        print_message("skipped: this user may not make a tmpfs mount\n");
        skip();
    }
    heft_memory_use_mount(mount);
    memory = must_alloc(6 * MIB, 0, &info);
    thief = openat(mount, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    assert_true(thief >= 0);
    assert_int_equal(posix_fallocate(thief, 0, (off_t)(4 * MIB)), 0);
    assert_int_equal(heft_memory_prefault(memory, 0, 6 * MIB, &error), HEFT_ERR_NO_MEMORY);
    assert_true(strlen(error.text) > 0);
    (void)close(thief);
    assert_int_equal(heft_memory_prefault(memory, 0, 6 * MIB, &error), 0);
    heft_memory_free(memory);
    heft_memory_use_mount(HEFT_MEMORY_MOUNT_OWN);
    (void)close(mount);
}

static void a_memfd_can_not_be_cut_by_who_maps_it(void **state)
{
    struct heft_memory_info info;
    struct heft_memory *memory = must_alloc(MIB, 0, &info);

    (void)state;
    assert_string_equal(info.kind, "memfd");
    assert_int_equal(ftruncate(info.fd, 0), -1);
    heft_memory_free(memory);
}

/* A descriptor for reading that was passed on can be opened anew through /proc, as the file's mode allows. */
static void a_memfd_is_its_owners_alone(void **state)
{
    struct heft_memory_info info;
    struct heft_memory *memory = must_alloc(MIB, 0, &info);
    struct stat status;

    (void)state;
    assert_string_equal(info.kind, "memfd");
    assert_int_equal(fstat(info.fd, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0600);
    heft_memory_free(memory);
}

static void *prefault_again(void *argument)
{
    struct heft_memory *memory = argument;
    uint64_t at;

    for (at = 0; at < 64 * MIB; at += 16 * MIB)
        if (heft_memory_prefault(memory, at + 3, 16 * MIB - 3, NULL))
            return argument;
    return NULL;
}

static void several_threads_may_prefault_and_nothing_written_is_lost(void **state)
{
    struct heft_memory_info info;
    struct heft_memory *memory = must_alloc(64 * MIB, 0, &info);
    pthread_t threads[3];
    uint8_t *bytes = info.address;
    size_t index;
    void *result;

    (void)state;
    memset(bytes + 20 * MIB, 0xab, MIB);
    for (index = 0; index < 3; index++)
        assert_int_equal(pthread_create(&threads[index], NULL, prefault_again, memory), 0);
    for (index = 0; index < 3; index++) {
        assert_int_equal(pthread_join(threads[index], &result), 0);
        assert_null(result);
    }
    for (index = 0; index < MIB; index++)
        assert_int_equal(bytes[20 * MIB + index], 0xab);
    assert_int_equal(bytes[20 * MIB - 1], 0);
    heft_memory_free(memory);
}

static void a_small_allocation_is_cheap(void **state)
{
    uint64_t best = UINT64_MAX;
    int round;

    (void)state;
    for (round = 0; round < 20; round++) {
        struct heft_memory_info info;
        uint64_t start = now_us(), took;
        struct heft_memory *memory = must_alloc(MIB, 0, &info);

        took = now_us() - start;
        heft_memory_free(memory);
        if (took < best)
            best = took;
    }
    print_message("1 MiB: %llu us\n", (unsigned long long)best);
    assert_true(best < 1000);
}

static void without_descriptors_it_says_so(void **state)
{
    pid_t child;
    int status = 0;

    (void)state;
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit limit = {3, 3};
        struct heft_memory *memory = NULL;
        struct heft_error error = HEFT_ERROR_INIT;
        int small, large;

        if (setrlimit(RLIMIT_NOFILE, &limit))
            _exit(1);
        small = heft_memory_alloc(4096, 0, &memory, &error);
        if (small != HEFT_ERR_NO_FDS || !strstr(error.text, "ulimit -n"))
            _exit(2);
        large = heft_memory_alloc(4 * MIB, 0, &memory, &error);
        _exit(large == HEFT_ERR_NO_FDS ? 0 : 3);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void a_file_size_limit_is_an_error_and_no_signal(void **state)
{
    pid_t child;
    int status = 0;

    (void)state;
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit limit = {MIB, MIB};
        struct heft_memory *memory = NULL;
        struct heft_error error = HEFT_ERROR_INIT;

        if (setrlimit(RLIMIT_FSIZE, &limit))
            _exit(1);
        if (heft_memory_alloc(4 * MIB, 0, &memory, &error) != HEFT_ERR_NO_MEMORY)
            _exit(2);
        _exit(strstr(error.text, "ulimit -f") ? 0 : 3);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void descriptors_do_not_leak_and_are_closed_by_exec(void **state)
{
    struct heft_memory_info info;
    struct heft_memory *memory = must_alloc(4 * MIB, 0, &info);
    int before, after;

    (void)state;
    assert_true(fcntl(info.fd, F_GETFD) & FD_CLOEXEC);
    before = info.fd;
    heft_memory_free(memory);
    memory = must_alloc(4 * MIB, 0, &info);
    after = info.fd;
    heft_memory_free(memory);
    assert_int_equal(before, after);
}

static void spaces_have_names(void **state)
{
    (void)state;
    assert_string_equal(heft_space_name(HEFT_SPACE_HOST), "host");
    assert_string_equal(heft_space_name(HEFT_SPACE_CUDA), "cuda");
    assert_string_equal(heft_space_name(HEFT_SPACE_FILE), "file");
    assert_string_equal(heft_space_name(HEFT_SPACE_OBJECT), "object");
    assert_string_equal(heft_space_name(HEFT_SPACE_NONE), "none");
    assert_string_equal(heft_space_name((enum heft_space)77), "none");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_size_is_zeroed_aligned_and_shared),
        cmocka_unit_test(no_memory_takes_more_than_its_length_in_pages),
        cmocka_unit_test(zero_length_is_legal),
        cmocka_unit_test(more_than_the_machine_has_is_refused_with_the_numbers),
        cmocka_unit_test(untouched_promises_count_against_a_small_tmpfs),
        cmocka_unit_test(prefault_of_a_full_tmpfs_is_an_error_and_no_signal),
        cmocka_unit_test(a_memfd_can_not_be_cut_by_who_maps_it),
        cmocka_unit_test(a_memfd_is_its_owners_alone),
        cmocka_unit_test(several_threads_may_prefault_and_nothing_written_is_lost),
        cmocka_unit_test(a_small_allocation_is_cheap),
        cmocka_unit_test(without_descriptors_it_says_so),
        cmocka_unit_test(a_file_size_limit_is_an_error_and_no_signal),
        cmocka_unit_test(descriptors_do_not_leak_and_are_closed_by_exec),
        cmocka_unit_test(spaces_have_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
