#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What opening a sharded model costs until bytes can move: heft's steps, and the safetensors package opening the same files, in turn.

    bench_open.py PROGRAM [--tensors 200000] [--shards 64] [--rounds 5] [--shuffled] [--json]

PROGRAM is bench_open of the build. The files are sparse, a mixture of experts in the order of names, as writers leave them, or
(--shuffled) in another order than their index. Each round starts one process of each kind; within one, heft's steps are timed
several times and the best counts. Time is of the one thread that works; both sides read from the page cache. The package opens
every file and lists its tensors' names; it makes neither a table of the whole model nor a plan.
"""

import argparse
import json
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile

STEPS = ("headers", "index", "manifest", "plan", "rank", "open")
REFERENCE = """
import os, sys, time
from safetensors import safe_open
best = None
for _ in range(5):
    started = time.thread_time_ns()
    for name in sorted(os.listdir(sys.argv[1])):
        if name.endswith(".safetensors"):
            with safe_open(os.path.join(sys.argv[1], name), "np") as file:
                file.keys()
    took = time.thread_time_ns() - started
    best = took if best is None else min(best, took)
print(best)
"""


def name_of(index):
    layer, rest = divmod(index, 3 * 256)
    expert, matrix = divmod(rest, 3)
    return f"model.layers.{layer}.mlp.experts.{expert}.{('gate_proj', 'up_proj', 'down_proj')[matrix]}.weight"


def write_model(folder, tensors, shards, shuffled):
    names, weight_map = sorted(map(name_of, range(tensors))), {}
    share = -(-tensors // shards)
    for shard in range(shards):
        file_name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        mine = names[shard * share:(shard + 1) * share]
        weight_map.update(dict.fromkeys(mine, file_name))
        if shuffled:
            random.Random(shard).shuffle(mine)
        header = "{" + ",".join(f'"{name}":{{"dtype":"BF16","shape":[64,16],"data_offsets":[{at * 2048},{at * 2048 + 2048}]}}'
                                for at, name in enumerate(mine)) + "}"
        header = header.encode() + b" " * (-len(header) % 8)
        with open(os.path.join(folder, file_name), "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + len(mine) * 2048)
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as file:
        json.dump({"metadata": {"total_size": tensors * 2048}, "weight_map": weight_map}, file, indent=2)


def best_of(program, folder):
    said = subprocess.run([program, folder, "5"], capture_output=True, text=True, check=True).stdout
    rows = [list(map(int, line.split())) for line in said.splitlines()]
    return [min(column) / 1e6 for column in zip(*rows)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--tensors", type=int, default=200000)
    parser.add_argument("--shards", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shuffled", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    try:
        import safetensors
    except ImportError:
        sys.exit("bench_open: the Python package safetensors is not installed (scripts/bootstrap)")
    ours, theirs = [], []
    with tempfile.TemporaryDirectory(prefix="heft-bench-") as folder:
        write_model(folder, arguments.tensors, arguments.shards, arguments.shuffled)
        for _ in range(arguments.rounds):
            ours.append(best_of(arguments.program, folder))
            said = subprocess.run([sys.executable, "-c", REFERENCE, folder], capture_output=True, text=True, check=True).stdout
            theirs.append(int(said) / 1e6)
    steps = {step: statistics.median(column) for step, column in zip(STEPS, zip(*ours))}
    spreads = {step: max(column) - min(column) for step, column in zip(STEPS, zip(*ours))}
    other = statistics.median(theirs)
    ratio = (steps["manifest"] + steps["plan"]) / steps["headers"]
    if arguments.json:
        print(json.dumps({"tensors": arguments.tensors, "ms": steps, "spread_ms": spreads, "safetensors_ms": other,
                          "safetensors_spread_ms": max(theirs) - min(theirs), "manifest_and_plan_to_headers": ratio}))
        return
    print(f"{arguments.tensors} tensors in {arguments.shards} files; medians of {arguments.rounds} rounds, thread time")
    for step in STEPS:
        print(f"  {step:10} {steps[step]:8.1f} ms  (spread {spreads[step]:.1f})")
    print(f"  manifest + plan = {ratio:.2f} x headers")
    print(f"  safetensors {safetensors.__version__} opens the files in {other:.1f} ms (spread {max(theirs) - min(theirs):.1f})")


main()
