"""`internalize lm eval`."""

import json
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import tyro

from internalize.commands.common_options import DeviceOptions, HeldOutOption, KeptOption, SeedOption, command
from internalize.commands.console import Flag, print_table, print_text, say, use_device
from internalize.commands.lm_probe import probeable
from internalize.lm.options import CurriculumOptions

if TYPE_CHECKING:
    from internalize.lm.evaluation.evaluate import Evaluation, Subject


@command
class LmEval(HeldOutOption, KeptOption, SeedOption, DeviceOptions):
    """Measure how often a model answers correctly with its chain hidden.

    Answers are generated greedily, and no part of the chain is given away. An answer counts as right if it equals the
    true one word for word and nothing is written before it.

    Examples:
      internalize lm eval --model runs/parity
      internalize lm eval --model runs/parity --stages all --chain
      internalize lm eval --model runs/parity/model --data held-out.jsonl --out runs/parity-eval --json
      internalize lm eval --model some-causal-lm --data held-out.jsonl --method none
    """

    TITLE: ClassVar = "Evaluation"

    model: Path
    """Folder of a run of `lm train`, of a model, or of any causal language model that transformers can load."""
    examples: int = 4096
    """Largest number of questions to ask."""
    stages: Literal["last", "all"] = "last"
    """last: ask with the whole chain hidden. all: ask for every number of shown steps."""
    chain: Flag[bool] = False
    """Also let the model write its chain, to see whether explicit reasoning is forgotten and how much faster the
    internalized answer is."""
    options: tyro.conf.OmitArgPrefixes[CurriculumOptions] = field(default_factory=CurriculumOptions)
    slot_token: str = ""
    """For models not trained here: token that fills hidden slots. Default: the padding token; without one, the end
    token."""
    template: str = ""
    """For models not trained here: text around question, steps and answer, as for `lm train`. Default: icot."""
    batch: int = 256
    """Questions asked at a time."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the weights."""
    skip_bad: Flag[bool] = False
    """Skip lines of --data that cannot be read, and report their number."""
    out: Path | None = None
    """Folder for the result and every answer. Default: nothing is written."""
    seed: int = 0
    """Random seed of a task in --data that names none."""

    def __call__(self) -> int:
        """Ask the questions, and show and keep the results."""
        from internalize.commands.progress import ProgressDisplay
        from internalize.lm.evaluation.evaluate import UNDECIDED, evaluate, open_subject
        from internalize.lm.training.quiet import quiet_transformers
        from internalize.storage.files import write_atomically

        quiet_transformers()
        subject = open_subject(
            self.model,
            self.data,
            self.examples,
            options=self.options,
            slot_token=self.slot_token,
            template=self.template,
            dtype=self.dtype,
            device=use_device(self.device, self.threads),
            seed=self.seed,
            skip_bad=self.skip_bad,
            say=say,
        )
        if self.chain and not subject.stages.options.padded:
            say(UNDECIDED)
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
        if subject.costs.warning:
            say(subject.costs.warning)
        if "stages" in result and not self.json:
            print_table(result["stages"], tuple(result["stages"][0]))
            print_text("")
        self.show_facts(result, _facts(result))
        self.suggest("lm probe", probeable(self.model))
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


def _facts(result: dict[str, Any]) -> dict[str, Any]:
    """Return the result without its rows, and with the costs of an answer under names of their own."""
    shown = {name: value for name, value in result.items() if name not in ("stages", "answer", "written")}
    for name in ("answer", "written"):
        cost = result[name]
        shown[f"cost of {name}"] = (
            f"{cost['given_tokens']:.4g} tokens given, {cost['generated_tokens']:.4g} generated, {cost['flops']:.4g} FLOP"
        )
    return shown


def _lines(subject: "Subject", evaluation: "Evaluation") -> str:
    """Return every question with its answers, one JSON object per line."""
    examples = subject.examples
    rows = [{"question": example.question, "answer": example.answer} for example in examples]
    for prefix, answers in (("", evaluation.answers), ("chain_", evaluation.written)):
        if answers is not None:
            told = zip(rows, answers.answers, answers.right(examples), answers.texts, strict=True)
            for row, given, right, text in told:
                row |= {f"{prefix}generated": given, f"{prefix}right": right, f"{prefix}text": text}
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
