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

    memcpy(&copy, options, options->size < sizeof(copy) ? options->size : sizeof(copy));
    copy.size = sizeof(copy);
    if (!copy.address || !copy.address[0])
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "a directory needs an address: HOST:PORT of a heftd, or file:PATH");
    if (strncmp(copy.address, "file:", 5) == 0)
        return heft_static_directory_open(copy.address + 5, directory_out, error);
    if (strncmp(copy.address, "grpc://", 7) == 0)
        copy.address += 7;
    else if (strstr(copy.address, "://"))
        return heft_error_set(
            error, HEFT_ERR_UNSUPPORTED,
            "directory '%.200s': unknown scheme; HOST:PORT, grpc://HOST:PORT and file:PATH are "
            "known",
            copy.address);
    else if (copy.address[0] == '/' || copy.address[0] == '.')
        return heft_error_set(error, HEFT_ERR_INVALID, "directory '%.200s': did you mean file:%.200s?",
                              copy.address, copy.address);
    if (!opener)
        return heft_error_set(
            error, HEFT_ERR_UNSUPPORTED,
            "directory '%.200s': this program was built without libheft-control, which speaks "
            "to heftd; only file:PATH is known",
            copy.address);
    return opener(&copy, directory_out, error);
}

void heft_directory_close(struct heft_directory *directory)
{
    if (directory)
        directory->ops->close(directory);
}
