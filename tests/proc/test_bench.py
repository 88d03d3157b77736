#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""heft bench: every combination that it offers moves the right bytes, says so in JSON and as a table, and leaves no process."""
import json
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fleet as f  # noqa: E402

QUICK = ("--time", "5ms", "--warm-up", "0ms", "--repeats", "2")


def bench(fleet, *arguments, check=0):
    return json.loads(fleet.run("bench", *QUICK, *arguments, "--json", check=check, limit=2 * f.WAIT)[1])


def children():
    """Processes that a benchmark started and that still run."""
    out = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in out.splitlines() if re.search(rf"^ *\d+ {re.escape(f.HEFT)} bench", line)]


def every_space_and_pattern_moves_the_right_bytes():
    with f.Fleet() as fleet:
        answer = bench(fleet, "--space", "all", "--pattern", "all", "--sizes", "1,8,777,64K", "--batches", "1,33", "--path",
                       fleet.dir)
        rows = answer["rows"]
        assert len(rows) == 3 * 3 * 2 * 4 * 2 and answer["skipped"] == 0, len(rows)
        assert len({(r["op"], r["space"], r["pattern"], r["size"], r["batch"]) for r in rows}) == len(rows)
        for row in rows:
            assert row["transport"] == ("file" if row["space"] == "file" else "local"), row
            assert row["checked"] and row["checked_bytes"] == row["size"] * row["batch"], row
            assert 0 < row["rate_least"] <= row["rate"] <= row["rate_most"] and 0 < row["p50_ns"] <= row["p99_ns"], row
            assert row["bare"] > 0 and abs(row["share"] - row["rate"] / row["bare"]) < 0.01 * row["share"] + 1e-3, row
        assert children() == []


def clients_servers_threads_and_what_is_told():
    with f.Fleet() as fleet:
        for tell in ("nothing", "notification", "counter"):
            for more in ((), ("--unprepared",)):
                answer = bench(fleet, "--sizes", "64", "--batches", "5", "--pattern", "scattered", "--tell", tell, *more)
                assert answer["tell"] == tell and answer["prepared"] == (not more)
                assert [r["op"] for r in answer["rows"]] == (["write"] if tell == "counter" else ["read", "write"])
        answer = bench(fleet, "--clients", "2", "--servers", "2", "--threads", "2", "--sizes", "8,4K", "--batches", "3")
        for row in answer["rows"]:
            parts = 2 * 2 * (2 if row["op"] == "write" else 1)  # what was read has one place, what was written two
            assert row["checked_bytes"] == parts * row["size"] * row["batch"], row
        for row in bench(fleet, "--require", "tcp", "--sizes", "8,256K", "--op", "write")["rows"]:
            assert row["transport"] == "tcp" and row["bare"] > 0 and row["checked_bytes"], row
        rows = bench(fleet, "--unchecked", "--sizes", "8", "--op", "read")["rows"]
        assert not rows[0]["checked"] and rows[0]["checked_bytes"] == 0
        answer = bench(fleet, "--memory", "1M", "--sizes", "4K,4M")
        assert answer["skipped"] == 2 and len(answer["rows"]) == 2


def to_another_host():
    with f.Fleet() as fleet:
        listener = fleet.start("listener", f.HEFT, "bench", "--listen", "127.0.0.1:0", "--memory", "1M", "--json")
        peer = json.loads(listener.line("listening"))["peer"]
        rows = bench(fleet, peer, "--sizes", "64,64K", "--batches", "4", "--tell", "notification")["rows"]
        assert len(rows) == 4 and all(r["checked_bytes"] == r["size"] * 4 for r in rows), rows
        rows = bench(fleet, peer, "--sizes", "64K", "--clients", "2", "--require", "tcp")["rows"]
        assert all(r["transport"] == "tcp" and r["bare"] is None for r in rows), rows
        assert "larger --memory" in fleet.run("bench", peer, "--sizes", "2M", check=2)[2]
        other = peer[:-1] + ("0" if peer[-1] != "0" else "1")
        assert "token" in fleet.run("bench", other, "--sizes", "8", check=5)[2]
        assert listener.stop() == 0
        assert "nobody answers" in fleet.run("bench", peer, "--sizes", "8", check=1)[2]


def the_table_and_what_is_refused():
    with f.Fleet() as fleet:
        out = fleet.run("bench", *QUICK, "--sizes", "8,64K", check=0)[1]
        lines = out.splitlines()
        assert lines[0].startswith("1 clients x 1 servers x 1 threads") and lines[-5].split()[-1] == "share", out
        assert [line.split()[:5] for line in lines[-4:]] == [[op, "shared", "contiguous", size, "1"] for op in
                                                             ("READ", "WRITE") for size in ("8", "64K")], out
        for code, word, *arguments in [
                (2, "--sizes: '0'", "--sizes", "0"), (2, "--sizes: '2G'", "--sizes", "2G"), (2, "list is empty", "--sizes", ""),
                (2, "--batches: '2M'", "--batches", "2M"), (2, "--sizes: write", "--sizes", "1,,2"),
                (2, "every row needs more", "--sizes", "1G", "--batches", "1M"),
                (2, "counts WRITE only", "--op", "read", "--tell", "counter"), (2, "is no peer", "nonsense"),
                (2, "one", "a#b", "--servers", "2"), (2, "--clients", "--clients", "65"),
                (2, "inside one process", "--listen", "unix", "--space", "file"),
                (4, "/nowhere", "--space", "file", "--path", "/nowhere"),
                (5, "REQUIRED", "--require", "file", "--sizes", "8")]:
            _, _, err = fleet.run("bench", *QUICK, *arguments, check=code)
            assert word in err and len(err.strip().splitlines()) == 1, (arguments, err)
        assert children() == []


def its_processes_end_with_it():
    with f.Fleet() as fleet:
        for end in ("kill", "stop"):
            bench_process = fleet.start("bench", f.HEFT, "bench", "--time", "5m", "--clients", "2", "--sizes", "8")
            f.until(lambda: len(children()) == 4, "four processes")
            bench_process.line("share")  # the head of the table: the row runs
            bench_process.kill() if end == "kill" else bench_process.stop()
            f.until(lambda: children() == [], "all of them gone")


TESTS = [its_processes_end_with_it, every_space_and_pattern_moves_the_right_bytes, clients_servers_threads_and_what_is_told, to_another_host,
         the_table_and_what_is_refused]

if __name__ == "__main__":
    f.main(TESTS)
