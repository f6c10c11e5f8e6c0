"""How transformers runs experts where a scenario leaves the choice to it (`pytorch.experts = "auto"`).

By its release (modeling_utils.py, get_correct_experts_implementation; integrations/moe.py, _can_use_grouped_mm):

* before 5.0 experts are modules of their own, which run one after the other;
* from 5.0 on a rank's experts are two weights: "grouped_mm" is the default of every family. PyTorch has the product
  from 2.9 on for compute capability 8.0 and above, 2.8 for 9.0 alone; elsewhere each expert's product runs by itself,
  as do those of other types than bf16, fp32 weights under autocast among them: torch.autocast leaves grouped_mm alone.

Experts with adapters of their own are modules too. Spread over ranks, transformers' grouped experts are not simulated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from prestep.workloads.torch.attention_backend import release_of

if TYPE_CHECKING:
    from prestep.workloads.job import JobSpec

#: First releases whose grouped product runs on Hopper, and on what else.
HOPPER_SINCE, SINCE = (2, 8), (2, 9)


def can_group(version: str, capability: tuple[int, ...]) -> bool:
    """Whether this PyTorch multiplies groups in one kernel on this GPU.

    Examples
    --------
    >>> can_group("2.11", (8, 0)), can_group("2.8", (8, 0)), can_group("2.8", (9, 0))
    (True, False, True)
    """
    release = release_of(version)
    if release >= SINCE:
        return capability >= (8, 0)
    return release >= HOPPER_SINCE and capability[:1] == (9,)


def experts_of(job: JobSpec, capability: tuple[int, ...]) -> Literal["loop", "grouped"]:
    """Returns how the experts of a job run on this GPU: as it says, or as the library does that has its modules."""
    options, parallel = job.pytorch, job.parallel
    if options.experts != "auto":
        return options.experts
    if options.modules != "transformers" or options.transformers == "4":
        return "loop"
    autocast = options.master_weights and parallel.data_parallel != "fsdp"
    narrow = job.training.precision == "bf16" and not autocast
    adapted = job.adapter.on and {"fc1", "fc2"} & set(job.adapter.places)
    groups = can_group(options.version, capability)
    whole = parallel.ep == 1 and not adapted
    return "grouped" if groups and narrow and whole else "loop"
