#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hostile bytes at every port, and machines that say no: full disks, read-only folders, odd files, small limits. Each gives
an error of its own, the exit code that heft(1) promises, and leaves nothing behind."""
import contextlib
import os
import random
import resource
import select
import shutil
import socket
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fleet as f  # noqa: E402


def connect(address):
    host, port = address.rsplit(":", 1)
    s = socket.create_connection((host, int(port)), 5)
    s.settimeout(10)
    return s


HANG_UP_S = 45  # all ports do within 20 s; the rest is for busy machines
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\4" + bytes(5)


def hostile_inputs():
    rng = random.Random(7)
    yield b""
    yield b"\0" * 64
    yield b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    yield b"GET / HTTP/1.1\r\nHo"
    yield HTTP2
    yield HTTP2 + SETTINGS
    yield HTTP2 + SETTINGS + b"\0\1\0\1\4\0\0\0\1half of its headers"
    yield b"\x16\3\1\2\0\1\0\1\xfc\3\3"
    yield b"\xff" * 4096
    yield struct.pack("<QQQQ", 2**64 - 1, 2**64 - 1, 2**63, 2**32 - 1) * 8
    for size in (1, 7, 31, 32, 33, 100, 5000, 70000):
        yield rng.randbytes(size)


def ends(s):
    """Takes what there is to read; True once the other side has closed. A reset is a close too."""
    try:
        while s.recv(65536):
            pass
        return True
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def send_garbage(ports):
    """To all ports at once, by clients that have said all and by such that may go on: each is hung up on within a bound."""
    with contextlib.ExitStack() as stack:
        waiting = {}
        for name, address in ports.items():
            for index, data in enumerate(hostile_inputs()):
                for goes_on in (False, True):
                    s = stack.enter_context(connect(address))
                    waiting[s] = f"{name}, input {index}{', more to come' if goes_on else ''}"
                    try:
                        s.sendall(data)
                        if not goes_on:
                            s.shutdown(socket.SHUT_WR)
                    except OSError:
                        pass
                    s.setblocking(False)
        until = time.monotonic() + HANG_UP_S
        while waiting and time.monotonic() < until:
            readable, _, _ = select.select(list(waiting), [], [], 1)
            for s in readable:
                if ends(s):
                    del waiting[s]
        assert not waiting, f"no hang-up within {HANG_UP_S} s: {sorted(waiting.values())}"


def tcp_address(process):
    line = process.line("serving as")
    return next(a[4:] for a in line.split(" at ")[1].split(" ")[0].split(",") if a.startswith("tcp:"))


def garbage_at_every_port_harms_nobody():
    with f.Fleet() as fleet:
        model = fleet.model(size="8M")
        heftd = fleet.heftd()
        source = fleet.serve(model, "source", heftd.address)
        port = f.free_port()
        scrape = fleet.start("scrape", f.HEFT, "stats", "--serve", f"127.0.0.1:{port}")
        scrape.line("serving /metrics")
        send_garbage({"replica": tcp_address(source), "directory": heftd.address, "heftd's http": heftd.http,
                      "metrics": f"127.0.0.1:{port}"})
        dribble = connect(tcp_address(source))
        for byte in b"\0" * 40:
            try:
                dribble.sendall(bytes([byte]))
            except OSError:
                break
            time.sleep(0.01)
        dribble.close()
        report = fleet.load(model, "--source", "peer", "--directory", heftd.address, "--require", "tcp")
        assert report["sha256"] == f.sha256_of_tensors(model)
        assert source.running() and heftd.running() and scrape.running()


def a_thousand_idle_connections_keep_nobody_out():
    with f.Fleet() as fleet:
        model = fleet.model(size="8M")
        directory = f"file:{fleet.path('directory.json')}"
        source = fleet.serve(model, "source", directory, "--listen", "127.0.0.1:0", "--lease", "60s")
        address = tcp_address(source)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
        idle = []
        try:
            for _ in range(1000):
                idle.append(connect(address))
            report = fleet.load(model, "--source", "peer", "--directory", directory)
            assert report["sha256"] == f.sha256_of_tensors(model)
        finally:
            for s in idle:
                s.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def refused(fleet, code, word, *arguments, **options):
    got, out, err = fleet.run(*arguments, **options)
    assert got == code, f"exit code {got}, expected {code}: {err}"
    assert word.lower() in err.lower(), f"'{word}' is not in: {err}"
    return err


def wrong_usage_says_what_is_right():
    with f.Fleet() as fleet:
        model = fleet.model(size="1M", shards_=1)
        refused(fleet, 2, "did you mean load", "laod", model)
        refused(fleet, 2, "MODEL is missing", "load")
        refused(fleet, 2, "unexpected argument", "load", model, model)
        refused(fleet, 2, "did you mean --deadline", "load", model, "--deadlnie", "1s")
        refused(fleet, 2, "such as", "load", model, "--deadline", "soon")
        refused(fleet, 2, "least", "load", model, "--max-host-memory", "1M")
        refused(fleet, 2, "unknown source", "load", model, "--source", "cloud")
        refused(fleet, 2, "rank 4 of 4", "load", model, "--ranks", "4", "--rank", "4")
        refused(fleet, 2, "host", "load", model, "--device", "cuda:0")
        refused(fleet, 2, "scheme", "load", "ftp://x/y")
        refused(fleet, 2, "no directory is named", "replicas")
        refused(fleet, 4, "no such", "load", fleet.path("nowhere"))
        refused(fleet, 4, "cache", "load", "org/not-there")
        code, out, err = fleet.run("load", "--help")
        assert code == 0 and "--max-host-memory" in out and "(default 256M)" in out
        code, out, err = fleet.run("load", model, "--show-config", env={"HEFT_DEADLINE": "7s"})
        assert code == 0 and "7s" in out and "# environment" in out
        err = refused(fleet, 1, "heftd", "load", model, "--source", "peer", "--directory", f"127.0.0.1:{f.free_port()}")
        assert "UNAVAILABLE" in err


def odd_files_have_their_own_errors():
    with f.Fleet() as fleet:
        model = fleet.model(size="2M", shards_=2)
        shard = f.shards(model)[0]
        kept = shard + ".kept"

        def with_shard(make, word, code=3):
            os.rename(shard, kept)
            try:
                make(shard)
                return refused(fleet, code, word, "load", model, "--quiet")
            finally:
                if os.path.isdir(shard):
                    os.rmdir(shard)
                elif os.path.lexists(shard):
                    os.unlink(shard)
                os.rename(kept, shard)
        err = with_shard(lambda p: None, os.path.basename(shard))
        assert "SHARD_MISSING" in err
        assert "NOT_A_FILE" in with_shard(os.mkfifo, "regular file")
        assert "NOT_A_FILE" in with_shard(os.mkdir, os.path.basename(shard))

        def pointer(p):
            with open(p, "w") as out:
                out.write("version https://git-lfs.github.com/spec/v1\noid sha256:" + "ab" * 32 + "\nsize 12345\n")
        assert "LFS_POINTER" in with_shard(pointer, "git lfs")

        def truncated(p):
            shutil.copy(kept, p)
            os.truncate(p, os.path.getsize(p) - 1)
        assert "DATA_TRUNCATED" in with_shard(truncated, os.path.basename(shard))
        fleet.load(model)


def a_file_that_shrinks_while_it_is_read_is_an_error():
    """Truncated at many moments of a load, since nothing waits for us: never a good end with a short file."""
    with f.Fleet() as fleet:
        pristine = f.shards(fleet.model("pristine", table="large", size="192M", shards_=1))[0]
        shard = fleet.path("model.safetensors")
        seen = set()
        for attempt in range(16):
            shutil.copy(pristine, shard)
            p = fleet.start(f"load-{attempt}", f.HEFT, "load", shard, "--quiet", "--log-level", "error")
            time.sleep(0.004 * attempt)
            os.truncate(shard, os.path.getsize(pristine) // 2)
            code = p.wait(60)
            if code != 0:
                assert code in (1, 3) and ("TRUNCATED" in p.text() or "CHANGED" in p.text() or "shrank" in p.text()), p.text()
                assert os.path.basename(shard) in p.text(), p.text()
            seen.add(code)
        assert seen & {1, 3}, "no load was caught by the truncation"


def a_full_disk_and_a_read_only_folder():
    with f.Fleet() as fleet:
        model = fleet.model(size="1M", shards_=1)
        try:
            subprocess.run(["unshare", "-rm", "true"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            return "no user and mount namespaces here"
        mount = fleet.path("full")
        os.makedirs(mount)
        script = (f"mount -t tmpfs -o size=16k tmpfs {mount} && head -c 16384 /dev/zero > {mount}/fill; "
                  f"{f.HEFT} load {model} --quiet --report {mount}/report.json; echo code $?")
        done = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, timeout=60,
                              env={**os.environ, **fleet.env})
        assert "code 1" in done.stdout and "No space left" in done.stderr, done
        script = (f"mount -t tmpfs -o ro tmpfs {mount}; {f.HEFT} serve {model} --quiet --directory file:{mount}/d.json; "
                  "echo code $?")
        done = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, timeout=60,
                              env={**os.environ, **fleet.env})
        assert "code 1" in done.stdout and "READ_ONLY" in done.stderr, done
        refused(fleet, 1, fleet.path("nowhere"), "load", model, "--quiet", "--report", fleet.path("nowhere/report"))


def with_limit(which, value):
    def apply():
        resource.setrlimit(which, (value, value))
    return apply


def small_limits_work_or_say_so():
    with f.Fleet() as fleet:
        model = fleet.model(size="8M", shards_=4)
        many = fleet.model("many", "small", "400K", 100)
        expected = f.sha256_of_tensors(model)
        for which, value in ((resource.RLIMIT_NOFILE, 64), (resource.RLIMIT_MEMLOCK, 64 << 10)):
            digests = fleet.path(f"sha.{which}")
            p = fleet.start("limited", f.HEFT, "load", model, "--quiet", "--sha256", digests,
                            preexec=with_limit(which, value))
            assert p.wait(60) == 0, p.text()
            assert f.read_sha256(digests) == expected
        p = fleet.start("files", f.HEFT, "load", many, "--quiet", preexec=with_limit(resource.RLIMIT_NOFILE, 64))
        assert p.wait(60) == 1 and "NO_FDS" in p.text() and "ulimit -n" in p.text(), p.text()
        p = fleet.start("files", f.HEFT, "serve", model, "--quiet", "--directory", f"file:{fleet.path('d.json')}",
                        preexec=with_limit(resource.RLIMIT_NOFILE, 64))
        p.line("serving as")
        assert p.stop() == 0


def memory_stays_within_the_limit():
    """A cold model with --max-host-memory 16M: at most the ring and 32 MiB beside the model's own bytes."""
    if "asan" in f.BUILD or "tsan" in f.BUILD:
        return "a sanitizer's own memory would be measured"
    with f.Fleet() as fleet:
        model = fleet.model(table="large", size="256M", shards_=2)
        total = sum(os.path.getsize(p) for p in f.shards(model))
        for path in f.shards(model):
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
        report = fleet.load(model, "--max-host-memory", "16M")
        beside = report["memory"]["peak_resident_bytes"] - total
        assert beside <= (16 + 32) << 20, f"{beside >> 20} MiB beside the model"
    return None


TESTS = [garbage_at_every_port_harms_nobody, a_thousand_idle_connections_keep_nobody_out, wrong_usage_says_what_is_right,
         odd_files_have_their_own_errors, a_file_that_shrinks_while_it_is_read_is_an_error,
         a_full_disk_and_a_read_only_folder, small_limits_work_or_say_so, memory_stays_within_the_limit]

if __name__ == "__main__":
    f.main(TESTS)
