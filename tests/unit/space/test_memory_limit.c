/* SPDX-License-Identifier: Apache-2.0 */
/* What is left of memory, read from trees of files as kernels show them. */
#include "space/memory_limit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <errno.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[64], proc_root[80], cgroup_root[80];

static void put(const char *name, const char *text)
{
    char path[512], *slash;
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/%s", root, name);
    for (slash = strchr(path + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(path, 0700) && errno != EEXIST)
            fail_msg("mkdir %s", path);
        *slash = '/';
    }
    file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *walk)
{
    (void)status;
    (void)type;
    (void)walk;
    return remove(path);
}

static int setup(void **state)
{
    (void)state;
    (void)snprintf(root, sizeof(root), "/tmp/heft-limit-XXXXXX");
    if (!mkdtemp(root))
        return -1;
    (void)snprintf(proc_root, sizeof(proc_root), "%s/proc", root);
    (void)snprintf(cgroup_root, sizeof(cgroup_root), "%s/cgroup", root);
    put("proc/meminfo", "MemTotal:  2000 kB\nMemFree:  10 kB\nMemAvailable:    1000 kB\nBuffers: 1 kB\n");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void expect(uint64_t bytes, const char *name)
{
    struct heft_memory_limit limit;

    heft_memory_limit_read(proc_root, cgroup_root, &limit);
    assert_int_equal(limit.available_bytes, bytes);
    assert_non_null(strstr(limit.name, name));
}

static void without_groups_the_machine_decides(void **state)
{
    (void)state;
    expect(1000 << 10, "MemAvailable");
}

static void a_unified_group_counts_its_page_cache_as_free(void **state)
{
    (void)state;
    put("proc/self/cgroup", "0::/a/b\n");
    put("cgroup/a/b/memory.max", "500000\n");
    put("cgroup/a/b/memory.current", "400000\n");
    put("cgroup/a/b/memory.stat", "anon 5\nfile 7\ninactive_file 50000\nactive_file 20000\n");
    expect(170000, "a/b/memory.max");
}

static void the_nearest_limit_of_all_parents_counts(void **state)
{
    (void)state;
    put("proc/self/cgroup", "0::/a/b\n");
    put("cgroup/a/b/memory.max", "max\n");
    put("cgroup/a/b/memory.current", "400000\n");
    put("cgroup/a/memory.max", "450000\n");
    put("cgroup/a/memory.current", "400000\n");
    expect(50000, "a/memory.max");
}

static void a_version_1_group_is_read(void **state)
{
    (void)state;
    put("proc/self/cgroup", "9:name=systemd:/\n5:cpu,memory,x:/job\n0::/\n");
    put("cgroup/memory/job/memory.limit_in_bytes", "300000\n");
    put("cgroup/memory/job/memory.usage_in_bytes", "350000\n");
    put("cgroup/memory/job/memory.stat", "cache 9\ntotal_inactive_file 60000\ntotal_active_file 1000\n");
    put("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("cgroup/memory/memory.usage_in_bytes", "0\n");
    expect(11000, "job/memory.limit_in_bytes");
}

static void a_container_sees_its_group_at_the_root(void **state)
{
    (void)state;
    put("proc/self/cgroup", "4:memory:/docker/0123\n");
    put("cgroup/memory/memory.limit_in_bytes", "300000\n");
    put("cgroup/memory/memory.usage_in_bytes", "100000\n");
    expect(200000, "memory/memory.limit_in_bytes");
}

static void nothing_readable_is_no_limit(void **state)
{
    struct heft_memory_limit limit;

    (void)state;
    heft_memory_limit_read("/nowhere", "/nowhere", &limit);
    assert_true(limit.available_bytes == UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(without_groups_the_machine_decides, setup, teardown),
        cmocka_unit_test_setup_teardown(a_unified_group_counts_its_page_cache_as_free, setup, teardown),
        cmocka_unit_test_setup_teardown(the_nearest_limit_of_all_parents_counts, setup, teardown),
        cmocka_unit_test_setup_teardown(a_version_1_group_is_read, setup, teardown),
        cmocka_unit_test_setup_teardown(a_container_sees_its_group_at_the_root, setup, teardown),
        cmocka_unit_test(nothing_readable_is_no_limit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
