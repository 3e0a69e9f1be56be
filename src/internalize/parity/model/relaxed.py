r"""The model with one of its idealisations lifted: gates, values, output or link are learned together with W.

| name          | paper   | what it departs from                                                          | where        |
| ------------- | ------- | ----------------------------------------------------------------------------- | ------------ |
| LearnedGates  | g^(ℓ)   | prescribed gates: here \(g = \sigma(a)\), one a layer and position            | Eq. (gating) |
| InputGates    | g^(ℓ)   | the same, and \(g = \sigma(a + u x + v y)\) with state x and update y (GTrXL) | section 3.2  |
| value         | W_V     | values as they are: here a number a layer, \(\phi(v\,H A)\)                   | section 2.2  |
| read … output | W_O, Ψ  | the block shift: here S streams, read, written, mixed and read out by weights | section 2.2  |
| mlp           | φ       | a fixed link: here a network of one hidden layer, number in, number out       | Definition 2 |

On the stream of Definition 3 a linear gate sees the one-hot position and the values, which makes one bias for each position
and a weight for the state and for the update: no less than GTrXL's gate has.

Everything has one tensor a layer, so that a layer which does not run gets no gradient, and leading dimensions of runs.
"""

from collections.abc import Sequence
from typing import Final, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from internalize.parity.model.link import COSINE, get_link
from internalize.parity.model.transformer import BlockTransformer, at_layer, check_width
from internalize.parity.options import ParityModelOptions
from internalize.parity.task.tree import Levels
from internalize.random_words import words

STREAMS: Final = 4
"""Streams of ``output="streams"``; hyper-connections are usually given four."""
HIDDEN: Final = 32
"""Hidden units of the network in place of φ."""
SPREAD: Final = 4.0
"""How steep its units are at the start. At uniform attention z is about 1/√n, and a unit that is straight there sees no product."""

RIDGE: Final = 1e-3
"""Price of large weights in a network that is fitted to φ."""


class LearnedGates(nn.Module):
    """Gates of every layer and position, from a bias that carries first."""

    def __init__(self, levels: Levels, runs: Sequence[int], bias: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.logits = nn.ParameterList(torch.full((*runs, levels.T), bias, dtype=dtype) for _ in range(levels.L))

    def forward(self, layer: int, H: Float[Tensor, "*runs B T"], Y: Float[Tensor, "*runs B T"]) -> Tensor:
        """Gates of a layer, whatever its states."""
        return at_layer(self.logits, layer).sigmoid().unsqueeze(-2)


class InputGates(LearnedGates):
    """Gates that also look at the state and at its update."""

    def __init__(self, levels: Levels, runs: Sequence[int], bias: float, dtype: torch.dtype) -> None:
        super().__init__(levels, runs, bias, dtype)
        self.state = nn.ParameterList(torch.zeros(*runs, dtype=dtype) for _ in range(levels.L))
        self.update = nn.ParameterList(torch.zeros(*runs, dtype=dtype) for _ in range(levels.L))

    def forward(self, layer: int, H: Float[Tensor, "*runs B T"], Y: Float[Tensor, "*runs B T"]) -> Tensor:
        """Gates of a layer at these states and updates."""
        u, v = (at_layer(scale, layer)[..., None, None] for scale in (self.state, self.update))
        return (at_layer(self.logits, layer).unsqueeze(-2) + u * H + v * Y).sigmoid()


class RelaxedTransformer(BlockTransformer):
    """Block form with any of its parts learned, as the options say; with none of them, block form itself.

    Args:
        options: n, k, mask, gates and the parts that are learned.
        seeds: one a run; they decide what begins at random (the network in place of φ).
        dtype: of all weights.
    """

    def __init__(self, options: ParityModelOptions, seeds: Sequence[int], dtype: torch.dtype = torch.float32) -> None:
        levels, runs = Levels(options.n, options.k), (len(seeds),)
        gates = options.gates
        if gates in ("learned", "input"):
            gates = {"learned": LearnedGates, "input": InputGates}[gates](levels, runs, options.gate_bias, dtype)
        link = COSINE if options.has_network else get_link(options.link)
        super().__init__(options.n, options.k, options.mask, gates, link, runs, dtype)  # pyright: ignore[reportArgumentType]
        self.value = _layers(options.value == "learned", levels, torch.ones(*runs, dtype=dtype))
        self.mlp = nn.ModuleList(
            _Network(seeds, layer, dtype, fitted=options.link == "mlp-fitted")
            for layer in range(levels.L if options.has_network else 0)
        )
        self.streams = {"shift": 0, "residual": 1, "streams": STREAMS}[options.output]
        S, learned = self.streams, self.streams > 0
        ones, identity = torch.ones(*runs, S, dtype=dtype), torch.eye(S, dtype=dtype).expand(*runs, S, S)
        self.read = _layers(learned, levels, ones / max(S, 1))
        self.write = _layers(learned, levels, ones)
        self.mix = _layers(learned, levels, identity)
        self.output = _layers(learned, levels, ones / max(S, 1))
        self.opened: dict[int, Float[Tensor, " runs"]] = {}
        """How far the learned gates of each layer were open in the latest pass: their sum over positions, mean over samples."""

    def gate(self, layer: int, H: Float[Tensor, "*runs B T"], Y: Float[Tensor, "*runs B T"]) -> Tensor:
        """Gates of a layer; learned ones are noted in ``opened``."""
        g = super().gate(layer, H, Y)
        if isinstance(self.gates, LearnedGates):
            if layer == 0:
                self.opened = {}
            self.opened[layer] = g.mean(dim=-2).sum(dim=-1)
        return g

    def update(self, layer: int, H: Float[Tensor, "*runs B T"]) -> Float[Tensor, "*runs B T"]:
        """φ, or the network in its place, of what a layer reads."""
        z = H @ self.attention(layer)
        if len(self.value):
            z = at_layer(self.value, layer)[..., None, None] * z
        return self.mlp[layer](z) if len(self.mlp) else self.link(z)

    def readouts(self, D: Float[Tensor, "*data B T"], layers: int | None = None) -> list[Float[Tensor, "*runs B T"]]:
        """Readouts before the first layer and after each of the first ``layers`` (default all)."""
        if not self.streams:
            return super().readouts(D, layers)
        check_width(D, self.levels)
        X = D.unsqueeze(-3).expand(*D.shape[:-2], self.streams, *D.shape[-2:])  # every stream begins as the input
        found = [D]
        for layer in range(self.levels.L if layers is None else layers):
            H = _combined(at_layer(self.read, layer), X)
            Y = self.update(layer, H)
            written = (self.gate(layer, H, Y) * Y).unsqueeze(-3)
            mixed = torch.einsum("...ij,...jbt->...ibt", at_layer(self.mix, layer), X)
            X = mixed + at_layer(self.write, layer)[..., None, None] * written
            found.append(_combined(at_layer(self.output, layer), X))
        return found

    def gate_values(self) -> Float[Tensor, "runs L T"] | None:
        """The learned gates of every layer and position, at states and updates 0; None if they are fixed."""
        if not isinstance(self.gates, LearnedGates):
            return None
        return torch.stack([at_layer(self.gates.logits, layer).sigmoid() for layer in range(self.levels.L)], dim=-2)

    def named_weights(self) -> dict[str, nn.Parameter]:
        """All that is learned, by the contract's names."""
        lists: dict[str, nn.ParameterList] = {"value": self.value, "read": self.read, "write": self.write}
        lists |= {"mix": self.mix, "output": self.output}
        if isinstance(self.gates, LearnedGates):
            lists["gate"] = self.gates.logits
        if isinstance(self.gates, InputGates):
            lists |= {"gate_state": self.gates.state, "gate_update": self.gates.update}
        found = {f"W{layer + 1}_full": W for layer, W in enumerate(self.W)}
        found |= {f"{name}{layer + 1}": p for name, own in lists.items() for layer, p in enumerate(own)}
        for layer, network in enumerate(self.mlp):
            found |= {f"mlp{layer + 1}_{name}": p for name, p in network.named_parameters()}
        return cast(dict[str, nn.Parameter], found)


class _Network(nn.Module):
    """Number in, number out: a weighted sum of tanh(steepness · z + offset), drawn from each run's seed.

    ``fitted``: the weights of the sum are those closest to φ on [−1, 1], with a ridge that keeps them small.
    """

    def __init__(self, seeds: Sequence[int], layer: int, dtype: torch.dtype, *, fitted: bool) -> None:
        super().__init__()
        count = 3 * HIDDEN
        integers = np.stack([words(seed, "init", layer * count, count).astype("<i8") for seed in seeds])
        drawn = (torch.from_numpy(integers) * 2.0**-63).view(len(seeds), 3, HIDDEN)  # between −1 and 1
        steepness, offset = SPREAD * drawn[:, 0], SPREAD * drawn[:, 1]
        weight, bias = drawn[:, 2] / HIDDEN**0.5, torch.zeros(len(seeds), dtype=torch.float64)
        if fitted:
            z = torch.linspace(-1, 1, 201, dtype=torch.float64)
            units = torch.tanh(steepness.unsqueeze(1) * z.unsqueeze(1) + offset.unsqueeze(1))
            units = torch.cat([units, torch.ones(len(seeds), len(z), 1, dtype=torch.float64)], dim=-1)
            gram = units.mT @ units + RIDGE * torch.eye(HIDDEN + 1, dtype=torch.float64)
            found = cast(Tensor, torch.linalg.solve(gram, units.mT @ COSINE(z).unsqueeze(1)))[..., 0]
            weight, bias = found[:, :-1], found[:, -1]
        self.steepness, self.offset = nn.Parameter(steepness.to(dtype)), nn.Parameter(offset.to(dtype))
        self.weight, self.bias = nn.Parameter(weight.to(dtype)), nn.Parameter(bias.to(dtype))

    def forward(self, z: Float[Tensor, "runs B T"]) -> Float[Tensor, "runs B T"]:
        """Entry by entry."""
        steepness, offset, weight = (p[:, None, None] for p in (self.steepness, self.offset, self.weight))
        units = torch.tanh(steepness * z.unsqueeze(-1) + offset)
        return (weight * units).sum(dim=-1) + self.bias[:, None, None]


def _layers(learned: bool, levels: Levels, start: Tensor) -> nn.ParameterList:
    return nn.ParameterList(start.clone() for _ in range(levels.L if learned else 0))


def _combined(weights: Float[Tensor, "*runs S"], X: Float[Tensor, "*runs S B T"]) -> Float[Tensor, "*runs B T"]:
    return (weights[..., None, None] * X).sum(dim=-3)
