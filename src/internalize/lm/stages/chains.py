"""Tokenization: an example becomes a chain of units that a curriculum can remove.

A sequence is ``question || steps #### answer`` and the end token. The question with its separator is the prompt. The
answer's separator, the answer and the end token belong together and are never removed. Each piece is tokenized
separately, so that a step's tokens do not depend on whether its neighbors are shown.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from internalize.errors import InputError
from internalize.lm.data.example import Example

QUESTION_END: Final = "||"
ANSWER_START: Final = "####"
Unit = Literal["step", "token"]
_CACHED_PIECES: Final = 200_000


@dataclass(frozen=True)
class Chain:
    """An example in tokens. The elements of `curriculum.py` are the units and, last, the answer."""

    prompt: tuple[int, ...]
    units: tuple[tuple[int, ...], ...]
    """The tokens of each step or, if the unit is a token, each token by itself."""
    levels: tuple[int, ...] | None
    answer: tuple[int, ...]
    """The separator, the answer and the end token."""

    def __len__(self) -> int:
        """Return the number of tokens with nothing removed."""
        return len(self.prompt) + sum(map(len, self.units)) + len(self.answer)


class TextFormat:
    """A converter from examples to tokens with a tokenizer, and from generated tokens to an answer."""

    def __init__(self, tokenizer: Any, unit: Unit = "step", slot_token: str = "") -> None:
        self.tokenizer = tokenizer
        self.unit: Unit = unit
        if tokenizer.eos_token_id is None:
            raise InputError("the tokenizer has no end token (eos_token), so a model could not end its answer")
        self.end: int = tokenizer.eos_token_id
        self.pad: int = self.end if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        self.slot_token = slot_token or tokenizer.pad_token or tokenizer.eos_token
        self.slot: int = self._one_token(self.slot_token)
        with_special: list[int] = tokenizer("x")["input_ids"]
        begin = tokenizer.bos_token_id
        self._begin: tuple[int, ...] = (begin,) if begin is not None and with_special[:1] == [begin] else ()
        self._pieces: dict[str, tuple[int, ...]] = {}

    @property
    def begins(self) -> int:
        """The number of tokens before the question."""
        return len(self._begin)

    def _one_token(self, text: str) -> int:
        """Return the token with this name or, if there is none, the single token of this text."""
        token: int | None = self.tokenizer.convert_tokens_to_ids(text)
        if token is not None and (token != self.tokenizer.unk_token_id or text == self.tokenizer.unk_token):
            return token
        written: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]  # " +" for the token "Ġ+"
        if len(written) != 1 or written[0] == self.tokenizer.unk_token_id:
            raise InputError(f"slot_token={text!r} is not one token of this tokenizer")
        return written[0]

    def chains(self, examples: Sequence[Example]) -> list[Chain]:
        """Return the examples in tokens. All new pieces are tokenized in one call."""
        pieces = [_pieces(example) for example in examples]
        wanted = dict.fromkeys(piece for own in pieces for piece in own)
        new = [piece for piece in wanted if piece not in self._pieces]
        if len(self._pieces) + len(new) > _CACHED_PIECES:
            self._pieces.clear()
            new = list(wanted)
        if new:
            encoded: list[list[int]] = self.tokenizer(
                new, add_special_tokens=False, return_attention_mask=False, return_token_type_ids=False, verbose=False
            )["input_ids"]
            self._pieces.update(zip(new, map(tuple, encoded), strict=True))
        return [
            self._chain([self._pieces[piece] for piece in own], example.levels)
            for own, example in zip(pieces, examples, strict=True)
        ]

    def _chain(self, pieces: Sequence[tuple[int, ...]], levels: tuple[int, ...] | None) -> Chain:
        prompt, *units, answer = pieces
        if self.unit == "token":
            if levels is not None:
                levels = tuple(level for level, tokens in zip(levels, units, strict=True) for _ in tokens)
            units = [(token,) for tokens in units for token in tokens]
        return Chain(self._begin + prompt, tuple(units), levels, (*answer, self.end))

    def answer(self, generated: Sequence[int], *, direct: bool = False) -> str | None:
        """Return the answer in generated tokens: the text after the last separator, up to the end token.

        Return None if there is no separator, or if ``direct`` and there is text before the separator.
        """
        ids = list(generated)
        ids = ids[: ids.index(self.end)] if self.end in ids else ids
        # The decoder must not drop or tidy up anything that the model wrote.
        text: str = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        before, separator, answer = text.rpartition(ANSWER_START)
        return " ".join(answer.split()) if separator and not (direct and before.strip()) else None


def _pieces(example: Example) -> list[str]:
    """Return the texts that are tokenized separately: the prompt, each step, and the answer."""
    steps = (f" {step}" for step in example.steps)
    return [f"{example.question} {QUESTION_END}", *steps, f" {ANSWER_START} {example.answer}"]


def word_tokenizer(examples: Iterable[Example]) -> Any:
    """Return a tokenizer with one token for each word of the examples, for models that are trained from scratch."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    words = {word for e in examples for text in (e.question, *e.steps, e.answer) for word in text.split()}
    special = ["[PAD]", "[UNK]", "[EOS]", QUESTION_END, ANSWER_START]
    vocabulary = {word: number for number, word in enumerate([*special, *sorted(words.difference(special))])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))  # noqa: S106  (a token, not a password)
    tokenizer.pre_tokenizer = WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "eos_token": "[EOS]"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=10**9, **names)
