"""Generated answers: the same alone and in a batch, read as they are written, counted exactly."""

from typing import Any

import pytest
import torch

from internalize.errors import InputError
from internalize.lm.data.example import Example
from internalize.lm.evaluation.evaluate import Subject, evaluate
from internalize.lm.options import CurriculumOptions
from internalize.lm.probe.states import Budget
from internalize.lm.stages.chains import TextFormat, word_tokenizer
from internalize.lm.stages.removal import TextStages
from internalize.lm.training import generation
from internalize.lm.training.generation import Answers, _unwrapped, generate_answers, generate_rows
from tests.lm_ragged import ARCHITECTURES, CHAINS, CURRICULA, DELETE, EXAMPLES, TEXT, TOKENIZER, make, measured


@pytest.mark.parametrize("curriculum", CURRICULA)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_batch_gives_what_one_at_a_time_gives(name, curriculum, capfd):
    model, stages = make(name), measured(CURRICULA[curriculum])
    for stage in (1, stages.last):
        together = generate_rows(model, TEXT, stages, CHAINS, stage, 8, None)
        alone = [generate_rows(model, TEXT, stages, [chain], stage, 8, None)[0] for chain in CHAINS]
        assert together == alone
        assert len({tuple(row) for row in together}) > 1 or curriculum == "pad"
    assert capfd.readouterr() == ("", "")  # transformers gave no warning


@pytest.mark.parametrize("curriculum", CURRICULA)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_generated_tokens_are_those_of_a_full_pass(name, curriculum):
    """They are the greedy choice at every place of a full pass with the positions of `TextStages.sequence`."""
    model, stages = make(name), measured(CURRICULA[curriculum])
    options = stages.options
    for stage in (0, 2, stages.last):
        gap = stages.stage_slots[stage] if options.keep_positions else 0
        for chain, new in zip(CHAINS, generate_rows(model, TEXT, stages, CHAINS, stage, 10, None), strict=True):
            tokens = [*stages.prompt(chain, stage).tokens, *new]
            start = len(tokens) - len(new)
            if options.side == "right" and stage < stages.last:  # the gap is before the answer
                start += new.index(chain.answer[0]) if chain.answer[0] in new else len(new)
            positions = [i + gap * (i >= start) for i in range(len(tokens))]
            with torch.no_grad():
                logits = model(
                    input_ids=torch.tensor([tokens]),
                    position_ids=torch.tensor([positions]),
                    attention_mask=torch.ones(1, len(tokens), dtype=torch.long),
                ).logits[0]
            assert logits[-len(new) - 1 : -1].argmax(-1).tolist() == new


def test_a_models_own_generation_settings_are_left_alone_and_not_used():
    model, stages = make("gpt2"), measured(CURRICULA["pad"])
    expected = generate_rows(model, TEXT, stages, CHAINS, 0, 10, None)
    own = model.generation_config
    own.do_sample, own.temperature, own.repetition_penalty, own.max_length = True, 2.0, 5.0, 3
    assert generate_rows(model, TEXT, stages, CHAINS, 0, 10, None) == expected
    assert model.generation_config is own
    assert (own.do_sample, own.repetition_penalty, own.max_length) == (True, 5.0, 3)


def test_adapters_are_generated_with():
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    config = LoraConfig(
        r=2, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False, task_type="CAUSAL_LM"
    )
    model, stages = get_peft_model(make("gpt2"), config), measured(DELETE)
    adapted = generate_rows(_unwrapped(model), TEXT, stages, CHAINS, 1, 8, None)
    assert adapted != generate_rows(make("gpt2"), TEXT, stages, CHAINS, 1, 8, None)
    answers = generate_answers(model, TEXT, stages, EXAMPLES, 1)
    merged = model.merge_and_unload()
    assert adapted == generate_rows(merged, TEXT, stages, CHAINS, 1, 8, None)
    again = generate_answers(merged, TEXT, stages, EXAMPLES, 1)
    assert (answers.answers, answers.generated_tokens) == (again.answers, again.generated_tokens)


def test_too_few_positions_cut_off_only_the_long_chain():
    stages = measured(CURRICULA["delete"])
    short = max(len(chain.prompt) for chain in CHAINS) + 1  # room to write two tokens after the longest prompt
    roomy, tight = make("gpt2"), make("gpt2", n_positions=short)
    weights = roomy.state_dict()
    weights["transformer.wpe.weight"] = weights["transformer.wpe.weight"][:short]
    tight.load_state_dict(weights)
    full = generate_answers(roomy, TEXT, stages, EXAMPLES, 0)
    cut = generate_answers(tight, TEXT, stages, EXAMPLES, 0)
    alone = [generate_answers(tight, TEXT, stages, [example], 0).generated_tokens for example in EXAMPLES]
    assert sum(alone) <= cut.generated_tokens < full.generated_tokens
    assert len(cut.answers) == len(EXAMPLES)
    none = generate_answers(make("gpt2", n_positions=2), TEXT, stages, EXAMPLES, 0)
    assert none.answers == [None] * len(EXAMPLES)
    assert none.generated_tokens == 0


def test_chains_without_room_are_counted_per_stage():
    """With --removal delete a shown chain takes more positions than a hidden one."""
    stages = measured(CURRICULA["delete"])
    whole, answered = (
        [len(stages.sequence(chain, stages.hidden_units(chain, stage), (0,)).tokens) for chain in CHAINS]
        for stage in (0, stages.last)
    )
    positions = max(answered) - 1  # the last token is not fed back
    subject = Subject(make("gpt2", n_positions=positions), TEXT, stages, EXAMPLES, "")
    result = evaluate(subject, every_stage=True, chain=True).result
    rows = result["stages"]
    assert rows[0]["without_room"] == sum(length > positions + 1 for length in whole) > 0
    assert result["chain_without_room"] == rows[0]["without_room"]
    assert rows[-1]["without_room"] == 0


LEVELED = [
    Example("a b c", ("u", "v", "w", "u"), "x", levels=(1, 1, 1, 2)),
    Example("d e f", ("w", "v", "u"), "y", levels=(1, 2, 3)),
]


def test_a_short_chain_may_show_steps_when_the_longest_is_hidden(monkeypatch: pytest.MonkeyPatch):
    """A model that writes the truth is right at every stage, also for chains with different steps and levels."""
    text = TextFormat(word_tokenizer(LEVELED))
    stages = TextStages.measure(CurriculumOptions("log-icot"), text.chains(LEVELED), text.slot)
    assert stages.hidden == (0, 3, 4, 4)

    def write_the_truth(model: Any, text: Any, stages: Any, chains: Any, stage: int, *_: Any) -> list[list[int]]:
        whole = (stages.at_stage(c, stage).tokens for c in chains)
        return [row[len(stages.prompt(c, stage).tokens) :] for c, row in zip(chains, whole, strict=True)]

    monkeypatch.setattr(generation, "generate_rows", write_the_truth)
    for stage in range(stages.count):
        assert generate_answers(make("gpt2"), text, stages, LEVELED, stage).answers == ["x", "y"]
    assert Budget.of(stages, 4).stage == stages.last


@pytest.mark.parametrize("batch", [1, 3, 256])
def test_forced_lengths_and_counts(batch):
    stages = measured(CURRICULA["pad"])
    done: list[int] = []
    answers = generate_answers(
        make("gpt2"), TEXT, stages, EXAMPLES, 0, batch=batch, true_length=True, on_batch=done.append
    )
    true = sum(len(chain) - len(chain.prompt) for chain in CHAINS)
    assert answers.generated_tokens == true if batch == 1 else answers.generated_tokens >= true
    assert sum(done) == len(EXAMPLES)
    assert max(done) <= batch
    with pytest.raises(InputError, match="batch=0 must be at least 1"):
        generate_answers(make("gpt2"), TEXT, stages, EXAMPLES, 0, batch=0)


def test_the_model_is_left_in_the_mode_it_was_in():
    model = make("gpt2").train()
    generate_answers(model, TEXT, measured(DELETE), EXAMPLES[:2], 1)
    assert model.training
    assert not model._forward_pre_hooks


def test_nan_weights_give_wrong_answers_and_no_crash():
    model = make("gpt2")
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
    answers = generate_answers(model, TEXT, measured(CURRICULA["pad"]), EXAMPLES, 0)
    assert answers.exact_match(EXAMPLES) == 0


@pytest.mark.parametrize(
    ("written", "answer", "direct"),
    [
        ("#### x y [EOS]", "x y", "x y"),
        ("#### x y", "x y", "x y"),  # no end token
        ("#### x [EOS] #### y", "x", "x"),  # text after the end is ignored
        ("u v #### x [EOS]", "x", None),  # steps were written although all are hidden
        ("#### x #### y [EOS]", "y", None),
        ("x y [EOS]", None, None),
        ("#### [EOS]", "", ""),
        ("#### [PAD] x [EOS]", "[PAD] x", "[PAD] x"),  # a special token is a mistake and not skipped
        ("[PAD] #### x [EOS]", "x", None),
        ("[EOS]", None, None),
    ],
)
def test_answers_are_read_as_they_are_written(written, answer, direct):
    ids = TOKENIZER.convert_tokens_to_ids(written.split())
    assert TEXT.answer(ids) == answer
    assert TEXT.answer(ids, direct=True) == direct


def test_exact_match_is_word_for_word():
    examples = [Example("q", (), answer) for answer in ("x  y", " x", "x y", "x")]
    answers = Answers(["x y", "x", "xy", None], [""] * 4, 0, 0.0)
    assert answers.right(examples) == [True, True, False, False]
    assert answers.exact_match(examples) == 0.5
    with pytest.raises(InputError, match="no examples"):
        Answers([], [], 0, 0.0).exact_match([])
