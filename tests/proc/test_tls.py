#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""TLS between replicas and loads through the command line: a model over it, and each side that lacks it told so."""
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fleet as f  # noqa: E402


def openssl(*arguments):
    subprocess.run(["openssl", *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def authority(fleet, name):
    key, cert = fleet.path(f"{name}.key"), fleet.path(f"{name}.pem")
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-out", cert,
            "-subj", f"/CN={name}", "-days", "2")
    return cert, key


def options(fleet, signer, name, ca=None):
    """--tls-* for an agent whose certificate the signer made."""
    key, cert, request = fleet.path(f"{name}.key"), fleet.path(f"{name}.pem"), fleet.path(f"{name}.csr")
    openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-out", request,
            "-subj", f"/CN={name}")
    openssl("x509", "-req", "-in", request, "-CA", signer[0], "-CAkey", signer[1], "-CAcreateserial", "-out", cert, "-days",
            "2")
    return ["--tls-ca", (ca or signer)[0], "--tls-cert", cert, "--tls-key", key]


def test_a_model_comes_over_tls_and_who_lacks_it_is_told():
    if not shutil.which("openssl"):
        return "openssl is not installed"
    with f.Fleet() as fleet:
        model = fleet.model(size="8M")
        expected = f.sha256_of_tensors(model)
        ours, theirs = authority(fleet, "ours"), authority(fleet, "theirs")
        directory = f"file:{fleet.path('directory.json')}"
        server = fleet.serve(model, "with-tls", directory, "--listen", "127.0.0.1:0", "--source", "file",
                             *options(fleet, ours, "server"))
        server.line("serving as")
        mine = options(fleet, ours, "client")
        only_peer = ["--directory", directory, "--source", "peer"]
        report = fleet.load(model, *only_peer, "--require", "tcp", *mine)
        assert report["sha256"] == expected
        # by the environment as well
        env = {"HEFT_TLS_CA": mine[1], "HEFT_TLS_CERT": mine[3], "HEFT_TLS_KEY": mine[5]}
        assert fleet.load(model, *only_peer, env=env)["sha256"] == expected
        assert fleet.run("health", "--directory", directory, *mine, check=0)
        code, out, _ = fleet.run("health", "--directory", directory, check=1)
        assert "speaks TLS only" in out, out
        # files are the way out for who lacks TLS; the report says why the replica was no source
        plain = fleet.load(model, "--directory", directory)
        assert plain["sha256"] == expected
        assert "speaks TLS only" in str(plain["sources"]), plain["sources"]
        strange = fleet.load(model, "--directory", directory, *options(fleet, theirs, "stranger", ca=ours))
        assert strange["sha256"] == expected
        assert "does not trust this side's certificate" in str(strange["sources"]), strange["sources"]
        assert "refused a connection" in server.text() and "CN=stranger" in server.text(), server.text()
        assert server.stop() == 0


def test_a_replica_without_tls_is_named_to_a_load_with_it():
    if not shutil.which("openssl"):
        return "openssl is not installed"
    with f.Fleet() as fleet:
        model = fleet.model(size="4M", shards_=1)
        mine = options(fleet, authority(fleet, "ours"), "client")
        directory = f"file:{fleet.path('directory.json')}"
        server = fleet.serve(model, "plain", directory, "--listen", "127.0.0.1:0", "--source", "file")
        server.line("serving as")
        report = fleet.load(model, "--directory", directory, *mine)
        assert report["sha256"] == f.sha256_of_tensors(model)
        assert "the server does not speak TLS" in str(report["sources"]), report["sources"]
        assert "the client speaks TLS and this agent does not" in server.text(), server.text()
        assert server.stop() == 0


def test_wrong_files_are_named_before_anything_moves():
    with f.Fleet() as fleet:
        model = fleet.model(size="4M", shards_=1)
        report = fleet.load(model, "--tls-ca", "/nonexistent.pem", check=2)
        assert "tls_cert is missing" in report["error"]["text"], report["error"]
        report = fleet.load(model, "--tls-ca", "/no.pem", "--tls-cert", "/no.pem", "--tls-key", "/no.pem", check=2)
        assert "tls_ca /no.pem" in report["error"]["text"], report["error"]
        code, out, err = fleet.run("load", model, "--transports", "tpc", check=2)
        assert "no transport is named 'tpc'" in err, err


if __name__ == "__main__":
    f.main([value for name, value in list(globals().items()) if name.startswith("test_")])
