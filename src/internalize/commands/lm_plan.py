"""`internalize lm plan`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from internalize.commands.common_options import KeptOption, SeedOption, command
from internalize.commands.console import print_json, print_table, print_text, say
from internalize.lm.options import LmMethod, LmTrainOptions, with_adaptive

if TYPE_CHECKING:
    from internalize.lm.evaluation.plan import Plan

FILE = "plan.json"


@dataclass(frozen=True)
class PlanOptions(LmTrainOptions):
    """The options of `lm train`; which methods is asked for by --methods."""

    method: Annotated[LmMethod, tyro.conf.Suppress] = "icot"  # with it, --side and --cutoff may be given


@command
class LmPlan(KeptOption, SeedOption):
    """What training will cost, before it begins: the stages, updates, tokens, operations and GPU-hours of each method.

    Takes the options of `lm train`; nothing is trained, and of a model only config and tokenizer are read. Tokens are expected
    ones, with replay and smoothing, without padding. Operations are 6 a weight and token (with LoRA 4), and attention. For
    one method its stages are shown, too.

    For example:

      $ internalize lm plan --data multiply:digits=4 --removal delete
      $ internalize lm plan --data train.jsonl --model mistralai/Mistral-7B-v0.1 --batch 32 --methods icot log-icot
      $ internalize lm plan --data train.txt --advance epochs --stages-per-epoch 8 --batch 32 --removal delete --methods icot
      $ internalize lm plan --data train.jsonl --model config.json --updates-from steps --steps 20000 --json
    """

    options: tyro.conf.OmitArgPrefixes[PlanOptions] = field(default_factory=PlanOptions)
    methods: Annotated[tuple[LmMethod, ...], tyro.conf.arg(aliases=("--method",))] = ()
    """Which methods to plan; the same data, model and updates a stage for each. Default: icot, icot-steps, log-icot and, where
    stages end by accuracy, adaptive."""
    updates_from: Literal["stages", "steps"] = "stages"
    """stages: every stage has its updates, the last one as many as the others, and --steps is what comes out. steps: --steps
    updates in all, and the last stage has what is left, as in `lm train`."""
    gpu_flops: float = 312e12
    """Operations a second of a GPU at best. Default: an A100 in bfloat16."""
    utilisation: float = 0.4
    """Share of them that training gets."""
    out: Path | None = None
    """Folder to keep the plan in, as plan.json. Without it, nothing is written."""
    seed: int = 0
    """Decides the data: the task, and what is held out of a file."""

    def __call__(self) -> int:
        """Plan, show, keep."""
        from internalize.lm.evaluation.flops import Gpu
        from internalize.lm.evaluation.plan import plan
        from internalize.lm.training.quiet import quiet_transformers
        from internalize.storage.files import write_json, writing

        quiet_transformers()
        gpu = Gpu(self.gpu_flops, self.utilisation)
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
        return 0


def _print(planned: "Plan") -> None:
    """The methods side by side; of a single one its stages before that."""
    if len(planned.methods) == 1:
        only = planned.methods[0]
        columns = {
            "stage": "stage",
            "hidden": f"hidden {only.unit}s",
            "slots": "slots",
            "steps": "steps",
            "tokens_per_update": "tokens an update",
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
            "GPU-hours": method.gpu_hours,
            "of icot's": method.ratio_to_icot,
            "tokens an answer": method.answer.generated_tokens,
            "operations an answer": method.answer.flops,
            "less than written": f"{planned.written.flops / method.answer.flops:.3g} times",
        }
        for method in planned.methods
    ]
    if planned.methods[0].ratio_to_icot is None or len(planned.methods) == 1:
        for row in rows:
            del row["of icot's"]
    print_table(rows, tuple(rows[0]))
    size = planned.size
    print_text(
        f"\nmodel: {size.parameters:.4g} parameters, {size.embedding:.4g} of them embeddings; an answer with its chain "
        f"written: {planned.written.generated_tokens:.4g} tokens, {planned.written.flops:.4g} operations"
    )
    for reason in dict.fromkeys(method.reason for method in planned.methods if method.reason):
        say(f"{', '.join(method.method for method in planned.methods if method.reason == reason)}: {reason}")
