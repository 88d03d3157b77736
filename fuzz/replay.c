/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzz target on each file of a folder, for builds without libFuzzer. Exit code 77: the folder has
 * none. */
#include "fuzz.h"

#include <dirent.h>
#include <string.h>

static void replay(const char *path)
{
    FILE *file = fopen(path, "rb");
    uint8_t *data;
    long size;

    FUZZ_CHECK(file && fseek(file, 0, SEEK_END) == 0);
    size = ftell(file);
    FUZZ_CHECK(size >= 0 && fseek(file, 0, SEEK_SET) == 0);
    data = malloc(size ? (size_t)size : 1);
    FUZZ_CHECK(data && fread(data, 1, (size_t)size, file) == (size_t)size);
    (void)fclose(file);
    (void)LLVMFuzzerTestOneInput(data, (size_t)size);
    free(data);
}

int main(int argc, char **argv)
{
    char path[4096];
    struct dirent *entry;
    unsigned count = 0;
    DIR *folder;

    if (argc != 2)
        return 2;
    folder = opendir(argv[1]);
    while (folder && (entry = readdir(folder)) != NULL) {
        if (entry->d_name[0] == '.')
            continue;
        (void)snprintf(path, sizeof(path), "%s/%s", argv[1], entry->d_name);
        replay(path);
        count++;
    }
    if (folder)
        (void)closedir(folder);
    if (count == 0) {
        (void)printf("no inputs kept in %s\n", argv[1]);
        return 77;
    }
    (void)printf("%u inputs\n", count);
    return 0;
}
