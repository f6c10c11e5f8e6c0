"""LoRA steps of Hugging Face's Llama with PEFT on one GPU."""
import json, os, statistics, time, traceback, contextlib
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from peft import LoraConfig, get_peft_model
import transformers, peft

OUT = os.environ.get("OUT", ".")
MODELS = {
    "8b": dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, vocab_size=128256),
    "1b": dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, vocab_size=128256),
}


def run(name, batch, seq, rank, autocast, checkpoint, targets="all-linear", trace=False):
    torch.manual_seed(0)
    config = LlamaConfig(**MODELS[name], max_position_embeddings=8192, attn_implementation="sdpa", use_cache=False, dtype=torch.bfloat16)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    if rank:
        model = get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=targets if targets == "all-linear" else targets.split(",")), autocast_adapter_dtype=autocast)
    if checkpoint:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if rank: model.enable_input_require_grads()
    model.train()
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=1e-4, fused=True)
    ids = torch.randint(128256, (batch, seq), device="cuda")

    def step():
        with torch.autocast("cuda", torch.bfloat16) if autocast else contextlib.nullcontext():
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    torch.cuda.reset_peak_memory_stats()
    for _ in range(4): step()
    torch.cuda.synchronize()
    times = []
    for _ in range(10):
        torch.cuda.synchronize(); t = time.perf_counter()
        step()
        torch.cuda.synchronize(); times.append(time.perf_counter() - t)
    row = dict(model=name, batch=batch, seq=seq, rank=rank, autocast=autocast, checkpoint=checkpoint, targets=targets,
               median=statistics.median(times), times=[round(t, 6) for t in times], trainable=sum(p.numel() for p in params),
               memory=torch.cuda.max_memory_allocated(), gpu=torch.cuda.get_device_name(),
               torch=torch.__version__, transformers=transformers.__version__, peft=peft.__version__)
    if trace:
        from torch.profiler import profile, ProfilerActivity
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as prof:
            step(); torch.cuda.synchronize()
        gpu = 0.0; n = 0
        for e in prof.events():
            if e.device_type == torch.autograd.DeviceType.CUDA:
                gpu += e.device_time_total; n += 1
        row["gpu_us"], row["kernels"] = gpu, n
        prof.export_chrome_trace(f"{OUT}/t.json"); os.system(f"gzip -9 -c {OUT}/t.json > {OUT}/lora-{name}-{int(autocast)}{int(checkpoint)}.json.gz; rm {OUT}/t.json")
    del model, optimizer, params
    torch.cuda.empty_cache()
    with open(f"{OUT}/lora.jsonl", "a") as f: f.write(json.dumps(row) + "\n")
    print({k: row[k] for k in ("model", "batch", "seq", "rank", "autocast", "checkpoint", "targets", "median")}, row["memory"] / 2**30, row.get("gpu_us"), flush=True)


t0 = time.time()
for case in [("8b", 1, 4096, 16, False, False, "all-linear", True), ("8b", 1, 4096, 16, True, True, "all-linear", False),
             ("8b", 2, 4096, 16, False, True, "all-linear", True), ("8b", 1, 4096, 16, False, False, "q_proj,v_proj", False),
             ("1b", 4, 2048, 16, False, False, "all-linear", False), ("1b", 4, 2048, 16, True, False, "all-linear", True),
             ("1b", 4, 2048, 0, False, False, "all-linear", False), ("8b", 2, 2048, 64, False, False, "all-linear", False)]:
    if time.time() - t0 > 130: break
    try: run(*case)
    except Exception as error:
        traceback.print_exc(); print("FAILED", case, str(error)[:200], flush=True); torch.cuda.empty_cache()
