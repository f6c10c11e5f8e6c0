"""Two predictions side by side: what a change did to the step, and which links bind before and after."""

from __future__ import annotations

from typing import Any

from sim.units import format_duration

Table = dict[str, Any]


def compare(base: Table, changed: Table) -> Table:
    """Base against changed, from two `Result.to_dict()`; times in seconds, `speedup` > 1 is faster."""
    before, after = float(base["step_time"]), float(changed["step_time"])
    return {
        "base": _part(base),
        "changed": _part(changed),
        "speedup": before / after if after else 1.0,
        "difference": after - before,
    }


def _part(result: Table) -> Table:
    return {"step_time": result["step_time"], "breakdown": _flat(result["breakdown"]), "links": result.get("links", [])}


def _flat(breakdown: Table, prefix: str = "") -> dict[str, float]:
    flat: dict[str, float] = {}
    for name, value in breakdown.items():
        flat |= _flat(value, f"{prefix}{name} ") if isinstance(value, dict) else {prefix + name: float(value)}
    return flat


def render(comparison: Table) -> str:
    """The comparison as a table for people."""
    base, changed = comparison["base"], comparison["changed"]
    rows = [("step time", base["step_time"], changed["step_time"])]
    for name in {**base["breakdown"], **changed["breakdown"]}:
        rows.append((f"  {name}", base["breakdown"].get(name, 0.0), changed["breakdown"].get(name, 0.0)))
    lines = [f"{'':32}{'base':>12}{'changed':>12}{'difference':>14}"]
    for name, before, after in rows:
        sign = "-" if after < before else "+"
        difference = f"{sign}{format_duration(abs(after - before))}"
        lines.append(f"{name:32}{format_duration(before):>12}{format_duration(after):>12}{difference:>14}")
    lines.append(f"{comparison['speedup']:.3f} times as fast")
    for which, part in (("base", base), ("changed", changed)):
        lines.extend(_links(which, part["links"]))
    return "\n".join(lines)


def _links(which: str, links: list[Table]) -> list[str]:
    if not links:
        return []
    shown = [f"  {_name(link)}  {float(link.get('utilisation', 0.0)):.0%} used" for link in links[:3]]
    return [f"busiest links, {which}:", *shown]


def _name(link: Table) -> str:
    return str(link.get("name") or f"{link.get('src', '?')} -> {link.get('dst', '?')}")
