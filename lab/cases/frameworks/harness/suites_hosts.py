import json,sys
M=lambda L,h=256,a=8,kv=4,f=512,v=2048:[h,L,a,kv,f,v]
def C(id,fw,m,mbs,seq=64,**k): return dict(id=id,fw=fw,model=m,mbs=mbs,seq=seq,**k)
def Z(id,prog,mbs,**k): return dict(id=id,prog=prog,mbs=mbs,**k)
H=dict(hidden_size=256,num_attention_heads=8,vocab_size=2048)
L=dict(**H,num_hidden_layers=10,intermediate_size=512,use_cache=False)
one=[
 C("h-llama12","hf",M(12),1,mode="single"), C("h-llama20","hf",M(20),2,mode="single"), C("h-llama12-ac","hf",M(12),1,mode="single",ac=True), C("h-llama12-ga3","hf",M(12),1,mode="single",ga=3),
 C("h-llama12-c","hf",M(12),1,mode="single",compile=True,warmup=6), C("h-qwen14","hf",M(14),1,mode="single",arch="qwen3",tied=True,head_dim=32), C("h-gpt2-10","hf",M(10,kv=8),1,mode="single",arch="gpt2",tied=True), C("h-gpt2-16-ac","hf",M(16,kv=8),1,mode="single",arch="gpt2",tied=True,ac=True), C("h-mixtral5","hf",M(5),1,mode="single",arch="mixtral"),
 C("h-mcore10","mcore",M(10),1,microbatches=2), C("h-mcore10-full","mcore",M(10),1,microbatches=2,ac="full"), C("h-mcore10-sel","mcore",M(10),1,microbatches=2,ac="selective"), C("h-mcore6-moe","mcore",M(6),1,microbatches=1,experts=4), C("h-mcore8-nodist","mcore",M(8),1,microbatches=2,distopt=False),
 C("h-titan12","titan",M(12),1), C("h-titan12-sac","titan",M(12),1,ac="selective"), C("h-titan12-full","titan",M(12),1,ac="full"), C("h-titan12-c","titan",M(12),1,compile=True,warmup=6),
 Z("h-rn18-amp","tv:resnet18",4,amp=True,channels_last=True,opt="sgd"), Z("h-rn34-fp32","tv:resnet34",4,opt="sgd"), Z("h-rn152-amp","tv:resnet152",2,amp=True,opt="sgd"), Z("h-vgg","tv:vgg11_bn",2,amp=True), Z("h-mbv2","tv:mobilenet_v2",4,amp=True), Z("h-shuffle","tv:shufflenet_v2_x1_0",4), Z("h-mnas","tv:mnasnet1_0",4,tf32=True,clip=True), Z("h-effb3","tv:efficientnet_b3",4,amp=True,channels_last=True,opt="sgd"), Z("h-effb2-fp32","tv:efficientnet_b2",4), Z("h-regnety","tv:regnet_y_400mf",4,amp=True,channels_last=True,opt="sgd"), Z("h-convnexts","tv:convnext_small",4,amp=True,channels_last=True), Z("h-swinv2","tv:swin_v2_t",2,px=256,amp=True), Z("h-vitb32","tv:vit_b_32",2,px=224,amp=True), Z("h-vitb32-fp32","tv:vit_b_32",2,px=224), Z("h-maxvit","tv:maxvit_t",1,px=224,amp=True), Z("h-dense161","tv:densenet161",2,amp=True), Z("h-googlenet","tv:googlenet",4,opt="sgd"),
 Z("h-distil-amp","hf:distilbert",2,seq=64,amp=True,fused=True,cls="AutoModelForMaskedLM",kw=dict(dim=256,n_layers=6,n_heads=8,hidden_dim=512,vocab_size=2048)),
 Z("h-electra","hf:electra",2,seq=64,amp=True,cls="AutoModelForMaskedLM",kw=dict(**H,embedding_size=256,num_hidden_layers=12,intermediate_size=512)),
 Z("h-bert-fp32","hf:bert",2,seq=64,cls="AutoModelForMaskedLM",kw=dict(**H,num_hidden_layers=8,intermediate_size=512)),
 Z("h-bert-amp-clip","hf:bert",2,seq=64,amp=True,clip=True,cls="AutoModelForMaskedLM",kw=dict(**H,num_hidden_layers=10,intermediate_size=512)),
 Z("h-deberta","hf:deberta-v2",2,seq=64,amp=True,cls="AutoModelForMaskedLM",attn="eager",kw=dict(**H,num_hidden_layers=8,intermediate_size=512)),
 Z("h-opt","hf:opt",2,seq=64,pure_bf16=True,kw=dict(**H,num_hidden_layers=10,ffn_dim=512,word_embed_proj_dim=256,use_cache=False)),
 Z("h-phi-amp","hf:phi",2,seq=64,amp=True,fused=True,kw=dict(**L)), Z("h-olmo2-ac","hf:olmo2",2,seq=64,pure_bf16=True,ac=True,fused=True,kw=dict(**L,pad_token_id=0)), Z("h-granite","hf:granite",2,seq=64,pure_bf16=True,item=True,kw=dict(**L)), Z("h-mistral-amp","hf:mistral",2,seq=64,amp=True,clip=True,kw=dict(**L,num_key_value_heads=4)), Z("h-gemma3","hf:gemma3_text",2,seq=64,pure_bf16=True,fused=True,kw=dict(**L,num_key_value_heads=4,head_dim=32)), Z("h-falcon","hf:falcon",2,seq=64,amp=True,fused=True,kw=dict(**H,num_hidden_layers=10,use_cache=False)), Z("h-bloom-ac","hf:bloom",2,seq=64,amp=True,ac=True,attn="eager",kw=dict(hidden_size=256,n_head=8,n_layer=8,vocab_size=2048,use_cache=False)), Z("h-olmoe","hf:olmoe",2,seq=64,pure_bf16=True,fused=True,kw=dict(**{**L,"num_hidden_layers":6},num_experts=8,num_experts_per_tok=2)),
 Z("h-bart","hf:bart",2,seq=64,amp=True,fused=True,cls="AutoModelForSeq2SeqLM",kw=dict(d_model=256,encoder_layers=6,decoder_layers=6,encoder_attention_heads=8,decoder_attention_heads=8,encoder_ffn_dim=512,decoder_ffn_dim=512,vocab_size=2048,use_cache=False)),
 Z("h-vit","hf:vit",2,tf32=True,fused=True,cls="AutoModelForImageClassification",kw=dict(hidden_size=256,num_attention_heads=8,num_hidden_layers=16,intermediate_size=512,image_size=64)),
 Z("h-dinov2","hf:dinov2",2,amp=True,cls="AutoModelForImageClassification",kw=dict(hidden_size=256,num_attention_heads=8,num_hidden_layers=12,image_size=112)),
]
two=[
 C("h2-llama12-ddp","hf",M(12),1,mode="ddp"), C("h2-llama12-fsdp","hf",M(12),1,mode="fsdp"), C("h2-qwen14-fsdp","hf",M(14),1,mode="fsdp",arch="qwen3",tied=True,head_dim=32), C("h2-llama12-fsdp-ac","hf",M(12),1,mode="fsdp",ac=True), C("h2-gpt2-10-ddp","hf",M(10,kv=8),1,mode="ddp",arch="gpt2",tied=True), C("h2-llama12-ddp-ga2","hf",M(12),1,mode="ddp",ga=2),
 C("h2-mcore10-tp2","mcore",M(10),1,microbatches=2,tp=2,sp=False), C("h2-mcore10-dp2","mcore",M(10),1,microbatches=2), C("h2-mcore10-op","mcore",M(10),1,microbatches=2,overlap_param=True), C("h2-mcore10-noovl","mcore",M(10),1,microbatches=1,overlap_grad=False), C("h2-mcore10-pp2","mcore",M(10),1,microbatches=4,pp=2), C("h2-mcore8-vpp2","mcore",M(8),1,microbatches=4,pp=2,vpp=2), C("h2-mcore6-ep2","mcore",M(6),1,microbatches=1,experts=4,ep=2),
 C("h2-ds10-z1","ds",M(10),1,zero=1), C("h2-ds10-z2","ds",M(10),1,zero=2), C("h2-ds10-z3","ds",M(10),1,zero=3), C("h2-ds10-z2-noovl","ds",M(10),1,zero=2,overlap=False),
 C("h2-titan12-fsdp","titan",M(12),1), C("h2-titan12-fsdp-sac","titan",M(12),1,ac="selective"), C("h2-titan12-fsdp-full","titan",M(12),1,ac="full"), C("h2-titan12-tp2","titan",M(12),1,tp=2), C("h2-titan12-fsdp-c","titan",M(12),1,compile=True,warmup=6), 
 Z("h2-rn34-ddp","tv:resnet34",4,amp=True,channels_last=True,opt="sgd",mode="ddp"), Z("h2-effb3-ddp","tv:efficientnet_b3",4,amp=True,mode="ddp"), Z("h2-vitb32-ddp","tv:vit_b_32",2,px=224,amp=True,mode="ddp"),
 Z("h2-bert-ddp","hf:bert",2,seq=64,amp=True,fused=True,mode="ddp",cls="AutoModelForMaskedLM",kw=dict(**H,num_hidden_layers=8,intermediate_size=512)),
 Z("h2-mistral-fsdp","hf:mistral",2,seq=64,mode="fsdp",clip=True,fused=True,kw=dict(**L,num_key_value_heads=4)), Z("h2-gemma3-fsdp","hf:gemma3_text",2,seq=64,mode="fsdp",fused=True,kw=dict(**L,num_key_value_heads=4,head_dim=32)), Z("h2-phi-fsdp-item","hf:phi",2,seq=64,mode="fsdp",item=True,fused=True,kw=dict(**L)),
]
o=sys.argv[1]
json.dump(one,open(o+"/one.json","w")); json.dump(two,open(o+"/two.json","w"))
import os
os.makedirs(o+"/each",exist_ok=True)
for c in one+two: json.dump([c],open(f"{o}/each/{c['id']}.json","w"))
print(len(one),len(two))
