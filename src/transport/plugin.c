/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plug-ins. The ABI number stands in data, at a place that never moves: nothing of a plug-in made for another
 * ABI is called. What is loaded stays loaded, because its code may still be on some thread's stack.
 */
#include "transport/plugin.h"
#include "base/error.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PATH_BYTES 4096
#define FILES_MAX 64 /* of one folder */

struct loaded {
    dev_t device;
    ino_t inode;
    const struct heft_transport_ops *ops;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct loaded all[HEFT_PLUGINS_MAX];
static size_t count;

const char *heft_plugin_path(void)
{
    const char *path = secure_getenv("HEFT_PLUGIN_PATH");

    return path && path[0] ? path : NULL;
}

static int check_name(const char *file, const char *name, struct heft_error *error)
{
    size_t index, size = name ? strnlen(name, 32) : 0;

    for (index = 0; index < size; index++)
        if (!strchr("abcdefghijklmnopqrstuvwxyz0123456789-_", name[index]))
            break;
    if (size == 0 || size == 32 || index < size)
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "plug-in %s: its transport's name is not 1 to 31 of a-z, 0-9, - and _", file);
    for (index = 0; index < count; index++)
        if (strcmp(all[index].ops->name, name) == 0)
            return heft_error_set(error, HEFT_ERR_EXISTS,
                                  "plug-in %s: another one has brought a transport '%s' already", file, name);
    return 0;
}

static int check(const char *file, const struct heft_transport_plugin *plugin, struct heft_error *error)
{
    const struct heft_transport_ops *ops;

    if (plugin->abi != HEFT_TRANSPORT_ABI)
        return heft_error_set(error, HEFT_ERR_INCOMPATIBLE,
                              "plug-in %s has ABI %u, this library takes %u: build it again with this "
                              "library's headers",
                              file, plugin->abi, HEFT_TRANSPORT_ABI);
    if (plugin->size < sizeof(*plugin))
        return heft_error_set(error, HEFT_ERR_INVALID, "plug-in %s: its description has %u bytes, not %zu",
                              file, plugin->size, sizeof(*plugin));
    ops = plugin->ops;
    if (!ops || ops->abi != HEFT_TRANSPORT_ABI || ops->size < offsetof(struct heft_transport_ops, post))
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "plug-in %s: its table is missing, of another ABI, or too short", file);
    return check_name(file, ops->name, error);
}

/* lock held. */
static int load_new(const char *file, const struct stat *status, struct heft_error *error)
{
    const struct heft_transport_plugin *plugin;
    void *handle;
    int rc;

    if (count == HEFT_PLUGINS_MAX)
        return heft_error_set(error, HEFT_ERR_TOO_MANY, "plug-in %s: a process takes at most %d", file,
                              HEFT_PLUGINS_MAX);
    (void)dlerror();
    handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return heft_error_set(error, HEFT_ERR_LIBRARY, "plug-in %s: %s", file, dlerror());
    plugin = dlsym(handle, HEFT_TRANSPORT_PLUGIN_SYMBOL);
    if (!plugin)
        rc = heft_error_set(error, HEFT_ERR_LIBRARY, "plug-in %s has no symbol %s: it is none of heft's",
                            file, HEFT_TRANSPORT_PLUGIN_SYMBOL);
    else
        rc = check(file, plugin, error);
    if (rc) { /* nothing of it ran, but what the loader runs */
        (void)dlclose(handle);
        return rc;
    }
    if (plugin->init) {
        struct heft_error why = HEFT_ERROR_INIT;

        rc = plugin->init(&why);
        why.text[sizeof(why.text) - 1] = 0;
        if (rc) /* it may have begun something: it stays loaded, unused */
            return heft_error_set(error, rc < 0 ? rc : HEFT_ERR_LIBRARY, "plug-in %s could not begin: %s",
                                  file, why.text[0] ? why.text : "it does not say why");
    }
    all[count++] = (struct loaded){status->st_dev, status->st_ino, plugin->ops};
    return 0;
}

int heft_plugin_load(const char *file, const struct heft_transport_ops **ops_out, struct heft_error *error)
{
    struct stat status;
    size_t index;
    int rc = 0;

    if (stat(file, &status))
        return heft_error_set(error, HEFT_ERR_NOT_FOUND, "plug-in %s: %s", file, strerror(errno));
    if (!S_ISREG(status.st_mode))
        return heft_error_set(error, HEFT_ERR_NOT_A_FILE, "plug-in %s is not a regular file", file);
    (void)pthread_mutex_lock(&lock);
    for (index = 0; index < count; index++)
        if (all[index].device == status.st_dev && all[index].inode == status.st_ino)
            break;
    if (index == count)
        rc = load_new(file, &status, error);
    if (!rc)
        *ops_out = all[index].ops;
    (void)pthread_mutex_unlock(&lock);
    return rc;
}

/* ---- paths ---- */

static void load_one(const char *file, heft_plugin_fn told, void *context)
{
    struct heft_error error = HEFT_ERROR_INIT;
    const struct heft_transport_ops *ops = NULL;

    (void)heft_plugin_load(file, &ops, &error);
    told(file, ops, &error, context);
}

static int is_library(const struct dirent *entry)
{
    size_t size = strlen(entry->d_name);

    return size > 3 && strcmp(entry->d_name + size - 3, ".so") == 0;
}

static void load_folder(const char *folder, heft_plugin_fn told, void *context)
{
    struct dirent **entries = NULL;
    int found = scandir(folder, &entries, is_library, alphasort), index;

    for (index = 0; index < found; index++) {
        char file[PATH_BYTES];
        int size = snprintf(file, sizeof(file), "%s/%s", folder, entries[index]->d_name);

        if (index < FILES_MAX && size > 0 && (size_t)size < sizeof(file))
            load_one(file, told, context);
        free(entries[index]);
    }
    free(entries);
}

void heft_plugins_each(const char *path, heft_plugin_fn told, void *context)
{
    while (path && *path) {
        size_t size = strcspn(path, ":");
        char one[PATH_BYTES];
        struct stat status;

        if (size && size < sizeof(one)) {
            memcpy(one, path, size);
            one[size] = 0;
            if (stat(one, &status) == 0 && S_ISDIR(status.st_mode))
                load_folder(one, told, context);
            else
                load_one(one, told, context);
        }
        path += size;
        path += *path == ':';
    }
}
