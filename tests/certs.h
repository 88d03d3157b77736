/* SPDX-License-Identifier: Apache-2.0 */
/* Certificates made on the spot, for tests of TLS: authorities, and what they sign, as PEM files of a folder.
 */
#ifndef HEFT_TEST_CERTS_H
#define HEFT_TEST_CERTS_H

#include <openssl/evp.h>
#include <openssl/x509.h>

struct test_authority {
    EVP_PKEY *key;
    X509 *cert;
};

void certs_authority_make(struct test_authority *authority, const char *name);
void certs_authority_free(struct test_authority *authority);
/* Writes FOLDER/ca.pem, cert.pem and key.pem: an agent's three files. `ca` is whom it trusts, `signer` who
 * signed it, from now (plus from_s) for valid_s seconds. */
void certs_write(const char *folder, const struct test_authority *ca, const struct test_authority *signer,
                 const char *name, long from_s, long valid_s);
/* A new folder below the system's temporary one, and its end with all files. */
void certs_folder_make(char path[64]);
void certs_folder_remove(const char *path);

#endif
