/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a directory by its address: a file here, anything over gRPC through the opener that libheft-control
 * registered. */
#include "load/directory.h"
#include "base/error.h"

#include <string.h>

static heft_directory_opener grpc_opener;

void heft_directory_set_grpc_opener(heft_directory_opener opener)
{
    __atomic_store_n(&grpc_opener, opener, __ATOMIC_RELEASE);
}

int heft_directory_open(const struct heft_directory_options *options, struct heft_directory **directory_out,
                        struct heft_error *error)
{
    struct heft_directory_options copy = HEFT_DIRECTORY_OPTIONS_INIT;
    heft_directory_opener opener = __atomic_load_n(&grpc_opener, __ATOMIC_ACQUIRE);

    int is_etcd;

    memcpy(&copy, options, options->size < sizeof(copy) ? options->size : sizeof(copy));
    copy.size = sizeof(copy);
    if (!copy.address || !copy.address[0])
        return heft_error_set(
            error, HEFT_ERR_INVALID,
            "a directory needs an address: HOST:PORT of a heftd, etcd://HOST:PORT, or file:PATH");
    is_etcd = strncmp(copy.address, "etcd://", 7) == 0 || strncmp(copy.address, "etcds://", 8) == 0;
    if (!is_etcd &&
        (copy.user || copy.password_file || copy.ca_file || copy.certificate_file || copy.key_file))
        return heft_error_set(
            error, HEFT_ERR_INVALID,
            "directory '%.200s': a user, a password or TLS files are for etcd:// and etcds:// "
            "alone",
            copy.address);
    if (strncmp(copy.address, "file:", 5) == 0)
        return heft_static_directory_open(copy.address + 5, directory_out, error);
    if (strncmp(copy.address, "grpc://", 7) == 0)
        copy.address += 7;
    else if (!is_etcd && strstr(copy.address, "://"))
        return heft_error_set(
            error, HEFT_ERR_UNSUPPORTED,
            "directory '%.200s': unknown scheme; HOST:PORT, grpc://HOST:PORT, etcd://HOST:PORT, "
            "etcds://HOST:PORT and file:PATH are known",
            copy.address);
    else if (copy.address[0] == '/' || copy.address[0] == '.')
        return heft_error_set(error, HEFT_ERR_INVALID, "directory '%.200s': did you mean file:%.200s?",
                              copy.address, copy.address);
    if (!opener)
        return heft_error_set(
            error, HEFT_ERR_UNSUPPORTED,
            "directory '%.200s': this program was built without libheft-control, which speaks "
            "to heftd and etcd; only file:PATH is known",
            copy.address);
    return opener(&copy, directory_out, error);
}

void heft_directory_close(struct heft_directory *directory)
{
    if (directory)
        directory->ops->close(directory);
}
