#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One model from two places of different rates at once: how much of the sum of both rates a load gets, and what the death of either
in the middle costs. Prints a Markdown table; nothing is asserted.

  bench_hybrid.py [--sizes 16M,64M,256M,1G] [--rates 20,60] [--rounds 5] [--kill-bytes 256M]

The places are nginx and a replica (heft serve), each behind bench/object_proxy, which lets all its connections together pass at most
its rate (MB/s); or nginx twice. The sides are run in turn. "alone" is a load from one place, what the sum is made of. Of a load in
which a place dies, the limit is the time that both would take for a third and the other one for the rest."""
import argparse
import os
import shutil
import statistics
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "proc"))
sys.path.insert(0, os.path.join(ROOT, "bench"))
import fleet as f  # noqa: E402
import object_servers as o  # noqa: E402
import throttled as t  # noqa: E402
from bench_object import parse_bytes, row, write_model  # noqa: E402


def rate(report):
    return report["bytes_total"] / sum(report["stages"][s] for s in report["stages"] if s.endswith("_s"))


def moved_at(report):
    return report["bytes_total"] / report["stages"]["move_s"]


def ratios(reports, limit):
    values = sorted(moved_at(r) / limit for r in reports)
    whole = statistics.median(rate(r) / limit for r in reports)
    return f"{statistics.median(values):.2f} ({values[0]:.2f} to {values[-1]:.2f})", f"{whole:.2f}"


def measure(fleet, root, args, kind, size):
    slow, fast = (float(r) * 1e6 for r in args.rates.split(","))
    model = os.path.join(root, f"m{size}")
    with t.Places(fleet, root, model, kind, slow, fast) as places:
        found = [[], [], []]
        for _ in range(args.rounds):
            for at, which in enumerate([(0,), (1,), (0, 1)]):
                found[at].append(places.load(which))
        for at, (limit, name) in enumerate([(slow, "the slow one alone"), (fast, "the fast one alone"), (slow + fast, "both")]):
            row(size, kind, name, f"{limit / 1e6:.0f}", *ratios(found[at], limit), ">= 0.9" if at == 2 else "")


def measure_deaths(fleet, root, args, kind):
    slow, fast = (float(r) * 1e6 for r in args.rates.split(","))
    model = os.path.join(root, "mkill")
    for dies, name in [(0, "the slow one dies at a third"), (1, "the fast one dies at a third")]:
        found = []
        for _ in range(args.rounds):
            with t.Places(fleet, root, model, kind, slow, fast) as places:
                size = parse_bytes(args.kill_bytes)
                after = size / 3 / (slow + fast)
                left = (slow, fast)[1 - dies]
                report = places.load((0, 1), kill=dies, after=after)
                found.append((size / 3 / (slow + fast) + size * 2 / 3 / left) / report["stages"]["move_s"])
        row(args.kill_bytes, kind, name, f"{left / 1e6:.0f}", f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})", "",
            ">= 0.9")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="16M,64M,256M,1G")
    parser.add_argument("--rates", default="20,60")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kinds", default="objects,peer")
    parser.add_argument("--kill-bytes", default="256M", help="size of the model while whose load a place dies; 0M: none")
    args = parser.parse_args()
    root = tempfile.mkdtemp(prefix="heft-bench-", dir="/dev/shm")
    try:
        for size in args.sizes.split(","):
            write_model(os.path.join(root, f"m{size}"), parse_bytes(size), 4 << 20, 1)
        row("bytes", "places", "which", "limit MB/s", "move stage / limit", "whole load / limit", "target")
        row(*["---"] * 7)
        for kind in args.kinds.split(","):
            for size in args.sizes.split(","):
                with f.Fleet() as fleet:
                    measure(fleet, root, args, kind, size)
            if parse_bytes(args.kill_bytes):
                if not os.path.exists(os.path.join(root, "mkill")):
                    write_model(os.path.join(root, "mkill"), parse_bytes(args.kill_bytes), 4 << 20, 1)
                with f.Fleet() as fleet:
                    measure_deaths(fleet, root, args, kind)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
