r"""The model with parts learned together with W that the paper fixes: gates, values, output or link.

| name          | paper  | what the paper fixes, and what is learned here                          | where        |
| ------------- | ------ | ----------------------------------------------------------------------- | ------------ |
| LearnedGates  | g^(ℓ)  | prescribed gates: here \(g = \sigma(a)\), one per layer and position    | Eq. (gating) |
| InputGates    | g^(ℓ)  | the same: here \(g = \sigma(a + u x + v y)\), state x, update y (GTrXL) | section 3.2  |
| value         | W_V    | values unscaled: here one number v per layer, \(\phi(v\,H A)\)          | section 2.2  |
| read … output | W_O, Ψ | the block shift: here S streams, read, written and mixed by weights     | section 2.2  |
| mlp           | φ      | a fixed link: here a network, number to number, with one hidden layer   | Definition 2 |

On the stream of Definition 3, a linear gate sees the one-hot position and the values. That gives one bias per
position and one weight each for the state and the update, as much as GTrXL's gate has.

Every part has one tensor per layer, so that a layer that does not run gets no gradient. All have leading run
dimensions.
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
"""Number of streams of ``output="streams"``; hyper-connections usually have four."""
HIDDEN: Final = 32
"""Number of hidden units of the network that replaces φ."""
SPREAD: Final = 4.0
"""Largest initial steepness and offset of its units. At first z ~ 1/√n, and a unit linear there sees no product."""
RIDGE: Final = 1e-3
"""Ridge penalty on the weights of a network that is fitted to φ."""


class LearnedGates(nn.Module):
    """One trained gate per layer and position. With a negative initial bias, positions first keep their state."""

    def __init__(self, levels: Levels, runs: Sequence[int], bias: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.logits = nn.ParameterList(torch.full((*runs, levels.T), bias, dtype=dtype) for _ in range(levels.L))

    def forward(self, layer: int, H: Float[Tensor, "*runs B T"], Y: Float[Tensor, "*runs B T"]) -> Tensor:
        """Return the gates of a layer; they do not depend on its states."""
        return at_layer(self.logits, layer).sigmoid().unsqueeze(-2)


class InputGates(LearnedGates):
    """Trained gates that also depend on the state and on its update."""

    def __init__(self, levels: Levels, runs: Sequence[int], bias: float, dtype: torch.dtype) -> None:
        super().__init__(levels, runs, bias, dtype)
        self.state = nn.ParameterList(torch.zeros(*runs, dtype=dtype) for _ in range(levels.L))
        self.update = nn.ParameterList(torch.zeros(*runs, dtype=dtype) for _ in range(levels.L))

    def forward(self, layer: int, H: Float[Tensor, "*runs B T"], Y: Float[Tensor, "*runs B T"]) -> Tensor:
        """Return the gates of a layer at these states and updates."""
        u, v = (at_layer(scale, layer)[..., None, None] for scale in (self.state, self.update))
        return (at_layer(self.logits, layer).unsqueeze(-2) + u * H + v * Y).sigmoid()


class RelaxedTransformer(BlockTransformer):
    """Block form in which the options choose the learned parts. With no learned part it equals block form.

    Args:
        options: n, k, mask, gates and the parts that are learned.
        seeds: one per run; they decide the random initial values (of the network in place of φ).
        dtype: of all weights.
    """

    def __init__(self, options: ParityModelOptions, seeds: Sequence[int], dtype: torch.dtype = torch.float32) -> None:
        levels, runs = Levels.of(options), (len(seeds),)
        gates = options.gates
        if gates in ("learned", "input"):
            gates = {"learned": LearnedGates, "input": InputGates}[gates](levels, runs, options.gate_bias, dtype)
        link = COSINE if options.has_network else get_link(options.link, options.arity, options.modulus)
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
        """Sum over positions of the learned gates of each layer in the latest pass, averaged over samples."""

    def gate(self, layer: int, H: Float[Tensor, "*runs B T"], Y: Float[Tensor, "*runs B T"]) -> Tensor:
        """Return the gates of a layer, and record learned ones in ``opened``."""
        g = super().gate(layer, H, Y)
        if isinstance(self.gates, LearnedGates):
            if layer == 0:
                self.opened = {}
            self.opened[layer] = g.mean(dim=-2).sum(dim=-1)
        return g

    def update(self, layer: int, H: Float[Tensor, "*runs B T"]) -> Float[Tensor, "*runs B T"]:
        """Return φ, or the network in its place, of what a layer reads."""
        z = H @ self.attention(layer)
        if len(self.value):
            z = at_layer(self.value, layer)[..., None, None] * z
        return self.mlp[layer](z) if len(self.mlp) else self.link(z)

    def readouts(self, D: Float[Tensor, "*data B T"], layers: int | None = None) -> list[Float[Tensor, "*runs B T"]]:
        """Return the readouts before the first layer and after each of the first ``layers`` layers (default all)."""
        if not self.streams:
            return super().readouts(D, layers)
        check_width(D, self.levels)
        X = D.unsqueeze(-3).expand(*D.shape[:-2], self.streams, *D.shape[-2:])  # every stream starts as the input
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
        """Return the learned gates of every layer and position, at states and updates 0; None if they are fixed."""
        if not isinstance(self.gates, LearnedGates):
            return None
        return torch.stack([at_layer(self.gates.logits, layer).sigmoid() for layer in range(self.levels.L)], dim=-2)

    def named_weights(self) -> dict[str, nn.Parameter]:
        """Return all learned tensors, by the contract's names."""
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
    """A network from a number z to a weighted sum of tanh(steepness · z + offset), drawn from each run's seed.

    With ``fitted``, the weights of the sum fit φ on [−1, 1] by least squares, with a ridge that keeps them small.
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
        """Apply each run's network to every entry."""
        steepness, offset, weight = (p[:, None, None] for p in (self.steepness, self.offset, self.weight))
        units = torch.tanh(steepness * z.unsqueeze(-1) + offset)
        return (weight * units).sum(dim=-1) + self.bias[:, None, None]


def _layers(learned: bool, levels: Levels, start: Tensor) -> nn.ParameterList:
    return nn.ParameterList(start.clone() for _ in range(levels.L if learned else 0))


def _combined(weights: Float[Tensor, "*runs S"], X: Float[Tensor, "*runs S B T"]) -> Float[Tensor, "*runs B T"]:
    return (weights[..., None, None] * X).sum(dim=-3)
