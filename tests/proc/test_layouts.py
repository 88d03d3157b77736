#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of several, by the rules of each architecture: the bytes of rank 0..3 of 4 are those of a slicer that knows nothing
of heft, together they are the model, and nothing but what is truly held twice is read twice. Then layers, experts, rules of one's own, and what
happens when there are none."""
import hashlib
import json
import os
import resource
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts"))
import architectures  # noqa: E402
import fleet as f  # noqa: E402
import slicer  # noqa: E402

RANKS = 4


def sha(array):
    return hashlib.sha256(array.tobytes()).hexdigest()


def same(report, kept, what):
    assert set(report["sha256"]) == set(kept), (what, sorted(set(report["sha256"]) ^ set(kept))[:5])
    for name, array in kept.items():
        assert report["sha256"][name] == sha(array), (what, name)
    wanted = sum(a.nbytes for a in kept.values())
    assert report["bytes"] == report["layout"]["wanted_bytes"] == wanted, (what, report["bytes"], wanted)


def check_architecture(fleet, name):
    model = fleet.model(name, table=name, size="1M", shards_=2)
    cut = slicer.Slicer(model)
    total = 0
    for rank in range(RANKS):
        report = fleet.load(model, "--ranks", str(RANKS), "--rank", str(rank))
        same(report, cut.rank(rank, RANKS), (name, rank))
        total += report["bytes"]
        layout = report["layout"]
        assert layout["split"] == "rules" and layout["split_tensors"] > 0, layout
        assert all(entry["by_rule"] for entry in layout["not_split"]), (name, layout["not_split"])
    once = sum(a.nbytes for a in cut.all.values())
    copies = sum(cut.copies(RANKS, tensor) for tensor in cut.all)
    assert total == once + copies, (name, total, once, copies)


def each_architecture_cuts_as_an_independent_slicer_does():
    with f.Fleet() as fleet:
        for name in architectures.ALL:
            check_architecture(fleet, name)


def experts_are_spread_or_chosen():
    with f.Fleet() as fleet:
        for name in ("qwen3_moe", "mixtral", "deepseek_v3", "gpt_oss"):
            model = fleet.model(name, table=name, size="1M", shards_=2)
            cut = slicer.Slicer(model)
            seen = {}
            for rank in range(RANKS):
                kept = cut.rank(rank, RANKS, spread=True)
                same(fleet.load(model, "--ranks", "4", "--rank", str(rank), "--experts", "spread"), kept, (name, rank))
                for tensor in kept:
                    seen[tensor] = seen.get(tensor, 0) + 1
            assert set(seen) == set(cut.all)
            assert all(n == 1 for tensor, n in seen.items() if cut.expert_of(tensor) is not None)
            report = fleet.load(model, "--experts", "1:3")
            if name != "gpt_oss":
                same(report, {n: a for n, a in cut.all.items() if cut.expert_of(n) in (None, 1, 2)}, name)
            else:
                same(report, {n: a[1:3] if ".experts." in n else a for n, a in cut.all.items()}, name)


def layers_and_stages_are_ranges():
    with f.Fleet() as fleet:
        model = fleet.model("llama", table="llama", size="1M", shards_=2)
        cut = slicer.Slicer(model)

        def keeps(first, last, tied=False):
            """Layers of [first, last) of 3, with what stands before and behind them."""
            return {n: a for n, a in cut.all.items()
                    if (cut.layer_of(n) is not None and first <= cut.layer_of(n) < last)
                    or ("embed" in n and (first == 0 or tied and last >= 3)) or (n in ("model.norm.weight", "lm_head.weight") and last >= 3)}
        same(fleet.load(model, "--layers", "1:2"), keeps(1, 2), "the middle layer")
        same(fleet.load(model, "--layers", ":2"), keeps(0, 2), "the first two")
        same(fleet.load(model, "--layers", "2:"), keeps(2, 3), "the last")
        for stage, (first, last) in enumerate([(0, 1), (1, 3)]):
            same(fleet.load(model, "--pipeline-ranks", "2", "--pipeline-rank", str(stage)), keeps(first, last), stage)
        whole = cut.rank(2, RANKS)
        same(fleet.load(model, "--layers", "1:2", "--ranks", "4", "--rank", "2"), {n: whole[n] for n in keeps(1, 2)}, "both")

        deep = fleet.model("deep", table="deepseek_v3", size="1M", shards_=2)
        cut = slicer.Slicer(deep)
        report = fleet.load(deep, "--pipeline-ranks", "2", "--pipeline-rank", "1")
        assert {cut.layer_of(n) for n in report["sha256"]} == {None, 1, 2}, "the layer behind the last is the last stage's"
        tied = fleet.model("tied", table="qwen2", size="1M", shards_=2)
        report = fleet.load(tied, "--layers", "1:2")
        assert "model.embed_tokens.weight" in report["sha256"], "it is the output matrix, too"


def ranks_of_a_replica_cut_as_ranks_of_the_files():
    """The replica passes config.json on: the loads see no file."""
    with f.Fleet() as fleet:
        commit = "1" * 40
        home = fleet.path("hub/models--org--gpt")
        model = fleet.model(f"hub/models--org--gpt/snapshots/{commit}", table="gpt_oss", size="1M", shards_=2)
        os.makedirs(os.path.join(home, "refs"))
        with open(os.path.join(home, "refs", "main"), "w") as file:
            file.write(commit)
        directory = f"file:{fleet.path('d.json')}"
        fleet.serve("org/gpt", "one", directory, "--cache", fleet.path("hub")).line("serving as")
        fleet.serve("org/gpt", "two", directory, "--source", "peer").line("serving as")
        cut = slicer.Slicer(model)
        for rank in range(RANKS):
            report = fleet.load("org/gpt", "--ranks", "4", "--rank", str(rank), "--directory", directory, "--source", "peer")
            same(report, cut.rank(rank, RANKS), rank)


def rules_may_come_from_a_file():
    with f.Fleet() as fleet:
        model = fleet.model("own", table="llama", size="1M", shards_=1)
        cut = slicer.Slicer(model)
        config = {**cut.config, "architectures": ["OwnModel"], "model_type": "own", "hidden_pieces": 4}
        with open(os.path.join(model, "config.json"), "w") as file:
            json.dump(config, file)
        report = fleet.load(model, "--ranks", "4", "--rank", "1")
        same(report, cut.all, "an unknown architecture is whole")
        assert "no split rules are built in for architecture OwnModel" in report["layout"]["no_rules"], report["layout"]
        assert "OwnModel" in report["stderr"]
        code, _, err = fleet.run("load", model, "--layers", "0:1")
        assert code == 4 and "OwnModel" in err, err

        rules = fleet.path("rules.json")
        with open(rules, "w") as file:
            json.dump({"name": "own", "prefixes": ["model."], "rules": [
                {"tensors": ["layers.{layer}.mlp.*.weight"], "dim": -1, "units": "hidden_pieces"},
                {"tensors": ["layers.{layer}.self_attn.q_proj.weight"], "dim": 0, "units": "not_there"},
                {"tensors": ["layers.{layer}.self_attn.k_proj.weight"], "dim": 0, "units": 7},
                {"tensors": ["layers.{layer}.self_attn.v_proj.weight"], "dim": 0, "units": 2},
                {"tensors": ["layers.{layer}.self_attn.o_proj.weight"], "dim": 5},
                {"tensors": ["**norm.weight"], "whole": True}]}, file)
        report = fleet.load(model, "--ranks", "4", "--rank", "1", "--rules", rules)
        kept = {n: a[:, a.shape[1] // 4:a.shape[1] // 2] if ".mlp." in n else a for n, a in cut.all.items()}
        same(report, {n: slicer.numpy.ascontiguousarray(a) for n, a in kept.items()}, "own rules")
        whys = {entry["why"]: entry["tensors"] for entry in report["layout"]["not_split"]}
        assert whys == {"config.json lacks a number that its rule needs": 3, "its shape is not what its rule expects": 6,
                        "it has fewer units than there are ranks": 3, "its rule gives it to every rank": 7,
                        "no rule names it": 2}, whys


def a_rank_reads_from_disk_what_it_keeps():
    with f.Fleet() as fleet:
        model = fleet.model("moe", table="moe", size="64M", shards_=2)

        def cold(*arguments):
            """(bytes loaded, bytes that the disk gave)"""
            for path in f.shards(model):
                with open(path, "rb") as file:
                    os.fsync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock
            report = fleet.load(model, *arguments)
            return report["bytes"], (resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock - before) * 512
        loaded, read = cold()  # brings the program in, too
        if read < loaded * 0.9:
            return "these files lie on no disk whose reads are counted"
        loaded, read = cold("--ranks", "4", "--rank", "0", "--split", "row")
        assert read < loaded * 1.15, (loaded, read)  # blocks are read whole, tensors are small


def plan_shows_what_is_split_and_what_is_not():
    with f.Fleet() as fleet:
        model = fleet.model("llama", table="llama", size="1M", shards_=1)
        _, out, _ = fleet.run("plan", model, "--ranks", "4", "--rank", "0", "--layers", "0:2", check=0)
        for words in ("split by rules: llama", "not split: 4 tensors", "its rule gives it to every rank",
                      "left out: 11 tensors of other layers or experts"):
            assert words in out, (words, out)


def wrong_choices_are_refused_with_the_reason():
    with f.Fleet() as fleet:
        model = fleet.model("llama", table="llama", size="1M", shards_=1)
        plain = fleet.model("plain", table="small", size="40K", shards_=1)
        bad = fleet.path("bad.json")
        for text, word in [("{", "not a JSON object"), ("[]", "not a JSON object"), ("{}", "needs a 'name'"),
                           ('{"name": "x", "rules": [{"tensors": ["a"]}]}', "rule 1: it needs 'dim'"),
                           ('{"name": "x", "rules": [{"dim": 0}]}', "rule 1: 'tensors'"),
                           ('{"name": "x", "rules": [{"tensors": ["a"], "dim": "0"}]}', "rule 1: 'dim'"),
                           ('{"name": "x", "rules": [{"tensors": ["a"], "dim": 0, "unit": -1}]}', "rule 1: 'unit'"),
                           ('{"name": "x", "rules": [{"tensors": ["a"], "dim": 0, "stage": 1}]}', "rule 1: 'stage'"),
                           ('{"name": "x", "rules": [{"tensors": ["a"], "like": ["x"]}]}', "rule 1: 'like'"),
                           ('{"name": "x", "rules": [{"tensors": ["a"], "dim": 0, "parts": 99}]}', "rule 1: 'units'")]:
            with open(bad, "w") as file:
                file.write(text)
            code, _, err = fleet.run("load", model, "--rules", bad)
            assert code == 2 and word in err, (text, err)
        for code, word, *arguments in [
                (4, "rules", model, "--rules", fleet.path("nowhere.json")),
                (2, "--layers: '3' is not a range", model, "--layers", "3"),
                (2, "--layers: '2:1' is not a range", model, "--layers", "2:1"),
                (2, "--experts: 'all' is not a range", model, "--experts", "all"),
                (2, "the model has 3", model, "--layers", "3:4"),
                (2, "5 pipeline stages", model, "--pipeline-ranks", "5"),
                (2, "pipeline stage 2 of 2 does not exist", model, "--pipeline-ranks", "2", "--pipeline-rank", "2"),
                (2, "not both", model, "--pipeline-ranks", "2", "--layers", "0:1"),
                (4, "no config.json", plain, "--split", "rules")]:
            got, _, err = fleet.run("load", *arguments)
            assert got == code and word in err, (arguments, got, err)
        with open(os.path.join(model, "config.json"), "w") as file:
            file.write("{broken")
        code, _, err = fleet.run("load", model, "--split", "rules")
        assert code == 2 and "config.json is not a JSON object" in err, err
        report = fleet.load(model, "--ranks", "2", "--rank", "0")
        assert report["layout"]["split"] == "none" and "config.json" in report["stderr"]


if __name__ == "__main__":
    f.main([each_architecture_cuts_as_an_independent_slicer_does, experts_are_spread_or_chosen, layers_and_stages_are_ranges,
            ranks_of_a_replica_cut_as_ranks_of_the_files, rules_may_come_from_a_file, plan_shows_what_is_split_and_what_is_not,
            a_rank_reads_from_disk_what_it_keeps,
            wrong_choices_are_refused_with_the_reason])
