/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payloads of the agent's frames. An encoder appends to a bounded buffer (whose failure is asked for once, at
 * the end). A decoder checks every length and returns 0 or PROTOCOL; strings point into the payload and are
 * not NUL-terminated. Bytes after the fields known here are of a later version and are skipped.
 */
#ifndef HEFT_WIRE_MESSAGE_H
#define HEFT_WIRE_MESSAGE_H

#include "base/buf.h"
#include "wire/frame.h"

#define HEFT_WIRE_GENERATION_BYTES 16
#define HEFT_WIRE_NONCE_BYTES 32
#define HEFT_WIRE_PROOF_BYTES 32
#define HEFT_WIRE_HOST_BYTES 16
#define HEFT_WIRE_NAME_MAX_BYTES 255     /* of agents, transports, documents */
#define HEFT_WIRE_TEXT_MAX_BYTES 511     /* of a refusal */
#define HEFT_WIRE_REGIONS_PER_FRAME 4096 /* entries of one REGIONS or REGION_GONE frame */
#define HEFT_WIRE_FDS_PER_FRAME 64       /* descriptors that travel with one REGIONS frame */
#define HEFT_WIRE_DOC_CHUNK_BYTES (256u << 10)
#define HEFT_WIRE_NOTIFICATION_MAX_BYTES 8192u /* that this library sends or takes */
#define HEFT_WIRE_NOTIFICATION_COST_BYTES 64u  /* of credit, on top of the bytes */
#define HEFT_WIRE_COUNTS_PER_FRAME 1024        /* entries of one COUNT frame */
#define HEFT_WIRE_ENDED_MAX 256                /* ended sessions that one AUTH names */

struct heft_wire_text {
    const char *data;
    size_t size;
};

enum heft_wire_purpose {
    HEFT_WIRE_CONTROL = 1, /* the liveness connection: opens a session */
    HEFT_WIRE_DATA = 2,    /* a stream of one transport, joins a session */
    HEFT_WIRE_REPLACE = 3  /* likewise, and that transport's other streams of the session end first */
};

struct heft_wire_hello {
    uint16_t version_lowest, version_highest;
    uint8_t purpose;
    uint8_t generation[HEFT_WIRE_GENERATION_BYTES]; /* of the client */
    uint8_t expected[HEFT_WIRE_GENERATION_BYTES];   /* of the server; zero: any */
    uint8_t nonce[HEFT_WIRE_NONCE_BYTES];
    uint64_t session; /* DATA, REPLACE: the session to join */
    struct heft_wire_text name, expected_name;
    struct heft_wire_text transport; /* likewise: whose stream it is */
};

struct heft_wire_challenge {
    uint16_t version; /* the one to speak from here on */
    uint8_t generation[HEFT_WIRE_GENERATION_BYTES];
    uint8_t nonce[HEFT_WIRE_NONCE_BYTES];
    uint8_t proof[HEFT_WIRE_PROOF_BYTES];
    struct heft_wire_text name;
};

struct heft_wire_auth {
    uint8_t proof[HEFT_WIRE_PROOF_BYTES];
    /* CONTROL: earlier sessions of this client here that have ended for it; absent when there are none. */
    uint16_t ended_count;
    uint64_t ended[HEFT_WIRE_ENDED_MAX];
};

struct heft_wire_ready {
    uint64_t session;
    uint8_t host[HEFT_WIRE_HOST_BYTES]; /* the same for two processes under one kernel boot */
    uint64_t monotonic_ns;              /* the sender's clock when it wrote this */
};

struct heft_wire_refuse {
    int code; /* a negative HEFT_ERR_* that this library knows */
    struct heft_wire_text text;
};

struct heft_wire_region {
    uint64_t id;
    uint8_t space;
    uint8_t has_fd;
    uint32_t flags;
    uint64_t length_bytes;
    uint64_t address; /* for cross-memory attach; 0 unless the connection is a unix socket */
};

struct heft_wire_regions {
    uint64_t epoch;
    uint8_t more; /* another frame of the same list follows */
    uint32_t count;
    uint16_t entry_bytes;   /* of one entry on the wire, at least what is known here */
    const uint8_t *entries; /* inside the payload */
};

struct heft_wire_ids {
    uint64_t epoch;
    uint32_t count;
    const uint8_t *ids; /* inside the payload, 8 bytes each */
};

struct heft_wire_doc_get {
    uint64_t limit_bytes;
    struct heft_wire_text name;
};

struct heft_wire_doc {
    uint64_t epoch, total_bytes, offset_bytes;
    struct heft_wire_text chunk;
};

struct heft_wire_counts {
    uint32_t count;
    uint16_t entry_bytes;
    const uint8_t *entries; /* inside the payload */
};

struct heft_wire_count {
    uint32_t counter;
    uint64_t transfers; /* not 0 */
};

struct heft_wire_credit {
    uint64_t bytes;         /* more than before */
    uint32_t largest_bytes; /* one notification that the sender of this frame takes */
};

struct heft_wire_ring {
    uint32_t layout; /* of the memory that comes along */
    uint32_t cells;
};

void heft_wire_put_hello(struct heft_buf *buf, const struct heft_wire_hello *hello);
int heft_wire_get_hello(const void *payload, size_t size, struct heft_wire_hello *hello_out);
void heft_wire_put_challenge(struct heft_buf *buf, const struct heft_wire_challenge *challenge);
int heft_wire_get_challenge(const void *payload, size_t size, struct heft_wire_challenge *challenge_out);
void heft_wire_put_auth(struct heft_buf *buf, const struct heft_wire_auth *auth);
int heft_wire_get_auth(const void *payload, size_t size, struct heft_wire_auth *auth_out);
void heft_wire_put_ready(struct heft_buf *buf, const struct heft_wire_ready *ready);
int heft_wire_get_ready(const void *payload, size_t size, struct heft_wire_ready *ready_out);
/* REFUSE and BYE. The text is cut at its cap. A code that this library does not know is read as PROTOCOL. */
void heft_wire_put_refuse(struct heft_buf *buf, int code, const char *text);
int heft_wire_get_refuse(const void *payload, size_t size, struct heft_wire_refuse *refuse_out);
/* The head of a list; then one put_region for each of `count`. */
void heft_wire_put_regions(struct heft_buf *buf, uint64_t epoch, int more, uint32_t count);
void heft_wire_put_region(struct heft_buf *buf, const struct heft_wire_region *region);
int heft_wire_get_regions(const void *payload, size_t size, struct heft_wire_regions *regions_out);
/* Entry `index` of a decoded list. PROTOCOL: id 0; UNSUPPORTED: a space of a later version, to be skipped. */
int heft_wire_get_region(const struct heft_wire_regions *regions, uint32_t index,
                         struct heft_wire_region *region_out);
/* REGION_GONE and REGION_FREE. */
void heft_wire_put_ids(struct heft_buf *buf, uint64_t epoch, const uint64_t *ids, uint32_t count);
int heft_wire_get_ids(const void *payload, size_t size, struct heft_wire_ids *ids_out);
uint64_t heft_wire_get_id(const struct heft_wire_ids *ids, uint32_t index);
void heft_wire_put_doc_get(struct heft_buf *buf, uint64_t limit_bytes, const char *name);
int heft_wire_get_doc_get(const void *payload, size_t size, struct heft_wire_doc_get *get_out);
void heft_wire_put_doc(struct heft_buf *buf, const struct heft_wire_doc *doc);
int heft_wire_get_doc(const void *payload, size_t size, struct heft_wire_doc *doc_out);
void heft_wire_put_notify(struct heft_buf *buf, const void *data, size_t size);
int heft_wire_get_notify(const void *payload, size_t size, struct heft_wire_text *notification_out);
/* The head; then one put_count for each of `count`. */
void heft_wire_put_counts(struct heft_buf *buf, uint32_t count);
void heft_wire_put_count(struct heft_buf *buf, const struct heft_wire_count *count);
int heft_wire_get_counts(const void *payload, size_t size, struct heft_wire_counts *counts_out);
struct heft_wire_count heft_wire_get_count(const struct heft_wire_counts *counts, uint32_t index);
void heft_wire_put_credit(struct heft_buf *buf, const struct heft_wire_credit *credit);
int heft_wire_get_credit(const void *payload, size_t size, struct heft_wire_credit *credit_out);
void heft_wire_put_ring(struct heft_buf *buf, const struct heft_wire_ring *ring);
int heft_wire_get_ring(const void *payload, size_t size, struct heft_wire_ring *ring_out);
/* serial: not 0. */
void heft_wire_put_wake(struct heft_buf *buf, uint32_t serial);
int heft_wire_get_wake(const void *payload, size_t size, uint32_t *serial_out);

#endif
