"""The section [rl] of a scenario: a step of reinforcement learning around a training step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from prestep.sim.spec.sections import OtherRun
from prestep.sim.strict import key
from prestep.workloads.job import limits


@dataclass(frozen=True)
class Rl(OtherRun):
    """Rollouts, their log-probabilities, training on them, and the new weights to the generation engines."""

    COMMANDS: ClassVar[str] = (
        "prestep run and whatif predict steps of reinforcement learning"
    )
    OWN_LAYOUT: ClassVar[bool] = True
    COMPARABLE: ClassVar[bool] = True

    algorithm: Literal["grpo", "dapo"] = key(
        "grpo", "dapo: no reference policy, more prompts sampled"
    )
    prompts: int | None = key(None, "prompts of a step", limits.SAMPLES)
    generations: int = key(16, "rollouts of each prompt", limits.SAMPLES)
    batch_multiplier: float = key(
        1.0, "dapo: prompts sampled over those trained on", low=1
    )
    prompt_length: int = key(128, "tokens of a prompt, on average", limits.TOKENS)
    mean_length: int = key(
        1024, "mean tokens of a rollout with its prompt", limits.TOKENS
    )
    max_length: int = key(4096, "longest rollout with its prompt", limits.TOKENS)
    max_new_tokens: int | None = key(
        None, "most generated tokens; default what max_length leaves", limits.TOKENS
    )
    lengths: Literal["lognormal", "exponential", "constant"] = key(
        "lognormal", "distribution of generated tokens"
    )
    spread: float = key(0.7, "lognormal: deviation of the logarithm", above=0)
    train_global_batch: int | None = key(
        None, "rollouts of an optimizer step; default all", limits.SAMPLES
    )
    train_pack: int = key(1, "longest rollouts in a training pack", limits.SAMPLES)
    packing: bool = key(True, "rollouts share packs")
    logprob_pack: int = key(
        1, "longest rollouts in a log-probability pack", limits.SAMPLES
    )
    reference: bool | None = key(
        None, "reference policy (KL penalty); default with grpo"
    )
    off_policy_steps: int = key(
        0, "steps that rollouts may lag; 0: GPUs take turns", low=0
    )
    generation_gpus: int | None = key(
        None, "off-policy: generating GPUs, the last; default half", low=1
    )
    generation_tp: int = key(1, "GPUs that split an engine's layers", low=1)
    generation_pp: int = key(1, "stages of an engine", low=1)
    generation_ep: int = key(1, "ranks with whole experts: 1, or generation_tp", low=1)
    generation_precision: Literal["bf16", "fp8"] = key(
        "bf16", "number format of an engine's products"
    )
    generation_memory: float = key(
        0.6, "share of GPU memory for weights and KV cache", above=0
    )
    max_num_seqs: int = key(
        1024, "most rollouts decoded at once (vLLM)", limits.SAMPLES
    )
    cuda_graphs: bool = key(True, "engines replay CUDA graphs; else enforce_eager")
    async_scheduling: bool = key(
        True, "the engine's host schedules beside the GPU (vLLM 0.14)"
    )
    engine_host_factor: float | None = key(
        None,
        "engine's host time over a DGX H100's; default cluster.host_factor",
        above=0,
    )
    executor: Literal["processes", "ray"] = key(
        "processes", "of several GPUs; ray: no async_scheduling"
    )
    environment_time: float = key(
        0.0, "exposed time of rewards, a step", unit="duration", low=0
    )

    @property
    def rollouts(self) -> int:
        """Rollouts that a step trains on."""
        return (self.prompts or 0) * self.generations

    @property
    def most_new_tokens(self) -> int:
        """Most tokens that a rollout generates."""
        room = self.max_length - self.prompt_length
        return room if self.max_new_tokens is None else min(room, self.max_new_tokens)

    @property
    def mean_new_tokens(self) -> int:
        """Tokens that a rollout generates on average."""
        return self.mean_length - self.prompt_length

    @property
    def with_reference(self) -> bool:
        """Whether a reference policy's log-probabilities are computed."""
        return self.algorithm == "grpo" if self.reference is None else self.reference
