"""host.py OUT.jsonl: host time of steps of whole programs, a fixed Python loop and CPU operators beside every one, then
single Python and PyTorch calls the same way. Each program in a forked process. About 130 s."""
import gc, json, os, runpy, signal, statistics, sys, time, traceback
from pathlib import Path
here = Path(__file__).resolve().parent
FILES = next((f for f in (here / "host_files", Path.cwd() / "host_files") if f.exists()), here)
sys.path.insert(0, str(FILES)); OUT = os.path.abspath(sys.argv[1]); BEGIN = time.perf_counter()
import torch
for name in ("torchvision", "transformers", "timm", "torch.fx", "torch._dynamo"):
    try: __import__(name)
    except Exception: pass
def write(row):
    with open(OUT, "a") as f: f.write(json.dumps({**row, "t": round(time.time(), 2)}) + "\n")
def loop():
    x, t = 0, time.perf_counter()
    for i in range(10_000): x += i & 3
    return time.perf_counter() - t
def operators(x=None):
    x = torch.ones(8); t = time.perf_counter()
    for _ in range(100): y = x + x
    return time.perf_counter() - t
class Done(Exception): pass
WARM, FREE, SYNCED = 6, 8, 12  # steps: not timed, as they are, each begun with an idle GPU
def program(name, path, args, period, scale=1):
    from torch.optim.optimizer import register_optimizer_step_post_hook
    state = dict(n=0, last=None); steps = []
    def hook(opt, *a):
        now = time.perf_counter(); state["n"] += 1
        if state["n"] % period: return
        k = state["n"] // period
        idle = torch.cuda.current_stream().query()
        if state["last"] is not None and k > WARM: steps.append([now - state["last"], k > WARM + FREE * scale, idle, state["refs"]])
        if k > WARM + (FREE + SYNCED) * scale: raise Done
        if k >= WARM + FREE * scale: torch.cuda.synchronize()
        state["refs"] = [loop(), operators()]
        state["last"] = time.perf_counter()
    handle = register_optimizer_step_post_hook(hook); row = dict(kind="program", name=name, args=args, gpu=torch.cuda.get_device_name(0), torch=torch.__version__); t0 = time.perf_counter()
    sys.argv = [path, *args]
    try: runpy.run_path(path, run_name="__main__")
    except Done: pass
    except BaseException: row["error"] = traceback.format_exc()[-600:]
    handle.remove(); row["steps"] = [dict(s=round(s, 7), synced=z, idle=i, loop=round(r[0], 7), ops=round(r[1], 7)) for s, z, i, r in steps]; row["took"] = round(time.perf_counter() - t0, 2); write(row)
def group(jobs, until):
    for j in jobs:
        if time.perf_counter() - BEGIN > until: write(dict(kind="skipped", name=j[0])); continue
        program(*j); gc.collect(); torch.cuda.empty_cache(); torch.backends.cudnn.benchmark = False
def forked(call, limit):
    pid = os.fork()
    if pid == 0:
        null = os.open(os.devnull, os.O_WRONLY); os.dup2(null, 1); os.chdir("/tmp")
        try: call()
        except BaseException:
            write(dict(kind="failed", error=traceback.format_exc()[-600:]))
        os._exit(0)
    end = time.perf_counter() + limit
    while time.perf_counter() < end:
        if os.waitpid(pid, os.WNOHANG)[0]: return
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0); write(dict(kind="killed", after=limit))
B, U, S = str(FILES / "blind"), str(FILES / "unseen"), str(FILES / "small.py")
P = [("ppo", f"{B}/ppo.py", [], 1, 2), ("moe", f"{B}/moe.py", [], 1), ("unet2d", f"{B}/unet2d.py", [], 1), ("mobilenetv4", f"{B}/maxvit.py", ["mobilenetv4_conv_medium", "128", "224"], 1), ("maxvit", f"{B}/maxvit.py", ["maxvit_tiny_tf_224", "48", "224"], 1), ("gpt-muon", f"{B}/gpt.py", ["--muon", "--accum", "2", "--steps", "90"], 2), ("trainer-gemma3", f"{B}/trainer.py", ["gemma3", "bf16=True", "per_device_train_batch_size=4", "seq=1024"], 1), ("gan", f"{B}/gan.py", [], 2),
 ("handmoe", f"{U}/handmoe.py", [], 1), ("speech", f"{U}/speech.py", [], 1), ("dp_sgd", f"{U}/dp_sgd.py", [], 1), ("seq2seq", f"{U}/seq2seq.py", [], 1), ("muon", f"{U}/muon.py", [], 2), ("forces", f"{U}/forces.py", [], 1), ("dit", f"{U}/dit.py", [], 1), ("pinn", f"{U}/pinn.py", [], 1)]
SMALL = "resnet50 llama bert-amp effb0 llama-ac gpt2 mobilenet mixtral swin bert regnet qwen3 dense distil convnext opt vit bart resnet18 llama-ga shuffle falcon vgg neox".split()
def micro(label, short):
    from lab.measure import host
    gc.collect(); gc.disable()
    def settle(): torch.cuda.synchronize()
    for part in (host.SHORT if short else host.PARTS) + (() if short else (more,)):
        for name, count, body in part():
            values = []
            try:
                for _ in range(6):
                    settle(); a = loop(); t = time.perf_counter(); body(); v = (time.perf_counter() - t) / count; settle(); values.append([v, a])
            except Exception as e: write(dict(kind="micro", label=label, name=name, error=repr(e)[:200])); continue
            write(dict(kind="micro", label=label, name=name, s=min(v for v, _ in values), median=statistics.median(v for v, _ in values), loop=min(l for _, l in values), over_loop=statistics.median(v / l for v, l in values), n=len(values)))
        if time.perf_counter() - BEGIN > 128: return
def more():
    """Lines, calls and optimizers by the number of their tensors."""
    N = 3000
    def many(text, **names):
        env = dict(names); exec("def body():\n" + "".join(f"    {text}\n" for _ in range(N)), env); return env["body"]
    class O:
        a = 1
        def m(self): return None
        @property
        def p(self): return self.a
        def __getattr__(self, k): return 1
    def f(): return None
    def g(a, b=1, *c, d=2, **e): return a
    def h(a, b): return a + b
    o, d, l = O(), {"k": 1}, [1, 2, 3]
    for name, text in {"x = 1": "x = 1", "x = y + 1": "x = a + 1", "x = o.a": "x = o.a", "o.a = 1": "o.b = 1", "x = d[k]": "x = d['k']", "x = l[1]": "x = l[1]", "if a is None": "x = 1 if a is None else 2", "f()": "f()", "h(1, 2)": "h(1, 2)", "g(1, d=3)": "g(1, d=3)", "g(*l)": "g(*l)", "g(**d)": "g(1, **d)", "o.m()": "o.m()", "o.p": "o.p", "__getattr__": "o.zz", "len(l)": "len(l)", "isinstance": "isinstance(o, dict)", "tuple": "x = (a, a, a)", "unpack": "x, y, z = l", "list comprehension of 3": "x = [i for i in l]", "generator of 3": "x = list(i for i in l)", "f-string": "x = f'{a}.{a}'", "lambda": "x = lambda: a", "getattr": "getattr(o, 'a')", "hasattr no": "hasattr(d, 'q')"}.items():
        yield f"line: {name}", N, many(text, a=5, o=o, d=d, l=l, f=f, g=g, h=h)
    x = torch.ones(4, device="cuda"); m = torch.nn.ModuleList([torch.nn.Linear(4, 4, device="cuda")])
    for name, text in {"x.shape": "x.shape", "x.dtype": "x.dtype", "x.device": "x.device", "x.is_cuda": "x.is_cuda", "x.size(0)": "x.size(0)", "x.dim()": "x.dim()", "x.requires_grad": "x.requires_grad", "module attribute": "m[0].weight", "is_grad_enabled": "torch.is_grad_enabled()"}.items():
        yield f"line: {name}", N, many(text, x=x, m=m, torch=torch)
    for count in (1, 10, 100, 400):
        for size in (64, 65536):
            ps = [torch.nn.Parameter(torch.randn(size, device="cuda")) for _ in range(count)]
            for p in ps: p.grad = torch.randn_like(p)
            kinds = {"AdamW fused": lambda: torch.optim.AdamW(ps, fused=True), "AdamW foreach": lambda: torch.optim.AdamW(ps, foreach=True), "Adam foreach clipped": None, "SGD foreach": lambda: torch.optim.SGD(ps, momentum=0.9, lr=1e-4, foreach=True), "SGD plain": lambda: torch.optim.SGD(ps, lr=1e-4), "zero_grad": None}
            for name, make in kinds.items():
                if size == 65536 and name != "AdamW foreach": continue
                def often(call, k=3):
                    def body():
                        for _ in range(k): call()
                    return body
                if name == "Adam foreach clipped": yield f"clip_grad_norm_: {count} x {size}", 3, often(lambda: torch.nn.utils.clip_grad_norm_(ps, 1e9))
                elif name == "zero_grad": yield f"zero_grad(set_to_none=False): {count} x {size}", 3, often(lambda: torch.optim.SGD(ps, lr=0.1).zero_grad(set_to_none=False))
                else:
                    opt = make(); opt.step(); yield f"step: {name} {count} x {size}", 3, often(opt.step)
    w = torch.randn(64, 64, device="cuda", requires_grad=True)
    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x): ctx.save_for_backward(x); return x * 2
        @staticmethod
        def backward(ctx, g): return g * ctx.saved_tensors[0]
    def chain(step, n=100):
        def body():
            y = w
            for _ in range(n): y = step(y)
            y.backward(y.detach()); w.grad = None
        return body
    yield "custom function, forward and backward", 100, chain(Custom.apply)
    hooked = torch.nn.Linear(64, 64, device="cuda"); hooked.register_full_backward_hook(lambda *a: None)
    yield "Linear with a backward hook, both ways", 30, chain(hooked, 30)
    yield "reshape, transpose, both ways", 100, chain(lambda y: y.reshape(8, 8, 64).transpose(0, 1).reshape(64, 64))
    from torch.utils.data import DataLoader, TensorDataset
    data = TensorDataset(torch.randn(4096, 16), torch.randint(0, 9, (4096,)))
    def loader(**k):
        def body():
            for _ in DataLoader(data, 64, shuffle=True, **k): pass
        return body
    yield "DataLoader of 64 samples a batch", 64, loader()
    yield "DataLoader pinned", 64, loader(pin_memory=True)
    yield "to cuda of 64 x 16, pageable", 100, lambda: [torch.empty(64, 16).to("cuda") for _ in range(100)]
    yield "gc.collect", 1, gc.collect
write(dict(kind="system", torch=torch.__version__, python=sys.version.split()[0], cores=os.cpu_count(), loop=loop()))
forked(lambda: micro("start", False), 40)
for job in P:
    if time.perf_counter() - BEGIN > 95: write(dict(kind="skipped", name=job[0])); continue
    forked(lambda: program(*job), 25)
forked(lambda: group([(f"small-{c}", S, [c], 1) for c in SMALL], 128), 45)
for job in P[:5] + P[8:11]:
    if time.perf_counter() - BEGIN > 132: write(dict(kind="skipped", name=job[0] + " again")); continue
    forked(lambda: program(*job), 15)
write(dict(kind="end", seconds=time.perf_counter() - BEGIN))
