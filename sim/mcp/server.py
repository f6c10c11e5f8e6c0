"""The server that agents speak to, over stdin and stdout (Model Context Protocol)."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from mcp.server import Server
from mcp.server.stdio import stdio_server

import prestep
from prestep.sim import __version__
from prestep.sim.commands._shared import EXIT_OUTSIDE
from prestep.sim.errors import InputError, unknown
from prestep.sim.mcp import confined, tools

INSTRUCTIONS = """\
prestep simulates training steps on GPU clusters: how long a step takes, why, and what a change would do.
Begin with `list` (scenarios, clusters, models, gpus) and `run`. Changes are `set`: ["training.micro_batch=2",
"nvlink.bandwidth=2x", "cluster.hosts=16"]. Every prediction says what it rests on: read `uncertainty`, `evidence`,
`fallbacks`, `warnings` and `out_of_memory` before you quote a number, and quote the interval with it.
A tool error is prestep's own text: where, what was found, what was expected, what to do."""


class Calls:
    """Answers calls: each is a process of its own, which reads the given files and ends after `limit` seconds."""

    def __init__(self, roots: Sequence[Path], limit: float) -> None:
        self.roots = tuple(roots)
        self.limit = limit
        self.room = anyio.Semaphore(max(1, (os.cpu_count() or 2) - 1))

    async def listed(self, _: Any, __: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[_described(t) for t in tools.TOOLS.values()]
        )

    async def call(
        self, _: Any, asked: types.CallToolRequestParams
    ) -> types.CallToolResult:
        try:
            return await self._answer(asked.name, asked.arguments or {})
        except InputError as error:
            return _error(str(error))

    async def _answer(
        self, name: str, given: Mapping[str, Any]
    ) -> types.CallToolResult:
        if name not in tools.TOOLS:
            raise InputError(unknown("prestep mcp", "", name, tools.TOOLS, "a tool:"))
        tool = tools.TOOLS[name]
        with ExitStack() as stack:
            roots, said = self._with_scenario(tool, given, stack)
            words = tools.arguments(tool, said)
            confined.check(tools.texts(tool, said), roots)
            done = await self._done(confined.command(roots, words))
        return _error(_slow(self.limit)) if done is None else _result(done)

    def _with_scenario(
        self, tool: tools.Tool, given: Mapping[str, Any], stack: ExitStack
    ) -> tuple[list[Path], Mapping[str, Any]]:
        """A scenario that came as text is a file for the time of the call."""
        takes = tools.INLINE in tools.input_schema(tool)["properties"]
        text = given.get(tools.INLINE)
        if not takes or not isinstance(text, str):
            return [*self.roots], given
        if given.get("scenario") is not None:
            expected = f"one of scenario and {tools.INLINE}"
            raise InputError.of(tool.name, tools.INLINE, "both", expected)
        if not tools.is_text(text):
            expected = "a scenario (TOML) without zeros and halves of characters"
            raise InputError.of(tool.name, tools.INLINE, "others", expected)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        path = folder / "scenario.toml"
        path.write_text(text, encoding="utf-8")
        rest = {key: value for key, value in given.items() if key != tools.INLINE}
        return [*self.roots, folder], {**rest, "scenario": str(path)}

    async def _done(
        self, command: Sequence[str]
    ) -> subprocess.CompletedProcess[bytes] | None:
        """What the process printed; None if it took too long, and was ended."""
        known = os.environ.get("PYTHONPATH")
        path = os.pathsep.join(filter(None, (str(prestep.HOME), known)))
        async with self.room:
            with anyio.move_on_after(self.limit):
                done: subprocess.CompletedProcess[bytes] = await anyio.run_process(
                    command,
                    stdin=subprocess.DEVNULL,
                    check=False,
                    env={**os.environ, "PYTHONPATH": path},
                )
                return done
        return None


def _described(tool: tools.Tool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        description=tools.description(tool),
        input_schema=tools.input_schema(tool),
        output_schema=tools.output_schema(tool),
        annotations=types.ToolAnnotations(
            read_only_hint=True, idempotent_hint=True, open_world_hint=False
        ),
    )


def _result(done: subprocess.CompletedProcess[bytes]) -> types.CallToolResult:
    """The JSON that a command printed, with what it said beside; where it printed none, that alone, as an error."""
    said = done.stderr.decode(errors="replace").strip()
    if done.returncode not in (0, EXIT_OUTSIDE) or not done.stdout.strip():
        return _error(said or f"prestep ended with exit code {done.returncode}")
    value = tools.structured(json.loads(done.stdout))
    notes = [f"exit code {done.returncode}"] if done.returncode else []
    texts = [json.dumps(value), "\n".join([*notes, said]).strip()]
    return types.CallToolResult(
        content=[types.TextContent(text=text) for text in texts if text],
        structured_content=value,
    )


def _error(text: str) -> types.CallToolResult:
    # A name that nobody knows is repeated, and may have halves of characters.
    told = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return types.CallToolResult(content=[types.TextContent(text=told)], is_error=True)


def _slow(limit: float) -> str:
    return (
        f"not done after {limit:g} s, and ended: ask for less (fewer hosts, sizes or layouts), "
        "or start the server with a larger --time-limit"
    )


def serve(roots: Sequence[Path], limit: float) -> None:
    """Answers until stdin ends."""
    calls = Calls(roots, limit)
    server = Server(
        "prestep",
        version=__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=calls.listed,
        on_call_tool=calls.call,
    )

    async def run() -> None:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    anyio.run(run)
