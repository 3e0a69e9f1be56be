"""Compare numbers of slots and slot tokens on data whose chains have different lengths.

    python -m tools.slots FOLDER --seeds 0:3 --jobs 2          train every setting with every seed, or what is missing
    python -m tools.slots FOLDER --seeds 0:3 --store lm-slots  and store the rows in docs/results/lm-slots.json

An example is "1 0 1 1 0 0 1 0 1 1 0 1 , 5": the parity of the first 5 bits. The steps are those of a binary tree,
"1 + 0 = 1 ;" and so on, with levels; 2 to 8 bits have chains of 0 to 36 tokens. The model and all other options are
those of `lm train`. Of the slot tokens, [EOS] also ends answers, and [PAD] stands nowhere else that the model reads.
"""

import argparse
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

from internalize.lm.data.example import Example
from internalize.lm.data.readers import write_examples
from internalize.lm.evaluation.jobs import ExecutionSettings, LmJob
from internalize.lm.options import LmTrainOptions
from internalize.lm.training.answer_costs import answer_costs
from internalize.lm.training.flops import model_size
from internalize.lm.training.internalization import Internalization
from internalize.parallel.runner import RunFolders, Runner
from internalize.random_words import parse_seeds
from internalize.report import comparison_tables as columns
from internalize.report.comparison_tables import Columns
from internalize.storage.files import Json
from internalize.storage.summaries import over_seeds

BITS, EXAMPLES = 12, 20_000
SHARES = {2: 1, 3: 2, 4: 3, 5: 3, 6: 2, 7: 2, 8: 1}
"""How often the parity of so many bits is asked for."""
SLOTS: dict[str, int | float | str] = {"longest": "longest", "p90": "p90", "p50": "p50", "0.5": 0.5, "8": 8}
TOKENS = {"end token": "[EOS]", "new token": "[PAD]"}
OPTIONS = LmTrainOptions(
    method="adaptive",
    replay_of="scattered",  # also with 8 slots, so that only the slots differ
    hidden_loss=1.0,
    steps=1000,
    eval_every=50,
    eval_examples=256,
    test_examples=1024,
    budgets="never",
)


def parity_of_some(draw: random.Random) -> Example:
    """Return a random example."""
    bits, asked = [draw.randint(0, 1) for _ in range(BITS)], draw.choices(list(SHARES), list(SHARES.values()))[0]
    steps: list[str] = []
    levels: list[int] = []
    values, level = bits[:asked], 0
    while len(values) > 2:
        level += 1
        pairs = list(zip(values[0::2], values[1::2], strict=False))
        steps += [f"{a} + {b} = {a ^ b} ;" for a, b in pairs]
        levels += [level] * len(pairs)
        values = [a ^ b for a, b in pairs] + values[2 * len(pairs) :]
    question = f"{' '.join(map(str, bits))} , {asked}"
    return Example(question, tuple(steps), str(sum(values) % 2), tuple(levels))


def write_data(path: Path) -> None:
    """Write different examples to a file, always the same ones."""
    draw = random.Random(0)
    found: dict[str, Example] = {}
    while len(found) < EXAMPLES:
        example = parity_of_some(draw)
        found.setdefault(example.question, example)
    write_examples(path, list(found.values()))


def settings(folder: Path, slots: Sequence[str], tokens: Sequence[str]) -> Iterator[tuple[str, str, LmTrainOptions]]:
    """Yield the settings: the names of their slots and token, and their options."""
    base = replace(OPTIONS, data=str(folder / "data.jsonl"))
    for token, slot in product(tokens, slots):
        yield slot, token, replace(base, slots=SLOTS[slot], slot_token=TOKENS[token])


def job(folder: Path, slot: str, token: str, options: LmTrainOptions, seed: int) -> LmJob:
    """Return a run of a setting."""
    return LmJob(folder, Path(token.split()[0]) / slot / f"seed-{seed}", options, seed, ExecutionSettings())


def row(slot: str, token: str, runs: Sequence[LmJob]) -> Json:
    """Return the row of a setting whose runs are finished."""
    results = [each.runs[0].result for each in runs]
    work = Internalization(runs[0].options, seed=runs[0].seed)
    chains = work.text.chains(work.callback.validation)
    costs = answer_costs(model_size(work.options, work.config), work.stages, chains)
    exact = over_seeds([float(result["exact_match"]) for result in results], results[0]["examples"])
    return {
        "slots": slot,
        "token": token,
        "count": work.stages.stage_slots[-1],
        "seeds": len(runs),
        "exact_match": exact.accuracy,
        "exact_match_low": exact.accuracy_low,
        "exact_match_high": exact.accuracy_high,
        "solved": exact.solved,
        "each": [{"seed": run.seed, "exact_match": found["exact_match"], "steps": [s["steps"] for s in found["stages"]]}
                 for run, found in zip(runs, results, strict=True)],
        "answer_flops": costs.answer.flops,
        "written_flops": costs.written.flops,
    }  # fmt: skip


COLUMNS: Columns = {
    "slot token": lambda row: row["token"],
    "slots": lambda row: f"`{row['slots']}` ({row['count']})",
    "solved": lambda row: columns.solved(row),
    "exact match (95 % over seeds)": columns.LANGUAGE["exact match (95 % over seeds)"],
    "cost per answer, as a share of a written one": lambda row: f"{row['answer_flops'] / row['written_flops']:.2f}",
}


def _cost(name: str) -> str:
    return "chain written" if name == "written" else f"chain hidden, `--slots {name}`"


COSTS: Columns = {
    "answer": lambda row: _cost(row["slots"]),
    "slots": lambda row: str(row["count"] or "–"),
    "generated tokens": lambda row: f"{row['answer']['generated_tokens']:.1f}",
    "operations (10⁹)": lambda row: f"{row['answer']['flops'] / 1e9:.1f}",
}


def with_written(rows: Sequence[Json]) -> list[Json]:
    """Return plans for several numbers of slots, after a row for an answer with its chain written."""
    return [{"slots": "written", "count": 0, "answer": rows[0]["written"]}, *rows]


def main() -> None:
    """Train what is missing, and show or store the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", default="0:3")
    parser.add_argument("--slots", nargs="+", default=list(SLOTS), choices=SLOTS)
    parser.add_argument("--tokens", nargs="+", default=list(TOKENS), choices=TOKENS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--store", default="", help="name of the stored rows")
    asked = parser.parse_args()
    folder: Path = asked.folder
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "data.jsonl").exists():
        write_data(folder / "data.jsonl")
    wanted = list(settings(folder, asked.slots, asked.tokens))
    seeds = parse_seeds(asked.seeds)
    jobs = [[job(folder, *setting, seed) for setting in wanted] for seed in seeds]
    progress = partial(print, end="\r", flush=True)
    runner = Runner(asked.jobs, report=lambda done, total, seen: progress(f"{done:.0f}/{total:.0f} updates  {seen:60}"))
    RunFolders(folder, resume=True, runner=runner).fill([each for some in jobs for each in some])
    rows = [row(slot, token, [some[i] for some in jobs]) for i, (slot, token, _) in enumerate(wanted)]
    if asked.store:
        from tools.findings import write_rows

        write_rows(asked.store, rows)
    from tools.results import markdown

    print("\n" + markdown(list(COLUMNS), [[cell(each) for cell in COLUMNS.values()] for each in rows]))


if __name__ == "__main__":
    main()
