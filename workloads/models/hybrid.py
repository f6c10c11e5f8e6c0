"""Hybrids: models whose layers have one part each, named by the letters of a pattern.

The letters are those of Megatron-LM's hybrid_override_pattern (megatron/core/models/hybrid), K is prestep's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prestep.workloads.job.model import Model
    from prestep.workloads.models.model import ModelSpec

MAMBA, DELTA, KIMI, CONVOLUTION, ATTENTION, FEED_FORWARD, EXPERTS = LETTERS = "MGKC*-E"
LINEAR = (DELTA, KIMI)
SCANS = (MAMBA, *LINEAR)
#: What mixes the tokens of a sequence other than attention.
MIXERS = (*SCANS, CONVOLUTION)
#: What nobody says of Mamba-2 (Megatron's defaults) and of linear attention (Qwen3-Next's and Kimi Linear's).
MAMBA_DEFAULTS = {"mamba_head_dim": 64, "mamba_state": 128, "mamba_groups": 8}
LINEAR_DEFAULTS = {"linear_key_dim": 128, "linear_value_dim": 128}
#: Tokens that the convolution before a scan sees (Mamba-2), and a layer that is one (LFM2).
CONV_WIDTH, GATED_WIDTH = 4, 3


@dataclass(frozen=True)
class Sizes:
    """Widths of a scan's inputs, on all ranks together or on one.

    Attributes
    ----------
    keys, key_dim
        Heads of keys and their width; of Mamba-2 the groups that share B and C, and the state.
    values, value_dim
        Heads of values and their width.
    """

    keys: int
    key_dim: int
    values: int
    value_dim: int

    @property
    def key_width(self) -> int:
        """Of all keys of a token."""
        return self.keys * self.key_dim

    @property
    def value_width(self) -> int:
        """Of all values of a token."""
        return self.values * self.value_dim

    @property
    def convolved(self) -> int:
        """Channels that the convolution sees: values, keys, and what reads them."""
        return self.value_width + 2 * self.key_width

    def of_rank(self, ranks: int) -> Sizes:
        """A tensor-parallel rank's part."""
        return Sizes(
            self.keys // ranks, self.key_dim, self.values // ranks, self.value_dim
        )


def letters_of_layer(pattern: str) -> int:
    """Letters of what Megatron counts as one layer: linear attention has its feed-forward in the same one (GPTModel).

    Examples
    --------
    >>> letters_of_layer("GEGE*E"), letters_of_layer("ME*EM-")
    (2, 1)
    """
    return 2 if set(pattern) & set(LINEAR) else 1


def sizes_of(m: ModelSpec, part: str) -> Sizes:
    """Of a layer with that letter."""
    if part == MAMBA:
        return Sizes(m.mamba_groups, m.mamba_state, m.mamba_heads, m.mamba_head_dim)
    return Sizes(
        m.linear_key_heads, m.linear_key_dim, m.linear_value_heads, m.linear_value_dim
    )


def keys_of(s: Model) -> dict[str, Any]:
    """Keys of a hybrid that have a default, as they were said or not."""
    pattern, keys = s.layer_pattern or "", dict[str, Any]()
    if MAMBA in pattern:
        keys |= {k: getattr(s, k) or v for k, v in MAMBA_DEFAULTS.items()}
    if set(pattern) & set(LINEAR):
        keys["linear_value_heads"] = s.linear_value_heads or s.linear_key_heads
        keys |= {k: getattr(s, k) or v for k, v in LINEAR_DEFAULTS.items()}
    if set(pattern) & set(MIXERS):
        usual = CONV_WIDTH if set(pattern) & set(SCANS) else GATED_WIDTH
        keys["conv_width"] = s.conv_width or usual
    return keys


def wrong_keys(said: Model, m: ModelSpec) -> Iterator[tuple[str, str, str]]:
    """Letters that nobody knows, and keys that do not fit the pattern: key, what was found, what was expected."""
    pattern = m.layer_pattern
    strange = sorted(set(pattern) - set(LETTERS))
    if strange:
        letters = ", ".join(LETTERS)
        yield "layer_pattern", f'"{strange[0]}"', f"letters of {letters}"
    if pattern and said.layers not in (None, len(pattern)):
        yield "layers", str(said.layers), f"{len(pattern)}, as layer_pattern has"
    if pattern:
        for key in ("dense_layers", "moe_every"):
            if getattr(said, key):
                yield key, str(getattr(said, key)), "nothing beside layer_pattern"
    yield from _unused(said, pattern)
    yield from _sizes(m)


#: Keys that count only where the pattern has one of these letters.
_OF = {
    "mamba_heads": MAMBA,
    "mamba_head_dim": MAMBA,
    "mamba_state": MAMBA,
    "mamba_groups": MAMBA,
    "linear_key_heads": DELTA + KIMI,
    "linear_value_heads": DELTA + KIMI,
    "linear_key_dim": DELTA + KIMI,
    "linear_value_dim": DELTA + KIMI,
    "conv_width": MAMBA + DELTA + KIMI + CONVOLUTION,
    "experts": EXPERTS,
}


def _unused(said: Model, pattern: str) -> Iterator[tuple[str, str, str]]:
    """Keys of parts that no layer has."""
    for key, letters in _OF.items():
        plain = key == "experts" and not pattern
        if getattr(said, key) and not plain and not set(letters) & set(pattern):
            expected = f"{' or '.join(letters)} in layer_pattern"
            yield key, str(getattr(said, key)), expected


def _sizes(m: ModelSpec) -> Iterator[tuple[str, str, str]]:
    """Sizes that a part needs, and heads that do not fall into groups."""
    if EXPERTS in m.layer_pattern and not m.experts:
        yield "experts", "nothing", "their number: layer_pattern has E"
    needs = (
        (MAMBA, "mamba_heads", "mamba_groups"),
        (DELTA, "linear_value_heads", "linear_key_heads"),
        (KIMI, "linear_value_heads", "linear_key_heads"),
    )
    for letter, heads, groups in needs:
        if letter not in m.layer_pattern:
            continue
        count, shared = getattr(m, heads), getattr(m, groups)
        if not (count and shared):
            # Of linear attention the keys' heads are said, and the values' are as many unless they are said too.
            yield groups if letter != MAMBA else heads, "nothing", "a value"
        elif count % shared:
            yield heads, str(count), f"a multiple of {groups} = {shared}"


def parameters(m: ModelSpec, part: str) -> int:
    """Of the mixer of a layer with that letter, without the norm before it."""
    if (
        part == CONVOLUTION
    ):  # in to two gates and a value, a filter for each channel, and out
        return m.hidden * (4 * m.hidden + m.conv_width)
    s = sizes_of(m, part)
    output = s.value_width * m.hidden
    if part == MAMBA:
        projected = m.hidden * mamba_width(s)
        # Each head's step, decay and skip; the norm of the output; the convolution has a bias.
        rest = 3 * s.values + s.value_width + s.convolved * (m.conv_width + 1)
    elif part == DELTA:
        projected = m.hidden * delta_width(s)
        rest = 2 * s.values + s.value_dim + s.convolved * m.conv_width
    else:
        projected = m.hidden * kimi_width(s)
        up = s.value_dim * (s.values * s.key_dim + s.value_width)
        # A decay for each element of a key, with its bias; the norm of a head.
        rest = up + s.values * (s.key_dim + 1) + s.value_dim
        rest += s.convolved * m.conv_width
    return projected + output + rest


def mamba_width(s: Sizes) -> int:
    """Columns of Mamba-2's projection: z, x, B, C and a step for each head."""
    return 2 * s.value_width + 2 * s.key_width + s.values


def delta_width(s: Sizes) -> int:
    """Columns of the gated delta rule's: queries, keys, values, the gate, and two numbers a head."""
    return 2 * s.key_width + 2 * s.value_width + 2 * s.values


def kimi_width(s: Sizes) -> int:
    """Columns of Kimi delta attention's: queries, keys, values, a number a head, and the two bottlenecks."""
    return s.convolved + s.values + 2 * s.value_dim
