"""Checkpoints of llama2.c: small Llamas in float32, such as stories15M.

| part         | content                                                                                                  |
| ------------ | -------------------------------------------------------------------------------------------------------- |
| header       | 7 integers: width, feed-forward width, layers, heads, key-value heads, tokens, positions; the number of  |
|              | tokens is negative if the output has weights of its own                                                  |
| weights      | in the order of `_Checkpoint.shapes`, each for all layers at once                                        |
| tokenizer    | an integer (the longest token's bytes), then for each token a score, its number of bytes, and its bytes  |

The tokenizer follows the weights in a file whose name ends in .data, and is tokenizer.bin beside one that ends in .bin.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from internalize.environment import check_memory
from internalize.errors import InputError
from internalize.lm.model_options import MAX_LAYERS
from internalize.storage.files import present, reading

SUFFIXES: Final = (".data", ".bin")
_HEADER: Final = struct.Struct("<7i")
_UNKNOWN, _BEGIN, _END, _BYTES = 0, 1, 2, 3
"""The first tokens: unknown, begin, end, and one for each byte."""
_FIRST_PIECE: Final = _BYTES + 256
_SPACE: Final = "▁"
"""The character that stands for a blank in tokens, as in sentencepiece."""


def llama2c_file(name: str) -> Path | None:
    """Return the llama2.c checkpoint that a model's name stands for, or None."""
    path = Path(name)
    return path if path.suffix in SUFFIXES and path.is_file() else None


@dataclass(frozen=True)
class _Checkpoint:
    """The header of a checkpoint."""

    path: Path
    width: int
    feed_forward: int
    layers: int
    heads: int
    kv_heads: int
    tokens: int
    positions: int

    @classmethod
    def read(cls, path: Path) -> "_Checkpoint":
        """Read the header. Refuse sizes that no model has, or that the file is too short for."""
        with reading(path), path.open("rb") as file:
            header = file.read(_HEADER.size)
            size = path.stat().st_size
        if len(header) < _HEADER.size:
            raise InputError(f"{path} is not a llama2.c checkpoint: it has {len(header)} bytes")
        found = cls(path, *_HEADER.unpack(header))
        width, heads, kv_heads = found.width, found.heads, found.kv_heads
        sound = (
            min(width, found.feed_forward, found.layers, heads, kv_heads, found.positions) > 0
            and abs(found.tokens) > _FIRST_PIECE
            and found.layers <= MAX_LAYERS
            and width % (2 * heads) == 0
            and heads % kv_heads == 0
        )
        if not sound:
            raise InputError(f"{path} is not a llama2.c checkpoint: its header says {_HEADER.unpack(header)}")
        if size < found.end:
            raise InputError(f"{path} is not complete: it has {size} of {found.end} bytes")
        check_memory(2 * found.end, f"{path}: its weights")
        return found

    @property
    def tied(self) -> bool:
        """Whether the output shares the weights of the embedding."""
        return self.tokens > 0

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The weights in the order of the file, with shapes. The names are those of a Llama of transformers."""
        layers, width, hidden = self.layers, self.width, self.feed_forward
        keys = width // self.heads * self.kv_heads
        return {
            "model.embed_tokens": (abs(self.tokens), width),
            "input_layernorm": (layers, width),
            "self_attn.q_proj": (layers, width, width),
            "self_attn.k_proj": (layers, keys, width),
            "self_attn.v_proj": (layers, keys, width),
            "self_attn.o_proj": (layers, width, width),
            "post_attention_layernorm": (layers, width),
            "mlp.gate_proj": (layers, hidden, width),
            "mlp.down_proj": (layers, width, hidden),
            "mlp.up_proj": (layers, hidden, width),
            "model.norm": (width,),
            "cosines and sines": (self.positions, width // self.heads),  # not used: transformers computes them
            **({} if self.tied else {"lm_head": (abs(self.tokens), width)}),
        }

    @property
    def end(self) -> int:
        """The place of the first byte after the weights."""
        return _HEADER.size + 4 * sum(math.prod(shape) for shape in self.shapes.values())

    def weights(self) -> Iterator[tuple[str, Any]]:
        """Yield the weights of the file as arrays, by their names in transformers."""
        import numpy as np

        data, at = np.memmap(self.path, "<f4", "r", _HEADER.size, ((self.end - _HEADER.size) // 4,)), 0
        for name, shape in self.shapes.items():
            values = np.array(data[at : at + math.prod(shape)]).reshape(shape)
            at += math.prod(shape)
            if name.startswith(("model.", "lm_head")):
                yield f"{name}.weight", values
            elif name != "cosines and sines":
                for layer, part in enumerate(values):
                    rotated = name.endswith(("q_proj", "k_proj"))
                    yield f"model.layers.{layer}.{name}.weight", self._halves(part) if rotated else part

    def _halves(self, weight: Any) -> Any:
        """Return the rows of each head in the order of transformers, which rotates halves where llama2.c rotates pairs."""
        size = self.width // self.heads
        return weight.reshape(-1, size // 2, 2, self.width).swapaxes(1, 2).reshape(-1, self.width).copy()

    def config(self) -> Any:
        """Return the config of the model."""
        from transformers import LlamaConfig

        return LlamaConfig(
            vocab_size=abs(self.tokens),
            hidden_size=self.width,
            intermediate_size=self.feed_forward,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            max_position_embeddings=self.positions,
            rms_norm_eps=1e-5,
            tie_word_embeddings=self.tied,
            bos_token_id=_BEGIN,
            eos_token_id=_END,
        )

    def pieces(self) -> list[tuple[float, bytes]]:
        """Return the score and the bytes of each token."""
        beside = self.path.with_name("tokenizer.bin")
        path, at = (self.path, self.end) if self.path.suffix == ".data" else (beside, 0)
        if not present(path):
            raise InputError(f"{self.path}: its tokenizer is not beside it ({path.name})")
        with reading(path), path.open("rb") as file:
            file.seek(at + 4)
            data = file.read()
        found: list[tuple[float, bytes]] = []
        at = 0
        for token in range(abs(self.tokens)):
            if at + 8 > len(data):
                raise InputError(f"{path} is not complete: its tokenizer has {token} of {abs(self.tokens)} tokens")
            score, length = struct.unpack_from("<fi", data, at)
            piece = data[at + 8 : at + 8 + length]
            if length < 1 or len(piece) < length or not math.isfinite(score):
                raise InputError(f"{path} is damaged: token {token} has a length of {length} bytes, score {score}")
            found.append((score, piece))
            at += 8 + length
        return found


def config_of(path: Path) -> Any:
    """Return the config of a checkpoint."""
    return _Checkpoint.read(path).config()


def model_of(path: Path) -> Any:
    """Return the model of a checkpoint, in float32."""
    import torch
    from transformers import LlamaForCausalLM
    from transformers.initialization import no_init_weights

    found = _Checkpoint.read(path)
    build: Any = LlamaForCausalLM  # transformers leaves its types half open
    with no_init_weights():
        model = build(found.config())
    model.load_state_dict({name: torch.from_numpy(values) for name, values in found.weights()}, strict=not found.tied)
    model.tie_weights()
    return model.eval()


def tokenizer_of(path: Path) -> Any:
    """Return the tokenizer of a checkpoint: byte-pair encoding in the order of its scores, with a token for each byte.

    Departs from llama2.c: no blank is put before a text, so that the pieces of a text give the tokens of the whole.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, normalizers, processors
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    pieces = _Checkpoint.read(path).pieces()
    special = ["<unk>", "<s>", "</s>"]
    names = [*special, *(f"<0x{byte:02X}>" for byte in range(256))]
    for number, (_, piece) in enumerate(pieces[_FIRST_PIECE:], _FIRST_PIECE):
        try:
            names.append(piece.decode().replace(" ", _SPACE))
        except UnicodeDecodeError:
            raise InputError(f"{path} is damaged: token {number} is not UTF-8") from None
    vocabulary = {name: number for number, name in enumerate(names)}
    if len(vocabulary) < len(names):
        raise InputError(f"{path} is damaged: {len(names) - len(vocabulary)} tokens occur twice")
    merges = [
        (-pieces[number][0], vocabulary[name[:cut]], vocabulary[name[cut:]])
        for name, number in list(vocabulary.items())[_FIRST_PIECE:]
        for cut in range(1, min(len(name), 64))
        if name[:cut] in vocabulary and name[cut:] in vocabulary
    ]
    pairs = [(names[left], names[right]) for _, left, right in sorted(merges)]
    parts: Any = Tokenizer(BPE(vocabulary, pairs, unk_token=special[0], fuse_unk=True, byte_fallback=True))
    parts.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    parts.normalizer = normalizers.Replace(" ", _SPACE)
    parts.decoder = decoders.Sequence([decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    parts.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", _BEGIN)])
    unknown, begin, end = special
    return PreTrainedTokenizerFast(
        tokenizer_object=parts, unk_token=unknown, bos_token=begin, eos_token=end, model_max_length=10**9
    )
