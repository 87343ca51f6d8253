"""`triton-mblt serve`: one tritonserver in the foreground, from the first port check to the last process being gone.

Owns the order of things and what a person reads; the parts (run folder, command line, process, watchdog) know nothing
of each other. Everything runs in the main thread, except the reader of the server's output.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from triton_mblt.core.control_path import remove_sockets
from triton_mblt.core.errors import ConfigError
from triton_mblt.core.server_settings import ServerSettings
from triton_mblt.core.settings import process_environment
from triton_mblt.launcher import rundir
from triton_mblt.launcher.backend_dir import assemble, find_embedded_server
from triton_mblt.launcher.banner import banner
from triton_mblt.launcher.checks import port_trouble
from triton_mblt.launcher.command import RUN_DIR_VARIABLE, command_line, environment
from triton_mblt.launcher.control_client import ControlClient, LmProbe
from triton_mblt.launcher.logs import ServerLog
from triton_mblt.launcher.process import ServerProcess, adopt_orphans
from triton_mblt.launcher.watchdog import Watchdog, describe_exit

_PROGRESS_S = 5.0


class StopRequest:
    """Ctrl-C, SIGTERM or SIGHUP, counted: the first asks for an orderly stop, the second for an immediate one."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._again = threading.Event()

    def signalled(self, _number: int, _frame: FrameType | None) -> None:
        (self._again if self._asked.is_set() else self._asked).set()

    def wait(self, seconds: float) -> bool:
        return self._asked.wait(seconds)

    def asked(self) -> bool:
        return self._asked.is_set()

    def hurry(self) -> bool:
        return self._again.is_set()


def serve(settings: ServerSettings) -> int:
    """Run the server until asked to stop. Returns the exit code. Errors: ConfigError before anything is started."""
    for name, port in settings.ports().items():
        trouble = port_trouble(settings.address, port)
        if trouble is not None:
            option = name.replace("_", "-")
            raise ConfigError(
                f"port {port} on {settings.address} {trouble}: choose another with --{option} ({name.upper()}=... for "
                "make)",
                param=name,
            )
    embedded = find_embedded_server()
    adopt_orphans()
    rundir.sweep()
    run = rundir.create()
    try:
        backends, library = assemble(embedded, run.path)
        command = command_line(embedded, settings, run, backends)
        env = environment(embedded, settings, run, library, process_environment())
        log = ServerLog(verbose=settings.verbose)

        def start() -> ServerProcess:
            return ServerProcess(command, env, f"{RUN_DIR_VARIABLE}={run.path}", _printer(log))

        with _signals() as stop:
            return _Session(settings, run, log, start, stop).run_until_stopped()
    finally:
        run.remove()


class _Session:
    """The life of one `serve`: first start, watch, restarts, stop. Owns the current server process."""

    def __init__(
        self,
        settings: ServerSettings,
        run: rundir.RunDir,
        log: ServerLog,
        start: Callable[[], ServerProcess],
        stop: StopRequest,
    ) -> None:
        self._settings, self._run, self._log, self._start, self._stop = settings, run, log, start, stop
        self._client = ControlClient(settings, run)
        self._began = time.monotonic()
        say(f"starting tritonserver{' with an EMULATED NPU' if settings.npu == 'emulated' else ''} ...")
        self._server = start()

    def run_until_stopped(self) -> int:
        try:
            if not self._wait_ready():
                return 0 if self._stop.asked() else self._explain_failed_start()
            watchdog = Watchdog(LmProbe(self._client) if self._client.has_control() else None)
            watchdog.server_is_ready(self._server)
            say(banner(self._settings, self._run, time.monotonic() - self._began))
            self._watch(watchdog)
            return 0
        finally:
            self._end()

    def _wait_ready(self) -> bool:
        """True when all models are ready; False when asked to stop, when the server ended, or after the start limit."""
        began = last = time.monotonic()
        while not self._stop.wait(0.1):
            now = time.monotonic()
            if self._server.exit_code() is not None or now - began > self._settings.start_limit_s:
                return False
            if self._client.is_ready():
                return True
            if now - last >= _PROGRESS_S:
                last = now
                say(f"  loading models, {now - began:.0f} s")
        return False

    def _watch(self, watchdog: Watchdog) -> None:
        self._clear_counters()
        while not self._stop.wait(0.5):
            trouble = watchdog.trouble(self._server)
            if trouble is None:
                continue
            pause = watchdog.pause_s()
            say(f"{trouble}; starting it again in {pause:g} s")
            self._end_server(self._settings.stop_limit_s, self._stop.asked)
            if self._stop.wait(pause):
                return
            self._server = self._start()
            if self._wait_ready():
                watchdog.server_is_ready(self._server)
                say("tritonserver is ready again")

    def _explain_failed_start(self) -> int:
        code = self._server.exit_code()
        if code is None:
            say(f"tritonserver was not ready after {self._settings.start_limit_s:g} s; giving up")
            return 1
        self._server.stop(1.0)  # lets the reader see the last lines
        for model, reason in self._log.failures.items():
            say(f"model {model} cannot be loaded: {reason}")
        why = "" if self._log.failures else "; its own lines above say why"
        say(f"tritonserver ended with {describe_exit(code)} before it was ready{why}")
        return 1

    def _end_server(self, limit_s: float, hurry: Callable[[], bool]) -> None:
        """End the processes, then what they would have removed themselves had nobody killed them."""
        self._server.stop(limit_s, hurry)
        self._run.remove_shared_memory()
        remove_sockets(self._server.pid)
        self._clear_counters()

    def _clear_counters(self) -> None:
        """Remove the counter files of emulated NPUs whose processes are gone."""
        if self._settings.npu == "emulated":
            from triton_mblt.emulator.stats import read_stats  # half a second, not before the server is started

            read_stats(latest=0)

    def _end(self) -> None:
        limit_s, began = self._settings.stop_limit_s, time.monotonic()
        if self._stop.asked():
            self._log.stopping()
            say("stopping ... (Ctrl-C again stops at once)")
            if self._server.exit_code() is None and self._client.has_control():
                self._client.drain(limit_s / 2, self._stop.hurry)
        self._end_server(limit_s - (time.monotonic() - began), self._stop.hurry)
        if self._stop.asked():
            say("stopped")


@contextmanager
def _signals() -> Iterator[StopRequest]:
    """Route the stop signals into a StopRequest for the time of the block."""
    stop = StopRequest()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, stop.signalled) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def say(text: str) -> None:
    """Print for the person at the terminal. A terminal that is gone must not keep the server from being stopped."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _printer(log: ServerLog) -> Callable[[str], None]:
    def on_line(line: str) -> None:
        shown = log.shown(line)
        if shown is not None:
            say(shown)

    return on_line
