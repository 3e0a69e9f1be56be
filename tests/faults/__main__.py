"""`make faults`: every family of faults in its long version, counted. Exit status 1 if anything was lost."""

import argparse
import importlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tools.results import path_of

from internalize import __version__
from internalize.storage.files import read_json, write_json
from tests.faults.tally import Tally

FAMILIES: Final = ("kills", "writes", "together", "files", "lines", "numbers", "load")
"""Modules of this folder, each with `campaign` and `LONG`, in the order of the table."""
STORED: Final = path_of("faults.json")
Row = dict[str, Any]


def main() -> int:
    """Run, count, store."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=FAMILIES, default=FAMILIES, help="these families")
    parser.add_argument("--seed", type=int, default=0, help="of what is random in them")
    parser.add_argument("--share", type=float, default=1.0, help="of the faults of the long version")
    parser.add_argument("--store", action="store_true", help=f"keep the counts in {STORED.name}, for the docs")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    rows: list[Row] = []
    lost: list[str] = []
    for family in asked.only:
        for row, tally in run_family(family, asked.share, asked.seed, folder / family):
            print(f"{row['what']}: {tally.survived} of {tally.tried} survived, {row['seconds']:.0f} s", flush=True)
            rows.append(row)
            lost += tally.lost
            for line in tally.lost:
                print(f"  LOST {line}", flush=True)
    print(table(rows))
    if asked.store:
        store(rows, asked.seed)
    if lost:
        print(f"{len(lost)} lost; {folder} has what they left. `python -m tests.faults --seed {asked.seed}` again")
        return 1
    shutil.rmtree(folder)
    return 0


def run_family(family: str, share: float, seed: int, folder: Path) -> Iterator[tuple[Row, Tally]]:
    """What comes of one family, each tally with its row of the table."""
    module: Any = importlib.import_module(f"tests.faults.{family}")
    folder.mkdir(parents=True)
    began = time.monotonic()
    for tally in module.campaign(max(1, round(module.LONG * share)), seed, folder):
        seconds = time.monotonic() - began
        row = {"family": family, "what": tally.what, "tried": tally.tried, "survived": tally.survived}
        yield {**row, "lost": len(tally.lost), "seconds": round(seconds, 1)}, tally
        began = time.monotonic()


def table(rows: list[Row]) -> str:
    """The rows, and what they come to."""
    columns = ("tried", "survived", "lost", "seconds")
    total: Row = {"what": "all", **{column: sum(row[column] for row in rows) for column in columns}}
    width = max(len(row["what"]) for row in (*rows, total))
    lines = [("fault", *columns), *((row["what"], *(f"{row[c]:.0f}" for c in columns)) for row in (*rows, total))]
    return "\n".join(f"{what:{width}}" + "".join(f"{cell:>10}" for cell in cells) for what, *cells in lines)


def store(rows: list[Row], seed: int, path: Path = STORED) -> None:
    """Keep the rows, in the place of those of the same families."""
    before: list[Row] = read_json(path)["rows"] if path.exists() else []
    own = {row["family"] for row in rows}
    kept = [*(row for row in before if row["family"] not in own), *rows]
    kept.sort(key=lambda row: FAMILIES.index(row["family"]))  # stable: a family's own order stays
    seconds = round(sum(row["seconds"] for row in kept), 1)
    write_json(path, {"rows": kept, "seed": seed, "seconds": seconds, "version": __version__})


if __name__ == "__main__":
    sys.exit(main())
