"""A check at the start: can this tokenizer write these examples, and can their answers be read back?

A tokenizer may change what it reads: drop capitals or line breaks, or put a blank before every piece. Then a model that
learns everything would still give no right answer, so this is found before training.
"""

from collections.abc import Callable, Sequence
from typing import Final

from internalize.errors import InputError
from internalize.lm.data.example import Example
from internalize.lm.data.rows import short
from internalize.lm.stages.chains import TextFormat
from internalize.lm.stages.template import one_line

_TRIED: Final = 2048
"""Number of examples whose answers are read back."""
_JOINED: Final = 256
"""Number of examples that are also tokenized as whole texts."""


def check_text(text: TextFormat, examples: Sequence[Example], say: Callable[[str], None]) -> None:
    """Refuse a tokenizer with which no answer can be read back, and say what else is wrong.

    That are single answers that cannot be read back, pieces whose tokens differ from those of the joined text, and
    special tokens of the tokenizer in the data.
    """
    _check_answers(text, examples[:: max(1, len(examples) // _TRIED)], say)
    _check_pieces(text, examples[:_JOINED], say)
    _check_special(text, examples, say)


def _check_answers(text: TextFormat, examples: Sequence[Example], say: Callable[[str], None]) -> None:
    """Compare each answer with what is read back. Answers with unknown words are left to `check_vocabulary`."""
    unknown = None if text.tokenizer.unk_token_id == text.end else text.tokenizer.unk_token_id
    chains = zip(examples, text.chains(examples), strict=True)
    read = [(example, text.answer(chain.answer)) for example, chain in chains if unknown not in chain.answer]
    wrong = [(example, own) for example, own in read if own != one_line(example.answer)]
    if not wrong:
        return
    example, own = wrong[0]
    became = f"{short(example.answer)}{_at(example)} is read back as {'nothing' if own is None else short(own)}"
    if len(wrong) == len(read):
        raise InputError(
            f"the tokenizer cannot write the answers, so none could be right: {became}; use another tokenizer or "
            "--template"
        )
    say(f"the tokenizer cannot write {len(wrong)} of {len(read)} answers, so they cannot be right: {became}")


def _check_pieces(text: TextFormat, examples: Sequence[Example], say: Callable[[str], None]) -> None:
    """Compare the tokens of the pieces with those of the joined text."""
    joined = text.tokenize(["".join(text.template.pieces(example)) for example in examples])
    differ: list[Example] = []
    for example, chain, whole in zip(examples, text.with_unit("step").chains(examples), joined, strict=True):
        pieces = (chain.prompt[text.before :], *chain.units, chain.answer[:-1])
        if tuple(token for piece in pieces for token in piece) != whole:
            differ.append(example)
    if differ:
        say(
            f"{len(differ)} of {len(examples)} examples have other tokens in one text than in pieces (the question, each "
            f"step, the answer), the first {short(differ[0].question)}{_at(differ[0])}; training and answers use pieces"
        )


def _check_special(text: TextFormat, examples: Sequence[Example], say: Callable[[str], None]) -> None:
    """Look for special tokens in the data."""
    special = [token for token in text.tokenizer.all_special_tokens if token]
    found = [
        (example, token)
        for example in examples
        for token in special
        if any(token in part for part in (example.question, *example.steps, example.answer))
    ]
    if found:
        example, token = found[0]
        say(
            f"{len({id(example) for example, _ in found})} of {len(examples)} examples hold special tokens of the "
            f"tokenizer, the first {token!r}{_at(example)}; they are read as such, and an end token ends an answer"
        )


def _at(example: Example) -> str:
    return f" ({example.place})" if example.place else ""
