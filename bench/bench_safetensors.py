#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast a safetensors file is opened: heft's reader and the safetensors package, in turn on the same files.

    bench_safetensors.py PROGRAM [--tensors 1000,10000,100000,1000000] [--rounds 7] [--shuffled] [--json]

PROGRAM is bench_safetensors of the build. Each round starts one process of each kind on each file, so that no
side profits from memory the other left behind; within a process small files are opened many times and the median
counts. Growth compares the first openings of fresh processes, as a loader opens a file once; later ones of a small
file find memory and caches warm, those of a large one do not. Time is processor time: both sides work on one thread and wait for nothing. Printed: medians over the rounds and their spread, time per tensor, the ratio, and how time grows from one
size to the next. The files are sparse: only their headers hold anything.
"""

import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile

REFERENCE = """
import sys, time
from safetensors import safe_open
for _ in range(int(sys.argv[2])):
    started = time.process_time_ns()
    with safe_open(sys.argv[1], "np"):
        pass
    print(time.process_time_ns() - started)
"""


def write_model(path, tensors, shuffled):
    """A mixture of experts: three matrices an expert, 128 experts a layer. Entries in the order of the data, or in an
    order that looks random."""
    entries = []
    for index in range(tensors):
        layer, rest = divmod(index, 3 * 128)
        expert, matrix = divmod(rest, 3)
        shape = "[64,16]" if matrix < 2 else "[16,64]"
        entries.append(f'"l.{layer}.e.{expert}.w{matrix}":{{"dtype":"BF16","shape":{shape},'
                       f'"data_offsets":[{index * 2048},{index * 2048 + 2048}]}}')
    if shuffled:
        step = 7_368_787  # a prime: every entry once
        entries = [entries[n * step % tensors] for n in range(tensors)]
    header = ("{" + ",".join(entries) + "}").encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + tensors * 2048)
    return len(header)


def run(command):
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
    times = [int(line) for line in said if line.isdigit()]
    peak = [int(line.split()[1]) for line in said if line.startswith("peak_kib")]
    return statistics.median(times) / 1e9, times[0] / 1e9, peak[0] if peak else 0


def spread(values):
    return (max(values) - min(values)) / statistics.median(values)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--tensors", default="1000,10000,100000,1000000")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--shuffled", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    try:
        import safetensors
    except ImportError:
        sys.exit("bench_safetensors: the Python package safetensors is not installed (scripts/bootstrap)")

    rows, before = [], None
    if not arguments.json:
        print(f"{'tensors':>9} {'header':>9} {'heft':>10} {'spread':>7} {'first':>10} {'a tensor':>9} {'safetensors':>12} {'spread':>7} "
              f"{'ratio':>6} {'growth':>7} {'memory':>7}   (safetensors {safetensors.__version__})")
    with tempfile.TemporaryDirectory(prefix="heft-bench-") as folder:
        for tensors in map(int, arguments.tensors.split(",")):
            path = os.path.join(folder, f"{tensors}.safetensors")
            header = write_model(path, tensors, arguments.shuffled)
            repeats = str(max(1, min(200, 200_000 // tensors)))
            ours, theirs, firsts, peaks = [], [], [], []
            for _ in range(arguments.rounds):
                seconds, first, peak = run([arguments.program, path, repeats])
                ours.append(seconds)
                firsts.append(first)
                peaks.append(peak)
                theirs.append(run([sys.executable, "-c", REFERENCE, path, repeats])[0])
            os.remove(path)
            mine, other, first = map(statistics.median, (ours, theirs, firsts))
            rows.append({"tensors": tensors, "header_bytes": header, "heft_s": mine, "heft_spread": spread(ours),
                         "safetensors_s": other, "safetensors_spread": spread(theirs), "ratio": other / mine,
                         "first_s": first, "growth": first / before if before else None, "peak_bytes": statistics.median(peaks) * 1024})
            if not arguments.json:
                growth = f"{first / before:.1f}x" if before else "-"
                print(f"{tensors:9} {header / 1e6:6.1f} MB {mine * 1e3:7.2f} ms {spread(ours):7.0%} {first * 1e3:7.2f} ms "
                      f"{mine / tensors * 1e9:6.0f} ns {other * 1e3:9.2f} ms {spread(theirs):7.0%} {other / mine:5.1f}x "
                      f"{growth:>7} {rows[-1]['peak_bytes'] / header:6.1f}x", flush=True)
            before = first
    if arguments.json:
        print(json.dumps(rows))


main()
