/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve: a program that holds tensors already, as an inference engine does, makes itself a source for others.
 *
 *     serve DIRECTORY        DIRECTORY: file:/tmp/replicas.json, for instance
 *
 * It serves until its standard input ends, then withdraws. The memory stays the program's own: heft copies
 * nothing, it registers the addresses for reading.
 */
#include <heft/heft.h>
#include <stdio.h>

#define ROWS 256
#define COLUMNS 128

static float weight[ROWS][COLUMNS], bias[ROWS];

static void fill(void)
{
    for (int row = 0; row < ROWS; row++) {
        bias[row] = (float)row / 2;
        for (int column = 0; column < COLUMNS; column++)
            weight[row][column] = (float)(row * COLUMNS + column);
    }
}

static int failed(const char *what, const struct heft_error *error)
{
    fprintf(stderr, "serve: %s: %s\n", what, error->text);
    return 1;
}

int main(int argc, char **argv)
{
    static const uint64_t weight_shape[] = {ROWS, COLUMNS}, bias_shape[] = {ROWS};
    const struct heft_held_tensor tensors[] = {
        {.name = "layer.weight", .dtype = "F32", .rank = 2, .shape = weight_shape, .address = weight},
        {.name = "layer.bias", .dtype = "F32", .rank = 1, .shape = bias_shape, .address = bias},
    };
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_directory_options where = HEFT_DIRECTORY_OPTIONS_INIT;
    struct heft_replica_options what = HEFT_REPLICA_OPTIONS_INIT;
    struct heft_directory *directory;
    struct heft_replica *replica;

    if (argc != 2) {
        fprintf(stderr, "usage: serve file:PATH\n");
        return 2;
    }
    fill();
    where.address = argv[1];
    if (heft_directory_open(&where, &directory, &error))
        return failed(argv[1], &error);

    what.directory = directory;
    what.tensors = tensors;
    what.tensor_count = sizeof(tensors) / sizeof(tensors[0]);
    what.identity.model = "example/layer"; /* who asks for another model or revision is not served */
    what.identity.revision = "1";
    if (heft_replica_publish(&what, &replica, &error)) {
        heft_directory_close(directory);
        return failed("publishing", &error);
    }
    printf("serving as %s\n", heft_replica_name(replica));
    fflush(stdout);
    while (getchar() != EOF)
        continue;

    heft_replica_close(replica); /* before the memory that it serves goes */
    heft_directory_close(directory);
    return 0;
}
