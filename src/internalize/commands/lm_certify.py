"""`internalize lm certify`."""

from pathlib import Path
from typing import Annotated

import tyro

from internalize.commands.certify import show_certificates, violated_first
from internalize.commands.common_options import DeviceOptions, KeptOption, SeedOption, command
from internalize.commands.console import say, use_device


@command
class LmCertify(KeptOption, SeedOption, DeviceOptions):
    """Check on a language model trained on parity what carries over of the paper's statements.

    Does every node attend to its two children, is every hidden node there early enough for its parent, does a stage leave alone
    what the one before it had hidden, is the answer right? The paper proves it of its own model; of an ordinary
    transformer it is measured, against bounds that are this project's. Exits with 1 if any is violated. The statement about
    stages needs a run of lm train --keep-stages, and does not apply to others.

    For example:

      $ internalize lm train --method log-icot --keep-stages --layer-loss 1 --out runs/parity
      $ internalize lm certify runs/parity
      $ internalize lm certify runs/parity --only child-attention frozen-nodes --json
    """

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of a run of lm train on parity, or of a model that one wrote."""
    only: tuple[str, ...] = ()
    """Names of the statements to check: child-attention, child-mass, hidden-nodes, frozen-nodes, answer. Default: all."""
    examples: int = 2048
    """How many different questions to read, held-out ones first; there may be fewer."""
    seed: int = 0
    """Draws which half of the questions fits the probes; the other half judges them."""

    def __call__(self) -> int:
        """Check, show, keep."""
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
        return show_certificates(self, found)
