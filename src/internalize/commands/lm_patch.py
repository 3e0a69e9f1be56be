"""`internalize lm patch`."""

from pathlib import Path
from typing import Annotated, Any, ClassVar

import tyro

from internalize.commands.common_options import DeviceOptions, HeldOutOption, KeptOption, SeedOption, command
from internalize.commands.console import say, use_device


@command
class LmPatch(HeldOutOption, KeptOption, SeedOption, DeviceOptions):
    """Test whether a model uses its hidden steps.

    For every hidden step and every layer, the step's state of one question is put into another question, at the
    positions where `lm probe` reads the step. Interchange is the share of the answers that become what the exchanged
    step implies. Control is the same for states at random other positions. Only pairs count in which the exchange
    should change the answer, and both questions are answered correctly. The table has the layer that the probe names:
    the first at which it reads the step.

    It works for generated tasks that say what a step implies: parity, multiply, multiply-tree, stories, words.

    Examples:
      internalize lm train --stop-at 0.99 --out runs/parity
      internalize lm patch runs/parity --figure figures
      internalize lm patch runs/parity/model --examples 256 --json
    """

    TITLE: ClassVar = "Patch"

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of a run of `lm train`, or of a model that it wrote."""
    examples: int = 512
    """Largest number of different questions to exchange steps between."""
    figure: Path | None = None
    """Folder for a figure of the interchange, by layer and step."""
    seed: int = 0
    """Random seed of the pairs and of the control's positions, and of a task in --data that names none."""

    def __call__(self) -> int:
        """Exchange, show, keep and draw."""
        from internalize.commands.lm_probe import probeable
        from internalize.commands.progress import ProgressDisplay
        from internalize.lm.probe.patch import open_patchable, patch
        from internalize.lm.probe.probed_models import open_probed_models
        from internalize.lm.training.quiet import quiet_transformers

        quiet_transformers()
        device = use_device(self.device, self.threads)
        kept = open_probed_models(
            probeable(self.run), self.data, self.examples, stage="last", seed=self.seed, device=device, say=say
        )
        config = {"run": str(self.run), "data": kept.data, "examples": self.examples, "seed": self.seed}
        patchable = open_patchable(kept)
        with self.keeping("lm-patch", config) as keep, ProgressDisplay("lm patch") as progress:
            result = patch(patchable, progress.show)
            if self.figure is not None:
                from internalize.report.figures.patching import draw_patching

                result["figure"] = str(draw_patching(result).save(self.figure))
            keep(result)
        self.show(result, [_shown(row) for row in result["places"]], _COLUMNS)
        if self.figure is None:
            self.suggest("lm patch", self.run, "--figure", "figures")
        else:
            self.suggest("lm probe", probeable(self.run))
        return 0


_COLUMNS = ("step", "level", "layer", "probe", "pairs", "interchange", "95 %", "control")


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """Return one row of the table, with the interval in one column."""
    return {**row, "95 %": f"{row['interchange_low']:.3f} … {row['interchange_high']:.3f}"}
