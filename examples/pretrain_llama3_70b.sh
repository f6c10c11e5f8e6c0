#!/bin/bash
# Question: which network, and which GPUs, for Llama 3 70B with Megatron-LM's own launch script? 256 GPUs, as it is; see README.md.
torchrun --nproc_per_node 8 --nnodes 32 pretrain_gpt.py \
  --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 \
  --group-query-attention --num-query-groups 8 --position-embedding-type rope --swiglu \
  --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights \
  --attention-dropout 0 --hidden-dropout 0 --seq-length 8192 --max-position-embeddings 8192 \
  --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --sequence-parallel \
  --use-distributed-optimizer --micro-batch-size 1 --global-batch-size 128 --bf16 \
  --transformer-impl transformer_engine --use-flash-attn --vocab-size 128256 --mock-data
