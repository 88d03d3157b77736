#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The main job under misfortune: real heftd, replicas and loads; each killed, frozen, restarted, replaced."""
import json
import os
import random
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fleet as f  # noqa: E402

MOMENTS = int(os.environ.get("HEFT_TEST_MOMENTS", "10"))
SIZE = os.environ.get("HEFT_TEST_SIZE", "96M")


def three_ways_give_the_same_bytes():
    with f.Fleet() as fleet:
        model = fleet.model(size="32M")
        expected = f.sha256_of_tensors(model)
        heftd = fleet.heftd()
        fleet.serve(model, "one", heftd.address).line("serving as")
        from_disk = fleet.load(model, "--source", "file")
        from_peer = fleet.load(model, "--source", "peer", "--directory", heftd.address)
        mixed = fleet.load(model, "--source", "file+peer", "--directory", heftd.address, "--chunk", "256K")
        over_tcp = fleet.load(model, "--source", "peer", "--directory", heftd.address, "--require", "tcp")
        for report in (from_disk, from_peer, mixed, over_tcp):
            assert report["sha256"] == expected
            assert report["bytes"] == report["bytes_total"] == sum(s["bytes"] for s in report["sources"])
        assert from_peer["verified"]["blocks"] == from_peer["verified"]["blocks_total"] > 0
        assert from_peer["verified"]["against"] == "one"
        assert [r["transport"] for s in over_tcp["sources"] for r in s["routes"]] == ["tcp"]


def a_receiver_becomes_a_source():
    with f.Fleet() as fleet:
        model = fleet.model(size="16M")
        heftd = fleet.heftd()
        one = fleet.serve(model, "one", heftd.address)
        one.line("serving as")
        fleet.serve(model, "two", heftd.address, "--source", "peer").line("serving as")
        assert one.stop() == 0
        report = fleet.load(model, "--source", "peer", "--directory", heftd.address)
        assert report["sha256"] == f.sha256_of_tensors(model)
        assert [s["name"] for s in report["sources"] if s["state"] == "used"] == ["two"]


def ranks_together_are_the_model():
    """Row and column split against an independent slicer; bf16 tensors of the generated table are even in both."""
    import numpy
    with f.Fleet() as fleet:
        model = fleet.model(size="8M", shards_=2)
        heftd = fleet.heftd()
        fleet.serve(model, "one", heftd.address).line("serving as")
        import hashlib
        for split, axis in (("row", 0), ("column", -1)):
            for rank in range(4):
                report = fleet.load(model, "--ranks", "4", "--rank", str(rank), "--split", split, "--source",
                                    "file" if rank % 2 else "peer", "--directory", heftd.address)
                expected = {}
                for path in f.shards(model):
                    header, start = f.read_header(path)
                    with open(path, "rb") as file:
                        data = file.read()[start:]
                    for name, t in header.items():
                        if name == "__metadata__":
                            continue
                        a = numpy.frombuffer(data[slice(*t["data_offsets"])], numpy.uint16).reshape(t["shape"])
                        if a.ndim >= 2:
                            n = a.shape[axis]
                            cut = slice(n * rank // 4, n * (rank + 1) // 4)
                            a = a[cut] if axis == 0 else a[..., cut]
                        expected[name] = hashlib.sha256(numpy.ascontiguousarray(a).tobytes()).hexdigest()
                assert report["sha256"] == expected, (split, rank)


def start_load(fleet, model, directory, number, *more):
    sha, report = fleet.path(f"sha.{number}"), fleet.path(f"report.{number}")
    p = fleet.start(f"load-{number}", f.HEFT, "load", model, "--directory", directory, "--quiet", "--sha256", sha, "--report",
                    report, "--deadline", "40s", "--stall", "2s", "--chunk", "256K", *more)
    return p, sha


def misfortune(action, sources, may_fail, seed):
    """`action` on each source in turn at random moments of a load: it ends right, or with an error that names a cause."""
    rng = random.Random(seed)
    with f.Fleet() as fleet:
        model = fleet.model(size=SIZE, table="dense", shards_=2)
        expected = f.sha256_of_tensors(model)
        heftd = fleet.heftd()
        ended_right = 0
        for moment in range(MOMENTS):
            victim = fleet.serve(model, f"victim-{moment}", heftd.address, "--lease", "2s")
            victim.line("serving as")
            if "peer2" in sources:
                other = fleet.serve(model, f"other-{moment}", heftd.address, "--lease", "2s")
                other.line("serving as")
            p, sha = start_load(fleet, model, heftd.address, moment, "--source", "file+peer" if "file" in sources else "peer")
            time.sleep(rng.uniform(0, 0.15))
            getattr(victim, action)()
            begin = time.monotonic()
            code = p.wait(60)
            assert time.monotonic() - begin < 45, "later than its deadline"
            if code == 0:
                assert f.read_sha256(sha) == expected, f"wrong bytes after {action} at moment {moment}"
                ended_right += 1
            else:
                assert may_fail and code in (1, 4, 5, 6), (code, p.text())
                assert "heft: load:" in p.text(), p.text()
            victim.thaw()
            victim.kill()
            if "peer2" in sources:
                other.kill()
        assert ended_right == MOMENTS or may_fail
        return None


def a_killed_source_is_replaced_by_the_files():
    return misfortune("kill", ("peer", "file"), False, 1)


def a_killed_source_is_replaced_by_another():
    return misfortune("kill", ("peer", "peer2"), False, 2)


def a_frozen_source_is_replaced_by_the_files():
    return misfortune("freeze", ("peer", "file"), False, 3)


def the_only_source_killed_is_an_error_that_names_it():
    return misfortune("kill", ("peer",), True, 4)


def killed_and_frozen_loads_leave_nothing_and_harm_nobody():
    """Twenty readers killed at random bytes, some frozen first; the twenty-first is served at once; nothing grows."""
    rng = random.Random(5)
    with f.Fleet() as fleet:
        model = fleet.model(size=SIZE, table="dense", shards_=1)
        expected = f.sha256_of_tensors(model)
        heftd = fleet.heftd()
        source = fleet.serve(model, "source", heftd.address)
        source.line("serving as")
        fleet.load(model, "--source", "peer", "--directory", heftd.address)

        def footprint():
            pid = source.process.pid
            with open(f"/proc/{pid}/status") as status:
                threads = next(int(line.split()[1]) for line in status if line.startswith("Threads"))
            return len(os.listdir(f"/proc/{pid}/fd")), threads
        before = footprint()
        for number in range(20):
            p, _ = start_load(fleet, model, heftd.address, number, "--source", "peer", "--require", ("local", "tcp")[number % 2])
            time.sleep(rng.uniform(0, 0.08))
            if number % 3 == 0:
                p.freeze()
                time.sleep(0.02)
            p.kill()
        begin = time.monotonic()
        report = fleet.load(model, "--source", "peer", "--directory", heftd.address, "--require", "tcp")
        assert report["sha256"] == expected
        assert time.monotonic() - begin < 20
        f.until(lambda: footprint() == before, f"descriptors and threads of the source back to {before}: {footprint()}", 30)


def a_restarted_heftd_is_told_again_and_loads_never_notice():
    with f.Fleet() as fleet:
        model = fleet.model(size=SIZE, table="dense", shards_=1)
        heftd = fleet.heftd("memory:")
        port = int(heftd.address.rsplit(":", 1)[1])
        names = [f"replica-{i}" for i in range(3)]
        for name in names:
            fleet.serve(model, name, heftd.address, "--lease", "3s").line("serving as")
        f.until(lambda: len(fleet.replicas(heftd.address)) == 3, "three replicas")
        p, sha = start_load(fleet, model, heftd.address, 0, "--source", "peer", "--require", "tcp")
        heftd.kill()
        heftd = fleet.heftd("memory:", port)  # empty: it knows nothing
        begin = time.monotonic()
        f.until(lambda: sorted(r["name"] for r in fleet.replicas(heftd.address)) == names, "the replicas to be back", 20)
        # Two renewals of a third of the lease each, and the time that starting the listing commands takes here.
        assert time.monotonic() - begin < 6, "later than two renewals"
        # A load that asks while heftd is down, or has not been told again, finds nobody: that is no wrong answer.
        assert p.wait(60) == 0 or "UNAVAILABLE" in p.text() or "no replica" in p.text(), p.text()
        if p.process.returncode == 0:
            assert f.read_sha256(sha) == f.sha256_of_tensors(model)


def heftd_may_die_or_freeze_at_any_moment():
    """Twenty loads, heftd killed or frozen at a random moment of each: the data plane does not need it."""
    rng = random.Random(6)
    with f.Fleet() as fleet:
        model = fleet.model(size="32M", table="dense", shards_=1)
        expected = f.sha256_of_tensors(model)
        heftd = fleet.heftd("memory:")
        port = int(heftd.address.rsplit(":", 1)[1])
        fleet.serve(model, "source", heftd.address, "--lease", "2s").line("serving as")
        for number in range(2 * MOMENTS):
            f.until(lambda: fleet.replicas(heftd.address), "the replica in the directory")
            p, sha = start_load(fleet, model, heftd.address, number, "--source", "file+peer", "--timeout", "2s")
            time.sleep(rng.uniform(0, 0.06))
            if number % 2:
                heftd.freeze()
            else:
                heftd.kill()
            assert p.wait(60) == 0, p.text()
            assert f.read_sha256(sha) == expected
            if number % 2:
                heftd.thaw()
            else:
                heftd = fleet.heftd("memory:", port)


def health_tells_who_does_not_answer():
    with f.Fleet() as fleet:
        model = fleet.model(size="2M", shards_=1)
        heftd = fleet.heftd()
        one = fleet.serve(model, "one", heftd.address, "--lease", "30s")
        two = fleet.serve(model, "two", heftd.address, "--lease", "30s")
        one.line("serving as"), two.line("serving as")
        code, out, _ = fleet.run("health", "--directory", heftd.address)
        assert code == 0 and out.count("answers") >= 3, out
        two.kill()
        code, out, _ = fleet.run("health", "--directory", heftd.address, "--json")
        answer = json.loads(out)
        assert code == 1 and not answer["healthy"]
        assert {r["name"]: r["status"] for r in answer["replicas"]} == {"one": "OK", "two": "UNAVAILABLE"}, answer
        assert "token" not in out.lower()
        code, out, _ = fleet.run("replicas", "--directory", heftd.address, "--json")
        assert "token" not in out.lower() and len(json.loads(out)) == 2


def a_frozen_heftd_does_not_stop_a_load_from_files():
    with f.Fleet() as fleet:
        model = fleet.model(size="8M")
        heftd = fleet.heftd()
        heftd.freeze()
        begin = time.monotonic()
        report = fleet.load(model, "--directory", heftd.address, "--timeout", "1s")
        assert report["sha256"] == f.sha256_of_tensors(model)
        assert time.monotonic() - begin < 15
        assert any(s["name"] == "directory" and s["state"] == "refused" for s in report["sources"])


def a_reused_port_with_another_generation_is_refused():
    with f.Fleet() as fleet:
        model = fleet.model(size="8M")
        directory = f"file:{fleet.path('directory.json')}"
        port = f.free_port()
        first = fleet.serve(model, "first", directory, "--listen", f"127.0.0.1:{port}", "--lease", "60s")
        first.line("serving as")
        first.kill()
        second = fleet.serve(model, "second", f"file:{fleet.path('other.json')}", "--listen", f"127.0.0.1:{port}")
        second.line("serving as")
        code, out, err = fleet.run("load", model, "--source", "peer", "--directory", directory, "--quiet")
        assert code == 5, (code, err)
        assert "STALE" in err and "generation" in err, err
        report = fleet.load(model, "--source", "file+peer", "--directory", directory)
        peer = next(s for s in report["sources"] if s["kind"] == "peer")
        assert peer["state"] == "refused" and peer["reason"]["code"] == "STALE" and peer["bytes"] == 0
        assert report["sha256"] == f.sha256_of_tensors(model)


def itself_is_never_a_source():
    with f.Fleet() as fleet:
        model = fleet.model(size="8M")
        directory = f"file:{fleet.path('directory.json')}"
        p = fleet.serve(model, "same", directory, "--lease", "60s")
        p.line("serving as")
        p.kill()  # its record is still there when it comes back
        again = fleet.serve(model, "same", directory, "--source", "peer")
        assert again.wait(30) == 4, again.text()
        assert "no replica" in again.text()


def edit_header(path, change):
    """Rewrites a shard's header in place (same length: padded with spaces)."""
    header, start = f.read_header(path)
    change(header)
    text = json.dumps(header, separators=(",", ":")).encode()
    assert len(text) <= start - 8
    with open(path, "r+b") as file:
        file.seek(8)
        file.write(text.ljust(start - 8))


def tables_that_differ_are_refused_with_a_diff():
    def rename(header):
        header["layers.0.weighX"] = header.pop("layers.0.weight")

    def reshape(header):
        a, b = header["layers.0.weight"]["shape"]
        header["layers.0.weight"]["shape"] = [b, a]

    def retype(header):
        header["layers.0.weight"]["dtype"] = "F16"

    with f.Fleet() as fleet:
        model = fleet.model("m", table="small", size="64K", shards_=1)
        directory = f"file:{fleet.path('directory.json')}"
        fleet.serve(model, "one", directory, "--revision", "r1").line("serving as")
        for change, word in ((rename, "layers.0.weigh"), (reshape, "shape"), (retype, "dtype")):
            other = fleet.path(change.__name__) + "/m"  # the same name: the same model to a directory
            os.makedirs(os.path.dirname(other))
            subprocess.run(["cp", "-r", model, other], check=True)
            edit_header(f.shards(other)[0], change)
            code, out, err = fleet.run("load", other, "--source", "peer", "--directory", directory, "--revision", "r1")
            assert code == 5, (change.__name__, code, err)
            assert "INCOMPATIBLE" in err and word in err and "layers.0" in err, err
            report = fleet.load(other, "--directory", directory, "--revision", "r1")
            peer = next(s for s in report["sources"] if s["kind"] == "peer")
            assert peer["bytes"] == 0 and peer["state"] == "refused", peer


def other_bytes_under_the_same_identity_never_mix():
    """A folder that claims a replica's identity but holds other bytes: its chunks fail against the replica's digests."""
    with f.Fleet() as fleet:
        model = fleet.model("m", table="dense", size="16M", shards_=1)
        directory = f"file:{fleet.path('directory.json')}"
        fleet.serve(model, "one", directory, "--revision", "r1").line("serving as")
        other = fleet.path("other") + "/m"
        os.makedirs(os.path.dirname(other))
        subprocess.run(["cp", "-r", model, other], check=True)
        path = f.shards(other)[0]
        with open(path, "r+b") as file:
            file.seek(os.path.getsize(path) - 1)
            last = file.read(1)[0]
            file.seek(os.path.getsize(path) - 1)
            file.write(bytes([last ^ 1]))
        report = fleet.load(other, "--directory", directory, "--revision", "r1", "--chunk", "256K")
        assert report["sha256"] == f.sha256_of_tensors(model)


TESTS = [three_ways_give_the_same_bytes, a_receiver_becomes_a_source, ranks_together_are_the_model,
         a_killed_source_is_replaced_by_the_files, a_killed_source_is_replaced_by_another,
         a_frozen_source_is_replaced_by_the_files, the_only_source_killed_is_an_error_that_names_it,
         killed_and_frozen_loads_leave_nothing_and_harm_nobody, a_restarted_heftd_is_told_again_and_loads_never_notice,
         heftd_may_die_or_freeze_at_any_moment, health_tells_who_does_not_answer,
         a_frozen_heftd_does_not_stop_a_load_from_files, a_reused_port_with_another_generation_is_refused,
         itself_is_never_a_source, tables_that_differ_are_refused_with_a_diff,
         other_bytes_under_the_same_identity_never_mix]

if __name__ == "__main__":
    f.main(TESTS)
