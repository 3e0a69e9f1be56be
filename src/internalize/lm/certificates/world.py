"""The world of the certificates: the models that a run on parity has kept, its tree, and the places of the nodes.

| name   | paper    | meaning                                                                                         |
| ------ | -------- | ----------------------------------------------------------------------------------------------- |
| node   | node     | a step of the chain, or the answer, which is the root and the last node                         |
| level  | ℓ        | level of a node: 1 above bits, H = log2 k at the root                                           |
| usable | layer ℓ  | the layers that a node may use: ℓ … L − (H − ℓ) of L. One is left for each lower and each higher |
|        |          | level                                                                                           |
| place  | position | of a bit: its position. Of a hidden node: its slot, the position that predicts it, and that of   |
|        |          | its last bit                                                                                    |
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from internalize.errors import InputError
from internalize.lm.data.readers import Say
from internalize.lm.data.tasks import get_task, is_task
from internalize.lm.data.tasks.parity import Parity
from internalize.lm.evaluation.evaluate import our_run
from internalize.lm.probe.discriminant import Discriminant, fit
from internalize.lm.probe.gradient_signal import mean_attention
from internalize.lm.probe.probe import child_positions, fitting_half, sequences_of
from internalize.lm.probe.probed_models import ProbedModels, open_probed_models
from internalize.lm.probe.states import Budget, Readings, Sequences, read_states
from internalize.lm.training.train import kept_stages

ERROR: Final = 0.01
"""Largest error of a probe or of the answers. In this project, solved means that 99 % are right."""


@dataclass(frozen=True)
class LmWorld:
    """The models of a run on parity, its tree, and the places of the nodes. The root is the last node."""

    kept: ProbedModels
    task: Parity

    @classmethod
    def of_folder(
        cls, folder: Path, examples: int = 2048, *, seed: int = 0, device: str = "cpu", say: Say = lambda line: None
    ) -> "LmWorld":
        """Open a run of `lm train`, with the stages that it has kept, or a model that a run wrote."""
        run = our_run(folder, "lm certify")
        if run and not (run.path / "model").exists():
            raise InputError(f"{folder} has no model yet: its training is not finished; continue it with --resume")
        where = folder if run is None or kept_stages(run) else run.path / "model"
        kept = open_probed_models(where, examples=examples, seed=seed, device=device, say=say)
        task = get_task(kept.data, kept.seed) if is_task(kept.data) else None
        if not isinstance(task, Parity) or task.chain != "tree":
            raise InputError(f"data={kept.data!r} is not parity:n=…,k=…, and other data have no tree to certify")
        world = cls(kept, task)
        _ = world.places  # refuses nodes without places now, not after the first measurements
        return world

    @cached_property
    def levels(self) -> list[int]:
        """The level of each node."""
        return [*self.task.levels, self.task.k.bit_length() - 1]

    @cached_property
    def sequences(self) -> Sequences:
        """The model's input with everything hidden. Each cell is a node."""
        return sequences_of(self.kept, Budget.at(self.kept.stages, self.kept.stages.count))

    @cached_property
    def places(self) -> dict[int, tuple[int, ...]]:
        """The places of each child. Children are bits, numbered from 0, and then nodes."""
        found: dict[int, tuple[int, ...]] = {}
        by_node, n = child_positions(self.kept, self.sequences), self.task.n
        for children, places in zip(self.task.children, by_node, strict=False):
            found |= dict(zip(children, places or (), strict=False))
        if len(found) != self.task.k + self.task.k - 2:
            raise InputError(f"{self.kept.data}: a bit or a step is more than one token, so nodes have no places")
        begins = self.kept.text.begins
        return {c: own if c < n else (*own, begins + max(self.leaves(c - n))) for c, own in found.items()}

    @cached_property
    def held(self) -> set[tuple[int, int, int]]:
        """Triples (child, place, layer) at which a probe reads the child. Layer 0 is the embedding. Bits count always."""
        found: set[tuple[int, int, int]] = set()
        for child, places in self.places.items():
            for place, layer in product(places, range(self.layers)):
                node, states = child - self.task.n, self.readings.states[layer][:, place]
                if node < 0 or self.probe(states, self.sequences.cells.tokens[:, node])[1] <= ERROR:
                    found.add((child, place, layer))
        return found

    @cached_property
    def model(self) -> Any:
        """The final model of the run."""
        return self.kept.model(self.kept.final)

    @cached_property
    def readings(self) -> Readings:
        """The model's states with everything hidden."""
        return read_states(self.model, self.sequences)

    @cached_property
    def attention(self) -> list[Tensor]:
        """The mean attention of each layer, as nodes × heads × keys."""
        return mean_attention(self.model, self.sequences)

    @cached_property
    def fitted(self) -> Tensor:
        """A mask of the questions that fit the probes; the others judge them."""
        return fitting_half(self.kept.seed, len(self.kept.examples))

    @property
    def layers(self) -> int:
        """The number of layers L, without the embedding."""
        return len(self.readings.states) - 1

    def usable(self, node: int) -> range:
        """Return the layers, from 1, that a node may use. One layer is left for each lower and each higher level."""
        return range(self.levels[node], self.layers - (self.levels[-1] - self.levels[node]) + 1)

    def leaves(self, node: int) -> frozenset[int]:
        """Return the bits whose parity the node is."""
        n = self.task.n
        below = ({child} if child < n else self.leaves(child - n) for child in self.task.children[node])
        return frozenset(bit for bits in below for bit in bits)

    @property
    def shown_chain_reason(self) -> str | None:
        """A message that the last stage shows a part of the chain, or None. Statements do not apply to such a model."""
        stages = self.kept.stages
        shown = len(stages.count_slots) - 1 - stages.hidden[-1]
        return f"the last stage of {stages.options.method} shows {shown} steps of the chain" if shown > 0 else None

    @property
    def not_applicable_reason(self) -> str | None:
        """The reason why statements about nodes do not apply to this model, or None."""
        shallow = f"{self.layers} layers are fewer than the {self.levels[-1]} levels of the tree"
        return self.shown_chain_reason or (shallow if self.layers < self.levels[-1] else None)

    def probe(self, states: Tensor, labels: Tensor) -> tuple[Discriminant, float]:
        """Return a probe of labels, one per question, and its error on the questions that it was not fitted to."""
        probe = fit(states[self.fitted], labels[self.fitted])
        return probe, 1 - probe.accuracy(states[~self.fitted], labels[~self.fitted])

    def name(self, node: int) -> str:
        """Return the name of a node, for messages."""
        return "the answer" if node == self.task.k - 2 else f"step {node + 1} (level {self.levels[node]})"
