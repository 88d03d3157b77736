# SPDX-License-Identifier: Apache-2.0
"""What rank r of n keeps of a model, cut with numpy by what the architectures say of themselves: an account of its own, which
shares nothing with heft's rules. Elements are opaque; what is cut are their positions."""
import json
import os
import re

import numpy

import fleet as f

SIZES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "U8": 1}


def tensors_of(model):
    """{name: array of bytes with one more dimension, the element's bytes}."""
    found = {}
    for path in f.shards(model):
        header, start = f.read_header(path)
        with open(path, "rb") as file:
            data = file.read()[start:]
        for name, t in header.items():
            if name != "__metadata__":
                a, b = t["data_offsets"]
                found[name] = numpy.frombuffer(data[a:b], numpy.uint8).reshape(*t["shape"], SIZES[t["dtype"]])
    return found


def heads_of(rank, ranks, count):
    """The heads a rank computes with: its own ones, or one that it shares."""
    if count >= ranks:
        return numpy.arange(count * rank // ranks, count * (rank + 1) // ranks)
    return numpy.array([rank // (ranks // count)])


def rows_of_heads(heads, dim):
    return (heads[:, None] * dim + numpy.arange(dim)).ravel()


def even(rank, ranks, length, unit=1):
    n = length // unit
    return numpy.arange(n * rank // ranks * unit, n * (rank + 1) // ranks * unit)


class Slicer:
    def __init__(self, model):
        with open(os.path.join(model, "config.json")) as file:
            self.config = json.load(file)
        self.all = tensors_of(model)
        self.kind = self.config["model_type"]

    def index(self, name, rank, ranks):
        """(axis, indexes) of what the rank keeps, or None: everything."""
        c, shape = self.config, self.all[name].shape
        block = c.get("quantization_config", {}).get("weight_block_size", [1, 1])
        heads, kv = c["num_attention_heads"], c["num_key_value_heads"]
        if name.endswith("_scale_inv"):
            weight = self.index(name[:-len("_scale_inv")], rank, ranks)
            return weight and (weight[0], numpy.unique(weight[1] // block[weight[0]]))
        if re.search(r"(embed_tokens|lm_head|shared_head\.head)\.weight$", name):
            return 0, even(rank, ranks, shape[0])
        if m := re.search(r"self_attn\.(\w+?)(_proj)?(\.weight|\.bias)?$", name):
            part = m[1]
            if part in ("q", "q_b", "kv_b", "sinks"):
                return 0, rows_of_heads(heads_of(rank, ranks, heads), shape[0] // heads)
            if part in ("k", "v"):
                return 0, rows_of_heads(heads_of(rank, ranks, kv), shape[0] // kv)
            if part == "o" and m[3] == ".weight":
                return 1, rows_of_heads(heads_of(rank, ranks, heads), shape[1] // heads)
            if part == "qkv":
                dim = shape[0] // (heads + 2 * kv)
                q, k = heads_of(rank, ranks, heads), heads_of(rank, ranks, kv)
                return 0, rows_of_heads(numpy.concatenate([q, heads + k, heads + kv + k]), dim)
            return None
        if self.kind == "gpt_oss" and ".experts." in name:
            pairs = 2 * 32  # a gate and an up row for each of the 32 values that share a scale
            if "gate_up" in name:
                return 1, even(rank, ranks, shape[1], pairs)
            return None if name.endswith("bias") else (2, even(rank, ranks, shape[2]))
        if re.search(r"(mlp|shared_experts|experts\.\d+)\.(gate|up)_proj\.weight$|\.w[13]\.weight$", name):
            return 0, even(rank, ranks, shape[0], block[0])
        if re.search(r"(down_proj|\.w2)\.weight$", name):
            return 1, even(rank, ranks, shape[1], block[1])
        if name.endswith("gate_up_proj.weight"):
            half = shape[0] // 2
            return 0, numpy.concatenate([even(rank, ranks, half), half + even(rank, ranks, half)])
        return None

    def expert_of(self, name):
        m = re.search(r"experts\.(\d+)\.", name)
        return int(m[1]) if m else None

    def experts(self):
        return next(self.config[k] for k in ("n_routed_experts", "num_experts", "num_local_experts") if k in self.config)

    def layer_of(self, name):
        m = re.search(r"layers\.(\d+)\.", name)
        return int(m[1]) if m else None

    def rank(self, rank, ranks, spread=False):
        """{name: the rank's bytes}."""
        kept = {}
        for name, a in self.all.items():
            expert = self.expert_of(name)
            if spread and (expert is not None or ".experts." in name):
                n = self.experts()
                own = range(n * rank // ranks, n * (rank + 1) // ranks)
                if expert is None:
                    kept[name] = numpy.ascontiguousarray(a[list(own)])
                elif expert in own:
                    kept[name] = a
                continue
            cut = self.index(name, rank, ranks)
            kept[name] = a if cut is None else numpy.ascontiguousarray(numpy.take(a, cut[1], axis=cut[0]))
        return kept

    def copies(self, ranks, name):
        """How many bytes of the tensor several ranks keep, counted each time but the first."""
        cut = [self.index(name, r, ranks) for r in range(ranks)]
        a = self.all[name]
        if cut[0] is None:
            return (ranks - 1) * a.nbytes
        slice_bytes = a.nbytes // a.shape[cut[0][0]]
        every = numpy.concatenate([c[1] for c in cut])
        assert set(every) == set(range(a.shape[cut[0][0]])), f"{name}: the ranks together are not the tensor"
        return (len(every) - len(set(every))) * slice_bytes
