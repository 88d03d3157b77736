#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models behind URLs: heft against what curl pulls from the same server with as many connections, and against Run:ai's streamer;
both sides of each ratio in turn, in one run. Prints a Markdown table; nothing is asserted.

  bench_object.py [--bytes 1G] [--rounds 5] [--connections 16] [--far-bytes 2G] [--rivals VENV]

nginx serves files of /dev/shm by plain HTTP on loopback. Run:ai's streamer (runai-model-streamer and -s3 of PyPI, at its default and
at 16 and 32 threads) asks the same nginx as an S3 service; it is installed into VENV by this script when it is not there."""
import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "proc"))
import fleet as f  # noqa: E402
import object_servers as o  # noqa: E402

RUNAI = """
import json, resource, sys, time
from runai_model_streamer import SafetensorsStreamer
begin, cpu, total = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF), 0
with SafetensorsStreamer() as streamer:
    streamer.stream_files(sys.argv[1:])
    for name, tensor in streamer.get_tensors():
        total += tensor.numel() * tensor.element_size()
took, now = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"seconds": took, "bytes": total, "cpu": now.ru_utime + now.ru_stime - cpu.ru_utime - cpu.ru_stime}))
"""


def parse_bytes(text):
    return int(float(text[:-1]) * {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[text[-1]]) if text[-1] in "KMG" else int(text)


def write_model(folder, total, tensor_bytes, shards=2):
    """Tensors of one size, back to back, in shards with an index."""
    os.makedirs(folder)
    weight_map, count = {}, total // tensor_bytes // shards
    block = os.urandom(1 << 20)
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        head = {}
        for at in range(count):
            head[f"layer.{shard}.{at}"] = {"dtype": "BF16", "shape": [tensor_bytes // 2],
                                           "data_offsets": [at * tensor_bytes, (at + 1) * tensor_bytes]}
            weight_map[f"layer.{shard}.{at}"] = name
        text = json.dumps(head).encode()
        text += b" " * (-len(text) % 8)
        with open(os.path.join(folder, name), "wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for at in range(0, count * tensor_bytes, len(block)):
                out.write(block[:min(len(block), count * tensor_bytes - at)])
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as out:
        json.dump({"weight_map": weight_map}, out)


def timed(command, env=None):
    """(seconds, processor seconds, output) of a program."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, env={**os.environ, **(env or {})}, capture_output=True)
    took, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise SystemExit(f"{command[:4]}: {done.stderr.decode()[-2000:]}\n{done.stdout.decode()[-500:]}")
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


class Sides:
    def __init__(self, args, root):
        self.args, self.root = args, root

    def heft(self, url, connections=None, *more):
        env = {"HEFT_OBJECT_CONNECTIONS": str(connections)} if connections else {}
        env["NO_PROXY"] = "127.0.0.1"
        _, cpu, out = timed([f.HEFT, "load", url, "--json", "--quiet", *more], env)
        report = json.loads(out)
        stages = report["stages"]
        seconds = sum(stages[s] for s in stages if s.endswith("_s"))
        return report["bytes_total"] / seconds, cpu / report["bytes_total"] * 1e9

    def curl(self, url, folder, connections, part=8 << 20):
        """As many transfers at once, of ranges as large as heft's, thrown away."""
        lines, total = [], 0
        for name in sorted(os.listdir(folder)):
            size = os.path.getsize(os.path.join(folder, name))
            for at in range(0, size if name.endswith(".safetensors") else 0, part):
                lines.append(f'url = "{url}/{name}"\noutput = "/dev/null"\nrange = "{at}-{min(at + part, size) - 1}"\nnext')
                total += min(part, size - at)
        config = os.path.join(self.root, "curl.conf")
        with open(config, "w") as out:
            out.write("\n".join(lines)[:-5])
        seconds, cpu, _ = timed(["curl", "-sS", "--noproxy", "*", "--parallel", "--parallel-immediate", "--parallel-max",
                                 str(connections), "-K", config])
        return total / seconds, cpu / total * 1e9

    def runai(self, port, folder, threads):
        env = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "RUNAI_STREAMER_S3_ENDPOINT": f"http://127.0.0.1:{port}",
               "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b",
               "AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true", "RUNAI_STREAMER_MEMORY_LIMIT": "-1"}
        if threads:
            env["RUNAI_STREAMER_CONCURRENCY"] = str(threads)
        urls = [f"s3://{os.path.basename(os.path.dirname(folder))}/{os.path.basename(folder)}/{n}" for n in sorted(os.listdir(folder))
                if n.endswith(".safetensors")]
        _, _, out = timed([os.path.join(self.args.rivals, "bin", "python"), "-c", RUNAI, *urls], env)
        got = json.loads(out.splitlines()[-1])
        return got["bytes"] / got["seconds"], got["cpu"] / got["bytes"] * 1e9


def install(venv):
    if not os.path.exists(os.path.join(venv, "bin", "python")):
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([os.path.join(venv, "bin", "pip"), "install", "-q", "runai-model-streamer", "runai-model-streamer-s3"], check=True)


def rates(values):
    return f"{statistics.median(v[0] for v in values) / 1e9:.2f} GB/s"


TOUCH = """
import mmap, sys
memory = mmap.mmap(-1, int(sys.argv[1]), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_HUGEPAGE)
for at in range(0, len(memory), mmap.PAGESIZE):
    memory[at] = 1
"""


def have_memory(size):
    """A virtual machine may get memory from its host only when it is touched, at a tenth of the speed, and give it back within
    seconds. So much more than they need is touched right before each side that none of them pays for that."""
    subprocess.run([sys.executable, "-c", TOUCH, str(size)], check=True)


def compare(rounds, size, sides):
    """The sides' results, run in turn on models of `size` bytes: a list of lists of (rate, processor seconds a GB)."""
    found = [[] for _ in sides]
    for _ in range(rounds):
        for at, side in enumerate(sides):
            have_memory(size + (6 << 30))
            found[at].append(side())
    return found


def ratio(ours, theirs, at=0):
    return statistics.median(x[at] / y[at] for x, y in zip(ours, theirs))


def row(*cells):
    print("| " + " | ".join(cells) + " |", flush=True)


def far(sides, args, nginx, root):
    """50 ms and 30 MB/s a connection."""
    proxy, port = os.path.join(f.BUILD, "bench", "object_proxy"), o.free_ports(1)[0]
    limit = 30e6 * args.far_connections
    process = subprocess.Popen([proxy, str(port), str(nginx.port), "50", "30000000"])
    try:
        f.until(lambda: o.accepts(port), "the proxy to listen")
        url = f"http://127.0.0.1:{port}/bucket/far"
        ours, = compare(args.rounds, parse_bytes(args.far_bytes), [lambda: sides.heft(url, args.far_connections)])
    finally:
        process.kill()
        process.wait()
    row(f"50 ms, 30 MB/s a connection, {args.far_connections} connections", rates(ours), f"limit {limit / 1e9:.2f} GB/s",
        f"{statistics.median(v[0] for v in ours) / limit:.2f}", ">= 0.9")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", default="1G")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--far-connections", type=int, default=16)
    parser.add_argument("--far-bytes", default="2G")
    parser.add_argument("--rivals", help="a virtual environment for Run:ai's streamer; without it that rival is left out")
    args = parser.parse_args()
    if args.rivals:
        install(args.rivals)
    root = tempfile.mkdtemp(prefix="heft-bench-", dir="/dev/shm")
    try:
        with f.Fleet() as fleet:
            bucket = os.path.join(root, "bucket")
            write_model(os.path.join(bucket, "large"), parse_bytes(args.bytes), 32 << 20)
            write_model(os.path.join(bucket, "small"), 100000 * (16 << 10), 16 << 10)
            nginx, sides = o.Nginx(fleet, root), Sides(args, root)
            row("what", "heft", "other", "ratio", "target")
            row("---", "---", "---", "---", "---")
            large, url = os.path.join(bucket, "large"), f"{nginx.url}/bucket/large"
            ours, plain, curl = compare(args.rounds, parse_bytes(args.bytes), [lambda: sides.heft(url, args.connections),
                                                      lambda: sides.heft(url, args.connections, "--no-verify"),
                                                      lambda: sides.curl(url, large, args.connections)])
            row("large tensors, rate", rates(ours), f"curl {rates(curl)}", f"{ratio(ours, curl):.2f}", ">= 0.9")
            row("the same without digests", rates(plain), f"curl {rates(curl)}", f"{ratio(plain, curl):.2f}", ">= 0.9")
            small, = compare(args.rounds, 100000 << 14, [lambda: sides.heft(f"{nginx.url}/bucket/small", args.connections)])
            row("100,000 tensors of 16 KiB", rates(small), f"large {rates(ours)}",
                f"{statistics.median(v[0] for v in small) / statistics.median(v[0] for v in ours):.2f}", ">= 0.8")
            shutil.rmtree(os.path.join(bucket, "small"))
            write_model(os.path.join(bucket, "far"), parse_bytes(args.far_bytes), 32 << 20)
            far(sides, args, nginx, root)
            shutil.rmtree(os.path.join(bucket, "far"))
            for threads in (None, 16, 32) if args.rivals else ():
                ours, rival = compare(args.rounds, 2 * parse_bytes(args.bytes), [lambda: sides.heft(url, args.connections),
                                                    lambda: sides.runai(nginx.port, large, threads)])
                name = f"Run:ai {threads or 'default'} threads"
                row("large tensors, rate", rates(ours), f"{name} {rates(rival)}", f"{ratio(ours, rival):.2f}", ">= 2")
                row("processor seconds a GB", f"{statistics.median(v[1] for v in ours):.2f}",
                    f"{name} {statistics.median(v[1] for v in rival):.2f}", f"{ratio(ours, rival, 1):.2f}", "<= 0.5")
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
