"""An exit status that holds even if a library ends the process."""

import ctypes


def end_with(status: int) -> None:
    """Make exit() of the C library end with ``status``, whoever calls it. The latest call of this function wins.

    OpenMP, for example, calls exit(1) if it cannot start a thread, but our status 1 means that a statement does not
    hold.
    """
    libc = ctypes.CDLL(None)
    libc.__cxa_atexit(ctypes.cast(libc._exit, ctypes.c_void_p), ctypes.c_void_p(status), None)
