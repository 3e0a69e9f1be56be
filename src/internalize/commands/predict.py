"""`internalize predict`."""

from dataclasses import asdict, field
from typing import Any, ClassVar

import tyro

from internalize.commands.common_options import KeptOption, SeedOption, command
from internalize.commands.console import Flag, print_facts, print_json, print_table, print_text
from internalize.curriculum import Curriculum, Method
from internalize.errors import InputError
from internalize.parity.options import SolveOptions, StepOptions, without_later


@command
class Predict(KeptOption, SeedOption):
    """Predict how many samples Algorithm 1 needs.

    The table has the signal (the exact population gradient of a true child) and the noise (the standard deviation of a
    one-sample gradient elsewhere) per stage, as fractions of K at the paper's rate. Probabilities and numbers of
    samples follow from these with one assumption: steps are Gaussian up to their skewness. Nothing is sampled or
    trained.

    Examples:
      internalize predict --n 30 --k 16
      internalize predict --n 1024 --k 512 --samples 300000
      internalize predict --n 128 --k 64 --curriculum cot
      internalize predict --n 30 --k 16 --grid 1 --amplitude 8 --json
    """

    TITLE: ClassVar = "Prediction"

    options: tyro.conf.OmitArgPrefixes[StepOptions] = field(default_factory=StepOptions)
    curriculum: Method = "log-icot"
    """The curriculum whose steps are counted. cot also stands for transfer. none has no prediction."""
    skip: tuple[int, ...] = ()
    """For log-icot: levels from 1 without a stage of their own. They have no prediction; the reason is shown."""
    hidden_loss: Flag[bool] = False
    """For --curriculum none: the loss is also on hidden nodes."""
    samples: int | None = None
    """Samples per stage at which to predict the probability of success."""
    epsilon: float = 1.0
    """ε of Theorem 1. It decides from which n on the theorem's K is large enough."""
    seed: int = 0
    """Accepted like by every command, but nothing here is random."""

    def __call__(self) -> int:
        """Compute, show and keep the prediction."""
        from internalize.parity.theory.prediction import Setting, predict

        options, schedule = asdict(self.options), Curriculum(self.curriculum, skip=self.skip)
        if self.hidden_loss and self.curriculum != "none":
            raise InputError(f"hidden_loss needs --curriculum none; {self.curriculum} does not hide every node at once")
        SolveOptions(**options, curriculum=self.curriculum, skip=self.skip, hidden_loss=self.hidden_loss)  # or refuse
        found = predict(
            Setting(**options), self.samples, self.epsilon, schedule, hidden_loss=self.hidden_loss
        ).to_json()
        later = {"curriculum": self.curriculum, "skip": list(self.skip), "hidden_loss": self.hidden_loss}
        asked = {"samples": self.samples, "epsilon": self.epsilon, "seed": self.seed}
        if schedule != Curriculum() or self.hidden_loss:  # files of versions without them stay the same
            asked |= later
        with self.keeping("predict", {**without_later(options, StepOptions), **asked}) as keep:
            keep(found)
        if self.json:
            print_json(found)
        else:
            self._print(found)
            command = "predict" if found.get("reason") else "solve"  # with K by default, where a number is enough
            arity = ("--arity", self.options.arity) if self.options.arity != StepOptions.arity else ()
            self.suggest(command, "--n", self.options.n, "--k", self.options.k, *arity)
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
        print_text("")
        print_facts(
            {
                "samples per stage for 50 %": found["samples_50"],
                "samples per stage for 99 %": found["samples_99"],
                "samples per stage by default (failure 1e-6)": found["samples_default"],
                "gradient steps": found["steps"],
                "samples in all by default": found["samples_total"],
                "default K": found["K_default"],
                "limit of samples / (n ln n) at this k/n": found.get("limit_factor"),
                f"n above which the theorem's K exceeds ln n (ε = {self.epsilon:g})": (
                    f"10^{found['theorem_log10_n']:.0f}"
                ),
                f"success with {self.samples} samples per stage": found.get("success_probability"),
                "no number of samples": found.get("reason"),
                "updates × learning rate × √batch of AdamW from random weights": found.get("chunk_noise_over_signal"),
                "note": found.get("note"),
            }
        )
