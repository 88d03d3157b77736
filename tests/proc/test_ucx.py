#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The ucx transport through the command line: a model over it, what chooses it, and a replica that dies under it."""
import ctypes.util
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fleet as f  # noqa: E402

LACKS = None if ctypes.util.find_library("ucp") else "UCX (libucp.so.0) is not installed"


def test_a_model_comes_over_ucx_when_it_is_named():
    if LACKS:
        return LACKS
    with f.Fleet() as fleet:
        model = fleet.model(size="24M")
        expected = f.sha256_of_tensors(model)
        directory = f"file:{fleet.path('directory.json')}"
        server = fleet.serve(model, "by-ucx", directory, "--transports", "ucx,tcp,file,local", "--source", "file")
        server.line("serving as")
        peer = ["--directory", directory, "--source", "peer"]
        for tls in ("tcp", "tcp,cma,posix"):
            report = fleet.load(model, *peer, "--transports", "ucx", "--require", "ucx", env={"UCX_TLS": tls})
            assert report["sha256"] == expected
        # without being named it is not even opened, and with others beside it they are better on one host
        report = fleet.load(model, *peer)
        assert report["sha256"] == expected and "ucx" not in str([s.get("route") for s in report["sources"]]), report
        refused = fleet.load(model, *peer, "--require", "ucx", check=5)
        assert "name ucx in the list of transports" in str(refused), refused["error"]
        assert server.stop() == 0


def test_a_killed_replica_ends_a_load_over_ucx_soon():
    if LACKS:
        return LACKS
    with f.Fleet() as fleet:
        model = fleet.model(size="96M")
        directory = f"file:{fleet.path('directory.json')}"
        server = fleet.serve(model, "dies", directory, "--transports", "ucx,file", "--source", "file", env={"UCX_TLS": "tcp"})
        server.line("serving as")
        load = fleet.start("load", f.HEFT, "load", model, "--directory", directory, "--source", "peer", "--transports", "ucx",
                           "--quiet", "--json", env={"UCX_TLS": "tcp"})
        time.sleep(0.3)
        begin = time.monotonic()
        server.kill()
        load.wait()
        assert time.monotonic() - begin < 20, "the load did not notice the death"
        assert load.process.returncode in (0, 1), load.text()


if __name__ == "__main__":
    f.main([value for name, value in list(globals().items()) if name.startswith("test_")])
