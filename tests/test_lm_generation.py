"""Generated answers: alone or in a batch the same, read as they are written, counted exactly; and `lm eval` around them."""

import json
import random
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig

from internalize import lm
from internalize.commands.lm_eval import LmEval
from internalize.errors import InputError
from internalize.lm.chains import TextFormat, word_tokenizer
from internalize.lm.evaluation import Subject, evaluate, open_subject
from internalize.lm.example import Example
from internalize.lm.generation import Answers, _generate, _generating, generate_answers
from internalize.lm.models import Asking, load_model, save_model
from internalize.lm.options import CurriculumOptions
from internalize.lm.readers import write_examples
from internalize.lm.removal import TextStages
from internalize.lm.states import Budget
from internalize.lm.tasks import get_task
from tests.lm_runs import TINY

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
    """Questions and chains of different lengths."""
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
    kind, options = ARCHITECTURES[name]
    torch.manual_seed(0)
    special = {"bos_token_id": None, "eos_token_id": TEXT.end, "pad_token_id": TEXT.pad, "loss_type": "ForCausalLM"}
    return AutoModelForCausalLM.from_config(
        kind(**{"vocab_size": len(TOKENIZER), **special, **options, **changes})
    ).eval()


def measured(options: CurriculumOptions) -> TextStages:
    return TextStages.measure(options, CHAINS, TEXT.slot)


# Alone or in a batch


@pytest.mark.parametrize("curriculum", CURRICULA)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_batch_gives_what_one_at_a_time_gives(name, curriculum, capfd):
    model, stages = make(name), measured(CURRICULA[curriculum])
    for stage in (1, stages.last):
        together = _generate(model, TEXT, stages, CHAINS, stage, 8, None)
        alone = [_generate(model, TEXT, stages, [chain], stage, 8, None)[0] for chain in CHAINS]
        assert together == alone
        assert len({tuple(row) for row in together}) > 1 or curriculum == "pad"
    assert capfd.readouterr() == ("", "")  # transformers had nothing to warn of


@pytest.mark.parametrize("curriculum", CURRICULA)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_generated_tokens_are_those_of_a_full_pass_with_the_positions_of_training(name, curriculum):
    """Feed prompt and generated tokens at once, with positions as `TextStages.sequence` has them: greedy at every place."""
    model, stages = make(name), measured(CURRICULA[curriculum])
    options = stages.options
    for stage in (0, 2, stages.last):
        gap = stages.stage_slots[stage] if options.keep_positions else 0
        for chain, new in zip(CHAINS, _generate(model, TEXT, stages, CHAINS, stage, 10, None), strict=True):
            tokens = [*stages.prompt(chain, stage).tokens, *new]
            start = len(tokens) - len(new)
            if options.side == "right" and stage < stages.last:  # the gap comes before the answer, once it is written
                start += new.index(chain.answer[0]) if chain.answer[0] in new else len(new)
            positions = [i + gap * (i >= start) for i in range(len(tokens))]
            with torch.no_grad():
                logits = model(
                    input_ids=torch.tensor([tokens]),
                    position_ids=torch.tensor([positions]),
                    attention_mask=torch.ones(1, len(tokens), dtype=torch.long),
                ).logits[0]
            assert logits[-len(new) - 1 : -1].argmax(-1).tolist() == new


def test_the_gap_of_kept_positions_is_that_of_training():
    stages = measured(DELETE)
    for chain in CHAINS:
        for stage in range(stages.count):
            row = stages.sequence(chain, stages.hidden_units(chain, stage), stages.stage_slots[stage])
            asked = stages.prompt(chain, stage)
            assert row.tokens[: len(asked.tokens)] == asked.tokens
            assert row.positions[: len(asked.positions)] == asked.positions


def test_a_models_own_generation_settings_are_left_alone_and_not_used():
    model, stages = make("gpt2"), measured(CURRICULA["pad"])
    expected = _generate(model, TEXT, stages, CHAINS, 0, 10, None)
    own = model.generation_config
    own.do_sample, own.temperature, own.repetition_penalty, own.max_length = True, 2.0, 5.0, 3
    assert _generate(model, TEXT, stages, CHAINS, 0, 10, None) == expected
    assert model.generation_config is own
    assert (own.do_sample, own.repetition_penalty, own.max_length) == (True, 5.0, 3)


def test_adapters_are_generated_with():
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    config = LoraConfig(
        r=2, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False, task_type="CAUSAL_LM"
    )
    model, stages = get_peft_model(make("gpt2"), config), measured(DELETE)
    adapted = _generate(_generating(model), TEXT, stages, CHAINS, 1, 8, None)
    assert adapted != _generate(make("gpt2"), TEXT, stages, CHAINS, 1, 8, None)
    answers = generate_answers(model, TEXT, stages, EXAMPLES, 1)
    merged = model.merge_and_unload()
    assert adapted == _generate(merged, TEXT, stages, CHAINS, 1, 8, None)
    again = generate_answers(merged, TEXT, stages, EXAMPLES, 1)
    assert (answers.answers, answers.generated_tokens) == (again.answers, again.generated_tokens)


def test_too_few_positions_cut_off_the_one_and_not_its_neighbours():
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


def test_what_a_stage_has_no_room_for_is_counted_at_that_stage():
    """With --removal delete a chain that is shown takes more positions than one that is not."""
    stages = measured(CURRICULA["delete"])
    whole, answered = (
        [len(stages.sequence(chain, stages.hidden_units(chain, stage), 0).tokens) for chain in CHAINS]
        for stage in (0, stages.last)
    )
    positions = max(answered) - 1  # the last token is not fed back
    subject = Subject(make("gpt2", n_positions=positions), TEXT, stages, EXAMPLES, "")
    rows = evaluate(subject, every_stage=True).result["stages"]
    assert rows[0]["without_room"] == sum(length > positions + 1 for length in whole) > 0
    assert rows[-1]["without_room"] == 0


LEVELED = [
    Example("a b c", ("u", "v", "w", "u"), "x", levels=(1, 1, 1, 2)),
    Example("d e f", ("w", "v", "u"), "y", levels=(1, 2, 3)),
]


def test_a_chain_may_show_steps_where_the_longest_is_hidden(monkeypatch: pytest.MonkeyPatch):
    """Of chains whose steps and levels differ, one that writes what is true is right at every stage."""
    text = TextFormat(word_tokenizer(LEVELED))
    stages = TextStages.measure(CurriculumOptions("log-icot"), text.chains(LEVELED), text.slot)
    assert stages.hidden == (0, 3, 4, 4)

    def write_the_truth(model: Any, text: Any, stages: Any, chains: Any, stage: int, *_: Any) -> list[list[int]]:
        whole = (stages.sequence(c, stages.hidden_units(c, stage), stages.stage_slots[stage]).tokens for c in chains)
        return [row[len(stages.prompt(c, stage).tokens) :] for c, row in zip(chains, whole, strict=True)]

    monkeypatch.setattr("internalize.lm.generation._generate", write_the_truth)
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


def test_weights_that_are_not_finite_give_wrong_answers_and_no_crash():
    model = make("gpt2")
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
    answers = generate_answers(model, TEXT, measured(CURRICULA["pad"]), EXAMPLES, 0)
    assert answers.exact_match(EXAMPLES) == 0


# Reading and counting


@pytest.mark.parametrize(
    ("written", "answer", "direct"),
    [
        ("#### x y [EOS]", "x y", "x y"),
        ("#### x y", "x y", "x y"),  # no end token
        ("#### x [EOS] #### y", "x", "x"),  # what follows the end is not said
        ("u v #### x [EOS]", "x", None),  # steps were written, though all were to be hidden
        ("#### x #### y [EOS]", "y", None),
        ("x y [EOS]", None, None),
        ("#### [EOS]", "", ""),
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
    answers = Answers(["x y", "x", "xy", None], 0, 0.0)
    assert answers.right(examples) == [True, True, False, False]
    assert answers.exact_match(examples) == 0.5
    with pytest.raises(InputError, match="no examples"):
        Answers([], 0, 0.0).exact_match([])


@given(st.lists(st.booleans(), min_size=1, max_size=30))
def test_exact_match_counts(right):
    answers = Answers(["x" if r else None for r in right], 0, 0.0)
    assert answers.exact_match([Example("q", (), "x")] * len(right)) == sum(right) / len(right)


# lm eval


def test_word_match_counts_what_is_half_right():
    examples = [Example("2 * 3", (), answer) for answer in ("6 0 1 2", "6 0 1 2", "6 0", "6 0", "6")]
    found = Answers(["6 0 1 2", "6 9 1", "6 0 6 0", "0 6", None], 0, 0.0)
    assert found.word_match(examples) == pytest.approx((1 + 2 / 4 + 2 / 4 + 0 + 0) / 5)
    assert found.summary(examples)["word_match"] == found.word_match(examples)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A model folder as lm train writes it, with weights that know nothing."""
    examples = get_task("parity:n=9,k=4").examples("train", 0, 20)
    tokenizer = word_tokenizer(examples)
    text = TextFormat(tokenizer)
    stages = TextStages.measure(CurriculumOptions("log-icot"), text.chains(examples), text.slot)
    model = make("gpt2", vocab_size=len(tokenizer), eos_token_id=text.end)
    save_model(tmp_path / "model", model, tokenizer, Asking.of("parity:n=9,k=4,seed=0", "given", text, stages))
    return tmp_path / "model"


def test_eval_says_what_the_contract_says(folder, tmp_path, capsys, monkeypatch):
    def refuse(*_: Any) -> None:
        raise AssertionError("no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert LmEval(folder, examples=20, stages="all", chain=True, out=tmp_path / "out", json=True)() == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == {
        *("exact_match", "exact_match_low", "exact_match_high", "word_match", "examples"),
        *("examples_per_second", "generated_tokens"),
        *("stages", "chain_exact_match", "chain_examples_per_second", "speedup", "seconds"),
    }
    assert found["examples"] == 20
    assert 0 <= found["exact_match_low"] <= found["exact_match"] <= found["exact_match_high"] <= 1
    assert [(row["stage"], row["hidden"]) for row in found["stages"]] == [(1, 0), (2, 2)]
    assert found["stages"][0]["exact_match"] == found["chain_exact_match"]
    assert found["stages"][1]["exact_match"] == found["exact_match"]
    assert json.loads((tmp_path / "out" / "result.json").read_text()) == found
    rows = [json.loads(line) for line in (tmp_path / "out" / "answers.jsonl").read_text().splitlines()]
    assert len(rows) == 20
    assert sum(row["right"] for row in rows) / 20 == found["exact_match"]
    assert all(row["right"] == (row["generated"] == row["answer"]) for row in rows)
    assert LmEval(folder, examples=20)() == 0
    assert "exact match" in capsys.readouterr().out


def test_a_model_that_is_not_ours_is_asked_as_it_is_told(folder, tmp_path):
    (folder / "internalize.json").unlink()
    lines: list[str] = []
    subject = open_subject(folder, "parity:n=9,k=4", 10, options=CurriculumOptions("none"), say=lines.append)
    assert subject.stages.hidden == (2,)
    assert "asked as none" in lines[-1]
    with pytest.raises(InputError, match="--data is missing"):
        open_subject(folder)
    with pytest.raises(InputError, match="--chain needs a model that writes its chain; method none"):
        evaluate(subject, chain=True)


def test_bfloat16_and_a_file(folder, tmp_path):
    path = tmp_path / "data.jsonl"
    write_examples(path, get_task("parity:n=9,k=4").examples("test", 0, 5))
    subject = open_subject(folder, str(path), dtype="bfloat16")
    assert subject.model.dtype == torch.bfloat16
    assert evaluate(subject).result["examples"] == 5


def test_no_examples_are_refused(folder):
    subject = open_subject(folder, examples=3)
    with pytest.raises(InputError, match="no examples to evaluate"):
        evaluate(Subject(subject.model, subject.text, subject.stages, [], subject.data))
    with pytest.raises(InputError, match="examples=0 must be at least 1"):
        open_subject(folder, examples=0)


def test_other_words_are_refused_and_another_problem_is_mentioned(folder):
    with pytest.raises(InputError, match=r"made for other data: its tokenizer does not know '\S+'"):
        open_subject(folder, "multiply:digits=2")
    lines: list[str] = []
    open_subject(folder, "parity:n=9,k=4", 5, seed=3, say=lines.append)
    assert "not what the model was trained on" in lines[0]
    with pytest.raises(InputError, match="says in internalize.json how it is asked"):
        open_subject(folder, options=CurriculumOptions("cot"))


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(folder):
    model, tokenizer = load_model(folder)
    asking = Asking.read(folder)
    model.resize_token_embeddings(3)
    save_model(folder, model, tokenizer, asking)
    with pytest.raises(InputError, match="the model has 3: they do not go together"):
        open_subject(folder, examples=3)


def test_a_model_with_too_few_positions_is_refused(folder):
    _, tokenizer = load_model(folder)
    asking = Asking.read(folder)
    save_model(folder, make("gpt2", vocab_size=len(tokenizer), n_positions=8), tokenizer, asking)
    with pytest.raises(InputError, match="none of the examples fits"):
        open_subject(folder, examples=3)


def test_folders_that_hold_no_model_are_refused(tmp_path):
    with pytest.raises(InputError, match="is not a folder"):
        open_subject(tmp_path / "nothing")
    (tmp_path / "config.json").write_text('{"version": 1, "kind": "solve"}')
    with pytest.raises(InputError, match="holds a run of kind 'solve'"):
        open_subject(tmp_path)
    (tmp_path / "config.json").write_text('{"version": 1, "kind": "lm-train"}')
    with pytest.raises(InputError, match="has no model yet"):
        open_subject(tmp_path)


def test_a_run_knows_what_it_held_out(tmp_path):
    from internalize.lm.train import train
    from internalize.runs import Run

    path = tmp_path / "data.jsonl"
    write_examples(path, list(dict.fromkeys(get_task("parity:n=9,k=4").examples("train", 0, 60))))
    options = replace(TINY, data=str(path), steps=2, stage_steps=1, eval_every=2, eval_examples=6)
    result = train(options, 3, Run(tmp_path / "run"))
    subject = open_subject(tmp_path / "run")
    assert evaluate(subject).result["exact_match"] == result["exact_match"]
    assert len(subject.examples) == result["examples"]
    with pytest.raises(InputError, match="only its run folder knows what was held out"):
        open_subject(tmp_path / "run" / "model")


def test_questions_without_answers(folder: Path, tmp_path: Path):
    """A model is asked what nobody knows as it is asked what is known."""
    subject = open_subject(folder, examples=30)
    questions = [example.question for example in subject.examples]
    known = generate_answers(subject.model, subject.text, subject.stages, subject.examples, subject.stages.last)
    assert lm.ask(folder, questions, batch=7) == known.answers
    cut = generate_answers(subject.model, subject.text, subject.stages, subject.examples, 1, longest=1)
    assert cut.generated_tokens == len(questions)
    assert lm.ask(folder, []) == []
    for asked, longest, message in (
        (["0 1 banana"], 9, "banana"),
        ([" "], 9, "the question is empty"),
        (questions, 0, "longest=0 must be at least 1"),
    ):
        with pytest.raises(InputError, match=message):
            lm.ask(folder, asked, longest=longest)
    with pytest.raises(InputError, match="is not a folder"):
        lm.ask(tmp_path / "none", ["0 1"])
    with pytest.raises(InputError, match="internalize.json"):
        lm.ask(tmp_path, ["0 1"])
