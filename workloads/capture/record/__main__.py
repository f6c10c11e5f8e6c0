"""`python -m prestep.workloads.capture.record --out FILE --gpu NAME --step K -- SCRIPT ARGS`, started as torchrun
would."""

from __future__ import annotations

import argparse
import atexit
import gzip
import json
import os
import runpy
import sys
import threading
import traceback
from types import SimpleNamespace
from typing import Any, NoReturn

import torch

from prestep.workloads.capture.record import (
    collectives,
    flex,
    graphs,
    launches,
    modes,
    pipelines,
    regions,
    saving,
    sharded_states,
    stand_in,
    steps,
)
from prestep.workloads.capture.record.dispatch import Recorder
from prestep.workloads.capture.record.exchange import Exchange
from prestep.workloads.capture.record.modes import Names
from prestep.workloads.capture.record.values import Experts

#: Errors of programs that ask a network which is not there: of Python, requests, the Hugging Face Hub.
UNREACHABLE = {"gaierror", "ConnectionError", "URLError", "OfflineModeIsEnabled"}
DOWNLOADS = (
    "prestep capture: the program downloads data or weights. Put them where it looks for them first (its cache, or a "
    "folder that an argument names); their values do not matter, their shapes do"
)


def main() -> None:
    options, script, arguments = _read_command_line()
    exchange = Exchange(int(os.environ["RANK"]))
    recorder = _recorder(options, exchange)
    kept = steps.watch(recorder, options.step, options.stop, options.mark)
    ending: Any = None
    try:
        ending = _run(script, arguments, recorder)
    finally:
        kept.finish()
        exchange.keep()
        _write(options.out, kept, torch.__version__)
    _leave(ending)


def _leave(ending: Any) -> NoReturn:
    """Ends as `sys.exit` does, but for the destructors of libraries.

    PyTorch's threads of a device that Python stands in for are now and then still there when its libraries are taken
    apart, which aborts a program that has done all its work.
    """
    if not (ending is None or isinstance(ending, int)):
        print(ending, file=sys.stderr)
        ending = 1
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit((ending or 0) & 0xFF)


def _recorder(options: argparse.Namespace, exchange: Exchange) -> Recorder:
    """What writes the program's operations down, with all that stands in CUDA's place."""
    properties = SimpleNamespace(**json.loads(options.gpu))
    fake = stand_in.install(properties, options.gpus, int(os.environ["LOCAL_RANK"]))
    Experts.busiest = options.busiest
    recorder = Recorder(fake, exchange)
    collectives.install(recorder.works)
    stand_in.name_devices_by_number()
    saving.install(fake)
    sharded_states.install()
    pipelines.install()
    stand_in.put_content()
    graphs.install()
    flex.install(recorder.assumed)
    launches.install(recorder.launch)
    modes.install(recorder)
    launches.profile_the_host()
    regions.install(recorder.storages)
    return recorder


def _run(script: str, arguments: list[str], recorder: Recorder) -> Any:
    """The program, as if Python had been started with it; its exit code, if it says one."""
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    try:
        with Names(), recorder:
            runpy.run_path(script, run_name="__main__")
    except steps.Recorded:
        return None
    except SystemExit as stop:
        return stop.code
    except launches.Refused as refused:
        print(f"{_line_of(refused, script)}{refused}", file=sys.stderr)
        return 1
    except Exception as error:  # printed as Python prints what ends a program
        sys.excepthook(*sys.exc_info())
        if _wants_network(error):
            print(DOWNLOADS, file=sys.stderr)
        return 1
    return None


def _line_of(error: BaseException, script: str) -> str:
    """Where in the script an error came from: "train.py:12: ", or nothing."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == script]
    return f"{script}:{lines[-1]}: " if lines else ""


def _wants_network(error: BaseException | None) -> bool:
    """Whether a name could not be looked up, or nobody answered, in an error or in what led to it."""
    while error is not None:
        names = {kind.__name__ for kind in type(error).__mro__}
        if names & UNREACHABLE:
            return True
        error = error.__cause__ or error.__context__
    return False


def _read_command_line() -> tuple[argparse.Namespace, str, list[str]]:
    parser = argparse.ArgumentParser(prog="prestep.workloads.capture.record")
    parser.add_argument("--out", required=True)
    parser.add_argument("--gpu", required=True, help="properties of the GPU as JSON")
    parser.add_argument("--gpus", type=int, default=8, help="GPUs of a host")
    parser.add_argument("--step", type=int, default=3, help="which step is kept")
    parser.add_argument("--stop", action="store_true", help="end with that step")
    parser.add_argument("--busiest", type=float, default=1.0, help="expert over mean")
    parser.add_argument("--mark", default="", help="ranges that steps begin with")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    return options, options.command[0], options.command[1:]


def _write(path: str, kept: Any, version: str) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        json.dump({**kept.recording(), "torch": version}, file, separators=(",", ":"))


if __name__ == "__main__":
    main()
