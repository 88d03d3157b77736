/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors. Every fallible call returns 0 or a negative HEFT_ERR_* code. A code's class (its hundreds) says
 * what the caller can do: try again, accept a refusal, distrust the bytes, raise a limit, fix a call, fix the
 * machine. The sentence that explains one failure travels in struct heft_error, which the caller owns: a
 * fixed buffer, so that reporting a failure can't fail.
 */
#ifndef HEFT_ERROR_H
#define HEFT_ERROR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* X(name, value, text). A value is never reused; the class is value / 100. */
#define HEFT_ERROR_LIST(X)                                                                                \
    /* 1xx RETRY: the same call may succeed later or elsewhere */                                         \
    X(AGAIN, 101, "not finished yet")                                                                     \
    X(STALLED, 102, "no progress within the stall limit")                                                 \
    X(UNAVAILABLE, 103, "the other side can't be reached")                                                \
    X(PEER_LOST, 104, "the peer died or its connection broke")                                            \
    X(DEADLINE, 105, "the deadline passed")                                                               \
    X(BUSY, 106, "the object is in use")                                                                  \
    X(CANCELED, 107, "canceled by the caller")                                                            \
    X(NOT_READY, 108, "nothing is published there yet")                                                   \
    X(SOURCE_LOST, 109, "no source is left for some of the bytes")                                        \
    /* 2xx REFUSED: the other side, or a rule, says no */                                                 \
    X(STALE, 201, "another generation than the one asked for")                                            \
    X(INCOMPATIBLE, 202, "the two sides do not describe the same bytes or speak the same version")        \
    X(DENIED, 203, "not allowed")                                                                         \
    X(NOT_FOUND, 204, "no such object")                                                                   \
    X(EXISTS, 205, "the name is already owned")                                                           \
    X(REQUIRED, 206, "a required route can't be taken")                                                   \
    /* 3xx CORRUPT: the bytes are wrong */                                                                \
    X(DIGEST, 301, "the bytes do not match their digest")                                                 \
    X(TRUNCATED, 302, "fewer bytes than promised")                                                        \
    X(PROTOCOL, 303, "the peer broke the protocol")                                                       \
    X(MANIFEST, 304, "the manifest is malformed")                                                         \
    X(CHANGED, 305, "the source changed while it was read")                                               \
    /* 35x-39x: a model's files are broken; each refusal of the safetensors reference has its own code */ \
    X(HEADER_TOO_SMALL, 350, "the file is shorter than a safetensors length field (8 bytes)")             \
    X(HEADER_TOO_LARGE, 351, "the header is longer than the limit")                                       \
    X(HEADER_LENGTH, 352, "the header reaches past the end of the file")                                  \
    X(HEADER_UTF8, 353, "the header is not UTF-8")                                                        \
    X(HEADER_JSON, 354, "the header is not valid JSON")                                                   \
    X(HEADER_FIELD, 355, "a tensor entry or the metadata has a missing, repeated or wrong field")         \
    X(DTYPE, 356, "unknown dtype")                                                                        \
    X(OFFSET_GAP, 357, "the data has a hole between tensors")                                             \
    X(OFFSET_OVERLAP, 358, "two tensors overlap")                                                         \
    X(OFFSET_REVERSED, 359, "a tensor ends before it begins")                                             \
    X(SIZE_MISMATCH, 360, "a tensor's byte range does not fit its shape and dtype")                       \
    X(SHAPE_OVERFLOW, 361, "a tensor's size overflows 64 bits")                                           \
    X(MISALIGNED, 362, "a sub-byte tensor does not end on a byte")                                        \
    X(DATA_TRUNCATED, 363, "the file is shorter than its header says")                                    \
    X(DATA_TRAILING, 364, "the file is longer than its header says")                                      \
    X(LFS_POINTER, 365, "a Git LFS pointer stands where the weights should be")                           \
    X(INDEX_JSON, 366, "the shard index is not valid")                                                    \
    X(SHARD_MISSING, 367, "a shard named by the index is missing")                                        \
    X(TENSOR_MISSING, 368, "a tensor named by the index is missing from its shard")                       \
    X(PATH_UNSAFE, 369, "a file name leaves the model's folder")                                          \
    X(AMBIGUOUS, 370, "the folder holds more than one model")                                             \
    X(NO_WEIGHTS, 371, "no weight files found")                                                           \
    X(NOT_A_FILE, 372, "not a regular file")                                                              \
    X(PICKLE, 373, "a pickle checkpoint executes code when loaded")                                       \
    X(DUPLICATE_TENSOR, 374, "two shards hold the same tensor and no index decides")                      \
    X(SHARD_UNINDEXED, 375, "the shards' numbering has gaps or disagrees with the index")                 \
    /* 4xx LIMIT: a named limit was hit */                                                                \
    X(NO_MEMORY, 401, "out of memory")                                                                    \
    X(NO_SPACE, 402, "no space left on the device")                                                       \
    X(TOO_LARGE, 403, "larger than the limit")                                                            \
    X(NO_FDS, 404, "too many open files")                                                                 \
    X(TOO_MANY, 405, "too many objects")                                                                  \
    /* 5xx BUG: the call itself is wrong */                                                               \
    X(INVALID, 501, "invalid argument")                                                                   \
    X(UNSUPPORTED, 502, "not supported")                                                                  \
    X(STATE, 503, "not allowed in this state")                                                            \
    X(RANGE, 504, "outside the region")                                                                   \
    X(INTERNAL, 505, "internal error")                                                                    \
    X(UNKNOWN_OPTION, 506, "unknown option")                                                              \
    /* 6xx SYSTEM: the machine said no */                                                                 \
    X(IO, 601, "input/output error")                                                                      \
    X(PERMISSION, 602, "permission denied by the system")                                                 \
    X(READ_ONLY, 603, "the file system is read-only")                                                     \
    X(SYSTEM, 604, "the system refused a call")                                                           \
    X(LIBRARY, 605, "a library could not be loaded or failed")

enum heft_error_code {
    HEFT_OK = 0,
#define HEFT_ERROR_ENUM(name, value, text) HEFT_ERR_##name = -(value),
    HEFT_ERROR_LIST(HEFT_ERROR_ENUM)
#undef HEFT_ERROR_ENUM
};

enum heft_error_class {
    HEFT_CLASS_NONE = 0,
    HEFT_CLASS_RETRY = 1,
    HEFT_CLASS_REFUSED = 2,
    HEFT_CLASS_CORRUPT = 3,
    HEFT_CLASS_LIMIT = 4,
    HEFT_CLASS_BUG = 5,
    HEFT_CLASS_SYSTEM = 6
};

#define HEFT_ERROR_TEXT_BYTES 512

/*
 * What failed, on which object, and what to try. Owned by the caller; filled only when a call fails. Passing
 * NULL wherever a `struct heft_error *` is asked for is allowed.
 */
struct heft_error {
    int code;                         /* HEFT_ERR_*, 0 while nothing failed */
    char text[HEFT_ERROR_TEXT_BYTES]; /* one sentence, always NUL-terminated, cut at a UTF-8 boundary */
};

#define HEFT_ERROR_INIT \
    {                   \
        0,              \
        {               \
            0           \
        }               \
    }

/* The code's name ("STALLED"), its general text, its class. Unknown codes give "UNKNOWN". Any thread. */
const char *heft_error_name(int code);
const char *heft_error_text(int code);
enum heft_error_class heft_error_class(int code);
/* True for the codes 350 to 399: the model's files themselves are broken. */
int heft_error_is_model(int code);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
