/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors as they come: the layout lies in a window of memory that is used as a ring. The executor gets
 * chunks as far as the window has room; a tensor's room is free again when the consumer released it and all
 * before. Or each lies where the caller wants it for good: then there is room for all of them from the start.
 */
#ifndef HEFT_LOAD_STREAM_H
#define HEFT_LOAD_STREAM_H

#include "load/executor.h"
#include <heft/model.h>

struct heft_stream;

/*
 * Orders the layout and gives each entry its place in a window of window_bytes, which becomes the layout's
 * arena; 0: entries stay where they are. order NULL: as it is, handed out in any order. TOO_LARGE,
 * NOT_FOUND, INVALID (a name twice).
 */
int heft_stream_create(struct heft_layout *layout, const char *const *order, uint64_t order_count,
                       uint64_t window_bytes, struct heft_stream **stream_out, struct heft_error *error);
void heft_stream_free(struct heft_stream *stream);
/* The plan was made; destinations of the layout lie at `addresses` (copied). A chunk is told to *on_chunk
 * first, when that is not NULL, and from now on to the stream. */
int heft_stream_prepare(struct heft_stream *stream, const struct heft_plan *plan, uint8_t *const *addresses,
                        void (**on_chunk)(void *context, uint64_t chunk), void **on_chunk_context,
                        struct heft_error *error);
/* From here on the executor is offered chunks; NULL: no more. */
void heft_stream_run(struct heft_stream *stream, struct heft_executor *executor);
/* The load's verdict; what was not handed out is not handed out any more after a failure. */
void heft_stream_end(struct heft_stream *stream, int code, const struct heft_error *error);
/* Until the consumer has released what it holds of a window, or closed. */
void heft_stream_wait_released(struct heft_stream *stream);
void heft_stream_close(struct heft_stream *stream);

int heft_stream_next(struct heft_stream *stream, uint64_t until_ns, struct heft_tensor *tensor_out,
                     struct heft_error *error);
void heft_stream_release(struct heft_stream *stream, const struct heft_tensor *tensor);

#endif
