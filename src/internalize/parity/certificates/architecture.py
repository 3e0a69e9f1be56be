r"""The statements about the model: mask, link, gates, propagation of states, loss and stages.

| name        | paper                  | meaning                                                | where          |
| ----------- | ---------------------- | ------------------------------------------------------ | -------------- |
| mask        | C                      | which keys a query sees                                | Definition 1   |
| link        | φ                      | the conditions on the link function                    | Definition 2   |
| gating      | g_m^(ℓ)                | layer ℓ is open only at level ℓ + 1                    | Eq. (gating)   |
| kept_inputs | x^(ℓ)_m, m ≤ n         | the input bits pass through every layer unchanged      | section 3.2    |
| propagation | x^(ℓ)_{β,[ℓ+1]}        | a position keeps its token until its level is written  | Lemma "Gated…" |
| derivative  | ∂x^(ℓ)_β/∂w^(ℓ')_{j,m} | a state depends only on layers up to its writing layer | Cor. "Frozen…" |
| curriculum  | stage t                | which positions are padded, supervised and read out    | section 3.1    |
| loss        | L^(t)                  | squared error over the supervised positions            | Eq. (loss-t)   |
| evaluation  | D_test                 | the answer is computed from the bits alone             | section 3.1    |

Lemma and corollary are about all weights, so they are checked with random weights, in float64. The claims are
equalities, so the bound is rounding.
"""

from typing import Final

import torch
from torch import Tensor

from internalize.certificate import Finding, not_applicable, statement
from internalize.parity.certificates.world import World
from internalize.parity.model.link import link_faults

ROUNDING: Final = 1e-12
"""Largest difference of two float64 computations of one number of size 1, after L ≤ 20 layers of at most 10^4 terms."""


@statement("Definition 1", "a node sees exactly the positions of lower levels")
def mask(world: World) -> Finding:
    r"""Check Definition 1: \(C_{j,m} = 0\) iff j < m for an input m, and iff \(j \le n_{h[m]-1}\) for a node m.

    Measured: the number of pairs (key, query) at which the world's mask differs from the definition.
    """
    levels = world.levels
    position = torch.arange(levels.T)
    end = torch.tensor([0, *levels.level_end])[[levels.level_of(m) for m in range(levels.T)]]
    wanted = torch.where(position < levels.n, position.unsqueeze(1) < position, position.unsqueeze(1) < end)
    return Finding(float((wanted != world.visible).sum()), 0.0)


@statement("Definition 1", "attention is a softmax over the keys of each query")
def softmax(world: World) -> Finding:
    """Check that attention is a column-wise softmax (Definition 1), so weights of a query that sees a key sum to 1.

    Measured, with random weights: the largest deviation of a column's sum from 1, and of an entry from the softmax.
    """
    W = world.generic(1.0)[0]
    A = world.attention(W)
    sees = world.visible.any(dim=0)
    sums = (A.sum(dim=0) - sees.double()).abs().max()
    expected = torch.where(world.visible, W, -torch.inf)[:, sees]
    expected = (expected - expected.amax(dim=0)).exp()
    return Finding(max(float(sums), float((A[:, sees] - expected / expected.sum(dim=0)).abs().max())), ROUNDING)


@statement("Definition 2", "φ meets the conditions of a link function")
def link(world: World) -> Finding:
    """Check Definition 2: φ even, φ(0) = −1, φ(±1) = 1, φ′(0) = φ′(±1) = 0, c > 0. Measured: conditions broken."""
    faults = link_faults(world.link)
    return Finding(float(len(faults)), 0.0, "; ".join(faults) or None)


@statement("Eq. (gating)", "layer ℓ is open only at level ℓ + 1")
def gating(world: World) -> Finding:
    r"""Check that \(g_m^{(\ell)}\) is 1 iff \(n_\ell < m \le n_{\ell+1}\), else 0. Measured: the largest difference."""
    levels = world.levels
    level = torch.tensor([levels.level_of(m) for m in range(levels.T)])
    wanted = (level == torch.arange(1, levels.L + 1).unsqueeze(1)).double()
    return Finding(float((world.gates - wanted).abs().max()), ROUNDING)  # a learned gate of 1e-20 counts as closed


@statement("section 3.2", "gated connections keep the input bits: no layer's states of the inputs collapse")
def kept_inputs(world: World) -> Finding:
    """Check that gated connections keep the input bits (section 3.2), which would otherwise collapse by Lemma 1.

    Measured: over all layers, the largest difference of an input position's state from its bit in the inference
    input, with the world's weights and with weights 0. The reason tells how close to −1 the states are on average,
    at the layer where they are closest. If the bits are kept, it tells how close one layer with open gates and
    uniform attention brings them.
    """
    bits, n, worst = world.test_bits[:1024], world.tree.n, 0.0
    start = [torch.zeros_like(w) for w in world.full()]
    distances: list[tuple[float, int]] = []
    for W in (world.full(), start):
        for layer, X in enumerate(world.streams(world.inference_input(bits), W)):
            states = X[layer][:, :n]
            worst = worse(worst, states - bits)
            distances.append((float((states + 1).abs().mean()), layer))
    if not worst <= ROUNDING:
        distance, layer = min(distances)
        return Finding(
            worst, ROUNDING, f"after layer {layer} the inputs' states are within {distance:.2g} of −1 on average"
        )
    collapsed = world.link(world.inference_input(bits) @ world.attention(start[0]))[:, :n]
    distance = float((collapsed + 1).abs().mean())
    reason = f"with every gate open, uniform attention would bring the inputs within {distance:.2g} of −1 on average"
    return Finding(worst, ROUNDING, reason)


@statement(
    'Lemma "Gated Connection Propagation"', "a state is its token until its level is written and φ(ẑ) from then on"
)
def propagation(world: World) -> Finding:
    r"""Check Lemma "Gated Connection Propagation": a state is the token until its level is written, and then φ(ẑ).

    \[ x^{(\ell)}_{\beta,[\ell+1]} = x^{(0)}_{\beta,[1]} \text{ if } h[\beta] = 1 \text{ or } \ell < h[\beta] - 1,
       \quad \varphi(\hat z^{(h[\beta]-1)}_{\beta,[h[\beta]-1]}) \text{ otherwise.} \]
    Also check what section 2.2 concludes from the block shift: the readout of stage ℓ in X^(L) is what layer ℓ wrote.
    Measured: the largest difference of a state or readout from the claim, over all stages' inputs.
    """
    levels, W = world.levels, world.generic()
    sequence = world.sequence(world.some_bits(8))
    worst = 0.0
    for stage in world.stages:
        D = world.stage_input(sequence, stage)
        X = world.streams(D, W)
        claimed = D.clone()
        for layer in range(levels.L + 1):
            if layer:
                nodes = levels.span(layer)
                z = X[layer - 1][layer - 1] @ world.attention(W[layer - 1])[:, nodes]
                claimed[:, nodes] = world.link(z)
            worst = worse(worst, X[layer][layer] - claimed)
            worst = worse(worst, torch.einsum("i,ibt->bt", world.readout[layer], X[-1]) - claimed)
    return Finding(worst, ROUNDING)


@statement('Corollary "Frozen Derivative"', "a state depends on no weight but those up to its writing layer")
def derivative(world: World) -> Finding:
    r"""Check Corollary "Frozen Derivative": \(\partial x^{(\ell)}_{\beta,[\ell+1]} / \partial w^{(\ell')}_{j,m}\) is that of
    \(\varphi(\hat z^{(h[\beta]-1)})\) if layers up to ℓ have written β and ℓ' is not above the writing layer, else 0.

    Measured: the largest difference, over every ℓ, ℓ', j and m and over positions of every level (all of them if few).
    """
    levels = world.levels
    W = [w.requires_grad_() for w in world.generic(1.0)]
    sequence = world.sequence(world.some_bits(3))
    X = world.streams(world.stage_input(sequence, world.stages[0]), W)
    nothing = [torch.zeros_like(w) for w in W]
    worst = 0.0
    for beta in positions(world):
        writing = levels.level_of(beta)  # layer h[β] − 1 of the paper writes it; 0: none
        claimed = nothing
        if writing:
            A = world.attention(W[writing - 1])
            claimed = gradients(world.link(X[writing - 1][writing - 1] @ A[:, beta]).sum(), W)
            claimed = [g if layer < writing else torch.zeros_like(g) for layer, g in enumerate(claimed)]
        for layer in range(levels.L + 1):
            found = gradients(X[layer][layer][:, beta].sum(), W)
            for f, c in zip(found, claimed if writing and layer >= writing else nothing, strict=True):
                worst = worse(worst, f - c)
    return Finding(worst, ROUNDING)


@statement("section 3.1", "stage t pads nodes up to n_t, supervises those above, reads layer t")
def curriculum(world: World) -> Finding:
    """Check section 3.1: stage t of log2 k pads the nodes up to n_t, takes the loss on those above and reads layer t.

    Measured: the number of stages that differ, are missing or are superfluous.
    """
    if world.curriculum != "log-icot":
        return not_applicable(f"trained by {world.curriculum}; the statement is about Log-ICoT")
    levels = world.levels
    wanted = [
        (tuple(range(levels.n, end)), tuple(range(end, levels.T)), stage + 1)
        for stage, end in enumerate(levels.level_end[: levels.L])
    ]
    found = [(stage.hidden, stage.supervised, stage.layers) for stage in world.stages]
    wrong = sum(f != w for f, w in zip(found, wanted, strict=False)) + abs(len(found) - len(wanted))
    return Finding(float(wrong), 0.0)


@statement("Eq. (loss-t)", "the loss is the squared error over positions above n_t")
def loss(world: World) -> Finding:
    r"""Check Eq. (loss-t): \(\mathcal L^{(t)} = \frac1{2B} \sum_{m > n_t} \lVert f_m - b_m \rVert^2\).

    Measured: the largest relative difference of the world's loss from the explicit sum, on arbitrary outputs.
    """
    if world.curriculum != "log-icot":
        return not_applicable(f"trained by {world.curriculum}; the sum from n_t + 1 is defined for Log-ICoT")
    levels, worst = world.levels, 0.0
    sequence = world.sequence(world.some_bits(16))
    output = 0.1 + 0.7 * sequence.roll(1, dims=0)
    for stage, end in enumerate(levels.level_end[: len(world.stages)]):
        squares = (output - sequence).square()
        wanted = sum(float(squares[i, m]) for i in range(len(squares)) for m in range(end, levels.T)) / 2 / len(squares)
        found = float(world.loss(output, sequence, world.stages[stage]))
        worst = max(worst, abs(found - wanted) / wanted)
    return Finding(worst, ROUNDING)


@statement("section 3.1", "the answer depends only on the bits, not on the chain's tokens")
def evaluation(world: World) -> Finding:
    """Check section 3.1, "Evaluation": the answer at test time depends only on the bits, not on the chain's tokens.

    Measured: the largest change of the root's output when the chain replaces padding, with own and random weights.
    """
    bits, worst = world.some_bits(64), 0.0
    for W in (world.full(), world.generic()):
        hidden = world.output(world.inference_input(bits), world.levels.L, W)[:, -1]
        worst = worse(worst, hidden - world.output(world.sequence(bits), world.levels.L, W)[:, -1])
    return Finding(worst, ROUNDING)


def positions(world: World) -> list[int]:
    """Return positions for checks that take one gradient each: all if they are few, else three of every level."""
    if world.levels.T <= 16:
        return list(range(world.levels.T))
    ends = [world.levels.nodes(level) for level in range(world.levels.L + 1)]
    return sorted({m for nodes in ends for m in (nodes[0], nodes[len(nodes) // 2], nodes[-1])})


def gradients(value: Tensor, W: list[Tensor]) -> list[Tensor]:
    """Return the gradient in every layer's weights, 0 for weights that ``value`` does not depend on."""
    if not value.requires_grad:
        return [torch.zeros_like(w) for w in W]
    return list(torch.autograd.grad(value, W, retain_graph=True, materialize_grads=True))


def worse(worst: float, difference: Tensor) -> float:
    """Return the larger of ``worst`` and the largest difference. NaN stays, because no comparison with it is true."""
    largest = float(difference.detach().abs().max())
    return largest if not largest <= worst else worst
