/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replicas: a loaded model, or any table of tensors in memory, made a source for others. Directories: who
 * holds what.
 */
#ifndef HEFT_REPLICA_H
#define HEFT_REPLICA_H

#include <heft/agent.h>
#include <heft/model.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

struct heft_replica;
struct heft_directory;

/*
 * Opens a directory: "HOST:PORT" or "grpc://HOST:PORT" is a heftd, "etcd://HOST:PORT[,HOST:PORT...][/PREFIX]"
 * an etcd cluster (version 3.4 or newer; "etcds://" with TLS; PREFIX of all keys, "heft"), both of which need
 * libheft-control; "file:PATH" is a static file. Records hold tokens: publishing over a connection that is
 * neither loopback nor TLS is refused (DENIED) unless allow_plain is set, and so is a password. The files are
 * read here, once. Options that the address has no use for are refused (INVALID).
 */
struct heft_directory_options {
    size_t size;
    const char *address;
    uint32_t timeout_ms; /* of one call; 0: 5000 */
    int allow_plain;
    const char *user; /* etcd: with password_file, whose first line counts */
    const char *password_file;
    const char *ca_file;          /* etcds: PEM; NULL: the system's */
    const char *certificate_file; /* etcds: with key_file, what this side shows; NULL: nothing */
    const char *key_file;
};
#define HEFT_DIRECTORY_OPTIONS_INIT                                   \
    {                                                                 \
        sizeof(struct heft_directory_options), 0, 0, 0, 0, 0, 0, 0, 0 \
    }
int heft_directory_open(const struct heft_directory_options *options, struct heft_directory **directory_out,
                        struct heft_error *error);
void heft_directory_close(struct heft_directory *directory);

/* A tensor that some engine already holds. strides in elements, NULL: row-major; any other layout is refused
 * (UNSUPPORTED). */
struct heft_held_tensor {
    const char *name;
    const char *dtype;
    uint32_t rank;
    const uint64_t *shape;     /* of the global tensor */
    const uint64_t *box_start; /* NULL: held whole */
    const uint64_t *box_size;
    const int64_t *strides;
    void *address;
};

struct heft_replica_options {
    size_t size;
    const char *name;                       /* of the replica; default "<host>-<pid>-<random>" */
    struct heft_agent *agent;               /* must listen; NULL: the replica makes one */
    const char *listen;                     /* for its own agent; NULL: "unix,127.0.0.1:0" */
    struct heft_model *model;               /* either a loaded model ... */
    const struct heft_held_tensor *tensors; /* ... or the caller's memory, kept until the replica is closed */
    uint64_t tensor_count;
    struct heft_model_identity
        identity;                     /* for tensors, required; for a model, fields that are set override */
    struct heft_directory *directory; /* where to publish; NULL: nowhere (peers are told by the caller) */
    uint32_t lease_ms;                /* 0: 10000; renewed by the library every third */
    int no_digests;                   /* do not compute block digests of tensors that have none */
};
#define HEFT_REPLICA_OPTIONS_INIT                                                                \
    {                                                                                            \
        sizeof(struct heft_replica_options), 0, 0, 0, 0, 0, 0, HEFT_MODEL_IDENTITY_INIT, 0, 0, 0 \
    }

/*
 * Registers, makes missing digests, serves, publishes. A directory that can't be reached now is retried in
 * the background: the replica serves meanwhile, and status tells.
 */
int heft_replica_publish(const struct heft_replica_options *options, struct heft_replica **replica_out,
                         struct heft_error *error);
/* Withdraws the record, ends served reads. */
void heft_replica_close(struct heft_replica *replica);

struct heft_replica_status {
    size_t size;
    int published;          /* 1: the last publish or renewal succeeded */
    uint64_t renewals;      /* successful ones */
    uint64_t republished;   /* times the directory had forgotten it and it was published again */
    uint64_t lease_left_ms; /* 0: expired, or no directory */
    uint64_t bytes_served;  /* sent by this process; readers of its host that map its memory are not seen */
    uint64_t readers;       /* peers connected now */
    struct heft_error last_error;
};
void heft_replica_get_status(struct heft_replica *replica, struct heft_replica_status *status_out);
struct heft_agent *heft_replica_agent(struct heft_replica *replica);
const char *heft_replica_name(const struct heft_replica *replica);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
