/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load: fills memory of the program's own from whoever serves the model (examples/serve.c, for instance).
 *
 *     load DIRECTORY         DIRECTORY: file:/tmp/replicas.json, for instance
 *
 * Of layer.weight only rows 64 to 127 are wanted, as a rank of a tensor-parallel engine would; no other row
 * crosses the process boundary.
 */
#include <heft/heft.h>
#include <stdio.h>

#define FIRST_ROW 64
#define ROWS 64
#define COLUMNS 128
#define BIASES 256

static float weight[ROWS][COLUMNS], bias[BIASES];

static int failed(const char *what, const struct heft_error *error)
{
    fprintf(stderr, "load: %s: %s\n", what, error->text);
    return 1;
}

static int load(struct heft_directory *directory, struct heft_model **model_out, struct heft_error *error)
{
    static const uint64_t start[] = {FIRST_ROW, 0}, size[] = {ROWS, COLUMNS};
    const struct heft_load_target targets[] = {
        {.tensor = "layer.weight",
         .box_start = start,
         .box_size = size,
         .address = weight,
         .size_bytes = sizeof(weight)},
        {.tensor = "layer.bias", .address = bias, .size_bytes = sizeof(bias)},
    };
    struct heft_model_identity identity = HEFT_MODEL_IDENTITY_INIT;
    struct heft_load_options options = HEFT_LOAD_OPTIONS_INIT;

    identity.model = "example/layer";
    identity.revision = "1";
    options.identity = &identity;
    options.source = "peer"; /* there are no files of this model */
    options.directory = directory;
    options.targets = targets;
    options.target_count = sizeof(targets) / sizeof(targets[0]);
    options.deadline_ms = 30000;
    return heft_load_model(&options, model_out, error);
}

int main(int argc, char **argv)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_directory_options where = HEFT_DIRECTORY_OPTIONS_INIT;
    struct heft_directory *directory;
    struct heft_model *model;
    int rc;

    if (argc != 2) {
        fprintf(stderr, "usage: load file:PATH\n");
        return 2;
    }
    where.address = argv[1];
    if (heft_directory_open(&where, &directory, &error))
        return failed(argv[1], &error);
    rc = load(directory, &model, &error);
    heft_directory_close(directory);
    if (rc)
        return failed("loading", &error);

    printf("layer.weight[%d][0] = %g, layer.weight[%d][%d] = %g, layer.bias[%d] = %g\n", FIRST_ROW,
           weight[0][0], FIRST_ROW + ROWS - 1, COLUMNS - 1, weight[ROWS - 1][COLUMNS - 1], BIASES - 1,
           bias[BIASES - 1]);
    return heft_model_free(model, &error) ? failed("freeing", &error) : 0; /* the arrays stay */
}
