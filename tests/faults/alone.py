"""What a command leaves behind when nothing happens to it: what all others are compared with."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.children import Child, Ended, Fault, run
from tests.faults.commands import COMMANDS, LM_TRAIN, Command, content, difference


@dataclass
class Alone:
    """A command that was left alone, and the folder in which others are begun like it."""

    command: Command
    folder: Path
    model: Path | None
    whole: Ended
    content: dict[str, Any]

    @classmethod
    def of(cls, name: str, folder: Path) -> "Alone":
        """Run the command once."""
        command, own = COMMANDS[name], folder / name.replace(" ", "_")
        model = None
        if "MODEL" in command.words.split():
            model = folder / "model"
            if not model.exists():
                assert run(LM_TRAIN.argv(model), model).status == 0
        alone = cls(command, own, model, Ended(None, "", 0, 0.0, 0.0), {})
        out = alone.fresh("alone")
        alone.whole = alone.run(out)
        assert alone.whole.status in (0, 1), alone.whole.said  # 1: what so small a run finds does not hold
        assert alone.whole.calls, alone.whole.said  # it came to its end, and it has written
        alone.content = content(out)
        return alone

    def fresh(self, name: str) -> Path:
        """A folder where the command can be begun."""
        out = self.folder / name
        shutil.rmtree(out, ignore_errors=True)
        if self.command.file:
            out.mkdir(parents=True)
        return out

    def begin(self, out: Path, fault: Fault = Fault()) -> Child:  # noqa: B008  (frozen)
        """The command at work in a folder."""
        return Child(self.command.argv(out, self.model), out, fault)

    def run(self, out: Path, fault: Fault = Fault()) -> Ended:  # noqa: B008
        """The command from its beginning to its end, or from where it was left."""
        return self.begin(out, fault).wait()

    def wrong(self, out: Path, ended: Ended) -> str | None:
        """In which way a run that has come to its end is not as it is when left alone."""
        if ended.status != self.whole.status:
            return f"ended with {ended.status}, saying {ended.said[-300:]!r}"
        if left := [path.name for path in out.rglob("*.tmp")]:
            return f"{left[0]} is left over"
        return difference(content(out), self.content)
