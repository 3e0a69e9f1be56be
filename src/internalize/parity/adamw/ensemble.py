r"""Runs in progress: the model, the optimizer and the place in the curriculum.

| name        | paper          | meaning                                                          | where        |
| ----------- | -------------- | ---------------------------------------------------------------- | ------------ |
| Training    | –              | runs with the same settings, one seed and secret set each        | section 4    |
| stage, step | t              | counted from 0; the stage from 1 in metrics and messages         | section 3.1  |
| update      | AdamW          | one step on a fresh batch of every run                           | appendix B.2 |
| learned     | –              | whether the level in training is right often enough              | –            |

The paper leaves three choices open. Here every batch is fresh, the optimizer is not reset between stages, and a
layer's counters start with its first gradient. The last choice is decisive. At stage t the layers above t get no
gradient (None, not zero), so AdamW skips them. Zero gradients would advance their bias correction, and n = 64, k =
32 would end at chance.

Runs are trained together along the leading dimension. The loss is their sum, so the gradient of one run does not
depend on the others. If accuracy decides when a stage ends, runs with several stages are trained one at a time.
"""

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from jaxtyping import Float, Inexact, Int8
from torch import Tensor, nn

from internalize.errors import InputError
from internalize.parity.model.backward import LevelGradients
from internalize.parity.model.cot import CoTTransformer
from internalize.parity.model.link import get_link
from internalize.parity.model.loss import stage_loss, supervised_level_loss
from internalize.parity.model.metrics import Model, infer, measure
from internalize.parity.model.relaxed import RelaxedTransformer
from internalize.parity.model.transformer import LevelTransformer
from internalize.parity.options import TrainOptions
from internalize.parity.task.data import EXACT, as_roots, draw_sequences, inference_input, stage_input
from internalize.parity.task.noise import LabelNoise
from internalize.parity.task.stages import parity_stages
from internalize.parity.task.tree import Levels, ParityTree
from internalize.random_words import Stream, normals
from internalize.storage.files import Json

ARITHMETIC = 2
"""Version of the order of operations. Increase it when a change of that order changes the last bits of updates."""
_AHEAD_BYTES = 32 * 2**20
"""Memory for batches that are drawn in advance, in bytes."""


class Training:
    """Runs in training: the model, the optimizer and the place in the curriculum.

    Everything random comes from counters (seed, sample number), so its state is its tensors and its place.
    """

    def __init__(self, options: TrainOptions, seeds: Sequence[int], device: str = "cpu") -> None:
        self.options = options
        self.seeds = tuple(seeds)
        self.device = torch.device(device)
        self.dtype: torch.dtype = getattr(torch, options.dtype)
        self.trees = [ParityTree.drawn(options, seed) for seed in self.seeds]
        self.levels = self.trees[0].levels
        self.stages = parity_stages(self.levels, options.schedule(), hidden_loss=options.hidden_loss)
        self.model = make_model(options, self.seeds).to(self.device)
        self.parameters = named_parameters(self.model)
        if options.init_std:
            self._randomize(options.init_std)
        self.optimizer = torch.optim.AdamW(self._groups(), fused=True)
        self.stage = 0
        self.step = 0
        """Number of updates made in this stage."""
        self.done = 0
        """Number of updates made in all stages."""
        self.seconds = 0.0
        self.latest: list[Json] = []
        self._gradients: LevelGradients | None = None
        if isinstance(self.model, LevelTransformer) and self.levels.modulus == 2:
            self._gradients = LevelGradients(self.model)
        self._ahead: dict[int, Tensor] = {}
        self._validation = self._as_input(self._draw(0, options.eval_samples, "validation"))

    @property
    def total(self) -> int:
        """Number of updates of the whole run."""
        return total_steps(self.options)

    @property
    def stage_over(self) -> bool:
        """Whether the stage used its updates or learned its level; the last stage uses all remaining updates."""
        if self.options.advance == "steps":
            return self.step == self.options.steps
        return self.done == self.total or (not self.last_stage and self.learned)

    @property
    def last_stage(self) -> bool:
        """Whether no stage follows, because this is the last one or no update is left."""
        left = self.options.advance == "steps" or self.done < self.total
        return self.stage + 1 == len(self.stages) or not left

    @property
    def learned(self) -> bool:
        """Whether an evaluation after the latest update found the level in training at the threshold in every run."""
        level = self.stages[self.stage].layers - 1
        return self.latest[0]["step"] == self.done and all(
            metrics["level_accuracy"][level] >= self.options.threshold for metrics in self.latest
        )

    def update(self) -> None:
        """Make one step of AdamW on a fresh batch of every run."""
        signs = self._batch(self.done)
        if self._gradients:
            self._gradients(signs, self.stages[self.stage])
        else:
            loss = self._loss(self._as_input(signs)).sum()
            if isinstance(self.model, RelaxedTransformer):
                loss = loss + self.options.gate_penalty * sum(opened.sum() for opened in self.model.opened.values())
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
        self.optimizer.step()
        self.step += 1
        self.done += 1

    @torch.no_grad()
    def evaluate(self) -> None:
        """Measure every run on its held-out samples, and put one metrics object per run into ``latest``."""
        stage, sequence = self.stages[self.stage], self._validation
        output = infer(self.model, sequence[..., : self.levels.n])
        if isinstance(self.model, LevelTransformer):
            # Level form reads only the bits, so this pass also gives the loss.
            of_runs = supervised_level_loss(output, sequence, stage, self.levels)
        else:
            of_runs = self._loss(sequence)
        losses = cast(list[float], of_runs.tolist())
        for seed, loss in zip(self.seeds, losses, strict=True):
            if not math.isfinite(loss):
                rates = f"lr={self.options.lr}"
                if len(self.optimizer.param_groups) > 1:
                    rates += f" or parts_lr={self.options.parts_lr}"
                raise InputError(f"the loss of seed {seed} is {loss} at step {self.done}: {rates} is too large")
        place = {"step": self.done, "stage": self.stage + 1, "samples": self.done * self.options.batch}
        measured = measure(self.model, self.trees, sequence, output)
        self.latest = [
            {**place, "loss": loss, **run, "seconds": round(self.seconds, 3)}
            for loss, run in zip(losses, measured, strict=True)
        ]

    @torch.no_grad()
    def _randomize(self, std: float) -> None:
        """Draw normal attention weights from the words of each seed, the same in any company."""
        attention = [own for name, own in self.parameters.items() if name.startswith("W")]
        for run, seed in enumerate(self.seeds):
            normal = torch.from_numpy(normals(seed, "init", 0, sum(w[run].numel() for w in attention)))
            first = 0
            for w in attention:
                end = first + w[run].numel()
                w[run] = std * normal[first:end].view_as(w[run])
                first = end

    def _loss(self, sequence: Inexact[Tensor, "runs B T"]) -> Float[Tensor, "runs"]:
        stage = self.stages[self.stage]
        if isinstance(self.model, CoTTransformer):
            return stage_loss(self.model(sequence), sequence, stage)
        if self.options.shows:
            return stage_loss(self.model(stage_input(sequence, stage), stage.layers), sequence, stage)
        D = inference_input(sequence[..., : self.levels.n], self.levels.T)
        return supervised_level_loss(self.model(D, stage.layers), sequence, stage, self.levels)

    def _draw(self, start: int, count: int, stream: Stream) -> Int8[Tensor, "runs T B"]:
        """Draw sequences of every seed. The samples of a position are adjacent: fastest to draw and to read."""
        block = torch.empty(len(self.seeds), self.levels.T, count, dtype=torch.int8)
        noise = LabelNoise(self.options.noise, self.options.noisy) if stream == "train" else EXACT
        for tree, seed, own in zip(self.trees, self.seeds, block, strict=True):
            own.copy_(draw_sequences(tree, seed, start, count, stream, noise))
        return block.to(self.device)

    def _as_input(self, signs: Int8[Tensor, "runs T B"]) -> Inexact[Tensor, "runs B T"]:
        p = self.levels.modulus
        sequence = (signs.to(self.dtype) if p == 2 else as_roots(signs, p, self.dtype)).mT
        return sequence if self._gradients else sequence.contiguous()

    def _batch(self, number: int) -> Int8[Tensor, "runs T B"]:
        """Return the batch of every seed for update ``number``. Several batches are drawn at once, to save overhead."""
        if number not in self._ahead:
            bytes_a_batch = len(self.seeds) * self.options.batch * self.levels.T
            count = max(1, min(self.total - number, _AHEAD_BYTES // bytes_a_batch))
            block = self._draw(number * self.options.batch, count * self.options.batch, "train")
            batches = torch.split(block, self.options.batch, dim=-1)
            self._ahead = dict(enumerate(batches, start=number))
        return self._ahead[number]

    def _groups(self) -> list[dict[str, Any]]:
        """Return the learned tensors in groups with their learning rate and weight decay.

        Only attention decays: decay would pull a gate's logit to 0, which is half open, and a scale to 0. Values,
        streams and networks act on everything that is read, so at the learning rate of attention they would undo
        what attention learns.
        """
        options = self.options
        kinds = {
            "W": {"lr": options.lr, "weight_decay": options.weight_decay},
            "gate": {"lr": options.lr, "weight_decay": 0.0},
            "": {"lr": options.parts_lr, "weight_decay": 0.0},
        }
        groups: dict[str, list[nn.Parameter]] = {kind: [] for kind in kinds}
        for name, parameter in self.parameters.items():
            groups[next(kind for kind in kinds if name.startswith(kind))].append(parameter)
        return [{"params": own, **kinds[kind]} for kind, own in groups.items() if own]

    # State

    def circumstances(self) -> Json:
        """Return what else the last bits depend on: runs trained together, threads, device, order of operations."""
        return {
            "together": list(self.seeds),
            "threads": torch.get_num_threads(),
            "device": self.device.type,
            "arithmetic": ARITHMETIC,
        }

    def weights(self, run: int) -> dict[str, Tensor]:
        """Return the weights of one run, under the contract's names."""
        return {name: parameter.detach()[run] for name, parameter in self.parameters.items()}

    def state(self, run: int) -> dict[str, Tensor]:
        """Return all tensors of one run: weights, and the optimizer's moments and counters where it has any."""
        tensors = self.weights(run)
        for name, parameter in self.parameters.items():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"{name}.{key}"] = value if key == "step" else value[run]
        return tensors

    def restore(self, states: Sequence[dict[str, Tensor]], place: Json) -> None:
        """Restore all runs to where they were saved."""
        self.stage, self.step = place["stage"], place["stage_step"]
        self.done, self.seconds = place["step"], place["seconds"]
        for name, parameter in self.parameters.items():
            with torch.no_grad():
                parameter.copy_(torch.stack([state[name] for state in states]))
            if f"{name}.step" in states[0]:  # a layer that got a gradient
                moments = {key: torch.stack([s[f"{name}.{key}"] for s in states]) for key in ("exp_avg", "exp_avg_sq")}
                saved = {"step": states[0][f"{name}.step"], **moments}
                self.optimizer.state[parameter] = {key: value.to(self.device) for key, value in saved.items()}


def make_model(options: TrainOptions, seeds: Sequence[int]) -> Model:
    """Return the untrained model that the options ask for, in level form if it is the paper's."""
    dtype: torch.dtype = getattr(torch, options.dtype)
    if options.curriculum == "cot":
        return CoTTransformer(
            options.n, options.k, get_link(options.link, options.arity, options.modulus), (len(seeds),), dtype
        )
    if options.as_in_paper:
        return LevelTransformer(
            options.n, options.k, get_link(options.link, options.arity, options.modulus), (len(seeds),), dtype
        )
    return RelaxedTransformer(options, seeds, dtype)


def total_steps(options: TrainOptions) -> int:
    """Return the number of updates of a run. If accuracy ends the stages, every curriculum gets as many as Log-ICoT."""
    levels = Levels.of(options)
    stages = levels.L if options.advance == "accuracy" else len(parity_stages(levels, options.schedule()))
    return stages * options.steps


def named_parameters(model: Model) -> dict[str, nn.Parameter]:
    """Return all learned tensors, by the contract's names."""
    if isinstance(model, CoTTransformer):
        return {"W": model.W}
    if isinstance(model, RelaxedTransformer):
        return model.named_weights()
    return cast(dict[str, nn.Parameter], {f"W{layer + 1}": W for layer, W in enumerate(model.W)})
