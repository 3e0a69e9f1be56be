"""Where a run's examples come from: a generated task or a file, with some of it held out.

Position p of the training data is one example, the same whoever asks, whenever and in whatever order: that is what a run
continues from. A task has a fresh example at every position; a file goes through a new order every epoch.

Held-out questions never occur in training. Of a file, every copy of a held-out question is kept out. Of a task, a
question's own digest says whether it is for training, validation or test, whatever the seed; small tasks (16 bits are 65 536
questions) would otherwise be trained on what they are tested with.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from internalize.environment import check_memory
from internalize.errors import InputError
from internalize.lm.data.example import Example
from internalize.lm.data.readers import Say, read_examples
from internalize.lm.data.tasks import Task, TaskStream, get_task, is_task, usage
from internalize.lm.options import LmTrainOptions
from internalize.random_words import check_seed, words
from internalize.storage.files import reading

_BLOCK: Final = 256
_PORTION: Final = 320  # examples drawn for a block: seven eighths are for training
_SHARES: Final[dict[int, TaskStream]] = {0: "validation", 1: "test"}  # two sixteenths of the questions; the rest trains
_OF: Final = 16
_FEWEST_QUESTIONS: Final = _OF * _OF
_REDRAW: Final = 2**40  # where a portion is not enough, another comes from so much further down the stream
_MAX_REDRAWS: Final = 100


class Source(ABC):
    """Training examples by position, and held-out ones."""

    spec: str
    """What it was opened with, a task with all its options and its seed."""
    validation: list[Example]
    """Held-out examples for what is decided while training."""
    size: int | None = None
    """Training examples; None if there is no end of them."""
    _block: tuple[int, list[Example]] = (-1, [])

    def train(self, position: int) -> Example:
        """The training example at a position, which may be any from 0 up."""
        if position < 0:
            raise InputError(f"position={position} is below 0; training data begin there")
        block, at = divmod(position, self.size or _BLOCK)
        if self._block[0] != block:
            self._block = (block, self._draw_block(block))
        return self._block[1][at]

    def first(self, count: int) -> list[Example]:
        """The training examples at the first positions."""
        _check_examples(count, self.train(0), self.spec)
        return [self.train(position) for position in range(count)]

    @abstractmethod
    def _draw_block(self, block: int) -> list[Example]:
        """Some training examples, kept for the positions that follow: an epoch of a file, a block of a task."""

    @abstractmethod
    def test(self, count: int | None = None) -> list[Example]:
        """Held-out examples: that many of a task; of a file's at most that many, and all without a number."""

    @abstractmethod
    def training_sample(self, count: int) -> list[Example]:
        """The first training examples, at most `count` and each once, to plan with or to build a tokenizer from."""


def open_source(
    data: str,
    seed: int,
    *,
    validation: str = "",
    held_out: int = 512,
    tested: int = 0,
    skip_bad: bool = False,
    say: Say = lambda line: None,
) -> Source:
    """Open a task's spec or a file.

    Args:
        data: a spec like ``parity:n=16,k=8`` or the path of a file. (A file named like a task is ``./parity``.)
        seed: draws the task, what is held out of a file, and the order of every epoch.
        validation: a file of held-out examples. Default: held out of the data by the seed.
        held_out: how many validation examples.
        tested: of a file, how many others to hold out for `test`. With none, its test set is its validation set.
        skip_bad: leave bad lines of a file out.
        say: told what is left out and why.
    """
    given = read_examples(validation, skip_bad=skip_bad, say=say) if validation else None
    if is_task(data):
        return of_task(get_task(data, seed), validation=given, held_out=held_out, say=say)
    read = _read_file(data, skip_bad=skip_bad, say=say)
    return of_examples(read, seed, validation=given, held_out=held_out, tested=tested, name=data, say=say)


def of_task(
    task: Task,
    *,
    validation: Sequence[Example] | None = None,
    held_out: int = 512,
    say: Say = lambda line: None,
) -> Source:
    """A task, one of ours or one's own: a fresh example at every position, questions held out by their digests."""
    return _TaskSource(task, held_out, validation, say)


def of_examples(
    examples: Sequence[Example],
    seed: int,
    *,
    validation: Sequence[Example] | None = None,
    held_out: int = 512,
    tested: int = 0,
    name: str = "examples",
    say: Say = lambda line: None,
) -> Source:
    """Examples that are at hand, from `from_dataset` for instance, held out and ordered as those of a file are."""
    check_seed(seed)
    if held_out < 0:
        raise InputError(f"held_out={held_out} must be at least 0")
    if not examples:
        raise InputError(f"{name}: there are none")
    return _FileSource(name, examples, seed, held_out, tested, validation, say)


def eval_examples(
    data: str, seed: int, count: int, *, skip_bad: bool = False, say: Say = lambda line: None
) -> list[Example]:
    """What to evaluate on when a user names it: `count` test examples of a task, or everything in a file."""
    if is_task(data):
        return _TaskSource(get_task(data, seed), 0, None, say).test(count)
    return _read_file(data, skip_bad=skip_bad, say=say)


def source_of(options: LmTrainOptions, seed: int, say: Say) -> Source:
    """The data that options of training ask for."""
    return open_source(
        options.data,
        seed,
        validation=options.validation,
        held_out=options.eval_examples,
        tested=options.test_examples,
        skip_bad=options.skip_bad,
        say=say,
    )


def _read_file(data: str, *, skip_bad: bool, say: Say) -> list[Example]:
    with reading(Path(data)):
        if not Path(data).exists():
            raise InputError(f"{data!r} is neither a file nor a task; the tasks are {usage()}")
    return read_examples(data, skip_bad=skip_bad, say=say)


class _TaskSource(Source):
    """A fresh example at every position; questions are shared out by their digests."""

    def __init__(self, task: Task, held_out: int, given: Sequence[Example] | None, say: Say) -> None:
        if held_out < 0:
            raise InputError(f"held_out={held_out} must be at least 0")
        self.task = task
        self.spec = task.spec
        self._shared = task.questions >= _FEWEST_QUESTIONS
        if not self._shared:
            say(
                f"{task.spec} has {task.questions} questions: too few to hold some out, so training meets those of the tests"
            )
        self._taken = frozenset(example.question for example in given or ())
        self.validation = self._held_out("validation", held_out) if given is None else list(given[:held_out])

    def test(self, count: int | None = None) -> list[Example]:
        if count is None:
            raise InputError("a task has no end of test examples; say how many")
        return self._held_out("test", count)

    def training_sample(self, count: int) -> list[Example]:
        sample: dict[Example, None] = {}
        for position in range(4 * count):  # a small task may have fewer different ones
            sample[self.train(position)] = None
            if len(sample) == min(count, self.task.questions):
                break
        return list(sample)

    def _trains(self, example: Example) -> bool:
        if example.question in self._taken:
            return False
        return not self._shared or _sixteenth_of(example.question) not in _SHARES

    def _draw_block(self, block: int) -> list[Example]:
        """The first of a block's own portion of the stream that are for training, and more from far down if they are few."""
        found: list[Example] = []
        for attempt in range(_MAX_REDRAWS):
            drawn = self.task.examples("train", block * _PORTION + attempt * _REDRAW, _PORTION)
            found += filter(self._trains, drawn)
            if len(found) >= _BLOCK:
                return found[:_BLOCK]
        raise InputError(f"{self.spec}: next to no question is left to train on, so many are held out")

    def _held_out(self, stream: TaskStream, count: int) -> list[Example]:
        """The first of a stream whose questions are this stream's to have."""
        if count < 0:
            raise InputError(f"{count} examples; the number must be at least 0")
        _check_examples(count, self.task.example(stream, 0), self.spec)
        if not self._shared:
            return self.task.examples(stream, 0, count)
        found: list[Example] = []
        start = 0
        while len(found) < count:
            portion = _OF * min(count - len(found), _BLOCK) + _BLOCK
            drawn = self.task.examples(stream, start, portion)
            found += [example for example in drawn if _SHARES.get(_sixteenth_of(example.question)) == stream]
            start += portion
        return found[:count]


class _FileSource(Source):
    """The examples of a file but the held-out ones, in a new order every epoch."""

    def __init__(
        self,
        spec: str,
        examples: Sequence[Example],
        seed: int,
        held_out: int,
        tested: int,
        given: Sequence[Example] | None,
        say: Say,
    ) -> None:
        self.spec = spec
        self._seed = seed
        if given is None:
            self.validation, test = _draw_held_out(spec, examples, seed, held_out, tested, say)
        else:
            self.validation, test = list(given[:held_out]), list(given[held_out:])
        self._test = test or self.validation
        if tested and not test:
            say(
                f"{spec}: too few examples are held out for a test set of its own; the validation set decides and tests"
            )
        held = [*self.validation, *test]
        asked = {example.question for example in held}
        self._examples = [example for example in examples if example.question not in asked]
        if not self._examples:
            raise InputError(
                f"{spec}: all of its {len(examples)} examples have held-out questions; none is left to train on"
            )
        copies = len(examples) - len(self._examples) - (len(held) if given is None else 0)
        if copies:
            say(f"{spec}: {copies} examples are left out of training because their questions are held out")
        self.size = len(self._examples)

    def _draw_block(self, block: int) -> list[Example]:
        count = len(self._examples)
        order = words(self._seed, "order", block * count, count).argsort(kind="stable")
        return [self._examples[i] for i in order.tolist()]

    def test(self, count: int | None = None) -> list[Example]:
        return list(self._test) if count is None else self._test[:count]

    def training_sample(self, count: int) -> list[Example]:
        return list(dict.fromkeys(self._examples))[:count]


def _draw_held_out(
    spec: str, examples: Sequence[Example], seed: int, held_out: int, tested: int, say: Say
) -> tuple[list[Example], list[Example]]:
    """Examples for validation and for test, drawn by the seed: each no more than a tenth (but one), in the file's order."""
    most = max(1, len(examples) // 10)
    for count, what in ((held_out, "validation"), (tested, "test")):
        if count > most:
            say(
                f"{spec}: {most} of its {len(examples)} examples are held out for {what}, not {count} (a tenth is the most)"
            )
    held_out, tested = min(held_out, most), min(tested, most, max(0, len(examples) - most - 1))
    order: list[int] = words(seed, "validation", 0, len(examples)).argsort(kind="stable").tolist()
    chosen = order[:held_out], order[held_out : held_out + tested]
    first, second = ([examples[i] for i in sorted(some)] for some in chosen)
    return first, second


def _check_examples(count: int, one: Example, spec: str) -> None:
    """Refuse more examples than fit in memory. As text and tokens one takes about 1000 bytes, 4 a character and 60 a step."""
    size = 1000 + 4 * sum(map(len, (one.question, one.answer, *one.steps))) + 60 * len(one.steps)
    check_memory(count * size, f"{count} examples of {spec}")


def _sixteenth_of(question: str) -> int:
    """Which sixteenth of all questions this one belongs to."""
    return hashlib.blake2b(question.encode(), digest_size=1).digest()[0] % _OF
