"""Times of Liger's kernels and of what its loss does beside them, by the profiler; buffers rotate so that they come from memory."""
import json, sys, torch
from torch.profiler import profile, ProfilerActivity
from liger_kernel.ops.rms_norm import rms_norm_forward, rms_norm_backward
from liger_kernel.ops.swiglu import swiglu_forward, swiglu_backward
from liger_kernel.ops.rope import rope_forward, rope_backward
from liger_kernel.ops.cross_entropy import liger_cross_entropy_kernel
from liger_kernel.ops.fused_linear_cross_entropy import MAX_FUSED_SIZE
import triton
bf=torch.bfloat16; dev='cuda'
def timed(kind, shape, size, make, run, name, reps=12):
    n=max(2,min(24,int(3e8//max(1,size))+1)); bufs=[make() for _ in range(n)]
    for b in bufs[:2]: run(b)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as p:
        for i in range(reps): run(bufs[i%n])
        torch.cuda.synchronize()
    ds=sorted(e.device_time_total for e in p.events() if name in e.name and e.device_time_total>0)
    return dict(kind=kind,shape=shape,bytes=size,us=ds[len(ds)//2] if ds else None,n=len(ds))
out=[]
def R(*a,**k):
    try: out.append(timed(*a,**k))
    except Exception as e: out.append(dict(kind=a[0],shape=a[1],error=repr(e)[:200]))
    torch.cuda.empty_cache()
e=lambda *s: torch.randn(*s,device=dev,dtype=bf)
for rows in (512,2048,4096,8192,32768):
    for cols in (1024,2048,4096,8192):
        w=e(cols); x=rows*cols*2
        R('liger_norm',(rows,cols),2*x,lambda:e(rows,cols),lambda b:rms_norm_forward(b,w,1e-6,0.0,'llama',None),'_rms_norm_forward')
        y,xx,rstd,bs,nw,cm=rms_norm_forward(e(rows,cols),w,1e-6,0.0,'llama',None)
        R('liger_norm_bwd',(rows,cols),3*x,lambda:(e(rows,cols),e(rows,cols)),lambda b:rms_norm_backward(b[0],b[1],w,rstd,0.0,cm,bs,nw,True,None),'_rms_norm_backward')
for rows,cols in ((512,2816),(2048,5632),(4096,8192),(8192,8192),(4096,14336),(16384,14336)):
    x=rows*cols*2
    R('liger_glu',(rows,cols),3*x,lambda:(e(rows,cols),e(rows,cols)),lambda b:swiglu_forward(b[0],b[1]),'_swiglu_forward')
    R('liger_glu_bwd',(rows,cols),5*x,lambda:(e(rows,cols),e(rows,cols),e(rows,cols)),lambda b:swiglu_backward(b[0],b[1],b[2]),'_swiglu_backward')
for tok,q,k,d in ((512,16,16,64),(2048,32,8,64),(4096,32,8,128),(8192,32,8,64),(8192,32,8,128),(16384,64,8,128)):
    cs=torch.randn(1,tok,d,device=dev,dtype=bf)
    R('liger_rope',(tok*(q+k)*d,),4*tok*(q+k)*d,lambda:(e(1,tok,q,d).transpose(1,2),e(1,tok,k,d).transpose(1,2)),lambda b:rope_forward(b[0],b[1],cs,cs),'_triton_rope')
def ce(b,v):
    l,t,loss=b; n=l.shape[0]
    liger_cross_entropy_kernel[(n,)](X_ptr=l,X_stride=l.stride(-2),Y_ptr=t,Y_stride=1,weight_ptr=None,loss_ptr=loss,z_loss_ptr=None,loss_stride=1,token_accuracy_ptr=None,token_accuracy_stride=0,predicted_tokens_ptr=None,predicted_tokens_stride=0,n_cols=v,n_non_ignore=n,sum_non_ignore_weight=n,weight_sum=0.0,ignore_index=-100,lse_square_scale=0.0,label_smoothing=0.0,reduction='mean',softcap=None,RETURN_Z_LOSS=False,RETURN_TOKEN_ACCURACY=False,RETURN_PREDICTED_TOKENS=False,HAS_WEIGHT=False,HAS_SOFTCAPPING=False,HAS_GRADIENTS=True,BLOCK_SIZE=min(MAX_FUSED_SIZE,triton.next_power_of_2(v)),num_warps=32)
for v in (32000,128256,151936):
    for rows in (16,64,128,256,512,1024,2048):
        for dt,s in ((bf,2),(torch.float32,4)):
            R('liger_cross_entropy'+('' if s==2 else '_wide'),(rows,v),3*s*rows*v,lambda:(torch.randn(rows,v,device=dev,dtype=dt),torch.randint(0,v,(rows,),device=dev),torch.zeros(rows,device=dev)),lambda b:ce(b,v),'liger_cross_entropy')
for n in (1<<22,1<<25,1<<28,525336576):
    R('aten copy bf16>fp32',(n,),6*n,lambda:e(n),lambda b:b.float(),'direct_copy')
    R('aten add_ bf16+fp32',(n,),8*n,lambda:(e(n),torch.randn(n,device=dev)),lambda b:b[0].add_(b[1]),'CUDAFunctor_add')
json.dump(out,open(sys.argv[1],'w'))
for r in out: print(r)
