#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The file transport against fio (cold) and against multi-threaded pread (warm), in turn in one run.

Cold: the transport reads the whole file into prefaulted memory after the file's own pages were dropped; fio
reads the same file by O_DIRECT, 1 MiB, depth 32 and 64 in turn, registered buffers. Warm: the file is in the page cache;
pread is taken at its best of several chunk sizes. Prints medians, spread and ratios; drops no other cache.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

MIB = 1 << 20


def make_file(path, size):
    block = os.urandom(8 * MIB)
    with open(path, "wb", buffering=0) as file:
        left = size
        while left > 0:
            left -= file.write(block[: min(left, len(block))])
        os.fsync(file.fileno())


class Driver:
    def __init__(self, binary, path, op_bytes, window, shift, mode=0, element=0):
        arguments = [binary, path, str(op_bytes), str(window), str(shift), str(mode), str(element)]
        self.process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def command(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit("bench_file ended early")
        return float(answer)

    def close(self):
        self.process.stdin.close()
        if self.process.wait() != 0:
            sys.exit("bench_file failed")


def fio(path, depth):
    run = subprocess.run(
        ["fio", "--name=cold", f"--filename={path}", "--rw=read", "--bs=1M", f"--iodepth={depth}", "--ioengine=io_uring",
         "--fixedbufs", "--direct=1", "--output-format=json"],
        check=True, capture_output=True, text=True)
    return json.loads(run.stdout)["jobs"][0]["read"]["bw_bytes"] / 1e9


def show(name, rates):
    print(f"  {name:34} median {statistics.median(rates):6.2f} GB/s   {min(rates):.2f} to {max(rates):.2f}")
    return statistics.median(rates)


def cold(arguments, path, size, results):
    for shift in (0, 1234):
        driver = Driver(arguments.driver, path, arguments.op_bytes, arguments.window, shift, arguments.mode, arguments.element_bytes)
        ours, theirs = [], {32: [], 64: []}
        for _ in range(arguments.rounds):
            for depth, rates in theirs.items():
                driver.command("cold")
                ours.append(size / driver.command("heft") / 1e9)
                driver.command("cold")
                rates.append(fio(path, depth))
        driver.close()
        what = "in place" if shift == 0 else "staged"
        print(f"cold, {what} (destination shifted by {shift})")
        mine = show("heft", ours)
        best = max(show(f"fio, O_DIRECT, 1 MiB, depth {depth}", rates) for depth, rates in theirs.items())
        results[f"cold {what}"] = mine / best
        print(f"  ratio to the best {mine / best:.2f}")


def warm(arguments, path, size, results):
    threads = min(os.cpu_count() or 1, 8)
    chunks = (256 << 10, MIB, 4 * MIB)
    driver = Driver(arguments.driver, path, arguments.op_bytes, arguments.window, 1234, arguments.mode, arguments.element_bytes)
    ours, theirs = [], {chunk: [] for chunk in chunks}
    driver.command("warm")
    for _ in range(arguments.rounds):
        for chunk in chunks:
            theirs[chunk].append(size / driver.command(f"pread {threads} {chunk}") / 1e9)
            ours.append(size / driver.command("heft") / 1e9)
    driver.close()
    print("warm")
    mine = show("heft", ours)
    best = max(show(f"pread, {threads} threads, {chunk >> 10} KiB", rates) for chunk, rates in theirs.items())
    results["warm"] = mine / best
    print(f"  ratio to the best {results['warm']:.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("driver", help="the built bench_file program")
    parser.add_argument("--size-mib", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", default="/var/tmp", help="on the disk to be measured")
    parser.add_argument("--op-bytes", type=int, default=MIB)
    parser.add_argument("--window", type=int, default=128, help="operations in flight")
    parser.add_argument("--element-bytes", type=int, default=0, help="read into elements of this size, 64 bytes apart")
    parser.add_argument("--mode", type=int, default=0, help="a forced mode of the transport (file.h), as a number")
    parser.add_argument("--only", choices=("cold", "warm"))
    arguments = parser.parse_args()
    arguments.driver = str(pathlib.Path(arguments.driver).resolve())
    size = arguments.size_mib * MIB
    results = {}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = os.path.join(folder, "bench.bin")
        make_file(path, size)
        if arguments.only != "cold":
            warm(arguments, path, size, results)
        if arguments.only != "warm":
            cold(arguments, path, size, results)
    targets = {"cold in place": 0.97, "cold staged": 0.97, "warm": 0.9}
    for name, ratio in results.items():
        print(f"{name}: {ratio:.3f} (target {targets[name]}) {'ok' if ratio >= targets[name] else 'MISSED'}")


if __name__ == "__main__":
    main()
