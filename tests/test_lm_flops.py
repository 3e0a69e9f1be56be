"""Parameters and operations of a model, against torch's own counts and by hand."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MixtralConfig

from internalize.lm.model_options import LmModelOptions
from internalize.lm.options import CurriculumOptions, LmMethod
from internalize.lm.stages.removal import TextStages
from internalize.lm.training.answer_costs import AnswerCosts, answer_costs
from internalize.lm.training.flops import Gpu, ModelSize, model_size
from tests.lm_core import chain

CONFIGS = {
    "gpt2": GPT2Config(vocab_size=11, n_positions=16, n_embd=8, n_layer=2, n_head=2),
    "llama": LlamaConfig(
        vocab_size=13,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
        max_position_embeddings=32,
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("rank", [0, 2])
def test_size_is_that_of_a_real_model(name: str, rank: int):
    options = LmModelOptions(model=name, lora_rank=rank)
    size = model_size(options, CONFIGS[name])
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(CONFIGS[name])
    assert size.parameters == sum(p.numel() for p in model.parameters())
    embeddings = 11 * 8 + 16 * 8 if name == "gpt2" else 13 * 8
    assert size.embedding == embeddings
    matrices = sum(p.numel() for p in model.parameters() if p.dim() > 1) - embeddings
    assert size.body + (0 if name == "gpt2" else size.head) == matrices  # GPT-2's head is its embedding
    assert size.head == model.get_output_embeddings().weight.numel()
    assert (size.layers, size.attention_width) == (2, 8 if name == "gpt2" else 16)
    if rank:
        from peft import LoraConfig, get_peft_model

        lora = LoraConfig(r=rank, target_modules="all-linear", task_type="CAUSAL_LM", fan_in_fan_out=name == "gpt2")
        adapted = get_peft_model(model, lora)
        assert size.adapters == adapted.get_nb_trainable_parameters()[0]


@pytest.mark.parametrize("name", CONFIGS)
def test_operations_are_those_counted_by_torch(name: str):
    from torch.utils.flop_counter import FlopCounterMode

    size = model_size(LmModelOptions(), CONFIGS[name])
    config = CONFIGS[name]
    config._attn_implementation = "eager"
    model: Any = AutoModelForCausalLM.from_config(config)
    ids = torch.ones(3, 7, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids).loss.backward()
    counted = counter.get_total_flops()
    assert size.training_flops(3 * 7, 3 * 7**2) == pytest.approx(counted, rel=0.01)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.generate(
            input_ids=ids[:1, :5], attention_mask=ids[:1, :5], max_new_tokens=4, min_new_tokens=4, do_sample=False,
            pad_token_id=0,
        )  # fmt: skip
    assert size.answer_flops(5, 4) == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_a_token_meets_only_some_experts():
    sizes: dict[str, Any] = {"vocab_size": 10, "hidden_size": 8, "intermediate_size": 4, "num_hidden_layers": 1}
    heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = MixtralConfig(**sizes, **heads, num_local_experts=4, num_experts_per_tok=2)
    size = model_size(LmModelOptions(), config)
    attention, router, expert = 4 * 8 * 8, 4 * 8, 3 * 8 * 4
    assert size.body == attention + router + 2 * expert
    assert size.parameters == attention + router + 4 * expert + 2 * 80 + 3 * 8  # embedding and head; three norms


def test_formulas_by_hand():
    size = ModelSize(parameters=0, embedding=0, body=100, head=10, adapters=0, layers=2, attention_width=4)
    assert size.training_flops(7, 25) == 6 * 110 * 7 + 12 * 2 * 4 * 25
    lora = replace(size, adapters=5)
    assert lora.training_flops(7, 25) == (4 * 110 + 6 * 5) * 7 + 12 * 2 * 4 * 25
    assert size.answer_flops(3, 4) == 2 * (100 * 6 + 10 * 4) + 4 * 2 * 4 * (9 + 4 + 5 + 6)
    assert size.answer_flops(3, 1) == 2 * (100 * 3 + 10) + 4 * 2 * 4 * 9
    assert Gpu(100.0, 0.5).hours(360_000) == 2.0


def test_slots_cost_more_than_they_save_if_there_are_many():
    """Chains of 2 and 4 tokens: 3 slots are as many as are saved, and 9 cost more. Writing is not compared with itself."""
    size = ModelSize(parameters=110, embedding=0, body=100, head=10, adapters=0, layers=1, attention_width=4)
    chains = [chain(2), chain(4)]

    def found(method: LmMethod, slots: int) -> AnswerCosts:
        return answer_costs(size, TextStages.measure(CurriculumOptions(method, slots=slots), [chain(9)], 0), chains)

    costs = found("icot-steps", 3)
    assert (costs.answer.given_tokens, costs.answer.generated_tokens) == (6, 3)
    assert (costs.written.given_tokens, costs.written.generated_tokens) == (3, 6)
    assert costs.written.flops == (size.answer_flops(3, 5) + size.answer_flops(3, 7)) / 2
    assert costs.warning is None
    line = found("icot-steps", 9).warning
    assert line is not None
    assert "9 slots, 3 generated tokens" in line
    assert "not 6 generated tokens" in line
    assert found("cot", 9).warning is None
    assert answer_costs(size, TextStages.measure(CurriculumOptions(), [chain(9)], 0), [chain()]).warning is None
