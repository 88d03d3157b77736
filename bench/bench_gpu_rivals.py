#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A model from tmpfs (or a disk) to one GPU: heft load beside safetensors, fastsafetensors, Run:ai's streamer and InstantTensor,
each at its default and at its best setting, in turn in one run.

  bench_gpu_rivals.py [--folder DIR] [--bytes 16G] [--rounds N] [--heft PATH]

Each side is a process of its own; its clock runs from before the first file is opened, with CUDA's context made, until all
tensors are on the GPU; heft's are the stages plan, move and verify of its report (its context is made in init), verified. Each
process loads three times, the median counts: the first one finds everything cold. Packages that are not there are left out
with a word. The bytes of one tensor are compared with the file's.
"""
import argparse
import glob
import json
import os
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LOADS = 3


def with_safetensors(files):
    from safetensors import safe_open
    tensors = {}
    for file in files:
        with safe_open(file, "pt", device="cuda:0") as opened:
            for name in opened.keys():
                tensors[name] = opened.get_tensor(name)
    return tensors


def with_fastsafetensors(files, threads=None, block=None):
    from fastsafetensors import SafeTensorsFileLoader
    loader = SafeTensorsFileLoader(None, device="cuda:0", nogds=True, **({"max_threads": threads} if threads else {}))
    loader.add_filenames({0: files})
    buffers = loader.copy_files_to_device(**({"max_copy_block_size": block} if block else {}))
    tensors = {name: buffers.get_tensor(name) for name in buffers.key_to_rank_lidx}
    tensors["keep"] = (loader, buffers)
    return tensors


def with_runai(files):
    from runai_model_streamer import SafetensorsStreamer
    with SafetensorsStreamer() as streamer:
        streamer.stream_files(files)
        return {name: tensor.to("cuda:0") for name, tensor in streamer.get_tensors()}


def with_instanttensor(files):
    from instanttensor import safe_open
    with safe_open(files, framework="pt", device=0) as opened:
        return {name: tensor.clone() for name, tensor in opened.tensors()}


RIVALS = {
    "safetensors": (with_safetensors, {}, {}),
    "fastsafetensors": (with_fastsafetensors, {}, {}),
    "fastsafetensors, 16 threads": (with_fastsafetensors, {"threads": 16, "block": 64 << 20}, {}),
    "Run:ai streamer": (with_runai, {}, {}),
    "Run:ai streamer, 16": (with_runai, {}, {"RUNAI_STREAMER_CONCURRENCY": "16", "RUNAI_STREAMER_MEMORY_LIMIT": "-1"}),
    "Run:ai streamer, 32": (with_runai, {}, {"RUNAI_STREAMER_CONCURRENCY": "32", "RUNAI_STREAMER_MEMORY_LIMIT": "-1"}),
    "InstantTensor": (with_instanttensor, {}, {}),
    "InstantTensor, mmap": (with_instanttensor, {}, {"INSTANTTENSOR_BACKEND": "MMAP"}),
    "InstantTensor, io_uring": (with_instanttensor, {}, {"INSTANTTENSOR_BACKEND": "URING"}),
}


def rival_main(name, folder):
    import torch
    load, options, _ = RIVALS[name]
    files = sorted(glob.glob(os.path.join(folder, "*.safetensors")))
    total = sum(os.path.getsize(file) for file in files)
    torch.zeros(1, device="cuda:0")
    took = []
    for _ in range(LOADS):
        torch.cuda.empty_cache()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        tensors = load(files, **options)
        torch.cuda.synchronize()
        took.append(time.perf_counter() - begin)
        kept, tensors = tensors, None
    with open(files[0], "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        tensor = max((key for key in header if key != "__metadata__"), key=lambda key: header[key]["data_offsets"][1])
        begin, end = header[tensor]["data_offsets"]
        file.seek(8 + size + begin)
        assert kept[tensor].contiguous().view(torch.uint8).cpu().numpy().tobytes() == file.read(end - begin), "other bytes"
    print(json.dumps({"rate": total / statistics.median(took) / 1e9}))


def heft_main(heft, folder, more):
    rates = []
    for _ in range(LOADS):
        done = subprocess.run([heft, "load", folder, "--json", "--quiet", "--device", "cuda:0", "--source", "file", *more],
                              capture_output=True, text=True, check=True)
        report = json.loads(done.stdout)
        stages = report["stages"]
        rates.append(report["bytes"] / sum(stages[name] for name in ("plan_s", "move_s", "verify_s")) / 1e9)
    return statistics.median(rates)


def main():
    if sys.argv[1:2] == ["rival"]:
        return rival_main(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default="/dev/shm")
    parser.add_argument("--bytes", default="16G")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--heft", default=os.path.join(ROOT, "build", "src", "cli", "heft"))
    options = parser.parse_args()
    folder = os.path.join(options.folder, f"gpu-rivals-{os.getpid()}")
    subprocess.run([sys.executable, os.path.join(ROOT, "scripts", "make-model"), folder, "--table", "dense", "--bytes",
                    options.bytes, "--shards", "4", "--seed", "1"], check=True, stdout=subprocess.DEVNULL)
    found = {}
    try:
        for _ in range(options.rounds):
            for name, more in (("heft", []), ("heft, unverified", ["--no-verify"])):
                found.setdefault(name, []).append(heft_main(options.heft, folder, more))
            for name, (_, _, environment) in RIVALS.items():
                if found.get(name) == []:
                    continue
                done = subprocess.run([sys.executable, os.path.abspath(__file__), "rival", name, folder], text=True,
                                      capture_output=True, env={**os.environ, **environment}, timeout=300, check=False)
                rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"rate"')]
                if done.returncode or not rows:
                    print(f"{name}: {' '.join(done.stderr.split()[-25:])}", flush=True)
                    found[name] = []
                    continue
                found.setdefault(name, []).append(rows[0]["rate"])
        best = statistics.median(found["heft"])
        for name, rates in found.items():
            if rates:
                print(f"{name:32} {statistics.median(rates):7.2f} GB/s ({min(rates):.1f}-{max(rates):.1f})"
                      f"   heft is {best / statistics.median(rates):.2f} of it", flush=True)
    finally:
        subprocess.run(["rm", "-rf", folder], check=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
