#!/usr/bin/env python3
"""Writes a model of 494 million random parameters in Hugging Face's layout of Llama: config.json, three shards and their index.

    folder.py FOLDER [LAYERS]

The sizes are those of Qwen2-0.5B: 24 layers of 14 heads over 2, 896 wide, 151,936 tokens, tied. Weights are bfloat16 of both signs
from 2^-7 to 2^-6, those of norms 1. Two calls write the same bytes.
"""

import json
import random
import struct
import sys
from pathlib import Path

WIDTH, HEADS, KV, HEAD, HIDDEN, VOCAB = 896, 14, 2, 64, 4864, 151936


def tensors(layers):
    yield "model.embed_tokens.weight", (VOCAB, WIDTH)
    for i in range(layers):
        at = f"model.layers.{i}."
        yield at + "input_layernorm.weight", (WIDTH,)
        yield at + "post_attention_layernorm.weight", (WIDTH,)
        for name, out in ("q", HEADS * HEAD), ("k", KV * HEAD), ("v", KV * HEAD):
            yield f"{at}self_attn.{name}_proj.weight", (out, WIDTH)
        yield at + "self_attn.o_proj.weight", (WIDTH, HEADS * HEAD)
        yield at + "mlp.gate_proj.weight", (HIDDEN, WIDTH)
        yield at + "mlp.up_proj.weight", (HIDDEN, WIDTH)
        yield at + "mlp.down_proj.weight", (WIDTH, HIDDEN)
    yield "model.norm.weight", (WIDTH,)


def content(shape, draw):
    n = 1
    for size in shape:
        n *= size
    if len(shape) == 1:
        return b"\x80\x3f" * n
    out = bytearray(2 * n)
    out[0::2] = draw.randbytes(n)
    out[1::2] = draw.randbytes(n).translate(bytes(0x3C if b < 128 else 0xBC for b in range(256)))
    return out


def main(folder, layers):
    folder.mkdir(parents=True, exist_ok=True)
    config = dict(model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=HIDDEN,
                  num_hidden_layers=layers, num_attention_heads=HEADS, num_key_value_heads=KV, head_dim=HEAD, hidden_act="silu",
                  max_position_embeddings=32768, rms_norm_eps=1e-6, rope_theta=1000000.0, tie_word_embeddings=True,
                  attention_bias=False, mlp_bias=False, torch_dtype="bfloat16")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    everything, shards, index, draw = list(tensors(layers)), 3, {}, random.Random(1)
    each = -(-len(everything) // shards)
    for s in range(shards):
        name = f"model-{s + 1:05}-of-{shards:05}.safetensors"
        part, header, at = everything[s * each:(s + 1) * each], {"__metadata__": {"format": "pt"}}, 0
        for key, shape in part:
            size = 2
            for n in shape:
                size *= n
            header[key], at = dict(dtype="BF16", shape=shape, data_offsets=[at, at + size]), at + size
            index[key] = name
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(folder / name, "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            for _, shape in part:
                f.write(content(shape, draw))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}, indent=2) + "\n")


main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 24)
