#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The main job on GPUs, by the command line: over real GPUs, or over the driver without one (FAKE_CUDA=1, which meson
sets with LD_LIBRARY_PATH). Digests are compared with those that hashlib makes from the files."""
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "proc"))
import fleet as f  # noqa: E402
import object_servers as o  # noqa: E402

FAKE = "FAKE_CUDA" in os.environ
LOADS = os.path.join(os.environ.get("HEFT_BUILD", "build"), "tests/gpu/gpu_loads")
SIZE = os.environ.get("HEFT_TEST_SIZE", "24M" if FAKE else "4G")


def gpus(fleet):
    code, out, _ = fleet.run("probe", "--json")
    found = [x for x in json.loads(out)["findings"] if x["what"].startswith("cuda:") and x["good"]]
    return len(found)


def said(what, report):
    print(f"    {what}: {report['rate'] / 1e9:.1f} GB/s; " +
          ", ".join(f"{k} {v:.3f}" for k, v in report["stages"].items() if v >= 0.0005), flush=True)


def routes(report):
    return sorted({r["transport"] for s in report["sources"] for r in s["routes"] if r["bytes"]})


def disk_to_gpu_to_gpu_and_back():
    with f.Fleet() as fleet:
        count = gpus(fleet)
        if count == 0:
            return "no GPU"
        other = f"cuda:{1 if count > 1 else 0}"
        model, directory = fleet.model(size=SIZE), "file:" + fleet.path("fleet.json")
        expected = f.sha256_of_tensors(model)
        fleet.serve(model, "one", directory, "--device", "cuda:0", "--source", "file").line("serving as")
        second = fleet.load(model, "--device", other, "--source", "peer", "--directory", directory)
        assert second["sha256"] == expected
        assert routes(second) == ["cuda"] and second["verified"]["blocks"] == second["verified"]["blocks_total"] > 0
        said(f"GPU to {other}", second)
        two = fleet.serve(model, "two", directory, "--device", other, "--source", "peer")
        two.line("serving as")
        back = fleet.load(model, "--device", "cuda:0", "--source", "peer", "--directory", directory)
        assert back["sha256"] == expected
        to_host = fleet.load(model, "--source", "peer", "--directory", directory)
        assert to_host["sha256"] == expected and routes(to_host) == ["cuda"]
        from_disk = fleet.load(model, "--device", "cuda:0", "--source", "file")
        assert from_disk["sha256"] == expected and routes(from_disk) == ["cuda"]
        said("files to GPU", from_disk)
        said("GPU to host", to_host)
        mixed = fleet.load(model, "--device", "cuda:0", "--source", "file+peer", "--directory", directory)
        assert mixed["sha256"] == expected
        return None


def rates_of_larger_loads():
    """No digests outside: what the load itself takes."""
    with f.Fleet() as fleet:
        count = gpus(fleet)
        if FAKE or count == 0:
            return "no GPU"
        other = f"cuda:{1 if count > 1 else 0}"
        model, directory = fleet.model(size=os.environ.get("HEFT_TEST_LARGE", "16G")), "file:" + fleet.path("fleet.json")
        fleet.serve(model, "one", directory, "--device", "cuda:0", "--source", "file").line("serving as")
        for what, more in (("files to GPU", ["--source", "file"]),
                           ("files to GPU, unverified", ["--source", "file", "--no-verify"]),
                           ("GPU to GPU", ["--source", "peer"]),
                           ("GPU to GPU, unverified", ["--source", "peer", "--no-verify"]),
                           ("GPU to GPU, again", ["--source", "peer"]),
                           ("GPU to GPU, unverified, again", ["--source", "peer", "--no-verify"]),
                           ("GPU to GPU, 64M chunks", ["--source", "peer", "--chunk", "64M"]),
                           ("GPU to GPU, 64M chunks, unverified", ["--source", "peer", "--chunk", "64M", "--no-verify"]),
                           ("files to GPU, 16 workers", ["--source", "file", "--workers", "16"])):
            code, out, err = fleet.run("load", model, "--json", "--quiet", "--device", other, "--directory", directory,
                                       *more)
            assert code == 0, err
            said(what, json.loads(out))
        return None


def a_host_replica_is_a_source_for_gpus():
    with f.Fleet() as fleet:
        if gpus(fleet) == 0:
            return "no GPU"
        model, directory = fleet.model(size=SIZE), "file:" + fleet.path("fleet.json")
        fleet.serve(model, "one", directory).line("serving as")
        report = fleet.load(model, "--device", "cuda:0", "--source", "peer", "--directory", directory)
        assert report["sha256"] == f.sha256_of_tensors(model) and routes(report) == ["cuda"]
        said("host replica to GPU", report)
        ranks = fleet.load(model, "--device", "cuda:0", "--ranks", "4", "--rank", "2", "--split", "column", "--source",
                           "peer", "--directory", directory)
        on_host = fleet.load(model, "--ranks", "4", "--rank", "2", "--split", "column", "--source", "file")
        assert ranks["sha256"] == on_host["sha256"]
        return None


def what_no_transport_brings_to_a_gpu_goes_by_way_of_host_memory():
    with f.Fleet() as fleet:
        if gpus(fleet) == 0:
            return "no GPU"
        fleet.env.update({"NO_PROXY": "127.0.0.1"})
        size = "48M" if FAKE else "1G"
        model, directory = fleet.model(size=size), "file:" + fleet.path("fleet.json")
        expected = f.sha256_of_tensors(model)
        # A peer that passes no descriptors, as one of another host: from its host memory, and from its GPU.
        for name, device in (("host", "host"), ("gpu", "cuda:0")):
            own = "file:" + fleet.path(name + ".json")
            server = fleet.serve(model, name, own, "--device", device, "--source", "file", "--listen", "127.0.0.1:0")
            server.line("serving as")
            report = fleet.load(model, "--device", "cuda:0", "--source", "peer", "--directory", own)
            assert report["sha256"] == expected and routes(report) == ["tcp"], report["sources"]
            assert report["verified"]["blocks"] == report["verified"]["blocks_total"] > 0
            said(f"peer's {name} memory by tcp to GPU", report)
            to_host = fleet.load(model, "--source", "peer", "--directory", own)
            assert to_host["sha256"] == expected and routes(to_host) == ["tcp"]
            ranks = fleet.load(model, "--device", "cuda:0", "--ranks", "4", "--rank", "1", "--split", "column",
                               "--source", "peer", "--directory", own)
            on_host = fleet.load(model, "--ranks", "4", "--rank", "1", "--split", "column", "--source", "file")
            assert ranks["sha256"] == on_host["sha256"]
        server = o.Scripted({"/m/" + name: open(os.path.join(model, name), "rb").read() for name in os.listdir(model)})
        report = fleet.load(f"{server.url}/m/", "--device", "cuda:0")
        assert report["sha256"] == expected and routes(report) == ["object"], report["sources"]
        said("web server to GPU", report)
        return None


def unverified_replicas_make_their_digests_on_the_gpu():
    with f.Fleet() as fleet:
        if gpus(fleet) == 0:
            return "no GPU"
        model, directory = fleet.model(size="16M"), "file:" + fleet.path("fleet.json")
        fleet.serve(model, "one", directory, "--device", "cuda:0", "--no-verify").line("serving as")
        report = fleet.load(model, "--source", "peer", "--directory", directory)
        assert report["sha256"] == f.sha256_of_tensors(model)
        assert report["verified"]["blocks"] == report["verified"]["blocks_total"] > 0
        return None


def objects_on_a_gpu_are_compared_with_their_stores_checksums():
    with f.Fleet() as fleet:
        if gpus(fleet) == 0:
            return "no GPU"
        model = fleet.model(size="24M", shards_=2)
        files = o.files_of(model, "/b/m")
        name = next(n for n in files if n.endswith(".safetensors"))
        etag = '"%s"' % hashlib.md5(files[name]).hexdigest()
        with o.Scripted(files, lambda r: o.Fault(etag=etag) if r.path == name else None) as server:
            data = bytearray(files[name])
            data[len(data) // 2] ^= 1
            files[name] = bytes(data)
            env = {**server.env(), "NO_PROXY": "127.0.0.1"}
            report = fleet.load("s3://b/m", "--device", "cuda:0", env=env, check=1)
            assert report["error"]["code"] == "DIGEST" and "md5" in report["error"]["text"], report["error"]
            files[name] = bytes(data[:len(data) // 2]) + bytes([data[len(data) // 2] ^ 1]) + bytes(data[len(data) // 2 + 1:])
            report = fleet.load("s3://b/m", "--device", "cuda:0", env=env)
            assert report["sha256"] == f.sha256_of_tensors(model)
            assert [c["checked"] for c in report["checksums"]] == [True, True], report["checksums"]
            report = fleet.load("s3://b/m", "--device", "cuda:0", env=env)
            assert report["verified"]["blocks"] == report["verified"]["blocks_total"] > 0, report["verified"]
            files[name] = bytes(data)
            report = fleet.load("s3://b/m", "--device", "cuda:0", env=env, check=1)
            assert report["error"]["code"] == "DIGEST" and "block" in report["error"]["text"], report["error"]
        return None


def a_killed_source_leaves_nothing_behind():
    with f.Fleet() as fleet:
        if gpus(fleet) == 0:
            return "no GPU"
        model, directory = fleet.model(size=SIZE), "file:" + fleet.path("fleet.json")
        one = fleet.serve(model, "one", directory, "--device", "cuda:0")
        one.line("serving as")
        expected = f.sha256_of_tensors(model)
        for moment in range(4):
            two = fleet.start("two", f.HEFT, "load", model, "--device", "cuda:0", "--source", "peer+file", "--directory",
                              directory, "--sha256", fleet.path("sha"), "--json", "--quiet", "--chunk", "256K")
            time.sleep(0.05 + 0.1 * moment)
            one.kill()
            assert two.wait() == 0, two.text()
            assert f.read_sha256(fleet.path("sha")) == expected
            one = fleet.serve(model, f"one{moment}", directory, "--device", "cuda:0", "--source", "file")
            one.line("serving as")
        return None


def a_killed_target_leaves_the_source_and_the_memory_as_they_were():
    with f.Fleet() as fleet:
        if gpus(fleet) == 0:
            return "no GPU"
        model, directory = fleet.model(size=SIZE), "file:" + fleet.path("fleet.json")
        fleet.serve(model, "one", directory, "--device", "cuda:0").line("serving as")
        expected = f.sha256_of_tensors(model)
        for moment in range(3 if FAKE else 2):
            for stop in ("kill", "interrupt"):
                two = fleet.start("two", f.HEFT, "load", model, "--device", "cuda:0", "--source", "peer", "--directory",
                                  directory, "--json", "--quiet", "--chunk", "256K")
                time.sleep(0.03 + 0.15 * moment)
                if stop == "kill":
                    two.kill()
                elif two.running():
                    two.process.send_signal(signal.SIGINT)
                    two.wait()
        report = fleet.load(model, "--device", "cuda:0", "--source", "peer", "--directory", directory)
        assert report["sha256"] == expected and routes(report) == ["cuda"]
        return None


def hundreds_of_loads_in_a_row_leave_no_memory_behind():
    with f.Fleet() as fleet:
        if gpus(fleet) == 0:
            return "no GPU"
        model, rounds = fleet.model(size="8M" if FAKE else "256M"), "60" if FAKE else "200"
        env = {**os.environ, **fleet.env, **({"FAKE_CUDA_BYTES": str(64 << 20)} if FAKE else {})}
        done = subprocess.run([LOADS, model, rounds], env=env, capture_output=True, timeout=120, text=True)
        print("    " + done.stdout.strip(), flush=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return None


def tables_of_real_models_go_from_gpu_to_gpu():
    """One rank each, of its real size where the GPU is real: source and target on one GPU."""
    with f.Fleet() as fleet:
        if gpus(fleet) == 0:
            return "no GPU"
        for table, ranks in (("deepseek_v3_671b", 32), ("llama_3_3_70b", 8), ("qwen3_235b", 32)):
            model, directory = fleet.path(table), "file:" + fleet.path(table + ".json")
            small = ["--layers", "4", "--divide", "32"] if FAKE else []
            begin = time.monotonic()
            subprocess.run([sys.executable, os.path.join(f.ROOT, "scripts", "make-model"), model, "--table", table, "--ranks",
                            str(ranks), *small], check=True, stdout=subprocess.DEVNULL)
            made = time.monotonic() - begin
            server = fleet.serve(model, table, directory, "--device", "cuda:0", "--source", "file")
            server.line("serving as")
            code, out, err = fleet.run("load", model, "--json", "--quiet", "--device", "cuda:0", "--source", "peer",
                                       "--directory", directory, limit=120)
            assert code == 0, err
            report = json.loads(out)
            assert routes(report) == ["cuda"] and report["verified"]["blocks"] == report["verified"]["blocks_total"] > 0
            if FAKE:
                assert fleet.load(model, "--source", "peer", "--directory", directory)["sha256"] == f.sha256_of_tensors(model)
            server.kill()
            said(f"{table}, rank of {ranks}, {sum(os.path.getsize(os.path.join(model, x)) for x in os.listdir(model)) / 1e9:.2f}"
                 f" GB (made in {made:.0f} s)", report)
            shutil.rmtree(model)
        return None


def more_than_the_gpu_has_is_refused():
    with f.Fleet() as fleet:
        if not FAKE:
            return "real GPUs are too large"
        model = fleet.model(size="16M")
        code, _, err = fleet.run("load", model, "--device", "cuda:0", env={"FAKE_CUDA_BYTES": str(8 << 20)})
        assert code == 1 and "NO_MEMORY" in err and "GPU 0" in err, err
        code, _, err = fleet.run("load", model, "--device", "cuda:0", env={"FAKE_CUDA_NONE": "1"})
        assert code == 2 and "no GPU" in err and "host" in err, err
        code, out, _ = fleet.run("probe", "--json", env={"FAKE_CUDA_NONE": "1"})
        assert code == 0 and any("no GPU" in x["text"] for x in json.loads(out)["findings"])
        return None


def measured_limits_are_what_loads_are_held_against():
    with f.Fleet() as fleet:
        if gpus(fleet) == 0:
            return "no GPU"
        code, out, err = fleet.run("probe", "--measure", "--json", "--path", fleet.dir, limit=120)
        limits = json.loads(out)["limits"]
        assert code == 0 and limits["gpu_in"] > 0 and limits["gpu_out"] > 0 and limits["gpu_gpu"] > 0, (limits, err)
        print("    " + ", ".join(f"{key} {limits[key] / 1e9:.1f} GB/s" for key in ("gpu_in", "gpu_out", "gpu_gpu")))
        model = fleet.model(size="16M")
        report = fleet.load(model, "--device", "cuda:0")
        assert report["limit"]["what"] in ("host to GPU", "GPU to GPU") and report["limit"]["ratio"] > 0, report["limit"]
        return None


def the_plan_says_how():
    with f.Fleet() as fleet:
        if gpus(fleet) == 0:
            return "no GPU"
        model = fleet.model(size="16M")
        code, out, err = fleet.run("plan", model, "--device", "cuda:0")
        assert code == 0 and "by cuda" in out and "staged through pinned memory" in out, (out, err)
        code, out, err = fleet.run("load", model, "--device", "cuda:0", "--require", "tcp")
        assert code == 5 and "REQUIRED" in err, err
        return None


f.main([disk_to_gpu_to_gpu_and_back, rates_of_larger_loads, a_host_replica_is_a_source_for_gpus,
        what_no_transport_brings_to_a_gpu_goes_by_way_of_host_memory, unverified_replicas_make_their_digests_on_the_gpu,
        objects_on_a_gpu_are_compared_with_their_stores_checksums, a_killed_source_leaves_nothing_behind,
        a_killed_target_leaves_the_source_and_the_memory_as_they_were, hundreds_of_loads_in_a_row_leave_no_memory_behind,
        tables_of_real_models_go_from_gpu_to_gpu, more_than_the_gpu_has_is_refused,
        measured_limits_are_what_loads_are_held_against, the_plan_says_how])
