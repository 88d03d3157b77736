#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The pages say what is so: the README's tour is run line by line, and every field of reports and answers is documented."""
import json
import os
import re
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fleet as f  # noqa: E402
import object_servers as o  # noqa: E402


def page(name):
    with open(os.path.join(f.ROOT, name)) as file:
        return file.read()


def section(text, title):
    return re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.S | re.M).group(1)


def words(text):
    """What stands between backquotes."""
    return set(re.findall(r"`([^`\n]+)`", text))


def keys(value, but=()):
    """The names of all fields, but not below those whose names are data."""
    if isinstance(value, list):
        return set().union(*[keys(v, but) for v in value]) if value else set()
    if not isinstance(value, dict):
        return set()
    found = set(value)
    for name, inner in value.items():
        if name in but:
            inner = list(inner.values()) if isinstance(inner, dict) else []
        found |= keys(inner, but)
    return found


def tour():
    """The lines of the README's five minutes: (line, whether it stays in the background)."""
    blocks = re.findall(r"```sh\n(.*?)```", section(page("README.md"), "Five minutes"), re.S)
    for line in "".join(blocks).splitlines():
        line = line.split(" #")[0].strip()
        if line:
            yield line.removesuffix("&").strip(), line.endswith("&")


def the_tour_of_the_readme_runs():
    with f.Fleet() as fleet:
        grpc, http = f.free_port(), f.free_port()
        model = fleet.path("model") if subprocess.run([os.path.join(f.ROOT, "scripts", "model-dir")], capture_output=True,
                                                      cwd=f.ROOT).returncode else None
        if model:
            fleet.model(size="64M", shards_=1) # enough for two sources to share
        prelude = (f"cd {fleet.dir}; export PATH={os.path.dirname(f.HEFT)}:{os.path.dirname(f.HEFTD)}:$PATH; "
                   f"MODEL={model or '$(cd ' + f.ROOT + ' && scripts/model-dir)'}; ")
        ran = []
        for line, stays in tour():
            if line.startswith(("scripts/bootstrap", "export PATH", "MODEL=")):
                continue
            line = (line.replace("127.0.0.1:8001", f"127.0.0.1:{grpc}").replace("127.0.0.1:9401", f"127.0.0.1:{http}")
                    .replace("/tmp/", fleet.dir + "/"))
            ran.append(line)
            if stays:
                fleet.start(f"line-{len(ran)}", "bash", "-c", prelude + "exec " + line).line("serv")
                continue
            done = subprocess.run(["bash", "-c", prelude + line], capture_output=True, text=True, timeout=f.WAIT,
                                  env={**os.environ, **fleet.env})
            assert done.returncode == 0, (line, done.stdout, done.stderr)
            assert "warning" not in done.stderr, (line, done.stderr)
            if line.startswith("heft replicas"):
                assert "lease" in done.stdout, done.stdout
            if "--source peer+file" in line or line.startswith("heft plan"):
                assert "files" in done.stdout and "local" in done.stdout, done.stdout
        assert len(ran) >= 14, ran
        assert json.load(open(fleet.path("load.json")))["status"] == "OK"
        for p in fleet.processes:
            p.process.send_signal(signal.SIGTERM)
        assert all(p.wait() == 0 for p in fleet.processes)


def reports_have_the_fields_that_are_documented():
    with f.Fleet() as fleet:
        model = fleet.model(table="small", size="4M", shards_=1)
        directory = f"file:{fleet.path('d.json')}"
        fleet.run("probe", "--measure", "--path", fleet.dir, check=0)  # so that there is a limit
        fleet.serve(model, "one", directory).line("serving as")
        fleet.serve(model, "gone", directory, "--lease", "60s").line("serving as")
        fleet.processes[-1].kill()
        seen = set()
        known = fleet.model("known", table="llama", size="1M", shards_=1)
        strange = fleet.model("strange", table="small", size="1M", shards_=1)
        with open(os.path.join(strange, "config.json"), "w") as file:
            json.dump({"model_type": "strange"}, file)
        server = o.Scripted(o.files_of(known, "/b/m"))
        fleet.env.update(server.env())
        for number, arguments in enumerate([("load", "s3://b/m"), ("load", model), ("plan", model), ("load", model, "--ranks", "2", "--rank", "1"),
                                            ("load", known, "--ranks", "2", "--layers", ":1"),
                                            ("load", known, "--to", fleet.path("landed")),
                                            ("load", known, "--host-loads", "2", "--share-folder", fleet.path("share")),
                                            ("load", known, "--fleet-loads", "2", "--fleet-wait", "100ms", "--fleet-linger", "100ms"),
                                            ("load", strange, "--ranks", "2"),
                                            ("load", fleet.path("nowhere"))]):
            path = fleet.path(f"report.{number}")
            fleet.run(*arguments, "--directory", directory, "--report", path)
            with open(path) as file:
                seen |= keys(json.load(file))
        server.__exit__()
        documented = words(page("docs/report.md"))
        assert seen <= documented, f"not in docs/report.md: {sorted(seen - documented)}"
        names = {w for w in documented if re.fullmatch(r"[a-z_]+", w)}
        values = {"none", "row", "column", "rules", "init", "plan", "move", "verify", "publish", "done", "file", "peer", "object", "used", "unused",
                  "lost", "refused"}
        assert names - values <= seen, f"documented, but in no report: {sorted(names - values - seen)}"


def answers_have_the_fields_that_are_documented():
    text = page("docs/cli-json.md")
    with f.Fleet() as fleet:
        model = fleet.model(table="small", size="4M", shards_=1)
        heftd = fleet.heftd()
        fleet.run("probe", "--measure", "--path", fleet.dir, check=0)
        served = fleet.start("served", f.HEFT, "serve", model, "--directory", heftd.address, "--json", "--quiet")
        served.line('"serving"')
        snapshot = os.path.join(fleet.env["HF_HOME"], "hub", "models--org--name", "snapshots", "a" * 40)
        os.makedirs(os.path.dirname(snapshot))
        os.rename(model, snapshot)
        for title, arguments in [("heft inspect", ("inspect", snapshot, "--tensors")), ("heft verify", ("verify", snapshot)),
                                 ("heft ls", ("ls",)), ("heft replicas", ("replicas", "--directory", heftd.address)),
                                 ("heft health", ("health", "--directory", heftd.address)), ("heft probe", ("probe",))]:
            _, out, _ = fleet.run(*arguments, "--json", check=0)
            compare(title, keys(json.loads(out), but=("dtypes", "pairs")) - {"F32", "F16", "BF16", "I64", "I32"},
                    words(section(text, title)))
        assert served.stop() == 0
        events = [json.loads(line) for line in served.text().splitlines()]
        for event in events:
            event["report"] = None
        compare("heft serve, heft load --stay", keys(events), words(section(text, "heft serve, heft load --stay")))
        _, out, _ = fleet.run("inspect", fleet.dir, "--json", check=3)
        assert keys(json.loads(out)) <= words(section(text, "When it fails")), out


def compare(title, seen, documented):
    assert seen, title
    assert seen <= documented, f"{title}: not documented: {sorted(seen - documented)}"
    names = {w for w in documented if re.fullmatch(r"[a-z][a-z0-9_]+", w)} - {"serving", "stopped"}
    assert names <= seen, f"{title}: documented, but not there: {sorted(names - seen)}"


TESTS = [the_tour_of_the_readme_runs, reports_have_the_fields_that_are_documented, answers_have_the_fields_that_are_documented]

if __name__ == "__main__":
    f.main(TESTS)
