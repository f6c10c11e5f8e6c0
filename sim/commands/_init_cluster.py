"""`prestep init cluster`: writes a cluster file from a few questions, or from what another tool says of the hosts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TypeVar

import click

from prestep.sim.commands import _shared as shared
from prestep.sim.errors import InputError, did_you_mean
from prestep.sim.extras import lazily
from prestep.sim.units import parse_bandwidth

with lazily():
    from prestep import topologies
    from prestep.sim import files
    from prestep.topologies.files import interchange, new_cluster

T = TypeVar("T")
_NETWORKS = ("rail", "tree")


@click.command(
    epilog="Example: prestep init cluster --host dgx-h100 --hosts 32 --network rail --below 16 --oversubscription 2 "
    "--port '400 Gbit/s' -o ours.toml",
)
@shared.file_option(
    *("--from", "source"),
    text="What a tool says: nvidia-smi topo -m, NCCL's XML, Slurm, ibnetdiscover, ...",
)
@click.option("--host", metavar="NAME", help="Model of a host, such as dgx-h100.")
@click.option("--hosts", type=shared.Count(), help="How many.")
@click.option(
    "--network",
    type=click.Choice(_NETWORKS),
    help="rail: a leaf for each NIC of a host; tree: all NICs at one leaf.",
)
@click.option("--below", type=shared.Count(), help="Hosts under the same leaves.")
@click.option(
    "--oversubscription", type=shared.Count(), help="2 for 2:1; 1 where nothing blocks."
)
@click.option("--port", metavar="RATE", help='Of a NIC, on the wire: "400 Gbit/s".')
@click.option("--description", help="A line for those who use the file.")
@shared.new_file("cluster.toml")
@shared.explained
def cluster(
    source: Path | None,
    host: str | None,
    hosts: int | None,
    network: str | None,
    below: int | None,
    oversubscription: int | None,
    port: str | None,
    description: str | None,
    output: Path,
    force: bool,
) -> None:
    """Write a cluster file: eight questions, or as many options; a known host keeps its facts."""
    shared.check_new(output, force)
    if source is not None:
        model, fabric = new_cluster.host_of(source)
        if not model:
            text = description or f"as in {source.name}"
            _write(output, new_cluster.extending(source, output, text, host or ""))
            return
        shared.talk(
            f"{source}: one host, {len(fabric.gpus)} {fabric.gpu_model}: a {model}"
        )
        host = host or model
    known = new_cluster.known_hosts()
    stated = None not in (host, hosts, network, below, oversubscription, port)
    host = prompted("Host model", "--host", host, "dgx-h100")
    if host not in known:
        expected = f"one of {', '.join(known)}"
        raise shared.misused("--host", host, expected, did_you_mean(host, known))
    count = int(prompted("Hosts", "--hosts", hosts, 32))
    question = "Network (rail: a leaf for each NIC; tree: one)"
    network = prompted(question, "--network", network, "rail")
    if network not in _NETWORKS:
        raise shared.misused("--network", network, f"one of {', '.join(_NETWORKS)}")
    under = int(prompted("Hosts under the same leaves", "--below", below, count))
    question = "Oversubscription (2 for 2:1)"
    blocked = int(prompted(question, "--oversubscription", oversubscription, 1))
    rate = str(prompted("Port of a NIC (empty: the host's)", "--port", port, ""))
    wire = parse_bandwidth(rate, "init cluster", "port") if rate else None
    text = description or f"{count} {host}"
    if not stated:  # who answers by options alone is asked nothing
        text = str(prompted("Description", "--description", description, text))
    said = new_cluster.Answers(host, count, network, under, blocked, wire, text)
    _write(output, new_cluster.text_of(said))


def prompted(question: str, option: str, said: T | None, usual: T) -> T:
    """An option, or the answer to its question; where nobody can answer, the option is missed by name."""
    if said is not None:
        return said
    try:
        answer: T = click.prompt(question, default=usual, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise shared.misused(
            option, "nothing, and no terminal to ask", f"{usual!r} or another"
        ) from None
    return answer


def _write(output: Path, text: str) -> None:
    """Writes the file, and reads it as a cluster; one that is none does not stay."""
    files.write_text(output, text)
    try:
        fabric = topologies.load_cluster(output)
    except InputError:
        output.unlink()
        raise
    size = interchange.size_of(fabric)
    shared.talk(
        f"wrote {output}: {size}; look at it with `prestep topology show {output}`"
    )
