"""Greedy generation of answers in batches, with left padding and a cache. The input contains nothing of the chain.

An answer does not depend on the other examples of its batch: padding is masked and has no positions, and all examples
may write the same number of tokens.
"""

import contextlib
import operator
import sys
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from internalize.errors import InputError
from internalize.intervals import wilson
from internalize.lm.data.example import Example
from internalize.lm.stages.chains import Chain, TextFormat
from internalize.lm.stages.removal import TextStages
from internalize.lm.training.collator import padded
from internalize.lm.training.interleaved import generate_between_slots, is_interleaved
from internalize.lm.training.models import positions_of

ROOM: Final = 8
"""Number of tokens that a model may write beyond the longest true continuation."""
BATCH: Final = 256
"""Default number of examples per batch."""


@dataclass(frozen=True)
class Answers:
    """The generated answers, one per example, with the number of tokens and the time."""

    answers: list[str | None]
    """The answer that was read in each text; None if there was none to read."""
    texts: list[str]
    """What the model wrote, up to and including its end token, if it wrote one."""
    generated_tokens: int
    seconds: float

    def exact_match(self, examples: Sequence[Example]) -> float:
        """Return the share of answers that are right, word for word."""
        if not examples:
            raise InputError("there are no examples, so exact match is not defined")
        return sum(self.right(examples)) / len(examples)

    def summary(self, examples: Sequence[Example]) -> dict[str, float]:
        """Return exact match with its 95 % interval, word match and the number of examples, by the contract's keys."""
        share = self.exact_match(examples)
        low, high = wilson(sum(self.right(examples)), len(examples))
        found = {"exact_match": share, "exact_match_low": low, "exact_match_high": high}
        return {**found, "word_match": self.word_match(examples), "examples": len(examples)}

    def word_match(self, examples: Sequence[Example]) -> float:
        """Return the mean share of an answer's words that are right and in the right place.

        A missing or superfluous word counts as wrong.
        """
        pairs = [((answer or "").split(), e.answer.split()) for answer, e in zip(self.answers, examples, strict=True)]
        shares = (sum(map(operator.eq, own, truth)) / max(len(own), len(truth)) for own, truth in pairs)
        return sum(shares) / len(pairs)

    def right(self, examples: Sequence[Example]) -> list[bool]:
        """Return for each answer whether it is right."""
        truths = (" ".join(example.answer.split()) for example in examples)
        return [answer == truth for answer, truth in zip(self.answers, truths, strict=True)]


def generate_answers(
    model: Any,
    text: TextFormat,
    stages: TextStages,
    examples: Sequence[Example],
    stage: int,
    *,
    batch: int = BATCH,
    true_length: bool = False,
    longest: int | None = None,
    on_batch: Callable[[int], None] = lambda examples: None,
) -> Answers:
    """Let the model answer every example greedily at a stage. It writes the steps that the stage shows, and then the
    answer.

    At a stage that hides the whole chain, an answer counts only if the model writes nothing before it. An example that
    does not fit into the model's positions gets no answer.

    Args:
        model: a causal language model of transformers.
        text: converts examples to tokens and tokens to answers.
        stages: the curriculum on these data.
        examples: the questions. Their chains only tell how long an answer may be.
        stage: the stage, which decides how much is hidden; the last one hides the whole chain.
        batch: number of examples per batch.
        true_length: for timing, write exactly as many tokens as the longest true continuation of a batch; the answers
            are then meaningless. Default: write until the end token.
        longest: largest number of tokens to write. Default: `ROOM` more than the longest true continuation has.
        on_batch: called after every batch with its number of examples.
    """
    if batch < 1:
        raise InputError(f"batch={batch} must be at least 1")
    if longest is not None and longest < 1:
        raise InputError(f"longest={longest} must be at least 1")
    model = _unwrapped(model)
    chains = text.chains(examples)
    lengths = [continuation_length(stages, chain, stage) for chain in chains]
    room = [positions_left(model, stages, chain, stage) for chain in chains]
    order = [i for i in range(len(chains)) if room[i] > 0]
    order.sort(key=lambda i: (lengths[i], len(chains[i].prompt)))  # similar lengths: little padding, few tokens
    most = min(longest or max(lengths, default=0) + ROOM, max(room, default=0))
    direct = stage == stages.last and stages.hidden[stage] > 0  # at earlier stages some chains may still show steps
    answers: list[str | None] = [None] * len(chains)
    texts = [""] * len(chains)
    generated = 0
    was_training, began = model.training, time.perf_counter()
    model.eval()
    try:
        for start in range(0, len(order), batch):
            some = order[start : start + batch]
            forced = max(lengths[i] for i in some) if true_length else None
            asked = [chains[i] for i in some]
            if is_interleaved(stages, stage):
                rows = generate_between_slots(model, text, stages, asked, stage, most, _positions(model))
            else:
                rows = generate_rows(model, text, stages, asked, stage, most, forced)
            for i, ids in zip(some, rows, strict=True):
                written = ids[: room[i]]
                answers[i] = text.answer(written, direct=direct)
                texts[i] = text.tokenizer.decode(written, skip_special_tokens=False, clean_up_tokenization_spaces=False)
                generated += len(written)
            on_batch(len(some))
    finally:
        model.train(was_training)
    return Answers(answers, texts, generated, time.perf_counter() - began)


def continuation_length(stages: TextStages, chain: Chain, stage: int) -> int:
    """Return the length of the true continuation at a stage: the tokens of the shown steps, the answer and its end."""
    hidden = stages.hidden_units(chain, stage)
    return sum(len(part.tokens) for part in stages.parts(chain, hidden, (0,)) if part.slots is None)


def positions_left(model: Any, stages: TextStages, chain: Chain, stage: int) -> int:
    """Return how many tokens fit into the model's positions. The last one needs no position: it is not fed back."""
    first = len(stages.prompt(chain, stage).tokens) + _gap(stages, stage)
    if is_interleaved(stages, stage):
        hidden, gaps = stages.hidden_units(chain, stage), stages.stage_gaps(stage)
        first += sum(part.slots or 0 for part in stages.parts(chain, hidden, gaps)) - gaps[0]
    return max(0, _positions(model) - first + 1)


def _gap(stages: TextStages, stage: int) -> int:
    """Return the number of positions that are skipped where hidden tokens were deleted."""
    return stages.stage_slots[stage] if stages.options.keep_positions and not stages.options.padded else 0


def _positions(model: Any) -> int:
    return positions_of(model.config) or sys.maxsize


def _unwrapped(model: Any) -> Any:
    """Return the model without its wrappers. Adapters stay, because they are part of its layers."""
    model = model.module if hasattr(model, "module") else model  # in a run of several processes
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def generate_rows(
    model: Any, text: TextFormat, stages: TextStages, chains: Sequence[Chain], stage: int, most: int, forced: int | None
) -> list[list[int]]:
    """Return the generated tokens of each chain, up to and including the end token, or ``forced`` tokens.

    The chains are one batch, in this order. Their input is the question and, with padding, the stage's first slots.
    """
    from transformers import GenerationConfig

    rows = [stages.prompt(chain, stage) for chain in chains]
    ids = padded([row.tokens for row in rows], text.pad, left=True).to(model.device)
    mask = padded([[1] * len(row.tokens) for row in rows], 0, left=True).to(model.device)
    greedy = GenerationConfig(
        do_sample=False,
        num_beams=1,
        use_cache=True,
        max_new_tokens=forced or most,
        min_new_tokens=forced,
        eos_token_id=text.end,
        pad_token_id=text.pad,
    )
    beyond = ids.shape[1] + _gap(stages, stage) + (forced or most)
    own = model.generation_config  # it may hold a temperature or a penalty on repetition, which generate() would use
    model.generation_config = greedy
    try:
        with torch.no_grad(), _training_positions(model, stages, chains, stage, beyond):
            out = model.generate(input_ids=ids, attention_mask=mask, generation_config=greedy)
    finally:
        model.generation_config = own
    new: list[list[int]] = out[:, ids.shape[1] :].tolist()
    return [row[: row.index(text.end) + 1] if text.end in row else row for row in new]


@contextlib.contextmanager
def _training_positions(
    model: Any, stages: TextStages, chains: Sequence[Chain], stage: int, beyond: int
) -> Generator[None]:
    """Give generated tokens the positions of training, which have a gap with ``keep_positions``.

    The gap is where the hidden tokens were: before all generated tokens or, for ``side="right"``, before the answer.
    Beyond a model's last position, all tokens get that position, and the caller cuts them off.
    """
    gap, positions = _gap(stages, stage), _positions(model)
    if not gap and beyond <= positions:
        yield
        return
    begins = torch.tensor(sorted({chain.answer[0] for chain in chains}), device=model.device)
    prompted = False
    passed: Any = stages.options.side == "left" or stage == stages.last

    def shift(_: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        nonlocal prompted, passed
        if "position_ids" not in kwargs:
            why = "which keep_positions needs" if gap else f"and an example needs more than its {positions}"
            raise InputError(f"{type(model).__name__} takes no position numbers, {why}")
        numbers = kwargs["position_ids"]
        if prompted and gap:
            if passed is not True:
                passed = torch.isin(kwargs["input_ids"], begins) | passed
            numbers = numbers + gap * passed
        prompted = True
        return args, {**kwargs, "position_ids": numbers.clamp(max=positions - 1)}

    handle = model.register_forward_pre_hook(shift, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
