r"""AdamW through the stages of a curriculum: the paper's experiment.

| name         | paper             | meaning                                                       | where        |
| ------------ | ----------------- | ------------------------------------------------------------- | ------------ |
| TrainOptions | n = 30, k = 16, … | the settings, the paper's by default                          | appendix B.2 |
| Training     | –                 | runs in progress: same settings, one seed and secret set each | section 4    |
| stage        | t                 | counted from 0 here, from 1 in metrics and messages           | section 3.1  |

What the paper leaves open, settled here: every batch is fresh, the optimizer is not reset between stages, and a layer's
counters start with its first gradient. The last is decisive. At stage t the layers above t get no gradient (None, not
zero), so AdamW skips them; zero gradients would advance their bias correction, and n = 64, k = 32 would end at chance.

Runs are trained together along the leading dimension. The loss is their sum, so no run's gradient knows of another.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from internalize.counter import Stream
from internalize.errors import InputError
from internalize.interrupt import Interrupted, Interruptible
from internalize.options import TrainOptions
from internalize.parity.cot import CoTTransformer
from internalize.parity.data import add_trace, draw_bits
from internalize.parity.link import get_link
from internalize.parity.loss import level_loss, stage_loss
from internalize.parity.metrics import measure
from internalize.parity.stages import parity_stages
from internalize.parity.transformer import LevelTransformer
from internalize.parity.tree import Levels, ParityTree
from internalize.parity.weights import named_weights
from internalize.runs import Run

CHECKPOINT_SECONDS = 3.0
_AHEAD_BYTES = 32 * 2**20
_TOGETHER_BYTES = 512 * 2**20

Json = dict[str, Any]


@dataclass(frozen=True)
class Progress:
    """Where training stands, for whoever shows it: updates made and to make, and the latest metrics of every run."""

    done: int
    total: int
    stages: int
    metrics: list[Json]


class Training:
    """Runs in progress: the model, the optimizer and the place in the curriculum.

    Everything random comes from counters (seed, sample number), so this object's state is its tensors and its place.
    """

    def __init__(self, options: TrainOptions, seeds: Sequence[int], device: str = "cpu") -> None:
        self.options = options
        self.seeds = tuple(seeds)
        self.device = torch.device(device)
        self.dtype: torch.dtype = getattr(torch, options.dtype)
        self.trees = [ParityTree.draw(options.n, options.k, seed) for seed in self.seeds]
        self.levels = self.trees[0].levels
        self.stages = parity_stages(self.levels, options.schedule())
        form = CoTTransformer if options.curriculum == "cot" else LevelTransformer
        self.model = form(options.n, options.k, get_link(options.link), runs=(len(self.seeds),), dtype=self.dtype).to(
            self.device
        )
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=options.lr, weight_decay=options.weight_decay, fused=True
        )
        self.stage = 0
        self.step = 0
        """Updates made in this stage."""
        self.seconds = 0.0
        self.latest: list[Json] = []
        self._ahead: dict[int, Tensor] = {}
        self._validation = self._draw(0, options.eval_samples, "validation")

    @property
    def done(self) -> int:
        """Updates made in all."""
        return self.stage * self.options.steps + self.step

    @property
    def total(self) -> int:
        """Updates to make in all."""
        return len(self.stages) * self.options.steps

    def update(self) -> None:
        """One step of AdamW on a fresh batch of every run."""
        loss = self._loss(self._batch(self.done)).sum()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.step += 1

    @torch.no_grad()
    def evaluate(self) -> None:
        """Measure every run on its held-out samples: ``latest`` holds one metrics object a run."""
        losses = cast(list[float], self._loss(self._validation).tolist())
        for seed, loss in zip(self.seeds, losses, strict=True):
            if not math.isfinite(loss):
                raise InputError(
                    f"the loss of seed {seed} is {loss} at step {self.done}: lr={self.options.lr} is too large"
                )
        place = {
            "step": self.done,
            "stage": self.stage + 1,
            "samples": self.done * self.options.batch,
        }
        measured = measure(self.model, self.trees, self._validation)
        self.latest = [
            {**place, "loss": loss, **run, "seconds": round(self.seconds, 3)}
            for loss, run in zip(losses, measured, strict=True)
        ]

    def _loss(self, sequence: Float[Tensor, "runs B T"]) -> Float[Tensor, "runs"]:
        stage = self.stages[self.stage]
        if isinstance(self.model, LevelTransformer):
            return level_loss(self.model, sequence, stage)
        return stage_loss(self.model(sequence), sequence, stage)

    def _draw(self, start: int, count: int, stream: Stream) -> Float[Tensor, "runs B T"]:
        drawn = [
            add_trace(tree, draw_bits(tree.n, seed, start, count, stream, self.dtype))
            for tree, seed in zip(self.trees, self.seeds, strict=True)
        ]
        return torch.stack(drawn).to(self.device)

    def _batch(self, number: int) -> Float[Tensor, "runs B T"]:
        """Samples number · batch … of every seed, drawn some batches ahead: Python's overhead once for many steps."""
        if number not in self._ahead:
            bytes_a_batch = len(self.seeds) * self.options.batch * self.levels.T * self.dtype.itemsize
            count = max(1, min(self.total - number, _AHEAD_BYTES // bytes_a_batch))
            block = self._draw(number * self.options.batch, count * self.options.batch, "train")
            batches = torch.split(block, self.options.batch, dim=1)
            self._ahead = dict(enumerate(batches, start=number))
        return self._ahead[number]

    # State

    def weights(self, run: int) -> dict[str, Tensor]:
        """Weights of one run, under the contract's names."""
        if isinstance(self.model, CoTTransformer):
            return {"W": self.model.W[run]}
        return named_weights([W[run] for W in self.model.W])

    def state(self, run: int) -> dict[str, Tensor]:
        """All tensors of one run: weights, and the optimizer's moments and counters where it has any."""
        tensors = self.weights(run)
        for name, parameter in zip(list(tensors), self.model.parameters(), strict=True):
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"{name}.{key}"] = value if key == "step" else value[run]
        return tensors

    def restore(self, states: Sequence[dict[str, Tensor]], stage: int, step: int, seconds: float) -> None:
        """Put all runs where they were when they were saved."""
        self.stage, self.step, self.seconds = stage, step, seconds
        for name, parameter in zip(list(self.weights(0)), self.model.parameters(), strict=True):
            with torch.no_grad():
                parameter.copy_(torch.stack([state[name] for state in states]))
            keys = [key.partition(".")[2] for key in states[0] if key.startswith(f"{name}.")]
            self.optimizer.state[parameter] = {
                key: states[0][f"{name}.step"]
                if key == "step"
                else torch.stack([state[f"{name}.{key}"] for state in states]).to(self.device)
                for key in keys
            }
            if not keys:
                del self.optimizer.state[parameter]


def train(
    options: TrainOptions,
    seeds: Sequence[int] = (0,),
    runs: Sequence[Run] | None = None,
    *,
    device: str = "cpu",
    snapshots: bool = False,
    resume: bool = False,
    report: Callable[[Progress], None] = lambda progress: None,
) -> list[Json]:
    """Train one run a seed, together, and return their results in the order of the seeds.

    Args:
        options: the settings.
        seeds: one a run; secret set and samples both follow from it.
        runs: the folder of each run; without them nothing is written.
        device: where the arithmetic happens.
        snapshots: keep the weights of every evaluation.
        resume: continue runs that were begun; finished ones are returned as they are.
        report: called at every evaluation.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, with everything saved.
    """
    if runs is None:
        return _train(Training(options, seeds, device), [], snapshots=False, report=report)
    if len(runs) != len(seeds):
        raise InputError(f"{len(runs)} run folders for {len(seeds)} seeds; each run has one of its own")
    configs = [run_config(options, seed) for seed in seeds]  # refuses what cannot be trained, before any folder is made
    with ExitStack() as locks:
        for run, config in zip(runs, configs, strict=True):
            locks.enter_context(run.locked())
            run.begin("train", config, resume=resume)
        left = {run: seed for run, seed in zip(runs, seeds, strict=True) if not run.finished}
        for step, group in _groups(options, list(left)):
            training = Training(options, [left[run] for run in group], device)
            _restore(training, group, step)
            _train(training, group, snapshots=snapshots, report=report)
        return [run.result for run in runs]


def run_config(options: TrainOptions, seed: int) -> Json:
    """What `config.json` says of a run."""
    get_link(options.link)
    tree = ParityTree.draw(options.n, options.k, seed)
    gates = "cot" if options.curriculum == "cot" else "paper"
    return {**asdict(options), "seed": seed, "secret": list(tree.secret), "mask": "level", "gates": gates}


def _groups(options: TrainOptions, runs: list[Run]) -> list[tuple[int | None, list[Run]]]:
    """Which runs can go on together: those with a checkpoint at a common step, as many at once as memory allows.

    Runs that were trained together and killed while saving have the step before in common.
    """
    levels = Levels(options.n, options.k)
    together = max(1, _TOGETHER_BYTES // (64 * options.batch * levels.T))
    groups: list[tuple[int | None, list[Run]]] = []
    steps = {run: run.checkpoint_steps() for run in runs}
    while steps:
        common = Counter(step for own in steps.values() for step in own)
        step = max(common, key=lambda s: (common[s], s)) if common else None
        group = [run for run, own in steps.items() if step is None or step in own][:together]
        groups.append((step, group))
        for run in group:
            del steps[run]
    return groups


def _restore(training: Training, runs: Sequence[Run], step: int | None) -> None:
    if step is None:
        for run in runs:
            run.restart()
        return
    states: list[dict[str, Tensor]] = []
    place: Json = {}
    for number, run in enumerate(runs):
        tensors, place = run.load_checkpoint(step)
        wanted = {name: tuple(tensor.shape) for name, tensor in training.weights(number).items()}
        if any(name not in tensors or tuple(tensors[name].shape) != shape for name, shape in wanted.items()):
            raise InputError(f"{run.path}: the checkpoint of step {step} has not the weights of n, k and curriculum")
        states.append(tensors)
    training.restore(states, place["stage"], place["stage_step"], place["seconds"])
    training.latest = [run.metrics()[-1] for run in runs]


def _train(
    training: Training, runs: Sequence[Run], *, snapshots: bool, report: Callable[[Progress], None]
) -> list[Json]:
    """Go on from where the training is to the end of the last stage, keeping and saving on the way."""
    began = time.perf_counter() - training.seconds
    saved = time.perf_counter()

    def evaluate() -> None:
        training.seconds = time.perf_counter() - began
        training.evaluate()
        for number, run in enumerate(runs):
            run.append_metrics(training.latest[number])
            if snapshots:
                run.save_snapshot(training.done, training.weights(number))
        report(Progress(training.done, training.total, len(training.stages), training.latest))

    def save() -> None:
        nonlocal saved
        training.seconds = time.perf_counter() - began
        place = {"stage": training.stage, "stage_step": training.step, "seconds": training.seconds}
        for number, run in enumerate(runs):
            run.save_checkpoint(training.done, training.state(number), place)
        for run in runs:
            run.drop_checkpoints(before=training.done)
        saved = time.perf_counter()

    with Interruptible(active=bool(runs)) as interrupt:
        if not training.latest:
            evaluate()
        while True:
            while training.step < training.options.steps:
                training.update()
                if training.step % training.options.eval_every == 0 or training.step == training.options.steps:
                    evaluate()
                if interrupt.requested or time.perf_counter() - saved > CHECKPOINT_SECONDS:
                    save()
                if interrupt.requested:
                    raise Interrupted
            if training.stage + 1 == len(training.stages):
                break
            training.stage, training.step = training.stage + 1, 0
            evaluate()
        save()  # so that a kill among the following files of several runs loses none of them

    results = [_result(training, number) for number in range(len(training.seeds))]
    for number, run in enumerate(runs):
        run.save_weights(training.weights(number))
        run.finish(results[number])
    return results


def _result(training: Training, number: int) -> Json:
    latest = training.latest[number]
    return {
        "seed": training.seeds[number],
        **{key: latest[key] for key in ("accuracy", "l2_error", "max_error")},
        "min_child_attention": min(latest["child_attention"]),
        "steps": training.done,
        "samples": training.done * training.options.batch,
        "seconds": round(training.seconds, 3),
    }
