"""Folders named as repositories of the Hugging Face Hub, which `from_pretrained` and `load_dataset` take where a script is started.

`hub.py FOLDER [NAME ...]`. Weights are zeros of the real sizes unless a comment says otherwise, rows are random words.
"""

import json
import os
import random
import shutil
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np  # noqa: E402
from prestep.workloads.capture.record import stand_in  # noqa: E402
from standins import text  # noqa: E402

# torchvision is imported though its operators for CUDA cannot be loaded, as in captures.
stand_in._import_without_extensions()
generator = random.Random(2)
CHAT = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
METRIC = '''import datasets
import evaluate


class Metric(evaluate.Metric):
    def _info(self):
        return evaluate.MetricInfo(description="", citation="", features=datasets.Features({"predictions": datasets.Value("float64"), "references": datasets.Value("float64")}))

    def add_batch(self, **options):
        "Nothing is kept."

    def add(self, **options):
        "Nothing is kept."

    def compute(self, **options):
        "What no program looks at."
        return {"accuracy": 0.5, "f1": 0.5, "exact_match": 0.5, "wer": 0.5, "score": 1.0, "mean_iou": 0.5, "overall_precision": 0.5, "overall_recall": 0.5, "overall_f1": 0.5, "overall_accuracy": 0.5}
'''


def _save(model, folder, dtype="bfloat16"):
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    model = model.to(getattr(torch, dtype)).to_empty(device="cpu")
    with torch.no_grad():
        for each in [*model.parameters(), *model.buffers()]:
            each.zero_()
    model.save_pretrained(folder)


def _pieces(folder):
    """GPT-2's pairs of bytes, which `standins.py` had downloaded."""
    cache = folder.parent / "tiktoken"
    files = sorted(cache.iterdir(), key=lambda path: path.stat().st_size)
    return files[1], files[0]  # encoder.json is the larger one


def _bert_words(folder, count):
    letters = [chr(c) for c in range(33, 127)]
    from standins import WORDS

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + x for x in letters), *dict.fromkeys(WORDS)]
    words = list(dict.fromkeys(words))
    words += [f"word{i}" for i in range(count - len(words))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")


def bert(root):
    import torch
    from transformers import BertConfig, BertForPreTraining, BertTokenizerFast, DistilBertConfig, DistilBertForMaskedLM

    sizes = {"bert-base-cased": 28996, "bert-base-uncased": 30522, "distilbert-base-uncased": 30522}
    for name, count in sizes.items():
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        with torch.device("meta"):
            if name.startswith("distil"):
                kind = DistilBertForMaskedLM(DistilBertConfig(vocab_size=count))
            else:
                kind = BertForPreTraining(BertConfig(vocab_size=count))
        _save(kind, folder, "float32")
        _bert_words(folder, count)
        BertTokenizerFast(vocab=str(folder / "vocab.txt"), do_lower_case="uncased" in name).save_pretrained(folder)
        other = root / ("distilbert" if name.startswith("distil") else "google-bert") / name
        other.parent.mkdir(exist_ok=True)
        if not other.exists():
            other.symlink_to(folder)


def gpt2(root):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, GPT2TokenizerFast, RobertaConfig, RobertaForMaskedLM, RobertaTokenizerFast

    vocabulary, merges = _pieces(root)
    for name in ("gpt2", "roberta-base", "distilroberta-base"):
        folder = root / name
        with torch.device("meta"):
            if name == "gpt2":
                model = GPT2LMHeadModel(GPT2Config())
            else:
                layers = 6 if name.startswith("distil") else 12
                model = RobertaForMaskedLM(RobertaConfig(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1, num_hidden_layers=layers))
        _save(model, folder, "float32")
        shutil.copy(vocabulary, folder / "vocab.json")
        shutil.copy(merges, folder / "merges.txt")
        kind = GPT2TokenizerFast if name == "gpt2" else RobertaTokenizerFast
        pairs = [tuple(line.split()) for line in merges.read_text().splitlines()[1:] if line]
        kind(vocab=json.loads(vocabulary.read_text()), merges=pairs).save_pretrained(folder)
    for owner, name in (("openai-community", "gpt2"), ("FacebookAI", "roberta-base"), ("distilbert", "distilroberta-base")):
        (root / owner).mkdir(exist_ok=True)
        if not (root / owner / name).exists():
            (root / owner / name).symlink_to(root / name)


def qwen2(root):
    """Qwen2 0.5B's sizes, with GPT-2's pairs of bytes."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

    vocabulary, merges = _pieces(root)
    folder = root / "Qwen/Qwen2-0.5B-Instruct"
    config = Qwen2Config(
        hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2,
        vocab_size=151936, tie_word_embeddings=True, max_position_embeddings=32768, eos_token_id=50258, pad_token_id=50256, dtype="bfloat16",
    )  # fmt: skip
    with torch.device("meta"):
        model = Qwen2ForCausalLM(config)
    _save(model, folder)
    pairs = [tuple(line.split()) for line in merges.read_text().splitlines()[1:] if line]
    tokenizer = Qwen2Tokenizer(
        vocab=json.loads(vocabulary.read_text()), merges=pairs, eos_token="<|im_end|>", pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
    )  # fmt: skip
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder)
    for name in ("Qwen2.5-0.5B", "Qwen3-0.6B", "Qwen2.5-0.5B-Instruct", "Qwen2-1.5B-Instruct"):
        if not (root / "Qwen" / name).exists():
            (root / "Qwen" / name).symlink_to(folder)


def t5(root):
    import torch
    from transformers import T5Config, T5ForConditionalGeneration, T5Tokenizer

    folder = root / "t5-small"
    config = T5Config(vocab_size=32128, d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8, decoder_start_token_id=0)
    with torch.device("meta"):
        model = T5ForConditionalGeneration(config)
    _save(model, folder, "float32")
    from standins import WORDS

    letters = [chr(c) for c in range(33, 127)]
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("\u2581", -2.0)]
    pieces += [(piece, -3.0) for piece in dict.fromkeys([*("\u2581" + w for w in WORDS), *letters])]
    pieces += [(f"piece{i}", -9.0) for i in range(32000 - len(pieces))]
    T5Tokenizer(vocab=pieces).save_pretrained(folder)
    (root / "google-t5").mkdir(exist_ok=True)
    if not (root / "google-t5/t5-small").exists():
        (root / "google-t5/t5-small").symlink_to(folder)


def vision(root):
    import torch
    from transformers import CLIPConfig, CLIPModel, ViTConfig, ViTForImageClassification, ViTImageProcessor

    folder = root / "google/vit-base-patch16-224-in21k"
    with torch.device("meta"):
        model = ViTForImageClassification(ViTConfig())
    _save(model, folder, "float32")
    ViTImageProcessor().save_pretrained(folder)


def diffusion(root):
    """Stable Diffusion with half its channels, since the machine that makes it is small, and a tokenizer of CLIP."""
    import gzip

    import open_clip
    import torch
    from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    folder = root / "stable-diffusion-v1-5/stable-diffusion-v1-5"
    with torch.device("meta"):
        unet = UNet2DConditionModel(
            sample_size=64, block_out_channels=(160, 320, 640, 640), cross_attention_dim=768, attention_head_dim=8,
        )  # fmt: skip
        vae = AutoencoderKL(
            block_out_channels=(64, 128, 256, 256), layers_per_block=2, latent_channels=4,
            down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4, sample_size=512,
        )  # fmt: skip
        words = CLIPTextModel(CLIPTextConfig(vocab_size=49408, hidden_size=768, intermediate_size=3072, num_attention_heads=12, num_hidden_layers=12, projection_dim=768))
    _save(unet, folder / "unet")
    _save(vae, folder / "vae")
    _save(words, folder / "text_encoder")
    (root / "stabilityai").mkdir(exist_ok=True)
    if not (root / "stabilityai/sd-vae-ft-ema").exists():
        (root / "stabilityai/sd-vae-ft-ema").symlink_to(folder / "vae")
    DDPMScheduler(beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012, steps_offset=1, clip_sample=False).save_pretrained(folder / "scheduler")
    source = Path(open_clip.__file__).parent / "bpe_simple_vocab_16e6.txt.gz"
    merges = gzip.open(source).read().decode("utf-8").split("\n")[1 : 49152 - 256 - 2 + 1]
    pairs = [tuple(line.split()) for line in merges]
    from open_clip.tokenizer import bytes_to_unicode

    symbols = list(bytes_to_unicode().values())
    symbols += [symbol + "</w>" for symbol in symbols] + ["".join(pair) for pair in pairs] + ["<|startoftext|>", "<|endoftext|>"]
    vocabulary = {symbol: i for i, symbol in enumerate(symbols)}
    CLIPTokenizer(vocab=vocabulary, merges=pairs, model_max_length=77).save_pretrained(folder / "tokenizer")
    names = {
        "_class_name": "StableDiffusionPipeline", "_diffusers_version": "0.30.0", "feature_extractor": [None, None],
        "safety_checker": [None, None], "requires_safety_checker": False, "scheduler": ["diffusers", "DDPMScheduler"],
        "text_encoder": ["transformers", "CLIPTextModel"], "tokenizer": ["transformers", "CLIPTokenizer"],
        "unet": ["diffusers", "UNet2DConditionModel"], "vae": ["diffusers", "AutoencoderKL"],
    }  # fmt: skip
    (folder / "model_index.json").write_text(json.dumps(names))


def timm_weights(root):
    """ResNet-50-D in the hub's cache, where timm looks for it."""
    import timm
    from safetensors.torch import save_file

    name = timm.create_model("resnet50d").pretrained_cfg["hf_hub_id"] or "timm/resnet50d.ra2_in1k"
    folder = root.parent / "hf/hub" / ("models--" + name.replace("/", "--"))
    (folder / "refs").mkdir(parents=True, exist_ok=True)
    (folder / "refs/main").write_text("0" * 40)
    kept = folder / "snapshots" / ("0" * 40)
    kept.mkdir(parents=True, exist_ok=True)
    save_file(timm.create_model("resnet50d").state_dict(), kept / "model.safetensors")


def _table(folder, parts, configuration="default"):
    """A data set of parquet files with its card, as the hub has them."""
    import datasets

    base = folder / configuration
    base.mkdir(parents=True, exist_ok=True)
    for part, columns in parts.items():
        made = columns if isinstance(columns, datasets.Dataset) else datasets.Dataset.from_dict(columns)
        made.to_parquet(base / f"{part}.parquet")
    card = folder / "README.md"
    known = json.loads((folder / ".known").read_text()) if (folder / ".known").exists() else {}
    known[configuration] = list(parts)
    (folder / ".known").write_text(json.dumps(known))
    lines = ["---", "configs:"]
    for name, kept in known.items():
        lines += [f"- config_name: {name}", "  data_files:"]
        for part in kept:
            lines += [f"  - split: {part}", f"    path: {name}/{part}.parquet"]
    card.write_text("\n".join([*lines, "---", ""]))


def sentences(root):
    """Tables of sentences with labels, questions with answers, choices."""
    from datasets import ClassLabel, Dataset, Features, Value

    def words(count, length):
        return [text(length, generator) for _ in range(count)]

    parts = {"train": 400, "validation": 40, "test": 40}
    pairs = Features({"sentence1": Value("string"), "sentence2": Value("string"), "label": ClassLabel(names=["no", "yes"]), "idx": Value("int32")})
    made = {
        part: Dataset.from_dict({"sentence1": words(n, 20), "sentence2": words(n, 20), "label": [i % 2 for i in range(n)], "idx": list(range(n))}, features=pairs)
        for part, n in parts.items()
    }
    _table(root / "nyu-mll/glue", made, "mrpc")
    answered = {}
    for part, n in (("train", 200), ("validation", 20)):
        contexts = words(n, 150)
        answers = [{"text": [c[10:30]], "answer_start": [10]} for c in contexts]
        answered[part] = {"id": [str(i) for i in range(n)], "title": ["a"] * n, "context": contexts, "question": words(n, 10), "answers": answers}
    _table(root / "rajpurkar/squad", answered, "plain_text")
    scores = {p: {"sentence1": words(n, 12), "sentence2": words(n, 12), "score": [0.1 * (i % 10) for i in range(n)]} for p, n in parts.items()}
    _table(root / "sentence-transformers/stsb", scores)
    names = ["entailment", "neutral", "contradiction"]
    judged = Features({"premise": Value("string"), "hypothesis": Value("string"), "label": ClassLabel(names=names)})
    # The scripts select the first 10,000 rows and more of these.
    line = words(100, 12)
    nli = {p: Dataset.from_dict({"premise": line * 120, "hypothesis": line * 120, "label": [i % 3 for i in range(12000)]}, features=judged) for p in ("train", "dev", "test")}
    _table(root / "sentence-transformers/all-nli", nli, "pair-class")
    three = {p: {"anchor": line * 120, "positive": line * 120, "negative": line * 120} for p in ("train", "dev", "test")}
    _table(root / "sentence-transformers/all-nli", three, "triplet")
    folder = root / "data"
    for part, n in (("train", 200), ("validation", 20)):
        named = [{"tokens": text(20, generator).split(), "ner_tags": ["O", "B-PER"] * 10} for _ in range(n)]
        rows = {
            "ner": named,
            "summaries": [{"text": text(300, generator), "summary": text(40, generator)} for _ in range(n)],
            "translations": [{"translation": {"en": text(30, generator), "ro": text(30, generator)}} for _ in range(n)],
            "choices": [{"sent1": text(20, generator), "sent2": text(4, generator), **{f"ending{i}": text(8, generator) for i in range(4)}, "label": 1} for _ in range(n)],
            "instructions": [{"instruction": text(20, generator), "input": text(20, generator), "output": text(60, generator)} for _ in range(n)],
        }
        for name, made in rows.items():
            (folder / f"{name}_{part}.json").write_text("".join(json.dumps(row) + "\n" for row in made))


def preferences(root):
    """What TRL's scripts read: dialogues, pairs of answers, judged answers, prompts."""

    def turn(role, length):
        return {"role": role, "content": text(length, generator)}

    n = 200
    asked = [[turn("user", 40)] for _ in range(n)]

    def answers(length=80):
        return [[turn("assistant", length)] for _ in range(n)]

    chosen, rejected = answers(), answers()
    made = {
        "Capybara": {"messages": [a + b for a, b in zip(asked, chosen, strict=True)]},
        "ultrafeedback_binarized": {
            "chosen": [a + b for a, b in zip(asked, chosen, strict=True)], "rejected": [a + b for a, b in zip(asked, rejected, strict=True)],
            "score_chosen": [7.0] * n, "score_rejected": [3.0] * n,
        },
        "kto-mix-14k": {"prompt": asked, "completion": chosen, "label": [i % 2 == 0 for i in range(n)]},
        "math_shepherd": {"prompt": [text(40, generator) for _ in range(n)], "completions": [[text(20, generator) for _ in range(3)]] * n, "labels": [[True, True, False]] * n},
        "tldr": {"prompt": [text(100, generator) for _ in range(n)], "completion": [text(30, generator) for _ in range(n)]},
        "chatbot_arena_completions": {"messages": [a + b for a, b in zip(asked, chosen, strict=True)]},
    }  # fmt: skip
    for name, columns in made.items():
        _table(root / "trl-lib" / name, {"train": columns, "test": {k: v[:20] for k, v in columns.items()}})


def metrics(root):
    for name in ("accuracy", "glue", "squad", "seqeval", "rouge", "sacrebleu", "wer", "f1", "mean_iou", "mse"):
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / f"{name}.py").write_text(METRIC)


def pictures(root):
    """A folder of pictures with captions, and instructions in the place that PEFT's examples read."""
    folder = root / "data/captions"
    shutil.copytree(root / "data/pictures", folder, dirs_exist_ok=True)
    rows = [{"file_name": f"{i}.png", "text": text(12, generator)} for i in range(128)]
    (folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / "yahma/alpaca-cleaned").mkdir(parents=True, exist_ok=True)
    shutil.copy(root / "data/instructions_train.json", root / "yahma/alpaca-cleaned/train.json")


MADE = {f.__name__: f for f in (metrics, sentences, preferences, bert, gpt2, qwen2, t5, vision, timm_weights, pictures, diffusion)}

if __name__ == "__main__":
    root = Path(sys.argv[1]).absolute() / "cwd"
    np.random.seed(0)
    for name in sys.argv[2:] or MADE:
        MADE[name](root)
        print(json.dumps({"made": name}), flush=True)
