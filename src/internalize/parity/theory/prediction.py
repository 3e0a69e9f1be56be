r"""Prediction of Algorithm 1 at finite n, K and B: its probability of success, and the samples it needs.

| name        | paper                    | meaning                                                       | where       |
| ----------- | ------------------------ | ------------------------------------------------------------- | ----------- |
| B           | B                        | fresh samples per stage                                       | Theorem 1   |
| K           | K_n                      | amplitude: the weight that a true child should get            | Theorem 1   |
| grid        | q                        | weights are rounded to multiples of 1 (the paper's q) or K    | section 2   |
| rate        | η_t                      | K n_t²/(2c) (``paper``), or that over the signal (calibrated) | Theorem 1   |
| oracle      | ∇̃, ε-approximate oracle | gradient error of given 2-norm, random or adversarial         | section 2.1 |
| samples_for | n^{2+ε}                  | B for a given failure probability                             | Theorem 1   |

The moments of the steps are exact (``population.py``). The rest is a *model*. It takes hidden states to be true and
steps to be jointly Gaussian, with a first-order correction by their exact skewness (negative: \(-6\sqrt{2/(MB)}\)
at a non-child in the limit). The covariance has the following form, which is the leading order: near z = 0 the
one-sample gradient of w_{j,m} is \(-\phi'(z)(1 + b_m)\,b_j/M\).

- *One key, many columns.* −φ′b_j is common to all columns m, so two columns have correlation about ½ at the same key.
  The model has one Gaussian factor per key, with the exact variance of φφ′(b_j − z), and columns are independent given
  the factors. So failures come in clusters, and a model with independent entries would predict too few successes.
- *Two children, one column.* 1 + b_m is nonzero only where both children have one sign. So the noise of two siblings is
  equal to leading order, and they round together. The model has the exact covariance of the pair.
- *Different keys* are uncorrelated up to O(1/M), because the sum over the keys is 0. The model neglects this.

A column is recovered if both children round to one value v and every other key to at most v − K; v need not be K. A
non-child's mean is negative, −2K/(n−2) at stage 1. A step below −K/2 does no harm, so only its upper threshold
counts. In units of K, with h the grid, children must lie in [v − h/2, v + h/2] and all others below v − 1 + h/2.

**Other worlds.** Columns of a ragged tree are of several kinds, each with its own tie of children and thresholds. Of three or
more children the noise is uncorrelated to leading order (\(E[(1 \pm b_m)^2 b_{c_1} b_{c_2}] = 0\) for even r, and φ′(0) ≠ 0 for
odd r), so they round independently but for the exact covariance. The same holds for sums modulo p.

**Strict recovery** is the paper's w = K at the children and 0 elsewhere. Softmax does not see the difference, so Theorem
1 is about recovery up to a shift. With ``strict`` children must lie in [1 − h/2, 1 + h/2] and all others in [−h/2, h/2].

**The limit** is one of this model; it is not proved for Algorithm 1. At the paper's rate a non-child's step has
variance \(2M/B\) in units of K² (\(E z^2 = 1/M\), φ′ ≈ 2cz, and (1 + b_m)² averages 2), so its threshold ½ is
\(\sqrt{B/(8M)}\) standard deviations away. A stage with M keys and N columns has MN entries, whose maximum is near
\(\sqrt{2 \ln MN}\). It needs \(B \approx 16\,M \ln(MN)\). With k = κn and stages t → ∞ slowly, M → (1 + κ)n while N =
κn/2^{t+1} keeps ln(MN) ~ 2 ln n. So \(B^*(n)/(n \ln n) \to 32(1 + \kappa)\), which is 48 at k = n/2. The correlation ½
between columns does not change this limit: with n keys and n columns \(\sqrt{1/2}\,(x_j + y_{jm})\) attains
\(\sqrt{1/2}\,(\max x + \max y) = 2\sqrt{\ln n}\), the same as n² independent entries, and ½ is the largest correlation
for which this holds. For fixed k, N is fixed too, and the factor tends to 16. The theorem asks for n^{2+ε}.
"""

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from internalize.curriculum import Curriculum
from internalize.errors import InputError
from internalize.parity.model.link import Link, get_link
from internalize.parity.options import Grid, Rate, StepOptions, check_epsilon
from internalize.parity.task.noise import LabelNoise
from internalize.parity.task.stages import parity_stages
from internalize.parity.task.tree import Levels
from internalize.parity.theory.chunks import chunk_signal
from internalize.parity.theory.freezing import default_amplitude
from internalize.parity.theory.population import Path, StageGradient, population

Reals = NDArray[np.float64]

DEFAULT_FAILURE: Final = 1e-6
"""Failure probability for which the default number of samples is chosen."""
_PAPERS: Final = Curriculum()
"""Log-ICoT, by levels."""
_MANY: Final = 1e40
"""A number of samples that stands for infinity."""


@dataclass(frozen=True)
class Setting(StepOptions):
    """The settings of Algorithm 1 without B: everything that decides how many samples it needs."""

    def __post_init__(self) -> None:
        StepOptions.__post_init__(self)
        Levels.of(self)
        get_link(self.link, self.arity, self.modulus)
        if not 0 <= self.oracle_error <= 1e6:
            raise InputError(
                f"oracle_error={self.oracle_error} is outside 0 … 1e6 (the 2-norm of an error, section 2.1)"
            )
        if (self.oracle == "none") is not (self.oracle_error == 0):
            raise InputError(f"oracle={self.oracle} and oracle_error={self.oracle_error} contradict each other")

    @property
    def levels(self) -> Levels:
        """The levels of the tree."""
        return Levels.of(self)

    @property
    def link_function(self) -> Link:
        """The link function φ."""
        return get_link(self.link, self.arity, self.modulus)

    @property
    def label_noise(self) -> LabelNoise:
        """The noise of the training labels."""
        return LabelNoise(self.noise, self.noisy)

    @property
    def kept(self) -> tuple[float, ...]:
        """E[label · true value] of every node; empty for true labels."""
        return self.label_noise.kept(self.levels) if self.noise else ()

    @property
    def gradients(self) -> tuple[StageGradient, ...]:
        """The exact moments of every stage."""
        return population(self.levels, self.link_function, self.kept)

    @property
    def unit_rates(self) -> tuple[float, ...]:
        """Each stage's learning rate at K = 1."""
        return tuple(unit_rate(stage, self.rate) for stage in self.gradients)

    @property
    def amplitude(self) -> float:
        """K, given or by default."""
        return self.default_amplitude if self.K is None else self.K

    @property
    def default_amplitude(self) -> float:
        """The least integer K that bounds the final error and freezes trained layers (``freezing.py``)."""
        return _amplitude(self.levels, self.link_function, self.rate, self.grid, self.kept)

    @property
    def parameters(self) -> int:
        """Number of weights in level form, over which an oracle's error is spread."""
        return sum(stage.keys * stage.nodes for stage in self.gradients)

    def stage_log_success(self, stage: int, samples: float, strict: bool = False) -> float:
        """Return the log of the modeled probability that a stage recovers its layer, if lower layers are recovered.

        ``strict``: children must round to K and all others to 0, instead of that up to a shift of each column.
        """
        gradient = self.gradients[stage]
        h = 1 / self.amplitude if self.grid == "1" else 1.0
        scale = self.unit_rates[stage]
        random = (scale * self.oracle_error) ** 2 / self.parameters if self.oracle == "random" else 0.0
        shift = scale * self.oracle_error if self.oracle == "adversarial" else 0.0
        if gradient.keys == self.arity:  # n = k = 2: nothing to learn (unit_rate); all weights must round to one value
            return _log_same(math.sqrt(random), h, self.arity) if shift < h / 2 and not strict else -math.inf
        columns = _log_success(gradient, scale, samples, h, random, shift, strict)
        kept = self._log_kept(stage, h / 2, math.sqrt(random), strict) if random else 0.0
        return columns + kept if shift < h / 2 else -math.inf

    def _log_kept(self, stage: int, limit: float, deviation: float, strict: bool) -> float:
        """Return the log of the probability that a random oracle error alone moves no layer outside training.

        A child's weight must not move in either direction; another weight may fall but not rise, unless ``strict``.
        """
        layers = [gradient for index, gradient in enumerate(self.gradients) if index != stage]
        children = sum(self.arity * gradient.nodes for gradient in layers)
        others = sum(gradient.keys * gradient.nodes for gradient in layers) - children
        tail = math.erfc(limit / deviation / math.sqrt(2))
        if tail >= 1:
            return -math.inf
        return children * math.log1p(-tail) + others * math.log1p(-tail if strict else -tail / 2)

    def log_success(self, samples: float, strict: bool = False) -> float:
        """Return the log of the modeled probability that a run recovers every layer. Stages are independent."""
        return sum(self.stage_log_success(stage, samples, strict) for stage in range(self.levels.L))

    def samples_for(self, failure: float, strict: bool = False) -> int | None:
        """Return the least B with at most this modeled failure probability; None if no B has it."""
        return _samples_for(self, failure, strict)


@cache  # takes about a second, and every failed run of a setting needs it for its message
def _samples_for(setting: Setting, failure: float, strict: bool) -> int | None:
    wanted = math.log1p(-failure)
    many = next((many for many in (1e15, _MANY) if setting.log_success(many, strict) >= wanted), None)
    if many is None:
        return None
    if setting.log_success(1, strict) >= wanted:
        return 1
    low, high = 1.0, many
    while high > low * (1 + 1e-9) and math.ceil(high) > math.ceil(low):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if setting.log_success(middle, strict) >= wanted else (middle, high)
    return math.ceil(high)


def _log_same(deviation: float, h: float, arity: int) -> float:
    """Return the log of the probability that ``arity`` errors of mean 0 round to the same multiple of h."""
    if deviation == 0:
        return 0.0
    if deviation > 100 * h:  # cells so narrow that the density is flat in each: the integral of the density's power
        return (arity - 1) * math.log(h / (math.sqrt(2 * math.pi) * deviation)) - math.log(arity) / 2
    cells = np.arange(-900, 902) - 0.5
    edges = np.array([0.5 * math.erfc(-edge * h / deviation / math.sqrt(2)) for edge in cells])
    return float(np.log((np.abs(np.diff(edges)) ** arity).sum()))


def unit_rate(gradient: StageGradient, rate: Rate) -> float:
    """Return the learning rate of a stage at K = 1: n_t²/(2c), or the same divided by the exact signal.

    At n = k = 2 the gradient is 0 for every sample, since uniform attention is already right, so any rate works.
    """
    calibrate = rate == "calibrated" and gradient.keys > gradient.arity
    return gradient.paper_rate / gradient.signal if calibrate else gradient.paper_rate


@cache
def _amplitude(levels: Levels, link: Link, rate: Rate, grid: Grid, kept: tuple[float, ...]) -> float:
    rates = [unit_rate(stage, rate) for stage in population(levels, link, kept)]
    return float(default_amplitude(levels, link, rates, integer_grid=grid == "1"))


def _log_success(
    gradient: StageGradient, scale: float, samples: float, h: float, random: float, shift: float, strict: bool
) -> float:
    """Return the log of the probability of recovering all columns, each with its share of their common factors."""
    mean = -scale * gradient.mean
    variance = scale**2 * gradient.variance / samples + random
    shared = np.minimum(scale**2 * gradient.shared / samples, variance)
    skewness = -(scale**3) * gradient.third / samples**2 / variance**1.5
    middle = h * round(-scale * gradient.child_mean / h)
    logs: list[list[float]] = [[] for _ in gradient.columns]
    for v in [1.0] if strict else [middle + h * step for step in range(-3, 4)]:
        bounds = [v - h / 2 + shift, v + h / 2 - shift]
        low, high = (_unskewed((bound - mean) / np.sqrt(variance), skewness) for bound in bounds)
        ties: list[float] = []
        for column, sibling in enumerate(gradient.sibling):
            each = [child for child in gradient.children(column) for _ in range(gradient.classes[child].count)]
            deviation = np.sqrt(variance[each])
            correlation = scale**2 * sibling / samples / float(deviation[0] * deviation[-1])
            ties.append(_log_ties(correlation, low[each], high[each]))
        if max(ties) > -math.inf:
            upper = _unskewed((v - 1 + h / 2 - shift - mean) / np.sqrt(variance), skewness)
            lower = _unskewed((shift - h / 2 - mean) / np.sqrt(variance), skewness) if strict else None
            others = _log_others(gradient, upper, shared / variance, lower)
            for tie, own in zip(ties, logs, strict=True):
                own.append(tie + others / gradient.nodes)
    if not logs[0]:
        return -math.inf
    return sum(count * float(np.logaddexp.reduce(own)) for count, own in zip(gradient.columns, logs, strict=True))


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(400)
_FACTOR: Final[Reals] = np.linspace(-12, 12, 481)
_FACTOR_WEIGHTS: Final[Reals] = np.exp(-(_FACTOR**2) / 2) / np.exp(-(_FACTOR**2) / 2).sum()


def _unskewed(u: Any, skewness: Any) -> Any:
    """Return the threshold of a Gaussian with the same tail as u standard deviations: Cornish and Fisher, first order.

    Skewness falls like B^{−1/2} and u grows like B^{1/2}, so the correction is a fixed small share of u, of order
    1/M. The clip affects only thresholds far out at tiny n, where the tail is empty anyway.
    """
    return u - np.clip(skewness * u / 6, -0.2, 0.2) * u + skewness / 6


def _log_ties(correlation: float, lows: Reals, highs: Reals) -> float:
    """Return the log of P(standard Gaussians with this correlation are all in their intervals).

    Two have their exact law. Of three and more, with a correlation of leading order 0, those with a positive one have one
    common factor, and others are taken to be independent.
    """
    if len(lows) == 2:
        return _log_tie(correlation, (float(lows[0]), float(highs[0])), (float(lows[1]), float(highs[1])))
    if bool((highs <= lows).any()):
        return -math.inf
    share = min(max(correlation, 0.0), 1 - 1e-12)
    moved, rest = math.sqrt(share) * _FACTOR, math.sqrt(1 - share)
    inside = np.zeros_like(_FACTOR)
    for low, high in zip(lows, highs, strict=True):
        outside = np.exp(_log_cdf((low - moved) / rest)) + np.exp(_log_cdf((moved - high) / rest))
        inside = inside + np.log1p(-np.minimum(outside, 1 - 1e-15))
    return _log_average(inside)


def _log_tie(correlation: float, one: tuple[float, float], other: tuple[float, float]) -> float:
    """Return the log of P(two Gaussians in their intervals) = 1 − P(first out) − P(first in, second out)."""
    low, high = one
    if high <= low or other[1] <= other[0]:
        return -math.inf
    rest = math.sqrt(max(1 - correlation**2, 1e-12))
    first = (low + high) / 2 + (high - low) / 2 * _NODES
    density = np.exp(-(first**2) / 2) / math.sqrt(2 * math.pi)
    low, high = other
    out = np.exp(_log_cdf((low - correlation * first) / rest)) + np.exp(_log_cdf((correlation * first - high) / rest))
    low, high = one
    first_out = sum(map(math.exp, _log_cdf(np.array([low, -high])).tolist()))
    outside = first_out + float((density * out) @ _WEIGHTS) * (high - low) / 2
    return math.log1p(-outside) if outside < 1 else -math.inf


def _log_others(gradient: StageGradient, upper: Reals, shared: Reals, lower: Reals | None) -> float:
    """Return the log of P(no non-child leaves its thresholds). Keys are independent, and so are columns given a factor.

    Each class has its thresholds in standard deviations, the lower one only if it is given, and the share of its
    variance that all columns have in common.
    """
    below: dict[tuple[int, Path, bool], Reals] = {}
    for index, (key, share) in enumerate(zip(gradient.classes, shared, strict=True)):
        if key.kind == "child":
            continue
        common, rest = math.sqrt(share) * _FACTOR, math.sqrt(max(1 - share, 1e-12))
        inside = _log_cdf((upper[index] - common) / rest)
        if lower is not None:
            inside = inside + np.log(-np.expm1(np.minimum(_log_cdf((lower[index] - common) / rest) - inside, -1e-300)))
        below[key.column, key.path, key.kind == "inside"] = inside
    nothing = np.zeros_like(_FACTOR)
    total = 0.0
    for (column, path), count in gradient.owned.items():
        logs = nothing if column is None else below.get((column, path, True), nothing)
        for other, number in enumerate(gradient.columns):
            logs = logs + (number - (other == column)) * below.get((other, path, False), nothing)
        total += count * _log_average(logs)
    return total


def _log_average(logs: Reals) -> float:
    """Return the log of E[e^x] over the Gaussian factor, exact for tiny x: failures of 1e-12 count with many keys."""
    failure = float(_FACTOR_WEIGHTS @ -np.expm1(logs))
    return math.log1p(-failure) if failure < 1 else -math.inf


def _log_cdf(x: Reals) -> Reals:
    return cast(Tensor, torch.special.log_ndtr(torch.from_numpy(x))).numpy()


@dataclass(frozen=True)
class Prediction:
    """The answer of ``predict``. Lists have one entry per stage. A number of samples is None if no number is enough."""

    signal: tuple[float, ...]
    noise: tuple[float, ...]
    samples_50: int | None
    samples_99: int | None
    samples_default: int | None
    K_default: float
    limit_factor: float | None
    theorem_log10_n: float
    success_probability: float | None = None
    stage_success_probability: tuple[float, ...] | None = None
    steps: int | None = None
    samples_total: int | None = None
    chunk_noise_over_signal: float | None = None
    reason: str | None = None
    note: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain lists and numbers, without the keys that were not requested."""
        required = ("samples_50", "samples_99", "samples_default", "samples_total")
        return {
            name: list(cast(tuple[float, ...], value)) if isinstance(value, tuple) else value
            for name, value in vars(self).items()
            if value is not None or name in required
        }


def predict(
    setting: Setting,
    samples: int | None = None,
    epsilon: float = 1.0,
    curriculum: Curriculum = _PAPERS,
    *,
    hidden_loss: bool = False,
) -> Prediction:
    """Return the exact signal and noise of every level, and the modeled samples for success and vice versa.

    A curriculum differs from Log-ICoT only in its steps, or has no prediction (``without_prediction``):

    - *icot*: the first stage of a level is the stage of Log-ICoT; the others are idle (``freezing.py``).
    - *cot*, also with transfer: one step. A column sees the true values below its level, as in the stage of that level,
      and has its rate. All levels share one batch; the model takes them to be independent.
    - *none* with hidden loss: log2 k steps. What the losses of higher levels add to a layer's step is neglected.
    """
    if samples is not None and samples < 1:
        raise InputError(f"samples={samples} must be at least 1 (B of Algorithm 1)")
    if setting.grid == "none":
        raise InputError("grid=none is not 1 or K: the prediction is that rounding recovers every child (section 2)")
    steps = len(parity_stages(setting.levels, curriculum)) if not hidden_loss else setting.levels.L
    found = _of_log_icot(setting, samples, epsilon)
    if not hidden_loss and (why := without_prediction(curriculum, setting.levels)):
        none = dict.fromkeys(
            ("samples_50", "samples_99", "samples_default", "success_probability", "stage_success_probability", "note")
        )
        return replace(found, **none, steps=steps, chunk_noise_over_signal=_of_chunk(curriculum, setting), reason=why)
    if hidden_loss:
        note = "with hidden loss, the gradient that the levels above add to a layer's step is neglected"
        found = replace(found, note=f"{note}; {found.note}" if found.note else note)
    total = found.samples_default
    return replace(found, steps=steps, samples_total=None if total is None else steps * total)


def without_prediction(curriculum: Curriculum, levels: Levels) -> str | None:
    """Say in one line why a curriculum has no number of samples under Algorithm 1; None if it has one."""
    if levels.L == 1:
        return None
    if curriculum.method == "none":
        return (
            "curriculum=none gives one step on the root's loss, which hardly depends on the secret set (Proposition 1)"
        )
    if curriculum.skip:
        return (
            f"skip={curriculum.skip}: a stage takes one step, which cannot train the layers of two levels, and the "
            "columns of a skipped level stay equal"
        )
    return None


def _of_chunk(curriculum: Curriculum, setting: Setting) -> float | None:
    """Return noise over signal of layer 1 in a first stage of several levels; None if it has one, or no signal."""
    levels = setting.levels
    first = parity_stages(levels, curriculum)[0].layers
    papers = setting.arity == 2 and setting.modulus == 2 and not setting.noise and levels.complete
    if first == 1 or levels.n == levels.k or not papers:
        return None
    found = chunk_signal(levels, get_link(setting.link), first)
    return found.noise[0] / found.signal[0] if found.signal[0] > 0 else None


def _of_log_icot(setting: Setting, samples: int | None, epsilon: float) -> Prediction:
    stages = [setting.stage_log_success(stage, samples) for stage in range(setting.levels.L)] if samples else None
    return Prediction(
        signal=tuple(gradient.signal for gradient in setting.gradients),
        noise=tuple(gradient.noise for gradient in setting.gradients),
        samples_50=setting.samples_for(0.5),
        samples_99=setting.samples_for(0.01),
        samples_default=setting.samples_for(DEFAULT_FAILURE),
        K_default=setting.default_amplitude,
        limit_factor=_limit_factor(setting),
        theorem_log10_n=theorem_log10_n(epsilon),
        success_probability=None if stages is None else math.exp(sum(stages)),
        stage_success_probability=None if stages is None else tuple(math.exp(stage) for stage in stages),
        reason=impossible(setting),
        note=_of_small_amplitude(setting),
    )


def _of_small_amplitude(setting: Setting) -> str | None:
    """Warn that the prediction does not cover a small K; None if K is large enough."""
    if setting.levels.L == 1 or setting.amplitude >= setting.default_amplitude:
        return None
    return (
        f"K={setting.amplitude:g} is below the default {setting.default_amplitude:g}: the prediction assumes that "
        "trained layers are exact, and at such a small K runs may fail with any number of samples"
    )


def impossible(setting: Setting) -> str | None:
    """Say why no number of samples is enough, in one line; None if some number is."""
    for stage in range(setting.levels.L):
        if setting.stage_log_success(stage, _MANY) < math.log(0.5):
            gradient, K = setting.gradients[stage], setting.amplitude
            child = -K * setting.unit_rates[stage] * gradient.child_mean
            error = K * setting.unit_rates[stage] * setting.oracle_error
            because = f"the expected step on a child is {child:.4g}, not K={K:g} (signal {gradient.signal:.3f})"
            if setting.oracle != "none":
                because = f"the {setting.oracle} oracle error moves weights by up to {error:.3g} at K={K:g}"
            return f"stage {stage + 1} fails with any number of samples on grid {setting.grid}: {because}"
    return None


def limit_factor(ratio: float) -> float:
    """Return the model's limit of B*(n)/(n ln n) for k = ratio · n: 32(1 + ratio), derived above; 48 at k = n/2."""
    return 32 * (1 + ratio)


def _limit_factor(setting: Setting) -> float | None:
    """Return the limit for a setting's world: a quarter modulo p, (1 − 2q)^−2 as much with noise; None without such a law."""
    if setting.arity != 2 or (setting.noise and setting.noisy == "carried"):
        return None
    shrunk = 4 if setting.modulus != 2 else 1
    return limit_factor(setting.k / setting.n) / shrunk / (1 - 2 * setting.noise) ** 2


def theorem_log10_n(epsilon: float) -> float:
    r"""Return the decimal logarithm of the n beyond which ⌈n^{ε/16}⌉ always exceeds ln n.

    A child's attention is e^K/(2e^K + n − 2), so with K < ln n the share of the other keys does not vanish as n grows.

    With x = ln n, the ceiling is j exactly for x in (16 ln(j−1)/ε, 16 ln(j)/ε]. It fails to exceed x somewhere in this
    interval if and only if 16 ln(j)/ε ≥ j. The last such j ends the failures, at n = j^{16/ε}; none exists if ε > 16/e.
    """
    a = 16 / check_epsilon(epsilon)
    j = math.ceil(a * (math.log(a) + 3) * 2) + 2  # a ln j < j for this j and all larger ones
    while j > 1 and a * math.log(j) < j:
        j -= 1
    return a * math.log10(j)
