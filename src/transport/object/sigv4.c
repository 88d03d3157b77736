/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AWS Signature Version 4 of requests without a payload, as the service's documentation tells it
 * ("Signature Calculations for the Authorization Header"). Proven against its published examples by the
 * tests.
 */
#include "transport/object/object.h"

#include <openssl/crypto.h>

#include <stdio.h>
#include <string.h>

const char heft_sigv4_no_payload[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

static void hex(const uint8_t digest[HEFT_SHA256_BYTES], char text_out[HEFT_SHA256_BYTES * 2 + 1])
{
    size_t index;

    for (index = 0; index < HEFT_SHA256_BYTES; index++)
        (void)snprintf(text_out + index * 2, 3, "%02x", digest[index]);
}

static void hmac(const void *key, size_t key_bytes, const char *text, uint8_t digest_out[HEFT_SHA256_BYTES])
{
    struct heft_part part = {text, strlen(text)};

    heft_hmac_sha256(key, key_bytes, &part, 1, digest_out);
}

/* The key of one day, region and service. */
static int make_key(const struct heft_sigv4 *what, uint8_t key_out[HEFT_SHA256_BYTES])
{
    char secret[4 + 256 + 1], day[9];
    uint8_t one[HEFT_SHA256_BYTES], two[HEFT_SHA256_BYTES];
    int size = snprintf(secret, sizeof(secret), "AWS4%s", what->secret_key);

    if (size < 0 || (size_t)size >= sizeof(secret))
        return HEFT_ERR_TOO_LARGE;
    (void)snprintf(day, sizeof(day), "%.8s", what->time);
    hmac(secret, (size_t)size, day, one);
    hmac(one, sizeof(one), what->region, two);
    hmac(two, sizeof(two), what->service, one);
    hmac(one, sizeof(one), "aws4_request", key_out);
    OPENSSL_cleanse(secret, sizeof(secret));
    OPENSSL_cleanse(one, sizeof(one));
    OPENSSL_cleanse(two, sizeof(two));
    return HEFT_OK;
}

int heft_sigv4_sign(const struct heft_sigv4 *what, char *text_out, size_t size_bytes)
{
    const char *mode = what->checksum_mode ? "x-amz-checksum-mode:ENABLED\n" : "";
    char names[96];
    const char *payload = what->payload_hash ? what->payload_hash : heft_sigv4_no_payload;
    uint8_t digest[HEFT_SHA256_BYTES], key[HEFT_SHA256_BYTES];
    char digest_hex[HEFT_SHA256_BYTES * 2 + 1], scope[160], to_sign[320];
    struct heft_buf request;
    int size, failed;

    (void)snprintf(names, sizeof(names), "host;%sx-amz-content-sha256;x-amz-date%s",
                   what->checksum_mode ? "x-amz-checksum-mode;" : "",
                   what->session_token ? ";x-amz-security-token" : "");
    heft_buf_init(&request, SIZE_MAX);
    heft_buf_printf(&request, "%s\n%s\n%s\nhost:%s\n%sx-amz-content-sha256:%s\nx-amz-date:%s\n", what->method,
                    what->path, what->query, what->host, mode, payload, what->time);
    if (what->session_token)
        heft_buf_printf(&request, "x-amz-security-token:%s\n", what->session_token);
    heft_buf_printf(&request, "\n%s\n%s", names, payload);
    failed = request.failed;
    if (!failed) {
        heft_sha256(request.data, request.size, digest);
        OPENSSL_cleanse(request.data, request.size);
    }
    heft_buf_free(&request);
    if (failed)
        return failed;
    size = snprintf(scope, sizeof(scope), "%.8s/%s/%s/aws4_request", what->time, what->region, what->service);
    if (size < 0 || (size_t)size >= sizeof(scope))
        return HEFT_ERR_TOO_LARGE;
    hex(digest, digest_hex);
    size = snprintf(to_sign, sizeof(to_sign), "AWS4-HMAC-SHA256\n%s\n%s\n%s", what->time, scope, digest_hex);
    if (size < 0 || (size_t)size >= sizeof(to_sign) || make_key(what, key))
        return HEFT_ERR_TOO_LARGE;
    hmac(key, sizeof(key), to_sign, digest);
    OPENSSL_cleanse(key, sizeof(key));
    hex(digest, digest_hex);
    size = snprintf(text_out, size_bytes, "AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%s",
                    what->access_key, scope, names, digest_hex);
    return size < 0 || (size_t)size >= size_bytes ? HEFT_ERR_TOO_LARGE : HEFT_OK;
}
