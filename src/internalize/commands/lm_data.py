"""`internalize lm data`."""

from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from internalize.commands.common_options import SeedOption, command
from internalize.commands.console import print_json, print_table, print_text, say
from internalize.errors import InputError
from internalize.lm.data.tasks import TaskStream, usage

_SHOWN = 10


@command
class LmData(SeedOption):
    """Write examples of a task, or check a data file.

    A text file has one example per line: `question||steps #### answer`. The steps are its <<…>> groups; without any,
    its words. In .jsonl and .json files (one object per line, or one array), .csv and .parquet files and data sets, an
    example has question, steps, answer and, if known, levels: one number per step, larger than those of the steps it
    needs. GSM8K's columns and chat messages are read, too. Text cannot hold levels or steps of several words.

    In the chains of words (products in a group), graph (which node can be reached), stories, parity:chain=running and
    arithmetic:shape=line, each step continues the one before. Those of the other tasks have levels that are known, or
    (multiply) running sums. With fewest, questions have different lengths, from fewest to the largest.

    --check reads a file or a data set, counts its examples and lists what cannot be read. The exit status is then 1 if
    there is any.

    Examples:
      internalize lm data --data multiply:digits=4
      internalize lm data --data parity:n=16,k=8 --count 4096 --stream test --out test.jsonl
      internalize lm data --data hops:hops=8,seed=3 --count 3 --json
      internalize lm data --data words:group=A5,length=12,fewest=4
      internalize lm data --data graph:form=symbols,nodes=16,edges=24,hops=3
      internalize lm data --check test.jsonl
      internalize lm data --check hf:some/folder:test
    """

    TITLE: ClassVar = "Data"

    data: Annotated[
        str, tyro.conf.arg(help=f"Task to write examples of, with its options or its defaults: {usage()}.")
    ] = ""
    count: int | None = None
    """Number of examples. Default: 10."""
    seed: int = 0
    """Random seed of the task. A seed in --data takes precedence."""
    stream: TaskStream = "train"
    """Set of examples to write. No training question is in validation or test."""
    out: Path | None = None
    """File to write. Default: print the examples."""
    check: str | None = None
    """File, folder of a data set or hf:NAME:SPLIT to read and check, item by item."""

    def __call__(self) -> int:
        """Write or check."""
        if bool(self.data) == (self.check is not None):
            raise InputError(
                f"give --data SPEC to write examples, or --check FILE to read some; the tasks are {usage()}"
            )
        if self.check is None:
            return self._write()
        if self.out is not None or self.count is not None:
            raise InputError("--out and --count belong to --data; --check only reads")
        return self._check(self.check)

    def _write(self) -> int:
        from internalize.lm.data.readers import as_json, text_line, write_examples
        from internalize.lm.data.source import open_source
        from internalize.lm.data.tasks import get_task

        task = get_task(self.data, self.seed)
        count = _SHOWN if self.count is None else self.count
        if count < 1:
            raise InputError(f"count={count} must be at least 1")
        if self.out is not None and self.out.is_dir():
            raise InputError(f"--out {self.out} is a folder; name a file for the examples")
        source = open_source(task.spec, self.seed, held_out=count if self.stream == "validation" else 0, say=say)
        match self.stream:
            case "train":
                examples = source.first(count)
            case "validation":
                examples = source.validation
            case "test":
                examples = source.test(count)
        if self.out is None:
            if self.json:
                found = [as_json(example) for example in examples]
                print_json({"data": source.spec, "stream": self.stream, "examples": found})
            else:
                print_text("\n".join(map(text_line, examples)))
            self.suggest("lm plan --data", self.data)
            return 0
        try:
            write_examples(self.out, examples)
        except InputError:
            write_examples(self.out, examples, keep_steps=False)
            say(f"{self.out}: text cannot hold levels or steps of several words; a file named .jsonl can")
        if self.json:
            print_json({"data": source.spec, "stream": self.stream, "count": count, "out": str(self.out)})
        else:
            say(f"{count} examples of {source.spec} are in {self.out}")
            self.suggest("lm plan --data", self.out)
        return 0

    def _check(self, path: str) -> int:
        from internalize.lm.data.levels import resolve_levels
        from internalize.lm.data.readers import scan
        from internalize.lm.data.rows import SENTENCES, SYSTEM

        contents = scan(path)
        examples, problems = contents.examples, contents.problems
        if not contents.total:
            raise InputError(f"{path} is empty; it needs one example per line or row")
        levels, examples = resolve_levels(examples, "auto") if examples else (None, examples)
        found = {
            "examples": len(examples),
            "problems": len(problems),
            "steps": sum(len(example.steps) for example in examples),
            "longest_chain": max((len(example.steps) for example in examples), default=0),
            "levels_from": levels,
            "levels": max((len(set(example.levels or ())) for example in examples), default=0),
            "without_steps": sum(not example.steps for example in examples),
            "from_lines": contents.counts[SENTENCES],
            "without_system": contents.counts[SYSTEM],
        }
        bad = [{"file": p.file, "line": p.line, "unit": p.unit, "reason": p.reason} for p in problems]
        if bad and not self.json:
            several = len({p.file for p in problems}) > 1
            places = [f"{p.unit} {p.line}{f' of {p.file}' * several}" for p in problems]
            print_table([{"place": place, **row} for place, row in zip(places, bad, strict=True)], ("place", "reason"))
        names = {
            "steps": "steps of all chains",
            "longest_chain": "steps of the longest chain",
            "without_steps": "examples without a step",
            "from_lines": SENTENCES,
            "without_system": SYSTEM,
            "levels_from": "levels come from",
            "levels": "largest number of levels",
        }
        special = ("from_lines", "without_system")
        facts = {names.get(name, name): value for name, value in found.items() if value or name not in special}
        if levels in ("steps", "tokens"):
            facts["levels come from"] = f"nowhere; half of the remaining {levels} are hidden at a time"
        self.show_facts({"file": path, **found, "bad": bad}, facts)
        if not bad:
            self.suggest("lm plan --data", path)
        return 1 if bad else 0
