"""Examples by position: every epoch has another order, and nothing that is held out is trained on."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest

from internalize.errors import InputError
from internalize.lm.data.example import Example
from internalize.lm.data.readers import read_examples, write_examples
from internalize.lm.data.source import _SHARES, _sixteenth_of, eval_examples, of_examples, of_task, open_source
from internalize.lm.data.tasks import Task, TaskStream, get_task
from internalize.lm.options import LmTrainOptions


def numbered(path: Path, count: int, questions: int | None = None) -> Path:
    """Write a file of so many examples, whose questions may repeat."""
    write_examples(path, [Example(f"q{i % (questions or count)}", (f"s{i}",), f"a{i}") for i in range(count)])
    return path


def test_each_epoch_is_another_order_of_everything(tmp_path: Path):
    path = str(numbered(tmp_path / "some.txt", 50))
    source = open_source(path, 3, held_out=5)
    assert source.size == 45
    assert len(source.validation) == 5
    assert source.spec == path
    epochs = [[source.train(45 * epoch + i) for i in range(45)] for epoch in range(3)]
    every = set(read_examples(path)) - set(source.validation)
    for epoch in epochs:
        assert set(epoch) == every
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    again = open_source(path, 3, held_out=5)
    assert again.validation == source.validation == source.test() == source.test(100)
    assert source.test(2) == source.validation[:2]
    assert [again.train(position) for position in (130, 7, 60)] == [epochs[2][40], epochs[0][7], epochs[1][15]]
    other = open_source(path, 4, held_out=5)
    assert other.validation != source.validation
    assert len(source.training_sample(10)) == 10
    assert set(source.training_sample(1000)) == every
    with pytest.raises(InputError, match="position=-1 must be at least 0"):
        source.train(-1)


def test_copies_of_held_out_questions_do_not_train(tmp_path: Path):
    said: list[str] = []
    source = open_source(str(numbered(tmp_path / "some.txt", 60, questions=20)), 0, held_out=3, say=said.append)
    held = {example.question for example in source.validation}
    assert source.size is not None
    assert not held & {source.train(position).question for position in range(source.size)}
    copies = 60 - 3 - source.size
    assert copies == 3 * len(held) - 3
    assert said == [f"{source.spec}: {copies} examples are left out of training because their questions are held out"]


def test_a_validation_file_is_held_out(tmp_path: Path):
    data, held = numbered(tmp_path / "some.txt", 30), numbered(tmp_path / "held.txt", 10)
    said: list[str] = []
    source = open_source(str(data), 0, validation=str(held), held_out=4, say=said.append)
    assert source.validation == read_examples(held)[:4]
    assert source.test() == read_examples(held)[4:]
    assert source.size == 20
    assert "10 examples are left out" in said[0]
    with pytest.raises(InputError, match="all 10 examples have held-out questions"):
        open_source(str(held), 0, validation=str(data))


def test_a_validation_file_is_held_out_of_a_task(tmp_path: Path):
    task = get_task("parity:n=8,k=4", 0)
    held = task.examples("train", 0, 40)
    write_examples(tmp_path / "held.jsonl", held)
    source = open_source(task.spec, 0, validation=str(tmp_path / "held.jsonl"))
    assert source.validation == held
    assert not {e.question for e in held} & {source.train(position).question for position in range(400)}


def test_no_more_than_a_tenth_is_held_out(tmp_path: Path):
    said: list[str] = []
    source = open_source(str(numbered(tmp_path / "some.txt", 30)), 0, say=said.append)
    assert len(source.validation) == 3
    assert "3 of its 30 examples are held out for validation, not 512" in said[0]
    assert source.test() == source.validation
    assert open_source(source.spec, 0, held_out=0).size == 30
    both = open_source(source.spec, 0, tested=2)
    assert (len(both.validation), len(both.test()), both.size) == (3, 2, 25)
    assert not set(both.validation) & set(both.test())


def test_given_examples_are_as_those_of_a_file(tmp_path: Path):
    path = numbered(tmp_path / "some.txt", 30)
    examples = read_examples(path)
    at_hand, of_file = of_examples(examples, 3, held_out=2), open_source(str(path), 3, held_out=2)
    assert at_hand.validation == of_file.validation
    assert [at_hand.train(i) for i in range(60)] == [of_file.train(i) for i in range(60)]
    assert of_examples(examples, 3, validation=examples[:4]).size == 26
    assert of_examples(examples, 3, validation=[]).validation == []
    with pytest.raises(InputError, match="there are no examples"):
        of_examples([], 3)
    with pytest.raises(InputError, match="held_out=-1"):
        of_examples(examples, 3, held_out=-1)


def test_what_to_evaluate_on(tmp_path: Path):
    path = numbered(tmp_path / "some.txt", 30)
    assert eval_examples(str(path), 0, 7) == read_examples(path)
    assert eval_examples("parity", 2, 7) == open_source("parity", 2).test(7)
    for data in ("party:n=3", str(tmp_path / "none.txt"), "a" * 5000):
        with pytest.raises(InputError, match=r"neither a file nor a task; the tasks are parity:n|cannot read"):
            open_source(data, 0)
    with pytest.raises(InputError, match="held_out=-1"):
        open_source("parity", 0, held_out=-1)
    with pytest.raises(InputError, match="give a count"):
        open_source("parity", 0).test()


SPECS = (
    *("parity:n=10,k=4", "multiply:digits=2", "hops:hops=3"),
    *("words:group=Z2,length=10,fewest=9", "graph:form=symbols", "arithmetic:depth=2"),
)


@dataclass(frozen=True)
class Doubling(Task):
    """A user's own task: its questions are numbers, the same in every stream."""

    most: int = 1000
    seed: int = 0
    name: ClassVar[str] = "doubling"

    @property
    def questions(self) -> int:
        return self.most

    def examples(self, stream: TaskStream, start: int, count: int) -> list[Example]:
        return [Example(str(i % self.most), (), str(2 * (i % self.most))) for i in range(start, start + count)]


@pytest.mark.parametrize(
    "task",
    [*(get_task(spec, 4) for spec in SPECS), Doubling()],
    ids=lambda task: task.name,
)
def test_held_out_questions_are_never_trained_on(task: Task):
    """This holds for our tasks and for a user's own."""
    source = of_task(task, held_out=40)
    assert (source.spec, source.size) == (task.spec, None)
    train = [source.train(position) for position in range(1500)]
    trained = {example.question for example in train}
    validated = {example.question for example in source.validation}
    tested = {example.question for example in source.test(50)}
    assert (len(source.validation), len(source.test(50))) == (40, 50)
    assert source.test(50)[:20] == source.test(20)
    assert not trained & validated
    assert not trained & tested
    assert not validated & tested
    other = of_task(replace(task, seed=5))
    assert not trained & {example.question for example in other.test(50)}
    assert [source.train(position) for position in (1400, 3, 700)] == [train[1400], train[3], train[700]]


def test_given_validation_examples_and_small_tasks():
    given = [Example("7", (), "14")]
    assert of_task(Doubling(), validation=given, held_out=20).validation == given
    said: list[str] = []
    source = of_task(get_task("parity:n=4,k=2", 0), held_out=20, say=said.append)
    assert "parity:n=4,k=2,seed=0 has 16 questions: too few to hold any out" in said[0]
    assert len(source.validation) == 20
    sample = source.training_sample(50)
    assert len(sample) == len(set(sample)) <= 16
    assert len(open_source("parity", 0).training_sample(50)) == 50


def test_every_product_held_out_for_the_test_is_asked():
    products = (
        f"{one % 10} {one // 10} * {other % 10} {other // 10}" for one in range(10, 100) for other in range(10, 100)
    )
    held_out = {question for question in products if _SHARES.get(_sixteenth_of(question)) == "test"}
    asked = open_source("multiply:digits=2", 0).test(LmTrainOptions().test_examples)
    assert {example.question for example in asked} == held_out
