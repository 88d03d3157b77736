#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads that read a model from storage once between them and exchange the rest through the directory, without memory or a
folder in common: any order, one killed, one late, one that serves wrong bytes, a directory that is restarted."""
import hashlib
import json
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fleet as f  # noqa: E402
import slicer  # noqa: E402

LOADS = 4
CHUNK = 1 << 20


class Loads:
    """Loads of a model over TCP alone, each with its report and digests."""

    def __init__(self, fleet, model, *more, loads=LOADS, limit="90s", directory=None):
        self.fleet, self.model, self.more, self.limit, self.loads, self.count = fleet, model, more, limit, {}, loads
        self.heftd = None if directory else fleet.heftd()
        self.directory = directory or self.heftd.address

    def start(self, name, *more):
        paths = self.fleet.path(f"sha.{name}.{len(self.loads)}"), self.fleet.path(f"report.{name}.{len(self.loads)}")
        p = self.fleet.start(f"load-{name}", f.HEFT, "load", self.model, "--fleet-loads", str(self.count), "--directory",
                             self.directory, "--name", f"load-{name}", "--listen", "127.0.0.1:0", "--transports", "tcp,file,object",
                             "--deadline", self.limit, "--chunk", "1M", "--quiet", "--sha256", paths[0], "--report", paths[1],
                             *self.more, *more)
        self.loads[name] = p, *paths
        return p

    def end(self, name):
        """The report, after the load ended right; storage: bytes that it read from files or objects."""
        p, sha, report = self.loads[name]
        assert p.wait(120) == 0, p.text()
        with open(report) as file:
            report = json.load(file)
        report["sha256"] = f.read_sha256(sha)
        report["storage"] = sum(s["bytes"] for s in report["sources"] if s["kind"] in ("file", "object"))
        report["peers"] = sum(s["bytes"] for s in report["sources"] if s["kind"] == "peer")
        return report


def model_bytes(model):
    size = 0
    for path in f.shards(model):
        header, _ = f.read_header(path)
        size += sum(t["data_offsets"][1] - t["data_offsets"][0] for n, t in header.items() if n != "__metadata__")
    return size


def each_byte_is_read_once():
    with f.Fleet() as fleet:
        model = fleet.model(size="64M", shards_=3)
        loads, size, digests = Loads(fleet, model), model_bytes(model), f.sha256_of_tensors(model)
        for name in random.Random(1).sample(range(LOADS), LOADS):
            loads.start(name)
        reports = [loads.end(name) for name in range(LOADS)]
        for report in reports:
            assert report["sha256"] == digests
            assert report["storage"] + report["peers"] == size, report["sources"]
            assert report["storage"] > 0, report["sources"]
        read = sum(report["storage"] for report in reports)
        print([report["storage"]>>20 for report in reports], size>>20, [round(r["seconds"],2) for r in reports])
        assert size <= read <= size + 4 * CHUNK, (read, size)


if __name__ == "__main__":
    f.main([each_byte_is_read_once])
