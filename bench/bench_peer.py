#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Peer-to-host rates beside their bare limits, everything in turn in one run; medians and ranges.
  bench_peer.py [--build DIR] [--mib N] [--rounds N] [--threads N] [--streams N]"""
import argparse
import json
import statistics
import subprocess

LIMITS = [  # part, what it is measured against, wanted ratio
    ("local", "memcpy", 0.9),
    ("local-hash", "memcpy-hash", 0.9),
    ("attached", "attach", 0.9),
    ("tcp", "iperf3", 0.9),
    ("tcp-hash", "iperf3", 0.75),
    ("unix", None, None),
]
PORT = 5217


def iperf(streams, mib):
    server = subprocess.Popen(["iperf3", "-s", "-1", "-p", str(PORT)], stdout=subprocess.DEVNULL)
    try:
        for _ in range(100):
            run = subprocess.run(["iperf3", "-c", "127.0.0.1", "-p", str(PORT), "-P", str(streams), "-l", "1M",
                                  "-n", f"{mib}M", "-J"], capture_output=True, text=True, timeout=120)
            answer = json.loads(run.stdout)
            if "error" not in answer:
                received = answer["end"]["sum_received"]
                return received["bytes"] / received["seconds"] / 1e9
    finally:
        server.terminate()
        server.wait()
    raise SystemExit("iperf3 does not run: " + answer["error"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--streams", type=int, default=2)
    parser.add_argument("--only", help="parts, comma-separated")
    options = parser.parse_args()
    bench = subprocess.Popen([f"{options.build}/bench/bench_peer", "--mib", str(options.mib), "--threads",
                              str(options.threads), "--streams", str(options.streams)],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def rate(part):
        if part == "iperf3":
            return iperf(options.streams, options.mib)
        bench.stdin.write(part + "\n")
        bench.stdin.flush()
        return float(bench.stdout.readline())

    rows = [row for row in LIMITS if not options.only or row[0] in options.only.split(",")]
    parts = []
    for part, limit, _ in rows:
        parts += [name for name in (limit, part) if name and name not in parts]
    rates = {part: [] for part in parts}
    for turn in range(options.rounds + 1):  # the first one warms up
        for part in parts:
            value = rate(part)
            if turn:
                rates[part].append(value)
    bench.stdin.close()
    bench.wait()
    median = {part: statistics.median(values) for part, values in rates.items()}
    print(f"{options.mib} MiB, {options.threads} threads, {options.streams} streams, {options.rounds} rounds in turn")
    print(f"{'part':12} {'GB/s':>6}  {'range':>13}  {'limit':12} {'ratio':>5}  wanted")
    for part in parts:
        row = next((row for row in rows if row[0] == part), (part, None, None))
        line = f"{part:12} {median[part]:6.2f}  {min(rates[part]):5.2f} - {max(rates[part]):5.2f}"
        if row[1]:
            # ratios within a round: the machine's speed drifts between rounds
            ratio = statistics.median(a / b for a, b in zip(rates[part], rates[row[1]]))
            line += f"  {row[1]:12} {ratio:5.2f}  {row[2]:.2f}"
        print(line)


if __name__ == "__main__":
    main()
