"""A status that only we decide, whoever ends the process."""

import ctypes


def end_with(status: int) -> None:
    """Let exit() of the C library end with ``status``, whoever calls it. The latest call of this function decides.

    OpenMP, for one, ends the process with status 1 when it cannot start a thread; ours means that something does not hold.
    """
    libc = ctypes.CDLL(None)
    libc.__cxa_atexit(ctypes.cast(libc._exit, ctypes.c_void_p), ctypes.c_void_p(status), None)
