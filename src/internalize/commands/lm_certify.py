"""`internalize lm certify`."""

from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from internalize.commands.certify import show_certificates, violated_first
from internalize.commands.common_options import DeviceOptions, KeptOption, SeedOption, command
from internalize.commands.console import say, use_device
from internalize.commands.lm_probe import probeable


@command
class LmCertify(KeptOption, SeedOption, DeviceOptions):
    """Check which of the paper's statements hold on a trained language model.

    The model must have been trained on parity. The certificates ask: does every node attend to its two children, is
    every hidden node computed early enough for its parent, does a stage preserve what the stage before it hid, is the
    answer right? The paper proves these for its own model; the bounds here are this project's. The exit status is 1 if
    any is violated.

    Examples:
      internalize lm train --method log-icot --keep-stages --layer-loss 1 --out runs/parity
      internalize lm certify runs/parity
      internalize lm certify runs/parity --only child-attention frozen-nodes --json
    """

    TITLE: ClassVar = "Certificates"

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of a run of `lm train` on parity, or of a model that it wrote. Statements about stages need
    --keep-stages."""
    only: tuple[str, ...] = ()
    """Statements to check: child-attention, child-mass, hidden-nodes, frozen-nodes, answer. Default: all of them."""
    examples: int = 2048
    """Largest number of different questions to use, held-out ones first."""
    seed: int = 0
    """Random seed. It decides on which half of the questions the probes are fitted."""

    def __call__(self) -> int:
        """Check, show and keep the certificates."""
        from internalize.certificate import chosen
        from internalize.commands.progress import ProgressDisplay
        from internalize.lm.certificates import STATEMENTS, LmWorld, certify
        from internalize.lm.training.quiet import quiet_transformers

        quiet_transformers()
        device = use_device(self.device, self.threads)
        names = list(chosen(STATEMENTS, self.only or None))
        world = LmWorld.of_folder(self.run, self.examples, seed=self.seed, device=device, say=say)
        kept = world.kept
        config = {"run": str(self.run), "data": kept.data, "examples": self.examples, "only": names, "seed": self.seed}
        with self.keeping("lm-certify", config) as keep, ProgressDisplay("lm certify") as progress:
            certificates = violated_first(certify(world, names, progress.show))
            found = {"data": kept.data, "examples": len(kept.examples), "certificates": certificates}
            keep(found)
        status = show_certificates(self, found)
        self.suggest("lm probe", probeable(self.run), "--figure", "figures")
        return status
