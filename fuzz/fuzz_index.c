/* SPDX-License-Identifier: Apache-2.0 */
/* Shard indexes that come with a model, and references that a user types. */
#include "fuzz.h"

#include "format/modeldir.h"

#include <string.h>

static void check_index(const struct heft_shard_index *index)
{
    uint64_t at, first, end;
    uint32_t shard;

    for (shard = 0; shard < index->shard_count; shard++) {
        FUZZ_CHECK(heft_path_check(index->shards[shard], strlen(index->shards[shard]), NULL) == HEFT_OK);
        FUZZ_CHECK(shard == 0 || strcmp(index->shards[shard - 1], index->shards[shard]) < 0);
    }
    for (at = 0; at < index->tensor_count; at++) {
        FUZZ_CHECK(index->tensor_shards[at] < index->shard_count);
        FUZZ_CHECK(index->tensor_names[at][index->tensor_name_bytes[at]] == 0);
        heft_index_shard(index, index->shards[index->tensor_shards[at]], &first, &end);
        FUZZ_CHECK(first <= at && at < end);
        FUZZ_CHECK(end == index->tensor_count || index->tensor_shards[end] != index->tensor_shards[at]);
        FUZZ_CHECK(at == 0 || index->tensor_shards[at - 1] <= index->tensor_shards[at]);
    }
}

static void parse_reference(const uint8_t *data, size_t size)
{
    struct heft_error error = HEFT_ERROR_INIT;
    char *text = malloc(size + 1), folder[300];
    struct heft_ref ref;
    int rc;

    FUZZ_CHECK(text);
    memcpy(text, data, size);
    text[size] = 0;
    rc = heft_ref_parse(text, &ref, &error);
    FUZZ_CHECK(rc == HEFT_OK || (error.code == rc && error.text[0]));
    if (!rc) {
        FUZZ_CHECK(ref.name[0] && memchr(ref.name, 0, sizeof(ref.name)) &&
                   memchr(ref.revision, 0, sizeof(ref.revision)));
        FUZZ_CHECK(ref.kind != HEFT_REF_HUB ||
                   (heft_hub_folder(ref.name, folder, sizeof(folder)) == HEFT_OK &&
                    heft_path_check(folder, strlen(folder), NULL) == HEFT_OK));
        FUZZ_CHECK(!ref.revision[0] || heft_path_check(ref.revision, strlen(ref.revision), NULL) == HEFT_OK);
    }
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_shard_index *index = NULL;
    int rc = heft_index_parse(data, size, &index, &error);

    FUZZ_CHECK((rc == HEFT_OK) == (index != NULL));
    FUZZ_CHECK(rc == HEFT_OK || (error.code == rc && error.text[0]));
    if (index)
        check_index(index);
    heft_index_free(index);
    parse_reference(data, size);
    return 0;
}
