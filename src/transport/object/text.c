/* SPDX-License-Identifier: Apache-2.0 */
/* Small texts that identity services and stores speak in: base64, times, JSON web tokens, secrets of files.
 */
#include "base/error.h"
#include "transport/object/object.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

char *heft_object_base64(const void *data, size_t size, int for_url)
{
    char *text;
    size_t at;

    if (size > INT_MAX / 2)
        return NULL;
    text = malloc(4 * ((size + 2) / 3) + 1);
    if (!text)
        return NULL;
    (void)EVP_EncodeBlock((unsigned char *)text, data, (int)size);
    if (!for_url)
        return text;
    for (at = 0; text[at]; at++) {
        if (text[at] == '+')
            text[at] = '-';
        else if (text[at] == '/')
            text[at] = '_';
        else if (text[at] == '=')
            text[at--] = 0;
    }
    return text;
}

int64_t heft_object_from_base64(const char *text, uint8_t *data_out, size_t most)
{
    size_t size = strlen(text), padding = 0;
    uint8_t *bytes;
    int got;

    if (size == 0 || size % 4 != 0 || size > INT_MAX / 2)
        return -1;
    while (padding < 2 && text[size - 1 - padding] == '=')
        padding++;
    bytes = malloc(size / 4 * 3);
    if (!bytes)
        return -1;
    got = EVP_DecodeBlock(bytes, (const unsigned char *)text, (int)size);
    if (got < (int)padding || (size_t)got - padding > most) {
        free(bytes);
        return -1;
    }
    memcpy(data_out, bytes, (size_t)got - padding);
    OPENSSL_cleanse(bytes, (size_t)got);
    free(bytes);
    return got - (int)padding;
}

uint64_t heft_object_time_ms(const char *text)
{
    struct tm parts = {0};
    const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &parts);
    time_t when;

    if (!rest || (*rest != 'Z' && *rest != '.' && *rest != '+'))
        return 0;
    when = timegm(&parts);
    return when > 0 ? (uint64_t)when * 1000 : 0;
}

/* RS256 over the text; malloc'ed base64. */
static char *sign_rs256(EVP_PKEY *key, const char *text)
{
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    unsigned char *signature = NULL;
    size_t size = 0;
    char *encoded = NULL;

    if (context && EVP_DigestSignInit(context, NULL, EVP_sha256(), NULL, key) == 1 &&
        EVP_DigestSign(context, NULL, &size, (const unsigned char *)text, strlen(text)) == 1 &&
        (signature = malloc(size)) != NULL &&
        EVP_DigestSign(context, signature, &size, (const unsigned char *)text, strlen(text)) == 1)
        encoded = heft_object_base64(signature, size, 1);
    free(signature);
    EVP_MD_CTX_free(context);
    return encoded;
}

int heft_object_jwt(const char *claims, const char *pem, char **text_out, struct heft_error *error)
{
    static const char head[] = "{\"alg\":\"RS256\",\"typ\":\"JWT\"}";
    BIO *bio = strlen(pem) < INT_MAX ? BIO_new_mem_buf(pem, (int)strlen(pem)) : NULL;
    EVP_PKEY *key = bio ? PEM_read_bio_PrivateKey(bio, NULL, NULL, NULL) : NULL;
    char *first = heft_object_base64(head, sizeof(head) - 1, 1);
    char *second = heft_object_base64(claims, strlen(claims), 1);
    char *body = NULL, *signature = NULL, *text = NULL;
    int rc = HEFT_OK;

    if (!key || EVP_PKEY_get_base_id(key) != EVP_PKEY_RSA)
        rc = heft_error_set(error, HEFT_ERR_INVALID, "its private key is no RSA key in PEM");
    else if (!first || !second || asprintf(&body, "%s.%s", first, second) < 0)
        rc = heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for a signed request");
    if (!rc) {
        signature = sign_rs256(key, body);
        if (!signature || asprintf(&text, "%s.%s", body, signature) < 0)
            rc = heft_error_set(error, HEFT_ERR_LIBRARY, "OpenSSL could not sign with its private key");
    }
    EVP_PKEY_free(key);
    (void)BIO_free(bio);
    free(first);
    free(second);
    free(body);
    free(signature);
    if (!rc)
        *text_out = text;
    return rc;
}

int heft_object_read_text(const char *path, size_t limit_bytes, char **text_out, struct heft_error *error)
{
    FILE *file = fopen(path, "re");
    char *text = file ? malloc(limit_bytes + 1) : NULL;
    size_t size;
    int rc = HEFT_OK;

    if (!file)
        return heft_error_set_errno(error, errno, "%s can't be read", path);
    if (!text) {
        (void)fclose(file);
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for %s", path);
    }
    size = fread(text, 1, limit_bytes + 1, file);
    if (ferror(file))
        rc = heft_error_set(error, HEFT_ERR_IO, "%s can't be read", path);
    else if (size > limit_bytes)
        rc = heft_error_set(error, HEFT_ERR_TOO_LARGE, "%s is longer than %zu bytes", path, limit_bytes);
    (void)fclose(file);
    if (rc) {
        OPENSSL_cleanse(text, limit_bytes + 1);
        free(text);
        return rc;
    }
    text[size] = 0;
    *text_out = text;
    return HEFT_OK;
}

const char *heft_object_variable(const char *name)
{
    const char *value = getenv(name);

    return value && value[0] ? value : NULL;
}

int heft_object_copy(char *to, size_t size, const char *from, const char *what, struct heft_error *error)
{
    size_t at;

    if (!from)
        return HEFT_OK;
    if (strlen(from) >= size)
        return heft_error_set(error, HEFT_ERR_TOO_LARGE, "%s is longer than %zu bytes", what, size - 1);
    for (at = 0; from[at]; at++)
        if ((unsigned char)from[at] <= 0x20 || (unsigned char)from[at] >= 0x7f)
            return heft_error_set(error, HEFT_ERR_INVALID,
                                  "%s holds a space or a character that no such value has", what);
    memcpy(to, from, strlen(from) + 1);
    return HEFT_OK;
}

void heft_object_free_secret(char *text)
{
    if (text)
        OPENSSL_cleanse(text, strlen(text));
    free(text);
}
