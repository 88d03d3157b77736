#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where the time went: heft load --trace, heft report, its page."""
import json
import os
import sys
import xml.etree.ElementTree as xml

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import fleet as f  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"


def traced(fleet, model, *more, check=0):
    path = fleet.path("trace.json")
    report = fleet.load(model, "--trace", path, *more, check=check)
    with open(path) as file:
        return path, report, json.load(file)


def spans(trace, category):
    return [e for e in trace["traceEvents"] if e.get("cat") == category]


def every_chunk_of_every_source_has_its_span():
    with f.Fleet() as fleet:
        model = fleet.model(size="24M")
        directory = "file:" + fleet.path("replicas")
        fleet.serve(model, "one", directory).line("serving")
        path, report, trace = traced(fleet, model, "--directory", directory, "--source", "file+peer")
        moves = spans(trace, "move")
        assert sum(e["args"]["bytes"] for e in moves) == report["bytes"], (len(moves), report["bytes"])
        assert len({e["args"]["chunk"] for e in moves}) == len(moves) == report["layout"]["chunks"]
        names = {e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"}
        by_source = {s["kind"] + " " + s["name"]: s["bytes"] for s in report["sources"]}
        for pid in names.keys() - {0}:
            assert sum(e["args"]["bytes"] for e in moves if e["pid"] == pid) == by_source[names[pid]], (names, by_source)
        assert len(spans(trace, "verify")) == len(moves)
        whole = report["seconds"] * 1e6
        for event in trace["traceEvents"]:
            if event["ph"] == "X":
                assert event["ts"] >= 0 and event["dur"] >= 0 and event["ts"] + event["dur"] <= whole + 1000, (event, whole)
        stages = {e["name"]: e["dur"] / 1e6 for e in spans(trace, "stage")}
        for stage in ("init", "plan", "move", "verify"):
            assert abs(stages[stage] - report["stages"][stage + "_s"]) < 1e-3, (stages, report["stages"])
        assert trace["heft"]["bytes"] == report["bytes"] and trace["lostEvents"] == 0


def a_source_that_is_lost_shows_in_trace_and_page():
    with f.Fleet() as fleet:
        model = fleet.model(size="24M")
        directory = "file:" + fleet.path("replicas")
        serving = fleet.serve(model, "one<b>&", directory)
        serving.line("serving")
        serving.freeze()
        path, report, trace = traced(fleet, model, "--directory", directory, "--source", "file+peer", "--stall", "1s")
        page = fleet.path("page.html")
        fleet.run("report", path, "--html", page, check=0)
        root = xml.parse(page).getroot()  # well-formed: names of peers can't break it
        text = "".join(root.itertext())
        for source in report["sources"]:
            assert source["name"] in text, (source["name"], text)
        lanes = [e for e in root.iter(SVG + "rect") if e.get("class") == "ground"]
        assert len(lanes) == 1 + len([e for e in trace["traceEvents"] if e["ph"] == "M" and e["pid"] > 0]), len(lanes)


def a_report_is_told_again_and_what_is_none_is_refused():
    with f.Fleet() as fleet:
        model = fleet.model(size="2M")
        path, report, _ = traced(fleet, model)
        plain = fleet.path("report.json")
        fleet.load(model, "--report", plain)
        for file in (path, plain):
            out = fleet.run("report", file, check=0)[1]
            assert "loaded" in out and "files" in out, out
            again = json.loads(fleet.run("report", file, "--json", check=0)[1])
            assert again["bytes"] == report["bytes"], again
        code, _, err = fleet.run("report", plain, "--html", fleet.path("p.html"))
        assert code == 2 and "--trace" in err and not os.path.exists(fleet.path("p.html")), (code, err)
        broken = fleet.path("broken.json")
        for content, word in (("{", "line"), ("[]", "no report"), ('{"traceEvents": 3, "heft": {"report_version": 1}}', None)):
            with open(broken, "w") as file:
                file.write(content)
            code, _, err = fleet.run("report", broken, "--html", fleet.path("p.html"))
            assert code == 2 and "broken.json" in err and (not word or word in err), (content, code, err)
        assert fleet.run("report", fleet.path("nowhere"))[0] == 4
        code, _, err = fleet.run("load", model, "--trace", "/proc/none/x")
        assert code != 0 and "--trace" in err, (code, err)
        code, _, err = fleet.run("load", fleet.path("no-model"), "--trace", fleet.path("t.json"))
        assert code != 0 and not os.path.exists(fleet.path("t.json")), err


if __name__ == "__main__":
    f.main([every_chunk_of_every_source_has_its_span, a_source_that_is_lost_shows_in_trace_and_page,
            a_report_is_told_again_and_what_is_none_is_refused])
