#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files to memory: heft's agent and file transport beside NIXL's POSIX backend by each of its interfaces, in turn in one run.

  bench_file_rivals.py [--build DIR] [--path DIR] [--turns N] [--bytes SIZE]

Warm: one transfer of so many pieces that lie in the page cache, from post to done, posted again and again (heft bench
--space file). Cold: a file whose pages were dropped is read once, in pieces of that size; heft's transport alone (bench_file)
against one NIXL transfer that holds all pieces. NIXL comes from PyPI into BUILD/bench-venv. Its bytes are compared with the
file's. Medians over the turns; ratios are heft's rate by that of NIXL's best interface in the same turn.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

APIS = {"aio": "use_aio", "uring": "use_uring", "posix aio": "use_posix_aio"}
WARM = [(4096, 1), (4096, 64), (4096, 1024), (65536, 1), (65536, 256), (1 << 20, 1), (1 << 20, 64), (64 << 20, 1), (1 << 30, 1)]
COLD = [4096, 65536, 1 << 20, 64 << 20, 1 << 30]
WINDOW = 256


# ---- NIXL: this program again, inside the venv ----

def nixl_file(api, path, asks):
    import numpy
    from nixl_cu12._api import nixl_agent, nixl_agent_config
    agent = nixl_agent("reader", nixl_agent_config(enable_prog_thread=False, backends=[]))
    agent.create_backend("POSIX", {key: str(key == APIS[api]).lower() for key in APIS.values()})
    fd = os.open(path, os.O_RDONLY)
    size = os.fstat(fd).st_size
    memory = numpy.full(size, 7, dtype=numpy.uint8)
    agent.register_memory([(memory.ctypes.data, size, 0, "")], mem_type="DRAM")
    agent.register_memory([(0, size, fd, "")], mem_type="FILE")
    for kind, piece, count in asks:
        def rows(base, device):
            table = numpy.empty((count, 3), dtype=numpy.uint64)
            table[:, 0] = base + numpy.arange(count, dtype=numpy.uint64) * piece
            table[:, 1] = piece
            table[:, 2] = device
            return table
        here = agent.prep_xfer_dlist("NIXL_INIT_AGENT", rows(memory.ctypes.data, 0), mem_type="DRAM")
        there = agent.prep_xfer_dlist("reader", rows(0, fd), mem_type="FILE")
        order = numpy.arange(count, dtype=numpy.int32)
        made = agent.make_prepped_xfer("READ", here, order, there, order, b"")
        took, until = [], time.perf_counter() + (0.3 if kind == "warm" else 0)
        memory[:piece * count] = 7
        while not took or time.perf_counter() < until:
            if kind == "cold":
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            start = time.perf_counter_ns()
            state = agent.transfer(made)
            while state == "PROC":
                state = agent.check_xfer_state(made)
            took.append(time.perf_counter_ns() - start)
            if state != "DONE":
                sys.exit(f"NIXL: {state}")
        for at in (0, piece * count - 4096):
            if bytes(memory[at:at + 4096]) != os.pread(fd, 4096, at):
                sys.exit(f"NIXL's bytes at {at} are not the file's")
        print(json.dumps({"rate": piece * count / statistics.median(took)}), flush=True)
        agent.release_xfer_handle(made)
        agent.release_dlist_handle(here)
        agent.release_dlist_handle(there)
    os.close(fd)


def venv(build):
    python = os.path.join(build, "bench-venv", "bin", "python")
    if not os.path.exists(python):
        subprocess.run([sys.executable, "-m", "venv", os.path.join(build, "bench-venv")], check=True)
    subprocess.run([python, "-m", "pip", "install", "-q", "nixl-cu12", "numpy"], check=True)
    return python


def theirs(python, api, path, asks):
    run = subprocess.run([python, os.path.abspath(__file__), "--nixl", json.dumps([api, path, asks])], capture_output=True,
                         text=True, timeout=600)
    rates = [json.loads(line)["rate"] for line in run.stdout.splitlines() if line.startswith("{")]
    if run.returncode or len(rates) != len(asks):
        print(f"  NIXL by {api} stopped after {len(rates)} of {len(asks)}: {run.stderr.strip().splitlines()[-1:]}")
    return rates + [0.0] * (len(asks) - len(rates))


# ---- heft ----

def warm_heft(build, folder, piece, count):
    command = [os.path.join(build, "src", "cli", "heft"), "bench", "--json", "--quiet", "--space", "file", "--op", "read", "--path",
               folder, "--sizes", str(piece), "--batches", str(count), "--repeats", "1", "--time", "300ms", "--telemetry", "off"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if run.returncode:
        sys.exit(run.stderr)
    return json.loads(run.stdout)["rows"][0]["rate"] / 1e9


def cold_heft(build, path, piece):
    # small pieces are elements of larger operations, 64 bytes apart in memory, as a list of NIXL's holds them all
    shape = [64 << 20, 16, 0, 0, piece] if piece < 1 << 20 else [piece, WINDOW, 0, 0, 0]
    run = subprocess.Popen([os.path.join(build, "bench", "bench_file"), path, *map(str, shape)],
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    answer = []
    for command in ("cold", "heft"):
        run.stdin.write(command + "\n")
        run.stdin.flush()
        answer.append(float(run.stdout.readline()))
    run.stdin.close()
    run.wait()
    return os.path.getsize(path) / answer[1] / 1e9


def touch_memory(size):
    """Machines that get their memory from a host at first use are slow then, whoever asks."""
    block = bytearray(size)
    for at in range(0, size, 4096):
        block[at] = 1


def table(title, names, rows):
    print(f"{title:28} {'heft':>7} " + " ".join(f"{name:>10}" for name in names) + f" {'of the best':>12}")
    for name, mine, others in rows:
        ratio = statistics.median(m / max(other[turn] for other in others) for turn, m in enumerate(mine))
        print(f"{name:28} {statistics.median(mine):7.2f} "
              + " ".join(f"{statistics.median(other):10.2f}" for other in others) + f" {ratio:12.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--path", default=".", help="folder on the disk that is measured")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--bytes", type=int, default=1 << 30, help="of the file")
    parser.add_argument("--nixl", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.nixl:
        return nixl_file(*json.loads(options.nixl))
    python = venv(options.build)
    warm_sizes = [(piece, count) for piece, count in WARM if piece * count <= options.bytes]
    cold_sizes = [piece for piece in COLD if piece <= options.bytes]
    with tempfile.TemporaryDirectory(dir=options.path) as folder:
        path = os.path.join(folder, "file")
        block = os.urandom(8 << 20)
        with open(path, "wb", buffering=0) as file:
            for _ in range(options.bytes // len(block)):
                file.write(block)
            os.fsync(file.fileno())
        touch_memory(3 * options.bytes)
        warm = {row: ([], [[] for _ in APIS]) for row in warm_sizes}
        cold = {row: ([], [[] for _ in APIS]) for row in cold_sizes}
        for _ in range(options.turns):
            for index, api in enumerate(APIS):
                rates = theirs(python, api, path, [("warm", piece, count) for piece, count in warm_sizes])
                for row, rate in zip(warm_sizes, rates):
                    warm[row][1][index].append(rate)
            for piece, count in warm_sizes:
                warm[piece, count][0].append(warm_heft(options.build, folder, piece, count))
            for piece in cold_sizes:
                for index, api in enumerate(APIS):
                    cold[piece][1][index] += theirs(python, api, path, [("cold", piece, options.bytes // piece)])
                cold[piece][0].append(cold_heft(options.build, path, piece))
        names = [f"NIXL {api}" for api in APIS]
        table("warm: pieces, GB/s", names, [(f"{count} x {piece}", *warm[piece, count]) for piece, count in warm_sizes])
        table("cold: pieces, GB/s", names, [(f"{options.bytes // piece} x {piece}", *cold[piece]) for piece in cold_sizes])
    return 0


if __name__ == "__main__":
    sys.exit(main())
