"""A step with and without changes: `prestep whatif --json`."""

from __future__ import annotations

from prestep.sim.outputs._parts import BREAKDOWN, LINK_KINDS, LINKS, SECONDS, VERDICT
from prestep.sim.outputs._words import (
    either,
    flag,
    items,
    maybe,
    named,
    number,
    or_null,
    table,
    text,
    whole,
)

_SIDE = table(
    "",
    step_time=SECONDS,
    breakdown=BREAKDOWN,
    links=LINKS,
    link_kinds=LINK_KINDS,
    out_of_memory=VERDICT,
    warnings=items(text()),
)

COMPARED = table(
    "as it is, and with the changes of --set",
    base=_SIDE,
    changed=_SIDE,
    unchanged=flag("whether every figure of the prediction is the same"),
    speedup=number("step time of the base over that of the changed: above 1 is faster"),
    difference=number("s, changed less base"),
    difference_interval=or_null(
        table(
            "what both rest on cancels",
            nominal=number("probability: 0.9"),
            low=SECONDS,
            high=SECONDS,
            spread=SECONDS,
            method=text("how: simulated, or linearised over both critical paths"),
        )
    ),
    breakdown_difference=named(SECONDS),
    changed_kinds=items(text(), "kinds of links that the changes are about"),
    same_operations=flag(
        "whether both steps run the same operations, on links, GPUs or hosts that are faster or slower"
    ),
    communication_alone=table(
        "s, one communication of every kind on an idle network, added up",
        base=SECONDS,
        changed=SECONDS,
    ),
    choices=items(
        table(
            "a kind of communication that NCCL runs otherwise after the changes",
            axis=text(),
            operation=text(),
            size=number("bytes, as nccl-tests counts them"),
            before=text("algorithm and protocol"),
            after=text("algorithm and protocol"),
        ),
        "the largest first",
    ),
)

EACH = table(
    "every element faster and slower (--each)",
    step_time=SECONDS,
    factors=items(number()),
    elements=items(
        table(
            "",
            element=text(),
            set=text("the key that --set takes"),
            changes=items(
                table("", factor=number(), step_time=SECONDS, difference=SECONDS)
            ),
            effect=number("s: the largest difference"),
            label=text("the element, its stage, and how many it stands for"),
            stands_for=whole("elements that are alike, itself among them"),
            alike=items(text(), "names of some of them"),
            stages=items(whole(), "pipeline stages that it is in"),
        ),
        "those that matter most first",
    ),
    each=maybe(items(text(), "what was tried: link-kind, rank, ...")),
    coverage=items(
        table(
            "of each of these",
            each=text(),
            elements=whole("that there are"),
            classes=whole("of elements that are alike"),
            tried=whole("classes"),
            covered=whole("elements that those tried stand for"),
            chosen=text("all, or how they were chosen"),
        )
    ),
)

SCHEMA = either(
    "two steps side by side, or one element after the other", COMPARED, EACH
)
