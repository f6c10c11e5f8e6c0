"""LoRA steps of a small decoder on one GPU, eager and with compiled blocks: PEFT's forward beside frozen weights.

Rows go to $OUT/peft_compiled.jsonl; the kernels of a step in order, and a table by name, to $OUT/<case>.kernels.json.gz;
Inductor's code to $OUT/code.log (a line "==== case" before each).
"""
import argparse, contextlib, gzip, json, os, statistics, time, traceback

OUT = os.environ.get("OUT", ".")
os.makedirs(OUT, exist_ok=True)
CODE = os.path.join(OUT, "code.log")
os.environ["TORCH_LOGS_OUT"] = CODE
import torch, torch.nn as nn, torch.nn.functional as F

CUDA = torch.cuda.is_available()
DEV = "cuda" if CUDA else "cpu"
ALL = ("wq", "wk", "wv", "wo", "w1", "w3", "w2")


class Lora(nn.Module):
    """peft.tuners.lora.layer.Linear.forward with one adapter and nothing merged."""

    def __init__(self, base, rank, dropout, dtype):
        super().__init__()
        self.base_layer = base
        self.lora_dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.lora_A = nn.Linear(base.in_features, rank, bias=False, dtype=dtype)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False, dtype=dtype)
        self.scaling = 2.0

    def forward(self, x):
        result = self.base_layer(x)
        kind = result.dtype
        if x.dtype != self.lora_A.weight.dtype:
            x = x.to(self.lora_A.weight.dtype)
        result = result + self.lora_B(self.lora_A(self.lora_dropout(x))) * self.scaling
        return result.to(kind)


class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim, self.weight = dim, nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.rms_norm(x, (self.dim,), self.weight, 1e-5)


def rotate(x, cos, sin):
    one, two = x.float().chunk(2, -1)
    c, s = cos[:, None, :], sin[:, None, :]
    return torch.cat((one * c - two * s, one * s + two * c), -1).to(x.dtype)


class Block(nn.Module):
    def __init__(self, dim, ffn, heads, kv):
        super().__init__()
        line = lambda i, o: nn.Linear(i, o, bias=False)
        self.heads, self.kv, self.dim, head = heads, kv, dim, dim // heads
        self.wq, self.wk, self.wv, self.wo = line(dim, dim), line(dim, kv * head), line(dim, kv * head), line(dim, dim)
        self.w1, self.w3, self.w2 = line(dim, ffn), line(dim, ffn), line(ffn, dim)
        self.n1, self.n2 = Norm(dim), Norm(dim)

    def forward(self, x, cos, sin):
        b, s, _ = x.shape
        h = self.n1(x)
        q = self.wq(h).view(b, s, self.heads, -1)
        k = self.wk(h).view(b, s, self.kv, -1)
        v = self.wv(h).view(b, s, self.kv, -1)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.wo(a.transpose(1, 2).reshape(b, s, self.dim))
        h = self.n2(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


class Model(nn.Module):
    def __init__(self, layers, dim, ffn, heads, kv, vocab):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(Block(dim, ffn, heads, kv) for _ in range(layers))
        self.norm, self.head = Norm(dim), nn.Linear(dim, vocab, bias=False)

    def forward(self, tokens, cos, sin):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


def made(c):
    with torch.device(DEV):
        model = Model(c["layers"], c["dim"], c["ffn"], c["heads"], c["kv"], c["vocab"]).to(torch.bfloat16)
        if c["targets"] != "full":
            for p in model.parameters():
                p.requires_grad_(False)
            dtype = torch.float32 if c["fp32"] else torch.bfloat16
            for block in model.blocks:
                for name in c["targets"].split(",") if c["targets"] else ():
                    setattr(block, name, Lora(getattr(block, name), c["rank"], c["dropout"], dtype))
    if c["compile"]:
        for block in model.blocks:
            block.compile(fullgraph=True)
    return model


def kernels(step):
    from torch.profiler import profile, ProfilerActivity
    with profile(activities=[ProfilerActivity.CUDA] if CUDA else [ProfilerActivity.CPU]) as prof:
        step()
        if CUDA:
            torch.cuda.synchronize()
    events = [e for e in prof.events() if not CUDA or e.device_type == torch.autograd.DeviceType.CUDA]
    events = sorted(events, key=lambda e: e.time_range.start)
    first = events[0].time_range.start if events else 0
    ordered = [[e.name, round(e.time_range.start - first, 2), round(e.time_range.elapsed_us(), 2)] for e in events]
    table = {}
    for name, _, took in ordered:
        n = table.setdefault(name, [0, 0.0])
        n[0] += 1
        n[1] += took
    table = sorted(([k, n, round(us, 1)] for k, (n, us) in table.items()), key=lambda r: -r[2])
    return table, ordered


def run(c, steps):
    torch._dynamo.reset()
    torch.manual_seed(0)
    with open(CODE, "a") as f:
        f.write(f"\n==== {c['id']}\n")
    model = made(c)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=CUDA)
    shape = (c["batch"], c["seq"])
    tokens = torch.randint(c["vocab"], shape, device=DEV)
    labels = torch.randint(c["vocab"], shape, device=DEV)
    half = c["dim"] // c["heads"] // 2
    angle = torch.outer(torch.arange(c["seq"], device=DEV), 1e4 ** (-torch.arange(half, device=DEV) / half))
    cos, sin = angle.cos(), angle.sin()
    sync = torch.cuda.synchronize if CUDA else (lambda: None)

    def step():
        with torch.autocast(DEV, torch.bfloat16) if c["fp32"] else contextlib.nullcontext():
            loss = F.cross_entropy(model(tokens, cos, sin).float().view(-1, c["vocab"]), labels.view(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    start = time.time()
    for _ in range(4):
        step()
    sync()
    warm = time.time() - start
    if CUDA:
        torch.cuda.reset_peak_memory_stats()
    times, host = [], []
    for _ in range(steps):
        sync(); t = time.perf_counter()
        step()
        host.append(time.perf_counter() - t)
        sync(); times.append(time.perf_counter() - t)
    row = dict(c, median=statistics.median(times), host=statistics.median(host), times=[round(t, 6) for t in times], warm=warm,
               trainable=sum(p.numel() for p in trained), memory=torch.cuda.max_memory_allocated() if CUDA else 0,
               gpu=torch.cuda.get_device_name() if CUDA else "cpu", torch=torch.__version__)
    if c["trace"]:
        table, ordered = kernels(step)
        row["gpu_us"], row["kernels"] = round(sum(r[2] for r in table), 1), len(ordered)
        with gzip.open(f"{OUT}/{c['id']}.kernels.json.gz", "wt") as f:
            json.dump(dict(case=c, table=table, ordered=ordered), f)
    del model, optimizer, trained
    if CUDA:
        torch.cuda.empty_cache()
    with open(f"{OUT}/peft_compiled.jsonl", "a") as f:
        f.write(json.dumps(row) + "\n")
    print(json.dumps({k: row.get(k) for k in ("id", "median", "host", "memory", "gpu_us", "kernels", "warm")}), flush=True)


SIZES = {
    "4096": dict(dim=4096, ffn=14336, heads=32, kv=8, batch=1, seq=4096),
    "2048": dict(dim=2048, ffn=8192, heads=32, kv=8, batch=4, seq=2048),
    "64": dict(dim=64, ffn=128, heads=4, kv=2, batch=1, seq=32),
}


def cases(a):
    """What is most needed comes first."""
    kinds = [("all", ",".join(ALL), False, 0.0), ("qv", "wq,wv", False, 0.0), ("full", "full", False, 0.0),
             ("all32", ",".join(ALL), True, 0.0), ("drop", ",".join(ALL), False, 0.05), ("qv32drop", "wq,wv", True, 0.1)]
    for size in a.sizes.split(","):
        for kind, targets, fp32, dropout in kinds:
            for compiled in (True, False):
                for layers in [int(n) for n in a.layers.split(",")]:
                    if layers != int(a.layers.split(",")[0]) and (kind not in ("all", "full") or not compiled):
                        continue
                    yield dict(SIZES[size], id=f"{size}-{kind}-{layers}-{'compiled' if compiled else 'eager'}", layers=layers, vocab=a.vocab,
                               targets=targets, rank=a.rank, fp32=fp32, dropout=dropout, compile=compiled, trace=layers == int(a.layers.split(",")[0]))


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--sizes", default="4096,2048")
    p.add_argument("--layers", default="4,8")
    p.add_argument("--rank", type=int, default=16)
    p.add_argument("--vocab", type=int, default=32000)
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--budget", type=float, default=520, help="seconds after which no case is begun")
    a = p.parse_args()
    torch._logging.set_logs(output_code=True)
    begun = time.time()
    for c in cases(a):
        if time.time() - begun > a.budget:
            print("no time for", c["id"], flush=True)
            continue
        try:
            run(c, a.steps)
        except Exception as error:
            traceback.print_exc()
            print("FAILED", c["id"], str(error)[:300], flush=True)
            if CUDA:
                torch.cuda.empty_cache()
    if os.path.exists(CODE):
        os.system(f"gzip -9 -f {CODE}")
