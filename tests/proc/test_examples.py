#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs of others: the examples and the README's program, built against an installed heft with nothing but its public
headers and pkg-config, and run."""
import os
import re
import shlex
import shutil
import subprocess
import sys
import zlib

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fleet as f  # noqa: E402

FLAGS = ["-std=c17", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]


def plain_build():
    """None, or why programs of others can't be linked with this build."""
    with open(os.path.join(f.BUILD, "src", "libheft.so"), "rb") as library:
        text = library.read()
    return "this build has a sanitizer's runtime" if b"__asan_init" in text or b"__tsan_init" in text else None


class Installed:
    """heft in a folder of the test's own, as a package would put it on a machine."""

    def __init__(self, fleet):
        self.root = fleet.path("root")
        subprocess.run(["meson", "install", "-C", f.BUILD, "--no-rebuild", "--tags", "devel,runtime", "--destdir", self.root],
                       check=True, capture_output=True)
        found = subprocess.run(["find", self.root, "-name", "heft.pc"], check=True, capture_output=True, text=True).stdout
        self.pc = os.path.dirname(found.strip())
        with open(os.path.join(self.pc, "heft.pc")) as pc:
            self.prefix = self.root + re.search(r"^prefix=(.*)$", pc.read(), re.M).group(1)
        self.libdir = os.path.dirname(self.pc)

    def flags(self, package="heft"):
        out = subprocess.run(["pkg-config", f"--define-variable=prefix={self.prefix}", "--cflags", "--libs", package],
                             env={**os.environ, "PKG_CONFIG_PATH": self.pc}, check=True, capture_output=True, text=True)
        return shlex.split(out.stdout)

    def build(self, source, program, package="heft"):
        done = subprocess.run([os.environ.get("CC", "cc"), *FLAGS, source, *self.flags(package), "-o", program],
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def run(self, *command, **more):
        env = {**os.environ, "LD_LIBRARY_PATH": self.libdir}
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=f.WAIT, **more)


def the_examples_serve_and_load():
    if plain_build():
        return plain_build()
    with f.Fleet() as fleet:
        heft = Installed(fleet)
        for name in ("serve", "load"):
            heft.build(os.path.join(f.ROOT, "examples", f"{name}.c"), fleet.path(name))
        directory = f"file:{fleet.path('replicas.json')}"
        done = heft.run(fleet.path("load"), directory)
        assert done.returncode == 1 and "no replica of example/layer is known" in done.stderr, done
        serve = subprocess.Popen([fleet.path("serve"), directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                 env={**os.environ, "LD_LIBRARY_PATH": heft.libdir})
        try:
            assert serve.stdout.readline().startswith("serving as ")
            done = heft.run(fleet.path("load"), directory)
            assert done.returncode == 0, done
            assert done.stdout == ("layer.weight[64][0] = 8192, layer.weight[127][127] = 16383, layer.bias[255] = 127.5\n")
            serve.stdin.close()
            assert serve.wait(f.WAIT) == 0
        finally:
            if serve.poll() is None:
                serve.kill()
        assert fleet.replicas(directory) == []


class Two:
    """An example's two processes: the first stays until its standard input ends."""

    def __init__(self, heft, *command):
        self.command = command
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                        env={**os.environ, "LD_LIBRARY_PATH": heft.libdir})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def line(self):
        return self.process.stdout.readline().rstrip("\n")

    def say(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def end(self):
        """What it says to its end, which is a good one."""
        out, _ = self.process.communicate(timeout=f.WAIT)
        assert self.process.returncode == 0, (self.command, out)
        return out


def pages_are_pulled_files_passed_on_and_words_told():
    if plain_build():
        return plain_build()
    with f.Fleet() as fleet:
        heft = Installed(fleet)
        for name in ("kv_pull", "pipeline", "notify"):
            heft.build(os.path.join(f.ROOT, "examples", f"{name}.c"), fleet.path(name))
        card = fleet.path("kv.card")
        done = heft.run(fleet.path("kv_pull"), "decode", card)
        assert done.returncode == 1 and "No such file" in done.stderr, done
        with Two(heft, fleet.path("kv_pull"), "prefill", card) as prefill:
            assert prefill.line() == "serving 32 layers of 256 pages"
            done = heft.run(fleet.path("kv_pull"), "decode", card, "3")
            assert done.returncode == 0 and done.stdout.startswith("3 rounds of 2048 pages by local: "), done
            assert prefill.end() == ""
        done = heft.run(fleet.path("kv_pull"), "decode", card)
        assert done.returncode == 1 and "connecting: UNAVAILABLE" in done.stderr, done

        for size, room in ((3 << 20, 4), ((9 << 20) + 1, 16), (0, 1)):
            card, data = fleet.path(f"file.{size}"), os.urandom(size)
            with open(fleet.path("data"), "wb") as out:
                out.write(data)
            with Two(heft, fleet.path("pipeline"), "receive", card, str(room)) as receiver:
                assert receiver.line().startswith("ready for ")
                done = heft.run(fleet.path("pipeline"), "send", card, fleet.path("data"))
                assert done.returncode == 0 and done.stdout == f"sent {size} bytes\n", done
                assert receiver.end() == f"{size} bytes, {zlib.adler32(data):08x}\n"

        card = fleet.path("words.card")
        with Two(heft, fleet.path("notify"), "listen", card) as listener:
            assert listener.line() == "listening"
            done = heft.run(fleet.path("notify"), "tell", card, "one", "and two")
            assert done.returncode == 0, done
            assert listener.end() == "300 writes counted, their values make 44850\nteller says one\nteller says and two\n"
        for name in ("kv_pull", "pipeline", "notify"):
            done = heft.run(fleet.path(name), "nonsense")
            assert done.returncode == 2 and done.stderr.startswith("usage: "), done


def agents_find_each_other_and_tell_changes():
    if plain_build():
        return plain_build()
    with f.Fleet() as fleet:
        heft = Installed(fleet)
        heft.build(os.path.join(f.ROOT, "examples", "metadata.c"), fleet.path("metadata"), "heft-control")
        for directory in (f"file:{fleet.path('agents.json')}", fleet.heftd().address):
            with Two(heft, fleet.path("metadata"), "publish", directory, "me") as publisher:
                assert publisher.line() == "published me"
                with Two(heft, fleet.path("metadata"), "watch", directory, "me") as watcher:
                    assert re.fullmatch(r"epoch \d+: hello", watcher.line())
                    publisher.say("more")
                    assert re.fullmatch(r"epoch \d+: hello more", watcher.line())
                    publisher.end()
                    assert watcher.end() == "me is gone\n"


def the_program_of_the_readme_runs():
    if plain_build():
        return plain_build()
    with f.Fleet() as fleet:
        heft = Installed(fleet)
        with open(os.path.join(f.ROOT, "README.md")) as readme:
            program = re.search(r"```c\n(.*?)```", readme.read(), re.S).group(1)
        with open(fleet.path("program.c"), "w") as out:
            out.write(program)
        heft.build(fleet.path("program.c"), fleet.path("program"))
        model = fleet.model(table="small", size="400K", shards_=1)
        done = heft.run(fleet.path("program"), model)
        assert done.returncode == 0 and re.fullmatch(r"\S+: \S+, \d+ bytes at 0x[0-9a-f]+\n", done.stdout), done
        done = heft.run(fleet.path("program"), fleet.path("nowhere"))
        assert done.returncode == 1 and "no such file or folder" in done.stderr, done


def heft_and_heftd_run_from_where_they_are_installed():
    if plain_build():
        return plain_build()
    with f.Fleet() as fleet:
        heft = Installed(fleet)
        for program in ("heft", "heftd"):
            done = heft.run(os.path.join(heft.prefix, "bin", program), "--version")
            assert done.returncode == 0 and done.stdout.startswith(program + " "), done
        heftd = fleet.heftd()
        done = heft.run(os.path.join(heft.prefix, "bin", "heft"), "health", "--directory", heftd.address)
        assert done.returncode == 0, done  # libheft-control is found beside libheft


def a_plug_in_built_out_of_tree_moves_bytes_and_broken_ones_are_refused():
    if plain_build():
        return plain_build()
    with f.Fleet() as fleet:
        heft = Installed(fleet)
        folder = os.path.join(fleet.path("plugin"))
        shutil.copytree(os.path.join(f.ROOT, "examples", "plugin"), folder)
        plugins = {"wire.so": "", "old.so": "-DWIRE_ABI=7", "broken.so": "-DWIRE_BROKEN"}
        flags = " ".join(flag for flag in heft.flags() if flag.startswith("-I"))
        for name, define in plugins.items():  # pkg-config answers for the folder that it is installed into
            done = subprocess.run(["make", "-s", "-C", folder, f"CFLAGS=-O2 -Wall -Wextra -Werror {define} {flags}"],
                                  env={**os.environ, "PKG_CONFIG_PATH": heft.pc}, capture_output=True, text=True)
            assert done.returncode == 0, done
            os.rename(os.path.join(folder, "wire.so"), os.path.join(folder, "made-" + name))
        for name in plugins:
            os.rename(os.path.join(folder, "made-" + name), os.path.join(folder, name))
        with open(os.path.join(folder, "text.so"), "w") as text:
            text.write("no library\n")
        done = subprocess.run([os.environ.get("CC", "cc"), "-shared", "-o", os.path.join(folder, "none.so"), "-x", "c", "/dev/null"],
                              capture_output=True, text=True)
        assert done.returncode == 0, done
        heft.build(os.path.join(f.ROOT, "examples", "plugin", "use.c"), fleet.path("use"))
        for size in ("3000001", "1"):
            done = heft.run(fleet.path("use"), os.path.join(folder, "wire.so"), size)
            assert done.returncode == 0 and done.stdout == f"{size} bytes by wire: one thread copies\n", done
        for name, words in (("old.so", "has ABI 7, this library takes 1"), ("broken.so", "there is no wire in this machine"),
                            ("text.so", "text.so"), ("none.so", "has no symbol heft_transport_plugin"),
                            ("gone.so", "No such file")):
            done = heft.run(fleet.path("use"), os.path.join(folder, name))
            assert done.returncode == 1 and done.stderr.startswith("opening: plug-in ") and words in done.stderr, done
        # From the environment what can't be loaded is told and left out.
        os.remove(os.path.join(folder, "broken.so"))  # of the same name as wire.so
        env = {**os.environ, "LD_LIBRARY_PATH": heft.libdir, "HEFT_PLUGIN_PATH": folder}
        done = subprocess.run([os.path.join(heft.prefix, "bin", "heft"), "probe"], env=env, capture_output=True, text=True,
                              timeout=f.WAIT)
        assert done.returncode == 0 and re.search(r"^ok   wire +\S+/wire.so$", done.stdout, re.M), done.stdout
        assert "has ABI 7, this library takes 1" in done.stdout, done.stdout


TESTS = [a_plug_in_built_out_of_tree_moves_bytes_and_broken_ones_are_refused, the_examples_serve_and_load,
         pages_are_pulled_files_passed_on_and_words_told, agents_find_each_other_and_tell_changes,
         the_program_of_the_readme_runs, heft_and_heftd_run_from_where_they_are_installed]

if __name__ == "__main__":
    f.main(TESTS)
