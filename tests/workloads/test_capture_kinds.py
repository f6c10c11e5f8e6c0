"""Kinds of programs that a capture has to take as they are: each is tiny, and differs in one thing. Needs PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from prestep.sim.predict import predict
from prestep.sim.spec.load import load_scenario
from prestep.workloads.capture import recording
from prestep.workloads.capture.recorder import captured
from prestep.workloads.capture.recording import Recording

pytestmark = pytest.mark.slow

HEAD = """
import torch, torch.nn as nn, torch.nn.functional as F
D = "cuda"
"""
DATA = """
e, b, l = nn.Embedding(1000, 32, sparse=True).cuda(), nn.EmbeddingBag(1000, 32, sparse=True).cuda(), nn.Linear(32, 1).cuda()
w = nn.Parameter(torch.randn(16, 16, dtype=torch.cfloat, device=D)); g = nn.GRU(8, 8).cuda(); c = nn.GRUCell(8, 8).cuda()
o = [torch.optim.SparseAdam([*e.parameters()]), torch.optim.SGD([*b.parameters()], lr=0.1), torch.optim.Adam([w, *(p for m in (l, g, c) for p in m.parameters())])]
for i in range(5):
    x = torch.randint(0, 1000, (64, 4), device=D); h = e(x).mean(1) + b(x); y = l(h).square().mean()
    m = h > 0; u, back = torch.unique((h * 4).long(), return_inverse=True); k = h.nonzero()
    y = y + h[m].mean() + torch.masked_select(h, m).mean() + h[k[:, 0]].mean() + h[h.sum(-1) > 0].mean()
    z = torch.fft.rfft(torch.randn(8, 16, 30, device=D), dim=-1); q = torch.einsum("bix,io->box", z, w); y = y + torch.fft.irfft(q * torch.exp(1j * q.angle())).square().mean()
    r = g(torch.randn(13, 4, 8, device=D))[0]; r = F.log_softmax(torch.stack([c(t) for t in r]), -1)
    y = y + F.ctc_loss(r, torch.randint(1, 8, (4, 3), device=D), torch.full((4,), 13), torch.full((4,), 3))
    for q in o: q.zero_grad()
    y.backward()
    for q in o: q.step()
"""
DISTRIBUTIONS = """
import torch.distributions as T
l = nn.Linear(16, 8).cuda(); o = torch.optim.Adam(l.parameters())
for i in range(5):
    h = l(torch.randn(32, 16, device=D)); p, s = F.softmax(h, -1), F.softplus(h) + 1e-3
    d = [T.Normal(h, s), T.Categorical(p), T.Bernoulli(torch.sigmoid(h)), T.Beta(s, s), T.Dirichlet(s), T.Poisson(s), T.Multinomial(10, p), T.VonMises(h, s)]
    loss = sum(q.log_prob(q.sample()).mean() for q in d)
    c = torch.diag_embed(s[:, :4]); m = T.MultivariateNormal(h[:, :4], covariance_matrix=c @ c.mT); loss = loss + m.log_prob(m.rsample()).mean()
    o.zero_grad(); loss.backward(); o.step()
"""
DERIVATIVES = """
from torch.func import vmap, grad, jvp, jacrev, functional_call
m = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).cuda(); c = nn.Sequential(nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8, affine=True), nn.SiLU(), nn.ConvTranspose2d(8, 3, 3)).cuda()
o = torch.optim.Adam([*m.parameters(), *c.parameters()])
def f(p, x): return functional_call(m, p, (x[None],)).square().sum()
for i in range(5):
    x = torch.randn(16, 8, device=D); p = dict(m.named_parameters()); g = vmap(grad(f), (None, 0))({k: v.detach() for k, v in p.items()}, x)
    _, t = jvp(lambda z: m(z).sum(), (x,), (torch.ones_like(x),)); J = vmap(jacrev(lambda z: m(z)[0]))(x)
    y = torch.randn(4, 3, 8, 8, device=D, requires_grad=True); g, = torch.autograd.grad(c(y).sum(), y, create_graph=True)
    o.zero_grad(); (J.square().mean() + t + (g.flatten(1).norm(dim=1) - 1).square().mean()).backward(); o.step()
"""
COMPILED = """
m = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)).cuda(); f = torch.compile(m, dynamic=True, mode="max-autotune-no-cudagraphs"); o = torch.optim.Adam(m.parameters()); step = torch.compile(o.step)
n = nn.Linear(32, 1).cuda(); p = torch.optim.LBFGS(n.parameters(), max_iter=3, line_search_fn="strong_wolfe"); x = torch.randn(64, 32, device=D)
def closure(): p.zero_grad(); l = n(x).square().mean(); l.backward(); return l
for i in range(5): o.zero_grad(); f(torch.randn(8 + i, 32, device=D)).square().mean().backward(); step(); p.step(closure)
"""
GRAPH = """
m = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).cuda(); o = torch.optim.Adam(m.parameters(), capturable=True)
x, y = torch.randn(16, 32, device=D), torch.randint(0, 8, (16,), device=D); s = torch.cuda.Stream(); s.wait_stream(torch.cuda.current_stream())
def step(): o.zero_grad(set_to_none=True); l = F.cross_entropy(m(x), y); l.backward(); o.step(); return l
with torch.cuda.stream(s): [step() for _ in range(4)]
torch.cuda.current_stream().wait_stream(s); g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g): l = step()
for i in range(6): x.copy_(torch.randn(16, 32)); g.replay(); print(l.item())
"""
WITHIN_BACKWARD = """
class A(nn.Module):
    def __init__(s): super().__init__(); s.q = nn.LazyLinear(192); s.o = nn.Linear(64, 64); s.n = nn.LayerNorm(64)
    def forward(s, x):
        q, k, v = (t.unflatten(-1, [4, 16]).transpose(1, 2) for t in s.q(s.n(x)).chunk(3, -1))
        return x + s.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))
m = nn.Sequential(A(), A()).cuda(); m(torch.randn(2, 4, 64, device=D)); o = {p: torch.optim.SGD([p], lr=0.1) for p in m.parameters()}
def hook(p): o[p].step(); o[p].zero_grad()
for p in m.parameters(): p.register_post_accumulate_grad_hook(hook)
for i in range(5): m(torch.nested.nested_tensor([torch.randn(n, 64) for n in (13, 40, 27)], layout=torch.jagged, device=D)).values().square().mean().backward()
"""
SPARSE = """
e = torch.randint(0, 500, (2, 3000)); a = torch.sparse_coo_tensor(e, torch.ones(3000), (500, 500)).coalesce()
r = torch.sparse_csr_tensor(torch.arange(0, 3001, 6), e[1], torch.ones(3000), (500, 500)).to(D); a = a.to(D)
l = nn.Linear(16, 16).cuda(); o = torch.optim.Adam(l.parameters())
for i in range(5):
    h = torch.sparse.mm(torch.sparse.mm(a, a), l(torch.randn(500, 16, device=D))); h = torch.relu(r @ h)
    o.zero_grad(); (h.sum() + (r.t() @ h).sum()).backward(); o.step()
"""
QUESTIONS = """
c = torch.cuda; assert c.nccl.version() > (2, 20) and torch.backends.cudnn.is_available() and torch.backends.cudnn.version() > 90000
p = c.get_device_properties(0); assert p.uuid and p.shared_memory_per_block < p.shared_memory_per_multiprocessor
g = torch.Generator("cuda").manual_seed(3); assert g.device.type == "cuda" and g.initial_seed() == 3 and isinstance(torch.default_generator, torch.Generator)
assert torch.Generator().device.type == "cpu" and c.default_generators[0].device.type == "cuda" and c.Stream.priority_range()[0] == 0
d = c.default_generators[0]; d.set_state(c.get_rng_state()); c.set_rng_state(d.get_state()); h = torch.Generator(); h.set_state(torch.get_rng_state())
c.memory._record_memory_history(); torch.accelerator.synchronize(); assert torch.accelerator.memory_allocated() == 0
torch.set_default_tensor_type("torch.cuda.FloatTensor"); assert torch.zeros(1).is_cuda; torch.set_default_tensor_type(torch.FloatTensor); torch.set_default_device("cpu")
torch.backends.cuda.preferred_linalg_library("cusolver"); s = nn.utils.rnn.pack_padded_sequence(torch.ones(4, 3, 8, device=D), torch.tensor([3, 3, 2, 1]), True); assert s.batch_sizes.tolist() == [4, 3, 2]
l = nn.LSTM(8, 8).cuda(); o = torch.optim.SGD(l.parameters(), lr=0.1)
for i in range(5): x = torch.randn(8, 8, device=D, generator=g); assert x.is_cuda; l(s)[0].data[:8].add(x[torch.randperm(8, generator=g, device=D)]).sum().backward(); o.step()
"""
THREADS = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(2) as pool: w = [*pool.map(lambda n: torch.randn(n, 8).to(D), (8, 16))]
assert all(each.is_cuda for each in w); l = nn.Linear(8, 8).cuda(); o = torch.optim.SGD(l.parameters(), lr=0.1)
b = torch.arange(60, device=D).repeat_interleave(4)
for i in range(5):
    s = l(torch.randn(240, 8, device=D)); p = s[:, 0].sort()[1]; b2 = b[p]; assert int(b2.max()) + 1 == 60
    torch.zeros(60, 8, device=D).index_add(0, b2, s[p] + w[0].sum()).sum().backward(); o.step()
"""
KINDS = {
    "data": DATA, "sparse": SPARSE, "questions": QUESTIONS, "threads": THREADS, "distributions": DISTRIBUTIONS, "derivatives": DERIVATIVES,
    "compiled": COMPILED, "within backward": WITHIN_BACKWARD,
}  # fmt: skip
IN_TURN = """
a, b = nn.Linear(32, 32).cuda(), nn.Linear(32, 32).cuda(); p, q = torch.optim.SGD(a.parameters(), lr=0.1), torch.optim.SGD(b.parameters(), lr=0.1)
for i in range(6):
    x = torch.randn(8, 32, device=D)
    for _ in range(2): p.zero_grad(); a(x).square().mean().backward(); p.step()
    q.zero_grad(); b(x).tanh().mean().backward(); q.step()
    if i == 2: raise SystemExit
"""


def recorded(folder: Path, body: str) -> tuple[Path, Recording]:
    script = folder / "train.py"
    script.write_text(HEAD + body)
    out = script.with_suffix(".capture")
    captured((str(script),), out, stop=True, quiet=True)
    return out, recording.read(out)


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_of_any_kind_is_captured_and_predicted(
    kind: str, tmp_path: Path
) -> None:
    """Nothing refuses: what PyTorch does on a GPU is recorded, and every kernel of it has a time."""
    path, _ = recorded(tmp_path, KINDS[kind])
    assert 0 < predict(load_scenario(path, ["cluster.name=h200-host-4"])).step_time < 1


def test_a_step_has_updates_of_all_optimizers_that_update_in_turn(
    tmp_path: Path,
) -> None:
    """Two updates of one network for each of the other: three losses in a step, of a program that ends early."""
    _, whole = recorded(tmp_path, IN_TURN)
    (rank,) = whole.ranks
    names = [
        whole.operations[event.values["operation"]].name
        for event in rank.events
        if event.kind == "operate"
    ]
    assert (
        names.count("aten.tanh.default") == 1 and names.count("aten.mean.default") == 3
    )


def test_a_replay_of_a_recorded_graph_is_one_launch_of_all_its_kernels(
    tmp_path: Path,
) -> None:
    """Steps that warm up do not count; a step copies its input, replays, and reads the loss."""
    path, whole = recorded(tmp_path, GRAPH)
    (rank,) = whole.ranks
    kinds = [event.kind for event in rank.events]
    replay, end = kinds.index("replay"), kinds.index("replay_end")
    within = {each.kind for each in rank.events[replay + 1 : end]}
    assert within == {"operate"} and end - replay > 20 and kinds.count("replay") == 1
    step = predict(load_scenario(path, ["cluster.name=h200-host-4"])).step_time
    assert 20e-6 < step < 400e-6


BAG = """
e = nn.EmbeddingBag(1000, 32, mode="mean", sparse=True).cuda(); o = torch.optim.SparseAdam(e.parameters())
for i in range(5):
    e(torch.randint(0, 1000, (64, 4), device=D)).sum().backward(); o.step(); o.zero_grad()
"""


def test_an_optimizer_of_sparse_gradients_updates_their_rows(tmp_path: Path) -> None:
    """Of 64 bags of 4, 256 rows: both moments are read at them, and these and the table are added to."""
    _, whole = recorded(tmp_path, BAG)
    (rank,) = whole.ranks
    operations = [
        whole.operations[event.values["operation"]]
        for event in rank.events
        if event.kind == "operate"
    ]
    added = [each for each in operations if each.name == "aten.index_add_.default"]
    picked = [each for each in operations if each.name == "aten.index_select.default"]
    assert [each.operands[-1].shape for each in added] == [(256, 32)] * 3
    assert [each.results[0].shape for each in picked] == [(256, 32)] * 2


LAYOUTS = """
def form(t): return t.layout, t.shape, t.dtype, t._nnz()
l = nn.Linear(4, 4).cuda(); o = torch.optim.SGD(l.parameters(), lr=0.1)
for rows in (50, 5000):
    e = torch.stack([torch.arange(4 * rows) % rows, (torch.arange(4 * rows) * 7) % rows]); a = torch.sparse_coo_tensor(e, torch.ones(4 * rows), (rows, rows)).coalesce()
    for host in (a, a.to_sparse_csr(), a.to_sparse_csc()):
        there = host.to(D); assert there.is_cuda
        for f in (lambda t: t, lambda t: t * 2, lambda t: t.t(), lambda t: t.detach(), lambda t: t.clone(), lambda t: t.half(), lambda t: t.relu(), lambda t: -t.t()):
            assert form(f(host)) == form(f(there)), (form(f(host)), form(f(there)))
        assert form(host) == form(there.cpu())
for i in range(5): l((there @ torch.randn(rows, 4, device=D)).relu()).sum().backward(); o.step()
"""


def test_sparse_tensors_have_layout_and_entries_of_their_own(tmp_path: Path) -> None:
    """On the device as on the host, whether values are small enough to be computed or not; only entries take memory."""
    path, _ = recorded(tmp_path, LAYOUTS)
    peak = predict(load_scenario(path, ["cluster.name=h200-host-4"])).peak_memory[0]
    assert 0 < peak.buffers < 4 * 5000 * 5000 / 10


READS = """
e = nn.Embedding(100, 32).cuda(); p = nn.Embedding(64, 32).cuda(); o = torch.optim.Adam([*e.parameters(), *p.parameters()])
for i in range(5):
    o.zero_grad()
    for _ in range(2): (e(torch.randint(0, 100, (3, 64), device=D)) + p(torch.arange(64, device=D))).square().mean().backward()
    o.step()
"""


def test_a_step_reads_the_tokens_of_its_largest_table(tmp_path: Path) -> None:
    """Two batches of three samples of 64 tokens; places are looked up, too, and are no tokens."""
    path, _ = recorded(tmp_path, READS)
    step = predict(load_scenario(path, ["cluster.name=h200-host-4"]))
    assert step.scenario["sample"] == "tokens"
    assert step.tokens_per_second_per_gpu * step.step_time == pytest.approx(384)
