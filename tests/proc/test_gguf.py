#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GGUF models through the command line; the package `gguf` writes the files and says what is in them."""
import hashlib
import json
import os
import struct
import sys

import numpy as np
import gguf

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import fleet as f  # noqa: E402
import object_servers as o  # noqa: E402
from test_object import QUICK  # noqa: E402

T = gguf.GGMLQuantizationType
# Q8_1 is of computations alone; the package and ggml disagree about its size.
TYPES = [t for t in T if t in gguf.GGML_QUANT_SIZES and t != T.Q8_1]


def write(path, seed=1, types=TYPES, names="blk.{}.weight", alignment=None, tokens=2000):
    """A file with a tensor of each type, random bytes, and metadata of every kind."""
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    if alignment:
        writer.add_custom_alignment(alignment)
    writer.add_uint8("a.u8", 200)
    writer.add_int8("a.i8", -3)
    writer.add_int64("a.i64", -1 << 40)
    writer.add_float32("a.f32", 0.25)
    writer.add_float64("a.f64", 1e300)
    writer.add_bool("a.bool", True)
    writer.add_string("tokenizer.chat_template", "x" * 3000)
    writer.add_array("tokenizer.ggml.tokens", [f"token{i}" for i in range(tokens)])
    writer.add_array("tokenizer.ggml.scores", [float(i) for i in range(500)])
    for number, kind in enumerate(types):
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        rows, blocks = 3 + number % 5, 1 + number % 3
        data = rng.integers(0, 256, (rows, blocks * size), dtype=np.uint8)
        writer.add_tensor(names.format(number), data, raw_shape=data.shape, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def truth(*paths):
    """{name: (dtype, shape row-major, sha256)} by the package's own reader."""
    found = {}
    for path in paths:
        for tensor in gguf.GGUFReader(path).tensors:
            found[tensor.name] = (tensor.tensor_type.name, [int(n) for n in reversed(tensor.shape)],
                                  hashlib.sha256(tensor.data.tobytes()).hexdigest())
    return found


def check_load(fleet, model, *paths, more=()):
    listing = fleet.path("digests")
    code, out, err = fleet.run("load", model, "--sha256", listing, "--json", *more)
    assert code == 0, (out, err)
    want = {name: digest for name, (_, _, digest) in truth(*paths).items()}
    assert f.read_sha256(listing) == want
    return json.loads(out)


def every_type_has_the_place_shape_and_bytes_that_the_package_says():
    with f.Fleet() as fleet:
        for alignment in (None, 4096):
            path = write(fleet.path(f"m{alignment}.gguf"), alignment=alignment)
            code, out, err = fleet.run("inspect", path, "--tensors", "--json")
            assert code == 0, err
            assert "not known" not in err and "ignored" not in err, err
            answer, want = json.loads(out), truth(path)
            assert {t["name"]: (t["dtype"], t["shape"]) for t in answer["tensors"]} == {
                name: (dtype, shape) for name, (dtype, shape, _) in want.items()}
            with open(path, "rb") as file:
                for tensor in answer["tensors"]:
                    file.seek(tensor["offset"])
                    assert hashlib.sha256(file.read(tensor["bytes"])).hexdigest() == want[tensor["name"]][2], tensor
            check_load(fleet, path, path)


def a_split_model_and_a_folder_are_models():
    with f.Fleet() as fleet:
        os.mkdir(fleet.path("split"))
        paths = [write(fleet.path(f"split/m-0000{n}-of-00002.gguf"), seed=n, names=f"part{n}.{{}}") for n in (1, 2)]
        check_load(fleet, fleet.path("split"), *paths)


def a_peer_serves_it():
    with f.Fleet() as fleet:
        path = write(fleet.path("m.gguf"))
        directory = "file:" + fleet.path("replicas.json")
        server = fleet.start("serve", f.HEFT, "serve", path, "--directory", directory)
        server.line("serving")
        report = check_load(fleet, path, path, more=("--directory", directory, "--source", "peer"))
        assert [s["kind"] for s in report["sources"] if s["state"] == "used"] == ["peer"], report


def load_parts(fleet, model, env):
    """Digests of the whole model and of rank 1 of 2, which keeps half of what may be cut and all of what may not."""
    parts = []
    for part in ((), ("--rank", "1", "--ranks", "2", "--split", "row")):
        listing = fleet.path("digests")
        code, out, err = fleet.run("load", model, "--sha256", listing, "--json", *part, env=env)
        assert code == 0, (out, err)
        parts.append((f.read_sha256(listing), json.loads(out)))
    return parts


def it_is_loaded_from_a_web_server_and_from_a_bucket():
    with f.Fleet() as fleet:
        fleet.env.update(QUICK)
        os.mkdir(fleet.path("m"))
        # the header of the first is longer than what is read of it at first
        paths = [write(fleet.path(f"m/m-0000{n}-of-00002.gguf"), seed=n, names=f"part{n}.{{}}", tokens=60000 if n == 1 else 10)
                 for n in (1, 2)]
        here = load_parts(fleet, fleet.path("m"), {})
        assert here[0][0] == {name: digest for name, (_, _, digest) in truth(*paths).items()}
        assert here[1][0] != here[0][0] and set(here[1][0]) == set(here[0][0])
        with o.Scripted(o.files_of(fleet.path("m"), "/b/m")) as server:
            places = [("s3://b/m", server.env())]
            if o.has_seaweed():
                weed = o.Seaweed(fleet)
                weed.upload(fleet.path("m"), "m")
                places.append(("s3://models/m", weed.env))
            for url, env in places:
                there = load_parts(fleet, url, env)
                assert [digests for digests, _ in there] == [digests for digests, _ in here], url
                assert {s["kind"] for s in there[0][1]["sources"] if s["state"] == "used"} == {"object"}
            code, out, err = fleet.run("inspect", "s3://b/m", "--tensors", "--json", env=server.env())
            assert code == 0 and {t["name"]: (t["dtype"], t["shape"]) for t in json.loads(out)["tensors"]} == {
                name: (dtype, shape) for name, (dtype, shape, _) in truth(*paths).items()}, err
            # a web server lists nothing: each file by its own name
            web = [server.url] + ([o.Nginx(fleet, fleet.dir).url] if o.has_nginx() else [])
            for base, folder in zip(web, ("/b/m/", "/m/")):
                for path in paths:
                    there, alone = (load_parts(fleet, place, {}) for place in (base + folder + os.path.basename(path), path))
                    assert [digests for digests, _ in there] == [digests for digests, _ in alone], base
            # of each header no byte is asked for twice
            server.requests.clear()
            code, _, err = fleet.run("inspect", server.url + "/b/m/" + os.path.basename(paths[0]))
            asked = sorted((r.first, r.last) for r in server.requests)
            assert code == 0 and len(asked) > 1 and asked[0] == (0, 262143), (asked, err)
            assert all(before[1] + 1 == after[0] for before, after in zip(asked, asked[1:])), asked


def a_damaged_object_is_refused_as_a_file_is():
    with f.Fleet() as fleet:
        fleet.env.update(QUICK)
        whole = open(write(fleet.path("m.gguf"), types=[T.F32, T.Q4_K, T.F16], tokens=60000), "rb").read()
        for size, code in ((5, "HEADER_LENGTH"), (1000, "HEADER_LENGTH"), (300000, "HEADER_LENGTH"), (len(whole) - 100, "DATA_TRUNCATED")):
            with o.Scripted({"/b/m/m.gguf": whole[:size]}) as server:
                for url, env in ((server.url + "/b/m/m.gguf", {}), ("s3://b/m", server.env())):
                    exit_code, out, err = fleet.run("load", url, "--json", env=env)
                    error = json.loads(out)["error"]
                    assert exit_code == 3 and error["code"] == code and "m.gguf" in error["text"], (size, error, err)
        # one that becomes shorter between two reads of its header
        with o.Scripted({"/b/m/m.gguf": whole}, lambda r: o.Fault(status=412) if r.first else None) as server:
            exit_code, out, err = fleet.run("load", server.url + "/b/m/m.gguf", "--json")
            assert exit_code == 1 and json.loads(out)["error"]["code"] == "CHANGED", (out, err)


def damaged_files_are_refused_by_name_and_reason():
    with f.Fleet() as fleet:
        path = write(fleet.path("m.gguf"), types=[T.F32, T.Q4_K, T.F16])
        whole = open(path, "rb").read()
        start = whole.index(b"blk.0.weight") - 8

        def refused(data, code, *words):
            bad = fleet.path("bad.gguf")
            with open(bad, "wb") as file:
                file.write(data)
            exit_code, out, err = fleet.run("inspect", bad, "--json")
            error = json.loads(out)["error"]
            assert exit_code in (2, 3) and error["code"] == code, (exit_code, error, err)
            for word in ("bad.gguf", *words):
                assert word in error["text"], (word, error)

        refused(whole[:-100], "DATA_TRUNCATED", "blk.", "incomplete download?")
        for cut in (5, 23, 30, start + 9):
            refused(whole[:cut], "HEADER_LENGTH")
        refused(whole[:4] + struct.pack("<I", 1) + whole[8:], "UNSUPPORTED", "version 1")
        refused(whole[:4] + struct.pack(">I", 3) + whole[8:], "UNSUPPORTED", "byte order")
        # type, then offset, of the first tensor: name, two dimensions of 64 bits after their number
        at = start + 8 + len("blk.0.weight") + 4 + 16
        refused(whole[:at] + struct.pack("<I", 999) + whole[at + 4:], "DTYPE", "blk.0.weight", "999")
        refused(whole[:at + 4] + struct.pack("<Q", 7) + whole[at + 12:], "MISALIGNED", "blk.0.weight")
        refused(whole[:at + 4] + struct.pack("<Q", 1 << 50) + whole[at + 12:], "DATA_TRUNCATED", "blk.0.weight")
        refused(whole[:at - 16] + struct.pack("<QQ", 1 << 62, 1 << 62) + whole[at:], "SHAPE_OVERFLOW", "blk.0.weight")
        refused(whole[:start] + struct.pack("<Q", 1 << 60) + whole[start + 8:], "HEADER_LENGTH")
        twice = whole.replace(b"blk.2.weight", b"blk.0.weight")
        refused(twice, "DUPLICATE_TENSOR", "blk.0.weight")
        refused(whole[:8] + struct.pack("<Q", 1 << 40) + whole[16:], "HEADER_FIELD")


if __name__ == "__main__":
    f.main([every_type_has_the_place_shape_and_bytes_that_the_package_says, a_split_model_and_a_folder_are_models,
            a_peer_serves_it, it_is_loaded_from_a_web_server_and_from_a_bucket, a_damaged_object_is_refused_as_a_file_is, damaged_files_are_refused_by_name_and_reason])
