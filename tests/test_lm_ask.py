"""`lm ask` and `internalize.lm.ask`: answers to questions from the command line, a terminal and a pipe."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from internalize import lm
from internalize.errors import InputError
from internalize.lm.evaluation.evaluate import open_subject
from internalize.lm.training.generation import Answers, generate_answers
from tests.asking import ask, call, refused
from tests.lm_runs import untrained


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained(tmp_path_factory.mktemp("ask") / "model", data="parity:n=9,k=4")


QUESTIONS = ("0 1 1 0 1 0 0 1 1", "1 1 1 0 1 0 0 1 0", "0 0 0 0 1 0 0 1 1")


class Terminal(io.StringIO):
    """Standard input that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_questions_without_answers(folder: Path, tmp_path: Path):
    """A question without a known answer is asked like any other."""
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
    with pytest.raises(InputError, match="neither a run of lm train nor a model that a run wrote"):
        lm.ask(tmp_path, ["0 1"])


def test_the_command_gives_the_answers_of_the_function(folder: Path):
    for words, chain in (([], False), (["--chain"], True)):
        found = ask(["lm", "ask", str(folder), *QUESTIONS, *words])
        assert found.keys() == {"model", "chain", "answers", "seconds"}
        assert [row["question"] for row in found["answers"]] == list(QUESTIONS)
        assert [row["generated"] for row in found["answers"]] == lm.ask(folder, QUESTIONS, chain=chain)
        assert found["chain"] is chain
    hidden, written = (ask(["lm", "ask", str(folder), QUESTIONS[0], *words]) for words in ([], ["--chain"]))
    assert hidden["answers"][0]["text"] != written["answers"][0]["text"], "there are slots only without the chain"


def test_chain_begins_where_training_does(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """With --chain the model is asked at the first stage and may write more tokens."""
    asked: list[tuple[int, Any]] = []

    def answers(model: Any, text: Any, stages: Any, examples: Any, stage: int, **how: Any) -> Answers:
        asked.append((stage, how["longest"]))
        return Answers(["1"] * len(examples), ["0 0 #### 1[EOS]"] * len(examples), 5, 0.0)

    monkeypatch.setattr("internalize.lm.evaluation.ask.generate_answers", answers)
    assert call(["lm", "ask", str(folder), *QUESTIONS]).out == "1\n1\n1\n"
    assert call(["lm", "ask", str(folder), *QUESTIONS[:2], "--chain"]).out == "0 0 #### 1\n0 0 #### 1\n"
    call(["lm", "ask", str(folder), QUESTIONS[0], "--longest", "7"])
    assert asked == [(1, 64), (0, 512), (1, 7)]


def test_a_pipe_has_one_question_per_line(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Batches do not change answers. An answer that cannot be read is a dash, and the text is shown and kept."""
    direct = ask(["lm", "ask", str(folder), *QUESTIONS])["answers"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(["", *QUESTIONS, "  "])))
    said = call(f"lm ask {folder} --batch 2 --out {tmp_path / 'kept.jsonl'}")
    assert [json.loads(line) for line in (tmp_path / "kept.jsonl").read_text().splitlines()] == direct
    assert said.out.splitlines() == [row["generated"] or "–" for row in direct]
    unread = [row["text"] for row in direct if row["generated"] is None]
    assert unread, "the model is not trained"
    assert [line.partition("wrote: ")[2] for line in said.err.splitlines() if "no answer" in line] == unread


def test_a_terminal_is_asked_until_an_empty_line(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """A question that is refused does not end the session."""
    monkeypatch.setattr("sys.stdin", Terminal(f"{QUESTIONS[0]}\n0 1 banana\n{QUESTIONS[1]}\n\n{QUESTIONS[2]}\n"))
    said = call(f"lm ask {folder}")
    assert len(said.out.splitlines()) == 2
    assert said.err.count("question: ") == 4
    assert "banana" in said.err
    monkeypatch.setattr("sys.stdin", Terminal(""))
    assert ask(f"lm ask {folder}")["answers"] == []


def test_questions_that_are_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    refused(["lm", "ask", str(folder), "0 1 banana"], "banana")
    refused(["lm", "ask", str(folder), " "], "the question is empty")
    refused(["lm", "ask", str(folder), QUESTIONS[0], "--longest", "0"], "longest=0 must be at least 1")
    refused(["lm", "ask", str(folder), QUESTIONS[0], "--batch", "0"], "batch=0 must be at least 1")
    refused(["lm", "ask", str(folder), QUESTIONS[0], "--out", str(tmp_path)], "is a folder; name a file")
    refused(["lm", "ask", str(tmp_path / "none"), QUESTIONS[0]], "is not a folder")
    direct = untrained(tmp_path / "direct", data="parity:n=9,k=4", method="pause")
    refused(["lm", "ask", str(direct), QUESTIONS[0], "--chain"], "--chain needs a model that writes its chain")
    for nothing in (io.StringIO("\n \n"), None):
        monkeypatch.setattr("sys.stdin", nothing)
        refused(f"lm ask {folder}", "there is no question")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), encoding="utf-8"))
    refused(f"lm ask {folder}", "standard input is not UTF-8")


def test_deleted_chains(tmp_path: Path):
    deleting = untrained(tmp_path / "deleting", data="parity:n=9,k=4", removal="delete")
    said = call(["lm", "ask", str(deleting), QUESTIONS[0], "--chain"])
    assert "the prompt does not depend on --chain" in said.err
