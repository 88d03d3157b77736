#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads from two places of different rates: the rates add up, and the death of one in the middle costs its rate only. Rates are
low and bounds wide, and a bound is tried for again: the machine may be busy. bench/bench_hybrid.py measures."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fleet as f  # noqa: E402
import object_servers as o  # noqa: E402
import throttled as t  # noqa: E402

SLOW, FAST = 15e6, 45e6
TRIES = 4


def reaches(share, expected_s, load):
    """A load that takes at most expected_s / share, of a few; its report."""
    taken = []
    for _ in range(TRIES):
        report = load()
        taken.append(report["stages"]["move_s"])
        if taken[-1] <= expected_s / share:
            return report
    raise AssertionError(f"expected {expected_s:.2f} s / {share}, took {taken}")


def with_model(test):
    if not o.has_nginx():
        return "no nginx or openssl"
    with f.Fleet() as fleet:
        model = fleet.model("root/model", size="16M", shards_=1)
        return test(fleet, fleet.path("root"), model, f.sha256_of_tensors(model))


def check(report, sha256):
    assert report["sha256"] == sha256
    assert sum(s["bytes"] for s in report["sources"]) == report["bytes_total"], report["sources"]


def add_up(kind, rates):
    def test(fleet, root, model, sha256):
        with t.Places(fleet, root, model, kind, *rates) as places:
            size = places.load((rates.index(FAST),))["bytes_total"]
            report = reaches(0.8, size / (SLOW + FAST), places.load)
            check(report, sha256)
            assert sum(s["bytes"] > 0 for s in report["sources"]) == 2, report["sources"]
    return with_model(test)


def the_rates_of_two_stores_add_up():
    return add_up("objects", (SLOW, FAST))


def the_rates_of_a_slow_store_and_a_replica_add_up():
    return add_up("peer", (SLOW, FAST))


def the_rates_of_a_store_and_a_slow_replica_add_up():
    return add_up("peer", (FAST, SLOW))


def dies(kind, which):
    """At a third of the time that both would take."""
    def test(fleet, root, model, sha256):
        size = os.path.getsize(os.path.join(model, "model.safetensors"))
        both, left = SLOW + FAST, (SLOW, FAST)[1 - which]

        def load():
            with t.Places(fleet, root, model, kind, SLOW, FAST) as places:
                return places.load(kill=which, after=size / both / 3)
        check(reaches(0.7, size / both / 3 + size * 2 / 3 / left, load), sha256)
    return with_model(test)


def the_death_of_the_slow_store_costs_its_rate_only():
    return dies("objects", 0)


def the_death_of_the_fast_store_costs_its_rate_only():
    return dies("objects", 1)


def the_death_of_the_store_beside_a_replica_costs_its_rate_only():
    return dies("peer", 0)


def the_death_of_the_replica_beside_a_store_costs_its_rate_only():
    return dies("peer", 1)


def a_far_store_gives_its_connections_times_their_rate():
    def test(fleet, root, model, sha256):
        nginx, connections, rate = o.Nginx(fleet, root), 4, 5e6
        process, port = t.start_proxy(nginx.port, delay_ms=50, connection_rate=rate)

        def load():
            return fleet.load(f"http://127.0.0.1:{port}/model", "--chunk", "1M",
                              env={"HEFT_OBJECT_CONNECTIONS": str(connections), "NO_PROXY": "127.0.0.1"})
        try:
            size = load()["bytes_total"]
            # each MiB of a connection waits for its answer first
            check(reaches(0.8, size / (connections * rate) * (1 + 0.05 / ((1 << 20) / rate)), load), sha256)
        finally:
            t.end(process)
    return with_model(test)


if __name__ == "__main__":
    # Time is what these take. Under a sanitizer one sum and one death stand for all.
    few = [the_rates_of_a_slow_store_and_a_replica_add_up, the_death_of_the_store_beside_a_replica_costs_its_rate_only]
    f.main(few if "asan" in f.BUILD or "tsan" in f.BUILD else few + [
        the_rates_of_two_stores_add_up, the_rates_of_a_store_and_a_slow_replica_add_up, the_death_of_the_slow_store_costs_its_rate_only,
        the_death_of_the_fast_store_costs_its_rate_only, the_death_of_the_replica_beside_a_store_costs_its_rate_only,
        a_far_store_gives_its_connections_times_their_rate])
