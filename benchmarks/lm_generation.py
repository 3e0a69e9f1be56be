"""Examples per second of `generate_answers` over generating one example at a time with the cache on.

Both use the same model (the default of `lm train`), dtype, thread and number of tokens. The timings alternate, so that
a busy machine slows down both. The model is untrained, because the time per token does not depend on the weights.

    python benchmarks/lm_generation.py --repeats 5
    python benchmarks/lm_generation.py --repeats 5 --interleaved

With ``--interleaved`` it is instead generation with slots between the written steps (`thin`) over generation after
slots at the front (`log-icot` without levels), at the stage that hides half of the chain, with equally many tokens.
"""

import argparse
import json
import statistics
import time

import torch

from internalize.commands.console import print_table
from internalize.lm.data.tasks import get_task
from internalize.lm.options import CurriculumOptions, LmModelOptions
from internalize.lm.stages.chains import TextFormat, word_tokenizer
from internalize.lm.stages.removal import TextStages
from internalize.lm.training.generation import BATCH, generate_answers
from internalize.lm.training.models import make_model, model_config
from internalize.lm.training.quiet import quiet_transformers

TASKS = ("parity:n=16,k=8", "multiply:digits=4")
CHAINS = ("parity:n=30,k=16", "parity:n=64,k=32")


class Case:
    """A task at a stage, with an untrained model of the default size."""

    def __init__(self, spec: str, examples: int, dtype: str, *, hidden: bool) -> None:
        self.examples = get_task(spec).examples("test", 0, examples)
        tokenizer = word_tokenizer(self.examples)
        self.text = TextFormat(tokenizer)
        chains = self.text.chains(self.examples)
        self.stages = TextStages.measure(CurriculumOptions(), chains, self.text.slot)
        self.stage = self.stages.last if hidden else 0
        options = LmModelOptions()
        longest = max(map(len, chains)) + self.stages.stage_slots[-1] + 16
        config = model_config(options, len(tokenizer), self.text.end, longest)
        self.model = make_model(options, config, seed=0).to(getattr(torch, dtype)).eval()
        self.prompts = [torch.tensor([self.stages.prompt(chain, self.stage).tokens]) for chain in chains]
        self.tokens = len(chains[0]) - len(chains[0].prompt) if not hidden else len(chains[0].answer)

    def one_at_a_time(self, count: int) -> float:
        """Return the examples per second of a loop over single examples."""
        began = time.perf_counter()
        for prompt in self.prompts[:count]:
            self.model.generate(
                input_ids=prompt,
                attention_mask=torch.ones_like(prompt),
                do_sample=False,
                use_cache=True,
                max_new_tokens=self.tokens,
                min_new_tokens=self.tokens,
                eos_token_id=self.text.end,
                pad_token_id=self.text.pad,
            )
        return count / (time.perf_counter() - began)

    def batched(self, batch: int) -> float:
        """Return the examples per second of `generate_answers`, from text to answers."""
        began = time.perf_counter()
        answers = generate_answers(
            self.model, self.text, self.stages, self.examples, self.stage, batch=batch, true_length=True
        )
        assert answers.generated_tokens == self.tokens * len(self.examples), "both generate the same number"
        return len(self.examples) / (time.perf_counter() - began)


def measure(spec: str, dtype: str, batch: int, examples: int, repeats: int, *, hidden: bool) -> dict[str, object]:
    """Return the median, lowest and highest ratio over the repeats, and the medians of both speeds."""
    case = Case(spec, examples, dtype, hidden=hidden)
    case.one_at_a_time(4)  # the first calls are slow
    case.batched(batch)
    pairs = [(case.one_at_a_time(max(8, 512 // case.tokens)), case.batched(batch)) for _ in range(repeats)]
    ratios = [ours / theirs for theirs, ours in pairs]
    return {
        "task": spec,
        "chain": "hidden" if hidden else "written",
        "dtype": dtype,
        "batch": batch,
        "tokens": case.tokens,
        "one_at_a_time": statistics.median(theirs for theirs, _ in pairs),
        "batched": statistics.median(ours for _, ours in pairs),
        "median": statistics.median(ratios),
        "low": min(ratios),
        "high": max(ratios),
        "repeats": repeats,
    }


def measure_interleaved(spec: str, batch: int, examples: int, repeats: int) -> dict[str, object]:
    """Return the ratio of tokens per second, interleaved over front, at the stage that hides half of the chain."""
    some = get_task(spec).examples("test", 0, examples)
    tokenizer = word_tokenizer(some)
    text = TextFormat(tokenizer)
    chains = text.chains(some)
    curricula = CurriculumOptions("log-icot", levels="steps"), CurriculumOptions("thin")
    front, between = (TextStages.measure(curriculum, chains, text.slot) for curriculum in curricula)
    config = model_config(LmModelOptions(), len(tokenizer), text.end, max(map(len, chains)) + 64)
    model = make_model(LmModelOptions(), config, seed=0).eval()
    tokens = len(chains[0].answer) + sum(map(len, chains[0].units)) // 2

    def per_second(stages: TextStages) -> float:
        began = time.perf_counter()
        answers = generate_answers(model, text, stages, some, 1, batch=batch, longest=tokens)
        return answers.generated_tokens / (time.perf_counter() - began)

    per_second(front)
    per_second(between)
    pairs = [(per_second(front), per_second(between)) for _ in range(repeats)]
    ratios = [own / other for other, own in pairs]
    found = {"task": spec, "batch": batch, "tokens": tokens, "median": statistics.median(ratios)}
    return {**found, "low": min(ratios), "high": max(ratios), "repeats": repeats}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--examples", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--interleaved", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    quiet_transformers()
    if given.interleaved:
        rows = [measure_interleaved(spec, given.batch, given.examples, given.repeats) for spec in CHAINS]
    else:
        rows = [
            measure(spec, given.dtype, given.batch, given.examples, given.repeats, hidden=hidden)
            for spec in TASKS
            for hidden in (True, False)
        ]
    if given.json:
        print(json.dumps({"rows": rows}))
    else:
        print_table(rows, tuple(rows[0]))


if __name__ == "__main__":
    main()
