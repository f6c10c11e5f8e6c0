"""Steps of transformers' Qwen3-Next whose layers all attend, and of Qwen3, with their kernels."""
import json, os, statistics, time, torch, transformers
from torch.profiler import profile, ProfilerActivity
OUT=os.environ["OUT"]
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM, Qwen3Config, Qwen3ForCausalLM
base=dict(hidden_size=4096,intermediate_size=12288,num_hidden_layers=8,vocab_size=32000,max_position_embeddings=16384,use_cache=False,attn_implementation="sdpa",dtype=torch.bfloat16,tie_word_embeddings=False)
def nextc(d,hq,hk): return Qwen3NextConfig(**base,num_attention_heads=hq,num_key_value_heads=hk,head_dim=d,layer_types=["full_attention"]*8,mlp_only_layers=list(range(8)),num_experts=0)
cases=[("next128",Qwen3NextForCausalLM,nextc(128,32,8),1,8192,False),
 ("next256",Qwen3NextForCausalLM,nextc(256,16,2),1,8192,False),
 ("next256r",Qwen3NextForCausalLM,nextc(256,16,2),1,8192,True),
 ("next256b4",Qwen3NextForCausalLM,nextc(256,16,2),4,2048,False),
 ("qwen3",Qwen3ForCausalLM,Qwen3Config(**base,num_attention_heads=32,num_key_value_heads=8,head_dim=128),1,8192,False)]
for name,cls,config,b,s,ck in cases:
    try:
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("cuda"): model=cls(config)
        torch.set_default_dtype(torch.float32)
        model.train()
        if ck: model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant":False})
        opt=torch.optim.AdamW(model.parameters(),lr=1e-4,fused=True)
        ids=torch.randint(32000,(b,s),device="cuda")
        def step():
            loss=model(input_ids=ids,labels=ids).loss; loss.backward(); opt.step(); opt.zero_grad(set_to_none=True)
        for _ in range(4): step()
        torch.cuda.synchronize(); ts=[]
        for _ in range(10):
            torch.cuda.synchronize(); t=time.perf_counter(); step(); torch.cuda.synchronize(); ts.append(time.perf_counter()-t)
        with profile(activities=[ProfilerActivity.CUDA,ProfilerActivity.CPU]) as p:
            step(); torch.cuda.synchronize()
        by={}
        for e in p.events():
            if e.device_type==torch.autograd.DeviceType.CUDA:
                v=by.setdefault(e.name[:120],[0,0.]); v[0]+=1; v[1]+=e.device_time_total
        cpu={}
        for e in p.key_averages():
            if e.key.startswith("aten::"): cpu[e.key]=(e.count,round(e.device_time_total))
        row=dict(name=name,batch=b,seq=s,checkpoint=ck,median=statistics.median(ts),times=ts,params=sum(x.numel() for x in model.parameters()),memory=torch.cuda.max_memory_allocated(),gpu=torch.cuda.get_device_name(),torch=torch.__version__,transformers=transformers.__version__,kernels=sorted(([k,v[0],round(v[1],1)] for k,v in by.items()),key=lambda r:-r[2]),aten=cpu,config=config.to_dict())
        print(name,row["median"],flush=True)
        del model,opt; torch.cuda.empty_cache(); torch.cuda.reset_peak_memory_stats()
    except Exception as e:
        import traceback; traceback.print_exc(); row=dict(name=name,error=str(e)[:300])
    open(OUT+"/next.jsonl","a").write(json.dumps(row,default=str)+"\n")
