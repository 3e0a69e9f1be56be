"""Templates: the text around the question, the steps and the answer of an example.

A template is data: six texts that are stored with the model. So training, evaluation and other programs build the same
prompts. Slots stand where the hidden steps stood, directly after ``after_question`` if the front of the chain is hidden.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from internalize.errors import InputError
from internalize.lm.data.example import Example
from internalize.storage.files import check_schema, read_json

_LONGEST: Final = 20_000
"""Largest number of characters of a part. System prompts of chat templates have up to a few thousand."""


@dataclass(frozen=True)
class Template:
    """The text around the parts of an example, blanks and line breaks included. The end token follows ``end``."""

    before_question: str = ""
    after_question: str = ""
    before_step: str = ""
    after_step: str = ""
    before_answer: str = ""
    """The answer is read back as what follows this text, so it needs at least one visible character."""
    end: str = ""

    def __post_init__(self) -> None:
        for name in _PARTS:
            text: str = getattr(self, name)
            if len(text) > _LONGEST:
                raise InputError(f"{name} has {len(text)} characters, at most {_LONGEST} are allowed")
            if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
                raise InputError(f"{name} holds a NUL character or half of a surrogate pair")
        if not self.mark:
            raise InputError(
                "before_answer is blank; it marks the answer, so it needs a visible text such as 'Answer: '"
            )
        if self.mark in one_line(self.end):
            raise InputError(f"end holds before_answer ({self.mark!r}), so the answer could not be told from the end")

    @property
    def mark(self) -> str:
        """The text that tells where the answer begins: ``before_answer`` with single blanks."""
        return one_line(self.before_answer)

    def pieces(self, example: Example) -> list[str]:
        """Return the texts that are tokenized separately: the prompt, each step, and the answer."""
        steps = (f"{self.before_step}{step}{self.after_step}" for step in example.steps)
        prompt = f"{self.before_question}{example.question}{self.after_question}"
        return [prompt, *steps, f"{self.before_answer}{example.answer}{self.end}"]

    def answer(self, text: str, *, direct: bool = False) -> str | None:
        """Return the answer in a text that a model wrote: what follows the last mark, with single blanks.

        Return None if there is no mark, or if ``direct`` and there is text before it.
        """
        before, mark, answer = one_line(text).rpartition(self.mark)
        if end := one_line(self.end):
            answer = answer.partition(end)[0]
        return answer.strip() if mark and not (direct and before.strip()) else None


def one_line(text: str) -> str:
    """Return a text with single blanks in place of all white space."""
    return " ".join(text.split())


_PARTS: Final = tuple(field.name for field in fields(Template))
ICOT: Final = Template(after_question=" ||", before_step=" ", before_answer=" #### ")
"""The format of Deng et al.: ``question || steps #### answer``. Models without a stored template have this one."""
TEMPLATES: Final[dict[str, Template]] = {
    "icot": ICOT,
    "plain": Template(
        before_question="Question: ", after_question="\nReasoning:", before_step=" ", before_answer=" Answer: "
    ),
    "lines": Template(after_question="\n", after_step="\n", before_answer="#### "),
}
"""The templates that are known by name. `chat` is one, too, but depends on the tokenizer."""
CHAT: Final = "chat"


def get_template(name: str, tokenizer: Any = None) -> Template:
    """Return the template of a name, of ``chat``, or in a JSON file.

    Args:
        name: a key of `TEMPLATES`, chat, or the path of a JSON file with the fields of `Template`. A field that the
            file lacks is empty.
        tokenizer: the tokenizer of the model, for chat.
    """
    if name in TEMPLATES:
        return TEMPLATES[name]
    if name == CHAT:
        return _chat_template(tokenizer)
    path = Path(name)
    if path.suffix != ".json":
        raise InputError(f"template={name!r} is neither {', '.join(TEMPLATES)}, {CHAT} nor a file that ends in .json")
    found = read_json(path)
    if unknown := sorted(found.keys() - set(_PARTS)):
        raise InputError(f"{path}: {unknown[0]!r} is not a part of a template; the parts are {', '.join(_PARTS)}")
    return check_schema(found, Template, path)


def begin_tokens(tokenizer: Any) -> tuple[int, ...]:
    """Return the token that a tokenizer puts before every text, if it does."""
    written: list[int] = tokenizer("x")["input_ids"]
    begin: int | None = tokenizer.bos_token_id
    return (begin,) if begin is not None and written[:1] == [begin] else ()


def _chat_template(tokenizer: Any) -> Template:
    """Return the tokenizer's chat template as text: the question is the user's message, the rest the assistant's.

    Each step is a line of the assistant's message, and its last line is ``#### answer``.
    """
    if tokenizer is None or not getattr(tokenizer, "chat_template", None):
        raise InputError("template=chat: the tokenizer has no chat template; use icot, plain, lines or a file")
    question, reply = "QUESTION-OF-THE-USER", "REPLY-OF-THE-ASSISTANT"
    asked = [{"role": "user", "content": question}]
    prompt = _render(tokenizer, asked, add_generation_prompt=True)
    whole = _render(tokenizer, [*asked, {"role": "assistant", "content": reply}])
    if prompt.count(question) != 1 or whole.count(reply) != 1:
        raise InputError("template=chat: the tokenizer's chat template does not write each message once")
    before, _, after = prompt.partition(question)
    if begin_tokens(tokenizer):  # the token is put there anyway
        before = before.removeprefix(tokenizer.bos_token)
    end = whole.partition(reply)[2].strip()
    end = end.removesuffix(tokenizer.eos_token or "").strip()  # the end token follows the answer anyway
    return Template(before, after, after_step="\n", before_answer="#### ", end=end)


def _render(tokenizer: Any, messages: list[dict[str, str]], **how: bool) -> str:
    """Return messages in the tokenizer's chat format. Its template is a program of Jinja, which may fail in any way."""
    from jinja2 import TemplateError

    of_programs = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError)
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, **how))
    except (TemplateError, *of_programs) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise InputError(f"template=chat: the tokenizer's chat template fails: {reason}") from None
