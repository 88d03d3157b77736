/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors, boxes and holders of the world; see world.h. */
#include "world.h"
#include "base/digest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

uint64_t world_next(struct world_random *random)
{
    uint64_t z = (random->state += UINT64_C(0x9e3779b97f4a7c15));

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

uint64_t world_below(struct world_random *random, uint64_t limit)
{
    return world_next(random) % limit;
}

void world_add(struct world *world, struct world_tensor *tensor)
{
    uint64_t elements = 1;
    uint32_t dim;

    assert_true(world->tensor_count < WORLD_MAX_TENSORS);
    for (dim = 0; dim < tensor->rank; dim++)
        elements *= tensor->shape[dim];
    if (tensor->bits > 0) {
        assert_true(elements * tensor->bits % 8 == 0);
        tensor->bytes = elements * tensor->bits / 8;
    }
    (void)snprintf(tensor->dtype, sizeof(tensor->dtype), tensor->bits > 0 ? "T%u" : "Q?", tensor->bits);
    tensor->first_number = world->number_count + 1;
    world->number_count += (uint32_t)tensor->bytes;
    world->tensors[world->tensor_count++] = *tensor;
}

uint64_t world_box_bytes(const struct world_tensor *tensor, const struct world_box *box)
{
    uint64_t elements = 1;
    uint32_t dim;

    if (box->whole)
        return tensor->bytes;
    for (dim = 0; dim < tensor->rank; dim++)
        elements *= box->size[dim];
    return elements * tensor->bits / 8;
}

/* The bit of the tensor that is bit `at` of the box: from element to coordinates to element. */
static uint64_t box_bit(const struct world_tensor *tensor, const struct world_box *box, uint64_t at)
{
    uint64_t element = at / tensor->bits, global = 0, stride = 1;
    uint32_t dim;

    for (dim = tensor->rank; dim-- > 0;) {
        global += (element % box->size[dim] + box->start[dim]) * stride;
        element /= box->size[dim];
        stride *= tensor->shape[dim];
    }
    return global * tensor->bits + at % tensor->bits;
}

int world_box_clean(const struct world_tensor *tensor, const struct world_box *box)
{
    uint64_t elements = 1, row = tensor->bits, bit, first;
    uint32_t dim;

    if (box->whole || (tensor->bits > 0 && tensor->bits % 8 == 0))
        return 1;
    if (tensor->bits == 0)
        return 0;
    for (dim = 0; dim < tensor->rank; dim++)
        elements *= box->size[dim];
    for (dim = tensor->rank; dim > 0 && box->size[dim - 1] == tensor->shape[dim - 1]; dim--)
        row *= tensor->shape[dim - 1];
    if (elements > 0 && dim > 0 && row * tensor->shape[dim - 1] % 8 != 0)
        return 0;
    if (elements * tensor->bits % 8 != 0)
        return 0;
    for (bit = 0; bit < elements * tensor->bits; bit += 8) {
        first = box_bit(tensor, box, bit);
        if (first % 8 != 0 || box_bit(tensor, box, bit + 7) != first + 7)
            return 0;
    }
    return 1;
}

uint64_t world_box_byte(const struct world_tensor *tensor, const struct world_box *box, uint64_t at)
{
    return box->whole ? at : box_bit(tensor, box, at * 8) / 8;
}

const struct world_tensor *world_wanted(const struct world *world, const struct heft_layout *layout,
                                        uint64_t entry, struct world_box *box_out)
{
    const struct heft_layout_tensor *wanted = &layout->tensors[entry];
    const char *name = layout->reference->tensors[wanted->tensor].name;
    uint32_t index, dim;

    for (index = 0; index < world->tensor_count; index++)
        if (strcmp(world->tensors[index].name, name) == 0)
            break;
    assert_true(index < world->tensor_count);
    *box_out = (struct world_box){.whole = wanted->start == NULL};
    for (dim = 0; wanted->start && dim < world->tensors[index].rank; dim++) {
        box_out->start[dim] = wanted->start[dim];
        box_out->size[dim] = wanted->size[dim];
    }
    return &world->tensors[index];
}

int world_lacks(const struct world *world, const struct heft_layout *layout,
                const struct world_holder *holders, uint32_t holder_count, const char **name_out)
{
    uint64_t entry, at;
    uint32_t index;

    for (entry = 0; entry < layout->tensor_count; entry++) {
        struct world_box box;
        const struct world_tensor *tensor = world_wanted(world, layout, entry, &box);

        for (at = 0; at < layout->tensors[entry].size_bytes; at++) {
            uint64_t number = tensor->first_number + world_box_byte(tensor, &box, at);

            for (index = 0; index < holder_count; index++)
                if (holders[index].has[number])
                    break;
            if (index == holder_count) {
                *name_out = tensor->name;
                return 1;
            }
        }
    }
    return 0;
}

/* ---- holders ---- */

static void shuffle(struct world_random *random, uint32_t *order, uint32_t count)
{
    uint32_t index;

    for (index = 0; index < count; index++)
        order[index] = index;
    for (index = count; index > 1; index--) {
        uint32_t other = (uint32_t)world_below(random, index), kept = order[index - 1];

        order[index - 1] = order[other];
        order[other] = kept;
    }
}

/* Writes the numbers of a tensor's held box into its file, except those of missing blocks. */
static void fill(const struct world *world, struct world_holder *holder, uint32_t index,
                 const struct world_box *box)
{
    const struct world_tensor *tensor = &world->tensors[index];
    uint64_t found = heft_manifest_find(holder->manifest, tensor->name, strlen(tensor->name)), at;
    const struct heft_manifest_tensor *held;

    assert_true(found != UINT64_MAX);
    held = &holder->manifest->tensors[found];
    for (at = 0; at < held->size_bytes; at++) {
        uint64_t number = tensor->first_number + world_box_byte(tensor, box, at);

        if (!heft_manifest_holds(holder->manifest, held->first_block + at / HEFT_BLOCK_BYTES, 1))
            continue;
        holder->files[held->file][held->offset_bytes + at] = (uint32_t)number;
        holder->has[number] = 1;
    }
}

static void make_holes(struct world_random *random, struct world_holder *holder)
{
    uint64_t block;

    holder->partial = 1;
    assert_int_equal(heft_manifest_want_held(holder->manifest, NULL), 0);
    for (block = 0; block < holder->manifest->block_count; block++)
        if (world_below(random, 3) != 0)
            holder->manifest->held[block / 8] |= (uint8_t)(1u << block % 8);
}

void world_hold(struct world *world, struct world_random *random, const struct world_box *boxes,
                uint32_t files, int holes, struct world_holder *holder_out)
{
    struct heft_manifest *manifest = heft_manifest_new();
    uint64_t offsets[WORLD_MAX_TENSORS] = {0}, at;
    uint32_t order[WORLD_MAX_TENSORS], place[WORLD_MAX_TENSORS], index, file;
    char name[16];

    memset(holder_out, 0, sizeof(*holder_out));
    assert_non_null(manifest);
    holder_out->manifest = manifest;
    shuffle(random, order, world->tensor_count);
    for (index = 0; index < world->tensor_count; index++) {
        uint32_t tensor = world_below(random, 8) == 0 ? order[index] : index;

        order[index] = tensor;
    }
    /* Each tensor once, mostly in the world's order: the first place of each in `order` counts. */
    memset(place, 0xff, sizeof(place));
    for (index = 0; index < 2 * world->tensor_count; index++) {
        uint32_t tensor = index < world->tensor_count ? order[index] : index - world->tensor_count;

        if (place[tensor] != UINT32_MAX)
            continue;
        file = place[tensor] = (uint32_t)world_below(random, files);
        if (world_below(random, 4) == 0)
            holder_out->file_bytes[file] += world_below(random, 70000);
        offsets[tensor] = holder_out->file_bytes[file];
        holder_out->file_bytes[file] += world_box_bytes(&world->tensors[tensor], &boxes[tensor]);
    }
    for (file = 0; file < files; file++) {
        holder_out->file_bytes[file] += world_below(random, 2);
        (void)snprintf(name, sizeof(name), "file%u", file);
        assert_int_equal(
            heft_manifest_add_file(manifest, name, holder_out->file_bytes[file], 0, &index, NULL), 0);
        assert_int_equal(index, file);
        holder_out->files[file] = malloc((holder_out->file_bytes[file] + 1) * sizeof(uint32_t));
        assert_non_null(holder_out->files[file]);
        for (at = 0; at < holder_out->file_bytes[file]; at++)
            holder_out->files[file][at] = WORLD_POISON;
    }
    for (index = 0; index < world->tensor_count; index++) {
        const struct world_tensor *tensor = &world->tensors[index];
        struct heft_manifest_tensor entry = {.name = tensor->name,
                                             .name_bytes = (uint32_t)strlen(tensor->name),
                                             .rank = tensor->rank,
                                             .dtype = tensor->dtype,
                                             .dtype_bits = tensor->bits,
                                             .file = place[index],
                                             .shape = tensor->shape,
                                             .box_start = boxes[index].whole ? NULL : boxes[index].start,
                                             .box_size = boxes[index].whole ? NULL : boxes[index].size,
                                             .offset_bytes = offsets[index],
                                             .size_bytes = world_box_bytes(tensor, &boxes[index])};

        assert_int_equal(heft_manifest_add_tensor(manifest, &entry, NULL), 0);
    }
    assert_int_equal(heft_manifest_finish(manifest, NULL), 0);
    if (holes)
        make_holes(random, holder_out);
    holder_out->has = calloc(world->number_count + 1, 1);
    assert_non_null(holder_out->has);
    for (index = 0; index < world->tensor_count; index++)
        fill(world, holder_out, index, &boxes[index]);
}

void world_let_go(struct world_holder *holder)
{
    uint32_t file;

    for (file = 0; file < WORLD_MAX_MEMORIES; file++)
        free(holder->files[file]);
    free(holder->has);
    heft_manifest_free(holder->manifest);
}
