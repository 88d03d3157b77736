#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""heft's agent beside NIXL, Mooncake, UCX and bare loops, between two processes of one host, in turn in one run.
  bench_agent_rivals.py [--build DIR] [--turns N] [--quick] [--only lists,blocks,latency,register]
Medians over the turns of each side's own medians. Rivals come from PyPI into BUILD/bench-venv; ucx_perftest from
Debian's ucx-utils. What is not there is left out with a word. Bytes are compared on both sides of each run."""
import argparse
import json
import multiprocessing
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time

PACKAGES = ["nixl-cu12", "mooncake-transfer-engine-non-cuda", "numpy"]  # without torch, which neither needs here
LISTS = [(64, 1), (64, 256), (64, 4096), (64, 65536), (64, 1 << 20), (512, 4096), (4096, 256), (4096, 4096), (4096, 65536)]
BLOCKS = [(1 << 20, 1), (16 << 20, 1), (64 << 20, 1), (256 << 20, 1)]
PORT = 13347
RIVAL_SECONDS = 120


# ---- rivals: this program again, inside the venv, one process each side ----

def nixl_agent_of(name):
    from nixl_cu12._api import nixl_agent, nixl_agent_config
    return nixl_agent(name, nixl_agent_config(enable_prog_thread=False, backends=["UCX"]))


def nixl_target(conn, total):
    import numpy
    memory = numpy.full(total, 7, dtype=numpy.uint8)
    agent = nixl_agent_of("target")
    agent.register_memory([(memory.ctypes.data, total, 0, "")], mem_type="DRAM")
    conn.send((agent.get_agent_metadata(), memory.ctypes.data))
    while True:
        while not conn.poll(0.002):
            agent.get_new_notifs()  # without a thread of its own it gets on with connecting here
        ask = conn.recv()
        if ask is None:
            return
        conn.send((int(memory[0]), int(memory[ask - 1])))


def nixl_main(configs, op):
    import numpy
    multiprocessing.set_start_method("spawn")
    total = max(size * count * (2 if count > 1 else 1) for size, count in configs)
    conn, other = multiprocessing.Pipe()
    target = multiprocessing.Process(target=nixl_target, args=(other, total))
    target.start()
    memory = numpy.full(total, 3, dtype=numpy.uint8)
    agent = nixl_agent_of("initiator")
    agent.register_memory([(memory.ctypes.data, total, 0, "")], mem_type="DRAM")
    metadata, there = conn.recv()
    peer = agent.add_remote_agent(metadata)
    peer = peer.decode() if isinstance(peer, bytes) else peer
    now = time.perf_counter_ns
    for size, count in configs:
        stride = size * (2 if count > 1 else 1)

        def items(base):
            rows = numpy.empty((count, 3), dtype=numpy.uint64)
            rows[:, 0] = base + numpy.arange(count, dtype=numpy.uint64) * stride
            rows[:, 1] = size
            rows[:, 2] = 0
            return rows
        order = numpy.random.RandomState(0).permutation(count).astype(numpy.int32)
        here_rows, there_rows = items(memory.ctypes.data), items(there)
        prepared = []
        for _ in range(5):  # the first finds everything cold; the middle one counts
            t0 = now()
            here_list = agent.prep_xfer_dlist("NIXL_INIT_AGENT", here_rows, mem_type="DRAM")
            t1 = now()
            there_list = agent.prep_xfer_dlist(peer, there_rows, mem_type="DRAM")
            t2 = now()
            made = agent.make_prepped_xfer(op, here_list, order, there_list, order, b"")
            prepared.append(((t1 - t0) / count, (t2 - t1) / count, (now() - t2) / count))
            if len(prepared) < 5:
                agent.release_xfer_handle(made)
                agent.release_dlist_handle(here_list)
                agent.release_dlist_handle(there_list)
        here_ns, there_ns, make_ns = (statistics.median(column) for column in zip(*prepared))
        took = []
        for _ in range(max(5, min(200, 20000000 // (size * count + 2000 * count)))):
            start = now()
            state = agent.transfer(made)
            while state == "PROC":
                state = agent.check_xfer_state(made)
            took.append(now() - start)
            if state != "DONE":
                sys.exit("NIXL: " + str(state))
        conn.send(size)
        seen = conn.recv()
        if op == "WRITE" and seen[0] != 3 or op == "READ" and memory[0] != 7:
            sys.exit("NIXL moved nothing")
        print(json.dumps({"size": size, "count": count, "local": here_ns, "remote": there_ns, "make": make_ns,
                          "post": statistics.median(took) / count}), flush=True)
        agent.release_xfer_handle(made)
        agent.release_dlist_handle(here_list)
        agent.release_dlist_handle(there_list)
    conn.send(None)
    target.join()


def nixl_register(count):
    import numpy
    memory = numpy.zeros(count * 4096, dtype=numpy.uint8)
    agent = nixl_agent_of("registrar")
    start = time.perf_counter_ns()
    kept = [agent.register_memory([(memory.ctypes.data + index * 4096, 4096, 0, "")], mem_type="DRAM")
            for index in range(count)]
    print(json.dumps({"each_ns": (time.perf_counter_ns() - start) / len(kept)}), flush=True)


def mooncake_target(conn, total):
    import numpy
    from mooncake.engine import TransferEngine
    engine = TransferEngine()
    engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "")
    memory = numpy.full(total, 7, dtype=numpy.uint8)
    engine.register_memory(memory.ctypes.data, total)
    conn.send((f"127.0.0.1:{engine.get_rpc_port()}", memory.ctypes.data))
    while conn.recv() is not None:
        conn.send(int(memory[0]))


def mooncake_main(configs, op):
    import numpy
    from mooncake.engine import TransferEngine
    multiprocessing.set_start_method("spawn")
    total = max(size for size, _ in configs)
    conn, other = multiprocessing.Pipe()
    target = multiprocessing.Process(target=mooncake_target, args=(other, total))
    target.start()
    engine = TransferEngine()
    engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "")
    memory = numpy.full(total, 3, dtype=numpy.uint8)
    engine.register_memory(memory.ctypes.data, total)
    session, there = conn.recv()
    move = engine.transfer_sync_write if op == "WRITE" else engine.transfer_sync_read
    for size, count in configs:
        if count != 1:
            continue
        took = []
        for _ in range(max(3, min(50, (64 << 20) // size))):
            start = time.perf_counter_ns()
            if move(session, memory.ctypes.data, there, size) != 0:
                sys.exit("Mooncake failed")
            took.append(time.perf_counter_ns() - start)
        conn.send(1)
        if op == "WRITE" and conn.recv() != 3:
            sys.exit("Mooncake moved nothing")
        print(json.dumps({"size": size, "count": 1, "post": statistics.median(took)}), flush=True)
    conn.send(None)
    target.join()
    os._exit(0)  # its threads do not end by themselves


def rival_main(arguments):
    if arguments[0] == "register":
        nixl_register(int(arguments[1]))
        return
    configs = [tuple(config) for config in json.loads(arguments[2])]
    {"nixl": nixl_main, "mooncake": mooncake_main}[arguments[0]](configs, arguments[1])


# ---- this side ----

def venv(build):
    python = os.path.join(build, "bench-venv", "bin", "python")
    if not os.path.exists(python):
        subprocess.run([sys.executable, "-m", "venv", os.path.join(build, "bench-venv")], check=True)
    run = subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", *PACKAGES], capture_output=True, text=True)
    if run.returncode != 0:
        print("the rivals can't be installed:", run.stderr.strip().splitlines()[-1:], file=sys.stderr)
        return None
    return python


class Rivals:
    """Rows of one rival, or none, with a word once."""

    def __init__(self, python):
        self.python = python
        self.told = set()

    def rows(self, name, *arguments):
        if self.python is None:
            return []
        environment = dict(os.environ, NIXL_LOG_LEVEL="ERROR", UCX_LOG_LEVEL="error", GLOG_minloglevel="3")
        run = subprocess.Popen([self.python, os.path.abspath(__file__), "rival", name, *arguments], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
                               start_new_session=True)
        try:
            out, err = run.communicate(timeout=RIVAL_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)  # its other process too
            out, err = run.communicate()
            err += f" not done after {RIVAL_SECONDS} s"
        rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        if not rows and name not in self.told:  # NIXL ends in a fault when all is done
            self.told.add(name)
            print(f"{name} did not run to its end ({run.returncode}): {' '.join(err.split()[-30:])}", file=sys.stderr)
        return rows


def heft(build, size, count, mode, op, rounds):
    run = subprocess.run([os.path.join(build, "bench", "bench_list"), str(size), str(count), mode, str(rounds), op],
                         capture_output=True, text=True, timeout=600, check=True)
    row = {}
    for line in run.stdout.splitlines():
        words = line.split()
        row[words[0]] = {words[at]: float(words[at + 1]) for at in range(1, len(words), 2)}
    return row.get("irregular", row.get("regular"))


def heft_private(build, size, op):
    """One block of memory as large allocations have it (huge pages, not shared), which is what the rivals move as well. The
    second size makes the regions as large as theirs."""
    run = subprocess.run([os.path.join(build, "src", "cli", "heft"), "bench", "--json", "--quiet", "--space", "private", "--require",
                          "local", "--op", op, "--sizes", f"{size},{max(size, 16 << 20)}", "--repeats", "3", "--time", "150ms", "--telemetry", "off"],
                         capture_output=True, text=True, timeout=120, check=True)
    row = next(row for row in json.loads(run.stdout)["rows"] if row["size"] == size)
    return {"post": size / row["rate"] * 1e9, "bare": size / row["bare"] * 1e9}


def middle(samples, *keys):
    values = [sample[keys[0]] for sample in samples if sample and keys[0] in sample]
    return statistics.median(values) if values else None


def show(value, digits=1):
    return "-" if value is None else f"{value:.{digits}f}"


def compare(options, rivals, configs, op, with_mooncake):
    kept = {}
    for _ in range(options.turns):
        for config in configs:
            moved = config[0] * config[1]
            for mode in ("mapped", "attached"):
                rounds = 9 if moved <= 1 << 22 else 3
                kept.setdefault((config, mode), []).append(
                    heft_private(options.build, config[0], op) if mode == "attached" and config[1] == 1
                    else heft(options.build, *config, mode, op, rounds))
        for name in ("nixl", "mooncake") if with_mooncake else ("nixl",):
            # NIXL needs seconds for each post of a million
            some = [config for config in configs if name != "nixl" or config[1] <= 65536]
            for row in rivals.rows(name, op.upper(), json.dumps(some)):
                kept.setdefault(((row["size"], row["count"]), name), []).append(row)
    return kept


def lists(options, rivals):
    configs = LISTS[:4] if options.quick else LISTS
    print(f"\n{'lists, ns an item':<18}{'prep':>7}{'make':>7}{'mapped':>9}{'bare':>9}{'x bare':>8}{'attached':>10}"
          f"{'bare':>9}{'x bare':>8} | {'NIXL prep':>10}{'make':>8}{'post':>10}{'mapped is':>11}{'attached':>10}")
    for op in ("write",) if options.quick else ("write", "read"):
        kept = compare(options, rivals, configs, op, False)
        for config in configs:
            mapped, attached, nixl = (kept.get((config, name), []) for name in ("mapped", "attached", "nixl"))
            post, bare = middle(mapped, "post"), middle(mapped, "bare")
            far, far_bare, theirs = middle(attached, "post"), middle(attached, "bare"), middle(nixl, "post")
            print(f"{op:<6}{config[0]:>5} x{config[1]:>6}{show(middle(mapped, 'remote')):>7}"
                  f"{show(middle(mapped, 'make')):>7}{show(post):>9}{show(bare):>9}{post / bare:>8.2f}{show(far):>10}"
                  f"{show(far_bare):>9}{far / far_bare:>8.2f} | {show(middle(nixl, 'remote')):>10}"
                  f"{show(middle(nixl, 'make')):>8}{show(theirs):>10}"
                  f"{show(theirs and theirs / post) + ' x':>11}{show(theirs and theirs / far) + ' x':>10}", flush=True)


def blocks(options, rivals):
    configs = [(64, 1), (4096, 1), (65536, 1)] + (BLOCKS[:2] if options.quick else BLOCKS)
    print(f"\n{'one block, GB/s':<22}{'mapped':>9}{'memcpy':>9}{'ratio':>7}{'attached':>10}{'CMA':>9}{'ratio':>7} | "
          f"{'NIXL':>9}{'Mooncake':>10}")
    for op in ("write", "read"):
        kept = compare(options, rivals, configs, op, True)
        for config in configs:
            def rate(name, key):
                value = middle(kept.get((config, name), []), key)
                return value and config[0] / value
            mapped, copy = rate("mapped", "post"), rate("mapped", "bare")
            far, cma = rate("attached", "post"), rate("attached", "bare")
            print(f"{op:<6}{config[0]:>12}    {show(mapped, 3):>9}{show(copy, 3):>9}{mapped / copy:>7.2f}"
                  f"{show(far, 3):>10}{show(cma, 3):>9}{far / cma:>7.2f} | {show(rate('nixl', 'post'), 3):>9}"
                  f"{show(rate('mooncake', 'post'), 3):>10}", flush=True)


def ucx_latency(tls, test):
    if not shutil.which("ucx_perftest"):
        return None
    environment = dict(os.environ, UCX_TLS=tls, UCX_LOG_LEVEL="error")
    server = subprocess.Popen(["ucx_perftest", "-p", str(PORT)], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, env=environment)
    try:
        time.sleep(0.5)  # it tells nobody when it listens
        run = subprocess.run(["ucx_perftest", "127.0.0.1", "-p", str(PORT), "-t", test, "-s", "8", "-n", "100000"],
                             capture_output=True, text=True, timeout=60, env=environment)
        found = re.findall(r"Final:\s+\d+\s+([\d.]+)", run.stdout)
        return float(found[-1]) if found else None
    except subprocess.TimeoutExpired:
        return None
    finally:
        server.kill()
        server.wait()


def latency(options, _):
    kept = {}
    for _ in range(options.turns):
        run = subprocess.run([os.path.join(options.build, "bench", "bench_notify"), "2000"], capture_output=True,
                             text=True, timeout=300, check=True)
        for line in run.stdout.splitlines()[:len(run.stdout.splitlines()) // 2]:
            name, _, rest = line.partition("one way")
            kept.setdefault(name.strip(), []).append(float(rest.split()[1]))
        for test in ("tag_lat", "ucp_put_lat"):
            took = ucx_latency("posix,self", test)
            if took is not None:
                kept.setdefault("ucx_perftest " + test, []).append(took)
    print(f"\n{'8 bytes, one way':<30}{'us':>9}")
    for name, values in kept.items():
        print(f"{name:<30}{statistics.median(values):>9.3f}")


def register(options, rivals):
    ours, theirs, firsts, lasts = [], [], [], []
    for _ in range(options.turns):
        run = subprocess.run([os.path.join(options.build, "bench", "bench_list"), "register"], capture_output=True,
                             text=True, timeout=60, check=True)
        words = run.stdout.split()
        ours.append(float(words[1]))
        firsts.append(float(words[3]))
        lasts.append(float(words[5]))
        theirs += [row["each_ns"] for row in rivals.rows("register", "10000")]
    print(f"\nregistration of 100,000 tensors: heft, 4 regions: {statistics.median(ours) / 1e3:.1f} us; NIXL, one by one: "
          + (f"{statistics.median(theirs) * 100000 / 1e6:.0f} ms" if theirs else "-")
          + f"\nfirst round {statistics.median(firsts) / 1e3:.1f} us, hundredth {statistics.median(lasts) / 1e3:.1f} us; "
          f"metadata of all {words[7]} bytes, {int(words[7]) / 100000:.3f} a tensor")


def main():
    if sys.argv[1:2] == ["rival"]:
        rival_main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="lists,blocks,latency,register")
    options = parser.parse_args()
    subprocess.run(["ninja", "-C", options.build, "bench/bench_list", "bench/bench_notify"], check=True,
                   stdout=subprocess.DEVNULL)
    rivals = Rivals(venv(options.build))
    for part in options.only.split(","):
        {"lists": lists, "blocks": blocks, "latency": latency, "register": register}[part](options, rivals)


if __name__ == "__main__":
    main()
