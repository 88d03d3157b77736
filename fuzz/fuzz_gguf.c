/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The input is a GGUF file. Whatever it is, the reader ends with a verdict and a sentence, also when the
 * header is brought in pieces; what it accepts lies inside the file, in order, without overlap.
 */
#include "format/gguf.h"
#include "fuzz.h"

#include <string.h>

/* Parses from a block of exactly the bytes brought, so that every step outside is seen. */
static int parse(const uint8_t *data, uint64_t have, uint64_t size, struct heft_st_header **header_out,
                 uint64_t *need_out)
{
    const struct heft_st_limits limits = {.header_limit_bytes = (uint64_t)1 << 20};
    struct heft_error error = HEFT_ERROR_INIT;
    uint8_t *copy = malloc(have ? have : 1);
    int rc;

    FUZZ_CHECK(copy);
    memcpy(copy, data, have);
    rc = heft_gguf_parse(copy, have, size, &limits, header_out, need_out, &error);
    free(copy);
    FUZZ_CHECK(rc == 0 || rc == HEFT_ERR_AGAIN || (error.code == rc && error.text[0]));
    return rc;
}

static void check_places(const struct heft_st_header *header, uint64_t size)
{
    uint64_t end = 0;

    for (uint64_t index = 0; index < header->tensor_count; index++) {
        const struct heft_st_tensor *tensor = &header->tensors[index];

        FUZZ_CHECK(tensor->begin >= end && tensor->end >= tensor->begin && tensor->end <= header->data_bytes);
        FUZZ_CHECK(tensor->name[tensor->name_bytes] == 0 && tensor->dtype);
        end = tensor->end;
    }
    FUZZ_CHECK(header->data_bytes == 0 || 8 + header->header_bytes + header->data_bytes == size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct heft_st_header *whole = NULL, *stepped = NULL;
    uint64_t have = size < 24 ? size : 24, need = 0;
    int rc = parse(data, size, size, &whole, &need), step;

    FUZZ_CHECK(rc != HEFT_ERR_AGAIN); /* all of it was there */
    while ((step = parse(data, have, size, &stepped, &need)) == HEFT_ERR_AGAIN) {
        FUZZ_CHECK(need > have && need <= size);
        have += (need - have + 3) / 4; /* less than was asked for: asked again */
    }
    FUZZ_CHECK(step == rc);
    if (whole) {
        FUZZ_CHECK(whole->tensor_count == stepped->tensor_count &&
                   whole->metadata_count == stepped->metadata_count);
        check_places(whole, size);
    }
    heft_st_free(whole);
    heft_st_free(stepped);
    return 0;
}
