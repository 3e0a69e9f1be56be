"""`internalize lm ask`."""

import json
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from internalize.commands.common_options import DeviceOptions, command
from internalize.commands.console import Flag, print_json, print_text, printable, say, use_device
from internalize.errors import InputError

if TYPE_CHECKING:
    from internalize.lm.evaluation.ask import Respondent


@command
class LmAsk(DeviceOptions):
    """Ask a trained model questions and print its answers, one per line.

    Without a question, the command asks for one after the other on a terminal, until an empty line or Ctrl-D. From a
    pipe or a file it reads one question per line. Questions have the format of the training data. The model answers
    with its whole chain hidden or, with --chain, writes its chain first. A dash stands for an answer that could not be
    read; a line on standard error then shows what the model wrote.

    Examples:
      internalize lm ask runs/parity "0 1 1 0 1 0 0 1 1 1 0 0 1 0 1 0"
      internalize lm ask runs/parity --chain
      internalize lm ask runs/mine "2 + 3" "4 + 5" --json
      internalize lm ask runs/mine --out answers.jsonl < questions.txt
    """

    model: Annotated[Path, tyro.conf.Positional]
    """Folder of a run of `lm train`, or of the model that it wrote."""
    questions: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[QUESTION …]")] = ()
    """Questions. Default: those on standard input."""
    chain: Flag[bool] = False
    """Let the model write its chain before the answer, and print both."""
    longest: int | None = None
    """Largest number of tokens that the model may write per question. Default: 64, and 512 with its chain."""
    batch: int = 256
    """Questions per batch. As many lines of a pipe are read before they are answered."""
    out: Path | None = None
    """File for JSON lines with each question, the answer that was read, and all that the model wrote. Default: nothing
    is written."""

    def __call__(self) -> int:
        """Ask, print the answers and keep them."""
        from internalize.lm.evaluation.ask import open_respondent
        from internalize.lm.evaluation.evaluate import UNDECIDED
        from internalize.lm.training.quiet import quiet_transformers
        from internalize.storage.files import write_atomically

        if self.out is not None and self.out.is_dir():
            raise InputError(f"--out {self.out} is a folder; name a file for the answers")
        if self.batch < 1:
            raise InputError(f"batch={self.batch} must be at least 1")
        quiet_transformers()
        began = time.perf_counter()
        respondent = open_respondent(self.model, use_device(self.device, self.threads), say)
        if self.chain and not respondent.stages.options.padded:
            say(UNDECIDED)
        typed = not self.questions and sys.stdin is not None and sys.stdin.isatty()
        rows: list[dict[str, Any]] = []
        try:
            for questions in self._batches(typed=typed):
                try:
                    rows += self._answer(respondent, questions)
                except InputError as error:
                    if not typed:
                        raise
                    say(str(error))  # the next question may be better
        finally:
            if self.out is not None and rows:
                lines = (f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
                write_atomically(self.out, "".join(lines).encode())
        if not rows and not typed:
            raise InputError("there is no question: give one, or one per line on standard input")
        if self.json:
            seconds = round(time.perf_counter() - began, 3)
            print_json({"model": str(self.model), "chain": self.chain, "answers": rows, "seconds": seconds})
        return 0

    def _batches(self, *, typed: bool) -> Iterator[list[str]]:
        """Yield questions: those of the command line, those typed one by one, or the lines of standard input."""
        if self.questions:
            yield list(self.questions)
        elif typed:
            while question := _typed_line():
                yield [question]
        elif sys.stdin is not None:
            try:
                lines = filter(None, map(str.strip, sys.stdin))
                while some := list(islice(lines, self.batch)):
                    yield some
            except UnicodeDecodeError as error:
                raise InputError(f"standard input is not UTF-8: {error}") from None

    def _answer(self, respondent: "Respondent", questions: list[str]) -> list[dict[str, Any]]:
        """Ask a batch of questions, print the answers unless --json collects them, and return a row for each."""
        found = respondent.respond(questions, chain=self.chain, longest=self.longest, batch=self.batch)
        end = respondent.text.tokenizer.eos_token
        for answer, text in zip(found.answers, found.texts, strict=True):
            if answer is None:
                say(f"no answer could be read in what the model wrote: {text}")
            if not self.json:
                written = text.removesuffix(end).strip() if self.chain else answer
                print_text(printable(written) if answer is not None and written else "–")
        told = zip(questions, found.answers, found.texts, strict=True)
        return [{"question": question, "generated": answer, "text": text} for question, answer, text in told]


def _typed_line() -> str:
    """Return a line that the user types, or an empty text at the end."""
    sys.stderr.write("question: ")
    sys.stderr.flush()
    return sys.stdin.readline().strip()
