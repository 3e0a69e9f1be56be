"""Jobs on a Ray cluster, with the same jobs, calls and results as `pool.run_all` on local processes.

The package must be installed on every machine of the cluster. Jobs share only what they return, so the machines need no
common disk. Ray restarts a task whose worker or machine dies.
"""

import contextlib
import importlib
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Generator
from typing import Any, Final

from internalize.errors import InputError, KilledReason
from internalize.parallel.interrupt import Interrupted, Interruptible
from internalize.parallel.pool import J, JobTracker, Killed, outcome

_AHEAD: Final = 2
"""Tasks sent per CPU, so that no CPU waits for the next one."""
_CONNECT_SECONDS: Final = 5.0
_ANSWER_SECONDS: Final = 20.0
"""How long to wait for a connection to the cluster, and for an answer."""
_PROBE: Final = "import ray, sys; ray.init(sys.argv[1], log_to_driver=False, logging_level='error')"


def run_on_ray(
    tracker: JobTracker[J], address: str | None, at_once: int | None, how_to_continue: str, *, attempts: int
) -> list[Killed[J]]:
    """Run the jobs of a tracker, each on one CPU of the cluster, and return those whose workers died too often.

    Args:
        tracker: the jobs. It reports progress whenever one ends.
        address: the cluster's address. Default: start a cluster on this machine that ends with the jobs.
        at_once: most jobs at a time. Default: enough to keep all CPUs of the cluster busy.
        how_to_continue: what the user is told after an interruption or a crash.
        attempts: how often a job is started if its worker dies.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM. Unfinished jobs are dropped.
    """
    jobs = tracker.jobs
    crashes: list[str] = []
    killed: list[Killed[J]] = []
    with (
        _cluster(address, at_once) as ray,
        Interruptible() as interrupt,
    ):  # in this order: Ray sets its own signal handler
        do = ray.remote(num_cpus=1, max_retries=attempts - 1)(outcome)
        waiting, running = deque(range(len(jobs))), dict[Any, int]()
        while (waiting or running) and not interrupt.requested:
            room = at_once or _AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
            while waiting and len(running) < room:
                number = waiting.popleft()
                running[do.remote(jobs[number])] = number
            for task in ray.wait(list(running), num_returns=1, timeout=0.2)[0]:
                number = running.pop(task)
                try:
                    tracker.ended(number, ray.get(task))
                except (
                    ray.exceptions.WorkerCrashedError,
                    ray.exceptions.OutOfMemoryError,
                    ray.exceptions.NodeDiedError,
                ) as error:
                    killed.append(Killed(jobs[number], KilledReason(f"its worker died: {str(error).splitlines()[0]}")))
                    tracker.close(number)
                except ray.exceptions.RayError as error:  # a bug in the job
                    crashes.append(f"{jobs[number].name}: {error}")
                    tracker.close(number)
    if interrupt.requested:
        raise Interrupted(how_to_continue)
    if crashes:
        raise RuntimeError(f"{'; '.join(crashes)}; {how_to_continue}")
    return killed


def load_ray(address: str | None = None) -> Any:
    """Import Ray. Raise an error if it is not installed, or if no cluster answers at the address."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # send no usage statistics
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # the default of later versions; avoids a warning
    try:
        ray = importlib.import_module("ray")
    except ImportError:
        raise InputError("backend=ray needs Ray, which is not installed: pip install 'internalize[ray]'") from None
    if address and not ray.is_initialized():
        try:
            _check_cluster(address)
        except (OSError, ValueError, OverflowError) as error:
            raise InputError(f"address={address!r} is not a Ray cluster that can be reached: {error}") from None
    return ray


def _check_cluster(address: str) -> None:
    """Raise an error if no cluster answers in time. Another process asks, because Ray waits uninterruptibly."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon:  # otherwise it is one of Ray's keywords, such as auto
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    command, nothing = (sys.executable, "-c", _PROBE, address), subprocess.DEVNULL
    try:
        asked = subprocess.run(command, stdin=nothing, capture_output=True, timeout=_ANSWER_SECONDS, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"no answer in {_ANSWER_SECONDS:g} seconds") from None
    if asked.returncode:
        raise OSError((asked.stderr.decode(errors="replace").splitlines() or ["Ray gives up"])[-1])


@contextlib.contextmanager
def _cluster(address: str | None, cpus: int | None) -> Generator[Any]:
    """Yield Ray connected to a cluster. A connection that this process already has is used and stays open."""
    ray = load_ray()
    if ray.is_initialized():
        yield ray
        return
    where: dict[str, Any] = {"address": address} if address else {"address": "local", "num_cpus": cpus}
    try:
        ray.init(**where, include_dashboard=False if not address else None, log_to_driver=False, logging_level="error")
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InputError(f"address={address!r} is not a Ray cluster that can be reached: {error}") from None
    try:
        yield ray
    finally:
        ray.shutdown()
