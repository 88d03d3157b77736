/* SPDX-License-Identifier: Apache-2.0 */
/* Asking the page cache: warm, cold and half-warm files, by both calls. */
#include "space/page_cache.h"

#include <heft/error.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <fcntl.h>
#include <unistd.h>

#define FILE_BYTES ((uint64_t)8 << 20)

static int make_file(void)
{
    char path[] = "/var/tmp/heft-cache-XXXXXX";
    static char block[1 << 20];
    int fd = mkstemp(path);
    uint64_t at;

    assert_true(fd >= 0);
    (void)unlink(path);
    memset(block, 7, sizeof(block));
    for (at = 0; at < FILE_BYTES; at += sizeof(block))
        assert_int_equal(pwrite(fd, block, sizeof(block), (off_t)at), sizeof(block));
    assert_int_equal(fsync(fd), 0);
    return fd;
}

typedef int (*query_fn)(int fd, uint64_t offset, uint64_t length, uint64_t *cached);

static void check(query_fn query)
{
    int fd = make_file();
    uint64_t cached = 77;
    char byte;

    assert_int_equal(query(fd, 0, FILE_BYTES, &cached), 0);
    assert_int_equal(cached, FILE_BYTES);
    assert_int_equal(query(fd, 5, 3, &cached), 0);
    assert_int_equal(cached, 3);
    assert_int_equal(query(fd, 5, 0, &cached), 0);
    assert_int_equal(cached, 0);
    assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    assert_int_equal(query(fd, 0, FILE_BYTES, &cached), 0);
    if (cached == FILE_BYTES) {
        print_message("skipped: this file system lives in memory\n");
        (void)close(fd);
        skip();
    }
    assert_int_equal(cached, 0);
    assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM), 0);
    assert_int_equal(pread(fd, &byte, 1, 4 << 20), 1);
    assert_int_equal(query(fd, 0, FILE_BYTES, &cached), 0);
    assert_true(cached >= 4096 && cached <= FILE_BYTES / 2);
    assert_int_equal(query(fd, 0, 1 << 20, &cached), 0);
    assert_int_equal(cached, 0);
    assert_int_equal(query(fd, FILE_BYTES, 1 << 20, &cached), 0); /* beyond the end */
    assert_int_equal(cached, 0);
    (void)close(fd);
}

static void the_cache_is_asked_without_reading(void **state)
{
    (void)state;
    check(heft_page_cache_query);
}

static void mincore_gives_the_same_answers(void **state)
{
    (void)state;
    check(heft_page_cache_query_mapped);
}

static void what_is_no_file_is_unsupported(void **state)
{
    uint64_t cached = 5;
    int fds[2];

    (void)state;
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(heft_page_cache_query_mapped(fds[0], 0, 4096, &cached), HEFT_ERR_UNSUPPORTED);
    assert_int_equal(heft_page_cache_query(-1, 0, 4096, &cached), HEFT_ERR_UNSUPPORTED);
    assert_int_equal(cached, 5);
    (void)close(fds[0]);
    (void)close(fds[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cache_is_asked_without_reading),
        cmocka_unit_test(mincore_gives_the_same_answers),
        cmocka_unit_test(what_is_no_file_is_unsupported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
