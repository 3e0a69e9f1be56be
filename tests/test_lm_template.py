"""lm/stages/template.py: the text around questions, steps and answers, by name, by file or from a chat template."""

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest

from internalize.errors import InputError
from internalize.lm.data.example import Example
from internalize.lm.evaluation.ask import ask as ask_model
from internalize.lm.evaluation.evaluate import open_subject
from internalize.lm.stages.chains import TextFormat, word_tokenizer
from internalize.lm.stages.template import ICOT, TEMPLATES, Template, get_template
from internalize.lm.training.models import PromptSpec
from tests.asking import ask, refused
from tests.lm_runs import TINY, untrained, words
from tests.test_lm_chains import byte_tokenizer

SUM = Example("12 + 30", ("2 + 0 = 2", "1 + 3 = 4"), "42")
CHATML = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content | trim }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def chatty(chat: str = CHATML, *, begin: bool = False) -> Any:
    tokenizer = byte_tokenizer(begin=begin)
    tokenizer.chat_template = chat
    return tokenizer


WRITTEN = {
    "icot": "12 + 30 || 2 + 0 = 2 1 + 3 = 4 #### 42</s>",
    "plain": "Question: 12 + 30\nReasoning: 2 + 0 = 2 1 + 3 = 4 Answer: 42</s>",
    "lines": "12 + 30\n2 + 0 = 2\n1 + 3 = 4\n#### 42</s>",
    "chat": "<s><|user|>\n12 + 30</s>\n<|assistant|>\n2 + 0 = 2\n1 + 3 = 4\n#### 42</s>",
}


@pytest.mark.parametrize("begin", [False, True])
@pytest.mark.parametrize("name", WRITTEN)
def test_the_text_of_a_template(name: str, begin: bool):
    """A chat template with the begin token does not give it twice."""
    text = TextFormat(tokenizer := chatty(begin=begin), template=get_template(name, chatty(begin=begin)))
    [chain] = text.chains([SUM])
    whole = tokenizer.decode([token for part in (chain.prompt, *chain.units, chain.answer) for token in part])
    assert whole == ("<s>" if begin and name != "chat" else "") + WRITTEN[name]
    assert tokenizer.decode(chain.prompt[text.begins :]).startswith(SUM.question)
    assert len(chain.units) == 2
    steps = [token for unit in chain.units for token in unit]
    assert text.answer([*steps, *chain.answer]) == text.answer(chain.answer, direct=True) == "42"
    assert text.answer([*steps, *chain.answer], direct=True) is None
    assert text.answer(steps) is None
    assert text.with_unit("token").template == text.template


@pytest.mark.parametrize("name", TEMPLATES)
def test_word_tokenizers_know_the_words_of_a_template(name: str):
    template = TEMPLATES[name]
    text = TextFormat(word_tokenizer([SUM], template), template=template)
    [chain] = text.chains([SUM])
    assert text.tokenizer.unk_token_id not in (*chain.prompt, *chain.answer, *(t for unit in chain.units for t in unit))
    assert text.answer(chain.answer, direct=True) == "42"
    glued = replace(template, before_question="Q:")
    assert "Q:12" in word_tokenizer([SUM], glued).get_vocab()


def test_a_chat_with_its_own_end_of_turn():
    """What a turn ends with is written, if it is not the end token, and is no part of the answer."""
    tokenizer = chatty(CHATML.replace("</s>", "<end_of_turn>"))
    template = get_template("chat", tokenizer)
    assert template.end == "<end_of_turn>"
    [chain] = (text := TextFormat(tokenizer, template=template)).chains([SUM])
    assert tokenizer.decode(chain.answer) == "#### 42<end_of_turn></s>"
    assert text.answer(chain.answer) == "42"


def test_a_template_in_a_file(tmp_path: Path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"after_question": "\n", "before_answer": "Therefore: ", "end": " ."}))
    template = get_template(str(path))
    assert template == Template(after_question="\n", before_answer="Therefore: ", end=" .")
    assert template.pieces(SUM) == ["12 + 30\n", *SUM.steps, "Therefore: 42 ."]
    assert template.answer("so 1 Therefore:  42  .") == "42"


BAD_FILES = {
    '{"before_answer": " "}': "before_answer is blank",
    "{}": "before_answer is blank",
    '{"before_answer": "A", "after_step": 3}': "after_step: expected `str`, got `int`",
    '{"before_answer": "A", "after_steps": ""}': "'after_steps' is not a part of a template",
    '{"before_answer": "A:", "end": " A: "}': "end holds before_answer",
    '{"before_answer": "A", "end": "\\u0000"}': "end holds a NUL",
    '{"before_answer": "' + "A" * 20_001 + '"}': "before_answer has 20001 characters",
    '["icot"]': "is not a JSON object",
    "icot": "is not JSON",
}


@pytest.mark.parametrize("content", BAD_FILES)
def test_bad_files(content: str, tmp_path: Path):
    path = tmp_path / "mine.json"
    path.write_text(content)
    with pytest.raises(InputError, match="mine.json") as error:
        get_template(str(path))
    assert BAD_FILES[content] in str(error.value)


@pytest.mark.parametrize(
    ("chat", "reason"),
    [
        (None, "has no chat template"),
        ("{% for", "fails: "),
        ("{{ raise_exception('no, thanks') }}", "fails: no, thanks"),
        ("{{ messages[0].content / 2 }}", "fails: "),
        ("{{ messages.__class__.__mro__ }}", "fails: "),
        ("hello", "does not write each message once"),
        ("{{ messages[0].content }}{{ messages[0].content }}", "does not write each message once"),
    ],
)
def test_bad_chat_templates(chat: str | None, reason: str):
    tokenizer = chatty()
    tokenizer.chat_template = chat
    with pytest.raises(InputError, match="template=chat") as error:
        get_template("chat", tokenizer)
    assert reason in str(error.value)


def test_a_model_keeps_its_template(tmp_path: Path):
    """Training, evaluation and answers use the same text; a model without a stored template means icot."""
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(asdict(mine := Template("Bits: ", " ?", " then ", "", " so: "))))
    run = tmp_path / "run"
    options = replace(TINY, template=str(file), steps=2, eval_every=2, budgets="never")
    ask(words(options, run))
    assert json.loads((run / "config.json").read_text())["template"] == str(file)
    assert PromptSpec.read(run / "model").template == mine
    file.unlink()
    assert ask(f"lm eval --model {run}/model")["examples"] > 0
    assert len(ask_model(run, ["0 1 1 0 1 0"])) == 1
    subject = open_subject(run / "model", examples=1)
    [chain] = subject.text.chains(subject.examples)
    assert subject.text.tokenizer.decode(chain.prompt) == f"Bits: {subject.examples[0].question} ?"
    refused(f"lm eval --model {run}/model --template lines", "has its prompt format in internalize.json; template is")

    stored = run / "model" / "internalize.json"
    stored.write_text(json.dumps({k: own for k, own in json.loads(stored.read_text()).items() if k != "template"}))
    assert PromptSpec.read(run / "model").template == ICOT
    stored.write_text(json.dumps({**json.loads(stored.read_text()), "template": {"before_answer": " "}}))
    refused(f"lm eval --model {run}/model", "internalize.json: template: before_answer is blank")


def test_the_template_of_a_model_that_is_not_ours(tmp_path: Path):
    folder = untrained(tmp_path / "model", template="plain")
    (folder / "internalize.json").unlink()
    how = f"lm eval --model {folder} --data parity:n=6,k=4 --examples 4 --method none"
    assert ask(f"{how} --template plain")["examples"] == 4
    refused(f"{how} --template chat", "template=chat: the tokenizer has no chat template", alone=False)
    refused(f"{how} --template tidy", "template='tidy' is neither icot, plain, lines, chat nor a file", alone=False)


def test_every_part_of_a_template_matters():
    """No part is left out of the pieces."""
    filled = Template(**{field.name: f"[{field.name}]" for field in fields(Template)})
    pieces = "".join(filled.pieces(SUM))
    assert all(f"[{field.name}]" in pieces for field in fields(Template))
