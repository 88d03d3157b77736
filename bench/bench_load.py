#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole loads against the machine's limits and other tools, both sides of each ratio measured in turn in one run.

  bench_load.py [--bytes 1G] [--rounds 5] [--only NAME,...]

Prints a Markdown table: what, ours, theirs (median and spread of the rounds), ratio, target. Nothing is asserted: a
benchmark is never a test."""
import argparse
import json
import math
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "proc"))
import fleet as f  # noqa: E402

SAFETENSORS = """
import glob, sys, time
from safetensors.numpy import load_file
begin = time.perf_counter()
kept = [load_file(p) for p in sorted(glob.glob(sys.argv[1] + '/*.safetensors'))]
print(time.perf_counter() - begin)
"""


def spread(values):
    return f"{statistics.median(values):.3g} ({min(values):.3g}-{max(values):.3g})"


class Bench:
    def __init__(self, args):
        self.args, self.rows = args, []

    def compare(self, what, unit, ours, theirs, label, target, smaller_is_better=False):
        """Runs both in turn, self.args.rounds times; each returns a number."""
        a, b = [], []
        for _ in range(self.args.rounds):
            a.append(ours())
            b.append(theirs())
        ratio = statistics.median([x / y for x, y in zip(a, b)])
        self.row(what, f"{spread(a)} {unit}", f"{label} {spread(b)} {unit}", f"{ratio:.2f}", target)
        return ratio

    def row(self, *cells):
        self.rows.append(cells)
        print("| " + " | ".join(cells) + " |", flush=True)


def drop(model):
    for p in f.shards(model):
        fd = os.open(p, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def warm(model):
    for p in f.shards(model):
        with open(p, "rb", buffering=0) as file:
            while file.read(8 << 20):
                pass


def gbps(report):
    return report["bytes"] / report["stages"]["move_s"] / 1e9


def whole_gbps(report):
    return report["bytes"] / report["seconds"] / 1e9


def load(fleet, model, *arguments):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock
    code, out, err = fleet.run("load", model, "--json", "--quiet", *arguments, check=0)
    return {**json.loads(out), "disk_bytes": (resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock - before) * 512}


def fio(path):
    done = subprocess.run(["fio", "--name=x", f"--filename={path}", "--rw=read", "--direct=1", "--bs=1M", "--iodepth=32",
                           "--ioengine=io_uring", "--fixedbufs=1", "--output-format=json", "--readonly"], check=True,
                          capture_output=True)
    return json.loads(done.stdout)["jobs"][0]["read"]["bw_bytes"] / 1e9


def safetensors(model):
    done = subprocess.run([sys.executable, "-c", SAFETENSORS, model], check=True, capture_output=True, text=True)
    return sum(os.path.getsize(p) for p in f.shards(model)) / float(done.stdout) / 1e9


def cold(b, fleet, model):
    one = f.shards(model)[0]

    def ours():
        drop(model)
        return gbps(load(fleet, model, "--source", "file"))

    def theirs():
        drop(model)
        return fio(one)
    b.compare("file to host, cold", "GB/s", ours, theirs, "fio O_DIRECT 1 MiB, depth 32", ">= 0.97")


def one_rank(b, fleet, _model):
    """A rank that keeps a quarter of each tensor's rows; the file's other bytes stay where they are."""
    model, more = fleet.model("dense", "dense", b.args.bytes, 2), []

    def timed(*arguments):
        drop(model)
        report = load(fleet, model, "--source", "file", *arguments)
        more.append(report["disk_bytes"] / report["bytes"])
        return report["seconds"]
    b.compare("rank 0 of 4 by rows, cold (time)", "s", lambda: timed("--split", "row", "--ranks", "4", "--rank", "0"), timed,
              "the whole model", "<= 0.3")
    b.row("bytes that the disk gave for it, of those wanted", f"{statistics.median(more[::2]):.3f}", "-", "-", "<= 1.01")


def write_llama(folder, layers=3, hidden=4096, inner=14336, words=32000, kv=1024):
    """A model with the widths of an 8B Llama and few layers, and the config.json that its rules go by."""
    shapes = {"model.embed_tokens.weight": [words, hidden], "lm_head.weight": [words, hidden], "model.norm.weight": [hidden]}
    for at in range(layers):
        for name, shape in (("self_attn.q_proj", [hidden, hidden]), ("self_attn.k_proj", [kv, hidden]),
                            ("self_attn.v_proj", [kv, hidden]), ("self_attn.o_proj", [hidden, hidden]),
                            ("mlp.gate_proj", [inner, hidden]), ("mlp.up_proj", [inner, hidden]),
                            ("mlp.down_proj", [hidden, inner]), ("input_layernorm", [hidden]),
                            ("post_attention_layernorm", [hidden])):
            shapes[f"model.layers.{at}.{name}.weight"] = shape
    head, at = {}, 0
    for name in sorted(shapes):
        size = 2 * math.prod(shapes[name])
        head[name] = {"dtype": "BF16", "shape": shapes[name], "data_offsets": [at, at + size]}
        at += size
    text, block = json.dumps(head).encode(), os.urandom(1 << 20)
    text += b" " * (-len(text) % 8)
    os.makedirs(folder)
    with open(os.path.join(folder, "model.safetensors"), "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for done in range(0, at, len(block)):
            out.write(block[:min(len(block), at - done)])
    with open(os.path.join(folder, "config.json"), "w") as out:
        json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": inner,
                   "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": layers, "vocab_size": words}, out)
    return folder


def blocks_of_columns(file, columns, ranks, block=512):
    """Bytes of the disk's blocks in which rank 0's part lies, of that part: columns of some matrices, rows of the others."""
    with open(file, "rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        head = json.loads(opened.read(size))
    wanted, blocks = 0, 0
    for name, tensor in head.items():
        begin, end = tensor["data_offsets"]
        stride = end - begin
        rows, part = 1, stride // (ranks if len(tensor["shape"]) > 1 else 1)
        if any(column in name for column in columns):
            rows = tensor["shape"][0]
            stride //= rows
            part = stride // ranks
        wanted += rows * part
        for row in range(rows):
            at = 8 + size + begin + row * stride
            blocks += (at + part + block - 1) // block * block - at // block * block
    return blocks / wanted


def rank_by_rules(b, fleet, _model):
    model, more = write_llama(fleet.path("llama")), []

    def timed(*arguments):
        drop(model)
        report = load(fleet, model, "--source", "file", *arguments)
        more.append(report["disk_bytes"] / report["bytes"])
        return report["seconds"]
    b.compare("rank 0 of 4 by a Llama's rules, cold (time)", "s", lambda: timed("--ranks", "4", "--rank", "0"), timed,
              "the whole model", "<= 0.3")
    floor = blocks_of_columns(f.shards(model)[0], ("o_proj", "down_proj"), 4)
    b.row("bytes that the disk gave for it, of those wanted", f"{statistics.median(more[::2]):.3f}",
          f"its blocks in which these lie {floor:.3f}", "-", "<= 1.01")


def warm_file(b, fleet, model):
    warm(model)
    b.compare("file to host, warm (whole load)", "GB/s", lambda: whole_gbps(load(fleet, model, "--source", "file")),
              lambda: safetensors(model), "safetensors to numpy", ">= 1.5")


def small_tensors(b, fleet, _model):
    small = fleet.model("small", "small", "80M", 1)
    large = fleet.model("large", "large", "80M", 1)
    warm(small), warm(large)
    b.compare("20,000 tensors of 4 KiB, warm (whole load)", "GB/s", lambda: whole_gbps(load(fleet, small)),
              lambda: whole_gbps(load(fleet, large)), "one tensor of the same bytes", ">= 0.5")


def verification(b, fleet, model):
    warm(model)
    b.compare("verified load, warm files (time)", "s", lambda: load(fleet, model)["seconds"],
              lambda: load(fleet, model, "--no-verify")["seconds"], "unverified", "<= 1.10 with a free core")

    def cold_time(*more):
        drop(model)
        return load(fleet, model, *more)["seconds"]
    b.compare("verified load, cold files (time)", "s", cold_time, lambda: cold_time("--no-verify"), "unverified",
              "<= 1.10 with a free core")


def peer(b, fleet, model):
    heftd = fleet.heftd()
    fleet.serve(model, "bench", heftd.address, "--quiet").line("serving as")
    common = ("--directory", heftd.address, "--source", "peer")
    for transport in ("local", "tcp"):
        b.compare(f"peer to host over {transport}, whole load against its move", "GB/s",
                  lambda t=transport: whole_gbps(load(fleet, model, *common, "--require", t)),
                  lambda t=transport: gbps(load(fleet, model, *common, "--require", t)), "move only", "-")
        b.compare(f"verified load over {transport} (time)", "s",
                  lambda t=transport: load(fleet, model, *common, "--require", t)["seconds"],
                  lambda t=transport: load(fleet, model, *common, "--require", t, "--no-verify")["seconds"], "unverified",
                  "<= 1.10 with a free core")


def memory(b, fleet, model):
    total = sum(os.path.getsize(p) for p in f.shards(model))
    for limit in ("256M", "16M"):
        values = []
        for _ in range(b.args.rounds):
            drop(model)
            report = load(fleet, model, "--source", "file", "--max-host-memory", limit)
            values.append((report["memory"]["peak_resident_bytes"] - total) / (1 << 20))
        b.row(f"memory beside the model, --max-host-memory {limit}, cold", f"{spread(values)} MiB", "-", "-",
              f"<= {int(limit[:-1]) + 32} MiB")


def tiny(b, fleet, _model):
    """A 1 MiB model from a live replica, directory included, against curl fetching such a file from nginx."""
    model = fleet.model("tiny", "large", "1M", 1)
    heftd = fleet.heftd()
    fleet.serve(model, "tiny", heftd.address, "--quiet").line("serving as")
    os.makedirs(fleet.path("www"))
    shutil.copy(f.shards(model)[0], fleet.path("www/model"))
    conf, port = fleet.path("nginx.conf"), f.free_port()
    with open(conf, "w") as c:
        c.write(f"daemon off; master_process off; pid {fleet.path('nginx.pid')}; error_log stderr; user root; events {{}}\n"
                f"http {{ access_log off; server {{ listen 127.0.0.1:{port}; root {fleet.path('www')}; }} }}\n")
    fleet.start("nginx", "nginx", "-p", fleet.dir, "-c", conf)
    url = f"http://127.0.0.1:{port}/model"
    f.until(lambda: subprocess.run(["curl", "-sf", "-o", "/dev/null", url]).returncode == 0, "nginx")

    def timed(*command):
        begin = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **fleet.env})
        return (time.perf_counter() - begin) * 1000
    out = fleet.path("fetched")
    b.compare("1 MiB model from a replica, process start to exit", "ms",
              lambda: timed(f.HEFT, "load", model, "--quiet", "--source", "peer", "--directory", heftd.address),
              lambda: timed("curl", "-s", "-o", out, url), "curl from nginx", "<= 5")
    time.sleep(1)
    with open(f"/proc/{heftd.process.pid}/status") as status:
        resident = next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024
    b.row("heftd idle, resident", f"{resident:.1f} MiB", "-", "-", "< 30 MiB")


ALL = [cold, one_rank, rank_by_rules, warm_file, small_tensors, verification, peer, memory, tiny]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", default="1G")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    b = Bench(args)
    print(f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, {platform.release()}; {args.bytes} models, {args.rounds} "
          "rounds in turn: median (least-most)\n\n| what | heft | beside | ratio | target |\n| --- | --- | --- | --- | --- |")
    chosen = [t for t in ALL if not args.only or t.__name__ in args.only.split(",")]
    kept = os.path.join(f.BUILD, "bench", f"moe-f16-{args.bytes}")
    if not os.path.exists(os.path.join(kept, ".done")):
        subprocess.run([sys.executable, os.path.join(ROOT, "scripts", "make-model"), kept, "--bytes", args.bytes, "--shards",
                        "2", "--dtype", "F16"], check=True, stdout=subprocess.DEVNULL)
        open(os.path.join(kept, ".done"), "w").close()
    for test in chosen:
        with f.Fleet() as fleet:
            test(b, fleet, kept)


if __name__ == "__main__":
    main()
