"""The cost of an answer with the whole chain hidden, beside that of an answer with its chain written.

A slot costs about as much as a written token: less in the output head, more in attention, which `flops.py` counts in
full for tokens that are given. So hidden answers cost more if there are many more slots than the average chain has
tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from internalize.lm.stages.chains import Chain
from internalize.lm.stages.removal import TextStages
from internalize.lm.training.flops import ModelSize
from internalize.lm.training.generation import continuation_length


@dataclass(frozen=True)
class AnswerCost:
    """The cost of one answer, on average."""

    given_tokens: float
    """Tokens of the question and the slots."""
    generated_tokens: float
    flops: float

    @property
    def tokens(self) -> float:
        """The number of tokens that the model reads or writes."""
        return self.given_tokens + self.generated_tokens


@dataclass(frozen=True)
class AnswerCosts:
    """The cost of an answer at the last stage and with the whole chain written. Only `cot` writes at the last stage."""

    answer: AnswerCost
    written: AnswerCost

    @property
    def warning(self) -> str | None:
        """A line that says that hiding the chain costs more than writing it, or None.

        It takes more tokens and more operations. Data without chains have nothing to compare with.
        """
        hidden, written = self.answer, self.written
        if hidden.flops <= written.flops or hidden.tokens <= written.tokens:
            return None
        if hidden.generated_tokens >= written.generated_tokens:
            return None
        return (
            f"an answer with its chain hidden costs more than one with its chain written: "
            f"{hidden.given_tokens - written.given_tokens:.4g} slots, {hidden.generated_tokens:.4g} generated tokens and "
            f"{hidden.flops:.4g} operations per answer, not {written.generated_tokens:.4g} generated tokens and "
            f"{written.flops:.4g} operations; fewer --slots cost less"
        )


def answer_costs(size: ModelSize, stages: TextStages, chains: Sequence[Chain]) -> AnswerCosts:
    """Return the average costs of the true answers to these questions."""
    prompts = [len(stages.prompt(chain, stages.last).tokens) for chain in chains]
    lengths = [continuation_length(stages, chain, stages.last) for chain in chains]
    return AnswerCosts(_mean_cost(size, prompts, lengths), written_cost(size, chains))


def written_cost(size: ModelSize, chains: Sequence[Chain]) -> AnswerCost:
    """Return the average cost of an answer with its chain written before it."""
    prompts = [len(chain.prompt) for chain in chains]
    return _mean_cost(size, prompts, [len(c) - given for c, given in zip(chains, prompts, strict=True)])


def _mean_cost(size: ModelSize, given: Sequence[int], generated: Sequence[int]) -> AnswerCost:
    """Return the average over answers with these numbers of given and generated tokens."""
    flops = sum(map(size.answer_flops, given, generated))
    count = len(given)
    return AnswerCost(sum(given) / count, sum(generated) / count, flops / count)
