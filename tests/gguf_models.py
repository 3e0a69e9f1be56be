"""Small GGUF files, written by the package gguf, and functions that spoil them."""

from pathlib import Path

import gguf
import numpy as np

WIDTH, HEADS, FEED_FORWARD, LAYERS, POSITIONS = 16, 2, 32, 2, 64
SPECIAL = ("<|endoftext|>", "<|end|>")
PAIRS = ("||", "##")
CHARACTERS = "0123456789+-*/=<>|#Ġ"
TOKENS = len(SPECIAL) + len(PAIRS) + len(CHARACTERS)


def tiny_gguf(path: Path) -> Path:
    """Write a Llama with random weights and one token per character."""
    draw = np.random.default_rng(0)
    tokens = [*SPECIAL, *CHARACTERS, *PAIRS]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("Tiny")
    writer.add_block_count(LAYERS)
    writer.add_context_length(POSITIONS)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.NORMAL] * (len(tokens) - 2))
    writer.add_token_merges([" ".join(pair) for pair in PAIRS])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)

    def add(name: str, *shape: int) -> None:
        values = np.ones(shape) if "norm" in name else draw.normal(size=shape) * 0.1
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))

    add("token_embd", len(tokens), WIDTH)
    add("output_norm", WIDTH)
    for layer in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{name}", WIDTH, WIDTH)
        for name in ("attn_norm", "ffn_norm"):
            add(f"blk.{layer}.{name}", WIDTH)
        for name in ("ffn_gate", "ffn_up"):
            add(f"blk.{layer}.{name}", FEED_FORWARD, WIDTH)
        add(f"blk.{layer}.ffn_down", WIDTH, FEED_FORWARD)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
