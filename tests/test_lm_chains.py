"""lm/stages/chains.py: examples in tokens of a word tokenizer and of a byte-level one, and answers read back."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from internalize import InputError
from internalize.lm.data.example import Example
from internalize.lm.stages import chains as module
from internalize.lm.stages.chains import TextFormat, word_tokenizer

SUM = Example("12 + 30", ("2 + 0 = 2", "1 + 3 = 4"), "42", levels=(1, 2))
WORDS = Example("who , then ?", ("not Ann",), "it is Bob .")
EXAMPLES = [SUM, WORDS, Example("1", (), "é 1")]


def byte_tokenizer(*, begin: bool) -> Any:
    """Train a small byte-level BPE tokenizer like GPT-2's or, with a begin token before every text, like Llama's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["12 + 30 = 42 || 2 + 0 = 2 #### 42", "who is it ? it is Bob"] * 3, trainer)
    if begin:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])  # type: ignore[assignment]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def sentence_tokenizer() -> Any:
    """Train a small tokenizer that puts a blank before every text, as files of Llama 2 do with `Prepend`."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    blank = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence(blank)  # type: ignore[assignment]
    tokenizer.decoder = decoders.Sequence(  # type: ignore[assignment]
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    alphabet = sorted({c for e in EXAMPLES for text in (e.question, *e.steps, e.answer) for c in text} | set("▁|#\nax"))
    special = ["<s>", "</s>", "<unk>"]
    trainer = trainers.BpeTrainer(vocab_size=0, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])  # type: ignore[assignment]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


TOKENIZERS = {
    "words": lambda: word_tokenizer(EXAMPLES),
    "bytes": lambda: byte_tokenizer(begin=False),
    "bytes with begin": lambda: byte_tokenizer(begin=True),
    "sentences": sentence_tokenizer,
}


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return TOKENIZERS[request.param]()


def test_pieces(tokenizer):
    """A chain is question || steps #### answer and the end token, and a piece has the same tokens beside any other."""
    text = TextFormat(tokenizer)
    for example, chain in zip(EXAMPLES, text.chains(EXAMPLES), strict=True):
        begin = [tokenizer.bos_token_id] if tokenizer("x")["input_ids"][0] == tokenizer.bos_token_id else []
        prompt = list(chain.prompt)
        assert prompt[: len(begin)] == begin
        assert tokenizer.decode(prompt[len(begin) :]) == f"{example.question} ||"
        assert tuple(tokenizer.decode(unit).strip() for unit in chain.units) == example.steps
        assert chain.answer[-1] == tokenizer.eos_token_id
        assert tokenizer.decode(chain.answer[:-1]).strip() == f"#### {example.answer}"
        assert chain.levels == example.levels
        whole = [token for part in (chain.prompt, *chain.units, chain.answer) for token in part]
        assert len(chain) == len(whole)
        if begin or tokenizer.bos_token_id is None:  # the tokens of the whole line
            line = " ".join((f"{example.question} ||", *example.steps, f"#### {example.answer}"))
            assert tokenizer(line)["input_ids"] == whole[:-1]


def test_tokens_as_units(tokenizer):
    """Each token is a unit with the level of its step."""
    [by_step] = TextFormat(tokenizer).chains([SUM])
    [by_token] = TextFormat(tokenizer, "token").chains([SUM])
    assert by_token.units == tuple((token,) for unit in by_step.units for token in unit)
    assert by_token.levels == (1,) * len(by_step.units[0]) + (2,) * len(by_step.units[1])
    assert (by_token.prompt, by_token.answer, len(by_token)) == (by_step.prompt, by_step.answer, len(by_step))
    [without] = TextFormat(tokenizer, "token").chains([WORDS])
    assert without.levels is None


def test_answers_are_read_back(tokenizer):
    """An answer is read as it was written, with its punctuation and accents, with or without steps before it."""
    text = TextFormat(tokenizer)
    for example, chain in zip(EXAMPLES, text.chains(EXAMPLES), strict=True):
        steps = [token for unit in chain.units for token in unit]
        assert text.answer(chain.answer) == example.answer
        assert text.answer([*steps, *chain.answer]) == example.answer
        assert text.answer(chain.answer[:-1]) == example.answer, "cut off before the end token"
        assert text.answer([*chain.answer, *chain.answer[:-1]]) == example.answer, "nothing after the end counts"
        assert text.answer(steps) is None
        assert text.answer([]) is None
        assert text.answer([text.end, *chain.answer]) is None


@given(st.lists(st.text(min_size=1, max_size=8).filter(lambda word: word.strip()), min_size=1, max_size=3))
def test_any_text_survives_bytes(words: list[str]):
    """Byte-level tokens can write every answer without a separator or special token."""
    answer = " ".join(" ".join(words).split())
    assume(not any(mark in answer for mark in ("####", "<s>", "</s>")))
    chain = BYTES.chains([Example("1", ("2",), answer)])[0]
    assert BYTES.answer(chain.answer) == answer


BYTES = TextFormat(byte_tokenizer(begin=False))


def test_saved_tokenizer(tokenizer, tmp_path: Path):
    """A saved tokenizer loads without our code and gives the same tokens."""
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    before, after = TextFormat(tokenizer), TextFormat(loaded)
    assert after.chains(EXAMPLES) == before.chains(EXAMPLES)
    assert (after.end, after.pad, after.slot) == (before.end, before.pad, before.slot)
    assert after.answer(after.chains([WORDS])[0].answer) == WORDS.answer


def test_word_tokenizer():
    """One token per word and [UNK] for unknown words, whatever the order of the examples."""
    tokenizer = word_tokenizer(EXAMPLES)
    assert tokenizer.get_vocab() == word_tokenizer(reversed(EXAMPLES)).get_vocab()
    words = {w for e in EXAMPLES for part in (e.question, *e.steps, e.answer) for w in part.split()}
    assert set(tokenizer.get_vocab()) == words | {"[PAD]", "[UNK]", "[EOS]", "||", "####"}
    assert tokenizer("12 weasels")["input_ids"] == [tokenizer.get_vocab()["12"], tokenizer.unk_token_id]


class Counting:
    """A tokenizer that records what it is given."""

    def __init__(self) -> None:
        self.tokenizer = word_tokenizer(EXAMPLES)
        self.given: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def __call__(self, text: Any, **options: Any) -> Any:
        self.given += [text] if isinstance(text, str) else text
        return self.tokenizer(text, **options)


def test_pieces_are_kept(monkeypatch: pytest.MonkeyPatch):
    """Nothing is tokenized twice while the cache has room, and the chains are the same in any case."""
    counting = Counting()
    text = TextFormat(counting)
    fresh = TextFormat(word_tokenizer(EXAMPLES)).chains(EXAMPLES)
    counting.given.clear()
    assert text.chains(EXAMPLES) == fresh
    assert len(counting.given) == len(set(counting.given)) == 9
    assert text.chains(EXAMPLES) == fresh
    assert len(counting.given) == 9
    monkeypatch.setattr(module, "_CACHED_PIECES", 5)
    for _ in range(3):
        for example, chain in zip(EXAMPLES, fresh, strict=True):
            assert text.chains([example]) == [chain]
            assert len(text._pieces) <= 5
    assert text.chains(EXAMPLES) == fresh, "one call may need more than is kept"


def test_slot_token():
    """The slot is the padding token, or without one the end token, or any single token that the user names."""
    words, text = word_tokenizer(EXAMPLES), TextFormat(byte_tokenizer(begin=False))
    assert TextFormat(words).slot == TextFormat(words).pad == words.pad_token_id
    assert TextFormat(words, slot_token="Bob").slot == words.get_vocab()["Bob"]
    assert TextFormat(words, slot_token="[UNK]").slot == words.unk_token_id
    assert (text.slot, text.pad, text.slot_token) == (text.end, text.end, "</s>")
    plus = text.tokenizer.get_vocab()["Ġ+"]
    assert TextFormat(text.tokenizer, slot_token="Ġ+").slot == plus
    assert TextFormat(text.tokenizer, slot_token=" +").slot == plus


@pytest.mark.parametrize("wrong", ["weasel", "two words", "Bob Bob"])
def test_slot_token_mistakes(tokenizer, wrong: str):
    with pytest.raises(InputError, match=f"slot_token='{wrong}' is not one token"):
        TextFormat(tokenizer, slot_token=wrong)


def test_no_end_token():
    tokenizer = word_tokenizer(EXAMPLES)
    tokenizer.eos_token = None
    with pytest.raises(InputError, match="the tokenizer .* has no end token"):
        TextFormat(tokenizer)
