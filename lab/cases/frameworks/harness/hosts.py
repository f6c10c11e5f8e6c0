"""Host time of a step of many small programs. argv: suite.json OUT; run by torchrun, or alone by `prestep capture`."""
import json, os, sys, time, gc, contextlib, statistics as st, traceback, datetime
import torch, torch.nn.functional as F, torch.distributed as dist
W = int(os.environ.get("WORLD_SIZE", "1")); r = int(os.environ.get("RANK", "0")); lr = int(os.environ.get("LOCAL_RANK", "0"))
HERE = os.path.dirname(os.path.abspath(__file__)); dev = torch.device("cuda", lr); bf = torch.bfloat16
CAP = os.environ.get("CAPTURING") == "1"
src = open(os.environ.get("FW", HERE + "/fw.py")).read().split("def run(c)")[0].replace('json.load(open(sys.argv[1]))', '[]')
G = {"__name__": "fwpart"}; argv = sys.argv; exec(compile(src, "fw.py", "exec"), G)
cases = json.load(open(sys.argv[1])); out = open(f"{sys.argv[2]}/hosts.{os.environ.get('LABEL','x')}.rank{r}.jsonl", "a")

def zoo(c):
    p, b = c["prog"], c["mbs"]
    if p.startswith("tv:"):
        import torchvision
        with torch.device(dev): m = getattr(torchvision.models, p[3:])(**c.get("kw", {}))
        s = c.get("px", 64); x = torch.randn(b, 3, s, s, device=dev); y = torch.randint(0, 1000, (b,), device=dev)
        if c.get("channels_last"): m = m.to(memory_format=torch.channels_last); x = x.to(memory_format=torch.channels_last)
        call = lambda: F.cross_entropy(m(x), y)
        if p[3:] in ("googlenet", "inception_v3"): call = lambda: F.cross_entropy(m(x).logits, y)
    else:
        import transformers as T
        cfg = T.AutoConfig.for_model(p[3:], **c["kw"]); cls = getattr(T, c.get("cls", "AutoModelForCausalLM"))
        with torch.device(dev): m = (cls.from_config(cfg, attn_implementation=c.get("attn", "sdpa")) if hasattr(cls, "from_config") else cls(cfg))
        if c.get("pure_bf16"): m = m.to(bf)
        if c.get("ac"): m.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dict(use_reentrant=False))
        v = c["kw"].get("vocab_size", 1000)
        if "Image" in c.get("cls", ""):
            s = c["kw"]["image_size"]; kw = dict(pixel_values=torch.randn(b, 3, s, s, device=dev, dtype=next(m.parameters()).dtype), labels=torch.randint(0, 2, (b,), device=dev))
        else:
            x = torch.randint(5, v, (b, c["seq"]), device=dev); kw = dict(input_ids=x, labels=x)
        call = None
    m.train(); ps = [q for q in m.parameters() if q.requires_grad]; mode = c.get("mode", "single"); n = m
    if mode == "ddp": n = torch.nn.parallel.DistributedDataParallel(m, device_ids=[lr])
    if mode == "fsdp":
        from torch.distributed.fsdp import fully_shard, MixedPrecisionPolicy
        body = next(x for x in m.modules() if isinstance(x, torch.nn.ModuleList) and len(x) > 4); mp = MixedPrecisionPolicy(param_dtype=bf, reduce_dtype=torch.float32)
        for x_ in body: fully_shard(x_, mp_policy=mp)
        fully_shard(m, mp_policy=mp); ps = list(m.parameters())
    if call is None: call = lambda: n(**kw).loss
    elif n is not m: call = lambda: F.cross_entropy(n(x), y)
    o = torch.optim.SGD(ps, lr=0.1, momentum=0.9) if c.get("opt") == "sgd" else torch.optim.AdamW(ps, lr=1e-4, **({"fused": True} if c.get("fused") else {}))
    amp = (lambda: torch.autocast("cuda", bf)) if c.get("amp") else contextlib.nullcontext
    def step():
        for _ in range(c.get("ga", 1)):
            with amp(): l = call()
            l.backward()
        if c.get("clip"): torch.nn.utils.clip_grad_norm_(ps, 1.0)
        o.step(); o.zero_grad()
        if c.get("item"): l.item()
    return step, {}, lambda: None

T = dict(bwd=0.0, opt=0.0, depth=0)
def timed(fn, key):
    def f(*a, **k):
        t = time.perf_counter()
        T["depth"] += 1
        try: return fn(*a, **k)
        finally:
            T["depth"] -= 1
            if T["depth"] == 0: T[key] += time.perf_counter() - t
    return f
if not CAP:
    torch.autograd.backward = timed(torch.autograd.backward, "bwd")
    for cls in (torch.optim.AdamW, torch.optim.SGD): cls.step = timed(cls.step, "opt")

def refs():
    def py():
        t = time.perf_counter(); d = {}
        for i in range(60000): d[i & 255] = (i, d.get(i & 127)); abs(i)
        return time.perf_counter() - t
    def cpu():
        x = torch.ones(8); t = time.perf_counter()
        for _ in range(4000): y = x + x
        return time.perf_counter() - t
    def gpu():
        x = torch.ones(8, device=dev); torch.cuda.synchronize(); s = 0
        for _ in range(6):
            t = time.perf_counter()
            for _ in range(600): y = x + x
            s += time.perf_counter() - t; torch.cuda.synchronize()
        return s
    return [min(f() for _ in range(3)) for f in (py, cpu, gpu)]

def counts(step):
    import threading
    n = dict(call=0, c_call=0)
    def prof(f, e, a):
        if e in n: n[e] += 1
    threading.setprofile(prof); sys.setprofile(prof)
    try: step()
    finally: sys.setprofile(None); threading.setprofile(None)
    return n

T0 = time.time(); BUDGET = float(os.environ.get("BUDGET", "500"))
for c in cases:
    over = torch.tensor([1.0 if time.time() - T0 > BUDGET else 0.0], device=dev)
    if not CAP:
        dist.broadcast(over, 0)
        if over.item(): print("BUDGET before", c["id"]); break
    res = dict(id=c["id"], case=c, rank=r, world=W)
    try:
        t0 = time.time()
        step, info, end = (zoo if "prog" in c else G[c["fw"]])(c)
        if CAP:
            for _ in range(5): step()
            end(); continue
        for _ in range(3): step()
        torch.cuda.synchronize(); dist.barrier()
        ref = refs(); tot, b, o, g = [], [], [], []
        ev = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        for _ in range(12):
            torch.cuda.synchronize(); dist.barrier(); torch.cuda.synchronize()
            T.update(bwd=0.0, opt=0.0); ev[0].record(); t = time.perf_counter(); step(); x = time.perf_counter() - t; ev[1].record(); torch.cuda.synchronize()
            tot.append(x); b.append(T["bwd"]); o.append(T["opt"]); g.append(ev[0].elapsed_time(ev[1]) * 1e-3)
        res.update(cpu=tot, bwd=b, opt=o, gpu=g, ref=ref, ref2=refs(), counts=counts(step)); end()
        res["total_s"] = time.time() - t0
        if r == 0: print(f"{c['id']:30s} cpu {1e3*st.median(tot):7.2f} bwd {1e3*st.median(b):7.2f} opt {1e3*st.median(o):6.2f} gpu {1e3*st.median(g):7.2f} ref {' '.join(f'{1e3*x:.1f}' for x in ref)} {res['counts']} {res['total_s']:.1f}s", flush=True)
    except Exception as e:
        res["error"] = traceback.format_exc()[-700:]
        if r == 0 or CAP: print("ERR", c["id"], traceback.format_exc()[-500:], flush=True)
        if CAP: raise
        try:
            from megatron.core import parallel_state as ps; ps.destroy_model_parallel()
        except Exception: pass
    out.write(json.dumps(res) + "\n"); out.flush(); step = None; gc.collect(); torch.cuda.empty_cache()
