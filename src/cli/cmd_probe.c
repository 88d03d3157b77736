/* SPDX-License-Identifier: Apache-2.0 */
/* heft probe: what this machine can do, what it lacks, and what to do about that. Asks by trying, not by
 * version. */
#include "cli/cli.h"
#include "base/clock.h"
#include "base/error.h"
#include "load/machine_limits.h"
#include "space/cuda.h"
#include "transport/plugin.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <liburing.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define PROBE_GPUS_MAX 17 /* lines: the driver, and the first 16 GPUs */

struct finding {
    const char *what;
    int good;
    char text[200];
    const char *remedy; /* "" when good */
};

static void say(struct finding *finding, const char *what, int good, const char *remedy, const char *format,
                ...) __attribute__((format(printf, 5, 6)));

static void say(struct finding *finding, const char *what, int good, const char *remedy, const char *format,
                ...)
{
    va_list args;

    finding->what = what;
    finding->good = good;
    finding->remedy = good ? "" : remedy;
    va_start(args, format);
    (void)vsnprintf(finding->text, sizeof(finding->text), format, args);
    va_end(args);
}

static void probe_memory(struct finding *finding)
{
    struct heft_memory *memory;
    struct heft_memory_info info;
    struct heft_error error = HEFT_ERROR_INIT;
    uint64_t begin = heft_now_ns();

    if (heft_memory_alloc(64 << 20, HEFT_MEMORY_PREFAULT, &memory, &error)) {
        say(finding, "shareable memory", 0, "raise the memory limit of this container", "%s", error.text);
        return;
    }
    heft_memory_get_info(memory, &info);
    say(finding, "shareable memory", info.page_bytes > 4096,
        "first touch of small pages costs about five copies: run with CAP_SYS_ADMIN, or set "
        "/sys/kernel/mm/transparent_hugepage/shmem_enabled to advise",
        "%s, %" PRIu64 " KiB pages; 64 MiB touched in %s", info.kind, info.page_bytes >> 10,
        cli_seconds((double)(heft_now_ns() - begin) / 1e9));
    heft_memory_free(memory);
}

static void probe_uring(struct finding *finding)
{
    struct io_uring ring;
    int rc = io_uring_queue_init(8, &ring, 0);

    if (rc == 0)
        io_uring_queue_exit(&ring);
    say(finding, "io_uring", rc == 0,
        "allow io_uring in the container's seccomp profile; threads read meanwhile", "%s",
        rc ? strerror(-rc) : "works");
}

static void probe_direct(struct finding *finding, const char *path)
{
    int fd = open(path, O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600), saved = errno;

    if (fd >= 0)
        (void)close(fd);
    say(finding, "O_DIRECT", fd >= 0,
        "reads of this mount go through the page cache; put models on a local disk if it has one", "%s: %s",
        cli_safe(path), fd >= 0 ? "works" : strerror(saved));
}

static void probe_memlock(struct finding *finding)
{
    struct rlimit limit = {0, 0};

    (void)getrlimit(RLIMIT_MEMLOCK, &limit);
    if (limit.rlim_cur == RLIM_INFINITY)
        say(finding, "locked memory", 1, "", "unlimited");
    else
        say(finding, "locked memory", limit.rlim_cur >= (64u << 20),
            "ulimit -l unlimited (RDMA and registered buffers need it)", "%" PRIu64 " KiB",
            (uint64_t)limit.rlim_cur >> 10);
}

static void probe_files(struct finding *finding)
{
    struct rlimit limit = {0, 0};

    (void)getrlimit(RLIMIT_NOFILE, &limit);
    say(finding, "open files", limit.rlim_cur >= 1024,
        "ulimit -n 65536 (a model of many shards and many peers need them)", "%" PRIu64,
        (uint64_t)limit.rlim_cur);
}

/* From a child of ours: what the system allows towards other processes of this user. */
static void probe_cross_memory(struct finding *finding)
{
    char value = 'x', copy = 0;
    struct iovec local = {&copy, 1}, remote = {&value, 1};
    FILE *scope = fopen("/proc/sys/kernel/yama/ptrace_scope", "re");
    int level = 0;

    if (scope) {
        if (fscanf(scope, "%d", &level) != 1)
            level = 0;
        (void)fclose(scope);
    }
    if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) != 1)
        say(finding, "cross-memory attach", 0, "allow process_vm_readv in the seccomp profile", "%s",
            strerror(errno));
    else
        say(finding, "cross-memory attach", level == 0 || geteuid() == 0,
            "sysctl kernel.yama.ptrace_scope=0, or serve from memory that heft allocates (shared mappings "
            "need no attach)",
            "ptrace_scope %d", level);
}

static void probe_library(struct finding *finding, const char *what, const char *library, const char *remedy)
{
    void *handle = dlopen(library, RTLD_LAZY | RTLD_LOCAL);

    if (handle)
        (void)dlclose(handle);
    say(finding, what, handle != NULL, remedy, "%s %s", library, handle ? "found" : "not found");
}

/* The driver, and each GPU by the name that --device takes; how many lines. */
static size_t probe_gpus(struct finding *findings)
{
    static char names[PROBE_GPUS_MAX][12];
    struct heft_error error = HEFT_ERROR_INIT;
    const struct heft_cu *cu;
    int device, version = heft_cuda_driver_version();
    size_t count = 1;

    if (heft_cuda_load(&cu, &error)) {
        say(&findings[0], "GPU driver", 0,
            "GPU memory can't be used before that is mended; --device host works", "%s", error.text);
        return 1;
    }
    say(&findings[0], "GPU driver", heft_cuda_has_kernels(),
        "build heft where nvcc is installed: without kernels small pieces and digests on GPUs are slow",
        "CUDA %d.%d, %d GPUs%s", version / 1000, version % 1000 / 10, heft_cuda_device_count(),
        heft_cuda_has_kernels() ? "" : "; this build has no GPU kernels");
    for (device = 0; device < heft_cuda_device_count() && count < PROBE_GPUS_MAX; device++, count++) {
        char *name = names[count];
        struct heft_cuda_device info;
        uint64_t left = 0;

        (void)snprintf(name, sizeof(names[0]), "cuda:%d", device);
        if (heft_cuda_device_info(device, &info, &error) || heft_cuda_free_bytes(device, &left, &error))
            say(&findings[count], name, 0, "see nvidia-smi", "%s", error.text);
        else
            say(&findings[count], name, info.shares_fds, "its memory can't be shared between processes",
                "%s, %" PRIu64 " of %" PRIu64 " MiB free, compute %d.%d, %s, %s", info.name, left >> 20,
                info.total_bytes >> 20, info.major, info.minor, info.pci, info.uuid_text);
    }
    return count;
}

struct plugin_lines {
    struct finding *findings;
    size_t count;
};

static void probe_plugin(const char *file, const struct heft_transport_ops *ops,
                         const struct heft_error *error, void *context)
{
    struct plugin_lines *lines = context;

    if (lines->count == HEFT_PLUGINS_MAX)
        return;
    say(&lines->findings[lines->count++], ops ? ops->name : "plug-in", ops != NULL,
        "mend it, or take it out of HEFT_PLUGIN_PATH", "%.190s", ops ? file : error->text);
}

/* What HEFT_PLUGIN_PATH names; how many lines. */
static size_t probe_plugins(struct finding *findings)
{
    struct plugin_lines lines = {findings, 0};

    heft_plugins_each(heft_plugin_path(), probe_plugin, &lines);
    return lines.count;
}

static void probe_rdma(struct finding *finding)
{
    int there = access("/sys/class/infiniband", R_OK) == 0;

    say(finding, "RDMA devices", there,
        "none on this machine, or not passed into the container; tcp is used between hosts",
        "/sys/class/infiniband %s", there ? "present" : "absent");
}

/* As the transport itself finds it, by opening it. */
static void probe_ucx(struct finding *finding)
{
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_agent *agent = NULL;
    char text[HEFT_ERROR_TEXT_BYTES] = "";
    int works;

    options.transports = "ucx";
    options.workers = 1;
    if (heft_agent_open(&options, &agent, &error) == HEFT_OK)
        (void)heft_agent_explain(agent, NULL, HEFT_SPACE_HOST, HEFT_SPACE_HOST, text, sizeof(text));
    else
        (void)snprintf(text, sizeof(text), "%s", error.text);
    text[strcspn(text, "\n")] = 0;
    works = strstr(text, "both sides are in one agent") != NULL; /* what an opened one says of no peer */
    say(finding, "UCX", works, "apt-get install libucx0; it is of use where RDMA devices are", "%s",
        !works ? text
        : access("/sys/class/infiniband", R_OK) == 0
            ? "works; used between hosts"
            : "works; without RDMA devices it is slower than tcp and used with --transports ucx only");
    (void)heft_agent_close(agent, NULL);
}

static void print_limits(const struct heft_limits *limits)
{
    printf("limits measured %s (%u threads)\n", limits->when, limits->threads);
    printf("  memory copy, 1 thread   %s\n  memory copy, %u threads  %s\n", cli_rate(limits->memcpy_one),
           limits->threads, cli_rate(limits->memcpy_all));
    printf("  first touch             %s\n  block digests           %s\n", cli_rate(limits->first_touch),
           cli_rate(limits->hash));
    printf("  page cache              %s\n  disk, O_DIRECT          %s  (%s)\n  tcp loopback            %s\n",
           cli_rate(limits->page_cache), limits->disk > 0 ? cli_rate(limits->disk) : "not known",
           cli_safe(limits->path), cli_rate(limits->tcp));
    if (limits->gpu_in > 0) {
        printf("  pinned memory to GPU    %s\n  GPU to pinned memory    %s\n", cli_rate(limits->gpu_in),
               cli_rate(limits->gpu_out));
        printf("  GPU to GPU              %s\n", cli_rate(limits->gpu_gpu));
    }
}

static json_t *limits_json(const struct heft_limits *limits)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:i, s:s}", "memcpy_one",
                     limits->memcpy_one, "memcpy_all", limits->memcpy_all, "first_touch", limits->first_touch,
                     "page_cache", limits->page_cache, "disk", limits->disk, "tcp", limits->tcp, "hash",
                     limits->hash, "gpu_in", limits->gpu_in, "gpu_out", limits->gpu_out, "gpu_gpu",
                     limits->gpu_gpu, "threads", (int)limits->threads, "when", limits->when);
}

int cli_probe(struct cli *cli)
{
    const char *path = heft_config_text(&cli->config, "path");
    int measure = (int)heft_config_number(&cli->config, "measure"), measured;
    struct heft_error error = HEFT_ERROR_INIT, second = HEFT_ERROR_INIT;
    struct heft_limits limits;
    struct finding findings[9 + PROBE_GPUS_MAX + HEFT_PLUGINS_MAX];
    json_t *object = json_object(), *array = json_array();
    size_t count = 0, index;
    int rc = HEFT_OK, forgotten;
    struct stat st;

    if (stat(path, &st) || !S_ISDIR(st.st_mode)) {
        json_decref(object);
        json_decref(array);
        rc = heft_error_set(&error, HEFT_ERR_NOT_FOUND, "--path %s: no such folder", path);
        return cli_fail(cli, rc, &error);
    }
    probe_memory(&findings[count++]);
    probe_uring(&findings[count++]);
    probe_direct(&findings[count++], path);
    probe_memlock(&findings[count++]);
    probe_files(&findings[count++]);
    probe_cross_memory(&findings[count++]);
    probe_rdma(&findings[count++]);
    probe_library(&findings[count++], "verbs", "libibverbs.so.1", "apt-get install libibverbs1");
    probe_ucx(&findings[count++]);
    count += probe_gpus(&findings[count]);
    count += probe_plugins(&findings[count]);
    if (measure) {
        rc = heft_limits_measure(path, &limits, &error);
    }
    forgotten = measure && !rc ? heft_limits_write(&limits, &second) : HEFT_OK;
    measured = rc == HEFT_OK && (measure || heft_limits_read(&limits) == HEFT_OK);
    for (index = 0; index < count; index++) {
        const struct finding *f = &findings[index];

        if (cli->json)
            (void)json_array_append_new(array, json_pack("{s:s, s:b, s:s, s:s}", "what", f->what, "good",
                                                         f->good, "text", f->text, "remedy", f->remedy));
        else
            printf("%-4s %-20s %s\n%s%s%s", f->good ? "ok" : "no", f->what, f->text,
                   f->good ? "" : "       -> ", f->remedy, f->good ? "" : "\n");
    }
    (void)json_object_set_new(object, "findings", array);
    if (measured && cli->json)
        (void)json_object_set_new(object, "limits", limits_json(&limits));
    else if (measured)
        print_limits(&limits);
    else if (!cli->json && rc == HEFT_OK)
        printf("limits: not measured yet; heft probe --measure\n");
    if (cli->json) {
        cli_print_json(object, 0);
    }
    json_decref(object);
    if (measure && !rc && error.code)
        fprintf(stderr, "heft: probe: %s\n", error.text);
    if (forgotten)
        fprintf(stderr, "heft: probe: the limits are not remembered: %s\n", second.text);
    return rc ? cli_fail(cli, rc, &error) : EXIT_DONE;
}
