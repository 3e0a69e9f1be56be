"""Checkpoints of a Trainer: which ones are complete, where the curriculum is in them, and checks of their content.

The Trainer pickles its optimizer, its schedule and its random states, and reads them with torch's restricted unpickler.
"""

import contextlib
import traceback
from collections.abc import Generator, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Annotated, Any, Final, NotRequired, TypedDict

import torch
from msgspec import Meta

from internalize.errors import InputError
from internalize.lm.training.model_files import OF_BAD_FILES
from internalize.storage.files import Json, check_seal, file_digests, read_json, reading
from internalize.storage.runs import trainer_checkpoints

PLACE: Final = "internalize.json"
"""File in a Trainer's checkpoint that records where the curriculum is. It is written last and marks it as complete."""
GOOD: Final = "good.safetensors"
"""File in a Trainer's checkpoint with the weights to go back to, if the current attempt may fail."""
BEST: Final = "best.safetensors"
"""File in a Trainer's checkpoint with the best weights so far, with ``keep_best``."""
FIRST_STAGE: Final = "first_stage"
"""Key in the place of a checkpoint that several runs continue from. Its value is what their first stage depends on. The
stage has been trained and evaluated. Each run decides by its own schedule whether it ends there, and what follows."""


_Natural = Annotated[int, Meta(ge=0)]


class CheckpointPlace(TypedDict):
    """The content of `PLACE`."""

    sha256: str
    step: _Natural
    attempts: Annotated[list[tuple[_Natural, _Natural]], Meta(min_length=1)]
    good: Annotated[int, Meta(ge=-1)]
    held: float
    best: tuple[float, float | None, int]
    stages: list[Json]
    latest: Json
    stop_at: _Natural | None
    losses: tuple[float, int]
    seconds: float
    files: dict[str, str]
    metrics_bytes: NotRequired[_Natural]
    best_kept: NotRequired[tuple[float, _Natural]]
    first_stage: NotRequired[dict[str, str]]


class TrainerStateFile(TypedDict):
    """The entries of a Trainer's ``trainer_state.json`` that we read."""

    global_step: _Natural


def read_place(checkpoint: Path) -> Json:
    """Check that a checkpoint's files are undamaged, and return its place in the curriculum."""
    place = read_json(checkpoint / PLACE, CheckpointPlace)
    check_seal(place, checkpoint / PLACE)
    with reading(checkpoint):
        found = checkpoint_digests(checkpoint)
    for name, digest in place["files"].items():
        if found.get(name) != digest:
            raise InputError(
                f"{checkpoint / name} is damaged or missing; remove {checkpoint} to continue from the previous one"
            )
    if pickled := found.keys() & {"pytorch_model.bin", "adapter_model.bin"}:
        file = checkpoint / min(pickled)
        raise InputError(f"{file} is not a safetensors file, and weights are read from no other format")
    state = read_json(checkpoint / "trainer_state.json", TrainerStateFile)
    if state["global_step"] != place["step"]:
        raise InputError(
            f"{checkpoint} is damaged: its files are from updates {state['global_step']} and {place['step']}"
        )
    return place


def whole_checkpoints(folder: Path) -> list[Path]:
    """Return a Trainer's complete checkpoints, oldest first."""
    return [path for path in trainer_checkpoints(folder) if (path / PLACE).exists()]


def checkpoint_step(folder: Path) -> int:
    """Return the update of the last complete checkpoint in a folder, or 0 if there is none."""
    whole = whole_checkpoints(folder)
    return int(whole[-1].name.removeprefix("checkpoint-")) if whole else 0


def check_restored(checkpoint: Path, model: Any, good: Mapping[str, torch.Tensor], optimizer: Any) -> None:
    """Refuse a checkpoint whose good weights or whose optimizer belong to another model."""
    trained = {name: weight.shape for name, weight in trained_parameters(model).items()}
    if good and trained != {name: weight.shape for name, weight in good.items()}:
        raise InputError(f"{checkpoint / GOOD} is damaged: it has the weights of another model")
    for weight, state in optimizer.state.items():
        if any(torch.is_tensor(value) and value.shape not in ((), weight.shape) for value in state.values()):
            raise InputError(f"{checkpoint / 'optimizer.pt'} is damaged: it belongs to another model")


@contextlib.contextmanager
def read_by_trainer(checkpoint: Path | None) -> Generator[None]:
    """Turn a Trainer's errors from a damaged checkpoint into an `InputError`."""
    from transformers import Trainer, TrainerState

    readers: tuple[Any, ...] = (
        Trainer._load_from_checkpoint,  # pyright: ignore[reportPrivateUsage]
        Trainer._load_optimizer_and_scheduler,  # pyright: ignore[reportPrivateUsage]
        Trainer._load_rng_state,  # pyright: ignore[reportPrivateUsage]
        TrainerState.load_from_json,
    )
    codes = {reader.__code__ for reader in readers}
    try:
        yield
    except (*OF_BAD_FILES, UnpicklingError, EOFError) as error:
        if not any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__)):
            raise
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{checkpoint} is damaged: {reason}; remove it to continue from the previous one") from error


def trained_parameters(model: Any) -> dict[str, torch.nn.Parameter]:
    """Return the trained parameters of a model, by their names in a run of one process."""
    return {name.removeprefix("module."): w for name, w in model.named_parameters() if w.requires_grad}


def checkpoint_digests(folder: Path) -> dict[str, str]:
    """Return a digest of each file of a checkpoint except its place."""
    return file_digests(path for path in folder.iterdir() if path.is_file() and path.name != PLACE)
