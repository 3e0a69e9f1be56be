"""Tokenization: an example becomes a chain of units that a curriculum can remove.

A sequence is ``question || steps #### answer`` and the end token, or has the text of another `Template` around the
parts. The question with the text around it is the prompt. The answer's mark, the answer and the end token belong
together and are never removed. Each piece is tokenized separately, so that a step's tokens do not depend on whether its
neighbors are shown.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from internalize.errors import InputError
from internalize.lm.data.example import Example
from internalize.lm.stages.template import ICOT, Template, begin_tokens

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
    """The mark, the answer and the end token."""

    def __len__(self) -> int:
        """Return the number of tokens with nothing removed."""
        return len(self.prompt) + sum(map(len, self.units)) + len(self.answer)


class TextFormat:
    """A converter from examples to tokens with a tokenizer, and from generated tokens to an answer."""

    def __init__(self, tokenizer: Any, unit: Unit = "step", slot_token: str = "", template: Template = ICOT) -> None:
        self.tokenizer = tokenizer
        self.unit: Unit = unit
        self.template = template
        if tokenizer.eos_token_id is None:
            name = tokenizer.name_or_path
            raise InputError(
                f"the tokenizer {name!r} has no end token (eos_token), so a model could not end its answer"
            )
        self.end: int = tokenizer.eos_token_id
        self.pad: int = self.end if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        self.slot_token = slot_token or tokenizer.pad_token or tokenizer.eos_token
        self.slot: int = self._one_token(self.slot_token)
        self._begin = begin_tokens(tokenizer)
        self._contexts = {True: self._context("a", " a"), False: self._context("\n", "a")}
        self._pieces: dict[tuple[str, str], tuple[int, ...]] = {}

    @property
    def before(self) -> int:
        """The number of tokens before the text of an example."""
        return len(self._begin)

    @property
    def begins(self) -> int:
        """The number of tokens before the question."""
        return self.before + len(self._encode([("", self.template.before_question)])[0])

    def with_unit(self, unit: Unit) -> "TextFormat":
        """Return the same format with another unit of removal."""
        return TextFormat(self.tokenizer, unit, self.slot_token, self.template)

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
        pieces = [self._in_context(self.template.pieces(example)) for example in examples]
        wanted = dict.fromkeys(piece for own in pieces for piece in own)
        new = [piece for piece in wanted if piece not in self._pieces]
        if len(self._pieces) + len(new) > _CACHED_PIECES:
            self._pieces.clear()
            new = list(wanted)
        self._pieces.update(zip(new, self._encode(new), strict=True))
        return [
            self._chain([self._pieces[piece] for piece in own], example.levels)
            for own, example in zip(pieces, examples, strict=True)
        ]

    def _context(self, before: str, piece: str) -> str:
        """Return the text to tokenize before such a piece: none if the piece alone has the same tokens.

        Some tokenizers put a blank before every text. A piece inside a sequence must not begin with another blank.
        """
        whole, *parts = self._encode([("", before + piece), ("", before), ("", piece)])
        return "" if whole == tuple(token for part in parts for token in part) else before

    def _in_context(self, pieces: Sequence[str]) -> list[tuple[str, str]]:
        """Return each piece with the text to tokenize before it. The prompt has nothing before it."""
        prompt, *others = pieces
        return [("", prompt), *((self._contexts[piece[:1].isspace()], piece) for piece in others)]

    def _encode(self, pieces: Sequence[tuple[str, str]]) -> list[tuple[int, ...]]:
        """Return the tokens of pieces after the texts before them, without the tokens of these texts."""
        if not pieces:
            return []
        found: list[tuple[int, ...]] = []
        contexts = {context: self.tokenize([context])[0] for context in {before for before, _ in pieces} - {""}}
        for (before, piece), tokens in zip(pieces, self.tokenize(["".join(piece) for piece in pieces]), strict=True):
            context = contexts.get(before, ())
            apart = tokens[: len(context)] == context  # otherwise the tokenizer joins both texts
            found.append(tokens[len(context) :] if apart else self.tokenize([piece])[0])
        return found

    def tokenize(self, texts: list[str]) -> list[tuple[int, ...]]:
        """Return the tokens of each text, without begin and end tokens."""
        encoded: list[list[int]] = self.tokenizer(
            texts, add_special_tokens=False, return_attention_mask=False, return_token_type_ids=False, verbose=False
        )["input_ids"]
        return list(map(tuple, encoded))

    def _chain(self, pieces: Sequence[tuple[int, ...]], levels: tuple[int, ...] | None) -> Chain:
        prompt, *units, answer = pieces
        if self.unit == "token":
            if levels is not None:
                levels = tuple(level for level, tokens in zip(levels, units, strict=True) for _ in tokens)
            units = [(token,) for tokens in units for token in tokens]
        return Chain(self._begin + prompt, tuple(units), levels, (*answer, self.end))

    def answer(self, generated: Sequence[int], *, direct: bool = False) -> str | None:
        """Return the answer in generated tokens: the text after the last mark, up to the end token.

        Return None if there is no mark, or if ``direct`` and there is text before the mark.
        """
        ids = list(generated)
        ids = ids[: ids.index(self.end)] if self.end in ids else ids
        # The decoder must not drop or tidy up anything that the model wrote.
        text: str = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return self.template.answer(text, direct=direct)


def word_tokenizer(examples: Iterable[Example], template: Template = ICOT) -> Any:
    """Return a tokenizer with one token for each word of the examples, for models that are trained from scratch."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    words = {word for example in examples for piece in template.pieces(example) for word in piece.split()}
    own = (template.before_question, template.after_question, template.before_answer)
    special = ["[PAD]", "[UNK]", "[EOS]", *dict.fromkeys(word for text in own for word in text.split())]
    vocabulary = {word: number for number, word in enumerate([*special, *sorted(words.difference(special))])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))  # noqa: S106  (a token, not a password)
    tokenizer.pre_tokenizer = WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "eos_token": "[EOS]"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=10**9, **names)
