"""Runs the stages one after the other within the time, and packs what they wrote."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prestep.sim import progress
from prestep.validation.measure import bundle, cases, launch
from prestep.validation.measure.options import Options, Place, look
from prestep.validation.measure.plan import HOST, Skip, Stage, load, probes, stages
from prestep.validation.measure.session import Session
from prestep.validation.measure.settings import environment

PACKING = 8.0  # s kept for the end, at most a tenth of all
LEAST = 6.0  # s that a group needs to start at all
WORTH = 16.0  # s below which a group would do little but start: the last stages are left out rather than all cut short
GRACE = 12.0  # s beyond its time before a group is ended
Talk = Callable[[str], None]


def measure(options: Options, talk: Talk) -> Path | None:
    """Measures this machine; the file written, None on processes other than the first."""
    begin = time.time()
    place = look(options)
    with _folder(options) as folder:
        run = _Run(
            options, place, folder, begin, talk if place.rank == 0 else lambda _: None
        )
        run.everything()
        return run.packed() if place.rank == 0 else None


@contextmanager
def _folder(options: Options) -> Iterator[Path]:
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
        yield options.folder
        return
    folder = Path(tempfile.mkdtemp(prefix="prestep-measure-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Run:
    def __init__(
        self, options: Options, place: Place, folder: Path, begin: float, talk: Talk
    ) -> None:
        self.options, self.place, self.folder = options, place, folder
        self.begin, self.talk = begin, talk
        self.logs = folder / "logs"
        self.logs.mkdir(exist_ok=True)
        self.cases = list(cases.load(options.cases).training) if options.cases else None
        self.stages_run: list[dict[str, Any]] = []
        self.end = begin + 60 * options.minutes - min(PACKING, 6 * options.minutes)

    def everything(self) -> None:
        planned, skips = stages(self.options, self.place)
        self.talk(self._headline(len(planned)))
        for skip in skips:
            self._skip(skip)
        for at, stage in enumerate(self._watched(planned)):
            left = self.end - time.time()
            seconds = left * stage.weight / sum(s.weight for s in planned[at:])
            group = probes()[stage.probes[0]].needs != HOST
            if group:
                seconds = min(max(seconds, WORTH), left)
            if left < (LEAST if group else 1.0):
                why = f"no time left ({max(0.0, left):.0f} s)"
                self._skip(Skip(stage.probes[0], stage.name, why))
            else:
                self._stage(at, stage, seconds)
        if self.place.torchrun and self.place.world > 1:
            self._collect()

    def _collect(self) -> None:
        """Brings the rows together: under torchrun every process has a folder of its own."""
        spec = self._spec("collect", 0, {"folder": str(self.folder), "collect": True})
        port = launch.free_port(self.place, 4000)
        place, until = self.place, time.time() + 120
        launch.run_group(spec, place, place.world, {}, self.logs, until, port)

    def _watched(self, planned: Sequence[Stage]) -> Iterator[Stage]:
        """The stages, and on a terminal how much of the time for them has gone."""
        length = max(self.end - time.time(), 1e-3)
        with progress.watch("measuring", lambda: 1 - (self.end - time.time()) / length):
            yield from planned

    def _headline(self, count: int) -> str:
        place = self.place
        what = f"{place.world} x {place.model}" if place.gpus else "no GPU"
        rehearsal = ", a rehearsal on CPUs: these times mean nothing"
        rehearsal = rehearsal if self.options.rehearse else ""
        return (
            f"{what}, PyTorch {place.torch or 'not here'}, "
            f"{count} stages, {self.options.minutes:g} minutes{rehearsal}"
        )

    def _stage(self, at: int, stage: Stage, seconds: float) -> None:
        begin = time.time()
        if probes()[stage.probes[0]].needs == HOST:
            ended = self._on_host(stage, begin + seconds)
        else:
            ended = self._in_group(at, stage, begin + seconds)
        took = time.time() - begin
        times = {"seconds": round(took, 1), "given": round(seconds, 1)}
        self.stages_run.append({"stage": stage.name, **times, **ended})
        self.talk(
            f"{stage.name:24} {took:6.1f} s of {seconds:5.1f}"
            + ("" if ended["good"] else "   FAILED, see skipped")
        )

    def _on_host(self, stage: Stage, until: float) -> dict[str, Any]:
        if self.place.local_rank != 0:
            return {"good": True}
        env = {"RANK": str(self.place.rank), "WORLD_SIZE": "1"}
        spec = {
            "folder": str(self.folder),
            "until": until,
            "tiny": self.options.rehearse,
            "stage": stage.name,
        }
        session = Session(spec, env)
        session.cuda = False
        try:
            with session.probing(stage.probes[0], until):
                load(stage.probes[0])(session)
        except Exception as error:
            self._skip(
                Skip(stage.probes[0], stage.name, f"{type(error).__name__}: {error}")
            )
            return {"good": False}
        return {"good": True}

    def _in_group(self, at: int, stage: Stage, until: float) -> dict[str, Any]:
        """The group of a stage; when a process dies, another group does what was not begun yet."""
        env = self._environment(stage)
        left, tried = list(zip(stage.probes, stage.weights, strict=True)), set[str]()
        codes: list[dict[str, int | None]] = []
        good = False
        while left and not good:
            body = self._body(at, stage, left, until, sorted(tried))
            ended = self._attempt(at, stage, body, env, len(codes))
            codes.append(ended.by_rank)
            good = ended.good
            if not good:
                self._report(stage, ended)
                before = left, len(tried)
                left = self._not_begun(body["stage"], left, tried)
                if (left, len(tried)) == before:  # the next one would end as early
                    break
            if self.place.torchrun or time.time() > until - LEAST:
                break
        return {"good": good, "codes": codes, "env": launch.names_of(env)}

    def _report(self, stage: Stage, ended: launch.Ended) -> None:
        """Says which process of a stage ended, and with what last words."""
        why = f"a process ended: {ended.by_rank}\n{ended.output}"
        self._skip(Skip(stage.probes[0], stage.name, why))

    def _environment(self, stage: Stage) -> dict[str, str]:
        """Variables of a stage's processes."""
        env = environment(self.options, stage.variant)
        return {key: self._filled(value, stage) for key, value in env.items()}

    def _attempt(
        self,
        at: int,
        stage: Stage,
        body: dict[str, Any],
        env: dict[str, str],
        attempt: int,
    ) -> launch.Ended:
        """Runs one group of a stage."""
        spec = self._spec(body["stage"], attempt, body)
        port = launch.free_port(self.place, 10 * at + attempt)
        end = body["until"] + GRACE
        ranks, place, logs = stage.ranks, self.place, self.logs
        return launch.run_group(spec, place, ranks, env, logs, end, port)

    def _not_begun(
        self, name: str, probes: list[tuple[str, float]], tried: set[str]
    ) -> list[tuple[str, float]]:
        """Probes that have something left to do; adds what was begun to `tried`."""
        begun, done, items = self._progress(name)
        again = {name for name in begun - done if items.get(name, set()) - tried}
        tried |= {item for names in items.values() for item in names}
        return [(n, w) for n, w in probes if n not in begun or n in again]

    def _body(
        self,
        at: int,
        stage: Stage,
        probes: list[tuple[str, float]],
        until: float,
        tried: list[str],
    ) -> dict[str, Any]:
        return {
            "stage": f"{at} {stage.name}",
            "probes": probes,
            "until": until,
            "folder": str(self.folder),
            "tried": tried,
            "label": stage.variant.label,
            "tiny": self.options.rehearse,
            "cases": list(stage.variant.cases),
            "sizes": list(stage.variant.sizes),
            "training": self.cases,
            "nodes": self.place.nodes,
        }

    def _spec(self, name: str, attempt: int, body: dict[str, Any]) -> Path:
        title = "".join(c if c.isalnum() else "-" for c in name)
        path = self.folder / f"{title}.{attempt}.rank{self.place.rank}.json"
        path.write_text(json.dumps(body), encoding="utf-8")
        return path

    def _filled(self, value: str, stage: Stage) -> str:
        """{files} in a variable stands for the folder of files of the host's first process."""
        if "{files}" not in value:
            return value
        path = self.folder / f"rank{self.place.rank:05d}" / "files"
        (path / "nccl").mkdir(parents=True, exist_ok=True)
        return value.replace("{files}", str(path))

    def _progress(self, stage: str) -> tuple[set[str], set[str], dict[str, set[str]]]:
        """Probes begun and ended in a stage, and the items begun of each, on any process of this host."""
        begun, done, items = set[str](), set[str](), dict[str, set[str]]()
        for path in self.folder.glob("rank*/progress"):
            for line in path.read_text(encoding="utf-8").splitlines():
                where, what, name = json.loads(line)
                if where != stage:
                    continue
                probe, _, item = name.partition(":")
                if item:
                    items.setdefault(probe, set()).add(name)
                else:
                    (begun if what == "begin" else done).add(name)
        return begun, done, items

    def _skip(self, skip: Skip) -> None:
        if self.place.rank != 0:
            return
        folder = self.folder / "rank00000"
        folder.mkdir(exist_ok=True)
        with (folder / "skipped.jsonl").open("a", encoding="utf-8") as out:
            row = {"probe": skip.probe, "what": skip.what, "why": skip.why[:1500]}
            out.write(json.dumps(row) + "\n")
        self.talk(f"skipped {skip.what}: {skip.why.splitlines()[0][:200]}")

    def packed(self) -> Path:
        place = self.place
        about = {
            "gpus": place.gpus,
            "world": place.world,
            "nodes": place.nodes,
            "torch": place.torch,
            "nccl": place.nccl,
            "cuda": place.about.get("cuda"),
            "cudnn": place.about.get("cudnn"),
            "python": sys.version.split()[0],
            "options": self.options.to_json(),
            "stages": self.stages_run,
            "rehearsal": self.options.rehearse,
            "environment": launch.names_of(os.environ),
            "seconds": round(time.time() - self.begin, 1),
        }
        words = bundle.pack(
            self.folder, self.options.output, about, self.options.size_limit
        )
        self.talk(words)
        return self.options.output
