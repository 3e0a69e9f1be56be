"""Checkpoints of llama2.c become ordinary models; damaged ones are refused in one line."""

import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from internalize.errors import InputError
from internalize.lm.training.model_files import load_tokenizer, load_weights
from internalize.lm.training.train import train
from internalize.storage.runs import Run
from tests.lm_runs import TINY

WIDTH, HIDDEN, LAYERS, HEADS, KV_HEADS, POSITIONS = 16, 24, 2, 4, 2, 64
PIECES = [b" ", b"|", b"||", b" ||", b"#", b"##", b"####", b" ####", "é".encode(), b"1", b" 1"]
HEADER = (WIDTH, HIDDEN, LAYERS, HEADS, KV_HEADS, 259 + len(PIECES), POSITIONS)


def tokenizer_bytes(pieces: Sequence[bytes] = PIECES) -> bytes:
    special = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(bytes([byte]) for byte in range(256))]
    scores = [0.0] * len(special) + [-float(i) for i in range(len(pieces))]
    parts = (struct.pack("<fi", s, len(p)) + p for s, p in zip(scores, [*special, *pieces], strict=True))
    return struct.pack("<i", 8) + b"".join(parts)


def checkpoint(path: Path, header: Sequence[int] = HEADER) -> Path:
    """Write a checkpoint with random weights; a negative number of tokens means an output of its own."""
    draw, tokens = np.random.default_rng(0), abs(HEADER[5])
    keys, size = WIDTH // HEADS * KV_HEADS, WIDTH // HEADS
    per_layer = 2 * WIDTH + 2 * WIDTH**2 + 2 * keys * WIDTH + 3 * WIDTH * HIDDEN
    count = tokens * WIDTH * (1 if header[5] > 0 else 2) + LAYERS * per_layer + WIDTH + POSITIONS * size
    weights = (draw.normal(size=count) * 0.1).astype("<f4").tobytes()
    path.write_bytes(struct.pack("<7i", *header) + weights + tokenizer_bytes())
    return path


def reference(path: Path, tokens: Sequence[int]) -> np.ndarray:
    """Return the logits of the last token, computed as llama2.c does: pairs of neighbors are rotated."""
    data, at = (
        np.frombuffer(path.read_bytes()[28:], "<f4", count=(path.stat().st_size - 28 - len(tokenizer_bytes())) // 4),
        0,
    )

    def take(*shape: int) -> np.ndarray:
        nonlocal at
        at += int(np.prod(shape))
        return data[at - int(np.prod(shape)) : at].reshape(shape).astype(float)

    keys, size = WIDTH // HEADS * KV_HEADS, WIDTH // HEADS
    embedding, att_norm = take(HEADER[5], WIDTH), take(LAYERS, WIDTH)
    wq, wk, wv = take(LAYERS, WIDTH, WIDTH), take(LAYERS, keys, WIDTH), take(LAYERS, keys, WIDTH)
    wo, ffn_norm = take(LAYERS, WIDTH, WIDTH), take(LAYERS, WIDTH)
    w1, w2, w3 = take(LAYERS, HIDDEN, WIDTH), take(LAYERS, WIDTH, HIDDEN), take(LAYERS, HIDDEN, WIDTH)
    final = take(WIDTH)

    def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weight

    def rotated(x: np.ndarray) -> np.ndarray:
        angles = np.arange(len(tokens))[:, None] * 10000.0 ** (-np.arange(0, size, 2) / size)
        pairs = x.reshape(len(tokens), -1, size // 2, 2)
        turned = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * angles)[:, None]
        return np.stack([turned.real, turned.imag], -1).reshape(len(tokens), -1, size)

    x = embedding[list(tokens)]
    later = np.triu(np.full((len(tokens), len(tokens)), -np.inf), 1)
    for i in range(LAYERS):
        h = norm(x, att_norm[i])
        q, k = rotated(h @ wq[i].T), np.repeat(rotated(h @ wk[i].T), HEADS // KV_HEADS, 1)
        v = np.repeat((h @ wv[i].T).reshape(len(tokens), KV_HEADS, size), HEADS // KV_HEADS, 1)
        scores = np.exp(np.einsum("qhd,khd->hqk", q, k) / np.sqrt(size) + later)
        mixed = np.einsum("hqk,khd->qhd", scores / scores.sum(-1, keepdims=True), v)
        x = x + mixed.reshape(len(tokens), WIDTH) @ wo[i].T
        h = norm(x, ffn_norm[i])
        gate = h @ w1[i].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w3[i].T)) @ w2[i].T
    return (norm(x, final) @ embedding.T)[-1]


def test_the_model_computes_what_llama2c_computes(tmp_path: Path):
    path, tokens = checkpoint(tmp_path / "tiny.data"), [1, 40, 262, 50, 51, 99]
    with torch.no_grad():
        logits = load_weights(str(path))(input_ids=torch.tensor([tokens])).logits[0, -1]
    np.testing.assert_allclose(logits.numpy(), reference(path, tokens), atol=1e-4)


def test_the_tokenizer_merges_by_score_and_falls_back_to_bytes(tmp_path: Path):
    tokenizer = load_tokenizer(str(checkpoint(tmp_path / "tiny.data")))
    assert tokenizer
    ids = tokenizer("a é 1 ||")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["<s>", "<0x61>", "▁", "é", "▁1", "▁||"]
    for text in ("a é 1 ||", "你\nb", "  x"):
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_it_is_trained_and_saved_as_an_ordinary_model(tmp_path: Path):
    path = checkpoint(tmp_path / "tiny.data")
    train(replace(TINY, model=str(path), steps=4, stage_steps=2), 0, Run(tmp_path / "run"))
    folder = tmp_path / "run" / "model"
    assert AutoModelForCausalLM.from_pretrained(folder).config.model_type == "llama"
    assert AutoTokenizer.from_pretrained(folder)("1 ||")["input_ids"] == load_tokenizer(str(path))("1 ||")["input_ids"]  # pyright: ignore


def test_weights_and_tokenizer_in_two_files(tmp_path: Path):
    whole = checkpoint(tmp_path / "tiny.data").read_bytes()
    apart = tmp_path / "apart" / "model.bin"
    apart.parent.mkdir()
    apart.write_bytes(whole[: -len(tokenizer_bytes())])
    with pytest.raises(InputError, match=r"tokenizer is not beside it \(tokenizer.bin\)"):
        load_tokenizer(str(apart))
    (apart.parent / "tokenizer.bin").write_bytes(tokenizer_bytes())
    assert len(load_tokenizer(str(apart)) or ()) == HEADER[5]


def test_an_output_of_its_own(tmp_path: Path):
    model = load_weights(str(checkpoint(tmp_path / "own.data", (*HEADER[:5], -HEADER[5], POSITIONS))))
    assert not model.config.tie_word_embeddings
    assert not torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        (0, 2**31 - 2, "header says|not complete"),
        (0, 15, "header says"),
        (1, 0, "header says"),
        (2, 10**6, "header says"),
        (3, -4, "header says"),
        (4, 3, "header says"),
        (5, 2**31 - 1, "not complete"),
        (6, 2**31 - 1, "not complete"),
    ],
)
def test_headers_that_lie_are_refused(tmp_path: Path, field: int, value: int, reason: str):
    header = list(HEADER)
    header[field] = value
    path = checkpoint(tmp_path / "lie.data")
    path.write_bytes(struct.pack("<7i", *header) + path.read_bytes()[28:])
    with pytest.raises(InputError, match=reason) as error:
        load_weights(str(path))
    assert "\n" not in str(error.value)


def test_files_that_were_cut_off_are_refused(tmp_path: Path):
    path = checkpoint(tmp_path / "cut.data")
    whole = path.read_bytes()
    for length in (0, 27, 28, 1000, len(whole) - len(tokenizer_bytes()) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match="not a llama2.c checkpoint|not complete"):
            load_weights(str(path))
    for length in (len(whole) - len(tokenizer_bytes()), len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match="its tokenizer has|is damaged: token"):
            load_tokenizer(str(path))


@pytest.mark.parametrize(
    ("pieces", "reason"),
    [((b"\xff\xfe",), "is not UTF-8"), ((b"ab", b"ab"), "1 tokens occur twice"), ((b"",), "length of 0")],
)
def test_bad_tokens_are_refused(tmp_path: Path, pieces: tuple[bytes, ...], reason: str):
    path = checkpoint(tmp_path / "bad.data")
    weights = path.read_bytes()[: -len(tokenizer_bytes())]
    pieces = (*pieces, *PIECES)[: len(PIECES)]
    path.write_bytes(weights + tokenizer_bytes(pieces))
    with pytest.raises(InputError, match=reason):
        load_tokenizer(str(path))


def test_weights_that_are_not_finite_are_refused(tmp_path: Path):
    path = checkpoint(tmp_path / "nan.data")
    whole = path.read_bytes()
    path.write_bytes(whole[:28] + struct.pack("<f", float("nan")) + whole[32:])
    with pytest.raises(InputError, match="entries that are not finite"):
        load_weights(str(path))
