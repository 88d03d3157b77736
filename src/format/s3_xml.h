/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers of S3 services and of Azure Blob: pages of listings, error documents, roles. Expat reads the XML; a
 * document with a DOCTYPE, with deep nesting or with long texts is refused. Element names are taken without
 * their namespace.
 */
#ifndef HEFT_FORMAT_S3_XML_H
#define HEFT_FORMAT_S3_XML_H

#include <heft/error.h>

#define HEFT_S3_KEY_MAX_BYTES 1024u
#define HEFT_S3_PAGE_MAX_BYTES ((size_t)16 << 20)

struct heft_s3_entry {
    char *key;
    char *etag; /* with its quotes; "" when the service gives none */
    uint64_t size_bytes;
};

struct heft_s3_page {
    struct heft_s3_entry *entries;
    size_t entry_count, entry_capacity;
    int truncated;
    char *next_token; /* NULL unless truncated */
};

/* Errors: PROTOCOL (what is wrong, and the line), NO_MEMORY. */
int heft_s3_page_parse(const void *xml, size_t size, struct heft_s3_page *page_out, struct heft_error *error);
/* The same of Google's XML interface, which may leave out that nothing follows. */
int heft_google_page_parse(const void *xml, size_t size, struct heft_s3_page *page_out,
                           struct heft_error *error);
/* The same of Azure's "List Blobs". */
int heft_azure_page_parse(const void *xml, size_t size, struct heft_s3_page *page_out,
                          struct heft_error *error);
void heft_s3_page_free(struct heft_s3_page *page);

/* The credentials in an answer of AWS STS. */
struct heft_sts_answer {
    char access_key[256], secret_key[256], session_token[4096], expiration[40];
};
/* PROTOCOL: they are not all there. */
int heft_sts_parse(const void *xml, size_t size, struct heft_sts_answer *answer_out,
                   struct heft_error *error);

/* An error document; each text is "" when it is absent. */
struct heft_s3_fault {
    char code[64];
    char message[192];
    char request_id[96];
    char region[64];
};
/* 1 when it was one. What is no XML, or no error, leaves the texts empty. */
int heft_s3_fault_parse(const void *xml, size_t size, struct heft_s3_fault *fault_out);

#endif
