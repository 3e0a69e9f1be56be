"""`internalize certify`."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from internalize.commands.common_options import KeptOption, SeedOption, ThreadsOption, command
from internalize.commands.console import print_json, print_table, say, use_device
from internalize.errors import InputError
from internalize.parity.options import SolveOptions, check_epsilon

if TYPE_CHECKING:
    from internalize.certificate import Certificate
    from internalize.parity.certificates import World

ORDER = ("violated", "holds", "vacuous", "not applicable")


@command
class Certify(KeptOption, SeedOption, ThreadsOption):
    """Check the paper statement by statement: what it bounds, with explicit constants, against what is measured.

    On a model that Algorithm 1 makes here and now, or on the weights of a run folder (--run), whoever made them. A statement
    holds, is violated, is vacuous (its bound says nothing at this size) or does not apply to this model. Exits with 1
    if any is violated. Up to n = 12 all inputs are gone through, above it a sample.

    For example:

      $ internalize certify --n 8 --k 4
      $ internalize certify --run runs/first
      $ internalize certify --n 128 --k 64 --only frozen-gradient theorem-max --json
    """

    n: int = 30
    """Number of input bits."""
    k: int = 16
    """Size of the secret set, a power of two."""
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
        certificates = violated_first(certify(world, self.only or None))
        found = {"certificates": certificates}
        config = {name: value for name, value in asdict(self).items() if name not in ("out", "json", "threads")}
        if self.run is not None:
            own = {"n": world.tree.n, "k": world.tree.k, "link": world.link.name, "seed": world.seed}
            config |= {**own, "run": str(self.run), "epsilon": world.epsilon}
        with self.keeping("certify", config) as keep:
            keep(found)
        if self.json:
            print_json(found)
        else:
            print_certificates(certificates)
        return status(certificates)

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


def print_certificates(certificates: Sequence[dict[str, Any]]) -> None:
    """A line each on standard output, the reasons and a count on standard error."""
    print_table(certificates, ("verdict", "statement", "measured", "bound", "claim"))
    for certificate in certificates:
        if certificate["reason"]:
            say(f"{certificate['statement']}: {certificate['reason']}")
    counts = [(verdict, sum(c["verdict"] == verdict for c in certificates)) for verdict in ORDER]
    say(", ".join(f"{count} {verdict}" for verdict, count in counts if count))


def status(certificates: Sequence[dict[str, Any]]) -> int:
    """The exit status: 1 if any is violated."""
    return 1 if any(certificate["verdict"] == "violated" for certificate in certificates) else 0
