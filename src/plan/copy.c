/* SPDX-License-Identifier: Apache-2.0 */
/* An atom seen from one source and from the destination: where each of its bytes lies on both sides. */
#include "plan/atoms.h"
#include "base/error.h"

/* Adds a dimension outside of the steps that are there; joins it when both sides go on regularly. */
static void copy_add(struct heft_copy *copy, uint64_t count, uint64_t source_stride, uint64_t dst_stride)
{
    struct heft_copy_step *last;

    if (copy->step_count > 0) {
        if (count == 1)
            return;
        last = &copy->steps[copy->step_count - 1];
        if (last->count * last->source_stride == source_stride &&
            last->count * last->dst_stride == dst_stride) {
            last->count *= count;
            return;
        }
    }
    HEFT_ASSERT(copy->step_count < HEFT_GEOMETRY_MAX_DIMS);
    copy->steps[copy->step_count++] = (struct heft_copy_step){count, source_stride, dst_stride};
}

void heft_plan_copy(const struct heft_plan *plan, const struct heft_atom *atom, uint32_t source,
                    struct heft_copy *copy_out)
{
    const struct heft_plan_inner *inner = plan->arena;
    const struct heft_layout_tensor *entry = &plan->layout->tensors[atom->entry];
    const struct heft_manifest_tensor *tensor = heft_plan_tensor(plan, inner, source, atom->entry);
    const uint64_t *numbers, *full, *wanted, *held, *box;
    uint64_t source_stride = 1, dst_stride = 1, boxed;
    uint32_t dims, dim;

    copy_out->source_at = tensor->offset_bytes;
    copy_out->dst_at = entry->dst_offset_bytes;
    copy_out->step_count = 0;
    if (atom->geometry == HEFT_PLAN_NONE) {
        copy_add(copy_out, atom->size_bytes, 1, 1);
        return;
    }
    numbers = inner->numbers + atom->geometry;
    dims = (uint32_t)numbers[0];
    boxed = numbers[1];
    full = numbers + 2;
    wanted = full + dims;
    held = NULL;
    if (boxed >> source & 1) {
        uint32_t before = (uint32_t)__builtin_popcountll(boxed & (((uint64_t)1 << source) - 1));

        held = wanted + (uint64_t)dims * 2 * (1 + before);
    }
    box = inner->numbers + atom->box;
    for (dim = dims; dim-- > 0;) {
        copy_out->source_at += (box[dim] - (held ? held[dim] : 0)) * source_stride;
        copy_out->dst_at += (box[dim] - wanted[dim]) * dst_stride;
        copy_add(copy_out, box[dims + dim], source_stride, dst_stride);
        source_stride *= held ? held[dims + dim] : full[dim];
        dst_stride *= wanted[dims + dim];
    }
}

void heft_copy_find(const struct heft_copy *copy, uint64_t at, uint64_t *source_out, uint64_t *dst_out)
{
    uint64_t source_at = copy->source_at, dst_at = copy->dst_at;
    uint32_t step;

    for (step = 0; step + 1 < copy->step_count; step++) {
        uint64_t index = at % copy->steps[step].count;

        source_at += index * copy->steps[step].source_stride;
        dst_at += index * copy->steps[step].dst_stride;
        at /= copy->steps[step].count;
    }
    *source_out = source_at + at * copy->steps[step].source_stride;
    *dst_out = dst_at + at * copy->steps[step].dst_stride;
}
