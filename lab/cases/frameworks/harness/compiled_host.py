"""Host time of compiled programs (torch.compile, Inductor) beside the same programs eager: compiled_host.py [--program NAME MODE].

Writes $OUT/compiled_host.json: rows with least and median seconds of forward, backward and update, each step begun with
an idle GPU, kernels by launching call (one profiled step), and two fixed loops beside every row that say how fast the
host was. Models are tiny, so the GPU has next to nothing to do. One GPU, about 200 s.
With --program it only runs three steps of one model (for `prestep capture -- compiled_host.py --program NAME MODE`).
"""
import json, os, statistics, sys, time, traceback
import torch, torch.nn as nn, torch.nn.functional as F

DEV = "cuda"
T0 = time.perf_counter()
BUDGET = 225.0


def loop():
    x, t = 0, time.perf_counter()
    for i in range(10_000):
        x += i & 3
    return time.perf_counter() - t


def operators():
    x = torch.ones(8)
    t = time.perf_counter()
    for _ in range(100):
        x + x
    return time.perf_counter() - t


def gpu_operators():
    x = torch.ones(8, device=DEV)
    torch.cuda.synchronize()
    t = time.perf_counter()
    for _ in range(300):
        x + x
    t = (time.perf_counter() - t) / 300
    torch.cuda.synchronize()
    return t


class Vit(nn.Module):
    """A vision transformer, with layer scale if asked for."""

    def __init__(self, layers, d=64, scale=False):
        super().__init__()
        self.embed = nn.Conv2d(3, d, 16, 16)
        self.cls = nn.Parameter(torch.zeros(1, 1, d))
        self.pos = nn.Parameter(torch.zeros(1, 17, d))
        self.blocks = nn.ModuleList()
        for _ in range(layers):
            b = nn.ModuleDict(dict(n1=nn.LayerNorm(d), qkv=nn.Linear(d, 3 * d), o=nn.Linear(d, d), n2=nn.LayerNorm(d), up=nn.Linear(d, 4 * d), down=nn.Linear(4 * d, d)))
            if scale:
                b["s"] = nn.ParameterList([nn.Parameter(torch.ones(d)), nn.Parameter(torch.ones(d))])
            self.blocks.append(b)
        self.norm, self.head, self.scale = nn.LayerNorm(d), nn.Linear(d, 10), scale

    def forward(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        for b in self.blocks:
            h = b["n1"](x)
            q, k, v = b["qkv"](h).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
            a = b["o"](F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
            x = x + (a * b["s"][0] if self.scale else a)
            m = b["down"](F.gelu(b["up"](b["n2"](x))))
            x = x + (m * b["s"][1] if self.scale else m)
        return self.head(self.norm(x)[:, 0])


class Llama(nn.Module):
    """RMS norms, rotary embedding, gated products; no biases."""

    def __init__(self, layers, d=128):
        super().__init__()
        self.embed = nn.Embedding(512, d)
        self.blocks = nn.ModuleList(nn.ModuleDict(dict(n1=nn.RMSNorm(d), q=nn.Linear(d, d, bias=False), k=nn.Linear(d, d, bias=False), v=nn.Linear(d, d, bias=False), o=nn.Linear(d, d, bias=False), n2=nn.RMSNorm(d), g=nn.Linear(d, 2 * d, bias=False), u=nn.Linear(d, 2 * d, bias=False), w=nn.Linear(2 * d, d, bias=False))) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(d), nn.Linear(d, 512, bias=False)
        f = torch.outer(torch.arange(64.0), 1 / 10000 ** (torch.arange(0, 32, 2) / 32))
        self.register_buffer("cos", torch.cat([f, f], 1).cos())
        self.register_buffer("sin", torch.cat([f, f], 1).sin())

    def rotate(self, x):
        a, b = x.chunk(2, -1)
        return x * self.cos.to(x.dtype) + torch.cat([-b, a], -1) * self.sin.to(x.dtype)

    def forward(self, t):
        x = self.embed(t)
        for b in self.blocks:
            h = b["n1"](x)
            q, k, v = (b[n](h).unflatten(-1, (4, -1)).transpose(1, 2) for n in "qkv")
            a = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True)
            x = x + b["o"](a.transpose(1, 2).flatten(2))
            h = b["n2"](x)
            x = x + b["w"](F.silu(b["g"](h)) * b["u"](h))
        return self.head(self.norm(x)).float().flatten(0, 1)


class Shapes(nn.Module):
    """N functions of tensors of different sizes: one Triton kernel each, forward and backward."""

    def __init__(self, n):
        super().__init__()
        self.ws = nn.ParameterList([nn.Parameter(torch.randn(64 + 3 * i)) for i in range(n)])

    def forward(self, x):
        return torch.stack([torch.sum(torch.sin(w) * 2, -1) for w in self.ws]).reshape(1, -1) + x.flatten()[:1]


class Products(nn.Module):
    """N products one after the other, nothing between: one call of cuBLAS each."""

    def __init__(self, n):
        super().__init__()
        self.ws = nn.ParameterList([nn.Parameter(torch.randn(64, 64) / 8) for _ in range(n)])

    def forward(self, x):
        for w in self.ws:
            x = x @ w
        return x


class Mlp(nn.Module):
    """N linears with biases and GELU."""

    def __init__(self, n):
        super().__init__()
        self.ls = nn.ModuleList(nn.Linear(64, 64) for _ in range(n))

    def forward(self, x):
        for l in self.ls:
            x = F.gelu(l(x))
        return x


class Conv(nn.Module):
    """N blocks of convolution, batch norm and ReLU with a residual."""

    def __init__(self, n):
        super().__init__()
        self.cs = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1, bias=False) for _ in range(n))
        self.bs = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(n))
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        for c, b in zip(self.cs, self.bs):
            x = x + F.relu(b(c(x)))
        return self.head(x.mean((2, 3)))


MODELS = {
    "vit2": (lambda: Vit(2), "image"), "vit8": (lambda: Vit(8), "image"), "vit8-scale": (lambda: Vit(8, scale=True), "image"),
    "llama2": (lambda: Llama(2), "tokens"), "llama8": (lambda: Llama(8), "tokens"),
    "shapes20": (lambda: Shapes(20), "x"), "shapes100": (lambda: Shapes(100), "x"),
    "products100": (lambda: Products(100), "x"), "mlp40": (lambda: Mlp(40), "x"), "conv20": (lambda: Conv(20), "planes"),
}
MODES = ("bf16", "amp", "fp32")


def setup(name, mode, compiled, fused=True):
    torch._dynamo.reset()
    torch.manual_seed(0)
    make, kind = MODELS[name]
    model = make().to(DEV)
    dtype = torch.bfloat16 if mode == "bf16" else torch.float32
    model = model.to(dtype)
    x = {"image": lambda: torch.randn(2, 3, 64, 64, device=DEV, dtype=dtype), "tokens": lambda: torch.randint(0, 512, (2, 64), device=DEV),
         "x": lambda: torch.randn(64, 64, device=DEV, dtype=dtype), "planes": lambda: torch.randn(2, 16, 16, 16, device=DEV, dtype=dtype)}[kind]()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=fused, foreach=not fused)
    run = torch.compile(model) if compiled else model

    def forward():
        with torch.autocast("cuda", torch.bfloat16, enabled=mode == "amp"):
            return run(x).float().square().mean()

    return model, opt, forward


def step(opt, forward, synced=True):
    t = [time.perf_counter()]
    loss = forward()
    t.append(time.perf_counter())
    if synced:
        torch.cuda.synchronize()
    t.append(time.perf_counter())
    loss.backward()
    t.append(time.perf_counter())
    if synced:
        torch.cuda.synchronize()
    t.append(time.perf_counter())
    opt.step()
    opt.zero_grad()
    t.append(time.perf_counter())
    if synced:
        torch.cuda.synchronize()
    return t[1] - t[0], t[3] - t[2], t[5] - t[4]


def launches(opt, forward):
    from torch.profiler import ProfilerActivity, profile
    step(opt, forward)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as p:
        step(opt, forward)
    counts, kernels = {}, {}
    for e in p.events():
        if e.device_type == torch.autograd.DeviceType.CUDA:
            kind = "triton" if e.name.startswith("triton_") else "other"
            if kind == "triton": kind = "_".join(e.name.split("_")[:2])
            kernels[kind] = kernels.get(kind, 0) + 1
        elif e.name.startswith("cu"):
            counts[e.name] = counts.get(e.name, 0) + 1
    return counts, kernels


def measure(name, mode, compiled, fused=True):
    row = dict(name=name, mode=mode, compiled=compiled, fused=fused)
    try:
        t = time.perf_counter()
        model, opt, forward = setup(name, mode, compiled, fused)
        row["parameters"] = sum(1 for _ in model.parameters())
        for _ in range(6):
            step(opt, forward)
        row["first_s"] = time.perf_counter() - t
        parts, loops, ops, gops = [], [], [], []
        for k in range(30):
            if k % 5 == 0:
                loops.append(loop()); ops.append(operators()); gops.append(gpu_operators())
            parts.append(step(opt, forward))
        for at, part in enumerate(("forward", "backward", "update")):
            values = [p[at] for p in parts]
            row[part] = min(values)
            row[part + "_median"] = statistics.median(values)
        row["whole"] = min(sum(p) for p in parts)
        row.update(loop=min(loops), loop_median=statistics.median(loops), ops=min(ops), gpu_ops=min(gops), gpu_ops_median=statistics.median(gops))
        row["api"], row["kernels"] = launches(opt, forward)
    except Exception:
        row["error"] = traceback.format_exc()[-700:]
    return row


def main():
    if sys.argv[1:2] == ["--program"]:
        name, mode = sys.argv[2:4]
        _, opt, forward = setup(name, mode, "eager" not in sys.argv, "foreach" not in sys.argv)
        for _ in range(3):
            forward().backward()
            opt.step()
            opt.zero_grad()
        return
    rows = []
    out = os.path.join(os.environ.get("OUT", "."), "compiled_host.json")
    jobs = [(n, "bf16", False, True) for n in MODELS]
    jobs += [("vit8", "amp", False, True), ("vit8", "amp", False, False)]
    jobs += [(n, "bf16", True, True) for n in ("llama2", "llama8", "vit2", "vit8", "shapes100", "products100", "mlp40", "conv20", "shapes20")]
    jobs += [("vit8", "amp", True, True), ("vit8-scale", "amp", True, False), ("llama8", "amp", True, True), ("mlp40", "amp", True, True), ("conv20", "amp", True, True)]
    jobs += [("vit8", "bf16", False, True), ("mlp40", "bf16", False, True)]  # again, as the host changes
    for job in jobs:
        if time.perf_counter() - T0 > BUDGET:
            rows.append(dict(name=job[0], mode=job[1], compiled=job[2], skipped=True))
        else:
            rows.append(measure(*job))
        with open(out, "w") as f:
            json.dump(dict(torch=torch.__version__, python=sys.version.split()[0], gpu=torch.cuda.get_device_name(0), cores=os.cpu_count(), seconds=time.perf_counter() - T0, rows=rows), f, indent=1)
    print("wrote", out, len(rows), "rows in", round(time.perf_counter() - T0), "s")


if __name__ == "__main__":
    main()
