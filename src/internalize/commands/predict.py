"""`internalize predict`."""

from dataclasses import asdict, field
from typing import Any

import tyro

from internalize.commands.common_options import KeptOption, SeedOption, command
from internalize.commands.console import print_json, print_table
from internalize.parity.options import StepOptions


@command
class Predict(KeptOption, SeedOption):
    """What finite n does to Algorithm 1: signal and noise of every stage, and the samples it takes.

    Signal and noise are exact: the population gradient of a child and the deviation of a one-sample gradient elsewhere, as
    fractions of K at the paper's rate. Probabilities and numbers of samples are a model on top of them, which takes the
    steps to be Gaussian but for their skewness. Nothing is drawn and nothing is trained.

    For example:

      $ internalize predict --n 30 --k 16
      $ internalize predict --n 1024 --k 512 --samples 300000
      $ internalize predict --n 30 --k 16 --grid 1 --K 8 --json
    """

    options: tyro.conf.OmitArgPrefixes[StepOptions] = field(default_factory=StepOptions)
    samples: int | None = None
    """Samples a stage: also say how likely success is with them."""
    epsilon: float = 1.0
    """ε of the theorem, for the n beyond which its K is large enough."""
    seed: int = 0
    """Taken as by every command; nothing here is random."""

    def __call__(self) -> int:
        """Compute, show, keep."""
        from internalize.parity.theory.prediction import Setting, predict

        options = asdict(self.options)
        found = predict(Setting(**options), self.samples, self.epsilon).to_json()
        asked = {"samples": self.samples, "epsilon": self.epsilon, "seed": self.seed}
        with self.keeping("predict", {**options, **asked}) as keep:
            keep(found)
        if self.json:
            print_json(found)
        else:
            self._print(found)
        return 0

    def _print(self, found: dict[str, Any]) -> None:
        chances = found.get("stage_success_probability", [None] * len(found["signal"]))
        stages = zip(found["signal"], found["noise"], chances, strict=True)
        print_table(
            [
                {"stage": number, "signal / K": signal, "noise / K at B = 1": noise, "P(recovered)": chance}
                for number, (signal, noise, chance) in enumerate(stages, start=1)
            ],
            ("stage", "signal / K", "noise / K at B = 1", *(["P(recovered)"] if self.samples else [])),
        )
        answers = {
            "samples a stage for 50 %": found["samples_50"],
            "samples a stage for 99 %": found["samples_99"],
            "samples a stage by default (failure 1e-6)": found["samples_default"],
            "K by default": found["K_default"],
            "limit of samples / (n ln n) at this k/n": found["limit_factor"],
            f"the theorem's K exceeds ln n for good from (ε = {self.epsilon:g})": f"n = 10^{found['theorem_log10_n']:.0f}",
            f"success with {self.samples} samples a stage": found.get("success_probability"),
            "not possible": found.get("reason"),
            "note": found.get("note"),
        }
        rows = [{"": name, " ": value} for name, value in answers.items() if value is not None]
        print_table(rows, ("", " "))
