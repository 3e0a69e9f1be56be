"""Ctrl-C and SIGTERM as a flag that a loop checks, so that work stops between two steps and is saved."""

import signal
import threading
from types import FrameType
from typing import Any


class Interrupted(Exception):  # noqa: N818  (not an error: the state is saved, the command exits with 130)
    """The user asked to stop, and all progress is saved. The message says how to continue."""


class Interruptible:
    """A context in which the first Ctrl-C or SIGTERM sets ``requested``, and a second Ctrl-C stops at once.

    With ``active=False`` it changes nothing: if there is nothing to save, Ctrl-C should stop at once.
    """

    def __init__(self, *, active: bool = True) -> None:
        self.requested = False
        self._active = active
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interruptible":
        if self._active and threading.current_thread() is threading.main_thread():  # only this thread can set handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True
        outer = getattr(self._before[number], "__self__", None)
        if isinstance(outer, Interruptible):  # nested contexts: both must stop
            outer.requested = True
