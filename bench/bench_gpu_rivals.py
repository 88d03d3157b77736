#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""From a model's files to one GPU: heft beside other loaders, in turn, each load in a process of its own.

  bench_gpu_rivals.py MODEL HEFT [ROUNDS [SECONDS [NAME ...]]]

safetensors, and whichever of InstantTensor, Run:ai's streamer and fastsafetensors python3 finds, at their defaults and at
other settings. Every loader's tensors lie on the GPU and outlive it; a process has its context before the clock starts (heft:
the stage `init` is left out), and the clock stops when the GPU has finished. Each load's bytes are compared with the headers
of the files, and once a setting its tensors' sums with those of the first loader that worked. The page cache is hot: read once before.

Prints: setting, GB/s of the whole load (median, lowest, highest), heft's while moving, or why a setting has none."""
import json
import os
import statistics
import subprocess
import sys
import time

RIVALS = {
    "safetensors": ("safetensors", {}),
    "instanttensor": ("instanttensor", {}),
    "instanttensor mmap": ("instanttensor", {"INSTANTTENSOR_BACKEND": "MMAP"}),
    "instanttensor mmap, 12 threads": ("instanttensor", {"INSTANTTENSOR_BACKEND": "MMAP", "INSTANTTENSOR_CONCURRENCY": "12"}),
    "instanttensor mmap, views": ("instanttensor_views", {"INSTANTTENSOR_BACKEND": "MMAP"}),
    "instanttensor uring": ("instanttensor", {"INSTANTTENSOR_BACKEND": "URING"}),
    "runai": ("runai", {}),
    "runai to the GPU": ("runai_device", {}),
    "runai to the GPU, 16 threads": ("runai_device", {"RUNAI_STREAMER_CONCURRENCY": "16"}),
    "runai to the GPU, 32 threads": ("runai_device", {"RUNAI_STREAMER_CONCURRENCY": "32"}),
    "fastsafetensors": ("fastsafetensors", {}),
    "fastsafetensors, 64 MiB blocks": ("fastsafetensors_blocks", {}),
}
HEFT = {
    "heft": [],
    "heft unverified": ["--no-verify"],
    "heft, 96M of staging": ["--max-host-memory", "96M"],
    "heft, 64M of staging": ["--max-host-memory", "64M"],
    "heft, 48M of staging": ["--max-host-memory", "48M"],
    "heft, 96M of staging, unverified": ["--max-host-memory", "96M", "--no-verify"],
    "heft, 4M chunks": ["--chunk", "4M"],
    "heft, 64M chunks": ["--chunk", "64M"],
    "heft, 10 workers": ["--workers", "10"],
    "heft, 14 workers": ["--workers", "14"],
}


def shards(model):
    return sorted(os.path.join(model, f) for f in os.listdir(model) if f.endswith(".safetensors"))


def tensor_bytes(files):
    count = 0
    for path in files:
        with open(path, "rb") as f:
            header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
            count += sum(t["data_offsets"][1] - t["data_offsets"][0] for k, t in header.items() if k != "__metadata__")
    return count


# ---- in a process of its own ----


def load(way, files):
    """The tensors by name, and what has to live as long as they do."""
    if way == "safetensors":
        from safetensors.torch import load_file

        found = {}
        for path in files:
            found.update(load_file(path, device="cuda:0"))
        return found, None
    if way.startswith("instanttensor"):
        from instanttensor import safe_open

        if way.endswith("views"):  # not kept: the floor of what it does before it copies
            with safe_open(files, framework="pt", device=0, copy=False) as f:
                return {k: (t.numel() * t.element_size(),) for k, t in f.tensors()}, None
        with safe_open(files, framework="pt", device=0) as f:
            return dict(f.tensors()), None
    if way.startswith("runai"):
        from runai_model_streamer import SafetensorsStreamer

        with SafetensorsStreamer() as streamer:
            if way.endswith("device"):
                streamer.stream_files(files, device="cuda:0")
            else:
                streamer.stream_files(files)
            return {k: t.to("cuda:0") for k, t in streamer.get_tensors()}, None
    from fastsafetensors import SafeTensorsFileLoader

    loader = SafeTensorsFileLoader(None, device="cuda:0", nogds=True, disable_cache=False)
    loader.add_filenames({0: files})
    buffers = loader.copy_files_to_device(**({"max_copy_block_size": 64 << 20} if way.endswith("blocks") else {}))
    return {k: buffers.get_tensor(k) for k in buffers.key_to_rank_lidx}, (loader, buffers)


def sum_of(tensor):
    """Of its bytes, each weighed by its place."""
    import torch

    words = tensor.contiguous().view(-1).clone().view(torch.uint8)
    words = words.view(torch.int64) if words.numel() % 8 == 0 else words.to(torch.int64)
    return int((words * torch.arange(1, 2 * words.numel() + 1, 2, device=words.device)).sum())


def child(way, files, summed):
    import torch

    for module in ("safetensors.torch", "instanttensor", "runai_model_streamer", "fastsafetensors"):
        if module.split(".")[0][:5] == way[:5]:
            __import__(module)
    torch.zeros(1 << 20, device="cuda:0").sum().item()
    torch.cuda.synchronize()
    begin = time.monotonic()
    tensors, kept = load(way, files)
    torch.cuda.synchronize()
    seconds = time.monotonic() - begin
    if way.endswith("views"):
        count, total = sum(t[0] for t in tensors.values()), None
    else:
        assert all(t.is_cuda for t in tensors.values())
        count = sum(t.numel() * t.element_size() for t in tensors.values())
        total = None
        total = {k: sum_of(t) for k, t in tensors.items()} if summed else None
    print(json.dumps({"seconds": seconds, "bytes": count, "sums": total}), flush=True)
    del tensors, kept
    os._exit(0)


# ---- all of them ----


def one_rival(model, way, env, summed):
    done = subprocess.run([sys.executable, os.path.abspath(__file__), "--child", way, model, str(int(summed))],
                          env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"seconds"')]
    if not lines:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1][:150])
    return json.loads(lines[-1])


def one_heft(heft, model, more):
    done = subprocess.run([heft, "load", model, "--json", "--quiet", "--device", "cuda:0", "--source", "file", *more],
                          capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-150:])
    report = json.loads(done.stdout)
    return {"seconds": sum(v for k, v in report["stages"].items() if k != "init_s"), "bytes": report["bytes"],
            "moving": report["rate"]}


def main(model, heft, rounds=3, seconds=300, *names):
    files = shards(model)
    expected, begin, rounds = tensor_bytes(files), time.monotonic(), int(rounds)
    wanted = [n for n in list(HEFT)[:2] + list(RIVALS) + list(HEFT)[2:] if not names or n in names]
    results, failed, reference = {n: [] for n in wanted}, {}, None
    for number in range(rounds):
        for name in wanted:
            if name in failed or time.monotonic() - begin > float(seconds):
                continue
            try:
                result = one_heft(heft, model, HEFT[name]) if name in HEFT else one_rival(model, *RIVALS[name], number == 0)
                if result["bytes"] != expected:
                    raise RuntimeError(f"{result['bytes']} bytes of {expected}")
                if result.get("sums"):
                    reference = reference or result["sums"]
                    if result["sums"] != reference:
                        raise RuntimeError("WRONG BYTES")
                results[name].append(result)
            except (RuntimeError, subprocess.TimeoutExpired, ValueError, KeyError) as why:
                failed[name] = f"{type(why).__name__}: {why}"
    print(f"{len(files)} files, {expected / 1e9:.2f} GB, {rounds} rounds in turn, {time.monotonic() - begin:.0f} s")
    print("setting\tGB/s\tlowest\thighest\twhile moving\tloads")
    for name, found in results.items():
        if name in failed:
            print(f"{name}\t-\t{failed[name]}")
        elif found:
            rates = [r["bytes"] / r["seconds"] / 1e9 for r in found]
            moving = f"{statistics.median(r['moving'] for r in found) / 1e9:.1f}" if "moving" in found[0] else ""
            print(f"{name}\t{statistics.median(rates):.1f}\t{min(rates):.1f}\t{max(rates):.1f}\t{moving}\t{len(found)}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    if sys.argv[1] == "--child":
        child(sys.argv[2], shards(sys.argv[3]), sys.argv[4] == "1")
    main(*sys.argv[1:])
