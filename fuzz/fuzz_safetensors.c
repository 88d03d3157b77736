/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The input is a safetensors file. Whatever it is, the reader ends with a verdict and a sentence; what it
 * accepts tiles the data, is accepted leniently too, and survives being written and read again.
 */
#include "format/safetensors.h"
#include "fuzz.h"

#include <string.h>

/* Parses from a block of exactly the header's size, so that every step outside is seen. */
static struct heft_st_header *parse(const uint8_t *data, size_t size, uint32_t flags)
{
    const struct heft_st_limits limits = {.flags = flags};
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_st_header *header = NULL;
    uint64_t header_bytes = 0;
    uint8_t *copy;
    int rc = heft_st_header_length(data, size, size, &limits, &header_bytes, &error);

    if (rc == 0) {
        FUZZ_CHECK(header_bytes <= size - 8);
        copy = malloc(header_bytes ? header_bytes : 1);
        FUZZ_CHECK(copy);
        memcpy(copy, data + 8, header_bytes);
        rc = heft_st_parse(copy, header_bytes, size, &limits, &header, &error);
        free(copy);
    }
    FUZZ_CHECK(rc == 0 || (header == NULL && error.code == rc && error.text[0] && heft_error_is_model(rc)));
    return header;
}

static void check_tiling(const struct heft_st_header *header, int trailing)
{
    uint64_t end = 0;
    uint64_t index;

    for (index = 0; index < header->tensor_count; index++) {
        const struct heft_st_tensor *tensor = &header->tensors[index];

        FUZZ_CHECK(tensor->begin == end && tensor->end >= end);
        FUZZ_CHECK(tensor->name[tensor->name_bytes] == 0);
        FUZZ_CHECK(tensor->header_at < header->header_bytes);
        end = tensor->end;
    }
    FUZZ_CHECK(trailing ? end <= header->data_bytes : end == header->data_bytes);
}

static int same_tensor(const struct heft_st_tensor *left, const struct heft_st_tensor *right)
{
    return left->name_bytes == right->name_bytes && memcmp(left->name, right->name, left->name_bytes) == 0 &&
           strcmp(left->dtype, right->dtype) == 0 && left->rank == right->rank &&
           memcmp(left->shape, right->shape, left->rank * sizeof(*left->shape)) == 0 &&
           left->begin == right->begin && left->end == right->end;
}

static void write_and_read_again(const struct heft_st_header *header)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_st_header *again = NULL;
    struct heft_buf buf;
    uint64_t index;

    heft_buf_init(&buf, (size_t)1 << 26);
    FUZZ_CHECK(heft_st_write_header(header->tensors, header->tensor_count, header->metadata,
                                    header->metadata_count, &buf, &error) == 0);
    FUZZ_CHECK(heft_get_u64(buf.data) == buf.size - 8);
    FUZZ_CHECK(
        heft_st_parse(buf.data + 8, buf.size - 8, buf.size + header->data_bytes, NULL, &again, &error) == 0);
    FUZZ_CHECK(again->tensor_count == header->tensor_count &&
               again->metadata_count == header->metadata_count);
    FUZZ_CHECK(again->repeated_names == 0);
    for (index = 0; index < header->tensor_count; index++)
        FUZZ_CHECK(same_tensor(&again->tensors[index], &header->tensors[index]));
    for (index = 0; index < header->metadata_count; index++) {
        FUZZ_CHECK(again->metadata[index].value_bytes == header->metadata[index].value_bytes);
        FUZZ_CHECK(memcmp(again->metadata[index].value, header->metadata[index].value,
                          header->metadata[index].value_bytes) == 0);
    }
    heft_st_free(again);
    heft_buf_free(&buf);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct heft_st_header *strict = parse(data, size, 0);
    struct heft_st_header *lenient = parse(data, size, HEFT_ST_UNKNOWN_DTYPES | HEFT_ST_TRAILING_DATA);

    FUZZ_CHECK(!strict || lenient);
    if (lenient)
        check_tiling(lenient, 1);
    if (strict) {
        check_tiling(strict, 0);
        write_and_read_again(strict);
    }
    heft_st_free(strict);
    heft_st_free(lenient);
    return 0;
}
