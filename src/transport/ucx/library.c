/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/ucx/library.h"
#include "base/error.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <stdlib.h>

#define LIBRARY "libucp.so.0"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ucx_calls calls;
static int loaded;

/* UCX takes over the signals of crashes when it is loaded: they stay whose they were. */
static void *open_quietly(void)
{
    static const int taken[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP};
    struct sigaction before[sizeof(taken) / sizeof(taken[0])];
    void *library;

    for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++)
        (void)sigaction(taken[i], NULL, &before[i]);
    library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++)
        (void)sigaction(taken[i], &before[i], NULL);
    return library;
}

static int find_calls(void *library, struct heft_error *error)
{
    struct ucx_calls found;

#define UCX_FIND(name)                                                                                     \
    do {                                                                                                   \
        void *at = dlsym(library, #name);                                                                  \
                                                                                                           \
        if (at == NULL)                                                                                    \
            return heft_error_set(error, HEFT_ERR_UNSUPPORTED, "%s lacks %s: UCX 1.11 or newer is needed", \
                                  LIBRARY, #name);                                                         \
        memcpy(&found.name, &at, sizeof(at));                                                              \
    } while (0);
    UCX_CALLS(UCX_FIND)
#undef UCX_FIND
    calls = found;
    return 0;
}

int ucx_library_load(const struct ucx_calls **calls_out, struct heft_error *error)
{
    void *library = NULL;
    int rc = 0;

    (void)pthread_mutex_lock(&lock);
    if (!loaded) {
        library = open_quietly();
        if (library == NULL) {
            rc = heft_error_set(error, HEFT_ERR_UNSUPPORTED, "%s is not there: apt-get install libucx0",
                                LIBRARY);
        } else {
            int (*set_option)(const char *, const char *) = NULL;
            void *at = dlsym(library, "ucs_global_opts_set_value");

            rc = find_calls(library, error);
            /* a library does not print; who sets UCX_LOG_LEVEL wants it to */
            memcpy(&set_option, &at, sizeof(at));
            if (rc == 0 && set_option != NULL && getenv("UCX_LOG_LEVEL") == NULL)
                (void)set_option("LOG_LEVEL", "fatal");
        }
        loaded = rc == 0;
    }
    (void)pthread_mutex_unlock(&lock);
    if (rc == 0)
        *calls_out = &calls;
    return rc;
}
