#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The command line as a person and as a script meet it: exit codes, one sentence an error and none twice, JSON that parses,
a progress line that fits the terminal, pipes that close, folders that can't be written, and the completion in a real bash."""
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fleet as f  # noqa: E402
import object_servers as o  # noqa: E402
from test_misuse import refused  # noqa: E402


def lines_of(text):
    return [line for line in text.splitlines() if line.strip()]


def an_error_is_one_sentence_with_its_own_exit_code():
    with f.Fleet() as fleet:
        model = fleet.model(table="small", size="400K", shards_=1)
        os.makedirs(fleet.path("empty"))
        for code, word, *arguments in [
                (2, "'--json' before the command", "--json"),
                (2, "unknown command 'xx': see", "xx"),
                (2, "--deadline: '' is not a time", "load", model, "--deadline", ""),
                (2, "--deadline: 0 is below the least, 1ms", "load", model, "--deadline", "0"),
                (2, "--max-host-memory: 1M is below the least, 16M", "load", model, "--max-host-memory", "1M"),
                (2, "rank 3 of 1", "load", model, "--rank", "3"),
                (2, "--require: 'rdma' is not one of local|tcp|", "load", model, "--require", "rdma"),
                (2, "unknown option --sha256", "plan", model, "--sha256", "x"),
                (5, "REQUIRED", "load", model, "--require", "tcp"),
                (3, "NO_WEIGHTS", "inspect", fleet.path("empty")),
                (2, "folder, not a regular file", "replicas", "--directory", f"file:{fleet.dir}"),
                (2, "not an address", "replicas", "--directory", "foo"),
                (4, "no directory is named", "load", model, "--source", "peer"),
                (4, "no such folder", "probe", "--path", fleet.path("nowhere"))]:
            err = refused(fleet, code, word, *arguments)
            assert len(lines_of(err)) == 1, err
            assert not re.search(r"\b(\S+): \1:", err), f"said twice: {err}"


def a_path_without_a_dot_is_asked_about():
    with f.Fleet() as fleet:
        model = fleet.model("weights", "small", "400K", 1)
        for word, name in [("for the folder of that name here write ./weights", "weights"),
                           ("for the file of that name here write ./one.safetensors", "one.safetensors")]:
            if name != "weights":
                shutil.copy(f.shards(model)[0], fleet.path(name))
            for command in ("load", "inspect"):
                refused(fleet, 2, word, command, name, cwd=fleet.dir)
        refused(fleet, 2, "neither org/name nor a path", "load", "elsewhere", cwd=fleet.dir)


def json_is_one_document_also_when_it_fails():
    with f.Fleet() as fleet:
        model = fleet.model(table="small", size="400K", shards_=1)
        directory = f"file:{fleet.path('d.json')}"
        for arguments in [("load", model), ("load", model, "--report", "-"), ("plan", model), ("plan", model, "--report", "-"),
                          ("inspect", model, "--tensors"), ("verify", model), ("ls",), ("replicas", "--directory", directory),
                          ("health", "--directory", directory), ("probe",)]:
            code, out, err = fleet.run(*arguments, "--json")
            assert code == 0, (arguments, err)
            json.loads(out)
            assert not re.search(r"\d\.0*[1-9]\d{6,}", out), f"more digits than were measured: {out}"
        code, out, _ = fleet.run("load", model, "--report", "-", "--quiet")
        assert code == 0 and json.loads(out)["status"] == "OK"
        for arguments in [("load",), ("load", "--bad"), ("load", fleet.path("nowhere")), ("inspect", fleet.path("nowhere")),
                          ("replicas",), ("load", model, "--deadline", "soon")]:
            code, out, _ = fleet.run(*arguments, "--json")
            answer = json.loads(out)
            assert code in (2, 4) and answer["status"] == answer["error"]["code"] and answer["error"]["text"], (arguments, out)
        os.makedirs(fleet.path("empty"))
        code, out, _ = fleet.run("inspect", fleet.path("empty"), "--json")
        answer = json.loads(out)
        assert code == 3 and answer["verdict"] == "REJECT" and answer["status"] == "NO_WEIGHTS"


def a_directory_that_is_away_is_told_once():
    with f.Fleet() as fleet:
        model = fleet.model(table="small", size="400K", shards_=1)
        away = f"127.0.0.1:{f.free_port()}"
        for command in ("load", "plan"):
            code, out, err = fleet.run(command, model, "--directory", away)
            assert code == 0 and (out + err).count("is it running there") == 1, out + err
            assert "Connection refused" in err and "see the warning above" in out, out + err
        code, out, err = fleet.run("load", model, "--directory", away, "--log-level", "none")
        assert code == 0 and "is it running there" in out and not err, out + err
        heftd = fleet.heftd()
        refused(fleet, 1, "speaks HTTP/1", "replicas", "--directory", heftd.http)


def a_plan_names_the_transport_and_the_others_reasons():
    with f.Fleet() as fleet:
        model = fleet.model(size="2M", shards_=1)
        heftd = fleet.heftd()
        fleet.serve(model, "source", heftd.address).line("serving as")
        report = fleet.path("plan.json")
        _, out, _ = fleet.run("plan", model, "--directory", heftd.address, "--report", report, check=0)
        assert "by file (score" in out and "not by local: " in out and "or by tcp (score" in out, out
        with open(report) as file:
            sources = {s["name"]: s for s in json.load(file)["sources"]}
        best = sources["source"]["candidates"][0]
        assert best["transport"] == "local" and best["score"] > 0 and best["reason"], best


def reports_leave_nothing_behind_when_nothing_is_in_them():
    with f.Fleet() as fleet:
        model = fleet.model(table="small", size="400K", shards_=1)
        report, digests = fleet.path("report.json"), fleet.path("sha256")
        refused(fleet, 2, "not an address", "load", model, "--directory", "foo", "--report", report, "--sha256", digests)
        assert not os.path.exists(report) and not os.path.exists(digests)
        refused(fleet, 1, "can't be written", "load", model, "--report", fleet.dir)
        with open(digests, "w") as out:
            out.write("kept\n")
        refused(fleet, 4, "no such", "load", fleet.path("nowhere"), "--report", report, "--sha256", digests)
        with open(report) as got, open(digests) as kept:
            assert json.load(got)["error"]["code"] == "NOT_FOUND" and kept.read() == "kept\n"


def outputs_that_are_gone_or_full_are_noticed():
    with f.Fleet() as fleet:
        model = fleet.model("many", "small", "40M", 1)
        env = {**os.environ, **fleet.env}
        with open("/dev/full", "wb") as full:
            done = subprocess.run([f.HEFT, "inspect", model], stdout=full, stderr=subprocess.PIPE, env=env)
        assert done.returncode == 1 and b"No space left" in done.stderr
        done = subprocess.run([f.HEFT, "load", model, "--quiet", "--report", "/dev/full"], capture_output=True, env=env)
        assert done.returncode == 1 and b"NO_SPACE" in done.stderr
        script = f"{f.HEFT} inspect {model} --tensors --json 2>{fleet.path('err')} | head -1; echo ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=env)
        with open(fleet.path("err")) as err:
            said = err.read()
        assert done.stdout == "{\n1\n" and said == "", (done.stdout, said)


def as_nobody(*command, **env):
    drop = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"] if os.geteuid() == 0 else []
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "HF_", "HOME"))}
    return subprocess.run([*drop, *command], capture_output=True, text=True, env={**kept, **env}, timeout=f.WAIT)


def no_home_and_a_home_that_is_read_only():
    with f.Fleet() as fleet:
        model = fleet.model(table="small", size="400K", shards_=1)
        os.chmod(fleet.dir, 0o755)
        if as_nobody(f.HEFT, "--version").returncode:
            return "the build folder is not readable for another user"
        for env in ({}, {"HOME": "/proc"}, {"HOME": fleet.path("nowhere")}):
            done = as_nobody(f.HEFT, "load", model, "--quiet", **env)
            assert done.returncode == 0, done
            done = as_nobody(f.HEFT, "ls", **env)
            assert done.returncode == (0 if env else 4) and "cache" in done.stdout + done.stderr, done
        done = as_nobody(f.HEFT, "probe", "--measure", "--path", "/tmp", HOME="/proc")
        assert done.returncode == 0 and "memory copy" in done.stdout and "not remembered" in done.stderr, done


def a_name_that_is_taken_is_told():
    with f.Fleet() as fleet:
        model = fleet.model(table="small", size="400K", shards_=1)
        directory = f"file:{fleet.path('d.json')}"
        first = fleet.serve(model, "same", directory)
        first.line("serving as")
        assert "takes its name over" not in first.text()
        second = fleet.serve(model, "same", directory)
        second.line("takes its name over from the replica at")
        second.line("serving as")
        assert second.stop() == 0 and "stopped after serving for" in second.text()


def two_replicas_without_a_name_get_two():
    with f.Fleet() as fleet:
        model = fleet.model(table="small", size="400K", shards_=1)
        heftd = fleet.heftd()
        for name in ("a", "b"):
            fleet.start(name, f.HEFT, "serve", model, "--directory", heftd.address).line("serving as")
        names = {r["name"] for r in fleet.replicas(heftd.address)}
        assert len(names) == 2 and all(n.startswith(os.uname().nodename[:100] + "-") for n in names), names


def serving_in_json_is_one_event_a_line():
    with f.Fleet() as fleet:
        model = fleet.model(table="small", size="400K", shards_=1)
        p = fleet.start("json", f.HEFT, "serve", model, "--name", "one", "--json", "--quiet")
        p.line('"serving"')
        assert p.stop() == 0
        first, last = [json.loads(line) for line in p.text().splitlines()]
        assert first["event"] == "serving" and first["report"]["status"] == "OK" and first["addresses"]
        assert last == {"event": "stopped", "name": "one", "bytes_served": 0, "renewals": 0}


def on_a_terminal(fleet, command, columns, stop_at=None):
    """What the command writes to a terminal of so many columns; stop_at: Ctrl-C once that is there. (exit code, bytes)"""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(command[0], command, {**os.environ, **fleet.env})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    got, end, stopped = b"", time.monotonic() + f.WAIT, False
    while time.monotonic() < end:
        if not select.select([terminal], [], [], 0.1)[0]:
            continue
        try:
            piece = os.read(terminal, 65536)
        except OSError:
            break
        if not piece:
            break
        got += piece
        if stop_at and stop_at in got and not stopped:
            os.write(terminal, b"\x03")
            stopped = True
    else:
        os.kill(pid, signal.SIGKILL)
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), got


def slow_model(fleet, pace):
    """The URL of a model of 24 MiB that comes at `pace` bytes a tenth of a second and connection, and its server."""
    folder = fleet.model(table="large", size="24M", shards_=1)
    server = o.Scripted(o.files_of(folder, "/m"), lambda r: o.Fault(pace=pace) if r.first else None)
    fleet.env["HEFT_OBJECT_CONNECTIONS"] = "2"
    return server.url + "/m", server


def the_progress_line_fits_every_terminal():
    with f.Fleet() as fleet:
        url, server = slow_model(fleet, 1 << 20)
        with server:
            for columns in (40, 80, 132):
                code, got = on_a_terminal(fleet, [f.HEFT, "load", url], columns)
                assert code == 0, got
                bars = [b for b in got.split(b"\r\033[K") if b.startswith(b"move")]
                assert bars, got
                for bar in bars:
                    bar = bar.split(b"loaded")[0]
                    assert len(bar) < columns and b"\n" not in bar, (columns, bar)
                assert b"%" in bars[0] and (columns < 80 or b"#" in bars[-1]), bars


def control_c_ends_a_load_with_one_line():
    with f.Fleet() as fleet:
        url, server = slow_model(fleet, 64 << 10)
        with server:
            code, got = on_a_terminal(fleet, [f.HEFT, "load", url], 80, stop_at=b"move")
        text = got.split(b"\r\033[K")[-1].replace(b"^C", b"").decode().strip()
        assert code == 1 and text == "heft: load: CANCELED: the load was canceled", (code, text)


def complete(words, index):
    """What bash's completion offers for a line of words; the cursor is in words[index]."""
    quoted = " ".join("'" + w + "'" for w in words)
    script = (f"source <({f.HEFT} completion bash); COMP_WORDS=({quoted}); COMP_CWORD={index}; _heft; "
              'printf "%s\\n" "${COMPREPLY[@]}"')
    done = subprocess.run(["bash", "--norc", "-ec", script], capture_output=True, text=True, check=True)
    return [w for w in done.stdout.split("\n") if w]


def the_completion_works_in_bash():
    with f.Fleet() as fleet:
        assert complete(["heft", "lo"], 1) == ["load"]
        assert complete(["heft", "help", "pl"], 2) == ["plan"]
        assert complete(["heft", "load", "--max"], 2) == ["--max-host-memory"]
        assert complete(["heft", "plan", "--sha2"], 2) == []
        assert {"local", "tcp", "file"} <= set(complete(["heft", "load", "--require", ""], 3))
        assert complete(["heft", "load", "--source", "p"], 3) == ["peer"]
        assert complete(["heft", "completion", ""], 2) == ["bash"]
        assert complete(["heft", "ls", "--"], 2)[:1] == ["--help"]
        os.makedirs(fleet.path("models/one"))
        assert complete(["heft", "load", fleet.path("models/o")], 2) == [fleet.path("models/one")]
        done = subprocess.run(["bash", "--norc", "-ic", f"source <({f.HEFT} completion bash); complete -p heft"],
                              capture_output=True, text=True)
        assert "_heft heft" in done.stdout, done


def help_is_the_same_three_ways():
    with f.Fleet() as fleet:
        _, helped, _ = fleet.run("help", "load", check=0)
        for arguments in (("load", "--help"), ("load", "-h"), ("load", "x", "--bad", "--help")):
            assert fleet.run(*arguments)[:2] == (0, helped), arguments
        assert all(len(line) <= 110 and line == line.rstrip() for line in helped.splitlines()), helped
        assert fleet.run("--version")[1] == fleet.run("version")[1] == fleet.run("-V")[1]


TESTS = [an_error_is_one_sentence_with_its_own_exit_code, a_path_without_a_dot_is_asked_about,
         json_is_one_document_also_when_it_fails, a_directory_that_is_away_is_told_once,
         a_plan_names_the_transport_and_the_others_reasons, reports_leave_nothing_behind_when_nothing_is_in_them,
         outputs_that_are_gone_or_full_are_noticed, no_home_and_a_home_that_is_read_only, a_name_that_is_taken_is_told,
         two_replicas_without_a_name_get_two, serving_in_json_is_one_event_a_line, the_progress_line_fits_every_terminal,
         control_c_ends_a_load_with_one_line, the_completion_works_in_bash, help_is_the_same_three_ways]

if __name__ == "__main__":
    f.main(TESTS)
