"""The pages of the site that are made when it is built: commands, Python interface, examples, changelog, contributing.

They go to docs/made/, which git ignores.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

COMMANDS = """# Commands

What `prestep COMMAND --help` says. Exit codes, completion and habits that all commands share:
[the command line](../command-line.md).
"""

LLMS = """# prestep

> prestep predicts how long a training step takes on a GPU cluster, and says why: a discrete-event simulator in Python
> of what PyTorch and NCCL really issue. No GPU is needed.

Every page of this site is also there as Markdown: `tutorial.md` beside `tutorial.html`. Agents begin with
[AGENTS.md](made/agents.md): commands, JSON, exit codes, what not to trust.
"""

API = """# Python interface

`from prestep.sim import api`: scenarios, predictions, comparisons, sweeps and replays as functions; tables are
pandas DataFrames, values are in seconds, bytes and bytes/s. An introduction is in [from Python](../python.md).

```{eval-rst}
.. automodule:: prestep.sim.api
   :no-members:

.. currentmodule:: prestep.sim.api

%s
.. autoclass:: prestep.sim.analysis.prediction.Prediction
   :members:

.. autoexception:: prestep.sim.errors.PrestepError

.. autoexception:: prestep.sim.errors.InputError
```
"""


def write(root: Path, docs: Path) -> None:
    """Writes all of them below `docs`; a page that has not changed keeps its date."""
    for name, text in pages(root).items():
        path = docs / "made" / name
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def pages(root: Path) -> dict[str, str]:
    """The text of every made page by its name."""
    return {
        "commands.md": "\n".join([COMMANDS, *commands()]),
        "api.md": API
        % "".join(f".. autofunction:: {name}\n\n" for name in functions()),
        "examples.md": examples(root / "examples"),
        "agents.md": beside(root / "AGENTS.md"),
        "changelog.md": beside(root / "CHANGELOG.md"),
        "contributing.md": beside(root / "CONTRIBUTING.md"),
    }


def commands() -> Iterator[str]:
    """A section for every command and subcommand, in the order of `prestep --help`."""
    from prestep import cli

    yield from _below(cli.main, click.Context(cli.main, info_name="prestep"))


def _below(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is not None:
            inside = click.Context(command, info_name=name, parent=context)
            yield _command(command, inside)
            if isinstance(command, click.Group):
                yield from _below(command, inside)


def _command(command: click.Command, context: click.Context) -> str:
    """Heading, what it does, usage, a table of its options, its examples."""
    usage = command.get_usage(context).removeprefix("Usage: ")
    rows = [
        record
        for param in command.params
        if (record := param.get_help_record(context)) and record[1]
    ]
    table = [
        "| option | meaning |",
        "| --- | --- |",
        *(f"| {_option(names)} | {_cell(help_)} |" for names, help_ in rows),
    ]
    parts = [
        f"## {context.command_path}",
        inspect.cleandoc(command.help or "").replace("\b\n", ""),
        f"```text\n{usage}\n```",
    ]
    parts += ["\n".join(table)] if rows else []
    return "\n\n".join([*parts, *_examples(command.epilog or "")]) + "\n"


def _option(names: str) -> str:
    return _cell(", ".join(f"`{name}`" for name in names.split(", ")))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _examples(epilog: str) -> Iterator[str]:
    """What follows "Example:", a line of shell for every command in it."""
    said = re.split(r"Examples?:", " ".join(epilog.replace("\b", "").split()))[
        -1
    ].strip()
    shown = [f"prestep {part.strip()}" for part in re.split(r"\bprestep ", said)[1:]]
    if shown:
        yield "```sh\n" + "\n".join(shown) + "\n```"


def functions() -> list[str]:
    """The functions of `prestep.sim.api`, in the order of the file."""
    from prestep.sim import api

    found = [
        name
        for name in vars(api)
        if name in api.__all__ and callable(getattr(api, name))
    ]
    return [name for name in found if not isinstance(getattr(api, name), type)]


def examples(folder: Path) -> str:
    """The page of examples: its README, and every file in full with its command."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    files = re.findall(r"\]\(([\w/-]+\.(?:toml|sh))\)", text)
    text = re.sub(
        r"\]\(([\w/-]+\.(?:toml|sh))\)",
        lambda found: f"](#{anchor(found[1])})",
        text,
    )
    text = re.sub(r"\[([^]]*)\]\([\w/-]+\.ipynb\)", r"`examples/\1`", text).replace(
        "](../docs/", "](../"
    )
    shown = [
        f"### {name}\n\n```{Path(name).suffix[1:]}\n{(folder / name).read_text(encoding='utf-8')}```"
        for name in dict.fromkeys(files)
    ]
    return "\n\n".join([text, "## The files", *shown]) + "\n"


def anchor(heading: str) -> str:
    """What the site calls a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def beside(path: Path) -> str:
    """A file of the root as a page of docs/made/."""
    return (
        path.read_text(encoding="utf-8")
        .replace("](docs/", "](../")
        .replace("](CHANGELOG.md)", "](changelog.md)")
        .replace("](CONTRIBUTING.md)", "](contributing.md)")
        .replace("](AGENTS.md)", "](agents.md)")
    )


def write_for_agents(docs: Path, site: Path) -> None:
    """`llms.txt` and the Markdown of every page, beside the pages of a site."""
    (site / "llms.txt").write_text(llms(docs), encoding="utf-8")
    for name in listed(docs):
        target = site / f"{name}.md"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text((docs / f"{name}.md").read_text(encoding="utf-8"), "utf-8")


def llms(docs: Path) -> str:
    """The pages for agents (llmstxt.org): by the captions of the index, each with its title and first sentence."""
    parts = [LLMS]
    for caption, names in _trees(docs):
        links = [_link(docs / f"{name}.md", name) for name in names]
        parts.append(f"## {caption}\n\n" + "\n".join(links) + "\n")
    return "\n".join(parts)


def listed(docs: Path) -> list[str]:
    """The pages of the index, itself among them."""
    return ["index", *(name for _, names in _trees(docs) for name in names)]


def _trees(docs: Path) -> Iterator[tuple[str, list[str]]]:
    """Caption and pages of every table of contents."""
    text = (docs / "index.md").read_text(encoding="utf-8")
    for inside in re.findall(r"^```{toctree}\n(.*?)^```$", text, re.M | re.S):
        options, _, names = inside.partition("\n\n")
        yield re.findall(r":caption: (.*)", options)[0], names.split()


def _link(page: Path, name: str) -> str:
    title, _, rest = page.read_text(encoding="utf-8").partition("\n")
    prose = re.sub(r"^```.*?^```$|^<!--.*?-->$", "", rest, flags=re.M | re.S)
    first = next(part for part in prose.split("\n\n") if _is_prose(part.strip()))
    sentence = re.split(r"(?<=[.?!:])\s+(?=[A-Z`])", " ".join(first.split()))[0]
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", sentence)
    return f"- [{title.lstrip('# ')}]({name}.md): {plain}"


def _is_prose(text: str) -> bool:
    return bool(text) and text[0] not in "#|<!-*{$"
