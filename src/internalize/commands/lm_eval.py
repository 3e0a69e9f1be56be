"""`internalize lm eval`."""

import json
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from internalize.commands.common_options import DeviceOptions, HeldOutOption, KeptOption, SeedOption, command
from internalize.commands.console import Flag, print_table, say, use_device
from internalize.lm.options import CurriculumOptions

if TYPE_CHECKING:
    from internalize.lm.evaluation.evaluate import Evaluation, Subject


@command
class LmEval(HeldOutOption, KeptOption, SeedOption, DeviceOptions):
    """Let a language model answer with its chain of thought hidden, and count the answers that are right.

    Answers are generated, greedily and many at once; nothing of the chain is given away. An answer is right if it is the true
    one word for word and nothing is written before it.

    For example:

      $ internalize lm eval --model runs/parity
      $ internalize lm eval --model runs/parity --stages all --chain
      $ internalize lm eval --model runs/parity/model --data held-out.jsonl --out runs/parity-eval --json
      $ internalize lm eval --model some-causal-lm --data held-out.jsonl --method none
    """

    model: Path
    """Folder of a run of lm train, of a model, or of any causal language model that transformers can load."""
    examples: int = 4096
    """How many to ask; a file may have fewer."""
    stages: Literal["last", "all"] = "last"
    """last: with the whole chain hidden. all: also for every number of shown steps."""
    chain: Flag[bool] = False
    """Also let the model write its chain: is explicit reasoning forgotten, and how much quicker is it without?"""
    options: tyro.conf.OmitArgPrefixes[CurriculumOptions] = field(default_factory=CurriculumOptions)
    slot_token: str = ""
    """For a model that is not ours: what stands in a hidden slot. Default: its padding token, or else its end token."""
    batch: int = 256
    """Examples at once."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights."""
    skip_bad: Flag[bool] = False
    """Leave out lines of --data that cannot be read, and say how many."""
    out: Path | None = None
    """Folder to keep the result and every answer in. Without it, nothing is written."""
    seed: int = 0
    """Seed of a task in --data that names none."""

    def __call__(self) -> int:
        """Ask, count, show, keep."""
        from internalize.commands.progress import ProgressDisplay
        from internalize.lm.evaluation.evaluate import evaluate, open_subject
        from internalize.lm.training.quiet import quiet_transformers
        from internalize.storage.files import write_atomically

        quiet_transformers()
        subject = open_subject(
            self.model,
            self.data,
            self.examples,
            options=self.options,
            slot_token=self.slot_token,
            dtype=self.dtype,
            device=use_device(self.device, self.threads),
            seed=self.seed,
            skip_bad=self.skip_bad,
            say=say,
        )
        if self.chain and not subject.stages.options.padded:
            say(
                "with --removal delete a model is asked for its chain as it is asked without: what it writes is its choice"
            )
        with self.keeping("lm-eval", self._config(subject)) as keep, ProgressDisplay("lm eval") as progress:
            evaluation = evaluate(
                subject,
                batch=self.batch,
                every_stage=self.stages == "all",
                chain=self.chain,
                report=progress.show,
            )
            if self.out is not None:
                write_atomically(self.out / "answers.jsonl", _lines(subject, evaluation).encode())
            keep(evaluation.result)
        result = evaluation.result
        if "stages" in result and not self.json:
            print_table(result["stages"], tuple(result["stages"][0]))
        rows = [{"": name.replace("_", " "), " ": value} for name, value in result.items() if name != "stages"]
        self.show(result, rows, ("", " "))
        return 0

    def _config(self, subject: "Subject") -> dict[str, Any]:
        return {
            "model": str(self.model),
            "data": subject.data,
            "examples": self.examples,
            "stages": self.stages,
            "chain": self.chain,
            "curriculum": subject.stages.options.as_json(),
            "batch": self.batch,
            "dtype": self.dtype,
            "seed": self.seed,
        }


def _lines(subject: "Subject", evaluation: "Evaluation") -> str:
    """Every question with its answers, a JSON object a line."""
    answers = evaluation.answers
    rows = [
        {"question": example.question, "answer": example.answer, "generated": given, "right": right}
        for example, given, right in zip(
            subject.examples, answers.answers, answers.right(subject.examples), strict=True
        )
    ]
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
