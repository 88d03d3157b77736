/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors as they come: the layout lies in a window of memory that is used as a ring. The executor gets
 * chunks as far as the window has room; a tensor's room is free again when the consumer released it and all
 * before.
 */
#ifndef HEFT_LOAD_STREAM_H
#define HEFT_LOAD_STREAM_H

#include "load/executor.h"
#include <heft/model.h>

struct heft_stream;

/*
 * Orders the layout and gives each entry its place in a window of window_bytes, which becomes the layout's
 * arena. order NULL: as it is, handed out in any order. TOO_LARGE, NOT_FOUND, INVALID (a name twice).
 */
int heft_stream_create(struct heft_layout *layout, const char *const *order, uint64_t order_count,
                       uint64_t window_bytes, struct heft_stream **stream_out, struct heft_error *error);
void heft_stream_free(struct heft_stream *stream);
/* The plan was made and the window allocated at `window`. */
int heft_stream_prepare(struct heft_stream *stream, const struct heft_plan *plan, uint8_t *window,
                        struct heft_error *error);
void heft_stream_on_chunk(void *stream, uint64_t chunk);
/* From here on the executor is offered chunks; NULL: no more. */
void heft_stream_run(struct heft_stream *stream, struct heft_executor *executor);
/* The load's verdict; what was not handed out is not handed out any more after a failure. */
void heft_stream_end(struct heft_stream *stream, int code, const struct heft_error *error);
/* Until the consumer has released what it holds, or closed. */
void heft_stream_wait_released(struct heft_stream *stream);
void heft_stream_close(struct heft_stream *stream);

int heft_stream_next(struct heft_stream *stream, uint64_t until_ns, struct heft_tensor *tensor_out,
                     struct heft_error *error);
void heft_stream_release(struct heft_stream *stream, const struct heft_tensor *tensor);

#endif
