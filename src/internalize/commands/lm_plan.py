"""`internalize lm plan`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import tyro

from internalize.commands.common_options import KeptOption, SeedOption, command
from internalize.commands.console import print_json, print_table, print_text, say, with_prefix
from internalize.lm.options import LmMethod, LmTrainOptions, with_adaptive

if TYPE_CHECKING:
    from internalize.lm.evaluation.plan import Plan

FILE = "plan.json"


@dataclass(frozen=True)
class PlanOptions(LmTrainOptions):
    """The options of `lm train`, without --method: --methods names the methods."""

    method: Annotated[LmMethod, tyro.conf.Suppress] = "icot"  # a method that allows --side and --cutoff


@command
class LmPlan(KeptOption, SeedOption):
    """Show what training will cost, before it starts.

    The table has the stages, updates, tokens, operations and GPU time of each method, and the cost per answer. Nothing
    is trained; only the config and tokenizer of the model are read. Tokens are expected values, with replay and
    smoothing, without padding. Operations are 6 per weight and token (4 with LoRA), plus attention. For a single
    method, its stages are listed, too.

    Examples:
      internalize lm plan --data multiply:digits=4 --removal delete
      internalize lm plan --data train.jsonl --model mistralai/Mistral-7B-v0.1 --batch 32 --methods icot log-icot
      internalize lm plan --data train.txt --advance epochs --stages-per-epoch 8 --batch 32 --removal delete --methods icot
      internalize lm plan --data train.jsonl --model config.json --updates-from steps --steps 20000 --json
    """

    TITLE: ClassVar = "Plan"

    options: tyro.conf.OmitArgPrefixes[PlanOptions] = field(default_factory=PlanOptions)
    methods: Annotated[tuple[LmMethod, ...], tyro.conf.arg(aliases=("--method",))] = ()
    """Methods to plan, with the same data, model and updates per stage. Default: icot, icot-steps, log-icot and, if
    stages end by accuracy, adaptive."""
    updates_from: Literal["stages", "steps"] = "stages"
    """stages: the sum of the updates of all stages; the last stage gets as many as the others. steps: --steps updates
    in total, as in `lm train`; the last stage gets the rest."""
    gpu_flops: float = 312e12
    """Peak operations per second of your GPU. The default is that of an A100 in bfloat16."""
    utilization: float = 0.4
    """Share of the peak that training reaches."""
    out: Path | None = None
    """Folder for plan.json. Default: nothing is written."""
    seed: int = 0
    """Random seed of the task, or of the choice of held-out examples."""

    def __call__(self) -> int:
        """Plan, show and keep."""
        from internalize.lm.evaluation.plan import plan
        from internalize.lm.training.flops import Gpu
        from internalize.lm.training.quiet import quiet_transformers
        from internalize.storage.files import write_json, writing

        quiet_transformers()
        gpu = Gpu(self.gpu_flops, self.utilization)
        methods = self.methods or with_adaptive(("icot", "icot-steps", "log-icot"), self.options)
        planned = plan(self.options, methods, seed=self.seed, by=self.updates_from, gpu=gpu, say=say)
        found = planned.to_json()
        if self.out is not None:
            with writing(self.out):
                self.out.mkdir(parents=True, exist_ok=True)
            write_json(self.out / FILE, found)
        if self.json:
            print_json(found)
        else:
            _print(planned)
            model = ("--model", self.options.model) if self.options.model else ()
            self.suggest("lm train --data", self.options.data, *model)
        return 0


def _print(planned: "Plan") -> None:
    """Print one row per method and, for a single method, first one row per stage."""
    if len(planned.methods) == 1:
        only = planned.methods[0]
        columns = {
            "stage": "stage",
            "hidden": f"hidden {only.unit}s",
            "slots": "slots",
            "steps": "steps",
            "tokens_per_update": "tokens per update",
            "tokens": "tokens",
            "flops": "operations",
        }
        rows = [{title: getattr(stage, name) for name, title in columns.items()} for stage in only.stages]
        print_table(rows, tuple(columns.values()))
        print_text("")
    rows: list[dict[str, Any]] = [
        {
            "method": method.method,
            "stages": len(method.stages),
            "steps": method.steps,
            "tokens": method.tokens,
            "operations": method.flops,
            "GPU time": method.gpu_hours * 3600,
            "ratio to icot": method.ratio_to_icot,
            "tokens per answer": method.answer.generated_tokens,
            "operations per answer": method.answer.flops,
            "cost of a written answer": f"{planned.written.flops / method.answer.flops:.3g} times as much",
        }
        for method in planned.methods
    ]
    if planned.methods[0].ratio_to_icot is None or len(planned.methods) == 1:
        for row in rows:
            del row["ratio to icot"]
    print_table(rows, tuple(rows[0]))
    size = planned.size
    print_text(
        f"\nThe model has {with_prefix(size.parameters)} parameters, {with_prefix(size.embedding)} of them embeddings. "
        f"An answer with its chain written takes {planned.written.generated_tokens:.4g} tokens and "
        f"{with_prefix(planned.written.flops, 'FLOP')}."
    )
    for reason in dict.fromkeys(method.reason for method in planned.methods if method.reason):
        say(f"{', '.join(method.method for method in planned.methods if method.reason == reason)}: {reason}")
