/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the safetensors reader says about files, for the tests that compare it with verdicts from elsewhere.
 *
 *   st_verdict FILE...     one line a file: name, ACCEPT or REJECT, the code's name, the sentence
 *   st_verdict --stream    files from stdin, each behind its length (u64, little-endian); for an accepted one
 *                          a line for each tensor and each metadata pair comes first
 */
#include "format/safetensors.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void print_hex(const char *bytes, uint32_t size)
{
    uint32_t index;

    for (index = 0; index < size; index++)
        (void)printf("%02x", (unsigned char)bytes[index]);
}

static void print_header(const struct heft_st_header *header)
{
    uint64_t index;
    uint32_t dimension;

    for (index = 0; index < header->tensor_count; index++) {
        const struct heft_st_tensor *tensor = &header->tensors[index];

        (void)printf("T\t");
        print_hex(tensor->name, tensor->name_bytes);
        (void)printf("\t%s\t%" PRIu64 "\t%" PRIu64 "\t", tensor->dtype, tensor->begin, tensor->end);
        for (dimension = 0; dimension < tensor->rank; dimension++)
            (void)printf("%s%" PRIu64, dimension ? "," : "", tensor->shape[dimension]);
        (void)printf("\n");
    }
    for (index = 0; index < header->metadata_count; index++) {
        const struct heft_st_pair *pair = &header->metadata[index];

        (void)printf("M\t");
        print_hex(pair->key, pair->key_bytes);
        (void)printf("\t");
        print_hex(pair->value, pair->value_bytes);
        (void)printf("\n");
    }
}

static void print_verdict(const char *name, int rc, const struct heft_error *error)
{
    (void)printf("%s\t%s\t%s\t%s\n", name, rc ? "REJECT" : "ACCEPT", rc ? heft_error_name(rc) : "-",
                 rc ? error->text : "");
}

/* A whole file in memory. */
static void judge_bytes(const uint8_t *bytes, uint64_t size)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_st_header *header = NULL;
    uint64_t header_bytes = 0;
    uint8_t *copy;
    int rc;

    rc = heft_st_header_length(bytes, size < 512 ? size : 512, size, NULL, &header_bytes, &error);
    if (rc == 0) {
        copy = malloc(header_bytes ? header_bytes : 1); /* alone, so that a sanitizer sees every overrun */
        if (!copy)
            exit(1);
        memcpy(copy, bytes + 8, header_bytes);
        rc = heft_st_parse(copy, header_bytes, size, NULL, &header, &error);
        free(copy);
    }
    if (rc == 0)
        print_header(header);
    print_verdict("V", rc, &error);
    heft_st_free(header);
}

static int judge_stream(void)
{
    uint8_t length[8];
    uint8_t *bytes;

    while (fread(length, 1, sizeof(length), stdin) == sizeof(length)) {
        uint64_t size = heft_get_u64(length);

        bytes = malloc(size ? size : 1);
        if (!bytes || fread(bytes, 1, size, stdin) != size)
            return 1;
        judge_bytes(bytes, size);
        free(bytes);
    }
    return 0;
}

static int judge_file(const char *path)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_st_header *header = NULL;
    const char *slash = strrchr(path, '/');
    uint8_t prefix[512];
    uint8_t *bytes = NULL;
    uint64_t header_bytes = 0;
    struct stat status;
    ssize_t got;
    int rc;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0 || fstat(fd, &status) != 0)
        return 1;
    got = pread(fd, prefix, sizeof(prefix), 0);
    rc = heft_st_header_length(prefix, got > 0 ? (size_t)got : 0, (uint64_t)status.st_size, NULL,
                               &header_bytes, &error);
    if (rc == 0) {
        bytes = malloc(header_bytes ? header_bytes : 1);
        if (!bytes || pread(fd, bytes, header_bytes, 8) != (ssize_t)header_bytes)
            return 1;
        rc = heft_st_parse(bytes, header_bytes, (uint64_t)status.st_size, NULL, &header, &error);
        free(bytes);
    }
    print_verdict(slash ? slash + 1 : path, rc, &error);
    heft_st_free(header);
    (void)close(fd);
    return 0;
}

int main(int argc, char **argv)
{
    int index;

    if (argc == 2 && strcmp(argv[1], "--stream") == 0)
        return judge_stream();
    for (index = 1; index < argc; index++)
        if (judge_file(argv[index])) {
            (void)fprintf(stderr, "st_verdict: %s can't be read\n", argv[index]);
            return 1;
        }
    return 0;
}
