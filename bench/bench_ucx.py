#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The ucx transport against ucx_perftest with the same UCX_TLS, and the tcp transport, plain and with TLS, against iperf3 and
UCX's tagged messages over tcp, and NIXL and Mooncake over tcp where bench_agent_rivals.py has put them. Both sides of a ratio run in turn, several rounds; medians are told. Needs ucx-utils, iperf3
and openssl. usage: bench_ucx.py [--build DIR] [--rounds N] [--sizes LIST]"""
import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BATCH = ("--batches", "8", "--pattern", "strided")  # as many puts under way as ucx_perftest has
STREAMS = 2  # heft's own choice for two processes of one host


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def heft(build, transport, op, size, env=None, extra=()):
    command = [os.path.join(build, "src", "cli", "heft"), "bench", "--json", "--quiet", "--transports", transport, "--require",
               transport, "--space", "private", "--op", op, "--sizes", str(size), "--repeats", "1", "--time", "500ms",
               "--telemetry", "off", *extra]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **(env or {})})
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)["rows"][0]["rate"]


def perftest(test, size, tls):
    """Bytes a second of ucx_perftest, endpoints with error handling as heft's are."""
    port = str(free_port())
    env = {**os.environ, "UCX_TLS": tls, "UCX_LOG_LEVEL": "fatal", "UCX_WARN_UNUSED_ENV_VARS": "n"}
    count = str(max(20, min(20000, (1 << 30) // size)))
    server = subprocess.Popen(["ucx_perftest", "-p", port], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    try:
        for _ in range(50):
            done = subprocess.run(["ucx_perftest", "127.0.0.1", "-p", port, "-t", test, "-s", str(size), "-n", count, "-w", "10",
                                   "-e", "-O", "8", "-f"], capture_output=True, text=True, timeout=120, env=env)
            rows = [line.split() for line in done.stdout.splitlines() if re.match(r"^\s*(Final:)?\s*\d", line)]
            if done.returncode == 0 and rows:
                return float(rows[-1][-3]) * (1 << 20)
            time.sleep(0.1)
        raise RuntimeError(f"ucx_perftest {test}: {done.stdout} {done.stderr}")
    finally:
        server.kill()
        server.wait()


def iperf():
    port = str(free_port())
    server = subprocess.Popen(["iperf3", "-s", "-1", "-p", port], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(50):
            done = subprocess.run(["iperf3", "-c", "127.0.0.1", "-p", port, "-P", str(STREAMS), "-t", "1", "-J"],
                                  capture_output=True, text=True, timeout=60)
            end = json.loads(done.stdout)["end"] if done.returncode == 0 else {}
            if "sum_received" in end:
                return end["sum_received"]["bits_per_second"] / 8
            time.sleep(0.1)
        raise RuntimeError(f"iperf3: {done.stdout}")
    finally:
        server.kill()
        server.wait()


def aes():
    """What one core encrypts."""
    done = subprocess.run(["openssl", "speed", "-elapsed", "-seconds", "1", "-bytes", "16384", "-mr", "-evp", "aes-256-gcm"],
                          capture_output=True, text=True, timeout=60)
    return float(done.stdout.strip().splitlines()[-1].split(":")[-1])


def rival(build, name, size, tls):
    """READ of one block by a rival of bench_agent_rivals.py over tcp."""
    python = os.path.join(build, "bench-venv", "bin", "python")
    done = subprocess.run([python, os.path.join(ROOT, "bench", "bench_agent_rivals.py"), "rival", name, "READ",
                           json.dumps([[size, 1]])], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "UCX_TLS": tls, "NIXL_LOG_LEVEL": "ERROR", "UCX_LOG_LEVEL": "error",
                               "GLOG_minloglevel": "3"})
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not rows:
        raise RuntimeError(f"{name}: {done.stderr[-300:]}")
    return size / rows[0]["post"] * 1e9


def certificates(folder):
    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=folder)
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    openssl("req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=bench", "-days", "1")
    openssl("req", "-new", *curve, "-keyout", "key.pem", "-out", "c.csr", "-subj", "/CN=agent")
    openssl("x509", "-req", "-in", "c.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out", "cert.pem", "-days", "1")
    at = os.path.join
    return ["--tls-ca", at(folder, "ca.pem"), "--tls-cert", at(folder, "cert.pem"), "--tls-key", at(folder, "key.pem")]


def compare(title, rounds, ours, others):
    """`others`: {name: function}. One round: each in turn."""
    found = {name: [] for name in ("heft", *others)}
    for _ in range(rounds):
        found["heft"].append(ours())
        for name, run in others.items():
            found[name].append(run())
    mine = statistics.median(found["heft"])
    print(f"| {title} | {mine / 1e9:.2f} | " + ", ".join(
        f"{name} {statistics.median(found[name]) / 1e9:.2f} ({mine / statistics.median(found[name]):.2f})" for name in others)
        + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["tcp"], help="leave the ucx transport out")
    parser.add_argument("--sizes", default="65536,1048576,16777216")
    options = parser.parse_args()
    build, rounds = options.build, options.rounds
    sizes = [int(s) for s in options.sizes.split(",")]
    print("| what | heft GB/s | others GB/s (heft's share) |\n| --- | --- | --- |")
    for tls in () if options.only == "tcp" else ("tcp", "tcp,cma"):
        for op, test in (("read", "ucp_get"), ("write", "ucp_put_bw")):
            for size in sizes:
                compare(f"ucx, UCX_TLS={tls}, {op} of {size >> 10} KiB", rounds,
                        lambda o=op, s=size, t=tls: heft(build, "ucx", o, s, {"UCX_TLS": t}, BATCH if o == "write" else ()),
                        {"ucx_perftest": lambda x=test, s=size, t=tls: perftest(x, s, t)})
    with tempfile.TemporaryDirectory() as folder:
        secure = certificates(folder)
        rivals = os.path.exists(os.path.join(build, "bench-venv"))
        for size in [4096, *(s for s in sizes if s >= 1 << 20)]:
            compare(f"tcp, one read of {size >> 10} KiB", rounds, lambda s=size: heft(build, "tcp", "read", s),
                    {"NIXL, UCX_TLS=tcp": lambda s=size: rival(build, "nixl", s, "tcp"),
                     "Mooncake tcp": lambda s=size: rival(build, "mooncake", s, "tcp")} if rivals else {})
            compare(f"tcp, 8 reads of {size >> 10} KiB under way", rounds,
                    lambda s=size: heft(build, "tcp", "read", s, extra=BATCH),
                    {f"iperf3 -P {STREAMS}": iperf, "UCX tag_bw over tcp": lambda s=size: perftest("tag_bw", s, "tcp")})
        for size in [s for s in sizes if s >= 1 << 20]:
            compare(f"tcp with TLS, read of {size >> 10} KiB", rounds,
                    lambda s=size: heft(build, "tcp", "read", s, extra=secure),
                    {f"iperf3 -P {STREAMS} (plain)": iperf, "AES-256-GCM of one core": aes})


if __name__ == "__main__":
    sys.exit(main())
