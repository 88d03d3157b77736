/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens safetensors files as a loader does: first bytes, header, parse, free. bench_safetensors.py runs it
 * beside the reference.
 *
 *   bench_safetensors FILE REPEATS    nanoseconds of processor time of each repeat, one a line; then
 *                                     "peak_kib N"
 */
#include "format/safetensors.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int read_all(int fd, uint8_t *bytes, uint64_t size, uint64_t offset)
{
    uint64_t done = 0;

    while (done < size) {
        ssize_t got = pread(fd, bytes + done, size - done, (off_t)(offset + done));

        if (got <= 0)
            return -1;
        done += (uint64_t)got;
    }
    return 0;
}

static int open_once(const char *path)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_st_header *header = NULL;
    uint8_t prefix[512];
    uint8_t *bytes = NULL;
    uint64_t header_bytes = 0;
    struct stat status;
    ssize_t got;
    int rc = -1;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0 || fstat(fd, &status) != 0)
        goto fail_file;
    got = pread(fd, prefix, sizeof(prefix), 0);
    if (got < 0 ||
        heft_st_header_length(prefix, (size_t)got, (uint64_t)status.st_size, NULL, &header_bytes, &error))
        goto fail_file;
    bytes = malloc(header_bytes ? header_bytes : 1);
    if (!bytes || read_all(fd, bytes, header_bytes, 8))
        goto fail_file;
    rc = heft_st_parse(bytes, header_bytes, (uint64_t)status.st_size, NULL, &header, &error);

fail_file:
    if (rc)
        (void)fprintf(stderr, "bench_safetensors: %s: %s\n", path, error.code ? error.text : "can't be read");
    heft_st_free(header);
    free(bytes);
    if (fd >= 0)
        (void)close(fd);
    return rc;
}

/* Not ru_maxrss, which a child inherits from whoever started it. */
static long peak_kib(void)
{
    FILE *file = fopen("/proc/self/status", "r");
    char line[128];
    long peak = 0;

    if (!file)
        return 0;
    while (fgets(line, sizeof(line), file))
        if (strncmp(line, "VmHWM:", 6) == 0)
            peak = strtol(line + 6, NULL, 10);
    (void)fclose(file);
    return peak;
}

/* Opening is one thread's work without waiting (the file lies in the page cache), and other programs on the
 * machine do not count. */
static uint64_t cpu_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

int main(int argc, char **argv)
{
    long repeats, index;

    if (argc != 3)
        return 2;
    repeats = strtol(argv[2], NULL, 10);
    for (index = 0; index < repeats; index++) {
        uint64_t started = cpu_ns();

        if (open_once(argv[1]))
            return 1;
        (void)printf("%" PRIu64 "\n", cpu_ns() - started);
    }
    (void)printf("peak_kib %ld\n", peak_kib());
    return 0;
}
