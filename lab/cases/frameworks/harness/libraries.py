"""Training steps of models from diffusers, timm, PEFT and transformers, as their users run them.

torchrun libraries.py SUITE.json OUT

A case of a suite: dict(id, build, mbs, ...), where `build` names a function below. What else a case may say:
amp, pure_bf16, tf32, channels_last, compile, ac, fused, opt ("sgd"), clip, ga, warmup, steps, mode ("ddp").
"""

import contextlib
import datetime
import gc
import json
import os
import sys
import time
import traceback

import torch
import torch.distributed as dist
import torch.nn.functional as F

RANK = int(os.environ["RANK"])
DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
BF16 = torch.bfloat16


def normal(*shape, dtype=torch.float32):
    return torch.randn(*shape, device=DEVICE, dtype=dtype)


def integers(below, *shape):
    return torch.randint(0, below, shape, device=DEVICE)


def float_type(case):
    return BF16 if case.get("pure_bf16") else torch.float32


def denoised(target):
    """The loss of a diffusion model: the difference to the noise."""
    return lambda out: F.mse_loss(out[0].float(), target.float())


# diffusers


def unet_sd15(case):
    from diffusers import UNet2DConditionModel

    b, dtype = case["mbs"], float_type(case)
    model = UNet2DConditionModel(sample_size=64, cross_attention_dim=768)
    if case.get("lora"):
        from peft import LoraConfig

        model.requires_grad_(False)
        names = ["to_k", "to_q", "to_v", "to_out.0"]
        model.add_adapter(LoraConfig(r=16, lora_alpha=16, target_modules=names))
    noise = normal(b, 4, 64, 64)
    inputs = dict(
        sample=normal(b, 4, 64, 64, dtype=dtype),
        timestep=integers(1000, b),
        encoder_hidden_states=normal(b, 77, 768, dtype=dtype),
        return_dict=False,
    )
    return model, inputs, denoised(noise)


def unet_sdxl(case):
    from diffusers import UNet2DConditionModel

    b, dtype = case["mbs"], float_type(case)
    model = UNet2DConditionModel(
        sample_size=128,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(320, 640, 1280),
        transformer_layers_per_block=(1, 2, 4),
        attention_head_dim=(5, 10, 20),
        cross_attention_dim=2048,
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=256,
        projection_class_embeddings_input_dim=2816,
    )
    more = dict(text_embeds=normal(b, 1280, dtype=dtype), time_ids=normal(b, 6, dtype=dtype))
    inputs = dict(
        sample=normal(b, 4, 128, 128, dtype=dtype),
        timestep=integers(1000, b),
        encoder_hidden_states=normal(b, 77, 2048, dtype=dtype),
        added_cond_kwargs=more,
        return_dict=False,
    )
    return model, inputs, denoised(normal(b, 4, 128, 128))


def unet_unconditional(case):
    from diffusers import UNet2DModel

    b = case["mbs"]
    model = UNet2DModel(
        sample_size=128,
        in_channels=3,
        out_channels=3,
        layers_per_block=2,
        block_out_channels=(128, 128, 256, 256, 512, 512),
        down_block_types=("DownBlock2D",) * 4 + ("AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D") + ("UpBlock2D",) * 4,
    )
    inputs = dict(sample=normal(b, 3, 128, 128), timestep=integers(1000, b), return_dict=False)
    return model, inputs, denoised(normal(b, 3, 128, 128))


def vae(case):
    from diffusers import AutoencoderKL

    b = case["mbs"]
    model = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(128, 256, 512, 512),
        layers_per_block=2,
    )
    image = normal(b, 3, 256, 256)
    return model, dict(sample=image, return_dict=False), denoised(image)


def dit(case):
    from diffusers import DiTTransformer2DModel

    b, dtype = case["mbs"], float_type(case)
    model = DiTTransformer2DModel(num_layers=14, sample_size=32)
    inputs = dict(
        hidden_states=normal(b, 4, 32, 32, dtype=dtype),
        timestep=integers(1000, b),
        class_labels=integers(1000, b),
        return_dict=False,
    )
    return model, inputs, denoised(normal(b, 4, 32, 32))


def pixart(case):
    from diffusers import PixArtTransformer2DModel

    b, dtype = case["mbs"], float_type(case)
    model = PixArtTransformer2DModel(num_layers=12, sample_size=64, use_additional_conditions=False)
    inputs = dict(
        hidden_states=normal(b, 4, 64, 64, dtype=dtype),
        encoder_hidden_states=normal(b, 120, 4096, dtype=dtype),
        timestep=integers(1000, b),
        added_cond_kwargs=dict(resolution=None, aspect_ratio=None),
        return_dict=False,
    )
    if model.config.caption_channels is None:
        inputs["encoder_hidden_states"] = normal(b, 120, 1152, dtype=dtype)
    return model, inputs, denoised(normal(b, 8, 64, 64))


def sd3(case):
    from diffusers import SD3Transformer2DModel

    b, dtype = case["mbs"], float_type(case)
    model = SD3Transformer2DModel(num_layers=12, num_attention_heads=24, caption_projection_dim=1536)
    inputs = dict(
        hidden_states=normal(b, 16, 64, 64, dtype=dtype),
        encoder_hidden_states=normal(b, 154, 4096, dtype=dtype),
        pooled_projections=normal(b, 2048, dtype=dtype),
        timestep=integers(1000, b),
        return_dict=False,
    )
    return model, inputs, denoised(normal(b, 16, 64, 64))


def flux(case):
    from diffusers import FluxTransformer2DModel

    b, dtype = case["mbs"], float_type(case)
    model = FluxTransformer2DModel(num_layers=3, num_single_layers=6, guidance_embeds=True)
    inputs = dict(
        hidden_states=normal(b, 1024, 64, dtype=dtype),
        encoder_hidden_states=normal(b, 512, 4096, dtype=dtype),
        pooled_projections=normal(b, 768, dtype=dtype),
        timestep=torch.rand(b, device=DEVICE, dtype=dtype),
        guidance=torch.ones(b, device=DEVICE, dtype=dtype),
        img_ids=torch.zeros(1024, 3, device=DEVICE, dtype=dtype),
        txt_ids=torch.zeros(512, 3, device=DEVICE, dtype=dtype),
        return_dict=False,
    )
    return model, inputs, denoised(normal(b, 1024, 64))


def wan(case):
    from diffusers import WanTransformer3DModel

    b, dtype = case["mbs"], float_type(case)
    model = WanTransformer3DModel(num_attention_heads=12, num_layers=10, ffn_dim=8960)
    inputs = dict(
        hidden_states=normal(b, 16, 9, 60, 60, dtype=dtype),
        encoder_hidden_states=normal(b, 226, 4096, dtype=dtype),
        timestep=integers(1000, b),
        return_dict=False,
    )
    return model, inputs, denoised(normal(b, 16, 9, 60, 60))


# timm


def timm_model(case):
    import timm

    model = timm.create_model(case["name"], pretrained=False, num_classes=1000)
    if case.get("ac"):
        model.set_grad_checkpointing()
    b, pixels = case["mbs"], case.get("pixels", 224)
    images = normal(b, 3, pixels, pixels, dtype=float_type(case))
    if case.get("channels_last"):
        images = images.to(memory_format=torch.channels_last)
    labels = integers(1000, b)
    return model, (images,), lambda out: F.cross_entropy(out.float(), labels, label_smoothing=0.1)


# PEFT and transformers


def lora_llama(case):
    import transformers
    from peft import LoraConfig, get_peft_model

    b, s = case["mbs"], case["seq"]
    config = transformers.LlamaConfig(
        hidden_size=2048,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=8192,
        vocab_size=128256,
        use_cache=False,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    if case.get("ac"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dict(use_reentrant=False))
        model.enable_input_require_grads()
    names = case.get("targets", "all-linear")
    model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, target_modules=names))
    tokens = integers(128000, b, s)
    return model, dict(input_ids=tokens, labels=tokens), lambda out: out.loss


def transformer(case):
    """A class of transformers with a configuration: `model`, `config`, `settings`."""
    import transformers

    config = getattr(transformers, case["config"])(**case.get("settings", {}))
    cls = getattr(transformers, case["model"])
    options = dict(attn_implementation=case["attn"]) if "attn" in case else {}
    model = cls.from_config(config, **options) if hasattr(cls, "from_config") else cls._from_config(config, **options)
    if case.get("ac"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dict(use_reentrant=False))
    b, dtype = case["mbs"], float_type(case)
    made = dict(
        tokens=lambda: tokens_of(config, b, case.get("seq", 512)),
        image=lambda: dict(pixel_values=normal(b, 3, 224, 224, dtype=dtype), labels=integers(config.num_labels, b)),
        segments=lambda: dict(pixel_values=normal(b, 3, 512, 512, dtype=dtype), labels=integers(config.num_labels, b, 512, 512)),
        video=lambda: dict(pixel_values=normal(b, 16, 3, 224, 224, dtype=dtype), labels=integers(config.num_labels, b)),
        sound=lambda: dict(input_values=normal(b, 160000, dtype=dtype), labels=integers(config.num_labels, b)),
        pairs=lambda: dict(pixel_values=normal(b, 3, 224, 224, dtype=dtype), input_ids=integers(30000, b, 64), return_loss=True),
    )
    return model, made[case["inputs"]](), lambda out: out.loss


def tokens_of(config, b, s):
    tokens = torch.randint(5, config.vocab_size, (b, s), device=DEVICE)
    return dict(input_ids=tokens, labels=tokens)


BUILD = {
    f.__name__: f
    for f in (unet_sd15, unet_sdxl, unet_unconditional, vae, dit, pixart, sd3, flux, wan, timm_model, lora_llama, transformer)
}


def prepared(case):
    """The model on the device as the case has it, its inputs, its loss."""
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model, inputs, loss = BUILD[case["build"]](case)
    model = model.to(DEVICE)
    if case.get("channels_last"):
        model = model.to(memory_format=torch.channels_last)
    if case.get("pure_bf16"):
        model = model.to(BF16)
    model.train()
    if case.get("ac") and hasattr(model, "enable_gradient_checkpointing"):
        model.enable_gradient_checkpointing()
    if case.get("mode") == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[DEVICE.index])
    if case.get("compile"):
        model = torch.compile(model)
    return model, inputs, loss


def optimizer_of(case, parameters):
    if case.get("opt") == "sgd":
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True)
    fused = dict(fused=True) if case.get("fused") else {}
    return torch.optim.AdamW(parameters, lr=1e-4, **fused)


def step_of(case):
    """The step of a case as a function without arguments, and how many parameters there are."""
    model, inputs, loss = prepared(case)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = optimizer_of(case, parameters)
    tf32 = bool(case.get("tf32"))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = bool(case.get("benchmark"))
    amp = torch.autocast("cuda", BF16) if case.get("amp") else contextlib.nullcontext()

    def step():
        for _ in range(case.get("ga", 1)):
            with amp:
                out = model(**inputs) if isinstance(inputs, dict) else model(*inputs)
                value = loss(out)
            value.backward()
        if case.get("clip"):
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step, sum(p.numel() for p in model.parameters())


def measured(case):
    began = time.time()
    step, parameters = step_of(case)
    for _ in range(case.get("warmup", 4)):
        step()
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    count = case.get("steps", 8)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    busy = []
    wall = time.perf_counter()
    events[0].record()
    for event in events[1:]:
        start = time.perf_counter()
        step()
        event.record()
        busy.append(time.perf_counter() - start)
    torch.cuda.synchronize()
    wall = (time.perf_counter() - wall) / count
    return dict(
        params=parameters,
        step_s=[a.elapsed_time(b) * 1e-3 for a, b in zip(events, events[1:])],
        cpu_step_s=busy,
        wall_s=wall,
        peak_alloc=torch.cuda.max_memory_allocated(),
        peak_reserved=torch.cuda.max_memory_reserved(),
        total_s=time.time() - began,
    )


def main():
    torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=90), device_id=DEVICE)
    suite, folder = sys.argv[1:3]
    label = os.environ.get("LABEL", "default")
    os.makedirs(folder, exist_ok=True)
    until = time.time() + float(os.environ.get("BUDGET", "1000"))
    with open(suite) as file:
        cases = json.load(file)
    with open(f"{folder}/results.{label}.rank{RANK}.jsonl", "a") as results:
        for case in cases:
            if time.time() > until:
                print("no time left for", case["id"], flush=True)
                continue
            row = dict(id=case["id"], label=label, world=dist.get_world_size(), case=case, rank=RANK)
            try:
                row.update(measured(case))
                middle = sorted(row["step_s"])[len(row["step_s"]) // 2]
                print(f"{case['id']:32s} {middle * 1e3:9.2f} ms, {row['peak_alloc'] / 1e9:.1f} GB, took {row['total_s']:.1f} s", flush=True)
            except Exception as error:
                row["error"] = traceback.format_exc()[-900:]
                print("ERR", case["id"], str(error)[:300], flush=True)
            results.write(json.dumps(row) + "\n")
            results.flush()
            gc.collect()
            torch.cuda.empty_cache()
    dist.destroy_process_group()


main()
