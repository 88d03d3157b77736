#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ends that must come soon, and words that must not be obeyed: frozen candidates, deadlines and signals at every stage,
hostile names; nothing is left behind by whoever is killed."""
import hashlib
import json
import os
import signal
import socket
import struct
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fleet as f  # noqa: E402

SLACK = float(os.environ.get("HEFT_TEST_SLACK", "1"))  # for builds with sanitizers


def frozen_candidates_delay_neither_the_start_nor_the_end():
    for count in (1, 8):
        with f.Fleet() as fleet:
            model = fleet.model(size="8M")
            directory = f"file:{fleet.path('directory.json')}"
            frozen = [fleet.serve(model, f"frozen-{i}", directory, "--lease", "60s", "--source", "file") for i in range(count)]
            for p in frozen:
                p.line("serving as")
            for p in frozen:
                p.freeze()
            begin = time.monotonic()
            report = fleet.load(model, "--directory", directory)
            took = time.monotonic() - begin
            assert report["sha256"] == f.sha256_of_tensors(model)
            reasons = [s["reason"]["text"] for s in report["sources"] if s["kind"] == "peer"]
            assert len(reasons) == count and all("no answer" in r for r in reasons), reasons
            assert took < 2.5 * SLACK, f"{count} frozen replicas delayed a load from files: {took:.1f} s"


def slow_replicas_are_waited_for_when_files_may_not_supply():
    """The folder is there, and opened, but only replicas may be used: both answer later than the grace."""
    with f.Fleet() as fleet:
        model = fleet.model(size="8M")
        directory = f"file:{fleet.path('directory.json')}"
        replicas = [fleet.serve(model, f"slow-{i}", directory, "--lease", "60s", "--source", "file") for i in range(2)]
        for p in replicas:
            p.line("serving as")
        for p in replicas:
            p.freeze()
        sha = fleet.path("sha")
        load = fleet.start("load", f.HEFT, "load", model, "--directory", directory, "--source", "peer", "--quiet", "--sha256", sha)
        time.sleep(1.2)
        for p in replicas:
            p.thaw()
        assert load.wait() == 0, load.text()
        assert f.read_sha256(sha) == f.sha256_of_tensors(model)


def an_incompatible_replica_that_answers_first_does_not_end_the_wait():
    with f.Fleet() as fleet:
        model = fleet.model("m", size="2M", shards_=1)
        other = fleet.model("other/m", table="small", size="64K", shards_=1)
        directory = f"file:{fleet.path('directory.json')}"
        right = fleet.serve(model, "right", directory, "--lease", "60s", "--revision", "r1", "--source", "file")
        wrong = fleet.serve(other, "wrong", directory, "--lease", "60s", "--revision", "r1", "--source", "file")
        right.line("serving as"), wrong.line("serving as")
        right.freeze()
        sha = fleet.path("sha")
        load = fleet.start("load", f.HEFT, "load", model, "--revision", "r1", "--directory", directory, "--source", "peer", "--quiet",
                           "--sha256", sha)
        time.sleep(1.2)
        right.thaw()
        assert load.wait() == 0, load.text()
        assert f.read_sha256(sha) == f.sha256_of_tensors(model)


def a_deadline_bounds_connecting_and_the_directory():
    with f.Fleet() as fleet:
        model = fleet.model(size="2M")
        heftd = fleet.heftd()
        replica = fleet.serve(model, "one", heftd.address, "--lease", "60s")
        replica.line("serving as")
        replica.freeze()
        begin = time.monotonic()
        code, out, err = fleet.run("load", model, "--source", "peer", "--directory", heftd.address, "--deadline", "700ms")
        assert code == 6, (code, err)
        assert time.monotonic() - begin < 2.2 * SLACK, time.monotonic() - begin
        replica.thaw()
        heftd.freeze()
        begin = time.monotonic()
        code, out, err = fleet.run("load", model, "--source", "peer", "--directory", heftd.address, "--deadline", "700ms")
        assert code == 6, (code, err)
        assert time.monotonic() - begin < 2.2 * SLACK, time.monotonic() - begin


def a_signal_ends_a_load_that_is_connecting():
    with f.Fleet() as fleet:
        model = fleet.model(size="2M")
        directory = f"file:{fleet.path('directory.json')}"
        replica = fleet.serve(model, "one", directory, "--lease", "60s")
        replica.line("serving as")
        replica.freeze()
        load = fleet.start("load", f.HEFT, "load", model, "--directory", directory, "--source", "peer", "--quiet")
        time.sleep(0.5)
        begin = time.monotonic()
        load.process.send_signal(signal.SIGINT)
        assert load.wait(10) == 1, load.text()
        assert time.monotonic() - begin < 2 * SLACK, f"{time.monotonic() - begin:.1f} s from the signal to the end"
        assert "CANCELED" in load.text(), load.text()


def write_model(path, names):
    """A safetensors file of 16-byte tensors with these names."""
    header = {name: {"dtype": "U8", "shape": [16], "data_offsets": [16 * i, 16 * i + 16]} for i, name in enumerate(names)}
    text = json.dumps(header).encode()
    text = text.ljust((len(text) + 7) // 8 * 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text + bytes(range(16)) * len(names))


HOSTILE = ["plain", "two\nlines", "\x1b[2Jclear", "\u009b31mred", "\u202etxet", "back\\slash", "t\tab", "ä模\U0001f680",
           "../../etc/passwd", "%s%n", "nul\0inside", "x" * 500]


def obeyed(text):
    return [c for c in text if (ord(c) < 0x20 and c != "\n") or 0x7f <= ord(c) <= 0x9f or 0x202a <= ord(c) <= 0x202e]


def hostile_names_are_carried_but_never_obeyed():
    with f.Fleet() as fleet:
        folder = fleet.path("evil\u202edir")
        os.makedirs(folder)
        write_model(os.path.join(folder, "model.safetensors"), HOSTILE)
        directory = f"file:{fleet.path('directory.json')}"
        replica = fleet.serve(folder, "evil-ä", directory)
        replica.line("serving as")
        for command in (["inspect", folder, "--tensors"], ["verify", folder, "--tensors"], ["plan", folder, "--directory", directory],
                        ["load", folder, "--directory", directory, "--log-level", "debug"], ["replicas", "--directory", directory],
                        ["health", "--directory", directory], ["load", folder + "/nothing\x1b[31m"]):
            code, out, err = fleet.run(*command)
            assert not obeyed(out + err), (command, obeyed(out + err), out, err)
        for command in (["inspect", folder, "--tensors", "--json"], ["load", folder, "--json", "--quiet"],
                        ["plan", folder, "--json", "--directory", directory], ["replicas", "--json", "--directory", directory]):
            code, out, err = fleet.run(*command, check=0)
            json.loads(out)
        shown = json.loads(fleet.run("inspect", folder, "--tensors", "--json", check=0)[1])
        assert sorted(t["name"] for t in shown["tensors"]) == sorted(HOSTILE)
        digests = fleet.path("sha")
        fleet.run("load", folder, "--quiet", "--sha256", digests, "--source", "peer", "--directory", directory, check=0)
        with open(digests, encoding="utf-8", newline="\n") as lines:
            assert len(lines.read().split("\n")) == len(HOSTILE) + 1, "a name made a line of its own"


def empty_models_and_empty_tensors_load_and_are_served():
    with f.Fleet() as fleet:
        directory = f"file:{fleet.path('directory.json')}"
        for number, header in enumerate(({}, {"e": {"dtype": "F32", "shape": [0, 4], "data_offsets": [0, 0]}})):
            folder = fleet.path(f"empty-{number}")
            os.makedirs(folder)
            text = json.dumps(header).encode()
            with open(os.path.join(folder, "model.safetensors"), "wb") as out:
                out.write(struct.pack("<Q", len(text)) + text)
            code, out, err = fleet.run("load", folder, "--json", "--quiet")
            if code:  # refused: then with a reason of its own, not by accident
                assert code == 3, (code, err)
                continue
            assert json.loads(out)["bytes"] == 0
            fleet.serve(folder, f"r{number}", directory).line("serving as")
            report = fleet.load(folder, "--source", "peer", "--directory", directory)
            assert report["bytes"] == 0 and len(report["sha256"]) == len(header), report


def a_tensor_over_4_gib_arrives_whole():
    """A hole of 4 GiB and a little, with marks at its ends and around 4 GiB."""
    if "asan" in f.BUILD:
        return "the plain build moves it"
    free = int(next(x for x in open("/proc/meminfo") if x.startswith("MemAvailable")).split()[1]) >> 20
    if free < 14:
        return f"{free} GiB of memory are available, 14 are needed"
    with f.Fleet() as fleet:
        rows, columns = 4 * 4096 + 64, 1 << 18
        size = rows * columns
        path = fleet.path("huge.safetensors")
        text = json.dumps({"t": {"dtype": "U8", "shape": [rows, columns], "data_offsets": [0, size]}}).encode()
        marks = [0, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 32) + 1, size - 1]
        with open(path, "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            for mark in marks:
                out.seek(8 + len(text) + mark)
                out.write(b"\xa5")
            out.truncate(8 + len(text) + size)
        digests = fleet.path("sha")
        code, out, err = fleet.run("load", path, "--quiet", "--sha256", digests, limit=300)
        if code == 1 and "NO_MEMORY" in err:
            return "others took the memory meanwhile"
        assert code == 0, err
        digest = hashlib.sha256()
        with open(path, "rb") as data:
            data.seek(8 + len(text))
            while piece := data.read(16 << 20):
                digest.update(piece)
        assert f.read_sha256(digests) == {"t": digest.hexdigest()}


def a_frozen_reader_does_not_keep_a_replica_from_ending():
    """Its memory is given back only when nothing is served from it: a crash here would be a read of freed memory."""
    with f.Fleet() as fleet:
        model = fleet.model(size="256M", table="dense", shards_=1)
        directory = f"file:{fleet.path('directory.json')}"
        for transport in ("local", "tcp"):
            source = fleet.serve(model, f"source-{transport}", directory, "--lease", "60s", "--source", "file")
            source.line("serving as")
            load = fleet.start("load", f.HEFT, "load", model, "--source", "peer", "--directory", directory, "--quiet", "--chunk",
                               "64K", "--require", transport)
            time.sleep(0.12)
            load.freeze()
            begin = time.monotonic()
            assert source.stop(30) == 0, source.text()
            took = time.monotonic() - begin
            assert took < 6 * SLACK, f"{took:.1f} s to end with a frozen reader over {transport}"
            load.thaw()
            assert load.wait() in (0, 1), load.text()


def more_replicas_than_a_load_can_ask_are_told():
    """Eighty hand-written records of replicas that are gone: the load says whom it did not ask, and loses no time."""
    with f.Fleet() as fleet:
        model = fleet.model("m", size="2M", shards_=1)
        path = fleet.path("directory.json")
        fleet.serve(model, "one", f"file:{path}", "--revision", "r1").line("serving as")
        with open(path) as file:
            directory = json.load(file)
        records = next(v for v in directory.values() if isinstance(v, list))
        first = json.dumps(next(r for r in records if r["name"] == "one"))
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        for i in range(80):
            record = json.loads(first)
            record.update(name=f"gone-{i:02}", addresses=f"tcp:127.0.0.1:{port}", generation=f"{i + 1:032x}")
            records.append(record)
        with open(path, "w") as file:
            json.dump(directory, file)
        begin = time.monotonic()
        report = fleet.load(model, "--directory", f"file:{path}", "--revision", "r1")
        assert time.monotonic() - begin < 3 * SLACK
        assert report["sha256"] == f.sha256_of_tensors(model)
        others = [s for s in report["sources"] if s["name"] == "others"]
        assert len(others) == 1 and others[0]["reason"]["code"] == "TOO_MANY" and "49 more" in others[0]["reason"]["text"], others


def a_name_that_would_be_cut_is_refused():
    with f.Fleet() as fleet:
        directory = f"file:{fleet.path('directory.json')}"
        code, out, err = fleet.run("load", "org/m", "--source", "peer", "--directory", directory, "--revision", "r" * 65536)
        assert code == 2 and "at most 255 bytes" in err, (code, err[:500])
        model = fleet.model(size="1M", shards_=1)
        for options in (["--revision", "r" * 65536], ["--name", "n" * 65536], ["--name", "a\nb"]):
            code, out, err = fleet.run("serve", model, "--quiet", "--directory", directory, *options)
            assert code in (1, 2) and len(err) < 5000, (options[0], code, err[:500])


def leftovers(fleet):
    """Whatever a process of heft could leave in the places that outlive it."""
    return {name for name in os.listdir("/dev/shm") if "heft" in name} | set(os.listdir(fleet.path("tmp")))


def the_killed_leave_nothing_behind():
    with f.Fleet() as fleet:
        os.makedirs(fleet.path("tmp"))
        fleet.env["TMPDIR"] = fleet.path("tmp")
        before = leftovers(fleet)
        model = fleet.model(size="16M")
        heftd = fleet.heftd()
        replica = fleet.serve(model, "one", heftd.address, "--lease", "1s")
        replica.line("serving as")
        name = replica.line("serving as").split("unix:")[1].split(",")[0]
        load = fleet.start("load", f.HEFT, "load", model, "--directory", heftd.address, "--quiet", "--stay")
        time.sleep(0.3)
        for p in (load, replica, heftd):
            p.kill()
        with open("/proc/net/unix") as sockets:
            assert name not in sockets.read()
        assert leftovers(fleet) <= before, leftovers(fleet) - before
        heftd = fleet.heftd()  # its store is whole
        f.until(lambda: not fleet.replicas(heftd.address), "the lease of the killed replica to end", 20)


TESTS = [frozen_candidates_delay_neither_the_start_nor_the_end, slow_replicas_are_waited_for_when_files_may_not_supply,
         an_incompatible_replica_that_answers_first_does_not_end_the_wait, a_deadline_bounds_connecting_and_the_directory,
         a_signal_ends_a_load_that_is_connecting, hostile_names_are_carried_but_never_obeyed,
         empty_models_and_empty_tensors_load_and_are_served, a_tensor_over_4_gib_arrives_whole,
         a_frozen_reader_does_not_keep_a_replica_from_ending, more_replicas_than_a_load_can_ask_are_told,
         a_name_that_would_be_cut_is_refused, the_killed_leave_nothing_behind]

if __name__ == "__main__":
    f.main(TESTS)
