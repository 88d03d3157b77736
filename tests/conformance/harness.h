/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the conformance suite drives transports with: stand-ins for two agents, the second one in the same
 * process or in one of its own, connected by socket pairs or loopback TCP. The peer process is this program
 * run again (main hands over to peer_main), so that no thread is ever forked.
 */
#ifndef HEFT_TESTS_CONFORMANCE_HARNESS_H
#define HEFT_TESTS_CONFORMANCE_HARNESS_H

#include <heft/transport.h>

#include <pthread.h>
#include <sys/types.h>

#define SIDE_MAX_REGIONS 64
#define HARNESS_INDEX 1u /* the transport's slot: not 0, so that a transport that ignores it is found out */

enum link_kind { LINK_NONE, LINK_UNIX, LINK_TCP4, LINK_TCP6 };

/* DEVICE: pieces of the driver's virtual memory management; PLAIN: one allocation; PINNED: of the host. */
enum memory_kind {
    MEMORY_PRIVATE,
    MEMORY_SHARED,
    MEMORY_FILE,
    MEMORY_DEVICE,
    MEMORY_DEVICE_PLAIN,
    MEMORY_PINNED
};

struct region_spec {
    enum memory_kind kind;
    uint32_t flags;
    uint64_t length_bytes;
    uint64_t filled_bytes; /* pattern(seed) from filled_from, the rest stays a hole of zeros */
    uint64_t filled_from;
    uint64_t seed;
};

struct side_region {
    struct heft_transport_region region;
    int pins;
    int used;
    int fd;
    enum memory_kind kind;
    void *mapping; /* an address of the GPU, of DEVICE kinds */
    uint64_t mapping_bytes;
    struct heft_device_memory *device;
};

/* One agent's stand-in. */
struct side {
    const struct heft_transport_ops *ops;
    struct heft_transport *transport;
    struct heft_worker_pool *pool;
    struct heft_transport_host host;
    pthread_mutex_t lock;
    struct side_region regions[SIDE_MAX_REGIONS];
    uint64_t next_id;
    uint64_t served_bytes;
};

/* The other agent, as the first one sees it. */
struct remote {
    enum link_kind link;
    struct side *inside; /* in this process */
    pid_t pid;           /* or in that one */
    int control;
    pthread_mutex_t lock; /* one command at a time on the control socket */
    uint64_t session;
    int refuse_dials; /* atomic: what dial answers instead of connecting */
    int hold_fds;     /* dial keeps the other end instead of handing it to the peer's transport */
    int held_fds[16];
    int held_count;
    struct heft_transport_peer peer;
};

void side_open(struct side *side, const struct heft_transport_ops *ops, uint32_t workers);
void side_close(struct side *side);
/* Fills memory as the spec says and registers it. */
struct heft_transport_region *side_region_add(struct side *side, const struct region_spec *spec);
/* Waits until no pin is left (a test fails after 20 s), then frees. */
void side_region_remove(struct side *side, struct heft_transport_region *region);
int side_pins(struct side *side);
/* The bytes of a region of a side in this process, wherever they lie. */
void region_get(const struct heft_transport_region *region, uint64_t offset, void *to, uint64_t length);
void region_set(const struct heft_transport_region *region, uint64_t offset, int value, uint64_t length);
void region_expect(const struct heft_transport_region *region, uint64_t offset, const void *wanted,
                   uint64_t length);
/* Device memory whose bytes are all this one. */
void device_expect_all(const struct heft_transport_region *region, int value, uint64_t length);
/* Zeroed. */
void device_memory_make(struct side_region *entry, enum memory_kind kind, uint64_t bytes);
void device_memory_drop(struct side_region *entry, enum memory_kind kind);
void device_memory_put(const struct side_region *entry, uint64_t offset, const void *from, uint64_t length);
void device_pin(struct side_region *entry);
void device_unpin(struct side_region *entry);
int device_is_real(void); /* not tests/gpu/fake */

void remote_open_inside(struct remote *remote, struct side *side, enum link_kind link);
void remote_open_process(struct remote *remote, const char *transport, enum link_kind link);
void remote_close(struct remote *remote);
/* A region made by the remote; `view_out` is what an agent would learn of it (fd dup'ed). */
void remote_region_add(struct remote *remote, const struct region_spec *spec,
                       struct heft_transport_region *view_out);
void remote_region_remove(struct remote *remote, struct heft_transport_region *view);
/* XXH3-64 of the remote's bytes. */
uint64_t remote_region_hash(struct remote *remote, const struct heft_transport_region *view, uint64_t offset,
                            uint64_t length);
void remote_drop_session(struct remote *remote);
int remote_pins(struct remote *remote);
uint64_t remote_served_bytes(struct remote *remote);

/* TLS on connections that are dialed, with the files of a folder (below): for this process and those it
 * starts. */
void tls_link_use(const char *folder);
/* Each of the two sides' handshake; the session is kept for take_tls. -1: it failed. */
int tls_link_shake(int fd, int is_server);
struct heft_tls *tls_link_take(void *agent, int fd);
/* As send and recv, over TLS where the descriptor has it; and its end. */
ssize_t link_send(int fd, const void *data, size_t size);
ssize_t link_receive(int fd, void *data, size_t size);
void link_close(int fd);
/* Two connected stream sockets. -1 when this machine has no such address family. */
int link_pair(enum link_kind link, int fds_out[2]);
/* For `--peer FD TRANSPORT`: serves commands until the control socket closes. */
int peer_main(int argc, char **argv);
const struct heft_transport_ops *transport_named(const char *name);

/* Bytes that depend on the seed and the position only. */
void pattern_fill(void *data, uint64_t seed, uint64_t from_bytes, uint64_t length_bytes);
uint64_t random_next(uint64_t *state);
/* From lo to hi, both included. */
uint64_t random_range(uint64_t *state, uint64_t lo, uint64_t hi);

/* An operation and its end. */
struct test_op {
    struct heft_transport_op op;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int done_count;
    int status;
    struct heft_error error;
    void (*on_done)(struct test_op *op);
    void *context;
};
void test_op_init(struct test_op *op, enum heft_op kind, const struct heft_move *moves, size_t move_count);
/* Waits for done, up to 20 s (fails the test); returns its status. */
int test_op_wait(struct test_op *op);
int test_op_finished(struct test_op *op);
void test_op_free(struct test_op *op);

#endif
