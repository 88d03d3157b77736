/* SPDX-License-Identifier: Apache-2.0 */
/*
 * iterate: works on a model's tensors as they come, within little memory, while the rest is still moving.
 *
 *     iterate MODEL MEGABYTES [TENSOR ...]     MEGABYTES: of memory; tensors: only these, in this order
 *
 * Prints each tensor's name, bytes and Adler-32, and at the end how much memory the process had at most.
 */
#include <heft/heft.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

static int failed(const char *what, const struct heft_error *error)
{
    fprintf(stderr, "iterate: %s: %s: %s\n", what, heft_error_name(error->code), error->text);
    return 1;
}

static uint32_t adler32(const unsigned char *bytes, uint64_t size)
{
    uint32_t low = 1, high = 0;
    uint64_t done = 0;

    while (done < size) {
        uint64_t end = size - done < 5552 ? size : done + 5552; /* so long nothing overflows */

        for (; done < end; done++) {
            low += bytes[done];
            high += low;
        }
        low %= 65521;
        high %= 65521;
    }
    return high << 16 | low;
}

/* The work that overlaps with the loading: called once a tensor, in the calling thread. */
static int work(void *context, const struct heft_tensor *tensor)
{
    uint64_t *bytes = context;

    printf("%s %llu %08x\n", tensor->name, (unsigned long long)tensor->size_bytes,
           (unsigned)adler32(tensor->address, tensor->size_bytes));
    *bytes += tensor->size_bytes;
    return 0;
}

int main(int argc, char **argv)
{
    struct heft_load_options options = HEFT_LOAD_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_load *load;
    struct rusage usage;
    uint64_t bytes = 0;
    int rc;

    if (argc < 3) {
        fprintf(stderr, "usage: iterate MODEL MEGABYTES [TENSOR ...]\n");
        return 2;
    }
    options.model = argv[1];
    options.max_host_bytes = strtoull(argv[2], NULL, 10) << 20;
    options.flags = HEFT_LOAD_STREAM;
    if (argc > 3) {
        options.order = (const char *const *)(argv + 3);
        options.order_count = (uint64_t)argc - 3;
    }
    if (heft_load_start(&options, &load, &error))
        return failed(argv[1], &error);
    rc = heft_load_each(load, work, &bytes, &error);
    heft_load_free(load);
    if (rc)
        return failed(argv[1], &error);
    (void)getrusage(RUSAGE_SELF, &usage);
    printf("%llu bytes, peak %ld KiB\n", (unsigned long long)bytes, usage.ru_maxrss);
    return 0;
}
