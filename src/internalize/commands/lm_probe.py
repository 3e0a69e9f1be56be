"""`internalize lm probe`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import tyro

from internalize.commands.common_options import DeviceOptions, HeldOutOption, KeptOption, SeedOption, command
from internalize.commands.console import print_text, say, use_device


@command
class LmProbe(HeldOutOption, KeptOption, SeedOption, DeviceOptions):
    """Show where a model computes each step of its chain.

    For every step, layer and stage, a linear probe is fitted on half of the questions and tested on the other half, at
    the position that has to predict the step. The model's own output head is read there, too. The table also has the
    gradient signal of the loss at that position, the attention on the step's children (for parity), and the agreement
    with the previous stage. Below the table, one line per stage lists the missing steps and the reason: lost since the
    stage started, waiting for other steps, computed in too late a layer, pulled (about to be found), too faint a
    signal, or unknown.

    Examples:
      internalize lm train --method log-icot --keep-stages --out runs/parity
      internalize lm probe runs/parity --figure figures
      internalize lm probe runs/parity --stage last --hidden 0 3 6 --json
      internalize lm probe runs/parity/model --examples 512
    """

    TITLE: ClassVar = "Probe"

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of a run of `lm train --keep-stages`, or of a model that it wrote."""
    examples: int = 2048
    """Largest number of different questions to use."""
    stage: str = "all"
    """Stage whose model to probe: all, last, or a number from 1."""
    hidden: tuple[int, ...] = ()
    """Numbers of steps to hide (or tokens, for icot). Default: those of the model's own stage, of the next, and all."""
    figure: Path | None = None
    """Folder for a figure of the probe's accuracy, by layer and step."""
    seed: int = 0
    """Random seed of the split into halves, and of a task in --data that names none."""

    def __call__(self) -> int:
        """Probe, show, keep and draw."""
        from internalize.commands.progress import ProgressDisplay
        from internalize.lm.probe.probe import probe
        from internalize.lm.probe.probed_models import open_probed_models
        from internalize.lm.training.quiet import quiet_transformers

        quiet_transformers()
        device = use_device(self.device, self.threads)
        kept = open_probed_models(
            self.run, self.data, self.examples, stage=self.stage, seed=self.seed, device=device, say=say
        )
        config = {
            "run": str(self.run),
            "data": kept.data,
            "examples": self.examples,
            "stages": kept.asked,
            "hidden": self.hidden,
            "seed": self.seed,
        }
        with self.keeping("lm-probe", config) as keep, ProgressDisplay("lm probe") as progress:
            result = probe(kept, self.hidden, progress.show)
            if self.figure is not None:
                from internalize.report.figures.reading import draw_reading

                result["figure"] = str(draw_reading(result).save(self.figure))
            keep(result)
        self.show(result, _summary(result["rows"]), _COLUMNS)
        if not self.json:
            print_text("")
        for account in () if self.json else result["accounts"]:
            print_text(_in_words(account))
        if self.figure is None:
            self.suggest("lm probe", self.run, "--figure", "figures")
        else:
            self.suggest("lm certify" if kept.data.startswith("parity") else "lm eval --stages all --model", self.run)
        return 0


def probeable(folder: Path) -> Path:
    """Return what `lm probe` accepts of a run or model: of a run that has kept no stages, its final model."""
    final = folder / "model"
    return final if final.is_dir() and not (folder / "stages").is_dir() else folder


_COLUMNS = (
    *("stage", "hidden", "step", "level", "chance", "probe", "layer", "lens", "error", "agreement"),
    *("attention", "signal/noise", "pull", "pull of others"),
)


def _in_words(account: dict[str, Any]) -> str:
    """Return the account of a stage as one line."""
    missing = [f"{each['step']} ({each['reason']})" for each in account["missing"]]
    of = f"stage {account['stage']}, {account['hidden']} hidden, {account['steps']} steps with the answer"
    what = f"missing {', '.join(missing)}" if missing else "all are read"
    collapsed = "collapsed, " if account["collapsed"] else ""
    found = f"; new here: {', '.join(map(str, account['found']))}" if account["found"] else ""
    return f"{of}: {collapsed}{what}{found}"


def _summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per step, with the probe of the best layer and lens, error and agreement of the last layer."""
    by_step: dict[tuple[int, int, int], list[dict[str, Any]]] = {}
    for row in rows:
        by_step.setdefault((row["stage"], row["hidden"], row["step"]), []).append(row)
    lines: list[dict[str, Any]] = []
    for layers in by_step.values():
        best, last = max(layers, key=lambda row: row["probe"]), layers[-1]
        looks = [row["child_attention"] for row in layers if row["child_attention"]]
        pulls = [(min(row["child_pull"]), row["other_pull"]) for row in layers if row["child_pull"]]
        pull, others = max(pulls, key=lambda pair: pair[0], default=(None, None))
        ratios = [row["gradient"] / row["gradient_error"] for row in layers if row["gradient_error"]]
        lines.append(
            {
                **last,
                "probe": best["probe"],
                "layer": best["layer"],
                "attention": min(map(max, zip(*looks, strict=True))) if looks else None,
                "signal/noise": max(ratios, default=None),
                "pull": pull,
                "pull of others": others,
            }
        )
    return lines
