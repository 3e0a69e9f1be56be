"""`internalize bench`: every measurement in turn, stored after each repeat.

| file                 | content                                                                                  |
| -------------------- | ---------------------------------------------------------------------------------------- |
| `bench.json`         | what `--json` prints: every measurement, its environment, and the machine's load         |
| `repeats.json`       | the repeats of every measurement in order, from which `--resume` continues               |
| `.lock`              | held by the process that measures                                                        |
| `profile-solve.json` | the profile of `--profile solve`; likewise `profile-train.json`                          |
"""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, TypedDict

from msgspec import UNSET, Meta, Struct, UnsetType

from internalize.bench import ratios
from internalize.bench.ratios import CHAINS, Measurement
from internalize.bench.timing import over_repeats
from internalize.environment import describe_environment
from internalize.errors import InputError
from internalize.parallel.interrupt import Interrupted
from internalize.parallel.pool import Report
from internalize.parity.options import TrainOptions
from internalize.storage.files import Json, present, read_json, write_json, writing
from internalize.storage.runs import Run

RESULT, REPEATS = "bench.json", "repeats.json"
_OWN_FILES = (RESULT, REPEATS, "profile-solve.json", "profile-train.json")

_Number = Annotated[float, Meta(ge=-1e15, le=1e15)]


class Repeat(Struct, forbid_unknown_fields=True):
    """One repeat of a measurement, and the machine's load after it."""

    value: _Number
    load: _Number
    cpu: _Number | UnsetType = UNSET
    seconds: dict[str, _Number] | UnsetType = UNSET
    cpu_seconds: dict[str, _Number] | UnsetType = UNSET
    standard_error: _Number | UnsetType = UNSET
    goal: _Number | UnsetType = UNSET
    solve_seconds: _Number | UnsetType = UNSET
    solved: _Number | UnsetType = UNSET


class KeptRepeats(TypedDict):
    """The content of `repeats.json`."""

    asked: Json
    environment: Json
    took: _Number
    repeats: dict[str, list[Repeat]]


@dataclass(frozen=True)
class Sizes:
    """The sizes to measure. The defaults are those of the command line without `--full`; tests use smaller ones."""

    solve: int = 1024
    literal: tuple[int, int, int] = (32, 16, 256)
    plain: int = 256
    chains: tuple[int, ...] = CHAINS
    growth: tuple[int, ...] = (128, 256, 512, 1024, 2048)
    memory: tuple[int, ...] = (1024,)


FULL = Sizes(memory=(1024, 4096))


def all_measurements(sizes: Sizes, seed: int, threads: int, train: TrainOptions | None = None) -> list[Measurement]:
    """Return all measurements, in the order of the table."""
    return [
        ratios.solve_over_matmul(sizes.solve, seed),
        ratios.literal_over_level(*sizes.literal, seed),
        ratios.plain_over_solve(sizes.plain, seed),
        ratios.loop_over_ensemble(train or TrainOptions(), seed),
        *(ratios.cot_over_internalised(k, seed) for k in sizes.chains),
        ratios.growth(sizes.growth, seed),
        *(ratios.peak_memory(n, seed, threads) for n in sizes.memory),
    ]


def chosen(measurements: Sequence[Measurement], only: Sequence[str]) -> list[Measurement]:
    """Return the measurements whose names begin with one of ``only``; all if ``only`` is empty."""
    for name in only:
        if not any(own.name.startswith(name) for own in measurements):
            raise InputError(f"only={name!r} is none of {', '.join(own.name for own in measurements)}")
    return [own for own in measurements if not only or own.name.startswith(tuple(only))]


def bench(
    measurements: Sequence[Measurement],
    out: Path,
    *,
    asked: Json,
    repeats: int,
    resume: bool,
    report: Report = lambda done, total, seen: None,
) -> Json:
    """Make the repeats that the folder lacks, and return the new content of ``bench.json``.

    Args:
        measurements: what to measure.
        out: folder of the results.
        asked: the options that decide what is measured; a folder with other options is refused.
        repeats: number of repeats per measurement; expensive measurements make fewer.
        resume: continue with the repeats in the folder.
        report: called after every repeat.

    Raises:
        Interrupted: after Ctrl-C, with every finished repeat stored.
    """
    _begin(out, asked, resume=resume)  # checks the folder before a lock is made
    with Run(out).locked():
        return _measured(measurements, out, _begin(out, asked, resume=resume), repeats, report)


def _measured(measurements: Sequence[Measurement], out: Path, kept: Json, repeats: int, report: Report) -> Json:
    """Make the missing repeats and return the new content of ``bench.json``."""
    wanted = {own.name: min(repeats, own.repeats or repeats) for own in measurements}
    total = sum(wanted.values())
    done = sum(min(len(kept["repeats"].get(name, ())), count) for name, count in wanted.items())
    try:
        for own in measurements:
            made: list[Json] = kept["repeats"].setdefault(own.name, [])
            while len(made) < wanted[own.name]:
                report(done, total, own.name)
                began = time.perf_counter()
                made.append({**own.once(len(made)), "load": os.getloadavg()[0]})
                kept["took"] += time.perf_counter() - began
                done += 1
                write_json(out / REPEATS, kept)
        report(total, total, "measured")
    except KeyboardInterrupt:
        raise Interrupted("--resume goes on with the next repeat") from None
    result = {own.name: _result(own, kept["repeats"][own.name]) for own in measurements if kept["repeats"][own.name]}
    before = read_json(out / RESULT) if present(out / RESULT) else {}
    others = {name: before[name] for name in kept["repeats"] if name in before and name not in result}
    found = {**others, **result, **kept["asked"], "environment": kept["environment"], "seconds": round(kept["took"], 1)}
    write_json(out / RESULT, found)
    return found


def keep_profile(out: Path, subject: str, rows: Sequence[Json]) -> None:
    """Store a profile beside the results; it replaces an earlier one."""
    _make(out)
    write_json(out / f"profile-{subject}.json", {"profile": subject, "rows": list(rows)})


def _make(out: Path) -> None:
    """Make the folder; raise if it holds files that are not of a bench."""
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        names = [path.name for path in sorted(out.iterdir()) if not path.name.startswith(".")]
        stranger = next((name for name in names if name not in _OWN_FILES), None)
    if stranger:
        raise InputError(f"{out} holds {stranger!r}, which does not belong to a bench; choose another --out")


def _begin(out: Path, asked: Json, *, resume: bool) -> Json:
    """Return the content of ``repeats.json``, or an empty one for a new folder."""
    if not present(out / REPEATS):
        _make(out)
        return {"asked": asked, "environment": describe_environment(), "took": 0.0, "repeats": {}}
    if not resume:
        raise InputError(f"{out}: this bench has already started; add --resume, or choose another --out")
    kept = read_json(out / REPEATS, KeptRepeats)
    if kept["asked"] != asked:
        raise InputError(f"{out} holds a bench with {kept['asked']}, not {asked}; choose another --out")
    return kept


def _result(own: Measurement, repeats: Sequence[Json]) -> Json:
    found = over_repeats([{name: value for name, value in repeat.items() if name != "load"} for repeat in repeats])
    own = replace(own, goal=found.get("goal", own.goal))
    judged = {"goal": own.goal, "at_most": own.at_most, "met": own.met(found["median"])}
    load = round(max(repeat["load"] for repeat in repeats), 2)
    return {"what": own.what, "unit": own.unit, **found, **judged, "load": load}


def asked_for(sizes: Sizes, seed: int, threads: int) -> Json:
    """Return the options in the form in which they are stored, in the types of JSON."""
    return {"seed": seed, "threads": threads, "sizes": json.loads(json.dumps(asdict(sizes)))}
