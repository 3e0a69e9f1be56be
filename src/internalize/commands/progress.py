"""Progress on standard error: a bar on a terminal, otherwise a plain line every few seconds."""

import sys
import time
from types import TracebackType
from typing import TextIO

SECONDS_BETWEEN_LINES = 5.0
_BAR, _CLOCK = 16, 8
"""Columns of the bar, and of the time left."""


class ProgressDisplay:
    """A display of the work done, the latest measurement, and the time left."""

    def __init__(self, title: str, stream: TextIO | None = None) -> None:
        self._title = title
        self._stream = stream or sys.stderr
        self._began = self._shown = time.monotonic()
        self._first: float | None = None
        self._bar = None
        if self._stream.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (
                BarColumn(bar_width=_BAR),
                TextColumn("{task.fields[count]}", markup=False),
                TextColumn("{task.fields[seen]}", markup=False),
                TimeRemainingColumn(compact=True),
            )
            self._bar = Bar(*columns, console=Console(file=self._stream), transient=True)
            self._task = self._bar.add_task("", total=None, seen="", count="")

    def __enter__(self) -> "ProgressDisplay":
        if self._bar:
            self._bar.start()
            self.note(self._title)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def note(self, line: str) -> None:
        """Print a line that stays on the screen, above the bar."""
        if self._bar:
            self._bar.console.print(line, markup=False, highlight=False)
        else:
            print(f"{self._title}: {line}", file=self._stream, flush=True)

    def show(self, done: float, total: float, seen: str) -> None:
        """Show that ``done`` of ``total`` is done, and the latest measurement.

        On a narrow terminal the front of the measurement is cut off, not the bar.
        """
        now = time.monotonic()
        if self._bar:
            count = f"{done:g}/{total:g}"
            room = self._bar.console.width - _BAR - len(count) - _CLOCK - 3  # a space between columns
            seen = seen if len(seen) <= room else f"…{seen[len(seen) - room + 1 :]}" if room > 1 else ""
            self._bar.update(self._task, completed=done, total=total, seen=seen, count=count)
        elif done >= total or now - self._shown >= SECONDS_BETWEEN_LINES:
            self._shown = now
            print(
                f"{self._title}: {done:g}/{total:g}  {seen}{self._left(now, done, total)}",
                file=self._stream,
                flush=True,
            )
        if self._first is None:
            self._first, self._began = done, now

    def _left(self, now: float, done: float, total: float) -> str:
        if self._first is None or done <= self._first or done >= total:
            return ""
        return f"  {(now - self._began) / (done - self._first) * (total - done):.0f} s left"
