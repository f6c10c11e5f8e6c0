"""Trains a decoder of two wide layers in plain PyTorch: the programs of `lab.report.same_programs`.

`train.py '{"layer": "llama", "mode": "fsdp", "compile": true, "checkpoint": "around"}'`, a rank under torchrun.
"""

import json
import os
import sys
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from prestep.validation.measure.models import Experts

F = nn.functional
CASE = json.loads(sys.argv[1])
HIDDEN, LAYERS, HEADS, GROUPS, WIDTH, INNER, WORDS = 4096, 2, 32, 8, 128, 14336, 32000
BATCH, LENGTH = CASE.get("batch", 1), CASE.get("length", 4096)
DTYPE = getattr(torch, CASE.get("dtype", "bfloat16"))
RANK, WORLD = (
    int(os.environ.get(name, n)) for name, n in (("RANK", 0), ("WORLD_SIZE", 1))
)


def linear(inputs, outputs, bias=False):
    return nn.Linear(inputs, outputs, bias=bias)


def rope(x, cosines, sines):
    one, two = x.chunk(2, -1)
    return torch.cat((one * cosines - two * sines, two * cosines + one * sines), -1)


class Attention(nn.Module):
    def __init__(self, heads, groups):
        super().__init__()
        self.wq, self.wk, self.wv = (
            linear(HIDDEN, n * WIDTH) for n in (heads, groups, groups)
        )
        self.wo = linear(heads * WIDTH, HIDDEN)

    def forward(self, x, *tables):
        q, k, v = (
            p(x).view(BATCH, LENGTH, -1, WIDTH).transpose(1, 2)
            for p in (self.wq, self.wk, self.wv)
        )
        q, k = rope(q, *tables), rope(k, *tables)
        o = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1]
        )
        return self.wo(o.transpose(1, 2).reshape(BATCH, LENGTH, -1))


class Latent(nn.Module):
    """DeepSeek's attention: keys and values from one state, whose rotated part all heads share."""

    QUERIES, STATES, ROTATED = 1536, 512, 64

    def __init__(self):
        super().__init__()
        heads = CASE.get("heads", 16)
        self.heads = heads
        self.q_down, self.q_norm = (
            linear(HIDDEN, self.QUERIES),
            nn.RMSNorm(self.QUERIES),
        )
        self.q_up = linear(self.QUERIES, heads * (WIDTH + self.ROTATED))
        self.down, self.norm = (
            linear(HIDDEN, self.STATES + self.ROTATED),
            nn.RMSNorm(self.STATES),
        )
        self.up, self.o = (
            linear(self.STATES, heads * 2 * WIDTH),
            linear(heads * WIDTH, HIDDEN),
        )

    def forward(self, x, *tables):
        q = self.q_up(self.q_norm(self.q_down(x))).view(BATCH, LENGTH, self.heads, -1)
        plain, rotated = q.split([WIDTH, self.ROTATED], -1)
        q = torch.cat([plain, rope(rotated, *tables)], -1)
        states, shared = self.down(x).split([self.STATES, self.ROTATED], -1)
        shared = rope(shared.view(BATCH, LENGTH, 1, self.ROTATED), *tables)
        k, v = (
            self.up(self.norm(states))
            .view(BATCH, LENGTH, self.heads, -1)
            .split([WIDTH, WIDTH], -1)
        )
        k = torch.cat([k, shared.expand(-1, -1, self.heads, -1)], -1)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(a.transpose(1, 2).reshape(BATCH, LENGTH, -1))


class Gated(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.w1, self.w3, self.w2 = (
            linear(HIDDEN, inner),
            linear(HIDDEN, inner),
            linear(inner, HIDDEN),
        )

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Mixture(Experts):
    """Routed experts, and one that sees every token."""

    def __init__(self, inner):
        super().__init__(HIDDEN, inner, None, 1)
        self.w1, self.w3, self.w2 = (
            linear(HIDDEN, inner),
            linear(HIDDEN, inner),
            linear(inner, HIDDEN),
        )

    def forward(self, x):
        t = x.reshape(-1, HIDDEN)
        p, numbers = self.gate(t).softmax(-1), torch.arange(t.shape[0], device=x.device)
        order = self._pairs(numbers).reshape(-1).argsort(stable=True)
        o = self._collected(self._computed(self._spread(t[order // 2])))
        y = torch.zeros_like(t)
        w = p.gather(1, self._pairs(numbers)).reshape(-1)[order]
        y = y.index_add(0, order // 2, o * w.unsqueeze(1).to(o.dtype))
        y = y + self.w2(F.silu(self.w1(t)) * self.w3(t))
        return y.view(x.shape)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        kind, groups = CASE["layer"], CASE.get("groups", GROUPS)
        ep = CASE.get("ep", 1)
        group = (
            None
            if ep == 1
            else dist.new_group(list(range(WORLD)))
            if CASE.get("own")
            else dist.group.WORLD
        )
        self.before, self.between = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        self.attention = Latent() if kind == "deepseek" else Attention(HEADS, groups)
        make = {
            "llama": lambda: Gated(INNER),
            "mixtral": lambda: Experts(HIDDEN, INNER, group, ep),
            "deepseek": lambda: Mixture(2048),
        }
        self.mlp = make[kind]()

    def forward(self, x, *tables):
        x = x + self.attention(self.before(x), *tables)
        return x + self.mlp(self.between(x))


class Decoder(nn.Module):
    def __init__(self, first=True, last=True, layers=LAYERS):
        super().__init__()
        self.words = nn.Embedding(WORDS, HIDDEN) if first else None
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.last, self.head = (
            (nn.RMSNorm(HIDDEN), linear(HIDDEN, WORDS)) if last else (None, None)
        )
        latent = CASE["layer"] == "deepseek"
        shape = (LENGTH, 1, Latent.ROTATED // 2) if latent else (LENGTH, WIDTH // 2)
        # No buffers: DistributedDataParallel would send them around in every forward pass.
        self.cosines, self.sines = torch.ones(shape), torch.ones(shape)

    def forward(self, x):
        x = x if self.words is None else self.words(x)
        for layer in self.layers:
            if CASE.get("checkpoint") in (True, "around"):
                x = checkpoint(layer, x, self.cosines, self.sines, use_reentrant=False)
            else:
                x = layer(x, self.cosines, self.sines)
        return x if self.head is None else self.head(self.last(x))


def loss(out, words):
    return F.cross_entropy(out.view(-1, WORDS), words.view(-1))


def adamw(parameters):
    return torch.optim.AdamW(parameters, fused=True)


def layers_of(net):
    return net.blocks if CASE["layer"] == "vit" else net.layers


def pictures():
    """timm's ViT-L/16 with a sixth of its blocks, and what it reads."""
    from timm.models.vision_transformer import VisionTransformer

    net = VisionTransformer(embed_dim=1024, depth=4, num_heads=16)
    images = torch.zeros(BATCH, 3, 224, 224)
    classes = torch.zeros(BATCH, dtype=torch.int64)
    return net, images, classes, F.cross_entropy


def texts():
    words = torch.zeros(BATCH, LENGTH, dtype=torch.int64)
    return Decoder(), words, words, loss


def compiled(net):
    for layer in layers_of(net):
        if CASE.get("checkpoint") == "within" or (
            CASE.get("checkpoint") and CASE["layer"] == "vit"
        ):
            inner = layer.forward
            layer.forward = lambda *x, inner=inner: checkpoint(
                inner, *x, use_reentrant=False
            )
        if CASE.get("compile"):
            layer.compile()


def spread(net):
    """The model in its wrappers, and its optimizer."""
    mode = CASE.get("mode", "single")
    if mode == "ddp":
        apart = (
            [n for n, _ in net.named_parameters() if ".ex." in n]
            if CASE.get("ep", 1) > 1
            else []
        )
        nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
            net, apart
        )
        net = nn.parallel.DistributedDataParallel(
            net, device_ids=[RANK], gradient_as_bucket_view=True
        )
    elif mode in ("fsdp", "tp"):
        from prestep.validation.measure.sharded import sharded

        if CASE["layer"] == "vit":
            net.layers = net.blocks
        if mode == "tp":
            for layer in net.layers:
                layer.attn = layer.attention
                del layer.attention
                layer.attention = lambda *x, layer=layer: layer.attn(*x)
        job = SimpleNamespace(
            case={"mode": mode},
            session=SimpleNamespace(
                world=WORLD, device=torch.device("cuda", RANK), cuda=True
            ),
            net=net,
            x=None,
            y=None,
            loss=None,
        )
        optimizers = []
        import prestep.validation.measure.sharded as s

        s.step_of = lambda job, net, optimizer: optimizers.append(optimizer)
        sharded(job)
        return net, optimizers[0]
    return net, adamw(net.parameters())


def main():
    if WORLD > 1:
        torch.cuda.set_device(RANK)
        dist.init_process_group("nccl")
    torch.set_default_dtype(DTYPE)
    # Only where tensors are made: a default device is a mode, which Python enters in every call of an operator.
    if CASE.get("mode") == "pp":
        staged()
        return
    with torch.device("cuda", RANK):
        net, inputs, labels, judge = pictures() if CASE["layer"] == "vit" else texts()
    compiled(net)
    net, optimizer = spread(net)
    for _ in range(4):
        with torch.autocast("cuda", torch.bfloat16, enabled=bool(CASE.get("autocast"))):
            out = judge(net(inputs), labels)
        out.backward()
        optimizer.step()
        optimizer.zero_grad()


def staged():
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    with torch.device("cuda", RANK):
        net = Decoder(RANK == 0, RANK == WORLD - 1, LAYERS // WORLD)
        words = torch.zeros(2 * BATCH, LENGTH, dtype=torch.int64)
    compiled(net)
    stage = PipelineStage(net, RANK, WORLD, torch.device("cuda", RANK))
    schedule = Schedule1F1B(stage, 2, loss_fn=loss, scale_grads=False)  # as torchtitan
    optimizer = adamw(net.parameters())
    for _ in range(4):
        schedule.step(
            *([words] if RANK == 0 else []),
            **({"target": words} if RANK == WORLD - 1 else {}),
        )
        optimizer.step()
        optimizer.zero_grad()


main()
