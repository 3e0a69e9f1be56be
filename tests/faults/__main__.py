"""`make faults`: every family of faults in its long version, counted. Exit status 1 if anything was lost."""

import argparse
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from tools.results import path_of

from internalize import __version__
from internalize.storage.files import read_json, write_json
from tests.faults import (
    broken_files,
    command_lines,
    foreign_folders,
    large_sweep,
    number_edges,
    surroundings,
    wrong_structures,
)
from tests.faults.harness import Outcome
from tests.faults.process_faults import on_command
from tests.faults.small_commands import COMMANDS, IN_PROCESSES

STORED: Final = path_of("faults.json")
Row = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """A function of a count of faults, a seed and a folder that yields an outcome per fault; and its counts."""

    run: Callable[[int, int, Path], Iterator[Outcome]]
    long: int
    short: int
    """Of the suite, which runs the parts that have any."""


FAMILIES: Final[dict[str, list[Part]]] = {
    "kills": [Part(partial(on_command, "kills", name), *own.kills) for name, own in COMMANDS.items() if own.kills[0]],
    "writes": [
        Part(partial(on_command, "writes", name), *own.writes) for name, own in COMMANDS.items() if own.writes[0]
    ],
    "together": [
        Part(partial(on_command, "together", name), *own.together) for name, own in COMMANDS.items() if own.together[0]
    ],
    "files": [Part(broken_files.break_files, 3000, 60)],
    "lines": [Part(command_lines.ask_lines, 10_000, 75)],
    "numbers": [
        Part(partial(number_edges.compute, "edges: no NaN, sensible verdicts"), 222, 7),
        Part(partial(number_edges.compute, "float32 against float64"), 133, 4),
        Part(
            partial(number_edges.compute, "one thread against two"), 44, 3
        ),  # takes longest, the more so on busy cores
    ],
    "streams": [Part(partial(surroundings.lose_streams, kind), 120, 3) for kind in ("closed", "full", "broken")],
    "limits": [
        Part(partial(surroundings.limit, "threads"), 100, 2),
        Part(partial(surroundings.limit, "processes"), 60, 2),
        Part(partial(surroundings.limit, "memory"), 140, 2),
        Part(partial(surroundings.limit, "files"), 100, 2),
    ],
    "links": [
        Part(partial(foreign_folders.plant_links, kind), 140, 2) for kind in foreign_folders.KINDS if kind != "data"
    ],
    "structures": [
        Part(partial(wrong_structures.change_structures, kind), 400 if kind == "language models" else 200, 2)
        for kind in foreign_folders.KINDS
    ]
    + [Part(wrong_structures.change_gguf, 100, 2)],
    "environments": [Part(partial(surroundings.put_into, variables), 60, 1) for variables in (1, 2)],
    "workers": [Part(partial(on_command, "workers", name), 10, int(name == IN_PROCESSES[0])) for name in IN_PROCESSES],
    "foreign": [Part(foreign_folders.visit_report, 160, 2)],
    "load": [Part(large_sweep.sweep, large_sweep.CELLS, 300)],
}
"""Every family, in the order of the table."""


def main() -> int:
    """Run, count, store."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=FAMILIES, default=list(FAMILIES), help="these families")
    parser.add_argument("--seed", type=int, default=0, help="of what is random in them")
    parser.add_argument("--share", type=float, default=1.0, help="of the faults of the long version")
    parser.add_argument("--store", action="store_true", help=f"keep the counts in {STORED.name}, for the docs")
    parser.add_argument("--jobs", type=int, default=1, help="parts of families at a time, each in a process of its own")
    parser.add_argument("--resume", type=Path, metavar="FOLDER", help="go on in the folder of an interrupted campaign")
    asked = parser.parse_args()
    folder = asked.resume or Path(tempfile.mkdtemp(prefix="faults-"))
    print(f"--resume {folder} goes on with these, should they be interrupted", flush=True)
    parts = [(family, number) for family in asked.only for number in range(len(FAMILIES[family]))]
    run = partial(run_part, share=asked.share, seed=asked.seed, folder=folder)
    with ProcessPoolExecutor(asked.jobs, multiprocessing.get_context("spawn")) as pool:
        done = pool.map(run, parts) if asked.jobs > 1 else map(run, parts)
        rows = [row for of_part in done for row in of_part]
    print(table(rows))
    if asked.store:
        store(rows, asked.seed)
    if lost := sum(row["lost"] for row in rows):
        print(f"{lost} lost; {folder} has what they left. `python -m tests.faults --seed {asked.seed}` again")
        return 1
    shutil.rmtree(folder)
    return 0


def run_part(part: tuple[str, int], share: float, seed: int, folder: Path) -> list[Row]:
    """Count the faults of a part of a family by row of the table, and print each that is lost when it happens.

    What is counted is kept in the folder, and a part that was counted there is not run again.
    """
    family, number = part
    kept, asked = folder / f"{family}-{number}.json", {"share": share, "seed": seed}
    if kept.exists() and (found := read_json(kept)).items() >= asked.items():
        return found["rows"]
    own = FAMILIES[family][number]
    rows: dict[str, Row] = {}
    began = time.monotonic()
    count = round(own.long * share) or int(len(FAMILIES[family]) == 1)
    shutil.rmtree(folder / family / str(number), ignore_errors=True)  # of a part that was interrupted
    for what, lost in own.run(count, seed, folder / family / str(number)) if count else ():
        row = rows.setdefault(
            what, {"family": family, "what": what, "tried": 0, "survived": 0, "lost": 0, "seconds": 0.0}
        )
        row["tried"] += 1
        row["lost" if lost else "survived"] += 1
        row["seconds"] += time.monotonic() - began
        began = time.monotonic()
        if lost:
            print(f"  LOST {what}: {lost}", flush=True)
    for row in rows.values():
        row["seconds"] = round(row["seconds"], 1)
        print("{what}: {survived} of {tried} survived, {seconds:.0f} s".format_map(row), flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(kept, {**asked, "rows": list(rows.values())})
    return list(rows.values())


def table(rows: list[Row]) -> str:
    """Format the rows and their sums."""
    columns = ("tried", "survived", "lost", "seconds")
    total: Row = {"what": "all", **{column: sum(row[column] for row in rows) for column in columns}}
    width = max(len(row["what"]) for row in (*rows, total))
    lines = [("fault", *columns), *((row["what"], *(f"{row[c]:.0f}" for c in columns)) for row in (*rows, total))]
    return "\n".join(f"{what:{width}}" + "".join(f"{cell:>10}" for cell in cells) for what, *cells in lines)


def store(rows: list[Row], seed: int, path: Path = STORED) -> None:
    """Write the rows in the place of those of the same families."""
    before: list[Row] = read_json(path)["rows"] if path.exists() else []
    own = {row["family"] for row in rows}
    kept = [*(row for row in before if row["family"] not in own), *rows]
    kept.sort(key=lambda row: list(FAMILIES).index(row["family"]))  # stable: a family's own order stays
    seconds = round(sum(row["seconds"] for row in kept), 1)
    write_json(path, {"rows": kept, "seed": seed, "seconds": seconds, "version": __version__})


if __name__ == "__main__":
    from tests.faults import __main__ as campaign  # the processes of --jobs find its functions by that name only

    sys.exit(campaign.main())
