# SPDX-License-Identifier: Apache-2.0
"""The command line over a real etcd: the main job, its misfortunes, wrong settings; and what replicas and health show."""
import os
import shutil
import signal
import time
import urllib.request

import fleet as f

MISSING = None if shutil.which("etcd") and shutil.which("etcdctl") else "no etcd (Debian: etcd-server etcd-client)"


class Etcd:
    """etcd on ports of its own; keeps its data over stop and start."""

    def __init__(self, fleet):
        self.fleet, self.port, self.peer = fleet, f.free_port(), f.free_port()
        self.data = fleet.path(f"etcd.{self.port}")
        self.address = f"etcd://127.0.0.1:{self.port}/models"
        self.start()

    def start(self):
        client, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.peer}"
        self.process = self.fleet.start("etcd", "etcd", "--data-dir", self.data, "--listen-client-urls", client,
                                        "--advertise-client-urls", client, "--listen-peer-urls", peer,
                                        "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
                                        "--heartbeat-interval", "20", "--election-timeout", "200", "--log-level", "error")

        def healthy():
            assert self.process.running(), self.process.text()
            try:
                return b"true" in urllib.request.urlopen(f"{client}/health", timeout=1).read()
            except OSError:
                return False
        f.until(healthy, "etcd's health")

    def kill(self, forget=False):
        self.process.kill()
        if forget:
            shutil.rmtree(self.data)


def replicas_and_loads_meet_through_etcd():
    if MISSING:
        return MISSING
    with f.Fleet() as fleet:
        etcd = Etcd(fleet)
        model = fleet.model(size="8M", shards_=2)
        expected = f.sha256_of_tensors(model)
        assert "no replicas" in fleet.run("replicas", "--directory", etcd.address, check=0)[1]
        one = fleet.serve(model, "one", etcd.address, "--lease", "3s")
        one.line("serving as")
        report = fleet.load(model, "--source", "peer", "--directory", etcd.address)
        assert report["sha256"] == expected
        assert fleet.run("health", "--directory", etcd.address)[0] == 0
        # A restart keeps the name: the new process takes it over at once.
        one.kill()
        again = fleet.serve(model, "one", etcd.address, "--lease", "3s")
        again.line("serving as")
        assert fleet.load(model, "--source", "peer", "--directory", etcd.address)["sha256"] == expected
        assert again.stop() == 0
        assert fleet.replicas(etcd.address) == []  # withdrawn, not only expired
        # A killed one is gone after its lease.
        two = fleet.serve(model, "two", etcd.address, "--lease", "2s")
        two.line("serving as")
        two.kill()
        f.until(lambda: fleet.replicas(etcd.address) == [], "the end of the lease", 20)
        # Its keys are where the address says, and nowhere else.
        two = fleet.serve(model, "two", etcd.address)
        two.line("serving as")
        assert fleet.replicas(f"etcd://127.0.0.1:{etcd.port}/other") == []
        assert [r["name"] for r in fleet.replicas(etcd.address)] == ["two"]


def a_restarted_etcd_is_told_again_and_loads_never_notice():
    if MISSING:
        return MISSING
    with f.Fleet() as fleet:
        etcd = Etcd(fleet)
        model = fleet.model(size="64M", table="dense", shards_=1)
        for name in ("a", "b"):
            fleet.serve(model, name, etcd.address, "--lease", "3s").line("serving as")
        for forget in (False, True):
            load = fleet.start("load", f.HEFT, "load", model, "--source", "peer", "--directory", etcd.address, "--quiet",
                               "--json", "--require", "tcp")
            time.sleep(0.15 if forget else 0.3)
            etcd.kill(forget)
            begin = time.monotonic()
            code = load.wait(60)
            assert code == 0 or "etcd" in load.text(), load.text()
            etcd.start()
            begin = time.monotonic()
            f.until(lambda: [r["name"] for r in fleet.replicas(etcd.address)] == ["a", "b"], "the replicas to be back", 20)
            assert time.monotonic() - begin < 6, "later than two renewals"


def wrong_settings_say_what_to_do():
    with f.Fleet() as fleet:
        port = f.free_port()

        def refused(code, words, *arguments):
            got, out, err = fleet.run("replicas", *arguments)
            assert got == code and words in err, (got, words, err)
        refused(1, f"etcd --listen-client-urls http://127.0.0.1:{port}", "--directory", f"etcd://127.0.0.1:{port}")
        refused(2, "expected HOST:PORT", "--directory", "etcd://nowhere")
        refused(2, "etcds://", "--directory", "etcd://127.0.0.1:1", "--directory-ca", "/etc/hostname")
        refused(2, "password file", "--directory", "etcd://127.0.0.1:1", "--directory-user", "u")
        refused(2, "etcd://", "--directory", "127.0.0.1:1", "--directory-user", "u", "--directory-password-file", "/x")
        refused(5, "password would go over a plain", "--directory", "etcd://192.0.2.1:1", "--directory-user", "u",
                "--directory-password-file", "/etc/hostname")
        refused(4, "/nonexistent", "--directory", "etcds://127.0.0.1:1", "--directory-ca", "/nonexistent")
        refused(2, "needs its key", "--directory", "etcds://127.0.0.1:1", "--directory-cert", "/etc/hostname")


def a_part_of_the_model_is_shown_as_one():
    with f.Fleet() as fleet:
        model = fleet.model(size="8M", shards_=1)
        heftd = fleet.heftd("memory:")
        fleet.serve(model, "whole", heftd.address).line("serving as")
        fleet.serve(model, "part", heftd.address, "--ranks", "4", "--rank", "1").line("serving as")
        found = {r["name"]: r for r in fleet.replicas(heftd.address)}
        assert found["whole"]["part"] == "" and found["whole"]["whole_bytes"] == found["whole"]["bytes"]
        assert found["part"]["part"] == "rank 1/4", found["part"]
        assert found["part"]["whole_bytes"] == found["whole"]["bytes"], (found["part"], found["whole"])
        assert found["part"]["bytes"] < found["whole"]["bytes"]
        share = 100 * found["part"]["bytes"] / found["whole"]["bytes"]
        text = fleet.run("replicas", "--directory", heftd.address, check=0)[1]
        line = next(line for line in text.splitlines() if line.startswith("part "))
        assert "rank 1/4" in line and f"({share:.1f} %)" in line, line
        page = urllib.request.urlopen(f"http://{heftd.http}/", timeout=10).read().decode()
        assert "rank 1/4" in page and f"{share:.1f} %" in page and "2 replicas" in page, page


def health_asks_all_at_the_same_time():
    """Replicas that are frozen cost one time limit together, not one each."""
    with f.Fleet() as fleet:
        model = fleet.model(size="2M", shards_=1)
        directory = f"file:{fleet.path('replicas.json')}"
        frozen = [fleet.serve(model, f"frozen-{i}", directory, "--lease", "10m") for i in range(5)]
        for p in frozen:
            p.line("serving as")
        fleet.serve(model, "well", directory, "--lease", "10m").line("serving as")
        for p in frozen:
            p.freeze()
        begin = time.monotonic()
        code, out, _ = fleet.run("health", "--directory", directory)
        took = time.monotonic() - begin
        assert code == 1 and "well" in out and out.count("frozen-") >= 5, out
        assert took < 8, f"{took:.1f} s; one after the other would take 15"


def sigterm_does_not_wait_for_a_frozen_directory():
    with f.Fleet() as fleet:
        model = fleet.model(size="2M", shards_=1)
        heftd = fleet.heftd("memory:")
        p = fleet.serve(model, "one", heftd.address, "--lease", "600ms", "--timeout", "30s")
        p.line("serving as")
        heftd.freeze()
        time.sleep(0.5)  # a renewal is under way, and waits for its answer
        begin = time.monotonic()
        p.process.send_signal(signal.SIGTERM)
        assert p.wait(20) == 0
        assert time.monotonic() - begin < 5, "it waited for the directory"


TESTS = [replicas_and_loads_meet_through_etcd, a_restarted_etcd_is_told_again_and_loads_never_notice,
         wrong_settings_say_what_to_do, a_part_of_the_model_is_shown_as_one, health_asks_all_at_the_same_time,
         sigterm_does_not_wait_for_a_frozen_directory]

if __name__ == "__main__":
    os.environ.pop("HEFT_DIRECTORY", None)
    f.main(TESTS)
