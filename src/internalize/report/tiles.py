"""The page's headline: a few numbers, each with its meaning and whether it is as claimed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from internalize.parity.options import TrainOptions
from internalize.report.claims import CONCENTRATED, RETURNED, Claim, SizeRow, Spike


@dataclass(frozen=True)
class Tile:
    """One number of the headline."""

    number: str
    text: str
    holds: bool


def tiles(
    paper: TrainOptions, rows: Sequence[SizeRow], found: Sequence[Sequence[Spike]], all_claims: Sequence[Claim]
) -> list[Tile]:
    """Return the tiles on claims, accuracy, attention and the return of the loss."""
    own = next(row for row in rows if row.claimed)
    held = sum(claim.holds for claim in all_claims)
    made = [
        Tile(f"{held} of {len(all_claims)}", "claims hold as measured here", held == len(all_claims)),
        Tile(f"{own.solved} of {own.seeds}", "seeds with 100 % validation accuracy", own.solved == own.seeds),
        Tile(
            f"{own.child_attention_min:.3f}",
            "smallest attention on a true child, over all seeds, nodes and layers; ½ is perfect",
            own.child_attention_min >= CONCENTRATED,
        ),
    ]
    spikes = [spike for row in found for spike in row]
    if spikes:
        backs = [spike.steps_to_return for spike in spikes]
        seen = [back for back in backs if back is not None]
        made.append(
            Tile(
                f"{max(seen)} steps" if len(seen) == len(backs) else "never",
                f"until the loss is under {100 * RETURNED:g} % of its spike after a switch: the slowest of "
                f"{len(spikes)} switches, evaluated every {paper.eval_every} steps",
                all(spike.returns for spike in spikes),
            )
        )
    return made


def algorithm_tile(results: Sequence[Mapping[str, Any]]) -> Tile:
    """Return the tile on the seeds where Algorithm 1 recovers every layer."""
    recovered = sum(bool(result["exact_recovery"]) for result in results)
    samples = f"{results[0]['samples_per_stage']:,}".replace(",", "\u00a0")
    text = f"seeds on which Algorithm 1 recovers every layer exactly, with one step per stage on {samples} samples"
    return Tile(f"{recovered} of {len(results)}", text, recovered == len(results))


def certificates_tile(certificates: Sequence[Mapping[str, Any]]) -> Tile:
    """Return the tile on the statements that hold for Algorithm 1's run, among those that apply to it."""
    judged = [c for c in certificates if c["verdict"] in ("holds", "violated")]
    held = sum(c["verdict"] == "holds" for c in judged)
    silent = len(certificates) - len(judged)
    text = f"statements of the paper hold for a run of Algorithm 1, with explicit constants; {silent} are vacuous or do not apply"
    return Tile(f"{held} of {len(judged)}", text, held == len(judged))
