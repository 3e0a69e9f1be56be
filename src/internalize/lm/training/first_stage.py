"""A first stage that several runs share: one run trains it and keeps a checkpoint, the others continue from a copy.

The first stage shows the whole chain, so different methods often begin with the same updates. This is not assumed: a
run that takes over a first stage compares everything that the stage depends on, including every batch.
"""

import hashlib
import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from internalize.errors import InputError
from internalize.lm.options import LmTrainOptions
from internalize.lm.training.internalization import Internalization
from internalize.lm.training.trainer_checkpoints import (
    FIRST_STAGE,
    GOOD,
    PLACE,
    checkpoint_digests,
    checkpoint_step,
    read_place,
)
from internalize.storage.files import Json, present, sealed, write_atomically, write_json, writing
from internalize.storage.runs import Run

FOLDER: Final = "first-stage"
"""Folder in the owner's run, with a Trainer's checkpoint of the stage's last evaluation and the metrics so far."""
METRICS: Final = "metrics.jsonl"


@dataclass
class SharedStage:
    """A shared first stage as one run uses it. The owner trains and keeps it; another run continues from it."""

    owner: Run
    taken: int = 0
    """The number of updates that the run took over from the owner."""
    refusal: str = ""
    """The reason why the run trains its own first stage; empty if it does not."""

    @property
    def folder(self) -> Path:
        """The folder of the checkpoint."""
        return self.owner.path / FOLDER

    @property
    def kept(self) -> bool:
        """Whether the owner has completed the stage."""
        return present(self.folder / PLACE)

    def keep(self, checkpoint: Path, place: Json, work: Internalization) -> None:
        """Keep a complete copy of the owner's checkpoint, or none. Its place records nothing about later stages."""
        if self.kept:  # by an earlier process that was killed
            return
        beside = self.folder.with_name(f".{FOLDER}.tmp")
        with writing(self.folder):
            shutil.rmtree(beside, ignore_errors=True)
            shutil.copytree(checkpoint, beside, ignore=shutil.ignore_patterns(GOOD))
            (beside / METRICS).write_bytes((self.owner.path / METRICS).read_bytes()[: place["metrics_bytes"]])
            depends = _dependencies(work, place["step"])
            own: Json = {"stages": [], "files": checkpoint_digests(beside), FIRST_STAGE: depends}
            write_json(beside / PLACE, sealed({**place, **own}))
            beside.replace(self.folder)

    def take_over(self, run: Run, work: Internalization) -> None:
        """Copy the checkpoint to a run, unless the run is already further or would train the stage differently."""
        begins = checkpoint_step(run.path / "checkpoint")
        try:
            if not self.kept:
                raise InputError(f"{self.owner.path} has no first stage to continue from")
            place = read_place(self.folder)
        except InputError as error:
            self.refusal = "" if begins or run.path == self.owner.path else str(error)
            return
        if place["step"] <= begins:
            return
        own, theirs = _dependencies(work, place["step"]), place.get(FIRST_STAGE, {})
        if different := [name for name in own if own[name] != theirs.get(name)]:
            self.refusal = f"its {' and '.join(different)} are not those of {self.owner.path}"
            return
        checkpoint = run.path / "checkpoint" / f"checkpoint-{place['step']}"
        beside = checkpoint.with_name(f".{checkpoint.name}.tmp")
        with writing(checkpoint):
            for left in (beside, checkpoint):  # by a process that was killed
                shutil.rmtree(left, ignore_errors=True)
            shutil.copytree(self.folder, beside)
            write_atomically(run.path / METRICS, (self.folder / METRICS).read_bytes())
            beside.replace(checkpoint)
        self.taken = place["step"] - begins

    def drop(self) -> None:
        """Remove the checkpoint once every run has used it."""
        for folder in (self.folder, self.folder.with_name(f".{FOLDER}.tmp")):
            shutil.rmtree(folder, ignore_errors=True)


def first_stage_options(options: LmTrainOptions) -> LmTrainOptions:
    """Return the options with fixed values for those that differ between methods and have no effect on the first stage.

    A method may still order or split the chain differently. The comparison of batches shows whether it does.
    """
    fixed = replace(options, method="log-icot", side="left", cutoff=None)
    return replace(fixed, stage_steps=1) if options.advance == "steps" and options.first_steps else fixed


def _dependencies(work: Internalization, updates: int) -> dict[str, str]:
    """Return a digest of each thing that the first updates depend on."""
    batch, stages = work.options.batch, work.stages
    batches = hashlib.sha256()
    for update in range(updates):
        for name, values in work.collator(range(update * batch, (update + 1) * batch)).items():
            batches.update(f"{name} {values if isinstance(values, bool) else values.numpy().tobytes()}".encode())
    held_out = [stages.sequence(chain, 0, (0,)) for chain in work.text.chains(work.callback.validation)]
    options = {**first_stage_options(work.options).as_json(), "seed": work.seed, "several_stages": stages.count > 1}
    return {
        "options": _digest(json.dumps(options, sort_keys=True)),
        "model's dimensions": _digest(work.config.to_json_string()),
        "training batches": batches.hexdigest(),
        "held-out examples": _digest(repr((held_out, stages.stage_slots[0], stages.hidden[0]))),
    }


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
