"""Ideas for the training of ordinary transformers that are not in the package, tried on parity with a Trainer of one's own:
`python -m tools.leads LEAD --seeds 0:3`, with the options of `lm train` that it names. A line of JSON for every run.

| lead    | what it adds to a run of `lm train`                                                                            |
| ------- | -------------------------------------------------------------------------------------------------------------- |
| control | nothing                                                                                                        |
| average | weights averaged over the last updates are evaluated, and decide when a stage ends                             |
| freeze  | once the steps of a level are hidden, the layers up to that one are not trained any more                       |
| gates   | the paper's gates on the residual stream: what predicts a step takes the update of the layer of its level only |
| open    | the same, and once the answer is right the gates open, over two thirds of `--consolidate` updates: an ordinary |
|         | transformer is left                                                                                            |
| fade    | the loss on hidden slots falls to nothing after the explicit stage                                             |
| grow    | the tree grows: levels above the first that a stage shows are not asked for yet                                |
"""

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import torch
import tyro
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback

from internalize.lm import Internalization, LmTrainOptions
from internalize.lm.batches import StageCollator, model_input
from internalize.lm.callback import StageCallback, put_back, trained_weights
from internalize.lm.chains import Chain
from internalize.lm.models import make_model
from internalize.lm.quiet import quiet_transformers
from internalize.lm.removal import IGNORED
from internalize.lm.train import _arguments  # pyright: ignore[reportPrivateUsage]  (as `lm train` has them)
from internalize.options import parse_seeds

Name = Literal["control", "average", "freeze", "gates", "open", "fade", "grow"]
Json = dict[str, Any]
OPTIONS = LmTrainOptions(stop_at=0.998, steps=2000, eval_every=10, eval_examples=256, consolidate=0)


def predicted_levels(chain: Chain) -> list[int]:
    """For every position of a whole chain of parity, the level of the step that its next token is; 0 where it is none."""
    levels = chain.levels or ()
    root = max(levels, default=0) + 1
    steps = [
        *([0] * (len(chain.prompt) - 1)),
        *(level for unit, level in zip(chain.units, levels, strict=True) for _ in unit),
    ]
    return [*steps, 0, *[root] * (len(chain.answer) - 2), 0, 0]  # the separator, the answer, the end, and nothing


def collator(kind: type[StageCollator], work: Internalization) -> StageCollator:
    """Another collator of the same data."""
    same = work.collator
    return kind(same.examples, same.text, same.stages, same.schedule, same.batch, same.seed)


class Lead(TrainerCallback):
    """Changes what a run is made of before it starts."""

    def __init__(self, work: Internalization, model: Any) -> None:
        self.work, self.model = work, model


class Average(Lead):
    """A moving average of the weights; with it the curriculum's callback evaluates, and the run ends."""

    def __init__(self, work: Internalization, model: Any, keep: float = 0.95) -> None:
        super().__init__(work, model)
        self.keep, self.mean = keep, trained_weights(model)
        for name in ("exact_match", "held_out_loss"):
            setattr(work.callback, name, self.averaged(getattr(work.callback, name)))

    def averaged(self, measure: Any) -> Any:
        """The same with averaged weights."""

        def with_mean(model: Any, *args: Any) -> Any:
            own = trained_weights(model)
            put_back(model, self.mean)
            found = measure(model, *args)
            put_back(model, own)
            return found

        return with_mean

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Before the curriculum's callback looks."""
        for name, own in trained_weights(self.model).items():
            self.mean[name].lerp_(own, 1 - self.keep)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """What is kept is the average."""
        put_back(self.model, self.mean)


class ByLevels(Lead):
    """For curricula whose stages hide a level each."""

    def __init__(self, work: Internalization, model: Any) -> None:
        super().__init__(work, model)
        if work.options.method != "log-icot":
            raise SystemExit("freeze and grow go by levels: --method log-icot")


class Freeze(ByLevels):
    """Layers whose level the stage before has hidden have done their work."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Layer 1 when stage 3 begins, for stage 2 is where level 1 is hidden first, and so on."""
        for layer in self.model.transformer.h[: max(self.work.schedule.stage(state.global_step) - 1, 0)]:
            for weight in layer.parameters():
                weight.grad = None
                weight.requires_grad_(False)


class Gates(Lead):
    """Layer l updates the positions that predict a step of level l (the last layers: the root's) and no other."""

    def __init__(self, work: Internalization, model: Any) -> None:
        super().__init__(work, model)
        (chain,) = work.text.chains(work.leveled(work.source.training_sample(1)))
        self.levels = torch.tensor([*predicted_levels(chain), *[0] * work.config.n_positions])  # a model may write on
        root = int(self.levels.max())
        self.ajar = 0.0
        """How far the others are open."""
        self.hooks: list[Any] = []
        for number, layer in enumerate(model.transformer.h):
            self.levels_of(layer, min(number + 1, root), number)

    def levels_of(self, layer: torch.nn.Module, level: int, number: int) -> None:
        """Gate one layer. What is no step, the separator and the end, passes through the first one."""

        def gated(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
            before = args[0]
            states = output[0] if isinstance(output, tuple) else output
            cache = kwargs.get("past_key_values") or next((a for a in args[1:] if hasattr(a, "get_seq_length")), None)
            end = cache.get_seq_length(number) if cache is not None else before.shape[1]
            mine = self.levels[end - before.shape[1] : end]
            is_open = (mine == level) | (
                (mine == 0) & (torch.arange(end - before.shape[1], end) >= self.prompt) & (level == 1)
            )
            states = torch.where(is_open[:, None], states, torch.lerp(before, states, self.ajar))
            return (states, *output[1:]) if isinstance(output, tuple) else states

        self.hooks.append(layer.register_forward_hook(gated, with_kwargs=True))

    @property
    def prompt(self) -> int:
        """The first position that predicts anything."""
        return int((self.levels > 0).nonzero()[0])


class Open(Gates):
    """Gates that are for learning alone."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Once the updates that follow the right answer have begun."""
        end = self.work.callback._stop_at  # pyright: ignore[reportPrivateUsage]
        if end is not None:
            left = (end - state.global_step) / self.work.options.consolidate
            self.ajar = min(1.0, 1.5 * (1 - left))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """What is left has no gates."""
        for hook in self.hooks:
            hook.remove()


class Fade(Lead):
    """The chance that an example's hidden slots are supervised, by the update."""

    over = 200
    """Updates after the explicit stage, over which it falls from 1."""

    def __init__(self, work: Internalization, model: Any) -> None:
        super().__init__(work, model)
        work.collator = collator(FadingCollator, work)


class FadingCollator(StageCollator):
    """Hidden slots are supervised if a number is below `slot_loss`, so the number grows where the chance falls."""

    def _chances(self, positions: Sequence[int]) -> list[list[float]]:
        begins = [*self.schedule.begins, sys.maxsize][1]
        rows = super()._chances(positions)
        for position, row in zip(positions, rows, strict=True):
            left = 1 - max(position // self.batch - begins, 0) / Fade.over
            row[3] = row[3] / left if left > 0 else 1.0
        return rows


class Grow(ByLevels):
    """Of what a stage shows its first level alone is asked for; an attempt passes by the steps that it is asked for."""

    def __init__(self, work: Internalization, model: Any) -> None:
        super().__init__(work, model)
        work.collator = collator(GrowingCollator, work)
        work.callback = GrowingCallback(work.options, work.text, work.stages, work.schedule, work.callback.validation)


def asked_for(chain: Chain, stage: int) -> list[bool]:
    """Whether the token at each position is asked for at a stage, counted from 0, which hides the levels up to it."""
    levels = [0, *predicted_levels(chain)[:-1]]
    last = max(levels) == stage + 1
    return [0 < level <= stage + 1 or (last and level == 0) for level in levels]


class GrowingCollator(StageCollator):
    """Without the labels of levels above the first that is shown."""

    def __call__(self, positions: Sequence[int]) -> Json:
        """The batch of these positions."""
        batch = super().__call__(positions)
        chains = self.text.chains(self.examples(positions))
        stages = (self.schedule.stage(position // self.batch) for position in positions)
        asked = torch.tensor([asked_for(chain, stage) for chain, stage in zip(chains, stages, strict=True)])
        batch["labels"] = batch["labels"].masked_fill(~asked, IGNORED)
        return batch


class GrowingCallback(StageCallback):
    """Before the last stage the answer is not asked for; whether all steps of the level in training are right is."""

    def exact_match(self, model: Any, stage: int, args: Any = None) -> float:
        """The share of the held-out questions."""
        if stage == self.stages.last:
            return super().exact_match(model, stage, args)
        chains = self.text.chains(self.validation)
        rows = [
            self.stages.sequence(
                chain, self.stages.hidden_units(chain, stage), self.stages.stage_slots[stage], supervise_hidden=True
            )
            for chain in chains
        ]
        batch = model_input(rows, self.text.pad, positions=False)
        labels = batch.pop("labels")
        model.eval()
        with torch.no_grad():
            written = model(**batch).logits[:, :-1].argmax(-1)
        model.train()
        asked = torch.tensor([asked_for(chain, stage) for chain in chains])[:, 1:]
        return float(((written == labels[:, 1:]) | ~asked).all(-1).double().mean())


LEADS: dict[Name, type[Lead]] = {
    "control": Lead, "average": Average, "freeze": Freeze, "gates": Gates, "open": Open, "fade": Fade, "grow": Grow
}  # fmt: skip
assert LEADS.keys() == set(get_args(Name))


def trained(
    lead: Name, options: LmTrainOptions, seed: int, report: Callable[[Json], None] = lambda metrics: None
) -> tuple[Internalization, Any]:
    """One model, trained."""
    work = Internalization(options, seed=seed)
    model = make_model(options, work.config, seed)
    own = LEADS[lead](work, model)
    work.callback.on_metrics = report
    loss = work.loss(model)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=_arguments(work, Path(folder), "cpu", processes=1, checkpoint_steps=0),
            train_dataset=work.positions,
            data_collator=work.collator,
            callbacks=[own, work.callback],
            compute_loss_func=loss,
        )
        for noisy in (PrinterCallback, ProgressCallback):
            trainer.remove_callback(noisy)
        trainer.train()
    return work, model


def run(lead: Name, options: LmTrainOptions, seed: int, report: Callable[[Json], None] = lambda metrics: None) -> Json:
    """What a model came to, with the updates of every stage."""
    work, model = trained(lead, options, seed, report)
    test = work.source.test(options.test_examples)
    steps = [stage["steps"] for stage in work.callback.finished_stages]
    return {
        "lead": lead,
        "seed": seed,
        "exact_match": work.answers(model, test).exact_match(test),
        "explicit": steps[0],
        "after_explicit": sum(steps[1:]),
        "steps": steps,
    }


@dataclass(frozen=True)
class Command:
    """Try a lead."""

    lead: Annotated[Name, tyro.conf.Positional]
    seeds: str = "0:3"
    options: tyro.conf.OmitArgPrefixes[LmTrainOptions] = field(default_factory=lambda: OPTIONS)


def main() -> None:
    """Print a line a seed."""
    asked = tyro.cli(Command)
    quiet_transformers()
    torch.set_num_threads(1)
    for seed in parse_seeds(asked.seeds):
        found = run(asked.lead, asked.options, seed, lambda metrics: print(json.dumps(metrics), file=sys.stderr))
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
