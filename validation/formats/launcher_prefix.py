"""What a launcher writes before each line of a program's output, taken away.

mpirun tags lines (`[1,0]<stdout>:`), srun and pdsh number or name them (` 0: `, `node0: `), torchrun says the rank
(`[default0]:`), Kubernetes and Compose the pod (`[pod/a/b] `, `worker-0  | `), and many add the time. None of these is
known here: what stands before a line that only nccl-tests or NCCL prints is the prefix, and its digits may differ from
line to line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

#: The beginnings of lines that nccl-tests prints: its comments, and rows of size, count and type.
_COMMENT = (
    r"#\s*(?:nThread \d|nccl-tests version|Using devices|Rank\s+\d|size\s+count|\(B\)|Out of bounds"
    r"|Avg bus|Collective test)"
)
_ROW = r"[ \t]*\b\d+[ \t]+\d+[ \t]+(?:float|double|half|b?float(?:16|32|64)|fp?8\w*|u?int\d+)[ \t]"
_LINE = re.compile(rf"^(?P<prefix>[^\n]*?)(?={_COMMENT}|{_ROW})", re.MULTILINE)
_DIGITS = re.compile(r"\d+")
#: A prefix is short; what is longer is a line that happens to quote one.
_LONGEST = 200
#: Lines that have it: one alone may quote another log.
_FEWEST = 2


def without_prefix(text: str) -> str:
    """The text as the program printed it.

    Examples
    --------
    >>> log = "[1,0]<stdout>:# nThread 1 nGpus 1\\n[1,0]<stdout>:# Using devices\\n[1,3]<stdout>:# a comment"
    >>> print(without_prefix(log))
    # nThread 1 nGpus 1
    # Using devices
    # a comment
    >>> without_prefix("# nThread 1 nGpus 1")
    '# nThread 1 nGpus 1'
    """
    counts = Counter(_shape(match["prefix"]) for match in _LINE.finditer(text))
    shapes = [shape for shape, count in counts.items() if shape and count >= _FEWEST]
    if not shapes:
        return text
    # The longest first: one prefix may begin as another does.
    beginning = re.compile(f"^(?:{'|'.join(_longest_first(shapes))})", re.MULTILINE)
    return beginning.sub("", text)


def _shape(prefix: str) -> str:
    """A pattern for a prefix in which any number may stand for another (ranks, times); "" for none."""
    if not prefix.strip() or len(prefix) > _LONGEST:
        return ""
    parts = map(re.escape, _DIGITS.split(prefix.rstrip(" \t")))
    # Numbers may be aligned to the right (`srun -l`), and one blank belongs to the prefix.
    return r"[ \t]*\d+".join(parts).removeprefix(r"\ ") + r"[ \t]?"


def _longest_first(shapes: Iterable[str]) -> list[str]:
    return sorted(shapes, key=lambda shape: (-len(shape), shape))
