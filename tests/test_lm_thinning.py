"""Thinning: every 2nd step is kept, then every 4th, …, with slots in place between the shown steps."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import GPT2Config

from internalize import InputError
from internalize.lm import Internalization
from internalize.lm.data.example import Example
from internalize.lm.data.readers import write_examples
from internalize.lm.options import CurriculumOptions
from internalize.lm.stages.chains import Chain, TextFormat, word_tokenizer
from internalize.lm.stages.removal import IGNORED, Row, TextStages
from internalize.lm.stages.step_end import StepEnd
from internalize.lm.training.generation import continuation_length, generate_answers, positions_left
from internalize.lm.training.interleaved import generate_between_slots, is_interleaved
from internalize.lm.training.models import PromptSpec
from internalize.lm.training.train import train
from internalize.storage.runs import Run
from tests.asking import ask
from tests.lm_core import ANSWER, FIRST, PLAIN, PROMPT, SLOT, chain, data_sets, slot_rules, stages_of, tokens
from tests.lm_ragged import ARCHITECTURES, CHAINS, TEXT, make, measured
from tests.lm_runs import TINY


def row_of(stages: TextStages, chain: Chain, stage: int) -> Row:
    return stages.training(chain, stage, PLAIN)


def test_thinning_keeps_every_second_step():
    """The stages hide 0, 8, 12, 14 and 15 of 15 steps, as Log-ICoT does on a tree. Slots take their places."""
    c = chain(*[1] * 15)
    stages = stages_of(c, method="thin")
    assert stages.hidden == (0, 8, 12, 14, 15)
    assert stages.gaps == ((0,), (1,), (3,), (7,), (15,))
    assert stages.stage_slots == (0, 1, 3, 7, 15)
    for stage, every in enumerate((1, 2, 4, 8, 16)):
        row = row_of(stages, c, stage)
        written = [FIRST + i if (i + 1) % every == 0 else SLOT for i in range(15)]
        assert row.tokens == [*PROMPT, *written, *ANSWER]
        assert row.labels == [*[IGNORED] * 3, *(t if t != SLOT else IGNORED for t in written), *ANSWER]
        supervised = stages.at_stage(c, stage, supervise_hidden=True)
        assert supervised.tokens == row.tokens
        assert supervised.labels == [*[IGNORED] * 3, *tokens(0, 15), *ANSWER]
    same = stages_of(c, method="log-icot", levels="thin")
    assert [row_of(same, c, s) for s in range(5)] == [row_of(stages, c, s) for s in range(5)]


def test_thinning_tells_nothing_about_the_length_of_a_chain():
    """The same slots stand before each shown step, and before the answer, whatever the rest of the chain is."""
    long, short = chain(*[2] * 7), chain(*[2] * 4, first=200)
    stages = stages_of(long, short, method="thin", slots="longest")
    assert stages.gaps == ((0,), (2,), (6,), (14,))
    slots = [SLOT, SLOT]
    assert row_of(stages, long, 1).tokens == [
        *PROMPT, *slots, *tokens(2, 4), *slots, *tokens(6, 8), *slots, *tokens(10, 12), *slots, *ANSWER
    ]  # fmt: skip
    first, second = [202, 203], [206, 207]
    assert row_of(stages, short, 1).tokens == [*PROMPT, *slots, *first, *slots, *second, *slots, *ANSWER]
    assert stages.at_stage(short, 1, supervise_hidden=True).labels[-5:] == [IGNORED, IGNORED, *ANSWER]


@given(data_sets(), slot_rules, st.booleans())
def test_any_thinning(chains: list[Chain], slots: Any, padded: bool):
    """Each part has its stage's slots, lengths are those of the rows, and the last stage shows no step."""
    options = CurriculumOptions(method="thin", removal="pad" if padded else "delete", slots=slots if padded else None)
    stages = TextStages.measure(options, chains, SLOT)
    for c in chains:
        by_count, by_stage = stages.lengths(c)
        rows = [stages.at_stage(c, stage, supervise_hidden=padded) for stage in range(stages.count)]
        assert [len(row.tokens) for row in rows] == by_stage.tolist()
        counted = [len(stages.sequence(c, hidden, None).tokens) for hidden in range(len(c.units) + 1)]
        assert counted == by_count.tolist()
        assert stages.longest(c) == (max(*counted, *by_stage) if padded else len(c))
        for stage, row in enumerate(rows):
            assert len(row.labels) == len(row.tokens)
            parts = list(stages.parts(c, stages.hidden_units(c, stage), stages.stage_gaps(stage)))
            given_slots = [part.slots for part in parts if part.slots is not None]
            gaps = stages.stage_gaps(stage)
            assert given_slots == [gaps[min(j, len(gaps) - 1)] * padded for j in range(len(given_slots))]
            assert [token for part in parts for token in part.tokens] == [*sum(c.units, ()), *ANSWER]
            shown = [part.tokens for part in parts if part.slots is None]
            assert shown[-1] == ANSWER
            every = 2**stage
            assert stage == stages.last or shown[:-1] == list(c.units[every - 1 :: every])
        assert [part.tokens for part in stages.parts(c, len(c.units), (5,)) if part.slots is None] == [ANSWER]


def test_the_slots_of_a_part_are_a_percentile():
    """At stage 2, one of the three chains has six tokens before its first shown step, two have three."""
    three = (chain(1, 1, 1), chain(1, 1, 1, first=200), chain(2, 2, 2, first=300))
    assert stages_of(*three, method="thin").gaps == ((0,), (1,), (3,))
    assert stages_of(*three, method="thin", slots="p90").gaps == ((0,), (2,), (6,))
    assert stages_of(*three, method="thin", slots=2).gaps == ((0,), (2,), (2,))


def test_replay_of_thinned_chains():
    """Replay of counts hides the steps in the order of thinning, with a slot for each hidden token."""
    c = chain(*[1] * 7)
    stages = stages_of(c, method="thin", replay=1.0, replay_of="counts")
    rows = [stages.training(c, 3, (0.0, (count + 0.5) / 8, 0.0, 0.99)).tokens[3:10] for count in range(8)]
    hidden = [{i for i, token in enumerate(row) if token == SLOT} for row in rows]
    assert hidden == [set(), {0}, {0, 2}, {0, 2, 4}, {0, 2, 4, 6}, {0, 1, 2, 4, 6}, {0, 1, 2, 4, 5, 6}, set(range(7))]


def test_subdivided_thinning():
    """Between two stages, adaptive hides one step more at a time."""
    c = chain(*[1] * 7)
    stages = stages_of(c, method="adaptive", levels="thin")
    assert stages.targets == (0, 4, 6, 7)
    assert stages.hidden == tuple(range(8))
    assert stages.gaps[2] == (1, 1, 0)
    assert row_of(stages, c, 2).tokens == [*PROMPT, SLOT, *tokens(1, 2), SLOT, *tokens(3, 7), *ANSWER]


def test_the_end_of_a_written_step():
    assert StepEnd.of([(1, 2), (3, 4)]) == StepEnd(length=2)
    assert StepEnd.of([(1, 2, 9), (4, 9), (9,)]) == StepEnd(token=9)
    assert StepEnd.of([(1, 2), (3,)]) is None
    assert StepEnd.of([(9, 9), (3, 9, 9)]) is None, "the mark also stands inside"
    assert StepEnd.of([]) == StepEnd(length=1)
    assert [StepEnd(length=2).reached(count, 5) for count in (1, 2)] == [False, True]
    assert [StepEnd(token=9).reached(1, token) for token in (5, 9)] == [False, True]


def test_what_thinning_cannot_do():
    with pytest.raises(InputError, match="levels=given belongs to log-icot and adaptive"):
        CurriculumOptions(method="thin", levels="given")
    with pytest.raises(InputError, match="keep_positions does not work with thinning"):
        CurriculumOptions(method="thin", removal="delete", keep_positions=True)


# Generation

MARKED = [
    Example("a b", ("u v ;", "w ;", "v v w ;", "u ;", "w u ;"), "x"),
    Example("b", ("v ;", "u w ;"), "y"),
    Example("a a b", ("w ;", "u v ;", "v ;"), "x y"),
    Example("b a", (), "y"),
]
MARKED_TEXT = TextFormat(word_tokenizer(MARKED))
MARKED_CHAINS = MARKED_TEXT.chains(MARKED)


def marked_stages(**options: Any) -> TextStages:
    return TextStages.measure(CurriculumOptions(method="thin", **options), MARKED_CHAINS, MARKED_TEXT.slot)


class Scripted(nn.Module):
    """A model that continues each sequence as scripted, and knows only what it was given: tokens, mask and cache."""

    def __init__(self, sequences: list[list[int]]) -> None:
        super().__init__()
        self.following = {tuple(s[:at]): s[at] for s in sequences for at in range(1, len(s))}
        self.device = torch.device("cpu")
        self.config = GPT2Config(vocab_size=len(MARKED_TEXT.tokenizer), n_positions=64)

    def forward(self, input_ids: Any, attention_mask: Any, past_key_values: Any = None, use_cache: bool = True) -> Any:
        whole = input_ids if past_key_values is None else torch.cat([past_key_values, input_ids], 1)
        logits = torch.zeros(*whole.shape, self.config.vocab_size)
        for row, (ids, mask) in enumerate(zip(whole, attention_mask, strict=True)):
            logits[row, -1, self.following.get(tuple(ids[mask.bool()].tolist()), MARKED_TEXT.end)] = 1
        return SimpleNamespace(logits=logits, past_key_values=whole)


@pytest.mark.parametrize("slots", ["longest", "p50", 2])
def test_a_model_that_writes_the_truth_is_given_the_slots_of_training(slots: Any):
    """Steps end at their mark. Chains of all lengths, in one batch, get the slots that their rows have."""
    stages = marked_stages(slots=slots)
    assert stages.step_end == StepEnd(token=MARKED_TEXT.tokenizer.convert_tokens_to_ids(";"))
    assert stages.count == 4
    for stage in range(1, stages.last):
        assert is_interleaved(stages, stage)
        model = Scripted([stages.at_stage(c, stage).tokens for c in MARKED_CHAINS])
        answers = generate_answers(model, MARKED_TEXT, stages, MARKED, stage)
        assert answers.answers == [example.answer for example in MARKED]
        lengths = [continuation_length(stages, c, stage) for c in MARKED_CHAINS]
        assert answers.generated_tokens == sum(lengths)
        assert generate_answers(model, MARKED_TEXT, stages, MARKED[:1], stage).generated_tokens == lengths[0]
        assert not any(MARKED_TEXT.slot_token in written for written in answers.texts)


def test_wrong_steps_are_written_to_their_end():
    """A model that writes a wrong first step is given the next slots after it, and is wrong."""
    stages = marked_stages(slots="longest")
    row = stages.at_stage(MARKED_CHAINS[0], 1).tokens
    start = len(stages.prompt(MARKED_CHAINS[0], 1).tokens)
    wrong = MARKED_TEXT.tokenizer("v v u ;", add_special_tokens=False)["input_ids"]
    gap = [MARKED_TEXT.slot] * stages.gaps[1][1]
    answer = MARKED_TEXT.tokenizer("#### y", add_special_tokens=False)["input_ids"]
    model = Scripted([[*row[:start], *wrong, *gap, *answer, MARKED_TEXT.end]])
    answers = generate_answers(model, MARKED_TEXT, stages, MARKED[:1], 1)
    assert answers.answers == ["y"]
    assert answers.right(MARKED[:1]) == [False]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_batch_gives_what_one_at_a_time_gives(name: str):
    """And each written token is the greedy choice of a full pass over question, slots and tokens."""
    stages, model = measured(CurriculumOptions(method="thin", slots="longest")), make(name)
    several = 0
    for stage in range(1, stages.last):
        together = generate_between_slots(model, TEXT, stages, CHAINS, stage, 20, 1000)
        for c, row in zip(CHAINS, together, strict=True):
            assert generate_between_slots(model, TEXT, stages, [c], stage, 20, 1000) == [row]
            given = stages.prompt(c, stage).tokens
            steps, of_step, answers = 0, 0, False
            for token in row:
                with torch.no_grad():
                    logits = model(input_ids=torch.tensor([given]), attention_mask=torch.ones(1, len(given))).logits
                assert int(logits[0, -1].argmax()) == token
                given = [*given, token]
                answers = answers or (of_step == 0 and token == c.answer[0])
                of_step += 1
                if not answers and stages.step_end and stages.step_end.reached(of_step, token):
                    steps, of_step = steps + 1, 0
                    given += [TEXT.slot] * stages.gaps[stage][min(steps, len(stages.gaps[stage]) - 1)]
            several += steps
    assert several > 10, "steps are written"


def test_examples_without_room_are_cut_off():
    stages, model = marked_stages(slots="longest"), make("gpt2")
    for room in range(4, 30):
        rows = generate_between_slots(model, MARKED_TEXT, stages, MARKED_CHAINS, 1, 20, room)
        whole = generate_between_slots(model, MARKED_TEXT, stages, MARKED_CHAINS, 1, 20, 1000)
        assert all(row == full[: len(row)] for row, full in zip(rows, whole, strict=True))
    short = make("gpt2", n_positions=12)
    assert positions_left(short, stages, MARKED_CHAINS[0], 1) < continuation_length(stages, MARKED_CHAINS[0], 1)
    assert len(generate_answers(short, MARKED_TEXT, stages, MARKED, 1).answers) == len(MARKED)


def test_a_thinned_model_is_trained_stored_and_asked(tmp_path: Path):
    """All stages are trained and evaluated, and the stored prompt format gives the same answers."""
    options = replace(TINY, data="parity:n=6,k=4", method="thin", batch=4, steps=24, stage_steps=6, test_examples=8)
    result = train(options, 0, Run(tmp_path / "run"))
    assert [stage["hidden"] for stage in result["stages"]] == [0, 1, 2]
    asking = PromptSpec.read(tmp_path / "run" / "model")
    assert (asking.levels, asking.step_end, asking.gaps) == ("thin", StepEnd(length=1), ((0,), (1, 0), (2,)))
    found = ask(f"lm eval --model {tmp_path / 'run'} --stages all --chain")
    assert [stage["hidden"] for stage in found["stages"]] == [0, 1, 2]
    budgets = {each["hidden"]: each["exact_match"] for each in result["budgets"]}
    assert budgets.keys() == {0, 1, 2}


def test_steps_without_a_recognizable_end_are_refused(tmp_path: Path):
    """A template with a mark after each step helps, and deletion needs no mark."""
    write_examples(tmp_path / "data.jsonl", [Example(f"{i}", ("u v", "w", "u"), "x") for i in range(64)])
    (tmp_path / "marked.json").write_text(
        '{"after_question": " ||", "before_step": " ", "after_step": " ;", "before_answer": " #### "}'
    )
    options = replace(TINY, data=str(tmp_path / "data.jsonl"), method="thin", eval_examples=8)
    with pytest.raises(InputError, match='cannot tell where a written step ends.*"after_step": " ;"'):
        Internalization(options)
    work = Internalization(replace(options, template=str(tmp_path / "marked.json")))
    assert work.stages.step_end == StepEnd(token=work.tokenizer.convert_tokens_to_ids(";"))
    assert Internalization(replace(options, removal="delete")).stages.step_end is None
