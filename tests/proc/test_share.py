#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Several loads of one host that read each byte from storage once between them: any order, one killed, one frozen, one that
comes late, no room, folders of others."""
import json
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fleet as f  # noqa: E402
import slicer  # noqa: E402

RANKS = 4


class Ranks:
    """Loads of a model, each with its report and digests; what they read is in the share's source."""

    def __init__(self, fleet, model, *more, limit="60s"):
        self.fleet, self.model, self.more, self.limit, self.loads = fleet, model, more, limit, {}
        self.folder = fleet.path("share")

    def start(self, rank, *more):
        paths = self.fleet.path(f"sha.{rank}.{len(self.loads)}"), self.fleet.path(f"report.{rank}.{len(self.loads)}")
        p = self.fleet.start(f"rank-{rank}", f.HEFT, "load", self.model, "--ranks", str(RANKS), "--rank", str(rank), "--host-loads",
                             str(RANKS), "--share-folder", self.folder, "--deadline", self.limit, "--quiet", "--sha256", paths[0],
                             "--report", paths[1], *self.more, *more)
        self.loads[rank] = p, *paths
        return p

    def end(self, rank):
        """The report, after the load ended right; read: bytes from storage, direct: past the share."""
        p, sha, report = self.loads[rank]
        assert p.wait(90) == 0, p.text()
        with open(report) as file:
            report = json.load(file)
        report["sha256"] = f.read_sha256(sha)
        report["read"] = sum(s.get("read_bytes", 0) for s in report["sources"])
        report["direct"] = sum(s["bytes"] for s in report["sources"] if s["kind"] in ("file", "object"))
        return report


def expected(model, rank):
    import hashlib
    return {n: hashlib.sha256(a.tobytes()).hexdigest() for n, a in slicer.Slicer(model).rank(rank, RANKS).items()}


def big_model(fleet, size="96M"):
    """Enough units for everybody, under the rules of Llama."""
    model = fleet.model("big", table="dense", size=size, shards_=3)
    with open(os.path.join(model, "config.json"), "w") as file:
        json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 64, "num_attention_heads": 16,
                   "num_key_value_heads": 4}, file)
    return model, sum(os.path.getsize(s) for s in f.shards(model))


def ranks_read_each_byte_once():
    with f.Fleet() as fleet:
        model, size = big_model(fleet)
        ranks = Ranks(fleet, model)
        order = random.Random(1).sample(range(RANKS), RANKS)
        for rank in order:
            ranks.start(rank)
        reports = [ranks.end(rank) for rank in range(RANKS)]
        for rank, report in enumerate(reports):
            assert report["sha256"] == expected(model, rank), rank
            assert report["direct"] == 0, report["sources"]
        read = sum(report["read"] for report in reports)
        assert read == size, (read, size)
        assert os.listdir(ranks.folder) == [], "the last one removes the share"


def one_killed_at_random_and_the_others_finish_right():
    chance = random.Random(int(os.environ.get("HEFT_TEST_SEED", "7")))
    for round_ in range(4):
        with f.Fleet() as fleet:
            model, size = big_model(fleet)
            ranks = Ranks(fleet, model)
            victim = chance.randrange(RANKS)
            for rank in chance.sample(range(RANKS), RANKS):
                ranks.start(rank, *(["--chunk", "64K"] if rank == victim else []))
            f.time.sleep(chance.uniform(0, 0.1))
            ranks.loads[victim][0].kill()
            reports = {rank: ranks.end(rank) for rank in range(RANKS) if rank != victim}
            for rank, report in reports.items():
                assert report["sha256"] == expected(model, rank), (round_, rank)
                assert report["direct"] == 0, report["sources"]
            read = sum(report["read"] for report in reports.values())
            assert read <= size, (read, size)
            ranks.start(victim)
            again = ranks.end(victim)
            assert again["sha256"] == expected(model, victim)
            assert read + again["read"] <= 2 * size


def a_late_one_finds_what_the_others_left():
    with f.Fleet() as fleet:
        model, size = big_model(fleet)
        ranks = Ranks(fleet, model)
        for rank in range(RANKS - 1):
            ranks.start(rank)
        read = sum(ranks.end(rank)["read"] for rank in range(RANKS - 1))
        ranks.start(RANKS - 1)
        late = ranks.end(RANKS - 1)
        assert late["sha256"] == expected(model, RANKS - 1)
        assert read + late["read"] == size, (read, late["read"], size)
        assert os.listdir(ranks.folder) == []


def a_frozen_one_costs_its_claims_only():
    """What it claimed is read past the share after the stall limit."""
    with f.Fleet() as fleet:
        model, size = big_model(fleet)
        ranks = Ranks(fleet, model, "--stall", "1s")
        frozen = ranks.start(0)
        f.until(lambda: os.path.isdir(ranks.folder) and os.listdir(ranks.folder), "the share")
        frozen.freeze()
        for rank in range(1, RANKS):
            ranks.start(rank)
        for rank in range(1, RANKS):
            report = ranks.end(rank)
            assert report["sha256"] == expected(model, rank), rank
            assert report["read"] + report["direct"] <= size
        frozen.thaw()
        assert ranks.end(0)["sha256"] == expected(model, 0)


def without_room_each_reads_for_itself():
    """A file size limit stands for the full memory; the loads end right all the same."""
    import resource
    with f.Fleet() as fleet:
        model, size = big_model(fleet, "48M")
        ranks = Ranks(fleet, model)
        limit = size // 2  # below the share's own length: it can't be made
        paths = fleet.path("sha"), fleet.path("report")
        p = fleet.start("limited", f.HEFT, "load", model, "--ranks", "4", "--rank", "1", "--host-loads", "4", "--share-folder",
                        ranks.folder, "--quiet", "--sha256", paths[0], "--report", paths[1],
                        preexec=lambda: (f.signal.signal(f.signal.SIGXFSZ, f.signal.SIG_IGN),
                                         resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))))
        assert p.wait(60) == 0, p.text()
        assert f.read_sha256(paths[0]) == expected(model, 1)
        assert "loading without the other loads" in p.text(), p.text()


def too_many_and_open_folders_are_refused_and_the_load_goes_on():
    with f.Fleet() as fleet:
        model = fleet.model("llama", table="llama", size="1M", shards_=1)
        os.makedirs(fleet.path("open"))
        os.chmod(fleet.path("open"), 0o777)
        report = fleet.load(model, "--host-loads", "2", "--share-folder", fleet.path("open"))
        share = next(s for s in report["sources"] if s["kind"] == "share")
        assert share["reason"]["code"] == "DENIED" and "others may write" in share["reason"]["text"], share
        assert report["sha256"] == f.sha256_of_tensors(model)
        code, _, err = fleet.run("load", model, "--host-loads", "65")
        assert code == 2 and "64" in err, err
        report = fleet.load(model, "--host-loads", "2", "--share-folder", fleet.path("mine"), "--source", "file")
        assert any(s["kind"] == "share" and s["state"] == "used" for s in report["sources"]), report["sources"]


if __name__ == "__main__":
    f.main([ranks_read_each_byte_once, one_killed_at_random_and_the_others_finish_right, a_late_one_finds_what_the_others_left,
            a_frozen_one_costs_its_claims_only, without_room_each_reads_for_itself,
            too_many_and_open_folders_are_refused_and_the_load_goes_on])
