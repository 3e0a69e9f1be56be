"""supervised_loss.py: cross-entropy of the supervised tokens, at the last layer or at every layer."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM

from internalize.errors import InputError
from internalize.lm import Internalization
from internalize.lm.options import LmTrainOptions
from internalize.lm.stages.removal import IGNORED
from internalize.lm.training.collator import supervised_columns
from internalize.lm.training.supervised_loss import SupervisedLoss, held_out_loss

COMMON = {"num_hidden_layers": 3, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
SIZES: dict[str, Any] = {
    "gpt2": {"n_layer": 3, "n_embd": 16, "n_head": 2},
    "llama": COMMON,
    "gpt_neox": COMMON,
    "opt": {**COMMON, "ffn_dim": 32, "word_embed_proj_dim": 16},
    # The next two also have a norm of such a name in every layer.
    "biogpt": COMMON,
    "xglm": {"num_layers": 3, "d_model": 16, "ffn_dim": 32, "attention_heads": 2, "activation_dropout": 0.0},
}


def made(kind: str, **options: Any) -> Any:
    torch.manual_seed(0)
    ids = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    config = AutoConfig.for_model(kind, vocab_size=11, max_position_embeddings=32, **ids, **SIZES[kind], **options)
    config.loss_type = "ForCausalLM"
    return AutoModelForCausalLM.from_config(config).eval()  # no dropout


@pytest.fixture(scope="module")
def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, 11, (4, 9), generator=generator)
    labels = tokens.where(torch.rand(4, 9, generator=generator) < 0.5, torch.tensor(IGNORED))
    return {"input_ids": tokens, "labels": labels}


def gradients(model: Any, loss: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("kind", SIZES)
def test_weight_0_is_the_models_own_loss(kind: str, batch: dict[str, torch.Tensor]):
    model = made(kind)
    outputs = model(**batch)
    ours = SupervisedLoss(model)(outputs, batch["labels"])
    assert ours.item() == pytest.approx(outputs.loss.item(), rel=1e-6)
    for mine, theirs in zip(gradients(model, ours), gradients(model, model(**batch).loss), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("kind", [kind for kind in SIZES if SupervisedLoss(made(kind)).selects])
@pytest.mark.parametrize("columns", [(1, 3), (8,), (1, 2, 3, 4, 5, 6, 7, 8)])
def test_only_the_supervised_columns_reach_the_head(
    kind: str, columns: tuple[int, ...], batch: dict[str, torch.Tensor]
):
    """Values and gradients are those of the model's own loss, however many columns have no supervised token."""
    model, seen = made(kind), list[torch.Size]()
    labels = torch.full_like(batch["labels"], IGNORED)
    for row, column in enumerate((*columns, *columns[-1:] * 4)[:8]):  # in one row each, the others lack it
        labels[row % 4, column] = 1 + row
    kept = supervised_columns(labels)
    assert kept.tolist() == [column - 1 for column in columns]
    handle = model.get_output_embeddings().register_forward_hook(lambda _, given, result: seen.append(result.shape))
    ours = SupervisedLoss(model)(model(input_ids=batch["input_ids"], logits_to_keep=kept), labels)
    handle.remove()
    assert [shape[1] for shape in seen] == [len(columns)]
    theirs = model(input_ids=batch["input_ids"], labels=labels).loss
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)
    for mine, expected in zip(gradients(model, ours), gradients(model, theirs), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-7)


def test_most_architectures_skip_logits():
    assert {kind for kind in SIZES if SupervisedLoss(made(kind)).selects} >= {"gpt2", "llama", "gpt_neox", "opt"}


@pytest.mark.parametrize("kind", SIZES)
def test_the_norm_is_the_one_before_the_head(kind: str, batch: dict[str, torch.Tensor]):
    model = made(kind)
    loss, seen = SupervisedLoss(model, 1.0), []
    handle = loss.norm.register_forward_hook(lambda module, given, result: seen.append(result))
    outputs = model(**batch)
    handle.remove()
    assert len(seen) == 1
    torch.testing.assert_close(loss.head(seen[0]), outputs.logits)


def test_layers_below_count_by_their_weight(batch: dict[str, torch.Tensor]):
    model = made("gpt2")
    outputs = model(**batch, output_hidden_states=True)
    following = batch["labels"][:, 1:].flatten()

    def read(states: torch.Tensor) -> float:
        logits = model.lm_head(model.transformer.ln_f(states))[:, :-1].flatten(0, 1)
        return cross_entropy(logits, following, ignore_index=IGNORED).item()

    assert len(outputs.hidden_states) == 4
    below = [read(states) for states in outputs.hidden_states[1:3]]
    expected = outputs.loss.item() + 0.6 * sum(below) / 2
    assert SupervisedLoss(model, 0.6)(outputs, batch["labels"]).item() == pytest.approx(expected, rel=1e-5)


def test_parts_add_up_to_the_batch(batch: dict[str, torch.Tensor]):
    model = made("gpt2")
    loss = SupervisedLoss(model, 1.0)

    def of(rows: slice, count: int | None) -> float:
        part = model(input_ids=batch["input_ids"][rows], output_hidden_states=True)
        return loss(part, batch["labels"][rows], count).item()

    count = int((batch["labels"][:, 1:] != IGNORED).sum())
    assert of(slice(0, 1), count) + of(slice(1, 4), count) == pytest.approx(of(slice(0, 4), None), rel=1e-5)


def test_a_model_without_such_a_norm():
    class Bare(nn.Module):
        def get_output_embeddings(self) -> nn.Module:
            return nn.Linear(2, 2)

    with pytest.raises(InputError, match="Bare has none of the names ln_f, .*use --layer-loss 0"):
        SupervisedLoss(Bare(), 1.0)
    with pytest.raises(InputError, match="OPTForCausalLM has none of the names"):  # norms in its layers do not count
        SupervisedLoss(made("opt", do_layer_norm_before=False), 1.0)


def test_weights_in_half_precision(batch: dict[str, torch.Tensor]):
    """In mixed precision the weights stay as they are in their file while the states are float32."""
    model = made("gpt2").to(torch.bfloat16)
    outputs = model(**batch, output_hidden_states=True)
    loss = SupervisedLoss(model, 1.0)
    expected = loss(outputs, batch["labels"])
    outputs.hidden_states = tuple(states.float() for states in outputs.hidden_states)
    assert loss(outputs, batch["labels"]).item() == expected.item()


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_wrong_weights_are_refused(value: float):
    with pytest.raises(InputError, match="layer_loss="):
        LmTrainOptions(layer_loss=value)


@pytest.mark.parametrize(("hidden_loss", "supervised"), [(1.0, 2 + 3), (0.0, 3)])  # slots; separator, answer, end
def test_held_out_loss_is_that_of_each_example(hidden_loss: float, supervised: int):
    """It is the same in batches and one by one, with slots if training has them, and training mode is kept."""
    options = LmTrainOptions(data="parity:n=8,k=4", layers=1, width=8, heads=2, hidden_loss=hidden_loss)
    work = Internalization(options)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(work.config).train()
    examples = [work.source.train(position) for position in range(150)]
    loss, tokens = held_out_loss(model, work.text, work.stages, examples, work.stages.last, at_once=64)
    assert model.training
    assert tokens == supervised * len(examples)
    model.eval()
    total = 0.0
    for chain in work.text.chains(work.leveled(examples)):
        row = work.stages.training(chain, work.stages.last, (0.99, 0.0, 0.0, 0.0))
        total += supervised * model(torch.tensor([row.tokens]), labels=torch.tensor([row.labels])).loss.item()
    assert loss == pytest.approx(total, rel=1e-5)
