/* SPDX-License-Identifier: Apache-2.0 */
#include "certs.h"

#include <assert.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(holds)                                                     \
    do {                                                                 \
        if (!(holds)) {                                                  \
            (void)fprintf(stderr, "certs.c:%d: %s\n", __LINE__, #holds); \
            abort();                                                     \
        }                                                                \
    } while (0)

static X509 *make(EVP_PKEY *key, const char *name, const struct test_authority *signer, long from_s,
                  long valid_s)
{
    static long serial;
    X509 *cert = X509_new();
    X509_NAME *subject = X509_NAME_new();
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, NULL, NID_basic_constraints,
                                                    signer == NULL ? "critical,CA:TRUE" : "CA:FALSE");

    CHECK(cert != NULL && subject != NULL && extension != NULL);
    CHECK(X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0));
    CHECK(X509_set_version(cert, 2));
    CHECK(ASN1_INTEGER_set(X509_get_serialNumber(cert), ++serial));
    CHECK(X509_set_subject_name(cert, subject));
    CHECK(X509_set_issuer_name(cert, signer != NULL ? X509_get_subject_name(signer->cert) : subject));
    CHECK(X509_gmtime_adj(X509_getm_notBefore(cert), from_s) != NULL);
    CHECK(X509_gmtime_adj(X509_getm_notAfter(cert), from_s + valid_s) != NULL);
    CHECK(X509_set_pubkey(cert, key));
    CHECK(X509_add_ext(cert, extension, -1));
    CHECK(X509_sign(cert, signer != NULL ? signer->key : key, EVP_sha256()) > 0);
    X509_EXTENSION_free(extension);
    X509_NAME_free(subject);
    return cert;
}

void certs_authority_make(struct test_authority *authority, const char *name)
{
    authority->key = EVP_EC_gen("P-256");
    CHECK(authority->key != NULL);
    authority->cert = make(authority->key, name, NULL, -3600, 86400);
}

void certs_authority_free(struct test_authority *authority)
{
    EVP_PKEY_free(authority->key);
    X509_free(authority->cert);
}

static FILE *begin(const char *folder, const char *name, char temporary[128])
{
    FILE *file;

    (void)snprintf(temporary, 128, "%s/%s.new", folder, name);
    file = fopen(temporary, "we");
    CHECK(file != NULL);
    return file;
}

/* By renaming, as those who renew certificates do. */
static void finish(FILE *file, const char *folder, const char *name, const char *temporary)
{
    char path[128];

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    CHECK(fclose(file) == 0);
    CHECK(rename(temporary, path) == 0);
}

void certs_write(const char *folder, const struct test_authority *ca, const struct test_authority *signer,
                 const char *name, long from_s, long valid_s)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = make(key, name, signer, from_s, valid_s);
    char temporary[128];
    FILE *file = begin(folder, "ca.pem", temporary);

    CHECK(PEM_write_X509(file, ca->cert));
    finish(file, folder, "ca.pem", temporary);
    file = begin(folder, "cert.pem", temporary);
    CHECK(PEM_write_X509(file, cert));
    finish(file, folder, "cert.pem", temporary);
    file = begin(folder, "key.pem", temporary);
    CHECK(PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL));
    finish(file, folder, "key.pem", temporary);
    X509_free(cert);
    EVP_PKEY_free(key);
}

void certs_folder_make(char path[64])
{
    (void)snprintf(path, 64, "/tmp/heft-certs-XXXXXX");
    CHECK(mkdtemp(path) != NULL);
}

void certs_folder_remove(const char *path)
{
    static const char *const names[] = {"ca.pem", "cert.pem", "key.pem"};
    char file[128];

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        (void)snprintf(file, sizeof(file), "%s/%s", path, names[i]);
        (void)unlink(file);
    }
    (void)rmdir(path);
}
