/* SPDX-License-Identifier: Apache-2.0 */
#include "../load/open_helper.h"
#include "space/path.h"

#include <errno.h>

/* By openat2 and by walking: the same answers, but that walking follows no link at all. */
static int by(int walk, int root, const char *path)
{
    int fd = walk ? heft_path_walk(root, path, O_RDONLY | O_NONBLOCK)
                  : heft_path_beneath(root, path, O_RDONLY | O_NONBLOCK);

    if (fd >= 0)
        (void)close(fd);
    return fd >= 0 ? 0 : fd;
}

static void names_beneath_the_root_are_opened_and_no_others(void **state)
{
    const char *folder = *state;
    int root, walk, before;

    write_text(at(folder, "out"), "x");
    write_text(at(folder, "root/in"), "x");
    write_text(at(folder, "root/a/b/c"), "x");
    assert_int_equal(symlink("../out", at(folder, "root/leaves")), 0);
    assert_int_equal(symlink("..", at(folder, "root/up")), 0);
    assert_int_equal(symlink("in", at(folder, "root/stays")), 0);
    assert_int_equal(symlink(at(folder, "root/in"), at(folder, "root/absolute")), 0);
    root = open(at(folder, "root"), O_PATH | O_DIRECTORY | O_CLOEXEC);
    before = count_descriptors();
    for (walk = 0; walk < 2; walk++) {
        assert_int_equal(by(walk, root, "in"), 0);
        assert_int_equal(by(walk, root, "a/b/c"), 0);
        assert_int_equal(by(walk, root, "a/b/d"), -ENOENT);
        assert_int_equal(by(walk, root, "x/b/d"), -ENOENT);
        assert_int_equal(by(walk, root, "in/x"), -ENOTDIR);
        assert_int_equal(by(walk, root, "leaves"), -EXDEV);
        assert_int_equal(by(walk, root, "up/out"), -EXDEV);
        assert_int_equal(by(walk, root, "absolute"), -EXDEV);
        assert_int_equal(by(walk, root, "../out"), -EXDEV);
        assert_int_equal(by(walk, root, at(folder, "out")), -EXDEV);
        assert_int_equal(by(walk, root, "stays"), walk ? -EXDEV : 0);
    }
    assert_int_equal(count_descriptors(), before);
    (void)close(root);
}

static void looking_opens_nothing(void **state)
{
    const char *folder = *state;
    int root = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    struct stat st;

    assert_int_equal(mkfifo(at(folder, "fifo"), 0644), 0);
    assert_int_equal(heft_path_stat(root, "fifo", &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    assert_int_equal(heft_path_stat(root, "none", &st), -ENOENT);
    (void)close(root);
}

/* A FIFO must not even be opened: its writer would wake and write to nobody. */
static void a_fifos_writer_is_not_woken(void **state)
{
    const char *folder = *state;
    struct heft_error error = HEFT_ERROR_INIT;
    int root = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC), fd = -1;
    struct stat st;

    assert_int_equal(mkfifo(at(folder, "fifo"), 0644), 0);
    assert_code(heft_path_open(root, "fifo", &fd, &st, &error), HEFT_ERR_NOT_A_FILE, error);
    assert_int_equal(fd, -1);
    assert_int_equal(open(at(folder, "fifo"), O_WRONLY | O_NONBLOCK | O_CLOEXEC), -1);
    assert_int_equal(errno, ENXIO);
    (void)close(root);
}

static void errors_tell_the_remedy(void **state)
{
    struct heft_error error = HEFT_ERROR_INIT;

    (void)state;
    assert_int_equal(heft_path_error(EMFILE, &error), HEFT_ERR_NO_FDS);
    assert_says(error, "ulimit -n");
    assert_int_equal(heft_path_error(ENFILE, &error), HEFT_ERR_NO_FDS);
    assert_int_equal(heft_path_error(EACCES, &error), HEFT_ERR_PERMISSION);
    assert_int_equal(heft_path_error(EXDEV, &error), HEFT_ERR_PATH_UNSAFE);
    assert_int_equal(heft_path_error(ELOOP, &error), HEFT_ERR_PATH_UNSAFE);
    assert_int_equal(heft_path_error(EIO, &error), HEFT_ERR_IO);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(names_beneath_the_root_are_opened_and_no_others),
        IN_FOLDER(looking_opens_nothing),
        IN_FOLDER(a_fifos_writer_is_not_woken),
        cmocka_unit_test(errors_tell_the_remedy),
    };
    return cmocka_run_group_tests_name("path", tests, NULL, NULL);
}
