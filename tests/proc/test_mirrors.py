#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Several places of one model at the same time; what holds other bytes under the same names is refused before anything is
mixed, and a model that is gone is loaded from its mirror."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fleet as f  # noqa: E402

def used(report):
    return {s["name"]: s["bytes"] for s in report["sources"] if s["bytes"]}


def files_and_a_folder_are_read_together():
    import shutil
    with f.Fleet() as fleet:
        model = fleet.model(table="moe", size="64M", shards_=3)
        shutil.copytree(model, fleet.path("copy"))
        report = fleet.load(model, "--mirror", fleet.path("copy"))
        assert report["sha256"] == f.sha256_of_tensors(model)
        assert set(used(report)) == {"files", fleet.path("copy")}, report["sources"]
        report = fleet.load(model, "--mirror", fleet.path("copy"), "--source", "peer+object", check=None)
        assert report["exit_code"] != 0


def what_is_no_mirror_is_refused_with_the_reason():
    with f.Fleet() as fleet:
        model = fleet.model(table="moe", size="8M", shards_=2)
        tuned = fleet.model("tuned", table="moe", size="8M", shards_=2, seed=2)
        other = fleet.model("other", table="dense", size="8M", shards_=2)
        for name, code, word in [(tuned, "INCOMPATIBLE", "it holds other bytes than files"), (other, "INCOMPATIBLE", "tensor tables differ"),
                                 (fleet.path("nowhere"), "NOT_FOUND", "no such"), ("http://127.0.0.1:9/x", "UNAVAILABLE", "")]:
            report = fleet.load(model, "--mirror", name, "--deadline", "30s")
            assert report["sha256"] == f.sha256_of_tensors(model)
            refused = next(s for s in report["sources"] if s["state"] == "refused")
            assert refused["reason"]["code"] == code and word in refused["reason"]["text"], refused
            assert "loading without the mirror" in report["stderr"], report["stderr"]


def a_model_that_is_gone_is_loaded_from_its_mirror():
    with f.Fleet() as fleet:
        model = fleet.model(table="moe", size="8M", shards_=2)
        report = fleet.load(fleet.path("gone"), "--mirror", model)
        assert report["sha256"] == f.sha256_of_tensors(model)
        code, _, err = fleet.run("load", fleet.path("gone"), "--mirror", f"{fleet.path('a')} {fleet.path('b')}")
        assert code == 4 and all(fleet.path(n) in err for n in ("gone", "a", "b")), err


if __name__ == "__main__":
    f.main([files_and_a_folder_are_read_together,
            what_is_no_mirror_is_refused_with_the_reason, a_model_that_is_gone_is_loaded_from_its_mirror])
