"""What the campaign counts: faults tried, and what was lost by them."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Tally:
    """Faults of one kind."""

    what: str
    tried: int = 0
    lost: list[str] = field(default_factory=list)
    """A line for each fault that was not survived: what was lost or wrong, and how to see it again."""

    @property
    def survived(self) -> int:
        """Faults after which everything was as it had to be."""
        return self.tried - len(self.lost)


def share_out(count: int, shares: Mapping[str, int]) -> dict[str, int]:
    """So many faults among the commands, in their shares of the long version; those that get any."""
    whole = sum(shares.values())
    return {name: own for name, share in shares.items() if (own := round(count * share / whole))}
