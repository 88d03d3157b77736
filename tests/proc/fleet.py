# SPDX-License-Identifier: Apache-2.0
"""Real processes for tests and the demo: heftd, replicas, loads; models and their digests by other means than heft's.

Everything lives in one temporary folder and ends with it: `with Fleet() as fleet: ...`. Only processes that were started
here are ever signalled."""
import hashlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("HEFT_BUILD", os.path.join(ROOT, "build"))
HEFT = os.path.join(BUILD, "src", "cli", "heft")
HEFTD = os.path.join(BUILD, "src", "daemon", "heftd")
WAIT = float(os.environ.get("HEFT_TEST_WAIT", "60"))  # generous: the machine may be busy


def until(condition, what, limit=WAIT, pause=0.01):
    """Waits for a condition and returns its value; the time limit is a failure that says what was waited for."""
    end = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit} s: {what}")
        time.sleep(pause)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def read_header(path):
    """(header, offset of the data) of a safetensors file, without any library."""
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        return json.loads(f.read(n)), 8 + n


def shards(model):
    if os.path.isfile(model):
        return [model]
    index = os.path.join(model, "model.safetensors.index.json")
    if os.path.exists(index):
        with open(index) as f:
            return sorted({os.path.join(model, s) for s in json.load(f)["weight_map"].values()})
    return sorted(os.path.join(model, f) for f in os.listdir(model) if f.endswith(".safetensors"))


def sha256_of_tensors(model):
    """{tensor: SHA-256 of its bytes}, from the files, by hashlib."""
    found = {}
    for path in shards(model):
        header, start = read_header(path)
        with open(path, "rb") as f:
            for name, t in header.items():
                if name == "__metadata__":
                    continue
                a, b = t["data_offsets"]
                f.seek(start + a)
                found[name] = hashlib.sha256(f.read(b - a)).hexdigest()
    return found


def read_sha256(path):
    with open(path) as f:
        return {line[66:].rstrip("\n"): line[:64] for line in f}


class Process:
    """A started program; its output is kept in a file, its lines can be waited for."""

    def __init__(self, fleet, name, command, env=None, preexec=None):
        self.name, self.command = name, command
        self.out_path = os.path.join(fleet.dir, f"{name}.{len(fleet.processes)}.out")
        self.out = open(self.out_path, "wb")
        self.process = subprocess.Popen(command, stdout=self.out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                        env={**os.environ, **fleet.env, **(env or {})}, preexec_fn=preexec)
        self.frozen = False

    def text(self):
        with open(self.out_path, "rb") as f:
            return f.read().decode(errors="replace")

    def line(self, word, limit=WAIT):
        """The first line that has the word; a process that ends before is a failure that shows its output."""
        def look():
            for line in self.text().splitlines():
                if word in line:
                    return line
            if self.process.poll() is not None:
                raise AssertionError(f"{self.name} ended with {self.process.returncode} before '{word}':\n{self.text()}")
            return None
        return until(look, f"'{word}' from {self.name}; so far:\n{self.text()}", limit)

    def wait(self, limit=WAIT):
        return self.process.wait(limit)

    def running(self):
        return self.process.poll() is None

    def kill(self):
        if self.running():
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(10)

    def freeze(self):
        if self.running():
            self.process.send_signal(signal.SIGSTOP)
            self.frozen = True

    def thaw(self):
        if self.frozen and self.running():
            self.process.send_signal(signal.SIGCONT)
        self.frozen = False

    def stop(self, limit=20):
        """SIGTERM; returns the exit code."""
        self.thaw()
        if self.running():
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} did not end on SIGTERM:\n{self.text()}") from None


class Fleet:
    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="heft-test-")
        self.processes = []
        self.env = {"XDG_CACHE_HOME": os.path.join(self.dir, "cache"), "HF_HOME": os.path.join(self.dir, "hf"),
                    "XDG_STATE_HOME": os.path.join(self.dir, "state")}

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        for p in self.processes:
            p.thaw()
        for p in self.processes:
            p.kill()
        if kind and value:
            for p in self.processes:
                sys.stderr.write(f"--- {p.name} ({p.process.returncode})\n{p.text()[-3000:]}\n")
        shutil.rmtree(self.dir, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.dir, name)

    def start(self, name, *command, **more):
        process = Process(self, name, list(command), **more)
        self.processes.append(process)
        return process

    def heftd(self, store=None, port=0, *more):
        """Starts heftd and waits until it answers; the process has .address and .http."""
        ports = self.path(f"ports.{len(self.processes)}")
        p = self.start("heftd", HEFTD, "--listen", f"127.0.0.1:{port}", "--http", "127.0.0.1:0", "--store",
                       store or f"sqlite:{self.path('heftd.db')}", "--port-file", ports, *more)

        def look():
            if not p.running():
                raise AssertionError(f"heftd ended with {p.process.returncode}:\n{p.text()}")
            if not os.path.exists(ports):
                return None
            with open(ports) as f:
                return dict(line.split("=") for line in f.read().splitlines() if line.strip())
        found = until(look, "heftd's ports")
        p.address, p.http = f"127.0.0.1:{found['grpc']}", f"127.0.0.1:{found['http']}"
        return p

    def serve(self, model, name, directory, *more, **options):
        return self.start(name, HEFT, "serve", model, "--name", name, "--directory", directory, *more, **options)

    def run(self, *arguments, limit=WAIT, check=None, **options):
        """Runs heft to its end: (exit code, stdout, stderr). check: the expected exit code."""
        env = {**os.environ, **self.env, **options.pop("env", {})}
        done = subprocess.run([HEFT, *arguments], stdin=subprocess.DEVNULL, capture_output=True, timeout=limit, env=env,
                              **options)
        out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        if check is not None and done.returncode != check:
            raise AssertionError(f"heft {' '.join(arguments)}: exit code {done.returncode}, expected {check}\n{out}\n{err}")
        return done.returncode, out, err

    def load(self, model, *arguments, check=0, **options):
        """heft load --json: the report, with ["sha256"]: digests of the loaded tensors."""
        digests = self.path(f"sha256.{time.monotonic_ns()}")
        code, out, err = self.run("load", model, "--json", "--quiet", "--sha256", digests, *arguments, check=check, **options)
        report = json.loads(out)
        report["exit_code"], report["stderr"] = code, err
        report["sha256"] = read_sha256(digests) if os.path.exists(digests) else {}
        return report

    def model(self, name="model", table="moe", size="64M", shards_=3, seed=1):
        path = self.path(name)
        subprocess.run([sys.executable, os.path.join(ROOT, "scripts", "make-model"), path, "--table", table, "--bytes", size,
                        "--shards", str(shards_), "--seed", str(seed)], check=True, stdout=subprocess.DEVNULL)
        return path

    def replicas(self, directory):
        code, out, _ = self.run("replicas", "--directory", directory, "--json")
        return json.loads(out) if code == 0 else []


def main(tests):
    """Runs the tests given (functions); prints a line each and the count; the exit status tells."""
    passed = failed = skipped = 0
    wanted = sys.argv[1:]
    for test in tests:
        if wanted and test.__name__ not in wanted:
            continue
        begin = time.monotonic()
        try:
            reason = test()
            if isinstance(reason, str):
                skipped += 1
                print(f"skipped {test.__name__}: {reason}", flush=True)
                continue
            passed += 1
            print(f"ok      {test.__name__} ({time.monotonic() - begin:.1f} s)", flush=True)
        except Exception as e:  # noqa: BLE001 a test may fail in any way
            failed += 1
            import traceback
            traceback.print_exc()
            print(f"FAILED  {test.__name__}: {e}", flush=True)
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    sys.exit(1 if failed else 0)
