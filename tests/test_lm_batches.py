"""lm/training/collator.py: positions become batches, the same in any portions, with replay and smoothing as drawn."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader

from internalize.lm.data.example import Example
from internalize.lm.data.tasks import Parity
from internalize.lm.options import CurriculumOptions, Replay, ScheduleOptions
from internalize.lm.stages.chains import TextFormat, word_tokenizer
from internalize.lm.stages.removal import IGNORED, TextStages
from internalize.lm.stages.schedule import Schedule
from internalize.lm.training.collator import Positions, StageCollator, padded

BATCH = 16
SAMPLE = Parity(16, 8).examples("train", 0, 64)
TOKENIZER = word_tokenizer(SAMPLE)
MIXED = [Example("1 0", ("a", "b b"), "1"), Example("1", (), "a"), Example("0 0 0 1", ("a b c", "c", "a a"), "b b")]


def parities(positions: Sequence[int]) -> list[Example]:
    """A source of parities, one for each position."""
    return [Parity(16, 8).example("train", position) for position in positions]


def repeating(*examples: Example) -> Callable[[Sequence[int]], list[Example]]:
    """Return a source that repeats these examples."""
    return lambda positions: [examples[position % len(examples)] for position in positions]


def collator(
    source: Any = parities,
    *,
    examples: list[Example] = SAMPLE,
    schedule: dict[str, Any] | None = None,
    updates_per_epoch: int | None = None,
    batch: int = BATCH,
    seed: int = 0,
    **options: Any,
) -> StageCollator:
    """Return a collator of parities or of another source. A stage takes two updates by default."""
    chosen = CurriculumOptions(**options)
    tokenizer = TOKENIZER if examples is SAMPLE else word_tokenizer(examples)
    text = TextFormat(tokenizer, "token" if chosen.method == "icot" else "step")
    stages = TextStages.measure(chosen, text.chains(examples), text.slot)
    timing = ScheduleOptions(**(schedule or {"advance": "steps", "stage_steps": 2}))
    return StageCollator(source, text, stages, Schedule(timing, stages.count, updates_per_epoch), batch, seed)


def rows(batch: dict[str, Tensor]) -> list[dict[str, list[int]]]:
    """Return the rows of a batch without their padding, which depends on the other rows."""
    lengths = batch["attention_mask"].sum(1).tolist()
    return [{name: t[i, :length].tolist() for name, t in batch.items()} for i, length in enumerate(lengths)]


def slots(batch: dict[str, Tensor], collate: StageCollator) -> list[int]:
    """Count the slots of each row."""
    real = batch["attention_mask"].bool()
    return ((batch["input_ids"] == collate.text.slot) & real).sum(1).tolist()


@pytest.mark.parametrize("keep_positions", [False, True])
def test_shapes_and_padding(keep_positions: bool):
    """Rows of different lengths are padded on the right, masked and without loss there, all int64."""
    options: dict[str, Any] = {"method": "icot-steps", "removal": "delete", "keep_positions": keep_positions}
    collate = collator(repeating(*MIXED), examples=MIXED, replay=0.0, **options)
    batch = collate(range(9))
    names = {"input_ids", "labels", "attention_mask"} | ({"position_ids"} if keep_positions else set())
    assert set(batch) == names
    longest = 4 + 1 + 6 + 1 + 2 + 1
    for tensor in batch.values():
        assert tensor.shape == (9, longest)
        assert tensor.dtype == torch.int64
    chains = collate.text.chains([MIXED[i % 3] for i in range(9)])
    for i, chain in enumerate(chains):
        whole = [*chain.prompt, *(token for unit in chain.units for token in unit), *chain.answer]
        rest = longest - len(whole)
        assert batch["input_ids"][i].tolist() == whole + [collate.text.pad] * rest
        assert batch["attention_mask"][i].tolist() == [1] * len(whole) + [0] * rest
        unwritten = len(chain.prompt)
        assert batch["labels"][i].tolist() == [IGNORED] * unwritten + whole[unwritten:] + [IGNORED] * rest


def test_padded():
    rows = [[1, 2], [], [3, 4, 5]]
    torch.testing.assert_close(padded(rows, 9), torch.tensor([[1, 2, 9], [9, 9, 9], [3, 4, 5]]))
    torch.testing.assert_close(padded(rows, 9, left=True), torch.tensor([[9, 1, 2], [9, 9, 9], [3, 4, 5]]))
    assert rows == [[1, 2], [], [3, 4, 5]]


def test_positions():
    """The data set of a Trainer has the positions in order."""
    loader: DataLoader[Any] = DataLoader(Positions(10), batch_size=4, collate_fn=lambda positions: positions)
    assert list(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_rows_are_what_their_stage_makes():
    """A batch is made of the example, the chain and the stage of update p // batch."""
    collate = collator(method="log-icot", replay=0.0)
    assert collate.stages.count == 3
    for update in range(8):
        positions = range(update * BATCH, (update + 1) * BATCH)
        stage = min(update // 2, 2)
        chains = collate.text.chains(parities(positions))
        expected = [collate.stages.training(chain, stage, (0.99, 0.0, 0.0, 0.99)) for chain in chains]
        batch = collate(positions)
        torch.testing.assert_close(batch["input_ids"], torch.tensor([row.tokens for row in expected]))
        torch.testing.assert_close(batch["labels"], torch.tensor([row.labels for row in expected]))
        assert slots(batch, collate) == [(0, 4, 6)[stage]] * BATCH


def test_the_schedule_may_grow():
    """A stage that accuracy decided shows in the batches from its first update on."""
    collate = collator(method="log-icot", replay=0.0, schedule={"advance": "accuracy"})
    assert slots(collate(range(0, 5 * BATCH, BATCH)), collate) == [0] * 5
    collate.schedule.advance(2, 1.0)
    assert slots(collate(range(0, 5 * BATCH, BATCH)), collate) == [0, 0, 0, 4, 4]


@settings(max_examples=30)
@given(
    st.integers(0, 40) | st.just(10**12),
    st.integers(1, 16),
    st.randoms(use_true_random=False),
    st.sampled_from(get_args(Replay)),
)
def test_any_portion_and_order(start: int, parts: int, order: Any, replay_of: str):
    """Micro-batches of any sizes and order give the rows of the whole batch, also across stages.

    Positions that are far apart, as of a shuffled data set, are drawn one by one.
    """
    options: dict[str, Any] = {"method": "log-icot", "replay_of": replay_of, "smoothing": 0.7, "hidden_loss": 0.5}
    collate, another = collator(**options), collator(**options)
    positions = list(range(start, start + 3 * BATCH))
    whole = dict(zip(positions, rows(collate(positions)), strict=True))
    order.shuffle(positions)
    for part in range(parts):
        some = positions[part::parts]
        assert rows(another(some)) == [whole[position] for position in some]


def test_draws_depend_on_the_seed():
    last = range(20 * BATCH, 30 * BATCH)
    first, again, other = (collator(seed=seed, method="log-icot") for seed in (1, 1, 2))
    assert rows(first(last)) == rows(again(last))
    assert slots(first(last), first) != slots(other(last), other)


def share(count: int, of: int, expected: float) -> None:
    """Check a binomial share to within four and a half standard deviations."""
    assert count / of == pytest.approx(expected, abs=4.5 * math.sqrt(expected * (1 - expected) / of))


def test_scattered_replay():
    """Half of the examples replay. They hide every step with probability one half, also steps of later levels.

    Siblings are hidden independently: one without the other with probability 2 ∫ q (1 − q) dq = 1/3.
    """
    collate = collator(repeating(SAMPLE[0]), method="log-icot", replay=0.5, replay_of="scattered")
    count, steps = 4096, slice(17, 23)
    for update, of_stage in ((2, (1, 1, 1, 1, 0, 0)), (100, (1,) * 6)):
        first = update * BATCH
        row = collate(range(first, first + count if update == 100 else first + 2 * BATCH))["input_ids"][:, steps]
        hidden = row == collate.text.slot
        for step, in_stage in enumerate(of_stage):
            share(int(hidden[:, step].sum()), len(hidden), (in_stage + 0.5) / 2)
        share(int((hidden[:, 0] ^ hidden[:, 1]).sum()), len(hidden), 1 / 6)
        share(int((hidden[:, 4] ^ hidden[:, 5]).sum()), len(hidden), 1 / 6)


PRODUCT = Example("5 6 3 2 * 7 4 3 4", ("1 2 3 4 5 6 7 8 9 0 " * 4 + "1 2 3 4 5 6",), "5 5 6 0 8 2 0 1")
"""A chain of 46 tokens, as published for four digits."""


def product_collator(**options: Any) -> StageCollator:
    """Return a collator of the published removal and schedule, in batches of 32."""
    epochs = options.pop("first_epochs", 0.0)
    return collator(
        repeating(PRODUCT),
        examples=[PRODUCT],
        batch=32,
        schedule={"advance": "epochs", "stages_per_epoch": 8.0, "first_epochs": epochs},
        updates_per_epoch=25_250,
        method="icot",
        removal="delete",
        replay=0.0,
        **options,
    )


def removed(collate: StageCollator, update: int, count: int = 32) -> Counter[int]:
    """Count by how many tokens each example is shorter than the full chain, over some examples from an update on."""
    full = 10 + 46 + 10
    return Counter(full - len(row["input_ids"]) for row in rows(collate(range(update * 32, update * 32 + count))))


@pytest.mark.parametrize(
    ("options", "gone"),
    [
        ({}, {0: 0, 3155: 0, 3156: 1, 2 * 3156: 2, 46 * 3156 - 1: 45, 46 * 3156: 46, 10**7: 46}),
        ({"cutoff": 39}, {38 * 3156: 38, 39 * 3156 - 1: 38, 39 * 3156: 46}),
    ],
)
def test_published_removal(options: dict[str, Any], gone: dict[int, int]):
    """Every 3156 updates one more token is removed, and from the cutoff on all are."""
    collate = product_collator(**options)
    assert {update: removed(collate, update) for update in gone} == {update: {n: 32} for update, n in gone.items()}


def test_published_smoothing():
    """λ = 4 leaves 98.2 % of the examples at the scheduled number. The others follow e^(−4·o)."""
    count = 6144
    counts = removed(product_collator(smoothing=4.0), 5 * 3156, count)
    share(counts[5], count, 1 - math.exp(-4))
    share(counts[6], count, (1 - math.exp(-4)) * math.exp(-4))
    assert counts[5] + counts[6] + counts[7] + counts[8] == count
    assert removed(product_collator(smoothing=math.inf), 5 * 3156, 1024) == {5: 1024}


def test_no_smoothing_in_pretraining():
    """Nothing is hidden before the first stage begins. From then on smoothing hides tokens, also at the first stage."""
    collate = product_collator(smoothing=0.5, first_epochs=2)
    assert removed(collate, 0) == removed(collate, 2 * 25_250 - 1) == {0: 32}
    assert max(removed(collate, 2 * 25_250)) > 0
    assert min(removed(collate, 2 * 25_250)) == 0
    assert min(removed(collate, 2 * 25_250 + 3156, 512)) == 1


def test_hidden_loss_share():
    """This share of the examples has labels in its slots."""
    count = 2048
    collate = collator(method="log-icot", replay=0.0, hidden_loss=0.3)
    batch = collate(range(100 * BATCH, 100 * BATCH + count))
    supervised = ((batch["input_ids"] == collate.text.slot) & (batch["labels"] != IGNORED)).sum(1)
    assert set(supervised.tolist()) == {0, 6}
    share(int((supervised == 6).sum()), count, 0.3)
