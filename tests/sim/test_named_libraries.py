"""Libraries, plug-ins and releases that people ask for by name: refused with what to do, or said to be another's."""

from __future__ import annotations

import pytest
from click.testing import CliRunner, Result

from prestep import cli
from prestep.sim.collectives.settings import NEWEST, Nccl


def asked(*arguments: str) -> Result:
    """A collective on eight H100, asked for with further options."""
    sizes = ("--min-bytes", "1M", "--max-bytes", "1M")
    command = ["collective", "--cluster", "dgx-h100", *sizes, *arguments]
    return CliRunner().invoke(cli.main, command)


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (("--backend", "rccl"), "mi355x"),
        (("--set", "nccl.backend=RCCL"), "mi355x"),
        (("--backend", "msccl++"), "prestep calibrate"),
        (("--set", "nccl.backend=ncclx"), "prestep calibrate"),
        (("--algo", "one-shot"), "prestep calibrate"),
        (("--set", "nccl.tuner=aws"), "aws-p6-b200"),
        (("--set", "nccl.tuner_plugin=libnccl-ofi-tuner.so"), "nccl.tuner"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(
    arguments: tuple[str, ...], advice: str
) -> None:
    made = asked(*arguments)
    assert made.exit_code == 2 and advice in made.output


def test_other_words_are_refused_as_ever() -> None:
    """With the names that there are."""
    made = asked("--algo", "rings")
    assert made.exit_code == 2 and "ring, tree" in made.output
    assert "modelled" not in made.output


@pytest.mark.parametrize("version", ["2.33.1", "2.32.6", "2.28.9", NEWEST])
def test_a_newer_release_is_said_to_be_predicted_as_the_newest_known(
    version: str,
) -> None:
    """Once, whatever the number of sizes; patches of the newest release count as it."""
    made = asked("--set", f"nccl.version={version}", "--min-bytes", "256K")
    newer = int(version.split(".")[1]) > int(NEWEST.split(".")[1])
    assert made.output.count(f"as {NEWEST}") == newer
    assert Nccl(version="2.32.99").newer == ""
