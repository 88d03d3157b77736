# SPDX-License-Identifier: Apache-2.0
"""Tensor tables and config.json of known architectures, small: (config, [(name, dtype, shape)])."""

BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "U8": 1}


def attention(p, config, hidden, bias=False, norms=False):
    heads, kv, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    for name, rows in (("q_proj", heads * dim), ("k_proj", kv * dim), ("v_proj", kv * dim)):
        yield p + f"self_attn.{name}.weight", "BF16", (rows, hidden)
        if bias:
            yield p + f"self_attn.{name}.bias", "BF16", (rows,)
    yield p + "self_attn.o_proj.weight", "BF16", (hidden, heads * dim)
    if norms:
        yield p + "self_attn.q_norm.weight", "BF16", (dim,)
        yield p + "self_attn.k_norm.weight", "BF16", (dim,)
    yield p + "input_layernorm.weight", "BF16", (hidden,)
    yield p + "post_attention_layernorm.weight", "BF16", (hidden,)


def mlp(p, hidden, inter):
    yield p + "gate_proj.weight", "BF16", (inter, hidden)
    yield p + "up_proj.weight", "BF16", (inter, hidden)
    yield p + "down_proj.weight", "BF16", (hidden, inter)


def ends(vocab, hidden, tied=False):
    yield "model.embed_tokens.weight", "BF16", (vocab, hidden)
    yield "model.norm.weight", "BF16", (hidden,)
    if not tied:
        yield "lm_head.weight", "BF16", (vocab, hidden)


def config_of(architecture, kind, layers, heads, kv, dim, hidden, **more):
    return {"architectures": [architecture], "model_type": kind, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": kv, "head_dim": dim, "hidden_size": hidden, **more}


def llama():
    c = config_of("LlamaForCausalLM", "llama", 3, 8, 4, 16, 64)
    t = list(ends(130, 64))
    for i in range(3):
        t += attention(f"model.layers.{i}.", c, 64)
        t += mlp(f"model.layers.{i}.mlp.", 64, 96)
    return c, t


def qwen2():
    """Fewer key and value heads than ranks; biases; the output matrix is the embedding."""
    c = config_of("Qwen2ForCausalLM", "qwen2", 2, 8, 2, 16, 64, tie_word_embeddings=True)
    t = list(ends(128, 64, tied=True))
    for i in range(2):
        t += attention(f"model.layers.{i}.", c, 64, bias=True)
        t += mlp(f"model.layers.{i}.mlp.", 64, 128)
    return c, t


def qwen3_moe():
    c = config_of("Qwen3MoeForCausalLM", "qwen3_moe", 2, 8, 4, 16, 64, num_experts=8)
    t = list(ends(128, 64))
    for i in range(2):
        p = f"model.layers.{i}."
        t += attention(p, c, 64, norms=True)
        t.append((p + "mlp.gate.weight", "BF16", (8, 64)))
        for e in range(8):
            t += mlp(p + f"mlp.experts.{e}.", 64, 32)
    return c, t


def mixtral():
    c = config_of("MixtralForCausalLM", "mixtral", 2, 8, 4, 16, 64, num_local_experts=4)
    t = list(ends(128, 64))
    for i in range(2):
        p = f"model.layers.{i}."
        t += attention(p, c, 64)
        t.append((p + "block_sparse_moe.gate.weight", "BF16", (4, 64)))
        for e in range(4):
            for name, shape in (("w1", (48, 64)), ("w2", (64, 48)), ("w3", (48, 64))):
                t.append((p + f"block_sparse_moe.experts.{e}.{name}.weight", "BF16", shape))
    return c, t


def deepseek_v3():
    """fp8 with a scale for each block of 16 x 16; one dense layer, two of experts, the last behind the model's own."""
    heads, nope, rope, v, hidden, block = 8, 16, 8, 16, 64, 16
    c = config_of("DeepseekV3ForCausalLM", "deepseek_v3", 2, heads, heads, nope + rope, hidden, n_routed_experts=4,
                  quantization_config={"quant_method": "fp8", "weight_block_size": [block, block]})
    t = list(ends(128, hidden))

    def fp8(name, rows, columns):
        t.append((name + ".weight", "F8_E4M3", (rows, columns)))
        t.append((name + ".weight_scale_inv", "F32", (-(-rows // block), -(-columns // block))))

    def fp8_mlp(p, inter):
        fp8(p + "gate_proj", inter, hidden)
        fp8(p + "up_proj", inter, hidden)
        fp8(p + "down_proj", hidden, inter)

    for i in range(3):
        p = f"model.layers.{i}."
        fp8(p + "self_attn.q_a_proj", 40, hidden)
        t.append((p + "self_attn.q_a_layernorm.weight", "BF16", (40,)))
        fp8(p + "self_attn.q_b_proj", heads * (nope + rope), 40)
        fp8(p + "self_attn.kv_a_proj_with_mqa", 40, hidden)
        t.append((p + "self_attn.kv_a_layernorm.weight", "BF16", (32,)))
        fp8(p + "self_attn.kv_b_proj", heads * (nope + v), 32)
        fp8(p + "self_attn.o_proj", hidden, heads * v)
        t.append((p + "input_layernorm.weight", "BF16", (hidden,)))
        t.append((p + "post_attention_layernorm.weight", "BF16", (hidden,)))
        if i == 0:
            fp8_mlp(p + "mlp.", 128)
            continue
        t.append((p + "mlp.gate.weight", "BF16", (4, hidden)))
        t.append((p + "mlp.gate.e_score_correction_bias", "F32", (4,)))
        fp8_mlp(p + "mlp.shared_experts.", 64)
        for e in range(4):
            fp8_mlp(p + f"mlp.experts.{e}.", 64)
    p = "model.layers.2."
    t += [(p + "embed_tokens.weight", "BF16", (128, hidden)), (p + "eh_proj.weight", "BF16", (hidden, 2 * hidden)),
          (p + "enorm.weight", "BF16", (hidden,)), (p + "hnorm.weight", "BF16", (hidden,)),
          (p + "shared_head.norm.weight", "BF16", (hidden,)), (p + "shared_head.head.weight", "BF16", (128, hidden))]
    return c, t


def gpt_oss():
    """Fused experts in mxfp4: blocks of 32 values in 16 bytes, gate and up rows interleaved; uneven in 4 ranks."""
    c = config_of("GptOssForCausalLM", "gpt_oss", 2, 8, 2, 16, 64, num_local_experts=4)
    hidden, inter, experts = 64, 160, 4
    t = list(ends(128, hidden))
    for i in range(2):
        p = f"model.layers.{i}."
        t += attention(p, c, hidden, bias=True)
        t += [(p + "self_attn.o_proj.bias", "BF16", (hidden,)), (p + "self_attn.sinks", "BF16", (8,)),
              (p + "mlp.router.weight", "BF16", (experts, hidden)), (p + "mlp.router.bias", "BF16", (experts,)),
              (p + "mlp.experts.gate_up_proj_blocks", "U8", (experts, 2 * inter, hidden // 32, 16)),
              (p + "mlp.experts.gate_up_proj_scales", "U8", (experts, 2 * inter, hidden // 32)),
              (p + "mlp.experts.gate_up_proj_bias", "BF16", (experts, 2 * inter)),
              (p + "mlp.experts.down_proj_blocks", "U8", (experts, hidden, inter // 32, 16)),
              (p + "mlp.experts.down_proj_scales", "U8", (experts, hidden, inter // 32)),
              (p + "mlp.experts.down_proj_bias", "BF16", (experts, hidden))]
    return c, t


def phi3():
    """Query, key and value in one tensor, gate and up in another."""
    c = config_of("Phi3ForCausalLM", "phi3", 2, 8, 4, 16, 64)
    t = list(ends(128, 64))
    for i in range(2):
        p = f"model.layers.{i}."
        t += [(p + "self_attn.qkv_proj.weight", "BF16", (16 * 16, 64)), (p + "self_attn.o_proj.weight", "BF16", (64, 128)),
              (p + "mlp.gate_up_proj.weight", "BF16", (2 * 96, 64)), (p + "mlp.down_proj.weight", "BF16", (64, 96)),
              (p + "input_layernorm.weight", "BF16", (64,)), (p + "post_attention_layernorm.weight", "BF16", (64,))]
    return c, t


# One rank of models as they are served: attention and dense layers divided among the ranks, experts spread over them.

def llama_3_3_70b(ranks, layers=80, divide=1):
    hidden, inter, vocab = 8192 // divide, 28672 // divide // ranks, 128256 // divide // ranks
    c = config_of("LlamaForCausalLM", "llama", layers, 64 // ranks, max(1, 8 // ranks), 128 // divide, hidden)
    t = list(ends(vocab, hidden))
    for i in range(layers):
        t += attention(f"model.layers.{i}.", c, hidden)
        t += mlp(f"model.layers.{i}.mlp.", hidden, inter)
    return c, t


def qwen3_235b(ranks, layers=94, divide=1):
    hidden, inter, experts = 4096 // divide, 1536 // divide, 128
    c = config_of("Qwen3MoeForCausalLM", "qwen3_moe", layers, 64 // ranks, max(1, 4 // ranks), 128 // divide, hidden,
                  num_experts=experts)
    t = list(ends(151936 // divide // ranks, hidden))
    for i in range(layers):
        p = f"model.layers.{i}."
        t += attention(p, c, hidden, norms=True)
        t.append((p + "mlp.gate.weight", "BF16", (experts, hidden)))
        for e in range(experts // ranks):
            t += mlp(p + f"mlp.experts.{e}.", hidden, inter)
    return c, t


def deepseek_v3_671b(ranks, layers=61, divide=1):
    hidden, vocab, experts, block = 7168 // divide, 129280 // divide // ranks, 256, 128
    heads, nope, rope, v = 128 // ranks, 128 // divide, 64 // divide, 128 // divide
    q_lora, kv_lora, inter, dense = 1536 // divide, 512 // divide, 2048 // divide, 18432 // divide // ranks
    c = config_of("DeepseekV3ForCausalLM", "deepseek_v3", layers, heads, heads, nope + rope, hidden,
                  n_routed_experts=experts,
                  quantization_config={"quant_method": "fp8", "weight_block_size": [block, block]})
    t = list(ends(vocab, hidden))

    def fp8(name, rows, columns):
        t.append((name + ".weight", "F8_E4M3", (rows, columns)))
        t.append((name + ".weight_scale_inv", "F32", (-(-rows // block), -(-columns // block))))

    def fp8_mlp(p, rows):
        fp8(p + "gate_proj", rows, hidden)
        fp8(p + "up_proj", rows, hidden)
        fp8(p + "down_proj", hidden, rows)

    for i in range(layers):
        p = f"model.layers.{i}."
        fp8(p + "self_attn.q_a_proj", q_lora, hidden)
        fp8(p + "self_attn.q_b_proj", heads * (nope + rope), q_lora)
        fp8(p + "self_attn.kv_a_proj_with_mqa", kv_lora + rope, hidden)
        fp8(p + "self_attn.kv_b_proj", heads * (nope + v), kv_lora)
        fp8(p + "self_attn.o_proj", hidden, heads * v)
        t += [(p + "self_attn.q_a_layernorm.weight", "BF16", (q_lora,)),
              (p + "self_attn.kv_a_layernorm.weight", "BF16", (kv_lora,)),
              (p + "input_layernorm.weight", "BF16", (hidden,)), (p + "post_attention_layernorm.weight", "BF16", (hidden,))]
        if i < 3:
            fp8_mlp(p + "mlp.", dense)
            continue
        t += [(p + "mlp.gate.weight", "BF16", (experts, hidden)), (p + "mlp.gate.e_score_correction_bias", "F32", (experts,))]
        fp8_mlp(p + "mlp.shared_experts.", max(1, inter // ranks))
        for e in range(experts // ranks):
            fp8_mlp(p + f"mlp.experts.{e}.", inter)
    return c, t


RANKS = {f.__name__: f for f in (deepseek_v3_671b, llama_3_3_70b, qwen3_235b)}
ALL = {f.__name__: f for f in (llama, qwen2, qwen3_moe, mixtral, deepseek_v3, gpt_oss, phi3)}
