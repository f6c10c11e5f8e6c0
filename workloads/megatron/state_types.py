"""In which types Megatron's Adam keeps its states, and what an update of a parameter moves (precision-aware optimizer).

Usually gradients, parameters and moments are in fp32, and parameters are cast back to 16 bits behind the update. The
precision-aware one (megatron/core/optimizer/distrib_optimizer.py, Transformer Engine's FusedAdam) takes gradients in
the type they are reduced in and has moments in fewer bits. Of a parameter in fp32 it keeps only the 16 bits that its
bf16 copy lacks. One kernel does it all.
"""

from __future__ import annotations

from dataclasses import dataclass

from prestep.workloads.job import JobSpec
from prestep.workloads.precision import precision

FP32, NARROW = 4, 2
SIZES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}


@dataclass(frozen=True)
class StateTypes:
    """Bytes that the optimizer has for a parameter.

    Attributes
    ----------
    main
        Of the parameter itself, beside its copy in 16 bits.
    moments
        Of each of Adam's moments.
    aware
        Whether the optimizer is the precision-aware one.
    split
        Whether `main` has only what the copy in 16 bits lacks.
    """

    main: int = FP32
    moments: tuple[int, int] = (FP32, FP32)
    aware: bool = False
    split: bool = False

    @property
    def both_moments(self) -> int:
        """Bytes of both moments."""
        return sum(self.moments)

    def copied(self, wide: int) -> int:
        """Bytes moved to have a gradient of so many bytes in fp32 before its norm is found."""
        return 0 if self.aware or wide >= FP32 else wide + FP32

    def clipped(self, wide: int) -> int:
        """Bytes moved to scale a gradient, and by the usual optimizer to read the parameter again for its copy."""
        return 2 * wide + (0 if self.aware else FP32)

    def updated(self, wide: int) -> int:
        """Bytes that Adam moves: the gradient is read, the states are read and written, the 16-bit copy is written.

        Of a parameter that lies in two parts both are read.
        """
        read_too = NARROW if self.split else 0
        return wide + 2 * (self.main + self.both_moments) + NARROW + read_too


def state_types(scenario: JobSpec) -> StateTypes:
    """Those of a job."""
    o = scenario.megatron
    if not o.use_precision_aware_optimizer:
        return StateTypes()
    moments = SIZES[o.exp_avg_dtype], SIZES[o.exp_avg_sq_dtype]
    number = precision(scenario.training.precision)
    # The upper half of a number in fp32 is one in bf16, which no other copy has.
    in_bf16 = not (number.scaled_loss or o.fp8_param_gather)
    split = in_bf16 and o.main_params_dtype == "fp32"
    main = NARROW if split else SIZES[o.main_params_dtype]
    return StateTypes(main, moments, True, split)
