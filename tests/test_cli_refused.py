"""What the command line refuses: a command a row, and words of what it says. Exit 2, nothing on stdout, no traceback."""

from __future__ import annotations

import shlex

from click.testing import CliRunner

from prestep import cli
from tests.sample import together

LONG = "x" * 3000
COLLECTIVE = "collective --cluster h200-host-4"
REFUSED = [
    # what is not there
    ("run no-such.toml", "no-such.toml"),
    ("whatif no-such.toml", "no-such.toml"),
    ("validate --rows no-such.jsonl", "no-such.jsonl"),
    ("validate no-such-set", "no-such-set"),
    ("topology show no-such-cluster", "no-such-cluster"),
    ("topology check no-such.toml", "no-such.toml"),
    ("collective --cluster no-such-cluster", "no-such-cluster"),
    ("list gadgets", "gadgets"),
    (f"run {LONG}", "a name that the file system can hold"),
    (f"run {'x/' * 3000}", "file name too long"),
    (f"import-recipe {LONG} --cluster dgx-h100", "xxx"),
    (f"replay {LONG}", "xxx"),
    (f"kernel gemm 512,512,512 --gpu {LONG}", "xxx"),
    ("run mlp-ddp4 --replicas 100000000000000000000", "--replicas"),
    # commands that are none, or lack something
    ("rnu", 'did you mean "run"?'),
    ("recipe", 'did you mean "import-recipe"?'),
    ("nonsense", "prestep --help"),
    ("collective", "Missing "),
    ("collective", "For example: prestep collective "),
    ("replay", "Missing "),
    ("replay", "For example: prestep replay "),
    ("whatif", "Missing "),
    ("whatif", "For example: prestep whatif "),
    ("kernel", "Missing "),
    ("kernel", "For example: prestep kernel "),
    # kernels
    ("kernel gemm 1,2", "positive sizes"),
    ("kernel gemm big", "whole numbers"),
    ("kernel gem 1,2,3", "gem"),
    ("kernel copy 8 --gpu h10", "did you mean"),
    ("kernel copy 8 --dtype fp65", "dtype"),
    ("kernel gemm 8,8,8 --gpu a100 --dtype fp8", "bf16, fp16, tf32"),
    ("kernel gemm 8,8,8 --gpu h100 --dtype nvfp4", "no units"),
    ("kernel attention_fwd 1,8,8,512,64 --gpu v100 --dtype fp8", "v100"),
    # steps: factors and rates beyond anything that works, a perceptron of Megatron's layers, formats without units
    ("run mlp-ddp4 --set gpu.clock=1e-300x", "gpu.clock"),
    ("run mlp-ddp4 --set 'nvlink.bandwidth=1e-200 GB/s'", "nvlink.bandwidth"),
    ("run mlp-ddp4 --set training.framework=megatron", "training.framework"),
    ("run mlp-ddp4 --set training.framework=deepspeed", "training.framework"),
    ("run llama1b-ddp4 --set training.precision=nvfp4", "training.precision"),
    ("run llama1b-ddp4 --set training.precision=nvfp4", "h200"),
    # a step that would be simulated for minutes, operation by operation
    ("run llama1b-ddp4 --set training.global_batch=8192", "16 layers and 1024 microbatches"),
    ("run llama1b-ddp4 --set model.layers=1000000", "at most 10000"),
    # nobody who asks for a spine means PCIe
    ("run mlp-ddp4 --set spine.bandwidth=2x", "h200-host-4 has no spine"),
    ("run mlp-ddp4 --set nvlnk.bandwidth=2x", 'did you mean "nvlink"?'),
    # what NCCL would refuse
    (f"{COLLECTIVE} --min-bytes many", "--min-bytes"),
    (f"{COLLECTIVE} --op all_redcue", 'did you mean "all_reduce"?'),
    (f"{COLLECTIVE} --op put", "nvshmem has it"),
    (f"{COLLECTIVE} --backend nvshmem", "nccl or gloo has it"),
    (f"{COLLECTIVE} --backend mpi", "one of gloo, nccl, nvshmem"),
    (f"{COLLECTIVE} --algo rnig", 'did you mean "ring"?'),
    (f"{COLLECTIVE} --proto LL129", 'did you mean "LL128"?'),
    (f"{COLLECTIVE} --algo nvls", "do no multicast"),
    (f"{COLLECTIVE} --algo collnet_direct", "at least two hosts"),
    (f"{COLLECTIVE} --op all_gather --algo pat", "one GPU per host"),
    ("collective --cluster dgx-h100 --set nccl.nvls=true --algo nvls --proto LL", "nvls has no LL"),
    (f"{COLLECTIVE} --ranks 5", "at most the 4 GPUs"),
    (f"{COLLECTIVE} --gpus 0,9", "numbers from 0 to 3"),
    (f"{COLLECTIVE} --gpus 0,0", "every GPU once"),
    (f"{COLLECTIVE} --gpus 2", "at least two GPUs"),
    (f"{COLLECTIVE} --gpus 0-1 --ranks 2", "one of the two"),
    (f"{COLLECTIVE} --min-bytes 2M --max-bytes 1M", "--min-bytes"),
    (f"{COLLECTIVE} --max-bytes lots", "--max-bytes"),
    (f"{COLLECTIVE} --set nccl.bufsize=4", 'did you mean "buffer_size"?'),
    (f"{COLLECTIVE} --set nccl.max_channels=many", "a whole number"),
    (f"{COLLECTIVE} --set nccl.max_channels=0", "at least 1"),
    (f"{COLLECTIVE} --set nccl.version=two", "a version of NCCL 2"),
    (f"{COLLECTIVE} --set nccl.min_channels=8 --set nccl.max_channels=4", "at most max_channels, 4"),
    (f"{COLLECTIVE} --set nvlnk.bandwidth=2x", "nvlnk"),
    (f"{COLLECTIVE} --set nccl.algo", "section.key=value"),
    (f"{COLLECTIVE} --backend gloo --algo ring", "an option of NCCL's collectives"),
    (f"{COLLECTIVE} --set nccl.transport=ibverbs", "one of ibgda, proxy"),
    (f"{COLLECTIVE} --op init --algo ring", "an option of NCCL's collectives"),
    (f"{COLLECTIVE} --backend nvshmem --op put --set nccl.p2p_disable=true", "need P2P"),
    ("collective --cluster h200-host-5", "did you mean"),
    (f"{COLLECTIVE} --nccl-constants no-such.toml", "no such file"),
]  # fmt: skip


@together(("line", "said"), REFUSED)
def test_what_is_wrong_is_refused_in_words(line: str, said: str) -> None:
    """stderr says what was found, and what to write instead."""
    result = CliRunner().invoke(cli.main, shlex.split(line))
    assert isinstance(result.exception, SystemExit), result.exception
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr and "Traceback" not in result.stderr, result.stderr


def test_a_kind_of_link_that_a_cluster_lacks_is_no_misspelling() -> None:
    """A word that is spelt wrongly gets its neighbour, one that another cluster has does not."""
    words = ["run", "mlp-ddp4", "--set", "spine.bandwidth=2x"]
    assert "did you mean" not in CliRunner().invoke(cli.main, words).stderr
