"""Steps of frameworks that others wrote (Hugging Face, Megatron-core, DeepSpeed, torchtitan), under torchrun. argv: suite-json out-dir.
Case: dict(id, fw, model=[hidden, layers, heads, kv, ffn, vocab], mbs, seq, ...). Rows like train.py's."""
import json, os, sys, time, gzip, shutil, datetime, traceback, gc, contextlib
import torch, torch.nn.functional as F, torch.distributed as dist
r = int(os.environ["RANK"]); W = int(os.environ["WORLD_SIZE"]); lr = int(os.environ["LOCAL_RANK"]); CPU = os.environ.get("CPU") == "1"
dev = torch.device("cpu") if CPU else torch.device("cuda", lr); bf = torch.bfloat16
if not CPU: torch.cuda.set_device(lr)
dist.init_process_group("gloo" if CPU else "nccl", timeout=datetime.timedelta(seconds=90), **({} if CPU else dict(device_id=dev)))
cases = json.load(open(sys.argv[1])); outd = sys.argv[2]; os.makedirs(outd, exist_ok=True); label = os.environ.get("LABEL", "default")

def adamw(ps): return torch.optim.AdamW(ps, lr=1e-4, fused=not CPU)

def hf_config(c):
    import transformers as T
    h, L, a, kv, f, v = c["model"]; k = c.get("arch", "llama")
    common = dict(hidden_size=h, num_hidden_layers=L, num_attention_heads=a, num_key_value_heads=kv, intermediate_size=f, vocab_size=v, max_position_embeddings=c["seq"], use_cache=False, tie_word_embeddings=c.get("tied", False))
    if k == "llama": return T.LlamaConfig(**common)
    if k == "qwen3": return T.Qwen3Config(head_dim=c.get("head_dim", 128), **common)
    if k == "mixtral": return T.MixtralConfig(num_local_experts=8, num_experts_per_tok=2, **common)
    if k == "gpt2": return T.GPT2Config(n_embd=h, n_layer=L, n_head=a, vocab_size=v, n_positions=c["seq"], use_cache=False, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    raise ValueError(k)

def hf_model(c):
    import transformers as T
    with torch.device(dev): m = T.AutoModelForCausalLM.from_config(hf_config(c), attn_implementation="sdpa", dtype=bf)
    if c.get("liger"):
        from liger_kernel.transformers import _apply_liger_kernel_to_instance as patch
        on = set(c["liger"]); patch(model=m, rope="rope" in on, rms_norm="rms_norm" in on, swiglu="glu" in on, cross_entropy="cross_entropy" in on, fused_linear_cross_entropy="fused_linear_cross_entropy" in on)
    if c.get("ac"): m.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dict(use_reentrant=False))
    m.train(); return m

def data(c, n=1): return torch.randint(0, c["model"][5], (c["mbs"] * n, c["seq"]), device=dev)

def hf(c):
    m = hf_model(c); x = data(c); ga = c.get("ga", 1); info = dict(params=sum(p.numel() for p in m.parameters()))
    if c.get("compile"): m.compile()
    if c["mode"] == "ddp": m = torch.nn.parallel.DistributedDataParallel(m, device_ids=None if CPU else [lr], bucket_cap_mb=c.get("bucket_mb", 25), gradient_as_bucket_view=True, find_unused_parameters=False)
    if c["mode"] == "fsdp":
        from torch.distributed.fsdp import fully_shard, MixedPrecisionPolicy
        body = m.model.layers if hasattr(m, "model") else m.transformer.h
        for b in body: fully_shard(b)
        fully_shard(m)
    o = adamw(m.parameters())
    def step():
        for i in range(ga):
            ctx = m.no_sync() if ga > 1 and i < ga - 1 and hasattr(m, "no_sync") else contextlib.nullcontext()
            if hasattr(m, "set_requires_gradient_sync"): m.set_requires_gradient_sync(i == ga - 1)
            with ctx: m(input_ids=x, labels=x).loss.backward()
        o.step(); o.zero_grad(set_to_none=True)
    return step, info, lambda: None

def ds(c):
    import deepspeed
    m = hf_model(c); x = data(c); info = dict(params=sum(p.numel() for p in m.parameters()))
    conf = dict(train_micro_batch_size_per_gpu=c["mbs"], gradient_accumulation_steps=c.get("ga", 1), bf16=dict(enabled=True), zero_optimization=dict(stage=c["zero"], overlap_comm=c.get("overlap", True), contiguous_gradients=True, reduce_bucket_size=c.get("bucket", 500000000), allgather_bucket_size=500000000), zero_allow_untested_optimizer=True, steps_per_print=10**9, wall_clock_breakdown=False)
    e, o, _, _ = deepspeed.initialize(model=m, optimizer=adamw(m.parameters()), config=conf, dist_init_required=False)
    def step():
        for _ in range(c.get("ga", 1)): e.backward(e(input_ids=x, labels=x).loss); e.step()
    return step, info, lambda: e.destroy()

def mcore(c):
    from megatron.core import parallel_state as ps, tensor_parallel as tpm
    from megatron.core.transformer.transformer_config import TransformerConfig
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.distributed import DistributedDataParallel as DDP, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
    from megatron.core.transformer.module import Float16Module
    tp, pp, vpp, ep = c.get("tp", 1), c.get("pp", 1), c.get("vpp", 1), c.get("ep", 1)
    ps.initialize_model_parallel(tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, virtual_pipeline_model_parallel_size=vpp if vpp > 1 else None, expert_model_parallel_size=ep, **({"create_gloo_process_groups": False}))
    if not CPU: tpm.model_parallel_cuda_manual_seed(123)
    import megatron.core.transformer.moe.moe_utils as mu; mu.te_general_gemm = None  # no Transformer Engine here
    h, L, a, kv, f, v = c["model"]; moe = {}
    if c.get("experts"): moe = dict(num_moe_experts=c["experts"], moe_router_topk=c.get("topk", 2), moe_token_dispatcher_type="alltoall", moe_router_load_balancing_type="none", moe_grouped_gemm=False, expert_model_parallel_size=ep)
    cfg = TransformerConfig(num_layers=L, hidden_size=h, num_attention_heads=a, num_query_groups=kv, ffn_hidden_size=f, tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, virtual_pipeline_model_parallel_size=vpp if vpp > 1 else None, sequence_parallel=c.get("sp", tp > 1), bf16=True, params_dtype=bf, pipeline_dtype=bf, autocast_dtype=bf, normalization="RMSNorm", gated_linear_unit=True, activation_func=F.silu, add_bias_linear=False, hidden_dropout=0.0, attention_dropout=0.0, bias_activation_fusion=True, masked_softmax_fusion=False, gradient_accumulation_fusion=False, persist_layer_norm=False, bias_dropout_fusion=False, apply_rope_fusion=False, use_cpu_initialization=CPU, overlap_p2p_comm=vpp > 1, batch_p2p_comm=vpp == 1,
        **({"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1} if c.get("ac") == "full" else {"recompute_granularity": "selective"} if c.get("ac") == "selective" else {}), **moe)
    spec = get_gpt_layer_local_spec(num_experts=c.get("experts"), moe_grouped_gemm=False, normalization="RMSNorm")
    def one(i):
        kw = {"vp_stage": i} if vpp > 1 else {}
        g = GPTModel(cfg, spec, v, c["seq"], pre_process=ps.is_pipeline_first_stage(ignore_virtual=vpp == 1, **kw), post_process=ps.is_pipeline_last_stage(ignore_virtual=vpp == 1, **kw), parallel_output=True, share_embeddings_and_output_weights=False, position_embedding_type="rope", **kw)
        return Float16Module(cfg, g if CPU else g.cuda())
    dcfg = DistributedDataParallelConfig(grad_reduce_in_fp32=c.get("fp32_reduce", True), overlap_grad_reduce=c.get("overlap_grad", True), overlap_param_gather=c.get("overlap_param", False), use_distributed_optimizer=c.get("distopt", True), bucket_size=c.get("bucket", 40000000))
    ms = [DDP(cfg, dcfg, one(i), disable_bucketing=i > 0) for i in range(vpp)]
    cfg.no_sync_func = [m.no_sync for m in ms] if vpp > 1 else ms[0].no_sync
    cfg.finalize_model_grads_func = finalize_model_grads
    if c.get("overlap_grad", True) and vpp > 1: cfg.grad_sync_func = [m.start_grad_sync for m in ms]
    opt = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=1e-4, bf16=True, params_dtype=bf, use_distributed_optimizer=c.get("distopt", True), clip_grad=c.get("clip", 1.0), overlap_param_gather=c.get("overlap_param", False)), ms, **({"use_gloo_process_groups": False}))
    cfg.grad_scale_func = opt.scale_loss
    fb = get_forward_backward_func(); M = c.get("microbatches", 1); x = data(c); pos = torch.arange(c["seq"], device=dev)[None].expand(c["mbs"], -1)
    mask = torch.triu(torch.ones(1, 1, c["seq"], c["seq"], device=dev, dtype=torch.bool), 1)
    def fwd(it, model):
        out = model(x, pos, mask, labels=x)
        def loss(o): l = o.float().mean(); return l, dict(l=l.detach())
        return out, loss
    def step():
        for m in ms: m.zero_grad_buffer()
        opt.zero_grad()
        fb(forward_step_func=fwd, data_iterator=[iter(range(10**6))] * vpp if vpp > 1 else iter(range(10**6)), model=ms if vpp > 1 else ms[0], num_microbatches=M, seq_length=c["seq"], micro_batch_size=c["mbs"], decoder_seq_length=c["seq"], forward_only=False)
        opt.step()
    return step, dict(params=sum(p.numel() for m in ms for p in m.parameters())), ps.destroy_model_parallel

def titan(c):
    import importlib, types
    class Stub(types.ModuleType):  # data and logging parts of torchtitan, not used here
        __path__ = []
        def __getattr__(self, k):
            if k.startswith('__'): raise AttributeError(k)
            return type(k, (), {})
    for n in ("datasets", "datasets.distributed", "torchdata", "torchdata.stateful_dataloader", "torchdata.nodes", "tyro", "tensorboard", "torch.utils.tensorboard", "wandb", "PIL", "tokenizers"):
        try: importlib.import_module(n)
        except Exception: sys.modules[n] = Stub(n)
    from torchtitan.models.llama3 import TransformerModelArgs, Transformer, parallelize_llama
    from torchtitan.config import JobConfig
    from torchtitan.distributed import ParallelDims
    h, L, a, kv, f, v = c["model"]; tp = c.get("tp", 1)
    mult = f / (8 * h / 3)  # ffn = multiple_of * ceil(mult * int(2 * 4h / 3) / multiple_of)
    args = TransformerModelArgs(dim=h, n_layers=L, n_heads=a, n_kv_heads=kv, vocab_size=v, ffn_dim_multiplier=mult, multiple_of=1, max_seq_len=c["seq"], rope_theta=5e5)
    j = JobConfig(); j.training.seq_len = c["seq"]; j.training.local_batch_size = c["mbs"]; j.compile.enable = bool(c.get("compile")); j.activation_checkpoint.mode = c.get("ac", "none"); j.parallelism.disable_loss_parallel = not c.get("loss_parallel", False)
    if c.get("ac") == "selective": j.activation_checkpoint.selective_ac_option = "op"
    dims = ParallelDims(dp_replicate=1, dp_shard=W // tp, cp=1, tp=tp, pp=1, ep=1, etp=1, world_size=W); dims.build_mesh()
    with torch.device("meta"): m = Transformer(args)
    parallelize_llama(m, dims, j)
    m.to_empty(device=dev)
    with torch.no_grad(): m.init_weights(buffer_device=dev)
    m.train(); x = data(c); o = adamw(m.parameters()); n = sum(p.numel() for p in m.parameters())
    mp = contextlib.nullcontext() if W > 1 else torch.autocast(dev.type, bf)  # one GPU: torchtitan trains under autocast
    lossf = lambda p, y: F.cross_entropy(p.flatten(0, 1).float(), y.flatten(0, 1))
    if c.get("compile"): lossf = torch.compile(lossf)
    def step():
        with mp: lossf(m(x), x).backward()
        torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0, foreach=True)
        o.step(); o.zero_grad()
    return step, dict(params=n, ffn=m.layers["0"].feed_forward.w1.weight.shape[0] if "0" in m.layers else None), lambda: None

def run(c):
    res = dict(id=c["id"], label=label, world=W, case=c, rank=r); t0 = time.time()
    step, info, end = dict(hf=hf, ds=ds, mcore=mcore, titan=titan)[c["fw"]](c)
    for _ in range(c.get("warmup", 4)): step()
    if CPU: t = time.time(); step(); res.update(step_s=[time.time() - t], **info); end(); return res
    torch.cuda.synchronize(); dist.barrier(); torch.cuda.synchronize(); torch.cuda.reset_peak_memory_stats()
    n = c.get("steps", 10); ev = [torch.cuda.Event(enable_timing=True) for _ in range(n + 1)]; w0 = time.perf_counter(); ev[0].record(); cpu = []
    for i in range(n): a = time.perf_counter(); step(); ev[i + 1].record(); cpu.append(time.perf_counter() - a)
    torch.cuda.synchronize(); w1 = time.perf_counter()
    res.update(step_s=[ev[i].elapsed_time(ev[i + 1]) * 1e-3 for i in range(n)], cpu_step_s=cpu, wall_s=(w1 - w0) / n, peak_alloc=torch.cuda.max_memory_allocated(), peak_reserved=torch.cuda.max_memory_reserved(), **info)
    if c.get("trace"):
        from torch.profiler import profile, ProfilerActivity, schedule
        fn = f"{outd}/{c['id']}.{label}.rank{r}.pt.trace.json"
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], schedule=schedule(wait=0, warmup=1, active=1), record_shapes=True, on_trace_ready=lambda p: p.export_chrome_trace(fn)) as p:
            for _ in range(2): step(); p.step()
        torch.cuda.synchronize()
        if r in (c["trace"] if isinstance(c["trace"], list) else range(W)):
            with open(fn, "rb") as f, gzip.open(fn + ".gz", "wb", 6) as g: shutil.copyfileobj(f, g)
        os.remove(fn)
    end(); res["total_s"] = time.time() - t0; return res

f = open(f"{outd}/results.{label}.rank{r}.jsonl", "a"); T0 = time.time(); budget = float(os.environ.get("BUDGET", "1000"))
for c in cases:
    stop = torch.tensor([1.0 if time.time() - T0 > budget else 0.0], device=dev); dist.broadcast(stop, 0)
    if stop.item():
        if r == 0: print("BUDGET stop before", c["id"], flush=True)
        break
    try: res = run(c)
    except Exception as e:
        res = dict(id=c["id"], label=label, rank=r, case=c, error=traceback.format_exc()[-900:])
        if r == 0: print("ERR", c["id"], traceback.format_exc()[-700:] if CPU else str(e)[:300], flush=True)
        try:
            from megatron.core import parallel_state as ps; ps.destroy_model_parallel()
        except Exception: pass
    f.write(json.dumps(res) + "\n"); f.flush()
    if r == 0 and "step_s" in res: s = sorted(res["step_s"]); print(f"{c['id']:36s} median {s[len(s)//2]*1e3:9.3f} ms cpu {1e3*sum(res.get('cpu_step_s') or [0])/max(1,len(s)):8.1f} total {res.get('total_s', 0):5.1f}s mem {res.get('peak_alloc', 0)/1e9:.1f}", flush=True)
    gc.collect()
    if not CPU: torch.cuda.empty_cache()
    try: dist.barrier()
    except Exception as e: print("barrier failed", e); break
dist.destroy_process_group()
