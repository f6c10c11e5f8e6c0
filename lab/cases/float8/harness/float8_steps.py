"""Steps of a small decoder with compiled blocks on one GPU, in bf16 and with torchao's float8 linears."""
import json, os, statistics, sys, time, traceback
import torch, torch.nn as nn, torch.nn.functional as F

OUT = os.environ.get("OUT", ".")
DIM, FFN, HEADS, KV, VOCAB = 4096, 14336, 32, 8, 32000
torch.backends.cuda.matmul.allow_tf32 = True


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(DIM))

    def forward(self, x):
        return F.rms_norm(x, (DIM,), self.weight, 1e-5)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        line = lambda i, o: nn.Linear(i, o, bias=False)
        self.wq, self.wk, self.wv, self.wo = line(DIM, DIM), line(DIM, 1024), line(DIM, 1024), line(DIM, DIM)
        self.w1, self.w3, self.w2 = line(DIM, FFN), line(DIM, FFN), line(FFN, DIM)
        self.n1, self.n2 = Norm(), Norm()

    def forward(self, x, cos, sin):
        b, s, _ = x.shape
        h = self.n1(x)
        q = self.wq(h).view(b, s, HEADS, -1)
        k = self.wk(h).view(b, s, KV, -1)
        v = self.wv(h).view(b, s, KV, -1)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.wo(a.transpose(1, 2).reshape(b, s, DIM))
        h = self.n2(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


def rotate(x, cos, sin):
    one, two = x.float().chunk(2, -1)
    c, s = cos[:, None, :], sin[:, None, :]
    return torch.cat((one * c - two * s, one * s + two * c), -1).to(x.dtype)


class Model(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.head = Norm(), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens, cos, sin):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


def run(recipe, layers, batch, seq, trace=False):
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Model(layers).to(torch.bfloat16)
    if recipe != "bf16":
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
        convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name(recipe),
                                   module_filter_fn=lambda m, name: "blocks" in name)
    for block in model.blocks:
        block.compile(fullgraph=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    tokens = torch.randint(VOCAB, (batch, seq), device="cuda")
    labels = torch.randint(VOCAB, (batch, seq), device="cuda")
    angle = torch.outer(torch.arange(seq, device="cuda"), 1e4 ** (-torch.arange(64, device="cuda") / 64))
    cos, sin = angle.cos(), angle.sin()

    def step():
        loss = F.cross_entropy(model(tokens, cos, sin).float().view(-1, VOCAB), labels.view(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    start = time.time()
    for _ in range(4):
        step()
    torch.cuda.synchronize()
    warm = time.time() - start
    times = []
    for _ in range(16):
        torch.cuda.synchronize(); t = time.perf_counter()
        step()
        torch.cuda.synchronize(); times.append(time.perf_counter() - t)
    row = dict(recipe=recipe, layers=layers, batch=batch, seq=seq, dim=DIM, ffn=FFN, heads=HEADS, kv_heads=KV,
               vocab=VOCAB, median=statistics.median(times), times=times, warm=warm,
               memory=torch.cuda.max_memory_allocated(), gpu=torch.cuda.get_device_name(), torch=torch.__version__)
    torch.cuda.reset_peak_memory_stats()
    if trace:
        from torch.profiler import profile, ProfilerActivity
        with profile(activities=[ProfilerActivity.CUDA]) as prof:
            step(); step()
            torch.cuda.synchronize()
        kernels = {}
        for e in prof.events():
            if e.device_type == torch.autograd.DeviceType.CUDA:
                n = kernels.setdefault(e.name[:200], [0, 0.0])
                n[0] += 1; n[1] += e.device_time_total if hasattr(e, "device_time_total") else e.cuda_time_total
        row["kernels"] = sorted(([k, *v] for k, v in kernels.items()), key=lambda r: -r[2])
        try:
            prof.export_chrome_trace(f"{OUT}/{recipe}.json"); os.system(f"gzip -9 {OUT}/{recipe}.json")
        except Exception as e: row["trace_error"] = str(e)
    del model, optimizer
    torch.cuda.empty_cache()
    with open(f"{OUT}/float8.jsonl", "a") as f:
        f.write(json.dumps(row) + "\n")
    print({k: row[k] for k in ("recipe", "layers", "batch", "seq", "median", "warm")}, flush=True)


if __name__ == "__main__":
    try:
        import torchao; print("torchao", torchao.__version__)
    except Exception: traceback.print_exc()
    for case in [("bf16", 4, 1, 8192, True), ("tensorwise", 4, 1, 8192, True), ("rowwise", 4, 1, 8192, True),
                 ("rowwise_with_gw_hp", 4, 1, 8192, True), ("tensorwise", 4, 2, 4096, False), ("rowwise", 4, 2, 4096, False),
                 ("tensorwise", 8, 1, 4096, False), ("bf16", 8, 1, 4096, False), ("bf16", 4, 2, 4096, False)]:
        try: run(*case)
        except Exception as error:
            traceback.print_exc(); print("FAILED", case, error, flush=True)
