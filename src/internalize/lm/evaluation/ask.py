"""`lm ask`: questions to a trained model, with its chain hidden or written."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from internalize.errors import InputError
from internalize.lm.data.example import Example
from internalize.lm.data.readers import Say
from internalize.lm.evaluation.evaluate import check_writes_chain, model_folder
from internalize.lm.stages.chains import TextFormat
from internalize.lm.stages.removal import TextStages
from internalize.lm.training.generation import BATCH, Answers, generate_answers
from internalize.lm.training.models import PROMPT_FILE, PromptSpec, check_vocabulary, load_model
from internalize.storage.files import present

LONGEST: Final = 64
"""Default of the largest number of tokens per answer."""
LONGEST_CHAIN: Final = 512
"""The same for a model that writes its chain."""


@dataclass(frozen=True)
class Respondent:
    """A model of `lm train`, ready to answer questions."""

    where: Path
    model: Any
    text: TextFormat
    stages: TextStages
    say: Say

    def respond(
        self, questions: Sequence[str], *, chain: bool = False, longest: int | None = None, batch: int = BATCH
    ) -> Answers:
        """Return the answers to questions, with the texts that the model wrote. The arguments are those of `ask`."""
        if chain:
            check_writes_chain(self.stages)
        examples = [Example(question, (), question) for question in questions]  # true answers are unknown and not used
        check_vocabulary(self.where, self.model, self.text, examples, self.say)
        writes = chain or self.stages.options.method == "cot"
        return generate_answers(
            self.model,
            self.text,
            self.stages,
            examples,
            0 if chain else self.stages.last,
            batch=batch,
            longest=longest if longest is not None else LONGEST_CHAIN if writes else LONGEST,
        )


def open_respondent(folder: str | Path, device: str = "cpu", say: Say = lambda line: None) -> Respondent:
    """Load the model of a run of `lm train`, or of the folder that a run wrote."""
    _, where = model_folder(Path(folder), "lm ask")
    if not present(where / PROMPT_FILE):
        raise InputError(f"{where} is neither a run of lm train nor a model that a run wrote: it has no {PROMPT_FILE}")
    asking = PromptSpec.read(where)
    model, tokenizer = load_model(where)
    text = asking.text(tokenizer)
    return Respondent(where, model.to(device), text, asking.stages(text), say)


def ask(
    folder: str | Path,
    questions: Sequence[str],
    *,
    chain: bool = False,
    longest: int | None = None,
    batch: int = BATCH,
    device: str = "cpu",
    say: Callable[[str], None] = lambda line: None,
) -> list[str | None]:
    """Answer questions with a model of `lm train`, with the whole chain hidden. (A model of ``cot`` writes its chain.)

    Args:
        folder: the folder of the run, or of the model that it wrote.
        questions: the questions, in the format of the training data.
        chain: let the model write its chain before the answer.
        longest: largest number of tokens per question. Default: 64, and 512 for a model that writes its chain.
        batch: number of questions per batch.
        device: the device that computes.
        say: called with each line that the user should see.

    Returns:
        One answer per question; None if the model gave none, or wrote something before it.
    """
    return open_respondent(folder, device, say).respond(questions, chain=chain, longest=longest, batch=batch).answers
