"""The source of a run's examples: a generated task or a file, with some of it held out.

Position p of the training data always has the same example, in whatever order positions are read. So a run can be
resumed. A task has a new example at every position. A file has a new order every epoch.

Held-out questions never occur in training. In a file, every copy of a held-out question is left out. In a task, the
question's digest decides whether it is for training, validation or test, whatever the seed. Otherwise small tasks (16
bits give 65 536 questions) would be tested on questions that they were trained on.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from internalize.environment import check_memory
from internalize.errors import InputError
from internalize.lm.data.example import Example
from internalize.lm.data.hub import is_dataset
from internalize.lm.data.readers import Say, as_json, read_examples, scan
from internalize.lm.data.rows import short
from internalize.lm.data.tasks import Task, TaskStream, get_task, is_task, usage
from internalize.lm.options import LmTrainOptions
from internalize.random_words import check_seed, words
from internalize.storage.files import reading

_BLOCK: Final = 256
_PORTION: Final = 320  # examples drawn for a block: seven eighths are for training
_SHARES: Final[dict[int, TaskStream]] = {0: "validation", 1: "test"}  # two sixteenths of the questions; the rest trains
_OF: Final = 16
_FEWEST_QUESTIONS: Final = _OF * _OF
_REDRAW: Final = (
    2**40
)  # if a portion has too few training examples, the next one is drawn this much further down the stream
_MAX_REDRAWS: Final = 100
_PLACES: Final = 50
"""Lines that a message names."""


class Source(ABC):
    """Training examples by position, and held-out examples."""

    spec: str
    """The file's path, or the task with all its options and its seed."""
    validation: list[Example]
    """Held-out examples that decide when a stage ends."""
    size: int | None = None
    """The number of training examples; None if it is unlimited."""
    _block: tuple[int, list[Example]] = (-1, [])

    def train(self, position: int) -> Example:
        """Return the training example at a position from 0 up, without an upper limit."""
        if position < 0:
            raise InputError(f"position={position} must be at least 0")
        block, at = divmod(position, self.size or _BLOCK)
        if self._block[0] != block:
            self._block = (block, self._draw_block(block))
        return self._block[1][at]

    def leave_out(self, long: Callable[[Sequence[Example]], list[bool]], why: str, say: Say) -> None:
        """Leave out the examples of a file for which ``long`` is true, and say why, how many and which they are.

        What is held out was drawn before, so it does not depend on what is left out. A task has no end, so nothing can
        be left out of it.
        """
        some = [*self.training_sample(_BLOCK), *self.validation]
        if any(long(some)):
            raise InputError(f"{self.spec} has examples that are {why}; the options of a task decide their length")

    def first(self, count: int) -> list[Example]:
        """Return the training examples at the first positions."""
        _check_examples(count, self.train(0), self.spec)
        return [self.train(position) for position in range(count)]

    @abstractmethod
    def _draw_block(self, block: int) -> list[Example]:
        """Return the training examples of a block of positions: an epoch of a file, or `_BLOCK` examples of a task."""

    @abstractmethod
    def test(self, count: int | None = None) -> list[Example]:
        """Return `count` test examples of a task. A file gives at most `count`, and all of them without a count."""

    @abstractmethod
    def training_sample(self, count: int) -> list[Example]:
        """Return the first training examples, at most `count` and each once, for planning or building a tokenizer."""


def open_source(
    data: str,
    seed: int,
    *,
    validation: str = "",
    held_out: int = 512,
    tested: int = 0,
    skip_bad: bool = False,
    limit: int | None = None,
    say: Say = lambda line: None,
) -> Source:
    """Open a generated task, a file or a data set.

    Args:
        data: a spec like ``parity:n=16,k=8``, the path of a file, the folder of a data set, or ``hf:NAME:SPLIT``. (For
            a file named like a task write ``./parity``.)
        seed: draws the task, the held-out examples of a file, and the order of every epoch.
        validation: a file of held-out examples. Default: the seed draws them from the data.
        held_out: number of validation examples.
        tested: number of further examples of a file to hold out for `test`. With 0 the validation set is also the test
            set.
        skip_bad: leave out bad lines of a file.
        limit: number of examples to read from the start of a file. Default: all.
        say: called with a line about what is left out and why.
    """
    given = read_examples(validation, skip_bad=skip_bad, say=say) if validation else None
    if is_task(data):
        return of_task(get_task(data, seed), validation=given, held_out=held_out, say=say)
    read = _read_file(data, skip_bad=skip_bad, limit=limit, say=say)
    return of_examples(read, seed, validation=given, held_out=held_out, tested=tested, name=data, say=say)


def of_task(
    task: Task,
    *,
    validation: Sequence[Example] | None = None,
    held_out: int = 512,
    say: Say = lambda line: None,
) -> Source:
    """Open a task of the user or of the package. Every position has a new example; digests decide what is held out."""
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
    """Open a list of examples, for instance from `from_dataset`. They are held out and ordered like those of a file."""
    check_seed(seed)
    if held_out < 0:
        raise InputError(f"held_out={held_out} must be at least 0")
    if not examples:
        raise InputError(f"{name}: there are no examples")
    return _FileSource(name, examples, seed, held_out, tested, validation, say)


def eval_examples(
    data: str, seed: int, count: int, *, skip_bad: bool = False, say: Say = lambda line: None
) -> list[Example]:
    """Return the examples to evaluate on: `count` test examples of a task, or all examples of a file."""
    if is_task(data):
        return _TaskSource(get_task(data, seed), 0, None, say).test(count)
    return _read_file(data, skip_bad=skip_bad, say=say)


def source_of(options: LmTrainOptions, seed: int, say: Say) -> Source:
    """Open the data that training options name."""
    return open_source(
        options.data,
        seed,
        validation=options.validation,
        held_out=options.eval_examples,
        tested=options.test_examples,
        skip_bad=options.skip_bad,
        limit=options.max_examples,
        say=say,
    )


def digests_of(options: LmTrainOptions) -> dict[str, str]:
    """Return the digest of each file and data set in the options, by its name there.

    The digest of a file is that of its bytes. That of a data set, or of the start of a file, is that of the examples
    read.
    """
    template = options.template if options.template.endswith(".json") else ""
    limits = {template: None, options.validation: None, options.data: options.max_examples}
    digests: dict[str, str] = {}
    for name, limit in limits.items():
        path = Path(name)
        if not name or is_task(name):
            continue
        if is_dataset(name) or (limit is not None and path.is_file()):
            digest = hashlib.sha256()
            for example in scan(name, limit).examples:
                digest.update(json.dumps(as_json(example)).encode())
            digests[name] = digest.hexdigest()
        elif path.is_file():
            with reading(path), path.open("rb") as file:
                digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def _read_file(data: str, *, skip_bad: bool, say: Say, limit: int | None = None) -> list[Example]:
    """Read a file or a data set, or name the tasks if there is no such file."""
    with reading(Path(data)):
        if not is_dataset(data) and not Path(data).exists():
            raise InputError(f"{data!r} is neither a file nor a task; the tasks are {usage()}")
    return read_examples(data, limit=limit, skip_bad=skip_bad, say=say)


class _TaskSource(Source):
    """A source with a new example at every position. Questions are held out by their digests."""

    def __init__(self, task: Task, held_out: int, given: Sequence[Example] | None, say: Say) -> None:
        if held_out < 0:
            raise InputError(f"held_out={held_out} must be at least 0")
        self.task = task
        self.spec = task.spec
        self._holds_out = task.questions >= _FEWEST_QUESTIONS
        if not self._holds_out:
            say(
                f"{task.spec} has {task.questions} questions: too few to hold any out, so training also uses test questions"
            )
        self._given = frozenset(example.question for example in given or ())
        self.validation = self._held_out("validation", held_out) if given is None else list(given[:held_out])

    def test(self, count: int | None = None) -> list[Example]:
        if count is None:
            raise InputError("a task has unlimited test examples; give a count")
        return self._held_out("test", count)

    def training_sample(self, count: int) -> list[Example]:
        sample: dict[Example, None] = {}
        for position in range(4 * count):  # a small task may have fewer different examples
            sample[self.train(position)] = None
            if len(sample) == min(count, self.task.questions):
                break
        return list(sample)

    def _trains(self, example: Example) -> bool:
        if example.question in self._given:
            return False
        return not self._holds_out or _sixteenth_of(example.question) not in _SHARES

    def _draw_block(self, block: int) -> list[Example]:
        """Return the first training examples of the block's portion. If there are too few, draw more down the stream."""
        found: list[Example] = []
        for attempt in range(_MAX_REDRAWS):
            drawn = self.task.examples("train", block * _PORTION + attempt * _REDRAW, _PORTION)
            found += filter(self._trains, drawn)
            if len(found) >= _BLOCK:
                return found[:_BLOCK]
        raise InputError(f"{self.spec}: almost all questions are held out, so too few are left to train on")

    def _held_out(self, stream: TaskStream, count: int) -> list[Example]:
        """Return the first examples of a stream whose digests assign them to this stream."""
        if count < 0:
            raise InputError(f"{count} examples; the number must be at least 0")
        _check_examples(count, self.task.example(stream, 0), self.spec)
        if not self._holds_out:
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
    """A source with the examples of a file except the held-out ones, in a new order every epoch."""

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
            say(f"{spec}: too few examples for a separate test set; the validation set is also the test set")
        held = [*self.validation, *test]
        asked = {example.question for example in held}
        self._examples = [example for example in examples if example.question not in asked]
        if not self._examples:
            raise InputError(f"{spec}: all {len(examples)} examples have held-out questions; none is left to train on")
        copies = len(examples) - len(self._examples) - (len(held) if given is None else 0)
        if copies:
            say(f"{spec}: {copies} examples are left out of training because their questions are held out")
        self.size = len(self._examples)

    def leave_out(self, long: Callable[[Sequence[Example]], list[bool]], why: str, say: Say) -> None:
        parts = (self._examples, self.validation, self._test)
        marked = [list(zip(part, long(part), strict=True)) for part in parts]
        kept = [[example for example, left in part if not left] for part in marked]
        left_out = dict.fromkeys(id(example) for part in marked for example, left in part if left)
        if not left_out:
            return
        by_id = {id(example): example for part in parts for example in part}
        gone = [by_id[each] for each in left_out]
        for what, own in zip(("training", "validation", "test"), kept, strict=True):
            if not own:
                raise InputError(f"{self.spec}: all {what} examples are {why}")
        self._examples, self.validation, self._test = kept
        self.size, self._block = len(self._examples), (-1, [])
        say(f"{self.spec}: {len(gone)} of {len(by_id)} examples are left out because they are {why}: {places_of(gone)}")

    def _draw_block(self, block: int) -> list[Example]:
        count = len(self._examples)
        order = words(self._seed, "order", block * count, count).argsort(kind="stable")
        return [self._examples[i] for i in order.tolist()]

    def test(self, count: int | None = None) -> list[Example]:
        return list(self._test) if count is None else self._test[:count]

    def training_sample(self, count: int) -> list[Example]:
        return list(dict.fromkeys(self._examples))[:count]


def places_of(examples: Sequence[Example]) -> str:
    """Return where examples were read, "lines 3, 12 of a.txt", or the question of one that is not from a file."""
    files: dict[tuple[str, str], list[int]] = {}
    for example in examples:
        if example.place is None:
            return f"the first is {short(example.question)}"
        files.setdefault(example.place[:2], []).append(example.place.number)
    return "; ".join(_numbers_of(*kind, sorted(numbers)) for kind, numbers in files.items())


def _numbers_of(file: str, unit: str, numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - _PLACES} more" if len(numbers) > _PLACES else ""
    return f"{unit}{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers[:_PLACES]))}{more} of {file}"


def _draw_held_out(
    spec: str, examples: Sequence[Example], seed: int, held_out: int, tested: int, say: Say
) -> tuple[list[Example], list[Example]]:
    """Draw validation and test examples, in the file's order: each at most a tenth of the file, but at least one."""
    most = max(1, len(examples) // 10)
    for count, what in ((held_out, "validation"), (tested, "test")):
        if count > most:
            say(
                f"{spec}: {most} of its {len(examples)} examples are held out for {what}, not {count} (at most a tenth)"
            )
    held_out, tested = min(held_out, most), min(tested, most, max(0, len(examples) - most - 1))
    order: list[int] = words(seed, "validation", 0, len(examples)).argsort(kind="stable").tolist()
    chosen = order[:held_out], order[held_out : held_out + tested]
    first, second = ([examples[i] for i in sorted(some)] for some in chosen)
    return first, second


def _check_examples(count: int, one: Example, spec: str) -> None:
    """Refuse more examples than fit in memory."""
    # As text and as tokens, an example takes about 1000 bytes, 4 per character and 60 per step.
    size = 1000 + 4 * sum(map(len, (one.question, one.answer, *one.steps))) + 60 * len(one.steps)
    check_memory(count * size, f"{count} examples of {spec}")


def _sixteenth_of(question: str) -> int:
    """Return which sixteenth of all questions this one belongs to."""
    return hashlib.blake2b(question.encode(), digest_size=1).digest()[0] % _OF
