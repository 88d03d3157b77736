# SPDX-License-Identifier: Apache-2.0
"""Two places of one model, each behind a proxy that lets all its connections together pass at most a rate; for tests and benches.

    with Places(fleet, root, model, "peer", 20e6, 60e6) as places:
        report = places.load((0, 1), kill=1, after=0.5)

Place 0 is nginx; place 1 is another nginx's address (kind "objects") or a replica that has the model already ("peer")."""
import json
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fleet as f  # noqa: E402
import object_servers as o  # noqa: E402

PROXY = os.path.join(f.BUILD, "bench", "object_proxy")


def start_proxy(upstream_port, delay_ms=0, connection_rate=0, all_rate=0, port=None):
    """(process, port) of a proxy that accepts connections; rates in bytes a second, 0: without limit."""
    port = port or o.free_ports(1)[0]
    process = subprocess.Popen([PROXY, str(port), str(upstream_port), str(delay_ms), str(int(connection_rate)), str(int(all_rate))])
    f.until(lambda: o.accepts(port), "the proxy to listen")
    return process, port


def end(process):
    process.kill()
    process.wait()


class Places:
    def __init__(self, fleet, root, model, kind, *rates):
        self.fleet, self.kind, self.root = fleet, kind, root
        if not hasattr(fleet, "nginx"):
            fleet.nginx = o.Nginx(fleet, root)
        self.path = os.path.relpath(model, root)
        self.directory = fleet.path(f"directory.{len(fleet.processes)}.json")
        process, port = start_proxy(fleet.nginx.port)
        self.urls = [f"http://127.0.0.1:{port}/{self.path}"]
        upstream = self.start_replica() if kind == "peer" else fleet.nginx.port
        end(process)
        self.proxies = [start_proxy(fleet.nginx.port, all_rate=rates[0], port=port)[0]]
        process, port = start_proxy(upstream, all_rate=rates[1])
        self.proxies.append(process)
        self.urls.append(f"http://127.0.0.1:{port}/{self.path}")
        if kind == "peer":
            self.move_replica(upstream, port)

    def start_replica(self):
        """Loads by the first address, before that is slow: a model behind a URL is called by it. Its port."""
        self.replica = self.fleet.serve(self.urls[0], "replica", f"file:{self.directory}", "--listen", "127.0.0.1:0", "--telemetry", "off")
        self.replica.line("serving as")
        with open(self.directory) as file:
            return int(json.load(file)["records"][0]["addresses"].rsplit(":", 1)[1])

    def move_replica(self, there, here):
        """Loads are given a copy of the directory in which the replica is at the proxy, and lives for long."""
        with open(self.directory) as file:
            text = json.load(file)
        for record in text["records"]:
            record["addresses"] = record["addresses"].replace(f":{there}", f":{here}")
            record["lease_ms"] = 3600000
            record["lease_end_wall_ms"] += 3600000
        with open(self.directory + ".moved", "w") as file:
            json.dump(text, file)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.proxies:
            end(process)
        if self.kind == "peer":
            self.replica.stop()

    def load(self, which=(0, 1), kill=None, after=0, more=()):
        """heft load --json from those places; kill: this place dies so many seconds after the load was started."""
        command = [self.urls[which[0]]]
        if self.kind == "peer":
            command = [self.urls[0], "--directory", f"file:{self.directory}.moved"]
            if len(which) == 1:
                command += ["--source", ("object", "peer")[which[0]]]
        elif len(which) > 1:
            command += ["--mirror", self.urls[which[1]]]
        digests = self.fleet.path("throttled.sha256")
        command = [f.HEFT, "load", *command, "--json", "--quiet", "--sha256", digests, *more]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env={**os.environ, **self.fleet.env, "NO_PROXY": "127.0.0.1"})
        if kill is not None:
            time.sleep(after)
            self.proxies[kill].kill()
        out, err = process.communicate(timeout=f.WAIT * 4)
        if process.returncode != 0:
            raise AssertionError(f"{' '.join(command)}: exit code {process.returncode}\n{out.decode()}\n{err.decode()}")
        report = json.loads(out)
        report["sha256"] = f.read_sha256(digests)
        return report
