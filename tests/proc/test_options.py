#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every option of heft and heftd is used by a test, an unknown one is an error that names the nearest, wherever it comes
from; and what some options do that no other story needs."""
import json
import os
import re
import shutil
import socket
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fleet as f  # noqa: E402
from test_etcd import Etcd, MISSING  # noqa: E402
from test_misuse import refused  # noqa: E402
from test_tls import authority, openssl  # noqa: E402

TESTS_ROOT = os.path.join(f.ROOT, "tests")


def help_of(*command):
    return subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout


def all_options():
    """{option: the programs' commands that have it}, as the programs themselves tell."""
    commands = [("heft", name) for name in re.findall(r"^  ([a-z]+) ", help_of(f.HEFT), re.M)] + [("heftd",)]
    found = {}
    for command in commands:
        program = {"heft": f.HEFT, "heftd": f.HEFTD}[command[0]]
        for option in re.findall(r"^  --([a-z0-9-]+)", help_of(program, *command[1:]), re.M):
            found.setdefault(option, []).append(" ".join(command))
    return found


def every_option_is_used_by_a_test():
    texts = []
    for folder, _, names in os.walk(TESTS_ROOT):
        for name in names:
            if name.endswith((".py", ".c", ".sh")):
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    texts.append(file.read())
    options = all_options()
    assert len(options) > 80, sorted(options)
    unused = []
    for option, commands in sorted(options.items()):
        names = rf"--{option}(?![a-z0-9-])|HEFTD?_{option.upper().replace('-', '_')}(?![A-Z0-9_])"
        if not any(re.search(names, text) for text in texts):
            unused.append(f"--{option} of {', '.join(commands)}")
    assert not unused, "no test uses " + "; ".join(unused)


def unknown_options_name_the_nearest_wherever_they_come_from():
    with f.Fleet() as fleet:
        model = fleet.model(size="1M", shards_=1)
        config = fleet.path("heft.conf")
        with open(config, "w", encoding="utf-8") as file:
            file.write("deadline = 9s\nmax-host-memry = 64M\n")
        refused(fleet, 2, "did you mean --max-host-memory", "load", model, "--max-host-memry", "64M")
        refused(fleet, 2, "did you mean max-host-memory", "load", model, "--config", config)
        err = refused(fleet, 2, "did you mean HEFT_MAX_HOST_MEMORY", "load", model, env={"HEFT_MAX_HOST_MEMRY": "64M"})
        assert "HEFT_MAX_HOST_MEMRY" in err, err
        fleet.run("load", model, env={"HEFT_OF_ANOTHER_PROGRAM": "64M"}, check=0)
        refused(fleet, 2, "--help", "load", model, "--qqqqqqqqqqqqqq", "1")  # nothing is near
        config = fleet.path("heftd.conf")
        with open(config, "w", encoding="utf-8") as file:
            file.write("max-recrds = 5\n")
        for arguments, env, word in [(["--max-recrds", "5"], {}, "did you mean --max-records"),
                                     ([], {"HEFTD_MAX_RECRDS": "5"}, "did you mean HEFTD_MAX_RECORDS"),
                                     (["--config", config], {}, "did you mean max-records")]:
            done = subprocess.run([f.HEFTD, "--listen", "127.0.0.1:0", "--http", "off", "--store", "memory:", *arguments],
                                  capture_output=True, text=True, env={**os.environ, **env}, timeout=30)
            assert done.returncode == 2 and word in done.stderr, (arguments, env, done.stderr)


def what_is_wrong_with_a_model_is_let_pass_when_asked():
    with f.Fleet() as fleet:
        model = fleet.model(table="small", size="4M", shards_=3)
        shard = f.shards(model)[1]
        fleet.run("inspect", model, check=0)
        # a header larger than the limit
        err = refused(fleet, 3, "header", "inspect", model, "--header-limit", "200")
        assert "200" in err, err
        fleet.run("inspect", model, "--header-limit", "100M", check=0)
        # bytes behind the last tensor
        with open(shard, "ab") as file:
            file.write(b"trailing")
        refused(fleet, 3, os.path.basename(shard), "inspect", model)
        refused(fleet, 3, os.path.basename(shard), "load", model)
        code, out, err = fleet.run("inspect", model, "--lenient")
        assert code == 0 and "8 bytes after the last tensor are ignored" in err, (code, out, err)
        report = fleet.load(model, "--lenient")
        assert report["sha256"] == f.sha256_of_tensors(model)
        os.truncate(shard, os.path.getsize(shard) - len("trailing"))
        # an index that can't be read, or that counts more than is there
        index = os.path.join(model, "model.safetensors.index.json")
        with open(index, encoding="utf-8") as file:
            good = file.read()
        with open(index, "w", encoding="utf-8") as file:
            file.write(good[:len(good) // 2])
        refused(fleet, 3, "index.json", "inspect", model)
        fleet.run("inspect", model, "--ignore-index", check=0)
        assert fleet.load(model, "--ignore-index")["sha256"] == report["sha256"]
        with open(index, "w", encoding="utf-8") as file:
            file.write(good)
        os.remove(shard)
        refused(fleet, 3, "lack", "inspect", model, "--ignore-index")


def leases_that_expired_are_listed_when_asked():
    with f.Fleet() as fleet:
        model = fleet.model(size="2M", shards_=1)
        heftd = fleet.heftd("memory:")
        gone = fleet.serve(model, "gone", heftd.address, "--lease", "1s")
        gone.line("serving as")
        gone.kill()
        f.until(lambda: fleet.replicas(heftd.address) == [], "the end of the lease", 20)
        code, out, err = fleet.run("replicas", "--directory", heftd.address, "--all", "--json")
        assert code == 0 and [r["name"] for r in json.loads(out)] == ["gone"], (code, out, err)


def a_directory_takes_no_more_records_than_its_limit():
    with f.Fleet() as fleet:
        model = fleet.model(size="2M", shards_=1)
        full = fleet.heftd("memory:", 0, "--max-records", "1")
        fleet.serve(model, "first", full.address).line("serving as")
        assert "max-records" in fleet.serve(model, "second", full.address).line("max-records")
        assert [r["name"] for r in fleet.replicas(full.address)] == ["first"]


def own_address():
    """An address of this machine that is not loopback; None: there is none."""
    for name in socket.if_nameindex():
        out = subprocess.run(["ip", "-4", "-o", "addr", "show", name[1]], capture_output=True, text=True, check=False).stdout
        found = re.search(r"inet (\d+\.\d+\.\d+\.\d+)/", out)
        if found and not found.group(1).startswith("127."):
            return found.group(1)
    return None


def tokens_go_over_a_plain_connection_only_when_allowed():
    address = own_address() if shutil.which("ip") else None
    if not address:
        return "this machine has no address but loopback"
    with f.Fleet() as fleet:
        model = fleet.model(size="2M", shards_=1)
        port = f.free_port()
        fleet.start("heftd", f.HEFTD, "--listen", f"{address}:{port}", "--http", "off", "--store", "memory:").line("serves")
        line = fleet.serve(model, "one", f"{address}:{port}").line("--allow-plain-token")
        assert "plain" in line, line
        fleet.serve(model, "two", f"{address}:{port}", "--allow-plain-token").line("serving as")
        return None


def an_etcd_that_asks_for_a_certificate_is_shown_one():
    if MISSING:
        return MISSING
    if not shutil.which("openssl"):
        return "openssl is not installed"
    with f.Fleet() as fleet:
        ca, ca_key = authority(fleet, "ca")
        made = {}
        for name in ("server", "client"):
            made[name] = key, cert = fleet.path(f"{name}.key"), fleet.path(f"{name}.pem")
            request, extra = fleet.path(f"{name}.csr"), fleet.path(f"{name}.ext")
            with open(extra, "w", encoding="utf-8") as file:
                file.write("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
            openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-out",
                    request, "-subj", f"/CN={name}")
            openssl("x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-out", cert, "-days", "2",
                    "-extfile", extra)
        port, peer = f.free_port(), f.free_port()
        url = f"https://127.0.0.1:{port}"
        fleet.start("etcd", "etcd", "--data-dir", fleet.path("etcd"), "--listen-client-urls", url, "--advertise-client-urls", url,
                    "--listen-peer-urls", f"http://127.0.0.1:{peer}", "--cert-file", made["server"][1], "--key-file",
                    made["server"][0], "--client-cert-auth", "--trusted-ca-file", ca)
        directory = ["--directory", f"etcds://127.0.0.1:{port}", "--directory-ca", ca]
        shown = [*directory, "--directory-cert", made["client"][1], "--directory-key", made["client"][0]]
        f.until(lambda: fleet.run("replicas", *shown)[0] == 0, "etcd over TLS")
        code, _, err = fleet.run("replicas", *directory)
        assert code != 0 and err.strip(), "etcd took a client without a certificate"
        code, _, err = fleet.run("replicas", *directory, "--directory-cert", made["client"][1], "--directory-key",
                                 made["server"][0])
        assert code != 0, "a key that is not the certificate's"
        model = fleet.model(size="2M", shards_=1)
        fleet.serve(model, "one", directory[1], *shown[2:]).line("serving as")
        out = fleet.run("replicas", *shown, "--json", check=0)[1]
        assert [r["name"] for r in json.loads(out)] == ["one"], out
        return None


TESTS = [every_option_is_used_by_a_test, unknown_options_name_the_nearest_wherever_they_come_from,
         what_is_wrong_with_a_model_is_let_pass_when_asked, leases_that_expired_are_listed_when_asked,
         a_directory_takes_no_more_records_than_its_limit, tokens_go_over_a_plain_connection_only_when_allowed,
         an_etcd_that_asks_for_a_certificate_is_shown_one]

if __name__ == "__main__":
    os.environ.pop("HEFT_DIRECTORY", None)
    f.main(TESTS)
