"""Ctrl-C and SIGTERM as a question that a loop asks, so that work stops between two steps and is saved."""

import signal
import threading
from types import FrameType
from typing import Any


class Interrupted(Exception):  # noqa: N818  (not an error: the state is saved, the command exits with 130)
    """The user asked to stop, and everything up to here is saved. Its text says how to go on."""


class Interruptible:
    """While entered, the first Ctrl-C or SIGTERM sets ``requested``; a second Ctrl-C stops at once.

    Not ``active``, it changes nothing: where there is nothing to save, Ctrl-C should stop at once.
    """

    def __init__(self, *, active: bool = True) -> None:
        self.requested = False
        self._active = active
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interruptible":
        if self._active and threading.current_thread() is threading.main_thread():  # handlers can be set nowhere else
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
        if isinstance(outer, Interruptible):  # work inside of work: both are asked to stop
            outer.requested = True
