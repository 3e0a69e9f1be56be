"""`internalize certify`."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from internalize.commands.common_options import CommonOptions, KeptOption, SeedOption, ThreadsOption, command
from internalize.commands.console import say, use_device
from internalize.errors import InputError
from internalize.parity.options import SolveOptions, TreeOptions, check_epsilon

if TYPE_CHECKING:
    from internalize.certificate import Certificate
    from internalize.parity.certificates import World

ORDER = ("violated", "holds", "vacuous", "not applicable")


@command
class Certify(TreeOptions, KeptOption, SeedOption, ThreadsOption):
    """Check the paper statement by statement: what it bounds, with explicit constants, against what is measured.

    On a model that Algorithm 1 makes here and now, or on the weights of a run folder (--run), whoever made them. A statement
    holds, is violated, is vacuous (its bound says nothing at this size) or does not apply to this model. Exits with 1
    if any is violated. Up to n = 12 all inputs are gone through, above it a sample.

    For example:

      $ internalize certify --n 8 --k 4
      $ internalize certify --run runs/first
      $ internalize certify --n 128 --k 64 --only frozen-gradient theorem-max --json
    """

    link: str = "cosine"
    """Link function: cosine (the paper's) or quartic."""
    epsilon: float | None = None
    """ε of the theorem. Default: 1, or the run's own."""
    run: Path | None = None
    """Certify the weights of this run folder; n, k, link and seed are then its own."""
    only: tuple[str, ...] = ()
    """Names of the statements to check. Default: all."""

    def __call__(self) -> int:
        """Check, show, keep."""
        from internalize.parity.certificates import certify

        use_device("cpu", self.threads)
        world = self._world()
        found = {"certificates": violated_first(certify(world, self.only or None))}
        asked = {name: value for name, value in asdict(self).items() if name not in ("out", "json", "threads")}
        config = {"n": self.n, "k": self.k, **asked}  # in the order of earlier folders
        if self.run is not None:
            own = {"n": world.tree.n, "k": world.tree.k, "link": world.link.name, "seed": world.seed}
            config |= {**own, "run": str(self.run), "epsilon": world.epsilon}
        with self.keeping("certify", config) as keep:
            keep(found)
        return show_certificates(self, found)

    def _world(self) -> "World":
        from internalize.parity.certificates import World
        from internalize.storage.runs import Run

        if self.run is not None:
            for name in ("n", "k", "link", "seed"):
                if getattr(self, name) != getattr(type(self), name):
                    raise InputError(
                        f"{name}={getattr(self, name)} beside --run, which has its own {name}; leave it out"
                    )
            return World.of_run(Run.open(self.run), None if self.epsilon is None else check_epsilon(self.epsilon))
        epsilon = 1.0 if self.epsilon is None else self.epsilon
        return World.of_solve(SolveOptions(n=self.n, k=self.k, link=self.link, seed=self.seed, epsilon=epsilon))


def violated_first(certificates: Iterable["Certificate"]) -> list[dict[str, Any]]:
    """As ``--json`` prints them."""
    return sorted((each.to_json() for each in certificates), key=lambda found: ORDER.index(found["verdict"]))


def show_certificates(options: CommonOptions, found: dict[str, Any]) -> int:
    """Print a line each, the reasons and a count on standard error; return the exit status: 1 if any is violated."""
    certificates: list[dict[str, Any]] = found["certificates"]
    options.show(found, certificates, ("verdict", "statement", "measured", "bound", "claim"))
    counts = Counter(certificate["verdict"] for certificate in certificates)
    if not options.json:
        for certificate in certificates:
            if certificate["reason"]:
                say(f"{certificate['statement']}: {certificate['reason']}")
        say(", ".join(f"{counts[verdict]} {verdict}" for verdict in ORDER if counts[verdict]))
    return 1 if counts["violated"] else 0
