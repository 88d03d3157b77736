/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The input is a recipe for tensors and metadata (names, dtypes and shapes of any kind). What the writer
 * writes the reader accepts; what it refuses leaves the buffer as it was.
 */
#include "format/safetensors.h"
#include "fuzz.h"

#include <string.h>

#define TENSORS_MAX 8
#define PAIRS_MAX 4
#define RANK_MAX 8

/* A length byte, then so many bytes, in place. */
static const char *take_text(struct heft_reader *reader, uint32_t *bytes_out)
{
    uint32_t bytes = heft_reader_u8(reader) % 32;
    const uint8_t *text = heft_reader_bytes(reader, bytes);

    *bytes_out = text ? bytes : 0;
    return text ? (const char *)text : "";
}

static const char *take_dtype(struct heft_reader *reader)
{
    static const char *const dtypes[] = {"U8", "F4", "F6_E3M2", "BF16", "C64", "BOOL", "Q8_0", ""};

    return dtypes[heft_reader_u8(reader) % (sizeof(dtypes) / sizeof(dtypes[0]))];
}

/* Mostly small dimensions, some of any size. */
static uint64_t take_dimension(struct heft_reader *reader)
{
    uint8_t byte = heft_reader_u8(reader);

    return byte < 250 ? byte % 16 : heft_reader_u64(reader);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t shapes[TENSORS_MAX][RANK_MAX];
    struct heft_st_tensor tensors[TENSORS_MAX];
    struct heft_st_pair pairs[PAIRS_MAX];
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_st_header *header = NULL;
    struct heft_reader reader;
    struct heft_buf buf;
    uint32_t tensor_count, pair_count, index, dimension;
    uint64_t data_bytes = 0;

    heft_reader_init(&reader, data, size);
    tensor_count = heft_reader_u8(&reader) % (TENSORS_MAX + 1);
    pair_count = heft_reader_u8(&reader) % (PAIRS_MAX + 1);
    for (index = 0; index < tensor_count; index++) {
        tensors[index] = (struct heft_st_tensor){.dtype = take_dtype(&reader), .shape = shapes[index]};
        tensors[index].name = take_text(&reader, &tensors[index].name_bytes);
        tensors[index].rank = heft_reader_u8(&reader) % (RANK_MAX + 1);
        for (dimension = 0; dimension < tensors[index].rank; dimension++)
            shapes[index][dimension] = take_dimension(&reader);
    }
    for (index = 0; index < pair_count; index++) {
        pairs[index].key = take_text(&reader, &pairs[index].key_bytes);
        pairs[index].value = take_text(&reader, &pairs[index].value_bytes);
    }

    heft_buf_init(&buf, (size_t)1 << 20);
    heft_buf_bytes(&buf, "before", 6);
    if (heft_st_write_header(tensors, tensor_count, pairs, pair_count, &buf, &error)) {
        FUZZ_CHECK(error.code && error.text[0] && buf.size == 6);
    } else {
        FUZZ_CHECK(heft_get_u64(buf.data + 6) == buf.size - 14 && buf.size % 8 == 6);
        /* The writer let no product overflow, so these do not either. */
        for (index = 0; index < tensor_count; index++) {
            uint64_t elements = 1;

            for (dimension = 0; dimension < tensors[index].rank; dimension++)
                elements *= shapes[index][dimension];
            data_bytes += elements * heft_dtype_bits(tensors[index].dtype, strlen(tensors[index].dtype)) / 8;
        }
        if (data_bytes < UINT64_MAX - buf.size) {
            FUZZ_CHECK(heft_st_parse(buf.data + 14, buf.size - 14, buf.size - 6 + data_bytes, NULL, &header,
                                     &error) == 0);
            FUZZ_CHECK(header->tensor_count == tensor_count && header->metadata_count == pair_count);
        }
    }
    heft_st_free(header);
    heft_buf_free(&buf);
    return 0;
}
