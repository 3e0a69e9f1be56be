"""Examples of different lengths, and small models of several architectures, for tests of generation."""

import random
from dataclasses import replace
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig

from internalize.lm.data.example import Example
from internalize.lm.options import CurriculumOptions
from internalize.lm.stages.chains import TextFormat, word_tokenizer
from internalize.lm.stages.removal import TextStages

ROPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
ROPE |= {"intermediate_size": 32, "max_position_embeddings": 64, "initializer_range": 0.5}
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "initializer_range": 0.5}
ARCHITECTURES: dict[str, tuple[Any, dict[str, Any]]] = {
    "gpt2": (GPT2Config, GPT2),
    "llama": (LlamaConfig, ROPE),
    "mistral": (MistralConfig, {**ROPE, "sliding_window": 4}),
}
DELETE = CurriculumOptions("icot-steps", removal="delete", keep_positions=True)
CURRICULA = {
    "pad": CurriculumOptions(levels="steps"),
    "delete": CurriculumOptions("icot-steps", removal="delete"),
    "keep": DELETE,
    "keep right": replace(DELETE, side="right"),
}


def ragged() -> list[Example]:
    """Return examples whose questions and chains differ in length."""
    draw = random.Random(0)

    def pick(letters: str, least: int, most: int) -> list[str]:
        return [draw.choice(letters) for _ in range(draw.randint(least, most))]

    return [
        Example(" ".join(pick("abcdef", 1, 9)), tuple(pick("uvw", 0, 5)), " ".join(pick("xyz", 1, 2))) for _ in range(7)
    ]


EXAMPLES = ragged()
TOKENIZER = word_tokenizer(EXAMPLES)
TEXT = TextFormat(TOKENIZER)
CHAINS = TEXT.chains(EXAMPLES)


def make(name: str, **changes: Any) -> Any:
    """Return a small random model of an architecture, in evaluation mode."""
    kind, options = ARCHITECTURES[name]
    torch.manual_seed(0)
    special = {"bos_token_id": None, "eos_token_id": TEXT.end, "pad_token_id": TEXT.pad, "loss_type": "ForCausalLM"}
    return AutoModelForCausalLM.from_config(
        kind(**{"vocab_size": len(TOKENIZER), **special, **options, **changes})
    ).eval()


def measured(options: CurriculumOptions) -> TextStages:
    """Return the stages of `CHAINS` under a curriculum."""
    return TextStages.measure(options, CHAINS, TEXT.slot)
