"""The sections of a scenario file, one frozen dataclass each: field = key, type = type, `key` = limits and meaning.

Quantities carry units in the file and are SI floats here: bytes, seconds, bytes per second. A key that is None was not
said and is decided later, by the model, the cluster or NCCL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sim.spec.faults import Faults
from sim.spec.inference import Inference
from sim.strict import key, table, type_hints

MIB = 2.0**20
RecomputedModule = Literal[
    "core_attn", "layernorm", "mla_up_proj", "mlp", "moe_act", "shared_experts"
]
GraphedModule = Literal["attn", "mlp", "moe_router", "full_iteration"]


@dataclass(frozen=True)
class Cluster:
    """Where it runs: a named cluster, or a file."""

    name: str | None = key(None, "named cluster; `prestep list clusters`")
    file: str | None = key(None, "cluster file, relative to the scenario")
    hosts: int | None = key(None, "number of hosts, where the family scales", low=1)
    gpus: int | None = key(None, "use only the first so many GPUs", low=1)
    host_factor: float | None = key(
        None,
        "factor on the host's time for framework code; default: the cluster's",
        above=0,
    )
    kernel_gap: float | None = key(
        None,
        "pause between two kernels of a stream, such as a profiler leaves; default: the GPU's",
        low=0,
        unit="duration",
    )
    hostfile: str | None = key(
        None, "the allocation, as in [placement]; relative to the scenario"
    )
    routing: str = key(
        "adaptive", "which of the equally good paths bytes take", names="routings"
    )
    routing_seed: int = key(
        0, "ecmp: the switches' hash; another one, another draw", low=0
    )
    routing_flows: int = key(
        1, "ecmp: connections between two GPUs, each hashed by itself", low=1
    )
    set: dict[str, str] = table(  # noqa: RUF009
        'changes to links: "selector.attribute" = value or factor, such as "2x"'
    )


@dataclass(frozen=True)
class Model:
    """What is trained: a named model, a file (TOML, a Hugging Face config.json, or Megatron-LM's arguments as .txt, .sh
    or .yaml), or inline keys beginning with kind.

    Inline keys beside name or file replace the model's own.
    """

    name: str | None = key(None, "named model; `prestep list models`")
    file: str | None = key(
        None,
        "TOML model, Hugging Face config.json or Megatron arguments, relative to the scenario",
    )
    kind: Literal["transformer", "mlp", "resnet"] | None = key(
        None, "family, for a model written inline"
    )
    hidden: int | None = key(None, "width of the residual stream", low=1)
    layers: int | None = key(
        None, "transformer blocks; for a resnet its depth (50)", low=1
    )
    heads: int | None = key(None, "query heads", low=1)
    kv_heads: int | None = key(None, "key and value heads; default heads", low=1)
    head_dim: int | None = key(None, "width of a head; default hidden / heads", low=1)
    ffn: int | None = key(
        None,
        "inner width of the feed-forward layer; of one expert where moe_ffn is not said",
        low=1,
    )
    vocab: int | None = key(None, "entries of the embedding", low=1)
    gated: bool | None = key(
        None, "gated feed-forward (three matrices, SwiGLU); default true"
    )
    activation: Literal["silu", "gelu", "relu", "relu2"] | None = key(
        None, "relu2: squared ReLU; default silu when gated, else gelu; mlp: relu"
    )
    tied_embeddings: bool | None = key(
        None, "output head shares the embedding; default false"
    )
    experts: int | None = key(None, "experts of each MoE layer; 0: dense", low=0)
    experts_per_token: int | None = key(None, "experts that see each token", low=1)
    moe_ffn: int | None = key(None, "inner width of one expert; default ffn", low=1)
    shared_experts: int | None = key(
        None, "experts of the same width that see every token; default 0", low=0
    )
    dense_layers: int | None = key(
        None, "first layers that have no experts; default 0", low=0
    )
    moe_every: int | None = key(
        None, "only every n-th layer has experts; default 1: every layer", low=1
    )
    router_bias: bool | None = key(None, "the router has a bias; default false")
    q_lora_rank: int | None = key(
        None,
        "latent attention: width that queries are compressed to; default none",
        low=1,
    )
    kv_lora_rank: int | None = key(
        None,
        "latent attention (MLA): width that keys and values are compressed to",
        low=1,
    )
    rope_head_dim: int | None = key(
        None, "latent attention: rotated part of a head, beside head_dim", low=1
    )
    v_head_dim: int | None = key(
        None, "latent attention: width of a value head; default head_dim", low=1
    )
    mtp_layers: int | None = key(
        None, "further layers that predict later tokens (multi-token prediction)", low=0
    )
    window: int | None = key(
        None, "tokens that attention looks back; default all", low=1
    )
    window_every: int | None = key(
        None,
        "every n-th layer sees all tokens in spite of the window; default none does",
        low=2,
    )
    sinks: bool | None = key(
        None, "a learned attention sink for every head; default false"
    )
    qk_norm: bool | None = key(
        None, "norms of queries and keys, head by head; default false"
    )
    norm: Literal["rms", "layer"] | None = key(None, "normalisation; default rms")
    norm_bias: bool | None = key(
        None, 'norms have a bias; default true for norm = "layer"'
    )
    embedding_norm: bool | None = key(None, "a norm after the embedding; default false")
    bias: bool | None = key(None, "linear layers have a bias; default false, mlp: true")
    qkv_bias: bool | None = key(
        None, "queries, keys and values have a bias; default bias"
    )
    positions: Literal["rope", "learned", "alibi", "none"] | None = key(
        None, "position information; default rope"
    )
    max_positions: int | None = key(
        None, "rows of the learned position embedding", low=1
    )
    sizes: tuple[int, ...] | None = key(None, "mlp: widths from input to output", low=1)
    image_size: int | None = key(None, "resnet: pixels on a side; default 224", low=1)
    classes: int | None = key(None, "resnet: outputs; default 1000", low=1)


@dataclass(frozen=True)
class Training:
    """How a step is made."""

    seq_len: int = key(2048, "tokens per sample", low=1)
    micro_batch: int = key(1, "samples per rank and microbatch", low=1)
    global_batch: int | None = key(None, "samples per step over all ranks", low=1)
    grad_accumulation: int | None = key(
        None, "backward passes per optimizer step", low=1
    )
    microbatches: int | None = key(
        None, "microbatches per rank and run of the pipeline schedule", low=1
    )
    precision: str = key(
        "bf16", "number format of weights and activations", names="precisions"
    )
    recompute: Literal["none", "selective", "products", "alternate", "full"] = key(
        "none",
        "activation checkpointing of every block; products: all but attention and every other product; alternate: "
        "every other block whole (PyTorch)",
    )
    optimizer: str = key(
        "adamw",
        "optimizer (fused); muon: of hidden matrices, AdamW for the rest",
        names="optimizers",
    )
    warmup: int = key(
        4,
        "steps before the reported one; decides whether DDP's first buckets still count",
        low=1,
    )
    set_to_none: bool = key(
        True, "zero_grad frees gradients instead of filling them with zeros"
    )
    framework: str = key(
        "pytorch-eager",
        "decides the kernels and what launching them costs (deepspeed: Megatron's layers under it)",
        names="frameworks",
    )


@dataclass(frozen=True)
class Parallel:
    """How it is spread: dp x tp x pp x cp GPUs; ep lives inside dp x cp, as in PyTorch."""

    dp: int = key(1, "data-parallel replicas", low=1)
    tp: int = key(1, "tensor-parallel ranks", low=1)
    pp: int = key(1, "pipeline ranks", low=1)
    cp: int = key(1, "context-parallel ranks", low=1)
    ep: int = key(1, "expert-parallel ranks", low=1)
    etp: int | None = key(
        None,
        "ranks of one expert, 1 or tp, its default (megatron; with 1, ep lives inside dp x cp x tp)",
        low=1,
    )
    imbalance: str | tuple[float, ...] = key(
        "uniform",
        'tokens by expert (megatron): uniform, zipf, "zipf 0.5" (its exponent), or a load for each',
    )
    vpp: int = key(1, "pipeline stages per rank", low=1)
    data_parallel: (
        Literal["none", "ddp", "ddp-no-overlap", "fsdp", "zero1", "zero2", "zero3"]
        | None
    ) = key(None, "how gradients are combined; default ddp if dp > 1, else none")
    bucket_cap: float | None = key(
        None,
        "size of a DDP gradient bucket; default 25 MiB after a first one of 1 MiB",
        unit="bytes",
        above=0,
    )
    gradient_as_bucket_view: bool = key(True, "DDP gradients are views of the buckets")
    fsdp_shards: int | None = key(
        None,
        "ranks that hold one copy of the parameters under FSDP (megatron); default dp * cp",
        low=1,
    )
    reshard_after_forward: bool = key(
        True, "FSDP frees gathered parameters after the forward pass"
    )
    sequence_parallel: bool = key(
        False, "tensor parallelism splits the norms along the sequence"
    )
    uneven_stages: bool = key(
        False,
        "let the first pipeline stages hold one layer more when layers do not divide",
    )
    schedule: str = key(
        "1f1b", "pipeline schedule; `prestep list schedules`", names="schedules"
    )
    microbatches: int | None = key(None, "the same as training.microbatches", low=1)
    order: str | None = key(
        None,
        'axes from the innermost, on neighbouring ranks; default "tp-cp-ep-pp-dp", megatron: "tp-cp-ep-dp-pp"',
    )

    @property
    def bucket_caps(self) -> tuple[float, float]:
        """Caps of the first bucket and of the others; saying a cap makes them equal, as in PyTorch."""
        return (
            (MIB, 25 * MIB)
            if self.bucket_cap is None
            else (self.bucket_cap, self.bucket_cap)
        )


@dataclass(frozen=True)
class Megatron:
    """Megatron-LM's switches, named after its command line where it has one."""

    attention: Literal["flash", "flash2", "unfused"] = key(
        "flash",
        "one fused kernel (flash2: FlashAttention 2, slower on Hopper), or batched GEMMs around a softmax that write "
        "all scores (Megatron before 2022-12)",
    )
    gradient_accumulation_fusion: bool = key(
        True, "weight gradients are added into the fp32 buffer by the GEMM itself"
    )
    main_grads: Literal["fp32", "bf16"] = key(
        "fp32", "type in which gradients are accumulated and reduced"
    )
    overlap_grad_reduce: bool = key(
        False, "reduce gradients bucket by bucket beside the last backward pass"
    )
    overlap_param_gather: bool = key(
        False, "gather updated parameters beside the first forward pass"
    )
    bucket_size: int | None = key(
        None,
        "parameters of a bucket when reduction overlaps; default 40 million, or 1 million per data rank",
        low=1,
    )
    fp8_scaling: Literal["delayed", "dynamic", "rowwise", "mx"] = key(
        "delayed",
        "fp8: scales from earlier steps, or found first, one for a tensor, for each row (slower products) or for 32 "
        "elements (MXFP8)",
    )
    fp8_transposes: bool = key(
        True,
        "fp8 operands are written transposed as well: Hopper's products need it, Blackwell's do not",
    )
    fp8_param_gather: bool = key(False, "FSDP gathers the parameters of layers in fp8")
    recompute_modules: tuple[RecomputedModule, ...] = key(
        (),
        "parts of a layer that run again in backward (selective recomputation names more than attention's core)",
    )
    recompute_num_layers: int | None = key(
        None,
        "so many layers of each stage run again whole (recompute_method block); the others are kept",
        low=1,
    )
    cuda_graph_scope: tuple[GraphedModule, ...] = key(
        (),
        "parts that are captured in CUDA graphs, for whose operators the host spends nothing",
    )
    recompute_early_stop: bool = key(
        False, "recomputation leaves out what backward does not need (PyTorch 2.1)"
    )
    tp_comm_overlap: bool = key(
        False,
        "split tensor-parallel gathers and GEMMs so that they overlap (user buffers)",
    )
    async_tensor_model_parallel_allreduce: bool = key(
        True,
        "the all-reduce of an input's gradient runs beside the weight's gradient (Megatron since April 2022)",
    )
    overlap_p2p_comm: bool = key(
        True, "interleaved pipelines send and receive beside their computation"
    )
    p2p_sync: bool = key(
        False,
        "the host waits for the GPU after each pipeline transfer (Megatron before core 0.3)",
    )
    launch_blocking: bool = key(
        False,
        "the host waits for the end of all that it launches (CUDA_LAUNCH_BLOCKING=1): nothing overlaps",
    )
    scatter_gather_tensors_in_pipeline: bool = key(
        True,
        "between stages every tensor-parallel rank sends its part of an activation; else all send all of it",
    )
    attention_dropout: float = key(0.0, "share of attention weights dropped", low=0)
    hidden_dropout: float = key(0.0, "share of hidden values dropped", low=0)
    vocab_multiple: int = key(
        128,
        "the vocabulary is padded to a multiple of it on every rank (make_vocab_size_divisible_by)",
        low=1,
    )
    account_for_embedding: bool = key(
        False,
        "the embedding counts as a layer in the cut into stages (account_for_embedding_in_pipeline_split)",
    )
    account_for_loss: bool = key(
        False, "so does the head with the loss (account_for_loss_in_pipeline_split)"
    )
    rope_fusion: bool = key(
        True,
        "rotation in one kernel; else in eager operators (YaRN with a scale, which the fused kernel lacks)",
    )
    bias_fusion: bool = key(
        True, "bias, activation, dropout and residual in one kernel"
    )
    cross_entropy_fusion: bool = key(True, "loss in one pass")
    moe_token_dispatcher: Literal["alltoall", "allgather", "flex"] = key(
        "alltoall",
        "how tokens reach their experts: permuted and sent, gathered by all, or DeepEP's kernels (flex)",
    )
    moe_grouped_gemm: bool = key(
        True,
        "one grouped GEMM for the experts of a rank; else one expert after the other",
    )
    overlap_moe_expert_parallel_comm: bool = key(
        False,
        "tokens travel beside the computation of another microbatch (1F1B with all-to-all overlap)",
    )
    moe_permute_fusion: bool = key(
        True, "tokens are permuted by one kernel instead of sorted and indexed"
    )
    moe_fused_mlp: bool = key(
        False,
        "fp8 experts: activation and quantizing in the grouped GEMMs (cutedsl_fused_grouped_mlp)",
    )
    moe_shared_expert_overlap: bool = key(
        False, "shared experts are computed beside the exchange of tokens"
    )
    moe_capacity: float | None = key(
        None,
        "most tokens of an expert over the mean (moe_expert_capacity_factor); default none are dropped",
        above=0,
    )
    moe_pad_to_capacity: bool = key(
        False, "experts are padded to their capacity (moe_pad_expert_input_to_capacity)"
    )


@dataclass(frozen=True)
class PyTorch:
    """What a trainer on plain PyTorch chooses (frameworks pytorch-eager and pytorch-compiled)."""

    version: Literal["1.13", "2.0", "2.1", "2.3", "2.5", "2.7", "2.11"] = key(
        "2.11",
        "before 2.1 recomputation repeats all of a region, before 2.7 layer norms are slow backward",
    )
    cuda: Literal["11", "12"] = key(
        "12", "toolkit: the cuBLAS of 11 is slower on Hopper"
    )
    attention: Literal["cudnn", "flash2", "triton"] = key(
        "cudnn",
        "kernel: cuDNN's, FlashAttention 2, or FlashAttention in Triton (first version, tokens before heads)",
    )
    joined_qkv: bool = key(False, "one projection makes queries, keys and values")
    loss: Literal["eager", "fused"] = key(
        "eager", "cross entropy as log_softmax and nll_loss, or in one kernel"
    )
    metrics: int = key(
        0, "further cross entropies of every microbatch, in fp32, for metrics", low=0
    )
    master_weights: bool = key(
        False, "parameters and optimizer in fp32, computation in bf16"
    )
    fused_optimizer: bool = key(
        True, "one kernel for many tensors; else eight for each tensor"
    )
    clip_gradients: bool = key(False, "gradients are scaled by their norm")
    fsdp: Literal["2", "1"] = key(
        "2", "fully_shard, or FullyShardedDataParallel with flat parameters"
    )
    reduce_dtype: Literal["bf16", "fp32"] = key(
        "bf16", "type in which FSDP reduces gradients"
    )
    reduce_every_microbatch: bool = key(
        False, "gradients are reduced in every microbatch, not in the last alone"
    )
    prefetch: Literal["before", "after"] = key(
        "before",
        "fsdp = 1: the next gather is issued before or after a module's backward pass",
    )
    limit_all_gathers: bool = key(
        True, "fsdp = 1: the host waits until the module before the last is freed"
    )

    def since(self, *release: int) -> bool:
        """Whether this is the release of PyTorch, such as (2, 1), or a later one."""
        return tuple(map(int, self.version.split("."))) >= release


@dataclass(frozen=True)
class Nccl:
    """NCCL's settings; what is not said is chosen as NCCL would."""

    backend: Literal["nccl", "gloo", "nvshmem"] = key(
        "nccl",
        "who runs collectives; nvshmem: all-to-alls, sends and gathers as puts from kernels, the rest by NCCL",
    )
    transport: Literal["ibgda", "proxy"] = key(
        "ibgda", "nvshmem: the GPU posts to the NIC, or a thread of the CPU"
    )
    tensors: Literal["gpu", "cpu"] = key(
        "gpu", "gloo: where the tensors live; those on GPUs are copied down and up"
    )
    version: str = key("2.28.9", "version whose tuning tables are used")
    nvls: bool | None = key(
        None, "NVLink SHARP (NCCL_NVLS_ENABLE); default: what the cluster file says"
    )
    collnet: bool | None = key(
        None,
        "SHARP in the network's switches (NCCL_COLLNET_ENABLE); default false, as NCCL's",
    )
    algo: str | None = key(
        None,
        "forced algorithm (NCCL_ALGO); `prestep list algorithms`",
        names="algorithms",
    )
    proto: Literal["LL", "LL128", "Simple"] | None = key(
        None, "forced protocol (NCCL_PROTO)"
    )
    min_channels: int | None = key(None, "NCCL_MIN_NCHANNELS", low=1)
    max_channels: int | None = key(None, "NCCL_MAX_NCHANNELS", low=1)
    max_ctas: int | None = key(None, "NCCL_MAX_CTAS; limits NVLink SHARP too", low=1)
    buffer_size: float | None = key(
        None, "NCCL_BUFFSIZE; default 4 MiB", unit="bytes", above=0
    )
    p2p_disable: bool = key(
        False, "GPUs of a host talk through its memory (NCCL_P2P_DISABLE)"
    )
    shm_disable: bool = key(
        False,
        "not through memory either: with p2p_disable over the network (NCCL_SHM_DISABLE)",
    )
    cross_nic: int = key(
        2,
        "2 or 0: rings stay on rails between hosts; 1: they need not (NCCL_CROSS_NIC)",
        low=0,
    )
    pxn_disable: bool = key(
        False,
        "messages leave by the sender's own NIC, not its peer's rail (NCCL_PXN_DISABLE)",
    )
    hostid: int | None = key(
        None,
        "ranks that share a pretended host (NCCL_HOSTID): others over the network",
        low=1,
    )
    nchannels_per_net_peer: int | None = key(None, "NCCL_NCHANNELS_PER_NET_PEER", low=1)
    net_speed: float | None = key(
        None,
        "speed NCCL sees of a NIC; 10 Gbit/s where the driver says none; default: the cluster's",
        unit="bandwidth",
    )
    net: Literal["socket"] | None = key(
        None, "TCP sockets instead of RDMA (NCCL_NET=Socket); default: the cluster's"
    )
    socket_nthreads: int | None = key(
        None, "helper threads of a connection (NCCL_SOCKET_NTHREADS); 0: none", low=0
    )
    nsocks_perthread: int | None = key(
        None, "sockets of each helper thread (NCCL_NSOCKS_PERTHREAD)", low=1
    )

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor number of the version: (2, 28)."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)


@dataclass(frozen=True)
class Placement:
    """Which GPU each rank runs on; not said: all hosts in the cluster's order, one filled after the other."""

    by: Literal["order", "leaf", "rail", "scattered"] = key(
        "order",
        "hosts in order, sorted by leaf, GPU 0 of every host first, or dealt out over the leaves in turn",
    )
    gpus: tuple[str, ...] | None = key(None, "GPU of every rank, by name")
    hosts: tuple[str, ...] | None = key(
        None, 'hosts to use, in this order, such as "host[0-3,8]"'
    )
    hostfile: str | None = key(
        None, "file of hosts: mpirun (host slots=8), Slurm (node[01-04]); relative"
    )
    slots: int | None = key(
        None, "ranks on each host; default: one for every GPU", low=1
    )
    leaves: int | None = key(None, "scattered: over so many leaves; default all", low=1)


@dataclass(frozen=True)
class Checkpoint:
    """Saving the model during training."""

    every: int | None = key(None, "steps between checkpoints", low=1)
    mode: Literal["rank0", "sharded", "async", "peer"] | None = key(
        None,
        "torch.save by rank 0 (the default); every rank its shard; the same behind training; into a peer's memory",
    )
    storage: str | None = key(
        None,
        'where to: "nvme" (the default), "weka", ...; `prestep list storage`, or a file',
    )
    content: Literal["all", "model"] = key(
        "all", "parameters and optimizer state, or parameters alone"
    )
    writers: Literal["balanced", "replica0"] = key(
        "balanced",
        "sharded, async: who writes what data-parallel replicas share: all, or the first of them",
    )
    writer: Literal["thread", "process"] = key(
        "thread",
        "async: a thread of the training process, which holds up its launches, or a process of its own",
    )
    pinned: bool = key(
        False, "staged into pinned memory that is kept, not into new pages"
    )
    gpudirect: bool = key(
        False, "from the GPU to the storage without a bounce through the host's memory"
    )
    capacity: float | None = key(
        None, "room for a checkpoint; default: the storage's", unit="bytes", above=0
    )
    restore_gpus: int | None = key(
        None, "GPUs of the run that loads it; default: as many as wrote it", low=1
    )


@dataclass(frozen=True)
class Dataload:
    """Reading the training data."""

    batch_time: float | None = key(
        None, "time of one worker to make one microbatch", unit="duration"
    )
    workers: int = key(
        0, "worker processes per rank; 0: the training process itself", low=0
    )
    prefetch: int = key(
        2, "batches that each worker makes ahead (prefetch_factor)", low=1
    )
    decode: float | None = key(
        None,
        "instead of batch_time: CPU time of one worker for a sample",
        unit="duration",
    )
    sample: float | None = key(
        None,
        "bytes of a sample on the storage, read in random order",
        unit="bytes",
        above=0,
    )
    storage: str | None = key(
        None,
        'where samples are read from; default "nvme"; `prestep list storage`, or a file',
    )
    cpus: int | None = key(
        None, "cores of a host for the workers of all its ranks; default: enough", low=1
    )
    copy: Literal["pageable", "pinned", "beside"] | None = key(
        None,
        "to the GPU: held up by the host, on the step's stream, on a stream of its own; default: in batch_time",
    )


@dataclass(frozen=True)
class Measured:
    """What a real run of this scenario took; printed beside the prediction, never used by it."""

    step_time: float | None = key(
        None, "median step time over ranks and steps", unit="duration", above=0
    )
    source: str | None = key(None, "where the measurement comes from")


@dataclass(frozen=True)
class Scenario:
    """A run, checked. `where` is the file it came from.

    With `jobs` the run is theirs: several on one cluster, each with its `name` and the `start` of its first step in
    seconds (None: apart from the others); the other sections are the cluster's, and what the jobs have in common.
    """

    cluster: Cluster = Cluster()
    model: Model = Model()
    training: Training = Training()
    parallel: Parallel = Parallel()
    megatron: Megatron = Megatron()
    pytorch: PyTorch = PyTorch()
    nccl: Nccl = Nccl()
    placement: Placement = Placement()
    checkpoint: Checkpoint = Checkpoint()
    faults: Faults = Faults()  # noqa: RUF009
    dataload: Dataload = Dataload()
    inference: Inference = Inference()  # noqa: RUF009
    measured: Measured = Measured()
    where: str = "scenario"
    name: str = ""
    start: float | None = None
    jobs: tuple[Scenario, ...] = ()


_NOT_SECTIONS = ("where", "name", "start", "jobs")
#: The tables of a scenario's file.
SECTIONS: dict[str, type] = {
    name: hint
    for name, hint in type_hints(Scenario).items()
    if name not in _NOT_SECTIONS
}
