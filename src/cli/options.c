/* SPDX-License-Identifier: Apache-2.0 */
/* The tables: options (one for the whole command line) and commands; and the shell completion made from them.
 */
#include "cli/cli.h"

#include <string.h>

#define MIB ((uint64_t)1 << 20)

const struct heft_config_entry cli_options[] = {
    {"json", HEFT_CONFIG_FLAG, 0, 0, 0, 0, 0, "machine-readable answer on stdout", CLI_COMMON},
    {"quiet", HEFT_CONFIG_FLAG, 0, 0, 0, 0, 0, "no progress", CLI_COMMON},
    {"log-level", HEFT_CONFIG_CHOICE, "warn", 0, 0, "none|error|warn|info|debug", 0,
     "the library's log lines on stderr", CLI_COMMON},
    {"config", HEFT_CONFIG_TEXT, 0, 0, 0, 0, "FILE", "read options from 'name = value' lines", CLI_COMMON},
    {"show-config", HEFT_CONFIG_FLAG, 0, 0, 0, 0, 0, "print the effective options with their origin and stop",
     CLI_COMMON},
    {"revision", HEFT_CONFIG_TEXT, 0, 0, 0, 0, "REV",
     "the model's revision, instead of the one in MODEL or the folder's own", CLI_MODEL},
    {"cache", HEFT_CONFIG_TEXT, 0, 0, 0, 0, "DIR",
     "model cache (default: $HF_HUB_CACHE, $HF_HOME/hub, ~/.cache/huggingface/hub)", CLI_MODEL | CLI_LS},
    {"header-limit", HEFT_CONFIG_SIZE, 0, 0, 0, 0, "SIZE",
     "largest safetensors header (default: the reference's 100,000,000)", CLI_MODEL},
    {"lenient", HEFT_CONFIG_FLAG, 0, 0, 0, 0, 0, "accept trailing bytes and unknown dtypes, with a warning",
     CLI_MODEL},
    {"ignore-index", HEFT_CONFIG_FLAG, 0, 0, 0, 0, 0,
     "take the shards that are there, whatever the index says", CLI_MODEL},
    {"files", HEFT_CONFIG_FLAG, 0, 0, 0, 0, 0,
     "the files themselves, weights or not, those of subfolders too: each counts as one tensor of bytes",
     CLI_MODEL},
    {"tensors", HEFT_CONFIG_FLAG, 0, 0, 0, 0, 0, "list every tensor", CLI_INSPECT | CLI_VERIFY},
    {"directory", HEFT_CONFIG_TEXT, 0, 0, 0, 0, "ADDR",
     "who holds what: HOST:PORT of heftd, etcd://HOST:PORT[,HOST:PORT][/PREFIX] (etcds:// with TLS), or "
     "file:PATH",
     CLI_DIRECTORY},
    {"directory-user", HEFT_CONFIG_TEXT, 0, 0, 0, 0, "NAME", "the user that etcd knows", CLI_DIRECTORY},
    {"directory-password-file", HEFT_CONFIG_TEXT, 0, 0, 0, 0, "FILE", "its first line is the user's password",
     CLI_DIRECTORY},
    {"directory-ca", HEFT_CONFIG_TEXT, 0, 0, 0, 0, "FILE",
     "etcds: the authorities that sign its certificate (PEM; default: the system's)", CLI_DIRECTORY},
    {"directory-cert", HEFT_CONFIG_TEXT, 0, 0, 0, 0, "FILE",
     "etcds: the certificate that it is shown (PEM); with --directory-key", CLI_DIRECTORY},
    {"directory-key", HEFT_CONFIG_TEXT, 0, 0, 0, 0, "FILE", "the key of --directory-cert (PEM)",
     CLI_DIRECTORY},
    {"allow-plain-token", HEFT_CONFIG_FLAG, 0, 0, 0, 0, 0,
     "send replica tokens to a heftd or etcd over a plain, non-loopback connection", CLI_DIRECTORY},
    {"device", HEFT_CONFIG_TEXT, "host", 0, 0, 0, "host|cuda:N", "where the weights go", CLI_LOAD},
    {"rank", HEFT_CONFIG_NUMBER, "0", 0, 1 << 20, 0, "R", "this tensor-parallel rank, counted from 0",
     CLI_LOAD},
    {"ranks", HEFT_CONFIG_NUMBER, "1", 1, 1 << 20, 0, "N", "number of ranks; only this rank's part is read",
     CLI_LOAD},
    {"split", HEFT_CONFIG_CHOICE, "auto", 0, 0, "auto|rules|row|column", 0,
     "what divides tensors among ranks: the architecture's rules, or the first or last dimension; auto: "
     "rules when "
     "the model has a config.json, else row",
     CLI_LOAD},
    {"rules", HEFT_CONFIG_TEXT, 0, 0, 0, 0, "FILE",
     "split rules of this file, instead of those built in for the architecture", CLI_LOAD},
    {"experts", HEFT_CONFIG_TEXT, "cut", 0, 0, 0, "cut|spread|A:B",
     "cut each expert among the ranks, or give each rank whole experts, or take only those from A to before "
     "B",
     CLI_LOAD},
    {"layers", HEFT_CONFIG_TEXT, 0, 0, 0, 0, "A:B", "only layers A to before B; without B: to the last",
     CLI_LOAD},
    {"pipeline-rank", HEFT_CONFIG_NUMBER, "0", 0, 1 << 20, 0, "S", "this pipeline stage, counted from 0",
     CLI_LOAD},
    {"pipeline-ranks", HEFT_CONFIG_NUMBER, "1", 1, 1 << 20, 0, "P", "number of pipeline stages", CLI_LOAD},
    {"mirror", HEFT_CONFIG_TEXT, 0, 0, 0, 0, "LIST",
     "other folders and URLs of the same model, separated by spaces, that are read at the same time",
     CLI_LOAD},
    {"host-loads", HEFT_CONFIG_NUMBER, "1", 1, 64, 0, "N",
     "loads of this host that want parts of the same model: each byte is read from storage by one of them",
     CLI_LOAD},
    {"share-folder", HEFT_CONFIG_TEXT, 0, 0, 0, 0, "DIR",
     "where they keep what they read until all have used it (default: /dev/shm/heft-UID)", CLI_LOAD},
    {"fleet-loads", HEFT_CONFIG_NUMBER, "1", 1, 64, 0, "N",
     "loads of this model on any hosts that read it from storage once between them; needs --directory",
     CLI_LOAD},
    {"fleet-wait", HEFT_CONFIG_DURATION, "5s", 1, 3600000, 0, "TIME",
     "begin without those of them that are not there by then", CLI_LOAD},
    {"fleet-linger", HEFT_CONFIG_DURATION, "30s", 1, 86400000, 0, "TIME",
     "without --stay: serve the others after the load until they are done, so long at most", CLI_LOAD_ONLY},
    {"source", HEFT_CONFIG_TEXT, "auto", 0, 0, 0, "LIST",
     "auto, file, peer, object, or several joined by '+'", CLI_LOAD},
    {"require", HEFT_CONFIG_CHOICE, 0, 0, 0, "local|tcp|file|cuda|object|ucx", 0,
     "fail unless every byte takes this transport", CLI_LOAD | CLI_BENCH},
    {"max-host-memory", HEFT_CONFIG_SIZE, "256M", 16 * MIB, 0, 0, "SIZE",
     "staging memory beside the model's own", CLI_LOAD},
    {"deadline", HEFT_CONFIG_DURATION, "10m", 1, 0, 0, "TIME", "give up after this long", CLI_LOAD},
    {"stall", HEFT_CONFIG_DURATION, "10s", 10, 0, 0, "TIME", "drop a source without progress for this long",
     CLI_LOAD},
    {"chunk", HEFT_CONFIG_SIZE, "1M", 4096, (uint64_t)1 << 30, 0, "SIZE",
     "unit that is handed to sources; 8M for objects", CLI_LOAD},
    {"workers", HEFT_CONFIG_NUMBER, "0", 0, 64, 0, "N",
     "threads that move bytes; 0: one a core up to 8, of more cores three in four, at most 16",
     CLI_LOAD | CLI_BENCH},
    {"transports", HEFT_CONFIG_TEXT, 0, 0, 0, 0, "LIST",
     "which transports may be used, joined by ','; without: all that are good for this machine",
     CLI_LOAD | CLI_BENCH},
    {"tls-ca", HEFT_CONFIG_TEXT, 0, 0, 0, 0, "FILE",
     "TLS between agents: the authorities that sign peers (PEM); with --tls-cert and --tls-key", CLI_PEERS},
    {"tls-cert", HEFT_CONFIG_TEXT, 0, 0, 0, 0, "FILE", "this agent's certificate (PEM)", CLI_PEERS},
    {"tls-key", HEFT_CONFIG_TEXT, 0, 0, 0, 0, "FILE", "the key of --tls-cert (PEM)", CLI_PEERS},
    {"no-verify", HEFT_CONFIG_FLAG, 0, 0, 0, 0, 0, "neither make nor check block digests, nor checksums",
     CLI_LOAD},
    {"checksum", HEFT_CONFIG_CHOICE, "auto", 0, 0, "auto|off", 0,
     "compare whole objects with the checksums that their store keeps; off: block digests alone", CLI_LOAD},
    {"report", HEFT_CONFIG_TEXT, 0, 0, 0, 0, "FILE",
     "write the report (JSON); '-': on stdout, in place of the summary", CLI_LOAD},
    {"trace", HEFT_CONFIG_TEXT, 0, 0, 0, 0, "FILE",
     "write what each source did when: a Chrome trace, for ui.perfetto.dev and heft report --html",
     CLI_SERVE},
    {"html", HEFT_CONFIG_TEXT, 0, 0, 0, 0, "FILE", "draw the load on a page ('-': stdout); wants a trace",
     CLI_REPORT},
    {"sha256", HEFT_CONFIG_TEXT, 0, 0, 0, 0, "FILE",
     "write each loaded tensor's SHA-256, to compare with other tools", CLI_SERVE},
    {"to", HEFT_CONFIG_TEXT, 0, 0, 0, 0, "DIR",
     "write the model's files, as they are, into this folder, which appears once all are right (--files)",
     CLI_SERVE},
    {"stay", HEFT_CONFIG_FLAG, 0, 0, 0, 0, 0, "serve the model to others until stopped", CLI_LOAD_ONLY},
    {"name", HEFT_CONFIG_TEXT, 0, 0, 0, 0, "NAME", "the replica's name (default: host-pid-random)",
     CLI_SERVE},
    {"listen", HEFT_CONFIG_TEXT, "unix,127.0.0.1:0", 0, 0, 0, "LIST",
     "where peers connect: unix, HOST:PORT, [::1]:PORT", CLI_SERVE | CLI_BENCH},
    {"lease", HEFT_CONFIG_DURATION, "10s", 100, 3600000, 0, "TIME",
     "how long the directory remembers without renewal", CLI_SERVE},
    {"measure", HEFT_CONFIG_FLAG, 0, 0, 0, 0, 0,
     "also measure memory, disk and network, and remember the limits", CLI_PROBE},
    {"path", HEFT_CONFIG_TEXT, ".", 0, 0, 0, "DIR", "whose disk is probed, or holds the file of --space file",
     CLI_PROBE | CLI_BENCH},
    {"telemetry", HEFT_CONFIG_TEXT, 0, 0, 0, 0, "DIR",
     "folder of the statistics of agents (default: one of this user in memory); 'off': make none",
     CLI_TELEMETRY},
    {"once", HEFT_CONFIG_FLAG, 0, 0, 0, 0, 0, "one table, as plain text, and end", CLI_TOP},
    {"interval", HEFT_CONFIG_DURATION, "1s", 50, 3600000, 0, "TIME",
     "between two pictures; rates are of this time", CLI_TOP},
    {"prometheus", HEFT_CONFIG_FLAG, 0, 0, 0, 0, 0, "print Prometheus text", CLI_STATS},
    {"serve", HEFT_CONFIG_TEXT, 0, 0, 0, 0, "HOST:PORT",
     "serve all agents of this host at /metrics until stopped", CLI_STATS},
    {"op", HEFT_CONFIG_CHOICE, "both", 0, 0, "read|write|both", 0, "what is measured", CLI_BENCH},
    {"space", HEFT_CONFIG_CHOICE, "shared", 0, 0, "shared|private|file|all", 0,
     "memory that heft allocates, any other memory, or a file (inside one process, warm)", CLI_BENCH},
    {"pattern", HEFT_CONFIG_CHOICE, "contiguous", 0, 0, "contiguous|strided|scattered|all", 0,
     "pieces side by side, with gaps, or in random order on both sides", CLI_BENCH},
    {"sizes", HEFT_CONFIG_TEXT, "8,4K,64K,1M,64M", 0, 0, 0, "LIST", "bytes of a piece, 1 to 1G", CLI_BENCH},
    {"batches", HEFT_CONFIG_TEXT, "1", 0, 0, 0, "LIST", "pieces of a transfer, 1 to 1M", CLI_BENCH},
    {"unprepared", HEFT_CONFIG_FLAG, 0, 0, 0, 0, 0,
     "make each transfer anew, in the time that is measured; else one is posted again and again", CLI_BENCH},
    {"tell", HEFT_CONFIG_CHOICE, "nothing", 0, 0, "nothing|notification|counter", 0,
     "what the peer is told at the end of each transfer (a counter: WRITE only)", CLI_BENCH},
    {"clients", HEFT_CONFIG_NUMBER, "1", 1, 64, 0, "N", "processes that post transfers", CLI_BENCH},
    {"servers", HEFT_CONFIG_NUMBER, "1", 1, 16, 0, "M", "processes they post them to: each client to each",
     CLI_BENCH},
    {"threads", HEFT_CONFIG_NUMBER, "1", 1, 64, 0, "N",
     "threads of each client, a transfer each to each server", CLI_BENCH},
    {"time", HEFT_CONFIG_DURATION, "300ms", 1, 600000, 0, "TIME", "of each repeat; one transfer at least",
     CLI_BENCH},
    {"warm-up", HEFT_CONFIG_DURATION, "50ms", 0, 600000, 0, "TIME", "before the first repeat", CLI_BENCH},
    {"repeats", HEFT_CONFIG_NUMBER, "3", 1, 32, 0, "N", "the median of them is told", CLI_BENCH},
    {"memory", HEFT_CONFIG_SIZE, "1G", 4096, 0, 0, "SIZE",
     "the most that one region may take; rows that need more are passed over", CLI_BENCH},
    {"unchecked", HEFT_CONFIG_FLAG, 0, 0, 0, 0, 0, "do not compare the bytes after each row", CLI_BENCH},
    {"all", HEFT_CONFIG_FLAG, 0, 0, 0, 0, 0, "list expired leases too", CLI_REPLICAS},
    {"timeout", HEFT_CONFIG_DURATION, "5s", 1, 3600000, 0, "TIME", "limit of one call to the directory",
     CLI_DIRECTORY},
};
const size_t cli_option_count = sizeof(cli_options) / sizeof(cli_options[0]);

#define LOADING (CLI_COMMON | CLI_MODEL | CLI_LOAD | CLI_DIRECTORY | CLI_PEERS)

const struct cli_command cli_commands[] = {
    {"load", "MODEL", "load a model into memory, from files and replicas at once, verified",
     "MODEL is org/name[@revision] (looked up in the model cache and in the directory), a path to a folder "
     "or "
     "one\n"
     ".safetensors file, or a URL: s3://, gs://, az://, hf://org/name (the hub itself), http(s)://.\n\n"
     "  heft load ./model                                      from this machine's files\n"
     "  heft load org/name --directory 127.0.0.1:8001 --stay   from replicas and files, then serve it too\n"
     "  heft load ./model --ranks 4 --rank 1 --split column    only what rank 1 of 4 keeps\n"
     "  heft load hf://org/name --to ./model                   all its files, into a folder\n",
     LOADING | CLI_SERVE | CLI_LOAD_ONLY | CLI_TELEMETRY, 1, 1, cli_load},
    {"serve", "MODEL", "load a model, publish it, serve it until stopped",
     "The same as load --stay. SIGTERM or Ctrl-C ends it and withdraws the replica.\n\n"
     "  heft serve ./model --directory 127.0.0.1:8001 --name replica-1\n",
     LOADING | CLI_SERVE | CLI_TELEMETRY, 1, 1, cli_serve},
    {"inspect", "MODEL", "tensors, dtypes, sizes, shards; every defect with its place",
     "Reads headers only.\n\n  heft inspect ./model --tensors\n  heft inspect ./model/model.safetensors "
     "--json\n",
     CLI_COMMON | CLI_MODEL | CLI_INSPECT, 1, 1, cli_inspect},
    {"verify", "MODEL", "read every byte and check it: structure, checksums of cache or store, digests",
     "Files whose cache name is their SHA-256 are checked against it, objects against the checksum that "
     "their "
     "store keeps.\n"
     "Prints each file's SHA-256 and the model's digest, the same that replicas publish.\n\n"
     "  heft verify org/name\n"
     "  heft verify s3://bucket/models/llama\n",
     CLI_COMMON | CLI_MODEL | CLI_VERIFY, 1, 1, cli_verify},
    {"plan", "MODEL", "what a load would move, from where, by which route, and why (moves nothing)",
     "  heft plan ./model --directory 127.0.0.1:8001 --ranks 2 --rank 0\n", LOADING, 1, 1, cli_plan},
    {"replicas", "[MODEL]", "who holds what, according to the directory",
     "  heft replicas --directory 127.0.0.1:8001\n", CLI_COMMON | CLI_DIRECTORY | CLI_REPLICAS, 0, 1,
     cli_replicas},
    {"ls", "", "models in this machine's cache", "  heft ls\n", CLI_COMMON | CLI_LS, 0, 0, cli_ls},
    {"health", "", "is the directory there, and do its replicas answer?",
     "Exit code 0 when the directory and every listed replica answer.\n\n  heft health --directory "
     "127.0.0.1:8001\n",
     CLI_COMMON | CLI_DIRECTORY | CLI_PEERS, 0, 0, cli_health},
    {"probe", "", "what this machine can do and what it lacks, with the remedy",
     "--measure adds the machine's limits (memory, disk, loopback): loads then report which share of them "
     "they reached.\n\n"
     "  heft probe --measure --path /models\n",
     CLI_COMMON | CLI_PROBE, 0, 0, cli_probe},
    {"top", "", "the agents of this host as they work: rates, latency, errors; q quits",
     "Looks at the statistics that agents keep in memory, of this user's processes (root: of all). The "
     "busiest\nstand first; 'ended' marks what a process left behind that crashed or left without closing "
     "its agent.\nA narrow terminal shows fewer columns.\n\n"
     "  heft top\n  heft top --once --interval 5s\n",
     CLI_COMMON | CLI_TOP | CLI_TELEMETRY, 0, 0, cli_top},
    {"stats", "[PID|AGENT]", "what the agents of this host counted, also those that crashed",
     "Of each agent: peers, regions, and for each transport transfers, bytes, errors by code and times.\n"
     "What a process that is gone left behind is kept for ten minutes.\n\n"
     "  heft stats                        all agents of this user (root: of all users)\n"
     "  heft stats 4711 --json            those of one process\n"
     "  heft stats --serve 127.0.0.1:9402 one place to scrape for Prometheus, however many processes there "
     "are\n",
     CLI_COMMON | CLI_STATS | CLI_TELEMETRY, 0, 1, cli_stats},
    {"bench", "[PEER]", "how fast transfers between processes are, on this host or to another",
     "Without PEER it starts both sides by itself; nothing else has to run. A row is one operation, space, "
     "pattern,\nsize and batch; after it every byte is compared. 'bare' is the same pieces moved by a plain "
     "loop in one thread\n(memcpy, cross-memory calls, pread and pwrite, a TCP stream over loopback), in the "
     "same run.\n\n"
     "  heft bench                                             a first look\n"
     "  heft bench --sizes 64 --batches 1,1K,64K --pattern scattered --op write\n"
     "  heft bench --space private --require tcp --threads 2   what tcp does on loopback\n"
     "  heft bench --clients 4 --servers 2 --sizes 1M          eight pairs at once\n\n"
     "Across hosts: heft bench --listen 0.0.0.0:7000 on one; it prints the PEER to give to heft bench on the "
     "other.\n",
     CLI_COMMON | CLI_BENCH | CLI_PEERS | CLI_TELEMETRY, 0, 1, cli_bench},
    {"report", "FILE", "what a finished load did: text, or a page with --html",
     "FILE is what load --report or load --trace wrote.\n\n"
     "  heft load ./model --trace load.json && heft report load.json --html load.html\n",
     CLI_COMMON | CLI_REPORT, 1, 1, cli_report},
    {"completion", "bash", "print the shell completion", "  source <(heft completion bash)\n", CLI_COMMON, 1,
     1, cli_completion},
};
const size_t cli_command_count = sizeof(cli_commands) / sizeof(cli_commands[0]);

void cli_agent_tls(const struct cli *cli, struct heft_agent_options *options)
{
    options->tls_ca = heft_config_text(&cli->config, "tls-ca");
    options->tls_cert = heft_config_text(&cli->config, "tls-cert");
    options->tls_key = heft_config_text(&cli->config, "tls-key");
}

static void print_commands(void)
{
    size_t command;

    for (command = 0; command < cli_command_count; command++)
        printf("%s ", cli_commands[command].name);
}

/* The values of the option before the cursor, where they are words. */
static void print_values(void)
{
    size_t option;

    for (option = 0; option < cli_option_count; option++) {
        const char *at = cli_options[option].choices;

        if (strcmp(cli_options[option].name, "source") == 0)
            at = "auto|file|peer|file+peer";
        if (!at)
            continue;
        printf("    --%s)\n        mapfile -t COMPREPLY < <(compgen -W \"", cli_options[option].name);
        for (; *at; at++)
            putchar(*at == '|' ? ' ' : *at);
        printf("\" -- \"$cur\")\n        return\n        ;;\n");
    }
}

/* Of each command: its options, or (where its argument is a word) that word. */
static void print_options(void)
{
    size_t command, option;

    for (command = 0; command < cli_command_count; command++) {
        printf("    %s) options=\"--help", cli_commands[command].name);
        for (option = 0; option < cli_option_count; option++)
            if (cli_options[option].groups & cli_commands[command].groups)
                printf(" --%s", cli_options[option].name);
        printf("\"");
        if (cli_commands[command].run == cli_completion)
            printf(" words=bash");
        printf(" ;;\n");
    }
    printf("    help) words=\"");
    print_commands();
    printf("\" ;;\n");
}

/* bash: commands first, then the command's options, their choices, else file names (models are paths too). */
int cli_completion(struct cli *cli)
{
    struct heft_error error = HEFT_ERROR_INIT;

    if (strcmp(cli->arguments[0], "bash") != 0) {
        error.code = HEFT_ERR_UNSUPPORTED;
        (void)snprintf(error.text, sizeof(error.text), "completion is there for bash, not for '%s'",
                       cli->arguments[0]);
        (void)cli_fail(cli, error.code, &error);
        return EXIT_USAGE;
    }
    printf("# bash completion for heft; made by 'heft completion bash'\n_heft()\n{\n"
           "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} options= words=\n"
           "    COMPREPLY=()\n    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
           "        mapfile -t COMPREPLY < <(compgen -W \"");
    print_commands();
    printf("help --help --version\" -- \"$cur\")\n        return\n    fi\n    case $prev in\n");
    print_values();
    printf("    esac\n    case ${COMP_WORDS[1]} in\n");
    print_options();
    printf(
        "    esac\n    case $cur in\n    -*) mapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"$cur\") "
        ";;\n"
        "    *)\n        if [ -n \"$words\" ]; then\n"
        "            mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n        else\n"
        "            mapfile -t COMPREPLY < <(compgen -f -- \"$cur\")\n        fi\n        ;;\n    esac\n}\n"
        "complete -o filenames -F _heft heft\n");
    return EXIT_DONE;
}
