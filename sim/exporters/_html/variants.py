"""The report's sections on variants: the table of all, what each does, and the network before and after."""

from __future__ import annotations

from collections.abc import Sequence

from prestep.sim.exporters import _variants as words
from prestep.sim.exporters._html import pictures_links, sections, shares
from prestep.sim.markup import Markup, element, markup, table
from prestep.sim.studies.variants import Variant


def answer(variants: Sequence[Variant]) -> Markup:
    """The table of the variants, and a sentence for each."""
    items = [
        element("li", element("b", name), ": ", sentence)
        for name, sentence in words.verdicts(variants)
    ]
    listed = element("ul", *items) if items else ""
    return markup(table(words.heads(variants), words.rows(variants)), listed)


def differences(variants: Sequence[Variant]) -> Markup:
    """Where the step goes, as it is and with each variant."""
    return shares.compared([(one.name, one.result) for one in variants])


def networks(variants: Sequence[Variant]) -> Markup:
    """The network before and after, with the use of its links over the step; once for variants that do not differ."""
    figures: dict[str, tuple[list[str], str]] = {}
    for one in variants:
        if (use := sections.heat_of(one.result)) is None:
            continue
        alone = len(use.fabric.hosts) == 1
        drawn = pictures_links.cluster(use, alone, moving=False)
        names, _ = figures.setdefault(drawn, ([], sections.bottleneck(one.result)))
        names.append(one.name)
    made = [
        element(
            "figure",
            element("figcaption", element("b", ", ".join(names)), ": ", told),
            Markup(drawn),
        )
        for drawn, (names, told) in figures.items()
    ]
    return (
        markup(element("div", *made, class_="networks"), pictures_links.scale())
        if made
        else Markup()
    )
