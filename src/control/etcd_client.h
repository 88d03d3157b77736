/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client of an etcd cluster: calls to any of its members, with user and password or TLS. A member that does
 * not answer is left for the next one within the same call's deadline.
 */
#ifndef HEFT_CONTROL_ETCD_CLIENT_H
#define HEFT_CONTROL_ETCD_CLIENT_H

#include "control/grpc_client.h"
#include "control/record_proto.h"

#include <heft/replica.h>

#define HEFT_ETCD_RANGE "/etcdserverpb.KV/Range"
#define HEFT_ETCD_TXN "/etcdserverpb.KV/Txn"
#define HEFT_ETCD_LEASE_GRANT "/etcdserverpb.Lease/LeaseGrant"
#define HEFT_ETCD_LEASE_REVOKE "/etcdserverpb.Lease/LeaseRevoke"
#define HEFT_ETCD_LEASE_KEEP "/etcdserverpb.Lease/LeaseKeepAlive"
#define HEFT_ETCD_LEASE_LEFT "/etcdserverpb.Lease/LeaseTimeToLive"
#define HEFT_ETCD_WATCH "/etcdserverpb.Watch/Watch"
#define HEFT_ETCD_AUTHENTICATE "/etcdserverpb.Auth/Authenticate"

#define HEFT_ETCD_MEMBERS_MAX 16u
#define HEFT_ETCD_PREFIX_MAX_BYTES 255u

struct heft_etcd;

/* "etcd://HOST:PORT[,HOST:PORT...][/PREFIX]", "etcds://" with TLS. */
int heft_etcd_open(const struct heft_directory_options *options, struct heft_etcd **etcd_out,
                   struct heft_error *error);
void heft_etcd_close(struct heft_etcd *etcd);
/* Without slashes at its ends; "heft" when the address has none. */
const char *heft_etcd_prefix(const struct heft_etcd *etcd);
/* Every member is reached by TLS or by loopback. */
int heft_etcd_is_private(const struct heft_etcd *etcd);

struct heft_etcd_call {
    const char *method;
    const void *request; /* a message */
    const ProtobufCMessageDescriptor *answer;
    int is_idempotent;
};
/* Encodes, asks, decodes into the arena, which the caller frees after success. */
int heft_etcd_call(struct heft_etcd *etcd, const struct heft_etcd_call *call, struct heft_proto_arena *arena,
                   void **answer_out, struct heft_error *error);
int heft_etcd_stream(struct heft_etcd *etcd, const struct heft_etcd_call *call,
                     struct heft_grpc_stream **stream_out, struct heft_error *error);
/* What a stream's error means for the members: the next one is asked first from now on; a token that is no
 * longer taken is forgotten. */
void heft_etcd_note(struct heft_etcd *etcd, int rc, const struct heft_error *error);
void heft_etcd_interrupt(struct heft_etcd *etcd, pthread_t thread);

#endif
