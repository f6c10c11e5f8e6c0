"""Entries of well-known tokenizers, by the names that training scripts pass.

The number is `len(tokenizer)`: what Megatron counts before it pads (megatron/training/tokenizer/tokenizer.py). It can
be smaller than the `vocab_size` of a checkpoint, which is padded already (151,936 of Qwen2.5's 151,665).
Sources: tokenizer.json with its added tokens of the named repositories; tiktoken_ext/openai_public.py (o200k, cl100k).
"""

from __future__ import annotations

import re

#: Kinds of tokenizers (--tokenizer-type) that have one vocabulary.
KINDS = {
    "GPT2BPETokenizer": 50257,
    "Llama2Tokenizer": 32000,
    "Llama3Tokenizer": 128256,
    # CustomTikTokenizer takes 2**17 where no --vocab-size is said.
    "TikTokenizer": 131072,
}
#: Names and paths of tokenizers: the first pattern that a lower-case name has somewhere decides.
NAMES = (
    (r"mistral-nemo|mistral-small-24b|nemotron-(?:3|h|nano-(?:9b|12b)-v2)", 131072),
    (r"(?:mistral-7b|mixtral)[\w-]*-v0\.3|mixtral-8x22b-instruct", 32768),
    (r"mistral-7b|mixtral", 32000),
    (r"llama[-_]?2|tinyllama", 32000),
    (r"llama[-_]?3|nemotron[\w.-]*8b-v1|deepseek-r1-distill-llama", 128256),
    (r"qwen[-_]?3(?![.\d])", 151669),
    (r"qwen[-_]?2\.?5|qwen2\.5", 151665),
    (r"qwen[-_]?2(?![.\d])|qwen1\.5", 151646),
    (r"deepseek[-_]?(?:v3|r1)", 128815),
    (r"gemma[-_]?2?-(?:2b|7b|9b|27b)|gemma[-_]?[12](?!\d)", 256000),
    (r"o200k|gpt[-_]oss", 200019),
    (r"cl100k", 100277),
    (r"gpt[-_]?2|gpt[-_]?neo", 50257),
    (r"smollm3", 128256),
    (r"smollm", 49152),
)


def vocabulary_of(kind: str, *names: str) -> tuple[int, str] | None:
    """Entries of a tokenizer and what they were concluded from; None where nobody knows it.

    `kind` is Megatron's --tokenizer-type; `names` are the tokenizer's name or path and its files.

    Examples
    --------
    >>> vocabulary_of("HuggingFaceTokenizer", "meta-llama/Meta-Llama-3-8B")
    (128256, 'meta-llama/Meta-Llama-3-8B')
    >>> vocabulary_of("GPT2BPETokenizer", "vocab.json")
    (50257, 'GPT2BPETokenizer')
    >>> vocabulary_of("HuggingFaceTokenizer", "some-org/some-tokenizer")
    """
    for name in names:
        # A repository, or a file in a folder: what lies above says nothing of it.
        short = "/".join(name.lower().rstrip("/").split("/")[-2:])
        for pattern, entries in NAMES:
            if re.search(pattern, short):
                return entries, name
    return (KINDS[kind], kind) if kind in KINDS else None
