#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Statistics of real processes: heft stats, heft top (plain and on a terminal), one place to scrape for many processes,
heftd's metrics with the agents of its host, and what a killed process leaves behind."""
import fcntl
import json
import os
import pty
import re
import select
import struct
import sys
import termios
import time
import urllib.error
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fleet as f  # noqa: E402
import object_servers as o  # noqa: E402


def watched(fleet):
    """Every process of this fleet counts in a folder of its own."""
    os.makedirs(fleet.path("stats"))
    fleet.env["HEFT_TELEMETRY"] = fleet.path("stats")
    return fleet


def stats(fleet, *arguments):
    return json.loads(fleet.run("stats", *arguments, "--json", check=0)[1])


def serving(fleet):
    model = fleet.model(table="small", size="4M", shards_=1)
    directory = f"file:{fleet.path('d.json')}"
    replica = fleet.serve(model, "replica-1", directory)
    replica.line("serving")
    return model, directory, replica


def numbers_move_and_a_killed_process_leaves_them():
    with f.Fleet() as fleet:
        watched(fleet)
        assert "no agents" in fleet.run("stats", check=0)[1]
        model, directory, replica = serving(fleet)
        agents = stats(fleet)
        assert [a["pid"] for a in agents] == [replica.process.pid] and agents[0]["state"] == "running", agents
        assert agents[0]["program"] == "heft" and agents[0]["regions"] > 0
        before = sum(t["bytes_read"] for t in agents[0]["transports"])
        assert before >= 4 << 20, agents  # from the files
        other = fleet.start("second", f.HEFT, "load", model, "--directory", directory, "--source", "peer", "--stay")
        other.line("serving")
        agents = {a["pid"]: a for a in stats(fleet)}
        mine = agents[other.process.pid]
        assert mine["connects"] == 1 and sum(t["bytes_read"] for t in mine["transports"]) >= 4 << 20, mine
        used = [t for t in mine["transports"] if t["done"]]
        assert used and all(t["read"]["count"] == t["done"] and 0 < t["read"]["p50_ns"] <= t["read"]["p99_ns"] for t in used)
        other.kill()
        left = stats(fleet, str(other.process.pid))
        assert [a["state"] for a in left] == ["ended"] and left[0]["connects"] == 1, left
        late = fleet.serve(model, "zz-late", directory)  # who runs comes before who ended, whatever the names
        late.line("serving")
        assert [a["state"] for a in stats(fleet)] == ["running", "running", "ended"]
        late.stop()
        text = fleet.run("stats", check=0)[1]
        assert "ENDED" in text and "READ" in text and "pieces" in text, text
        replica.stop()
        assert not [a for a in stats(fleet) if a["pid"] == replica.process.pid]  # closed: gone at once
        _, _, err = fleet.run("stats", "nobody", check=4)
        assert "'nobody'" in err, err
        with open(fleet.path("stats/1-0123.stats"), "wb") as bad:
            bad.write(b"HEFTSTAT" + b"\7" * 100)
        _, out, err = fleet.run("stats", "--json", check=0)
        assert len(json.loads(out)) == 1 and "1 files of statistics can't be read" in err and "version" in err, err


def telemetry_can_be_off_or_somewhere_else():
    with f.Fleet() as fleet:
        watched(fleet)
        model = fleet.model(table="small", size="400K", shards_=1)
        os.makedirs(fleet.path("elsewhere"))
        for where, seen in (("off", None), (fleet.path("elsewhere"), fleet.path("elsewhere"))):
            server = fleet.start("serve", f.HEFT, "serve", model, "--telemetry", where)
            server.line("serving")
            assert stats(fleet) == []
            if seen:
                assert len(stats(fleet, "--telemetry", seen)) == 1
            server.stop()
        server = fleet.start("serve", f.HEFT, "serve", model, "--telemetry", "/proc/nothing")
        server.line("no statistics for heft top")
        server.line("serving")  # without it the agent works all the same
        server.stop()
        assert "/nowhere" in fleet.run("stats", "--telemetry", "/nowhere", check=4)[2]


def get(url):
    with urllib.request.urlopen(url, timeout=f.WAIT) as answer:
        return answer.read().decode()


def check_prometheus(text):
    """The rules of the text format that a scraper would stumble over."""
    types, seen = {}, set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in types, f"{name} twice"
            types[name] = kind
        elif not line.startswith("#"):
            match = re.fullmatch(r'([a-z_]+)(\{(?:[a-z]+="(?:[^"\\\n]|\\.)*",?)*\})? (\S+)', line)
            assert match, line
            float(match.group(3))
            assert match.group(1, 2) not in seen, f"{line} twice"
            seen.add(match.group(1, 2))
            base = re.sub(r"_(bucket|sum|count)$", "", match.group(1))
            assert match.group(1) in types or types.get(base) == "histogram", line
    return text


def one_place_to_scrape_for_all_processes():
    with f.Fleet() as fleet:
        watched(fleet)
        model, directory, replica = serving(fleet)
        port = f.free_port()
        scrape = fleet.start("scrape", f.HEFT, "stats", "--serve", f"127.0.0.1:{port}")
        scrape.line("serving /metrics")
        fleet.load(model, "--directory", directory)
        text = check_prometheus(get(f"http://127.0.0.1:{port}/metrics"))
        assert f'heft_agent_up{{agent="replica-1",pid="{replica.process.pid}",program="heft"}} 1' in text, text
        assert re.search(r'heft_transport_bytes_read_total\{agent="replica-1".*transport="file"\} [1-9]', text), text
        assert re.search(r'heft_transport_transfer_seconds_count\{.*op="read"\} [1-9]', text), text
        more = [fleet.start(f"s{i}", f.HEFT, "serve", model, "--name", f"more-{i}") for i in range(3)]
        for process in more:
            process.line("serving")
        more[0].kill()
        text = check_prometheus(get(f"http://127.0.0.1:{port}/metrics"))
        assert len(re.findall(r"^heft_agent_up\{.*\} 1$", text, re.M)) == 3, text
        assert re.search(r'^heft_agent_up\{agent="more-0".*\} 0$', text, re.M), text
        assert check_prometheus(fleet.run("stats", "--prometheus", check=0)[1]).count("heft_agent_up{") == 4
        try:
            get(f"http://127.0.0.1:{port}/")
            raise AssertionError("/ is there")
        except urllib.error.HTTPError as error:
            assert error.code == 404
        _, _, err = fleet.run("stats", "--serve", f"127.0.0.1:{port}", check=1)
        assert "is the port free" in err, err  # a second one fails, and with it no agent
        for wrong in ("nonsense", "127.0.0.1:", "300.1.1.1:80", f"127.0.0.1:{'9' * 9}"):
            fleet.run("stats", "--serve", wrong, check=2)
        fleet.run("stats", "x", "--serve", f"127.0.0.1:{port}", check=2)
        assert scrape.stop() == 0


def heftd_tells_the_agents_of_its_host_when_asked():
    with f.Fleet() as fleet:
        watched(fleet)
        for asked in (True, False):
            heftd = fleet.heftd("memory:", 0, *(["--host-agents"] if asked else []))
            model = fleet.model(f"model-{asked}", table="small", size="400K", shards_=1)
            server = fleet.serve(model, "replica-1", heftd.address)
            server.line("serving")
            text = check_prometheus(get(f"http://{heftd.http}/metrics"))
            assert ('heft_agent_up{agent="replica-1"' in text) == asked, text
            server.stop()
            heftd.stop()


class Screen:
    """heft on a pseudo-terminal of a given size."""

    def __init__(self, fleet, rows, columns, *arguments):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(fleet.env)
            os.execv(f.HEFT, [f.HEFT, *arguments])
        self.text = b""
        self.size(rows, columns)

    def size(self, rows, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, word, limit=f.WAIT):
        """What came up to (and with) the word, since the last read."""
        end = time.monotonic() + limit
        while word.encode() not in self.text:
            assert time.monotonic() < end, (word, self.text)
            if select.select([self.fd], [], [], 1)[0]:
                try:
                    self.text += os.read(self.fd, 65536)
                except OSError:
                    raise AssertionError(f"ended before '{word}': {self.text}") from None
        found, self.text = self.text.split(word.encode(), 1)
        return found.decode(errors="replace")

    def picture(self):
        """The lines of the next whole picture."""
        self.read("\033[H")
        return [re.sub(r"\033\[[0-9?]*[a-zA-Z]", "", line) for line in self.read("\033[J").split("\r\n")]

    def end(self, key):
        os.write(self.fd, key)
        self.read("\033[?1049l")  # the screen is as it was
        _, status = os.waitpid(self.pid, 0)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)


def top_shows_the_agents_on_terminals_of_every_size():
    with f.Fleet() as fleet:
        watched(fleet)
        _, _, replica = serving(fleet)
        plain = fleet.run("top", "--once", "--interval", "60ms", check=0)[1]
        assert re.search(r"^AGENT +PID +READ +WRITE .*\nreplica-1 +%d " % replica.process.pid, plain), plain
        assert fleet.run("top", "--interval", "60ms", check=0)[1].startswith("AGENT")  # no terminal: once
        row = json.loads(fleet.run("top", "--interval", "60ms", "--json", check=0)[1])[0]
        assert row["agent"] == "replica-1" and row["interval"] >= 0.06 and row["read_rate"] == 0, row
        screen = Screen(fleet, 24, 100, "top", "--interval", "100ms")
        lines = screen.picture()
        assert lines[0].startswith("1 agents") and lines[1].startswith("AGENT") and lines[2].startswith("replica-1"), lines
        assert "PEERS" in lines[1]
        for rows, columns in ((24, 40), (10, 20), (4, 9), (2, 30), (1, 1), (50, 300)):
            screen.size(rows, columns)
            # The picture that was under way had the old size.
            fits = lambda ls: len([x for x in ls if x]) <= rows and all(len(x) <= max(columns, 8) for x in ls)  # noqa: E731
            f.until(lambda: fits(screen.picture()), f"a picture of {rows} x {columns}")
        assert screen.end(b"q") == 0
        screen = Screen(fleet, 24, 80, "top", "--interval", "1h")  # a key does not wait for the next picture
        screen.picture()
        assert screen.end(b"\x03") == 0
        for wrong in ("0", "soon", "2h"):
            fleet.run("top", "--interval", wrong, check=2)


def names_from_outside_do_nothing_to_a_terminal():
    with f.Fleet() as fleet:
        watched(fleet)
        model = fleet.model(table="small", size="400K", shards_=1)
        server = fleet.start("serve", f.HEFT, "serve", model, "--name", "röd \u202e\u009b31m\"x\\y")
        server.line("serving")
        for arguments in (("stats",), ("top", "--once", "--interval", "60ms"), ("stats", "--prometheus")):
            out = fleet.run(*arguments, check=0)[1]
            assert "röd" in out and "\u202e" not in out and "\u009b" not in out and "\033" not in out, out
        check_prometheus(fleet.run("stats", "--prometheus", check=0)[1])
        server.stop()


def what_a_store_is_asked_again_counts_as_retries():
    with f.Fleet() as fleet:
        watched(fleet)
        model = fleet.model(table="dense", size="24M", shards_=1)
        files = o.files_of(model, "/b/m")
        name = next(n for n in files if n.endswith(".safetensors"))
        # Every range of the data is refused once.
        server = o.Scripted(files, lambda r: o.Fault(status=503) if r.first and r.number == 1 else None)
        try:
            replica = fleet.start("serve", f.HEFT, "serve", server.url + name)
            replica.line("serving")
            found = [t for t in stats(fleet)[0]["transports"] if t["transport"] == "object"]
            assert found and found[0]["retries"] >= 2 and found[0]["bytes_read"] >= 24 << 20, found
            text = fleet.run("stats", "--prometheus", check=0)[1]
            assert re.search(r'heft_transport_retries_total\{.*transport="object"\} [1-9]', text), text
            replica.stop()
        finally:
            server.__exit__()


TESTS = [what_a_store_is_asked_again_counts_as_retries, numbers_move_and_a_killed_process_leaves_them, telemetry_can_be_off_or_somewhere_else,
         one_place_to_scrape_for_all_processes, heftd_tells_the_agents_of_its_host_when_asked,
         top_shows_the_agents_on_terminals_of_every_size, names_from_outside_do_nothing_to_a_terminal]

if __name__ == "__main__":
    f.main(TESTS)
