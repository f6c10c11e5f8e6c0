"""Values that nobody should write, and good ones in the wrong place: what fuzzers put where another value was."""

from __future__ import annotations

from typing import Any

#: As text, in the place of a word or a number.
NASTY = (
    *("", "-1", "0", "nan", "NaN", "inf", "-Infinity", "1e308", "1e999", "1e-320"),
    *("99999999999999999999", "2147483648", "0x10", "true", "null", "[]", "{}", '""'),
    *("'", '"', "\x00", "\u202e", "é", "../../../etc/passwd", "/dev/zero", "~", "%s%n"),
    *("{0}", "${HOME}", "n[1-99999999]", "[" * 3000, "&a;", "<!DOCTYPE a>", "1.5"),
    *("-0.0", "1 GB/s", "4 GiB"),
)
#: Numbers that few programs expect.
NUMBERS = (
    *("5e-324", "1e-320", "-0.0", "0e0", "1e-400", "9" * 5000, "1" + "0" * 400),
    *("0" * 5000 + "1", "1e", "1e+", "0b11", "0o17", "1.7976931348623159e308", ".5"),
    *("2147483648", "4294967297", "9007199254740993", "18446744073709551616", "+4"),
    *("1__0", "1,000", "१२", "１２", "4.0", "4.5", "1e0", "1e18", "nan", "inf"),
    *("-1", "0", "-Infinity", "1e308", "1e999", "0x10", "true"),
)
#: Words in letters of other alphabets, or that look the same.
LOOKALIKES = (
    *(
        "ﬁle",
        "dр",
        "ｍｏｄｅｌ",
        "İ",
        "ß",
        "a\u0301",
        "\u200b",
        "\u202e",
        "🚀",
        "\ufeff",
    ),
)
#: What takes the place of a value of JSON.
VALUES: tuple[Any, ...] = (
    *(None, True, [], {}, [[1]], "", "x", "nan", "1e400", -1, 0, 1.5, 1e308, -1e308),
    *(1e999, float("nan"), 2**31, 2**63, 2**64, 10**400, [None], {"a": 1}),
)
#: Values of every type that a file can say.
STRANGE: tuple[Any, ...] = (
    *(None, True, False, -1, 0, -0.0, 1, 2, 3, 7, 2**31, 2**63, 10**18, 10**30),
    *(1e-300, 1e-12, 1e12, 1e24, 1e308, float("inf"), float("-inf"), float("nan")),
    *("", " ", "nan", "inf", "-1", "0", "1e999", "0x10", "1_000", "½", "٣", "²", "①"),
    *("0 s", "-1 s", "1e30 s", "inf s", "nan GB/s", "0 B", "-5 GiB", "1e400 GB", "1 s/s"),
    *("0x", "-2x", "infx", "nanx", "1e-300x", "1e300x", "2x2x", "x", "off", "on", "none"),
    *("a" * 100_000, "\u202eabc", "\ud83d", "é", "\x00", "\n", "a\r\nb", "$\\frac{1}{0}"),
    *("../../etc/passwd", "/dev/zero", "/", ".", "~", "FILE", "file:///etc/passwd"),
    *("host[0-99999999]", "host[0-3", "[0-9][0-9][0-9][0-9][0-9][0-9]", "0-99999999999"),
    *([], {}, [[]], [{}], {"": ""}, [None], [1] * 10_000, ["a"] * 1000, {"a": {"b": []}}),
)  # fmt: skip
#: Words that keys of prestep's files have: choices of one key in the place of another's.
WORDS = (
    *("bf16", "fp8", "nvfp4", "fp32", "tf32", "fp16", "megatron", "pytorch-eager"),
    *("pytorch-compiled", "cuda-graph", "deepspeed", "automodel", "captured", "fsdp"),
    *("ddp", "zero1", "zero2", "zero3", "full", "selective", "products", "muon", "lion"),
    *("adafactor", "adamw8bit", "adamw4bit", "sgd", "zbv", "dualpipe", "v-half"),
    *("interleaved", "gpipe", "zero-bubble", "lora", "a2a", "p2p", "flex", "hybridep"),
    *("deepep", "allgather", "ring", "tree", "LL", "Simple", "rail-h100", "mi300x"),
    *("gb200-nvl72", "h200-host-4", "resnet50", "llama3-8b", "mlp", "transformer"),
    *("grpo", "dapo", "lognormal", "zipf", "consecutive", "static", "ecmp", "rail"),
)  # fmt: skip
#: Amounts and units as people write them.
AMOUNTS = (
    *("10", "1.5", ".5", "5.", "+5", "-0", "1e3", "1E3", "1e-320", "1e300", "1_000"),
    *("1,5", "1/3", "½", "１０", "٣", "∞", "0x10", "", " 10 ", "10 10", "1 e3", "--5"),
)
UNITS = (
    *("GB/s", "GB /s", "GB / s", "gb/S", "Gbit/s", "GiB/s", "Gbps", "MB", "KiB", "B"),
    *("us", "μs", "µs", "ms", "s", "min", "h", "d", "x", "%", "W", "kW", "TFLOP/s"),
    *(
        "GHz",
        "tokens",
        "/s",
        "s/GB",
        "GB/s/s",
        "GB/us",
        "",
        "\u00a0GB/s",
        "GB/s;",
        "🐌",
    ),
)
#: Keys of options, and values that some of them take.
KEYS = (
    *("training.micro_batch", "training.seq_len", "training.precision"),
    *("parallel.dp", "parallel.tp", "parallel.pp", "parallel.cp", "parallel.ep"),
    *("parallel.schedule", "parallel.imbalance", "training.optimizer"),
    *("training.framework", "training.packed", "training.recompute"),
    *("adapter.kind", "adapter.rank", "rl.prompts", "model.layer_pattern"),
    *("model.name", "model.layers", "cluster.name", "cluster.hosts", "cluster.gpus"),
    *("nvlink.bandwidth", "gpu.flops", "gpu[0].clock", "nic.latency", "gpu", "nic[0]"),
    *("kernels.gemm", "host[0].bandwidth", "nccl.algo", "placement.hosts", "x"),
)
OPTIONS = (
    *("2", "4", "1", "0.5x", "2x", "off", "fp8", "fp32", "megatron", "automodel"),
    *("lora", "zbv", "zipf", "mi300x", "rail-h100", "qwen3-moe", "8k", "1M", "0-3"),
    *("rank", "host", "link", "10 s", "1 GB/s", "100 us", "LL", "ring", "all_gather"),
    *("BESIDE/log.txt", "BESIDE/result.json", "BESIDE", "OUT", "full", "host0"),
    *("dp=2", "gpu=9", "r2", "r4", "parallel.dp=1,2", "h100=2.5,h200=3", "cost"),
)
