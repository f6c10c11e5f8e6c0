"""Causal attention by width of heads, forward and backward, between products that keep the clock as a step does."""
import json, os, statistics, torch, torch.nn.functional as F
from torch.nn.attention import sdpa_kernel, SDPBackend
from torch.profiler import profile, ProfilerActivity
OUT=os.environ["OUT"]
dev="cuda"; torch.manual_seed(0)
a=torch.randn(8192,4096,device=dev,dtype=torch.bfloat16); w=torch.randn(4096,14336,device=dev,dtype=torch.bfloat16)
def products(n=6):
    for _ in range(n): a@w
B={"cudnn":SDPBackend.CUDNN_ATTENTION,"flash":SDPBackend.FLASH_ATTENTION,"efficient":SDPBackend.EFFICIENT_ATTENTION}
rows=[]
cases=[(d,d,b,q,h,k) for d in (64,80,96,112,128,160,192,224,256) for b,q in ((1,2048),(4,2048),(1,4096),(1,8192),(1,16384)) for h,k in ((32,8),(16,2),(16,16)) if not (d<128 and (h,k)!=(32,8))]
cases+=[(192,128,b,q,h,h) for b,q in ((1,2048),(4,2048),(1,4096),(1,8192),(1,16384)) for h in (16,32,64,128) if h*b*q<=128*8192]
for d,dv,b,s,hq,hk in cases:
    try:
        mk=lambda h,w: torch.randn(b,s,h,w,device=dev,dtype=torch.bfloat16).transpose(1,2)
        q,k,v=mk(hq,d).requires_grad_(),mk(hk,d).requires_grad_(),mk(hk,dv).requires_grad_(); g=mk(hq,dv)
        def once():
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                o=F.scaled_dot_product_attention(q,k,v,is_causal=True,enable_gqa=hq!=hk)
            torch.autograd.grad(o,(q,k,v),g)
        for _ in range(3): products(2); once()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as p:
            for _ in range(8): products(); once()
            torch.cuda.synchronize()
        by={}
        for e in p.events():
            if e.device_type==torch.autograd.DeviceType.CUDA: by.setdefault(e.name,[]).append(e.device_time_total)
        rows.append(dict(backend="cudnn",dim=d,dv=dv,batch=b,seq=s,heads=hq,kv=hk,kernels={n[:110]:(round(statistics.median(t)*len(t)/8,2),len(t)/8) for n,t in by.items()}))
    except Exception as e:
        rows.append(dict(backend="cudnn",dim=d,dv=dv,batch=b,seq=s,heads=hq,kv=hk,error=str(e)[:160]))
with open(OUT+"/attn2.jsonl","w") as f:
    for r in rows: f.write(json.dumps(r)+"\n")
print(len(rows), torch.cuda.get_device_name())
