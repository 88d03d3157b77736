#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The demo: a directory, a first replica from disk, a second from the first one's memory, a third from disk and both
replicas at once, and a fourth whose source is killed halfway. Twice: with a real model (all-MiniLM-L6-v2) and with a
larger one that has a mixture of experts' tensor table. Every tensor's SHA-256 is compared with hashlib's, computed from
the original files. With GPUs all of it goes to their memory. Ends with a table and exit status 0 only if every digest is right."""
import json
import os
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "proc"))
import fleet as f  # noqa: E402

BIG = os.environ.get("HEFT_DEMO_BYTES", "1500M")
KEEP = os.path.join(f.BUILD, "demo")


def say(text):
    print(text, flush=True)


def human(n):
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000 or unit == "GB":
            return f"{n:.0f} {unit}" if n >= 100 or unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    return ""


def big_model():
    """Made once and kept in the build folder: random bytes under a real table's names and shapes."""
    path = os.path.join(KEEP, f"moe-{BIG}")
    done = os.path.join(path, ".done")
    if not os.path.exists(done):
        say(f"making a model of {BIG} with a mixture of experts' tensor table ...")
        subprocess.run([sys.executable, os.path.join(ROOT, "scripts", "make-model"), path, "--bytes", BIG], check=True)
        open(done, "w").close()
    return path


class Story:
    def __init__(self, fleet, label, model, directory):
        self.fleet, self.label, self.model, self.directory = fleet, label, model, directory
        self.rows, self.right = [], True
        self.expected = f.sha256_of_tensors(model)

    def row(self, what, report, digests):
        good = digests == self.expected
        self.right &= good
        routes = []
        for s in report["sources"]:
            for r in s["routes"]:
                routes.append(f"{s['name']} via {r['transport']} {human(r['bytes'])}")
        lost = [s["name"] for s in report["sources"] if s["state"] == "lost"]
        limit = report.get("limit")
        self.rows.append((self.label, what, ", ".join(routes) + (f" ({', '.join(lost)} lost)" if lost else ""),
                          human(report["bytes"]), f"{report['seconds']:.3f} s", human(report["rate"]) + "/s",
                          f"{100 * limit['ratio']:.0f} % of {limit['what']}" if limit else "-",
                          "equal" if good else "WRONG"))
        say(f"  {what}: {self.rows[-1][2]}, {self.rows[-1][5]}, digests {self.rows[-1][7]}")

    def replica(self, name, what, *options):
        sha, report = self.fleet.path(f"{self.label}.{name}.sha256"), self.fleet.path(f"{self.label}.{name}.json")
        p = self.fleet.serve(self.model, name, self.directory, "--quiet", "--sha256", sha, "--report", report, *options)
        p.line("serving as")
        with open(report) as r:
            self.row(what, json.load(r), f.read_sha256(sha))
        return p

    def killed_halfway(self, what, victim, *options):
        """A load whose source dies (SIGKILL) while it is being read: found by trying, since loads are short."""
        for attempt in range(12):
            sha, report = self.fleet.path(f"{self.label}.kill.sha256"), self.fleet.path(f"{self.label}.kill.json")
            source = victim()
            p = self.fleet.start("load-4", f.HEFT, "load", self.model, "--directory", self.directory, "--quiet", "--sha256",
                                 sha, "--report", report, "--chunk", "256K", *options)
            time.sleep(0.01 + 0.02 * attempt)
            source.kill()
            if p.wait(120) != 0:
                raise SystemExit(f"the load failed after its source was killed:\n{p.text()}")
            with open(report) as r:
                found = json.load(r)
            if any(s["state"] == "lost" and s["bytes"] > 0 for s in found["sources"]):
                self.row(what, found, f.read_sha256(sha))
                return
        say(f"  {what}: every load ended before its source could be killed (the model is too small for that)")


def gpus(fleet):
    """The names that --device takes, of the GPUs of this machine."""
    found = json.loads(fleet.run("probe", "--json", check=0)[1])["findings"]
    return [x["what"] for x in found if x["what"].startswith("cuda:") and x["good"]]


def tell(fleet, label, model, directory, kill, devices):
    """With GPUs: replica 1 from disk to the first, 2 from there to the second, 3 back to the first."""
    say(f"\n{label}: {model}")
    story = Story(fleet, label, model, directory)

    def place(index):
        return ["--device", devices[index % len(devices)]] if devices else []

    def where(index):
        return f", to {devices[index % len(devices)]}" if devices else ""
    one = story.replica(f"{label}-1", "1 from disk" + where(0), "--source", "file", *place(0))
    two = story.replica(f"{label}-2", "2 from replica 1" + where(1), "--source", "peer", *place(1))
    three = story.replica(f"{label}-3", "3 from disk and both" + where(0), "--source", "file+peer", "--max-host-memory", "64M",
                          *place(0))
    if kill:
        victims = iter([one, two])

        def victim():
            try:
                return next(victims)
            except StopIteration:
                p = fleet.serve(model, f"{label}-x", directory, "--quiet")
                p.line("serving as")
                return p
        story.killed_halfway("4, a source killed halfway", victim, "--source", "peer", *place(1))
    for p in (one, two, three):
        if p.running() and p.stop() != 0:
            raise SystemExit(f"{p.name} did not stop cleanly:\n{p.text()}")
    return story


def main():
    os.makedirs(KEEP, exist_ok=True)
    with f.Fleet() as fleet:
        small = subprocess.run([os.path.join(ROOT, "scripts", "model-dir")], check=True, capture_output=True,
                               text=True).stdout.strip()
        big = big_model()
        say("measuring this machine's limits (heft probe --measure) ...")
        say(fleet.run("probe", "--measure", "--path", KEEP, check=0)[1].rstrip())
        heftd = fleet.heftd()
        say(f"\nheftd listens at {heftd.address}, http://{heftd.http}/ shows the replicas")
        devices = gpus(fleet)
        stories = [tell(fleet, "minilm", small, heftd.address, False, devices),
                   tell(fleet, "moe", big, heftd.address, True, devices)]
        if heftd.stop() != 0:
            raise SystemExit("heftd did not stop cleanly")
    rows = [("model", "replica", "path", "bytes", "time", "rate", "of this machine's limit", "SHA-256")]
    rows += [r for s in stories for r in s.rows]
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    say("")
    for r in rows:
        say("  ".join(c.ljust(w) for c, w in zip(r, widths)).rstrip())
    right = all(s.right for s in stories)
    say("\nevery tensor equals the original file's, by hashlib" if right else "\nWRONG BYTES")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
