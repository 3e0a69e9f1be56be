"""Warnings about options that are unusual for a run, in case the user meant something else."""

from typing import Final

from internalize.lm.options import LmTrainOptions

MANY_EPOCHS: Final = 200
"""Number of epochs beyond which a run is unusual: the largest that Deng et al. use."""
MAX_TUNING_RATE: Final = 5e-4
"""Learning rate above which training of a pretrained model is unusual."""


def unusual(options: LmTrainOptions, examples: int | None) -> list[str]:
    """Return a line for each thing about the options that is rarely meant."""
    found: list[str] = []
    if examples is not None:
        passes = options.steps * options.batch / examples
        if not 1 <= passes <= MANY_EPOCHS:
            why = "so the model may learn them by heart" if passes > 1 else "so not every example is used"
            amount = f"{passes:.0f}" if passes > 1 else f"{passes:.2g}"
            found.append(
                f"{options.steps} updates of {options.batch} over {examples} examples are {amount} epochs, {why}; "
                "--epochs sets their number"
            )
    if options.pretrained and options.lr > MAX_TUNING_RATE:
        found.append(f"lr={options.lr:g} is high for a pretrained model, which may forget what it knows; see --lr")
    return found
