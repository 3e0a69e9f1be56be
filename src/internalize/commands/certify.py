"""`internalize certify`."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from internalize.commands.common_options import CommonOptions, KeptOption, SeedOption, ThreadsOption, command
from internalize.commands.console import say, use_device
from internalize.errors import InputError
from internalize.parity.options import LinkOption, SolveOptions, TreeOptions, check_epsilon, without_later

if TYPE_CHECKING:
    from internalize.certificate import Certificate
    from internalize.parity.certificates import World

ORDER = ("violated", "holds", "vacuous", "not applicable")


@command
class Certify(TreeOptions, LinkOption, KeptOption, SeedOption, ThreadsOption):
    """Check every statement of the paper on a trained model.

    Without --run, the model is trained by Algorithm 1; with --run, the weights of a run folder are checked. A
    certificate compares a measured value with the statement's bound, with explicit constants. Its verdict is holds,
    violated, vacuous (the bound says nothing at this size) or not applicable. The exit status is 1 if any is violated.
    Up to n=12 all inputs are enumerated, above that they are sampled.

    Examples:
      internalize certify --n 8 --k 4
      internalize certify --run runs/first
      internalize certify --samples 27000 --only theorem-probability
      internalize certify --n 128 --k 64 --only frozen-gradient theorem-max --json
    """

    TITLE: ClassVar = "Certificates"

    threads: int | None = 1
    """Threads per process. Results are bit-for-bit reproducible for a fixed number."""
    epsilon: float | None = None
    """ε of Theorem 1. Default: 1, or the run's own."""
    samples: int | None = None
    """Fresh samples per stage for the model that is trained. Default: as in solve. Theorem 1 needs n^(2+ε), which is
    more unless n is small."""
    run: Path | None = None
    """Run folder whose weights to certify, with its own n, k, link and seed."""
    only: tuple[str, ...] = ()
    """Names of the statements to check. Default: all of them."""

    def __call__(self) -> int:
        """Check, show and keep the certificates."""
        from internalize.parity.certificates import certify

        use_device("cpu", self.threads)
        world = self._world()
        found = {"certificates": violated_first(certify(world, self.only or None))}
        asked = {name: value for name, value in asdict(self).items() if name not in ("out", "json", "threads")}
        if self.samples is None:
            del asked["samples"]  # folders of earlier versions do not have it
        config = {"n": self.n, "k": self.k, **without_later(asked, type(self))}  # in the order of earlier folders
        if self.run is not None:
            tree = world.tree
            own = {"n": tree.n, "k": tree.k, "arity": tree.arity, "link": world.link.name, "seed": world.seed}
            own = without_later(own, type(self))
            config |= {**own, "run": str(self.run), "epsilon": world.epsilon}
        with self.keeping("certify", config) as keep:
            keep(found)
        status = show_certificates(self, found)
        self.suggest("paper")
        return status

    def _world(self) -> "World":
        from internalize.parity.certificates import World
        from internalize.storage.runs import Run

        if self.run is not None:
            for name in ("n", "k", "arity", "modulus", "link", "seed", "samples"):
                if getattr(self, name) != getattr(type(self), name):
                    raise InputError(f"{name}={getattr(self, name)} with --run, which has its own {name}; leave it out")
            return World.of_run(Run.open(self.run), None if self.epsilon is None else check_epsilon(self.epsilon))
        epsilon = 1.0 if self.epsilon is None else self.epsilon
        options = SolveOptions(
            self.n,
            self.k,
            self.arity,
            self.modulus,
            link=self.link,
            seed=self.seed,
            epsilon=epsilon,
            samples=self.samples,
        )
        return World.of_solve(options)


def violated_first(certificates: Iterable["Certificate"]) -> list[dict[str, Any]]:
    """Return the certificates as ``--json`` prints them, violated ones first."""
    return sorted((each.to_json() for each in certificates), key=lambda found: ORDER.index(found["verdict"]))


def show_certificates(options: CommonOptions, found: dict[str, Any]) -> int:
    """Print a row per certificate with its reason below, and a count; return 1 if any is violated, otherwise 0."""
    certificates: list[dict[str, Any]] = found["certificates"]
    options.show(found, certificates, ("verdict", "statement", "measured", "bound", "claim"), note="reason")
    counts = Counter(certificate["verdict"] for certificate in certificates)
    if not options.json:
        say(", ".join(f"{counts[verdict]} {verdict}" for verdict in ORDER if counts[verdict]))
    return 1 if counts["violated"] else 0
