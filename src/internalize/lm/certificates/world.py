"""What the certificates are about: the models that a run on parity has kept, its tree, and where the nodes are.

| name   | paper    | meaning                                                                                              |
| ------ | -------- | ---------------------------------------------------------------------------------------------------- |
| node   | node     | a step of the chain, or the answer, which is the root and the last node                              |
| level  | ℓ        | of a node: 1 above bits, H = log2 k at the root                                                      |
| usable | layer ℓ  | the layers that a node may use, ℓ … L − (H − ℓ) of L: one is left for every level below and above it |
| place  | position | of a bit its own; of a hidden node the one that predicts it, its slot, and that of its last bit      |
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
"""Largest share of questions that a reading may get wrong: what is solved in this project is right in 99 %."""


@dataclass(frozen=True)
class LmWorld:
    """The models of a run on parity, its tree, and where the nodes are. The root is the last node."""

    kept: ProbedModels
    task: Parity

    @classmethod
    def of_folder(
        cls, folder: Path, examples: int = 2048, *, seed: int = 0, device: str = "cpu", say: Say = lambda line: None
    ) -> "LmWorld":
        """The world of a run of `lm train`, with the stages that it has kept, or of a model that one wrote."""
        run = our_run(folder, "lm certify")
        if run and not (run.path / "model").exists():
            raise InputError(f"{folder} has no model yet: its training is not finished; continue it with --resume")
        where = folder if run is None or kept_stages(run) else run.path / "model"
        kept = open_probed_models(where, examples=examples, seed=seed, device=device, say=say)
        task = get_task(kept.data, kept.seed) if is_task(kept.data) else None
        if not isinstance(task, Parity):
            raise InputError(f"data={kept.data!r} is not parity:n=…,k=…, and other data have no tree to certify")
        world = cls(kept, task)
        _ = world.places  # what has none is refused here, not in the midst of the work
        return world

    @cached_property
    def levels(self) -> list[int]:
        """Of every node."""
        return [*self.task.levels, self.task.k.bit_length() - 1]

    @cached_property
    def sequences(self) -> Sequences:
        """What the model is given with everything hidden; a cell is a node."""
        return sequences_of(self.kept, Budget.at(self.kept.stages, self.kept.stages.count))

    @cached_property
    def places(self) -> dict[int, tuple[int, ...]]:
        """Of every child, bits from 0 and nodes after them: where it may be looked at."""
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
        """Child, place and layer, from the embedding on, where a probe reads the child. A bit is always where it stands."""
        found: set[tuple[int, int, int]] = set()
        for child, places in self.places.items():
            for place, layer in product(places, range(self.layers)):
                node, states = child - self.task.n, self.readings.states[layer][:, place]
                if node < 0 or self.probe(states, self.sequences.cells.tokens[:, node])[1] <= ERROR:
                    found.add((child, place, layer))
        return found

    @cached_property
    def model(self) -> Any:
        """That which the run ended with."""
        return self.kept.model(self.kept.final)

    @cached_property
    def readings(self) -> Readings:
        """Its states with everything hidden."""
        return read_states(self.model, self.sequences)

    @cached_property
    def attention(self) -> list[Tensor]:
        """Of its layers: nodes × heads × keys."""
        return mean_attention(self.model, self.sequences)

    @cached_property
    def fitted(self) -> Tensor:
        """Which questions fit the probes; the others judge them."""
        return fitting_half(self.kept.seed, len(self.kept.examples))

    @property
    def layers(self) -> int:
        """L, the embedding not counted."""
        return len(self.readings.states) - 1

    def usable(self, node: int) -> range:
        """The layers, from 1, that a node may use: its children's levels come before, its parents' levels after."""
        return range(self.levels[node], self.layers - (self.levels[-1] - self.levels[node]) + 1)

    def leaves(self, node: int) -> frozenset[int]:
        """The bits whose parity a node is."""
        n = self.task.n
        below = ({child} if child < n else self.leaves(child - n) for child in self.task.children[node])
        return frozenset(bit for bits in below for bit in bits)

    @property
    def shown_chain_reason(self) -> str | None:
        """That the last stage shows some of the chain, if it does: nothing is said about such a model."""
        stages = self.kept.stages
        shown = len(stages.count_slots) - 1 - stages.hidden[-1]
        return f"the last stage of {stages.options.method} shows {shown} steps of the chain" if shown > 0 else None

    @property
    def not_applicable_reason(self) -> str | None:
        """Why nothing is said about the nodes of this model, if there is a reason."""
        shallow = f"{self.layers} layers are fewer than the {self.levels[-1]} levels of the tree"
        return self.shown_chain_reason or (shallow if self.layers < self.levels[-1] else None)

    def probe(self, states: Tensor, labels: Tensor) -> tuple[Discriminant, float]:
        """A probe of labels, one a question, and its error on the questions that it was not fitted to."""
        probe = fit(states[self.fitted], labels[self.fitted])
        return probe, 1 - probe.accuracy(states[~self.fitted], labels[~self.fitted])

    def name(self, node: int) -> str:
        """For messages."""
        return "the answer" if node == self.task.k - 2 else f"step {node + 1} (level {self.levels[node]})"
