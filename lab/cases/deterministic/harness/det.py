import json, os, sys, torch, torch.nn.functional as F
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
from torch.nn.attention import sdpa_kernel, SDPBackend as B
out=open(os.environ["OUT"]+"/det.jsonl","w")
def put(**k): out.write(json.dumps(k)+"\n"); out.flush(); print(k)
put(what="device", name=torch.cuda.get_device_name(), torch=torch.__version__, cudnn=torch.backends.cudnn.version(), cuda=torch.version.cuda)
def timed(fn, n=20, reps=7):
    for _ in range(3): fn()
    torch.cuda.synchronize()
    ts=[]
    for _ in range(reps):
        a,b=torch.cuda.Event(enable_timing=True),torch.cuda.Event(enable_timing=True)
        a.record()
        for _ in range(n): fn()
        b.record(); torch.cuda.synchronize(); ts.append(a.elapsed_time(b)/n*1e3)
    ts.sort(); return ts[0], ts[len(ts)//2]
def kernels(fn):
    from torch.profiler import profile, ProfilerActivity as P
    with profile(activities=[P.CUDA, P.CPU]) as p:
        fn(); torch.cuda.synchronize()
    return [(e.name[:90], round(e.device_time if hasattr(e,"device_time") else e.cuda_time,1)) for e in p.events() if str(e.device_type).endswith("CUDA")]
def compare(name, make, n=20, **more):
    row={"what":name, **more}
    for det in (False, True):
        try:
            torch.use_deterministic_algorithms(det)
            fn=make()
            least, med=timed(fn, n)
            row["det" if det else "plain"]=least; row["det_median" if det else "plain_median"]=med
            row["kernels_det" if det else "kernels_plain"]=kernels(fn)
        except Exception as e:
            row["error_det" if det else "error_plain"]=repr(e)[:200]
        finally: torch.use_deterministic_algorithms(False)
    if "det" in row and "plain" in row: row["ratio"]=row["det"]/row["plain"]
    put(**row)
dev="cuda"
def att(b,h,hk,s,d,causal,backend,part):
    def make():
        q=torch.randn(b,h,s,d,device=dev,dtype=torch.bfloat16,requires_grad=True)
        k,v=(torch.randn(b,hk,s,d,device=dev,dtype=torch.bfloat16,requires_grad=True) for _ in "kv")
        import contextlib
        ctx=(lambda: sdpa_kernel(backend)) if backend is not None else contextlib.nullcontext
        kw={"enable_gqa":True} if h!=hk else {}
        if part=="fwd":
            def fn():
                with ctx(): return F.scaled_dot_product_attention(q,k,v,is_causal=causal,**kw)
            return fn
        with ctx(): y=F.scaled_dot_product_attention(q,k,v,is_causal=causal,**kw)
        g=torch.randn_like(y)
        return lambda: torch.autograd.grad(y,(q,k,v),g,retain_graph=True)
    return make
for (b,h,hk,s,d,c) in [(2,32,32,2048,128,True),(1,32,8,4096,128,True),(4,32,32,4096,128,True),(1,32,8,8192,128,True),(1,32,8,32768,128,True),(8,16,16,1024,64,True),(4,16,16,4096,64,True),(32,12,12,512,64,False),(64,12,12,197,64,False),(2,32,32,4096,128,False),(1,16,4,4096,256,True)]:
    for bname,bk in (("default",None),("flash",B.FLASH_ATTENTION),("efficient",B.EFFICIENT_ATTENTION),("cudnn",B.CUDNN_ATTENTION)):
        for part in ("fwd","bwd"):
            if bname in("efficient",) and h!=hk: continue
            compare("attention", att(b,h,hk,s,d,c,bk,part), 10 if s>4096 else 20, backend=bname, part=part, shape=[b,h,hk,s,d,c])
def emb(v,w,n):
    def make():
        E=torch.randn(v,w,device=dev,dtype=torch.bfloat16,requires_grad=True); i=torch.randint(v,(n,),device=dev)
        y=F.embedding(i,E); g=torch.randn_like(y)
        return lambda: torch.autograd.grad(y,E,g,retain_graph=True)
    return make
for v,w,n in [(128256,4096,8192),(50257,768,16384),(151936,2048,4096)]: compare("embedding_bwd", emb(v,w,n), shape=[v,w,n])
def idx(n,w,m,kind):
    def make():
        x=torch.zeros(n,w,device=dev,dtype=torch.bfloat16); s=torch.randn(m,w,device=dev,dtype=torch.bfloat16); i=torch.randint(n,(m,),device=dev)
        if kind=="index_add": return lambda: x.index_add_(0,i,s)
        if kind=="scatter_add":
            ii=i[:,None].expand(m,w); return lambda: x.scatter_add_(0,ii,s)
        if kind=="index_put_acc": return lambda: x.index_put_((i,),s,accumulate=True)
        if kind=="index_put": return lambda: x.index_put_((i,),s)
        if kind=="scatter":
            ii=i[:,None].expand(m,w).contiguous(); return lambda: x.scatter_(0,ii,s)
        if kind=="gather_bwd":
            y=x.float().requires_grad_(); ii=i[:,None].expand(m,w).contiguous(); z=y.gather(0,ii); g=torch.randn_like(z); return lambda: torch.autograd.grad(z,y,g,retain_graph=True)
        if kind=="index_bwd":
            y=torch.randn(n,w,device=dev,dtype=torch.bfloat16,requires_grad=True); z=y[i]; g=torch.randn_like(z); return lambda: torch.autograd.grad(z,y,g,retain_graph=True)
        if kind=="index_select_bwd":
            y=torch.randn(n,w,device=dev,dtype=torch.bfloat16,requires_grad=True); z=y.index_select(0,i); g=torch.randn_like(z); return lambda: torch.autograd.grad(z,y,g,retain_graph=True)
    return make
for kind in ("index_add","scatter_add","index_put_acc","index_put","scatter","gather_bwd","index_bwd","index_select_bwd"):
    for n,w,m in [(8192,2048,16384),(16384,1024,65536),(100000,128,1000000)]: compare(kind, idx(n,w,m,kind), 5, shape=[n,w,m])
compare("cumsum", lambda: (lambda x: (lambda: x.cumsum(0)))(torch.randn(65536,128,device=dev)))
compare("empty", lambda: (lambda: torch.empty(1<<28,device=dev,dtype=torch.bfloat16)), 20, shape=[1<<28])
compare("empty_small", lambda: (lambda: torch.empty(1<<12,device=dev,dtype=torch.bfloat16)), 200, shape=[1<<12])
compare("mm_empty_fill", lambda: (lambda a: (lambda: a@a))(torch.randn(4096,4096,device=dev,dtype=torch.bfloat16)))
def conv(b,ci,co,s,k,st,ch):
    def make():
        f=torch.channels_last if ch else torch.contiguous_format
        x=torch.randn(b,ci,s,s,device=dev,dtype=torch.bfloat16,requires_grad=True).to(memory_format=f).detach().requires_grad_()
        w=torch.randn(co,ci,k,k,device=dev,dtype=torch.bfloat16).to(memory_format=f).requires_grad_()
        y=F.conv2d(x,w,stride=st,padding=k//2); g=torch.randn_like(y)
        return lambda: torch.autograd.grad(y,(x,w),g,retain_graph=True)
    return make
for a in [(64,64,64,56,3,1),(64,256,512,28,1,1),(64,256,256,14,3,1),(64,512,512,7,3,1),(32,96,96,56,7,1),(64,3,64,224,7,2)]:
    for ch in (False,True): compare("conv_bwd", conv(*a,ch), 5, shape=list(a)+[ch])
def up(mode):
    def make():
        x=torch.randn(16,64,32,32,device=dev,requires_grad=True); y=F.interpolate(x,scale_factor=2,mode=mode); g=torch.randn_like(y)
        return lambda: torch.autograd.grad(y,x,g,retain_graph=True)
    return make
for m in("nearest","bilinear"): compare("upsample_bwd", up(m), shape=[m])
def mp():
    x=torch.randn(64,64,112,112,device=dev,dtype=torch.bfloat16,requires_grad=True); y=F.max_pool2d(x,3,2,1); g=torch.randn_like(y)
    return lambda: torch.autograd.grad(y,x,g,retain_graph=True)
compare("max_pool_bwd", mp)
def ce():
    x=torch.randn(8192,32000,device=dev,dtype=torch.float32,requires_grad=True); t=torch.randint(32000,(8192,),device=dev)
    return lambda: torch.autograd.grad(F.cross_entropy(x,t),x)
compare("cross_entropy", ce)
def ln():
    x=torch.randn(16384,4096,device=dev,dtype=torch.bfloat16,requires_grad=True); w=torch.ones(4096,device=dev,dtype=torch.bfloat16,requires_grad=True); b=torch.zeros(4096,device=dev,dtype=torch.bfloat16,requires_grad=True)
    y=F.layer_norm(x,(4096,),w,b); g=torch.randn_like(y)
    return lambda: torch.autograd.grad(y,(x,w,b),g,retain_graph=True)
compare("layer_norm_bwd", ln)
