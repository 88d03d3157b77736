#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tensors as they come: examples/iterate.c, built as others build it, against models larger than its memory."""
import json
import os
import struct
import sys
import zlib

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fleet as f  # noqa: E402
import store_servers as stores  # noqa: E402
import test_examples as examples  # noqa: E402
import test_integrity as integrity  # noqa: E402


examples.FLAGS = [*examples.FLAGS, "-O2"]


def adler_of(model):
    found = {}
    for path in f.shards(model):
        header, start = f.read_header(path)
        with open(path, "rb") as file:
            for name, t in header.items():
                if name != "__metadata__":
                    a, b = t["data_offsets"]
                    file.seek(start + a)
                    found[name] = b - a, zlib.adler32(file.read(b - a))
    return found


def iterate(heft, program, *arguments, code=0, **more):
    """([(name, bytes, sum)], peak in bytes, stderr)."""
    done = heft.run(program, *arguments, **more)
    assert done.returncode == code, (done.returncode, done.stderr)
    lines = done.stdout.splitlines()
    if code:
        return lines, 0, done.stderr
    peak = int(lines[-1].split("peak ")[1].split()[0]) << 10
    return [(n, int(b), int(s, 16)) for n, b, s in (line.split() for line in lines[:-1])], peak, done.stderr


def built(fleet):
    heft = examples.Installed(fleet)
    program = fleet.path("iterate")
    heft.build(os.path.join(f.ROOT, "examples", "iterate.c"), program)
    return heft, program


def every_tensor_comes_once_and_right():
    if examples.plain_build():
        return examples.plain_build()
    with f.Fleet() as fleet:
        heft, program = built(fleet)
        for table, size in (("moe", "110M"), ("small", "24M"), ("gpt_oss", "1M")):
            model = fleet.model(table, table=table, size=size, shards_=3)
            expected = adler_of(model)
            got, peak, _ = iterate(heft, program, model, "32")
            assert len(got) == len(expected) and {n: (b, s) for n, b, s in got} == expected, table
            assert peak < 96 << 20, (table, peak)


def the_order_is_the_consumers():
    if examples.plain_build():
        return examples.plain_build()
    with f.Fleet() as fleet:
        heft, program = built(fleet)
        model = fleet.model(size="100M", shards_=3)
        expected = adler_of(model)
        names = sorted(expected, reverse=True)[::3]
        got, _, _ = iterate(heft, program, model, "32", *names)
        assert got == [(n, *expected[n]) for n in names]
        for words, error in [(("nowhere",), "nowhere is no tensor"), ((names[0], names[0]), "named twice")]:
            _, _, err = iterate(heft, program, model, "32", *words, code=1)
            assert error in err, err


def four_gigabytes_pass_through_thirty_two_megabytes():
    """Holes are as long as bytes; every tenth tensor begins with something."""
    if examples.plain_build():
        return examples.plain_build()
    with f.Fleet() as fleet:
        heft, program = built(fleet)
        os.makedirs(fleet.path("big"))
        size, count = 8 << 20, 512
        header = {f"layers.{i}.weight": {"dtype": "U8", "shape": [size], "data_offsets": [i * size, (i + 1) * size]}
                  for i in range(count)}
        text = json.dumps(header).encode()
        text += b" " * (-(len(text) + 8) % 4096)
        with open(fleet.path("big/model.safetensors"), "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for i in range(0, count, 10):
                file.seek(8 + len(text) + i * size)
                file.write(b"%d" % i)
            file.truncate(8 + len(text) + count * size)
        got, peak, _ = iterate(heft, program, fleet.path("big"), "32")
        zeros = zlib.adler32(bytes(size))
        sums = {n: s for n, _, s in got}
        for i in range(count):
            assert sums[f"layers.{i}.weight"] == (zeros if i % 10 else zlib.adler32((b"%d" % i).ljust(size, b"\0"))), i
        assert peak < 96 << 20, f"{peak >> 20} MiB"
        print(f"        4 GiB through 32 MiB: at most {peak >> 20} MiB resident")


def what_goes_wrong_is_told():
    if examples.plain_build():
        return examples.plain_build()
    with f.Fleet() as fleet:
        heft, program = built(fleet)
        large = fleet.model("large", table="large", size="40M", shards_=1)
        _, _, err = iterate(heft, program, large, "32", code=1)
        assert "TOO_LARGE" in err and "raise max_host_bytes" in err, err
        got, _, _ = iterate(heft, program, large, "128")
        assert {n: (b, s) for n, b, s in got} == adler_of(large)
        _, _, err = iterate(heft, program, fleet.path("nowhere"), "32", code=1)
        assert "NOT_FOUND" in err, err


def objects_that_pass_through_are_compared_with_their_checksum():
    if examples.plain_build():
        return examples.plain_build()
    if not stores.fake_gcs():
        return "fake-gcs-server is not installed"
    with f.Fleet() as fleet:
        heft, program = built(fleet)
        model = fleet.model("moe", table="moe", size="110M", shards_=1)
        path, = f.shards(model)
        with open(path, "rb") as file:
            data = file.read()
        flipper = integrity.Flipper(data, len(data) // 2)
        gcs = stores.FakeGcs(fleet, public=flipper.host)
        flipper.port = gcs.port
        gcs.upload(model, "m")
        for name, value in (("STORAGE_EMULATOR_HOST", f"http://{flipper.host}"), ("NO_GCE_CHECK", "true"), ("NO_PROXY", "127.0.0.1"),
                            ("XDG_CACHE_HOME", fleet.path("cache"))):
            os.environ[name] = value
        _, _, err = iterate(heft, program, "gs://models/m", "32", code=1)
        assert "DIGEST" in err and "crc32c" in err, err
        flipper.marker = b"\0" * 25 + b"never"
        got, _, _ = iterate(heft, program, "gs://models/m", "32")
        assert {n: (b, s) for n, b, s in got} == adler_of(model)
        assert len(os.listdir(fleet.path("cache/heft/digests"))) == 1


if __name__ == "__main__":
    f.main([every_tensor_comes_once_and_right, the_order_is_the_consumers, four_gigabytes_pass_through_thirty_two_megabytes,
            objects_that_pass_through_are_compared_with_their_checksum, what_goes_wrong_is_told])
