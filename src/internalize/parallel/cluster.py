"""Jobs on a Ray cluster, as `pool.run_all` has them on local processes: the same jobs, the same calls, the same rows.

The package must be installed on every machine of the cluster. Nothing is shared but what a job hands back, so its machines need
no common disk. A task whose worker or machine dies is begun again by Ray.
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
"""Tasks sent for each CPU, so that none waits for us."""
_CONNECT_SECONDS: Final = 5.0
_ANSWER_SECONDS: Final = 20.0
_PROBE: Final = "import ray, sys; ray.init(sys.argv[1], log_to_driver=False, logging_level='error')"


def run_on_ray(
    tracker: JobTracker[J], address: str | None, at_once: int | None, how_to_continue: str, *, attempts: int
) -> list[Killed[J]]:
    """Run the jobs of a tracker, each on one CPU of the cluster, and return those whose workers died too often.

    Args:
        tracker: the jobs, and who hears of them: of progress whenever one has ended.
        address: of the cluster; without one, a cluster of this machine alone that ends with the jobs.
        at_once: at most so many at once; default: as many as the cluster has CPUs.
        how_to_continue: what the user is told after an interruption or a crash.
        attempts: how often a job is begun whose worker dies.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM; jobs that have not ended are dropped.
    """
    jobs = tracker.jobs
    crashes: list[str] = []
    killed: list[Killed[J]] = []
    with _cluster(address, at_once) as ray, Interruptible() as interrupt:  # Ray has a handler of its own
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
                    tracker.gone(number)
                except ray.exceptions.RayError as error:  # a bug in the job
                    crashes.append(f"{jobs[number].name}: {error}")
                    tracker.gone(number)
    if interrupt.requested:
        raise Interrupted(how_to_continue)
    if crashes:
        raise RuntimeError(f"{'; '.join(crashes)}; {how_to_continue}")
    return killed


def load_ray(address: str | None = None) -> Any:
    """Return Ray itself; refused where it is not installed, or where no cluster answers at the address."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as later versions have it; otherwise a warning
    try:
        ray = importlib.import_module("ray")
    except ImportError:
        raise InputError("on=ray needs Ray, which is not installed: pip install 'internalize[ray]'") from None
    if address and not ray.is_initialized():
        try:
            _check_cluster(address)
        except (OSError, ValueError, OverflowError) as error:
            raise InputError(f"address={address!r} is not a Ray cluster that can be reached: {error}") from None
    return ray


def _check_cluster(address: str) -> None:
    """Raise an error if no cluster answers in time. Ray itself waits for minutes and cannot be interrupted: ask in a process."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon:  # otherwise a word of Ray's own, as auto
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
    """Ray, connected to a cluster; to the one that this process is connected to already, if it is."""
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
