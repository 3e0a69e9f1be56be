"""Write the tables and the numbers of README and docs from stored results: `python -m tools.findings`.

Tables stand between `<!-- table: NAME -->` and `<!-- end -->`; tools/numbers.py explains numbers in prose. An option
first stores new results, without paths of this machine. The command and date in a stored file are kept:

    --store FOLDER …          rows of `compare`, for the tables
    --rows NAME FOLDER …      rows of `compare`, for numbers in prose
    --bench FOLDER            results and profiles of `bench`
    --lm NAME FOLDER …        rows of `lm compare`, each with the data, the model and the loss of its runs
    --probe NAME FOLDER       results of `lm probe --out` for the final model with everything hidden
    --certify NAME FOLDER …   results of `lm certify --out` for several models
"""

import csv
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.language import each_against_linear, language_tables
from tools.language_records import records
from tools.numbers import with_numbers
from tools.results import DOCS, markdown, path_of, read, stored
from tools.worlds import world_tables

from internalize.curriculum import Curriculum
from internalize.parity.experiments.curricula import SCHEMES
from internalize.parity.theory.prediction import Setting, predict
from internalize.report import comparison_tables as columns
from internalize.report.comparison_tables import Columns, Table
from internalize.storage.files import Json

PAGES = (DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md")))


def store(folders: Iterable[Path]) -> None:
    """Store the rows of comparisons that the tables show."""
    rows = sorted(_kept(folders), key=lambda row: (row["of"], row["n"]))
    path_of("compare.json").write_text(f'{{"rows": [\n{_lines(rows)}\n]}}\n', encoding="utf-8")


def store_rows(name: str, folders: Iterable[Path]) -> None:
    """Store the rows of other comparisons."""
    write_rows(name, _kept(folders))


def store_probe(name: str, folder: Path) -> None:
    """Store the accuracies of the probe in the final model with everything hidden."""
    rows = read(folder / "result.json")["rows"]
    last = max((row["stage"], row["hidden"]) for row in rows)
    keys = ("layer", "step", "level", "chance", "probe")
    write_rows(name, [{key: row[key] for key in keys} for row in rows if (row["stage"], row["hidden"]) == last])


def store_certificates(name: str, folders: Iterable[Path]) -> None:
    """Store the certificates of several models, one row each."""
    found = [read(folder / "result.json")["certificates"] for folder in folders]
    keys = ("statement", "measured", "bound", "verdict")
    write_rows(
        name, [{key: own[key] for key in keys} | {"model": i} for i, some in enumerate(found, 1) for own in some]
    )


def _read(folders: Iterable[Path]) -> list[Json]:
    return [row for folder in folders for row in read(folder / "rows.json")["rows"]]


def _kept(folders: Iterable[Path]) -> list[Json]:
    """Return the rows of `compare` without the keys that the docs do not need, such as paths of this machine."""
    return [
        {key: value for key, value in row.items() if key not in ("runs", "tried")} | _tried(row)
        for row in _read(folders)
    ]


def _lines(rows: Iterable[Json]) -> str:
    return ",\n".join(json.dumps(_rounded(row), ensure_ascii=False) for row in rows)


def write_rows(name: str, rows: Iterable[Json]) -> None:
    """Write rows to a file, and keep its command and date."""
    path = path_of(f"{name}.json")
    before: Json = read(path) if path.exists() else {}
    about = "".join(f"{json.dumps(key)}: {json.dumps(own)},\n" for key, own in before.items() if key != "rows")
    path.write_text(f'{{\n{about}"rows": [\n{_lines(rows)}\n]\n}}\n', encoding="utf-8")


def store_bench(folder: Path) -> None:
    """Store the results of a bench, with the profiles in its folder."""
    found = read(folder / "bench.json")
    profiles = {subject: read(folder / f"profile-{subject}.json")["rows"] for subject in ("solve", "train")}
    text = ",\n".join(f"{json.dumps(key)}: {json.dumps(own, ensure_ascii=False)}" for key, own in found.items())
    text += f',\n"profiles": {json.dumps(profiles, ensure_ascii=False)}'
    path_of("bench.json").write_text(f"{{\n{text}\n}}\n", encoding="utf-8")


def store_lm(name: str, folders: Iterable[Path]) -> None:
    """Store the rows of language models, without paths of this machine."""
    rows: list[Json] = []
    for row in _read(folders):
        config = read(Path(row["runs"][0]) / "config.json")
        asked = {key: config[key] for key in ("data", "layers", "layer_loss", "eval_every", "levels")}
        rows.append({**asked, **{key: value for key, value in row.items() if key != "runs"}})
    write_rows(name, each_against_linear(rows))


def _tried(row: Json) -> Json:
    return {"tried": row["tried"]} if row["of"] == "curricula" and row["optimizer"] == "adamw" else {}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(own) for key, own in value.items()}
    return [_rounded(own) for own in value] if isinstance(value, list) else value


def _some(own: Columns, *names: str) -> Columns:
    return {name: own[name] for name in names}


COST: Columns = {
    "n, k": columns.GATES["n, k"],
    **_some(columns.COST, "optimizer", "curriculum", "stages", "steps to 99 %", "samples to 99 %", "solved"),
}
ABLATED: Columns = {
    "change": lambda row: row["what"],
    "AdamW": lambda row: columns.solved(row["adamw"]) if "adamw" in row else "–",
    "Algorithm 1": lambda row: columns.solved(row["algorithm-1"]) if "algorithm-1" in row else "–",
}


def by_change(rows: Iterable[Json]) -> list[Json]:
    """Return a row per ablation, which holds its rows by optimizer."""
    found: dict[str, Json] = {}
    for row in rows:
        found.setdefault(row["what"], {"what": row["what"]})[row["optimizer"]] = row
    return list(found.values())


SIZES: Columns = {
    "n, k": lambda row: f"{row['n']}, {row['k']}",
    "learning rate": lambda row: row["lr"],
    "seeds": lambda row: row["seeds"],
    "solved": lambda row: row["solved"],
    "smallest attention on a true child": lambda row: f"{float(row['child_attention_min']):.3f}",
}


def tables(rows: list[Json]) -> dict[str, str]:
    """Return the tables of comparisons by their names on the pages."""

    def of(kind: str, **values: object) -> list[Json]:
        chosen = [row for row in rows if row["of"] == kind]
        return [row for row in chosen if all(row[key] == value for key, value in values.items())]

    found: dict[str, tuple[Columns, Sequence[columns.Row]]] = {
        f"curricula-{n}": (columns.COST, of("curricula", n=n)) for n in sorted({row["n"] for row in of("curricula")})
    }
    found["summary"] = (columns.SUMMARY, of("curricula", n=30))
    found["cost"] = (COST, [row for row in of("curricula") if row["method"] != "none"])
    found["latency"] = columns.latency_columns(of("latency"))
    one_sample, answers = columns.latency_columns(of("latency", batch=1))
    found["latency-one"] = ({name: cell for name, cell in one_sample.items() if name != "batch"}, answers)
    for optimizer in ("adamw", "algorithm-1"):
        found[f"ablations-{optimizer}"] = (columns.ABLATIONS, of("ablations", optimizer=optimizer))
    found["ablated"] = (ABLATED, by_change(of("ablations")))
    found["gates"] = (columns.GATES, of("gates"))
    found["gates-learned"] = (_some(columns.GATES, "n, k", "what", "solved", "breaks at"), of("gates"))
    found["simplifications"] = (columns.SIMPLIFICATIONS, of("simplifications"))
    found["lifted"] = (_some(columns.SIMPLIFICATIONS, "what", "solved", "breaks at"), of("simplifications"))
    with path_of("paper-sizes.csv").open(encoding="utf-8") as file:
        found["sizes"] = (SIZES, list(csv.DictReader(file)))
    return _written(found)


def _written(found: Mapping[str, tuple[Columns, Sequence[columns.Row]]]) -> dict[str, str]:
    made = {name: Table.of(name, "", own, rows) for name, (own, rows) in found.items()}
    return {name: markdown(table.head, table.body) for name, table in made.items()}


def spread(row: columns.Row) -> str:
    unit = f" {row['unit']}" if row["unit"] else ""
    error = f" ± {row['standard_error']:.2f}" if "standard_error" in row else ""
    between = f" ({row['low']:.3g} – {row['high']:.3g})" if row["repeats"] > 1 else ""
    return f"**{row['median']:.3g}{unit}**{error}{between}"


def goal(row: columns.Row) -> str:
    if row["goal"] is None:
        return "–"
    return f"{'≤' if row['at_most'] else '≥'} {row['goal']:.3g}: {'met' if row['met'] else 'missed'}"


def sides(row: columns.Row) -> str:
    if "solve_seconds" in row:
        return f"{row['solve_seconds']:.3g} in all"
    return ", ".join(f"{name} {seconds:.3g}" for name, seconds in row["seconds"].items())


MEASURED: Columns = {
    "measurement": lambda row: f"`{row['name']}`",
    "what": lambda row: row["what"],
    "median (smallest – largest)": spread,
    "goal": goal,
}
IN_FULL: Columns = {
    "measurement": lambda row: f"`{row['name']}`",
    "by the clock": spread,
    "in CPU time": lambda row: (
        f"{row['cpu_median']:.3g} ({row['cpu_low']:.3g} – {row['cpu_high']:.3g})" if "cpu_median" in row else "–"
    ),
    "repeats": lambda row: str(row["repeats"]),
    "seconds, medians": sides,
    "load": lambda row: f"{row['load']:.1f}",
}
PROFILED: Columns = {
    "function": lambda row: f"`{row['function']}`",
    "calls": lambda row: columns.number(row["calls"]),
    "share of CPU time": lambda row: f"{row['share']:.1%}",
}


def deviation(row: columns.Row) -> str:
    """Return the relative deviation of the measured from the predicted number, with its interval."""
    found, low, high = (row[name] / row["predicted"] - 1 for name in ("measured", "low", "high"))
    return f"{found:+.1%} ({low:+.1%} … {high:+.1%})"


HALF: Columns = {
    "n": lambda row: str(row["n"]) + (f", k = {row['k']}" if "k" in row else ""),
    "predicted for one half": lambda row: str(row["predicted"]),
    "measured (95 %)": lambda row: f"{row['measured']:.0f} ({row['low']:.0f} – {row['high']:.0f})",
    "deviation (95 %)": deviation,
}


def of_stages(row: columns.Row) -> str:
    """Return a curriculum in words, by what it leaves out."""
    skipped = len(row.get("skip", ()))
    levels = int(row["k"]).bit_length() - 1
    if not skipped:
        named = {"none": "everything at once", "transfer": "transfer from CoT", "hidden-loss": "hidden loss"}
        return named.get(method := str(row["method"]), method)
    return "without the level below the root" if row["skip"] == [levels - 1] else "chunks of two levels"


def predicted_samples(row: columns.Row) -> str:
    """Return the predicted samples with which half of the runs succeed, or that none are enough.

    Weights begin at 0. Under AdamW the lower bound predicts which curricula fail: those that skip a level below the
    one under the root. What the others need is not predicted.
    """
    levels = int(row["k"]).bit_length() - 1
    skip = range(1, levels) if row["method"] == "none" else row.get("skip", ())
    if row["optimizer"] == "adamw":
        return "never" if any(level < levels - 1 for level in skip) else "–"
    given = Curriculum(SCHEMES[row["method"]]["curriculum"], skip=tuple(row.get("skip", ())))
    found = predict(Setting(row["n"], row["k"]), curriculum=given, hidden_loss=row["method"] == "hidden-loss")
    return "never" if found.samples_50 is None else columns.number((found.steps or 0) * found.samples_50)


STAGES: Columns = {
    "n, k": lambda row: f"{row['n']}, {row['k']}",
    "optimizer": columns.COST["optimizer"],
    "curriculum": of_stages,
    "stages": lambda row: str(row["stages"]),
    "predicted samples": predicted_samples,
    "samples to 99 %": columns.COST["samples to 99 %"],
    "solved": columns.solved,
}
SURVIVED: Columns = {
    "fault": lambda row: row["what"],
    **{name: lambda row, name=name: columns.number(row[name]) for name in ("tried", "survived", "lost")},
}


def with_total(rows: list[Json]) -> list[Json]:
    """Return the rows of the fault campaign and their total."""
    counts = ("tried", "survived", "lost")
    return [*rows, {"what": "all", **{name: sum(row[name] for row in rows) for name in counts}}]


def share(row: columns.Row) -> str:
    return f"{row['successes'] / row['seeds']:.3f} ({row['successes']}/{row['seeds']})"


AT_HALF: Columns = {
    "case": lambda row: row["case"],
    "n": lambda row: str(row["n"]),
    "k": lambda row: str(row["k"]),
    "B at predicted 50 %": lambda row: str(row["samples"]),
    "if entries were independent": lambda row: f"{row['independent']:.3f}",
    "measured": share,
    "standard errors": lambda row: f"{row['z']:+.1f}",
}
LAW: Columns = {
    "n": lambda row: str(row["n"]),
    "B* predicted": lambda row: str(row["predicted"]),
    "over n ln n (limit 48)": lambda row: f"{row['ratio']:.1f}",
    "B* measured": lambda row: f"{row['measured']:.0f}",
    "successes at 0.8, 1, 1.25 B*": lambda row: ", ".join(f"{p['successes']}/{p['seeds']}" for p in row["points"]),
    "n³": lambda row: f"{row['n'] ** 3:.2g}",
}
STRICT: Columns = {
    "n": lambda row: str(row["n"]),
    "k": lambda row: str(row["k"]),
    "B at 50 %, up to a shift": lambda row: str(row["shifted"]),
    "B at 50 %, strictly": lambda row: str(row["samples"]),
    "ratio": lambda row: f"{row['ratio']:.2f}",
    "strict recovery measured there": share,
    "standard errors": lambda row: f"{row['z']:+.1f}",
}
ORACLE: Columns = {
    "oracle": lambda row: row["oracle"],
    "n": lambda row: str(row["n"]),
    "k": lambda row: str(row["points"][0]["k"]),
    "B": lambda row: str(row["points"][0]["samples"]),
    "error at predicted 50 %": lambda row: f"{row['largest']:.3g}",
    "predicted at 0.9, 1, 1.1 of it": lambda row: ", ".join(f"{p['predicted']:.2f}" for p in row["points"]),
    "measured": lambda row: ", ".join(f"{p['successes'] / p['seeds']:.2f}" for p in row["points"]),
    "seeds": lambda row: str(row["points"][0]["seeds"]),
}


def finite_tables(found: Json) -> dict[str, str]:
    """Return the tables of `benchmarks/prediction_table.py`."""
    own = {"success": AT_HALF, "fresh": AT_HALF, "law": LAW, "oracle": ORACLE, "strict": STRICT}
    return _written({name: (made, found[name]) for name, made in own.items()})


def bench_tables(found: Json) -> dict[str, str]:
    """Return the tables of the bench and its profiles."""
    rows = [{"name": name, **own} for name, own in found.items() if isinstance(own, dict) and "median" in own]
    own: dict[str, tuple[Columns, Sequence[columns.Row]]] = {
        "bench": (MEASURED, rows),
        "bench-in-full": (IN_FULL, rows),
    }
    own |= {f"profile-{subject}": (PROFILED, shares) for subject, shares in found["profiles"].items()}
    return _written(own)


def all_tables() -> dict[str, str]:
    """Return all tables by name, from stored results."""
    others: dict[str, tuple[Columns, Sequence[columns.Row]]] = {
        "phase": (HALF, stored("phase")["half"]),
        "stages": (STAGES, stored("stages")["rows"]),
        "stages-pace": (HALF, [row for row in stored("stages-pace")["half"] if row["measured"]]),
        "stages-hidden-loss": (HALF, stored("stages-hidden-loss")["half"]),
        "faults": (SURVIVED, with_total(stored("faults")["rows"])),
    }
    made = tables(stored("compare")["rows"]) | bench_tables(stored("bench")) | finite_tables(stored("finite-n"))
    return made | records() | _written({**language_tables(), **world_tables(), **others})


def filled(page: str, found: dict[str, str]) -> str:
    """Return a page with its current tables and numbers."""

    def fill(match: re.Match[str]) -> str:
        return f"{match[1]}\n{found[match[2]]}\n{match[3]}"

    return with_numbers(re.sub(r"(<!-- table: (\S+) -->)\n.*?(<!-- end -->)", fill, page, flags=re.DOTALL))


def main() -> None:
    """Store the results that an option names, then write every page."""
    option, *words = sys.argv[1:] or [""]
    folders = [Path(word) for word in words]
    match option:
        case "--store":
            store(folders)
        case "--bench":
            store_bench(*folders)
        case "--rows":
            store_rows(words[0], folders[1:])
        case "--lm":
            store_lm(words[0], folders[1:])
        case "--probe":
            store_probe(words[0], *folders[1:])
        case "--certify":
            store_certificates(words[0], folders[1:])
        case "":
            pass
        case _:
            raise SystemExit(f"{option} is not an option; see tools/findings.py")
    stored.cache_clear()
    found = all_tables()
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    main()
