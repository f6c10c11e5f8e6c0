"""Small networks of torchvision and transformers, trained as their users do; the GPU has next to nothing to do. small.py ID"""
import contextlib, sys, torch, torch.nn.functional as F
H = dict(hidden_size=256, num_attention_heads=8, vocab_size=2048); L = dict(**H, intermediate_size=512, use_cache=False)
lm = "AutoModelForCausalLM"; mlm = "AutoModelForMaskedLM"
CASES = {
 "resnet18": dict(tv="resnet18", amp=True, last=True, opt="sgd"), "resnet50": dict(tv="resnet50", opt="sgd"), "mobilenet": dict(tv="mobilenet_v2", amp=True), "shuffle": dict(tv="shufflenet_v2_x1_0"),
 "effb0": dict(tv="efficientnet_b0", amp=True, last=True, opt="sgd"), "regnet": dict(tv="regnet_y_400mf", amp=True, clip=True), "convnext": dict(tv="convnext_tiny", amp=True, fused=True), "vgg": dict(tv="vgg13_bn", amp=True), "swin": dict(tv="swin_t", px=224, amp=True), "vit": dict(tv="vit_b_32", px=224, fused=True), "dense": dict(tv="densenet121", amp=True),
 "llama": dict(hf="llama", cls=lm, kw=dict(**L, num_hidden_layers=12, num_key_value_heads=4), bf16=True, fused=True), "llama-ac": dict(hf="llama", cls=lm, kw=dict(**L, num_hidden_layers=10, num_key_value_heads=4), bf16=True, ac=True), "llama-ga": dict(hf="llama", cls=lm, kw=dict(**L, num_hidden_layers=8, num_key_value_heads=4), amp=True, ga=3),
 "gpt2": dict(hf="gpt2", cls=lm, kw=dict(n_embd=256, n_head=8, n_layer=10, vocab_size=2048, use_cache=False), amp=True, clip=True), "qwen3": dict(hf="qwen3", cls=lm, kw=dict(**L, num_hidden_layers=10, num_key_value_heads=4, head_dim=32), bf16=True, fused=True, item=True), "mixtral": dict(hf="mixtral", cls=lm, kw=dict(**L, num_hidden_layers=4, num_key_value_heads=4, num_local_experts=4), bf16=True),
 "bert": dict(hf="bert", cls=mlm, kw=dict(**H, num_hidden_layers=10, intermediate_size=512)), "bert-amp": dict(hf="bert", cls=mlm, kw=dict(**H, num_hidden_layers=8, intermediate_size=512), amp=True, clip=True), "distil": dict(hf="distilbert", cls=mlm, kw=dict(dim=256, n_layers=6, n_heads=8, hidden_dim=512, vocab_size=2048), amp=True, fused=True), "opt": dict(hf="opt", cls=lm, kw=dict(**H, num_hidden_layers=10, ffn_dim=512, word_embed_proj_dim=256, use_cache=False), bf16=True), "falcon": dict(hf="falcon", cls=lm, kw=dict(**H, num_hidden_layers=10, use_cache=False), amp=True, fused=True),
 "bart": dict(hf="bart", cls="AutoModelForSeq2SeqLM", kw=dict(d_model=256, encoder_layers=5, decoder_layers=5, encoder_attention_heads=8, decoder_attention_heads=8, encoder_ffn_dim=512, decoder_ffn_dim=512, vocab_size=2048, use_cache=False), amp=True), "neox": dict(hf="gpt_neox", cls=lm, kw=dict(**L, num_hidden_layers=10), amp=True, item=True),
}
c = CASES[sys.argv[1]]; torch.manual_seed(0); dev = torch.device("cuda"); bf = torch.bfloat16
if "tv" in c:
    import torchvision
    m = getattr(torchvision.models, c["tv"])().to(dev); s = c.get("px", 64); x, y = torch.randn(2, 3, s, s, device=dev), torch.randint(0, 1000, (2,), device=dev)
    if c.get("last"): m = m.to(memory_format=torch.channels_last); x = x.to(memory_format=torch.channels_last)
    loss = lambda: F.cross_entropy(m(x), y)
else:
    import transformers as T
    m = getattr(T, c["cls"]).from_config(T.AutoConfig.for_model(c["hf"], **c["kw"]), attn_implementation="sdpa").to(dev); x = torch.randint(5, 2048, (2, 64), device=dev)
    if c.get("bf16"): m = m.to(bf)
    if c.get("ac"): m.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dict(use_reentrant=False))
    loss = lambda: m(input_ids=x, labels=x).loss
m.train(); o = torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9) if c.get("opt") == "sgd" else torch.optim.AdamW(m.parameters(), lr=1e-5, **({"fused": True} if c.get("fused") else {}))
amp = (lambda: torch.autocast("cuda", bf)) if c.get("amp") else contextlib.nullcontext
for step in range(80):
    for _ in range(c.get("ga", 1)):
        with amp(): l = loss()
        l.backward()
    if c.get("clip"): torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    o.step(); o.zero_grad()
    if c.get("item"): l.item()
