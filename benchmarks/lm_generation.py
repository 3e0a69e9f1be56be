"""Examples per second of `generate_answers` over generating one example at a time with the cache on.

Both use the same model (the default of `lm train`), dtype, thread and number of tokens. The timings alternate, so that
a busy machine slows down both. The model is untrained, because the time per token does not depend on the weights.

    python benchmarks/lm_generation.py --repeats 5
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--examples", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    quiet_transformers()
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
