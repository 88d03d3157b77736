/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading: from every place that holds the bytes into memory, verified.
 *
 * A load resolves the model, finds sources (files of this machine, replicas that a directory lists, replicas
 * named by the caller), plans, moves from all of them at once, checks every digest block on arrival, and only
 * then hands out a model. A failure before that leaves nothing behind.
 */
#ifndef HEFT_LOAD_H
#define HEFT_LOAD_H

#include <heft/agent.h>
#include <heft/model.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

struct heft_load;
struct heft_directory; /* replica.h */

enum heft_load_split {
    HEFT_LOAD_SPLIT_AUTO = 0, /* by rules when the model has a config.json, else by rows */
    HEFT_LOAD_SPLIT_ROW = 1,
    HEFT_LOAD_SPLIT_COLUMN = 2,
    HEFT_LOAD_SPLIT_RULES = 3 /* by its architecture's rules (docs/layouts.md) */
};

enum heft_load_experts {
    HEFT_LOAD_EXPERTS_CUT = 0,   /* each expert is divided among the ranks */
    HEFT_LOAD_EXPERTS_SPREAD = 1 /* each rank owns whole experts */
};

/* Loads into memory of the caller: `tensor`'s box (rank numbers, or NULL: whole) at `address`, row-major. */
struct heft_load_target {
    const char *tensor;
    const uint64_t *box_start;
    const uint64_t *box_size;
    void *address;
    uint64_t size_bytes; /* must equal the box's */
};

/* A replica named by the caller, for use without a directory. */
struct heft_load_peer {
    const char *addresses;
    const char *name;
    struct heft_generation generation;
    struct heft_token token;
};

enum heft_load_flags {
    HEFT_LOAD_NO_VERIFY = 1,   /* block digests are neither made nor checked, nor checksums of stores */
    HEFT_LOAD_EXPLAIN = 4,     /* plan only: move nothing; the report tells what would be done */
    HEFT_LOAD_TRACE = 8,       /* keep what each source did when, for heft_load_trace */
    HEFT_LOAD_STREAM = 16,     /* no model is made: heft_load_next hands out tensors as they come */
    HEFT_LOAD_NO_CHECKSUM = 32 /* whole objects are not compared with their store's checksums */
};

struct heft_load_options {
    size_t size;
    const char *model; /* as heft_manifest_open; may name a model that only replicas hold */
    struct heft_model_options model_options;
    const char *source;   /* "auto" (default), or kinds joined by '+': "peer", "file", "object" */
    const char *require;  /* a transport that every byte must take */
    uint32_t rank, ranks; /* ranks 0 or 1: the whole model */
    enum heft_load_split split;
    const struct heft_load_target *targets; /* NULL: heft allocates */
    uint64_t target_count;
    struct heft_agent *agent;         /* NULL: the load makes one of its own */
    struct heft_directory *directory; /* NULL: none */
    const struct heft_load_peer *peers;
    uint32_t peer_count;
    /*
     * Asks for exactly this identity: what an engine holds after processing, by its stage, fingerprint, rank
     * and pairs. Model and revision are required in it; `model` may then be NULL, and files are a source of
     * the raw stage only. NULL: the raw form of `model`.
     */
    const struct heft_model_identity *identity;
    const char *self;        /* a replica name never chosen as source (its own, after a restart) */
    uint64_t max_host_bytes; /* staging memory; 0: 256 MiB; at least 16 MiB */
    uint64_t deadline_ms;    /* 0: 10 minutes */
    uint64_t stall_ms;       /* a source without progress for this long loses its chunks (objects: six times
                                so long); 0: 10 s */
    uint64_t chunk_bytes;    /* 0: 1 MiB; on a GPU 16 MiB; 8 MiB when objects are a source */
    uint32_t flags;          /* enum heft_load_flags */
    /*
     * Where the weights go: NULL or "host", "cuda:N" or "cuda:GPU-<uuid>". On a GPU addresses of the loaded
     * tensors are device pointers, and blocks are verified there. UNSUPPORTED ("no GPU: ...") without it.
     */
    const char *device;
    /*
     * What a rank keeps, by the rules of the model's architecture: those built in for its config.json, or
     * those of the file `rules`. A choice of layers, experts or a pipeline stage needs rules (NOT_FOUND
     * without); "to" 0: all. Fused tensors of a rank have their parts one after another and the rank's own
     * shape.
     */
    const char *rules;
    enum heft_load_experts experts;
    uint64_t experts_from, experts_to;      /* only these experts */
    uint64_t layers_from, layers_to;        /* only these layers */
    uint32_t pipeline_rank, pipeline_ranks; /* instead of layers: this stage of so many */
    /*
     * So many loads of this host (itself counted, 64 at most) want parts of the same files or objects: each
     * byte is read from there by one of them and kept in memory that they share, in `share_folder` (NULL:
     * /dev/shm/heft-UID), until all have used it. They may start in any order, be late, or die. 0 or 1:
     * nobody shares.
     */
    uint32_t host_loads;
    const char *share_folder;
    /* With HEFT_LOAD_STREAM: only these tensors, in this order. NULL: all, each as soon as it is there. The
     * names must live until the load has ended. */
    const char *const *order;
    uint64_t order_count;
    /*
     * Other places of the same model, separated by spaces: folders and URLs, used at the same time. Their
     * names, dtypes and shapes must be the model's, and so must bytes all over it, which are compared first.
     */
    const char *mirrors;
    /*
     * So many loads of this model on any hosts (itself counted, 64 at most) read each byte of what they want
     * alike from storage once between them and take the rest from each other, every block compared with its
     * digest. They find each other in `directory`, which is required, and reach each other by `agent`, which
     * must listen (NULL: one that this host alone can reach). They may start in any order, be late, or die:
     * after fleet_wait_ms (0: 5 s) a load begins with those that are there. The loaded model is served to the
     * others until the load is freed. 0 or 1: nobody shares.
     */
    uint32_t fleet_loads;
    uint32_t fleet_wait_ms;
    /*
     * The model's files as they are (as_files is implied) into this folder, which appears once all of them
     * are there, verified and on disk; else there is nothing. The model lies in their maps. EXISTS when the
     * folder is there and not empty. Not with ranks, rules, targets, a device or HEFT_LOAD_STREAM.
     */
    const char *to;
};
#define HEFT_LOAD_OPTIONS_INIT                                                                              \
    {                                                                                                       \
        sizeof(struct heft_load_options), 0, HEFT_MODEL_OPTIONS_INIT, 0, 0, 0, 0, (enum heft_load_split)0,  \
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, (enum heft_load_experts)0, 0, 0, 0, 0, 0, 0, 0, 0, \
            0, 0, 0, 0, 0, 0                                                                                \
    }

struct heft_load_progress {
    size_t size;
    const char *stage; /* "init", "plan", "move", "verify", "publish", "done": static text */
    uint64_t bytes_done, bytes_total;
    uint64_t elapsed_ns;
    uint32_t sources_active, sources_lost;
};

/* Begins in the background. The options are copied; targets, identity, agent and directory stay the caller's
 * and must live until the load has ended. */
int heft_load_start(const struct heft_load_options *options, struct heft_load **load_out,
                    struct heft_error *error);
void heft_load_get_progress(struct heft_load *load, struct heft_load_progress *progress_out);
/*
 * Waits up to timeout_ms: 0 when done, AGAIN while running, else the load's error, which lists every source
 * tried with its own reason.
 */
int heft_load_wait(struct heft_load *load, uint64_t timeout_ms, struct heft_error *error);
void heft_load_cancel(struct heft_load *load);
/*
 * With HEFT_LOAD_STREAM: the next tensor that arrived whole and was verified, waiting up to timeout_ms for
 * it. It lies in a window of memory (half of max_host_bytes, at least 16 MiB are left to transports) and
 * stays there, and its names and numbers with it, until it is released. A window that is full of tensors not
 * released stops the load: that is the consumer's pace. 0; AGAIN; NOT_FOUND after the last one, when
 * everything ended right; else the load's error: what was handed out before is then not to be trusted (a file
 * may have changed while it was read). A tensor larger than the window is TOO_LARGE at the start. Any thread.
 *
 * With targets there is no window: each tensor (the target's box of it) is handed out where the caller wanted
 * it, stays there, and need not be released; nothing waits for the consumer. Only so may loads of a host
 * share what they read (host_loads): behind a window one slow consumer would hold up all of them.
 */
int heft_load_next(struct heft_load *load, uint64_t timeout_ms, struct heft_tensor *tensor_out,
                   struct heft_error *error);
/* The consumer is done with a tensor that next handed out. In any order; any thread. */
void heft_load_release(struct heft_load *load, const struct heft_tensor *tensor);
/*
 * The same as a loop: calls `each` with every tensor, on this thread, and releases it; ends with the load's
 * result, or cancels and returns what `each` returned when that is not 0.
 */
int heft_load_each(struct heft_load *load, int (*each)(void *context, const struct heft_tensor *tensor),
                   void *context, struct heft_error *error);
/* The loaded model, once; later calls give NULL. The model outlives the load. */
struct heft_model *heft_load_take_model(struct heft_load *load);
/* The report as JSON (docs/report.md), at any time; freed with heft_free. */
char *heft_load_report(struct heft_load *load);
/*
 * With HEFT_LOAD_TRACE and after the load has ended: a Chrome trace as JSON (docs/trace.md), freed with
 * heft_free; else NULL.
 */
char *heft_load_trace(struct heft_load *load);
/*
 * With fleet_loads, after the load is done: waits up to timeout_ms until the other loads need nothing more of
 * this one: 0; AGAIN. A load that is freed before costs the others what they have not taken yet: they read it
 * from storage. Until it is freed the model can't be (BUSY), and its bytes must stay as they are; who changes
 * them all the same is found out by the others, who then take from elsewhere.
 */
int heft_load_leave(struct heft_load *load, uint64_t timeout_ms);
/* Enters the time that publishing the loaded model took into the report (stage "publish"). */
void heft_load_note_publish(struct heft_load *load, uint64_t took_ns);
/* Cancels and waits for the end when still running. */
void heft_load_free(struct heft_load *load);

/* Start, wait, take; with fleet_loads also leave, within 30 s: for programs that need nothing between. */
int heft_load_model(const struct heft_load_options *options, struct heft_model **model_out,
                    struct heft_error *error);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
