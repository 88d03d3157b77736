/* SPDX-License-Identifier: Apache-2.0 */
#include "load/verify.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "load/kept.h"
#include "load/loaded.h"
#include "load/open.h"
#include "transport/object/object.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_BYTES ((size_t)4 << 20)

struct walk {
    struct heft_manifest *manifest;
    uint32_t file;
    uint64_t tensor; /* the first of this file's tensors that is not finished */
    uint8_t *block;  /* bytes of the current block that have been read */
    uint64_t block_fill;
};

/* Feeds the file's bytes [at, at+size) to the digests of the tensors that lie there. Tensors are in file
 * order. */
static void feed_tensors(struct walk *walk, uint64_t at, const uint8_t *bytes, uint64_t size)
{
    struct heft_manifest *manifest = walk->manifest;

    while (walk->tensor < manifest->tensor_count) {
        const struct heft_manifest_tensor *tensor = &manifest->tensors[walk->tensor];
        uint64_t end = tensor->offset_bytes + tensor->size_bytes, from, done, take;

        if (tensor->file != walk->file || tensor->offset_bytes >= at + size)
            return;
        from = at > tensor->offset_bytes ? at : tensor->offset_bytes;
        while (from < end && from < at + size) {
            done = from - tensor->offset_bytes;
            take = HEFT_BLOCK_BYTES - walk->block_fill;
            take = take < end - from ? take : end - from;
            take = take < at + size - from ? take : at + size - from;
            memcpy(walk->block + walk->block_fill, bytes + (from - at), take);
            walk->block_fill += take;
            from += take;
            if (walk->block_fill == HEFT_BLOCK_BYTES || from == end) {
                manifest->digests[tensor->first_block + done / HEFT_BLOCK_BYTES] =
                    heft_hash64(walk->block, walk->block_fill, 0);
                walk->block_fill = 0;
            }
        }
        if (from < end)
            return; /* the rest comes with the next bytes */
        walk->tensor++;
    }
}

static int read_file(struct walk *walk, int fd, const char *path, uint64_t size, uint8_t *buffer,
                     EVP_MD_CTX *sha, struct heft_error *error)
{
    uint64_t at = 0;

    while (at < size) {
        ssize_t got = pread(fd, buffer, READ_BYTES, (off_t)at);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return heft_error_set_errno(error, errno, "reading %s at byte %llu", path,
                                        (unsigned long long)at);
        if (got == 0)
            return heft_error_set(error, HEFT_ERR_TRUNCATED,
                                  "%s ended at byte %llu of %llu while it was read", path,
                                  (unsigned long long)at, (unsigned long long)size);
        (void)EVP_DigestUpdate(sha, buffer, (size_t)got);
        feed_tensors(walk, at, buffer, (uint64_t)got);
        at += (uint64_t)got;
    }
    return HEFT_OK;
}

/* The cache names a large file's blob by its SHA-256: 64 hexadecimal digits at the end of the real path. */
static int expected_sha256(int fd, uint8_t *digest_out)
{
    char link[64], path[4096];
    const char *name;
    ssize_t size;
    int index;

    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    size = readlink(link, path, sizeof(path) - 1);
    if (size <= 0)
        return 0;
    path[size] = 0;
    name = strrchr(path, '/');
    if (!name || strlen(++name) != 2 * HEFT_SHA256_BYTES ||
        strspn(name, "0123456789abcdef") != 2 * HEFT_SHA256_BYTES)
        return 0;
    for (index = 0; index < HEFT_SHA256_BYTES; index++) {
        char pair[3] = {name[2 * index], name[2 * index + 1], 0};

        digest_out[index] = (uint8_t)strtoul(pair, NULL, 16);
    }
    return 1;
}

static int verify_files(const struct heft_opened *opened, struct heft_verified *verified,
                        struct heft_error *error)
{
    struct walk walk = {.manifest = opened->manifest, .block = malloc(HEFT_BLOCK_BYTES)};
    uint8_t *buffer = malloc(READ_BYTES);
    EVP_MD_CTX *sha = EVP_MD_CTX_new();
    uint32_t index;
    int rc = walk.block && buffer && sha ? HEFT_OK : heft_error_set(error, HEFT_ERR_NO_MEMORY, "verifying");

    for (index = 0; index < opened->file_count && !rc; index++) {
        struct heft_verified_file *file = &verified->files[index];
        uint64_t size = opened->manifest->files[index].size_bytes;
        uint8_t expected[HEFT_SHA256_BYTES];

        walk.file = index;
        while (walk.tensor < opened->manifest->tensor_count &&
               opened->manifest->tensors[walk.tensor].file < index)
            walk.tensor++;
        (void)EVP_DigestInit_ex(sha, EVP_sha256(), NULL);
        rc = read_file(&walk, opened->fds[index], opened->paths[index], size, buffer, sha, error);
        (void)EVP_DigestFinal_ex(sha, file->sha256, NULL);
        file->name = opened->manifest->files[index].name;
        verified->bytes += size;
        file->checksum = heft_checksum_name(HEFT_CHECKSUM_NONE);
        if (rc || !expected_sha256(opened->fds[index], expected))
            continue;
        file->checked = 1;
        file->checksum = heft_checksum_name(HEFT_CHECKSUM_SHA256);
        if (memcmp(expected, file->sha256, sizeof(expected)) != 0)
            rc = heft_error_set(
                error, HEFT_ERR_DIGEST,
                "%s: its SHA-256 is not the one that its name in the cache promises: delete the blob and "
                "download it again",
                opened->paths[index]);
    }
    free(walk.block);
    free(buffer);
    EVP_MD_CTX_free(sha);
    return rc ? rc : heft_opened_check_unchanged(opened, error);
}

/* ---- objects ---- */

struct object_walk {
    struct walk walk;
    uint64_t at;
    EVP_MD_CTX *sha;
    struct heft_checksum_state *state; /* NULL: the store tells none, or SHA-256 */
};

static int take_object(void *context, const uint8_t *data, size_t size, struct heft_error *error)
{
    struct object_walk *walk = context;

    (void)error;
    (void)EVP_DigestUpdate(walk->sha, data, size);
    if (walk->state)
        heft_checksum_add(walk->state, data, size);
    feed_tensors(&walk->walk, walk->at, data, size);
    walk->at += size;
    return HEFT_OK;
}

/* What was read against what the store says. */
static int compare_object(struct object_walk *walk, const struct heft_checksum *expected, const char *path,
                          struct heft_verified_file *file, struct heft_error *error)
{
    struct heft_checksum found = {.kind = HEFT_CHECKSUM_SHA256};

    memcpy(found.bytes, file->sha256, sizeof(file->sha256));
    if (walk->state)
        heft_checksum_end(walk->state, &found);
    walk->state = NULL;
    file->checksum = heft_checksum_name(expected->kind);
    file->checked = found.kind == expected->kind;
    if (file->checked && memcmp(found.bytes, expected->bytes, heft_checksum_size(found.kind)) != 0)
        return heft_error_set(error, HEFT_ERR_DIGEST,
                              "%s: its %s is not the one that the store keeps: what is stored there, or what "
                              "lies between, is broken; upload it again",
                              path, file->checksum);
    return HEFT_OK;
}

static int verify_object(struct heft_object_client *client, struct object_walk *walk,
                         const struct heft_opened *opened, uint32_t index, struct heft_verified_file *file,
                         struct heft_error *error)
{
    struct heft_checksum expected = {0};
    const struct heft_object_stream stream = {.url = opened->urls[index],
                                              .version = opened->versions[index],
                                              .size_bytes = opened->manifest->files[index].size_bytes,
                                              .take = take_object,
                                              .context = walk};
    int rc = heft_object_checksum(client, stream.url, stream.version, &expected, error);

    if (rc)
        return rc;
    walk->at = 0;
    walk->walk.file = index;
    while (walk->walk.tensor < opened->manifest->tensor_count &&
           opened->manifest->tensors[walk->walk.tensor].file < index)
        walk->walk.tensor++;
    if (expected.kind != HEFT_CHECKSUM_NONE && expected.kind != HEFT_CHECKSUM_SHA256)
        walk->state = heft_checksum_begin(expected.kind);
    (void)EVP_DigestInit_ex(walk->sha, EVP_sha256(), NULL);
    rc = heft_object_stream(client, &stream, error);
    (void)EVP_DigestFinal_ex(walk->sha, file->sha256, NULL);
    if (!rc)
        return compare_object(walk, &expected, opened->paths[index], file, error);
    if (walk->state)
        heft_checksum_end(walk->state, &expected);
    walk->state = NULL;
    return rc;
}

/* What was found right is kept for loads; of no consequence here when that fails. */
static void keep_digests(const struct heft_opened *opened, const struct heft_verified *verified)
{
    struct heft_error error = HEFT_ERROR_INIT;
    uint32_t index;

    for (index = 0; index < opened->file_count; index++)
        if (!verified->files[index].checked)
            return;
    if (heft_kept_write(opened, opened->manifest->digests, &error))
        heft_log(HEFT_LOG_INFO, "later loads are not compared with what was found: %s", error.text);
}

static int verify_objects(const struct heft_opened *opened, struct heft_verified *verified,
                          struct heft_error *error)
{
    struct object_walk walk = {.walk = {.manifest = opened->manifest, .block = malloc(HEFT_BLOCK_BYTES)},
                               .sha = EVP_MD_CTX_new()};
    struct heft_object_client client;
    uint32_t index;
    int rc = heft_object_client_init(&client, error);

    if (!rc && (!walk.walk.block || !walk.sha))
        rc = heft_error_set(error, HEFT_ERR_NO_MEMORY, "verifying");
    for (index = 0; index < opened->file_count && !rc; index++) {
        struct heft_verified_file *file = &verified->files[index];

        rc = verify_object(&client, &walk, opened, index, file, error);
        file->name = opened->manifest->files[index].name;
        verified->bytes += opened->manifest->files[index].size_bytes;
    }
    heft_object_client_free(&client);
    free(walk.walk.block);
    EVP_MD_CTX_free(walk.sha);
    if (!rc)
        keep_digests(opened, verified);
    return rc;
}

int heft_verify_model(const char *model, const struct heft_model_options *options,
                      struct heft_verified **verified_out, struct heft_error *error)
{
    struct heft_verified *verified;
    struct heft_opened *opened;
    uint64_t begin = heft_now_ns();
    int rc = heft_open_model(model, options, &opened, error);

    if (rc)
        return rc;
    verified = calloc(1, sizeof(*verified));
    if (verified)
        verified->files = calloc(opened->file_count ? opened->file_count : 1, sizeof(*verified->files));
    if (!verified || !verified->files)
        rc = heft_error_set(error, HEFT_ERR_NO_MEMORY, "verifying %s", model);
    if (!rc)
        rc = heft_manifest_want_digests(opened->manifest, error);
    if (!rc)
        rc = opened->urls ? verify_objects(opened, verified, error) : verify_files(opened, verified, error);
    if (rc) {
        heft_opened_free(opened);
        heft_verified_free(verified);
        return rc;
    }
    verified->file_count = opened->file_count;
    verified->manifest = opened->manifest;
    opened->manifest = NULL; /* the answer keeps it */
    heft_opened_free(opened);
    verified->content_digest = heft_manifest_content_digest(verified->manifest);
    verified->seconds = (double)(heft_now_ns() - begin) / (double)HEFT_NS_PER_S;
    *verified_out = verified;
    return HEFT_OK;
}

void heft_verified_free(struct heft_verified *verified)
{
    if (!verified)
        return;
    heft_manifest_free(verified->manifest);
    free(verified->files);
    free(verified);
}
