#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`heft inspect FILE --json` on every file of the conformance corpus: the recorded verdict and code, and no more memory than
three times the header."""
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import fleet as f  # noqa: E402

MODEL_TESTS = os.path.join(HERE, "..", "model")


def corpus(fleet):
    folder = fleet.path("corpus")
    subprocess.run([sys.executable, os.path.join(MODEL_TESTS, "corpus.py"), "write", folder], check=True,
                   stdout=subprocess.DEVNULL)
    with open(os.path.join(MODEL_TESTS, "verdicts.tsv")) as lines:
        for line in lines:
            if line.strip() and not line.startswith("#") and not line.startswith("case\t"):
                case, verdict, _, code = line.rstrip("\n").split("\t")
                yield os.path.join(folder, case + ".safetensors"), verdict, code


def every_file_of_the_corpus_has_its_verdict():
    with f.Fleet() as fleet:
        count = 0
        for path, verdict, code in corpus(fleet):
            exit_code, out, err = fleet.run("inspect", path, "--json")
            answer = json.loads(out)
            assert answer["verdict"] == verdict, (path, answer, err)
            assert exit_code == (0 if verdict == "ACCEPT" else 3), (path, exit_code, err)
            if verdict == "REJECT":
                assert answer["error"]["code"] == code, (path, answer)
                assert os.path.basename(path) in answer["error"]["text"], (path, answer)
            count += 1
        assert count >= 100


def peak_kib(fleet, path):
    """Peak resident memory of `heft inspect`, from the kernel's own count for the child: the median of a few, for how many
    pages of the libraries are resident differs by hundreds of KiB from one process to the next."""
    return statistics.median(peak_of_one(fleet, path) for _ in range(7))


def peak_of_one(fleet, path):
    script = ("import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL); "
              "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
    done = subprocess.run([sys.executable, "-c", script, f.HEFT, "inspect", path, "--json"], capture_output=True, text=True,
                          env={**os.environ, **fleet.env}, check=True)
    return int(done.stdout)


def a_header_costs_at_most_three_times_its_bytes():
    if "asan" in f.BUILD or "tsan" in f.BUILD:
        return "a sanitizer's own memory would be measured"
    with f.Fleet() as fleet:
        files = list(corpus(fleet))
        base = peak_kib(fleet, next(p for p, v, _ in files if v == "ACCEPT" and os.path.getsize(p) < 1000))
        for path, _, _ in sorted(files, key=lambda file: -os.path.getsize(file[0]))[:3]:
            with open(path, "rb") as file:
                header = min(int.from_bytes(file.read(8), "little"), os.path.getsize(path))
            more = (peak_kib(fleet, path) - base) * 1024
            assert more <= 3 * header + (1 << 20), f"{path}: {more / header:.1f} times its header"


if __name__ == "__main__":
    f.main([every_file_of_the_corpus_has_its_verdict, a_header_costs_at_most_three_times_its_bytes])
