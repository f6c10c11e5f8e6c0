"""Models: named (models/*.toml), read from a Hugging Face config.json, or written inline in a scenario.

All three are the same keys (`prestep.workloads.job.model.Model`); here what was not said gets its default
and the whole is checked.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, Literal, Never, get_origin

from prestep.sim import data_files, files, plugins, strict
from prestep.sim.errors import InputError, Mistake, unknown
from prestep.sim.extras import lazily
from prestep.workloads.job.model import Keys, Model
from prestep.workloads.models import checks, hybrid

with lazily():
    from prestep.workloads.models import compressed, indexed

__all__ = ["MODELS", "ModelSpec", "load_model", "model_names", "read_model"]

MODELS = Path(__file__).parent
#: The kind of a model that is a program, which its framework reads from a file that nobody can change.
PROGRAM: Final = "program"
ARGUMENTS = (".txt", ".sh", ".yaml", ".yml", ".args")

_REQUIRED = {
    "transformer": ("hidden", "layers", "heads", "ffn", "vocab"),
    "vit": ("hidden", "layers", "heads", "ffn", "patch"),
    "mlp": ("sizes",),
    "resnet": ("layers",),
    PROGRAM: (),
}


@dataclass(frozen=True)
class ModelSpec(Keys[Never]):
    """A model, complete. Keys that its kind does not have are 0, empty or false.

    `ffn` is the inner width of the feed-forward layer, `moe_ffn` that of one expert; a resnet's `layers` is its depth.
    `max_positions` are rows of a learned position embedding. With latent attention (`kv_lora_rank`) a query or key head
    has `head_dim` plus `rope_head_dim` elements; with compressed attention (`compress_ratios`) `head_dim` has both.
    """

    def __post_init__(self) -> None:
        for name, value in _defaults(type(self)).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    @property
    def rotary(self) -> bool:
        """Positions enter by rotating queries and keys."""
        return self.positions == "rope"

    @property
    def further_layers(self) -> int:
        """Layers of multi-token prediction that have parameters of their own."""
        return min(self.mtp_layers, 1) if self.mtp_shared else self.mtp_layers

    @property
    def tokens(self) -> int:
        """Tokens of a picture, the class's among them; 0 where tokens are words."""
        return (self.image_size // self.patch) ** 2 + 1 if self.patch else 0

    @property
    def latent(self) -> bool:
        """Keys and values are made from a compressed state (multi-head latent attention)."""
        return self.kv_lora_rank > 0

    @property
    def query_dim(self) -> int:
        """Elements of a query head."""
        return self.head_dim + (self.rope_head_dim if self.latent else 0)

    @property
    def compressed(self) -> bool:
        """Attention is over a window and compressed keys (`prestep.workloads.models.compressed`)."""
        return bool(self.compress_ratios)

    @property
    def indexed(self) -> bool:
        """Latent attention is to keys that an indexer chooses (`prestep.workloads.models.indexed`)."""
        return self.latent and self.index_topk > 0

    @property
    def sparse_keys(self) -> tuple[str, str] | None:
        """The key of a scenario, with what it says, that makes attention one to chosen or compressed keys."""
        if self.compressed:
            return "model.compress_ratios", f"{len(self.compress_ratios)} ratios"
        return ("model.index_topk", str(self.index_topk)) if self.indexed else None

    def ratio_of(self, layer: int) -> int:
        """Tokens that share a key that a layer compresses or whose indexer chooses it; 0: there are none.

        So of further layers where nobody says; those of latent attention have an indexer.
        """
        if self.indexed:
            return int(self.index_pattern[layer : layer + 1] != indexed.SHARED)
        return next(iter(self.compress_ratios[layer:]), 0)

    @property
    def residual(self) -> int:
        """Width of what goes from layer to layer: all streams beside each other."""
        return self.hidden * self.streams

    def has_experts(self, layer: int) -> bool:
        """Whether a layer's feed-forward part has experts: not the first ones, and every ``moe_every``-th."""
        if part := self.part_of(layer):
            return part == hybrid.EXPERTS
        return (
            self.experts > 0
            and layer >= self.dense_layers
            and (layer + 1) % self.moe_every == 0
        )

    def part_of(self, layer: int) -> str:
        """The letter of a hybrid's layer; "" where layers have two parts, as those of multi-token prediction."""
        return self.layer_pattern[layer : layer + 1]

    def letters_of(self, layer: int) -> str:
        """Parts of a layer by their letters; those of further predictions are behind the last."""
        experts = self.has_experts(layer) if layer < self.layers else self.experts
        last = hybrid.EXPERTS if experts else hybrid.FEED_FORWARD
        return self.part_of(layer) or f"{hybrid.ATTENTION}{last}"

    def attends(self, layer: int) -> bool:
        """Whether a layer has attention over all tokens (or a window of them)."""
        return self.part_of(layer) in ("", hybrid.ATTENTION)

    @property
    def routed_hidden(self) -> int:
        """Width of the tokens that experts see."""
        return self.moe_latent or self.hidden

    def window_of(self, layer: int) -> int:
        """Tokens that attention of a layer looks back; 0: all."""
        return (
            0
            if self.window_every and (layer + 1) % self.window_every == 0
            else self.window
        )


#: Keys of which nothing said is not 0, empty or false.
_UNSAID: dict[str, Any] = {
    "positions": "none",
    "norms": "before",
    "moe_every": 1,
    "norm_topk": True,
    "streams": 1,
}


def _defaults(cls: type) -> dict[str, Any]:
    """What each key is where nothing is said: 0, empty or false, as a rule."""
    kinds = {
        name: get_origin(hint) or hint for name, hint in strict.type_hints(cls).items()
    }
    nothing = {n: "" if kind is Literal else kind() for n, kind in kinds.items()}
    return nothing | _UNSAID


def model_names() -> list[str]:
    """Names of the models that come with prestep, and with packages of `prestep.models`, sorted."""
    return list(data_files.files(MODELS, "models"))


def load_model(section: Model, where: str = "scenario") -> ModelSpec:
    """The model a scenario asks for: its name or file, with the section's other keys put over it.

    Raises
    ------
    InputError
        For an unknown name, an unreadable file, missing or impossible keys.
    """
    base, name, place = Model(), "inline", where
    if section.name is not None:
        name, place = section.name, f"models/{section.name}.toml"
        base = read_model(_named(name, where))
    elif section.file is not None:
        name, place = Path(section.file).stem, section.file
        base = read_model(Path(place), section.family or "")
    said = {entry.name: getattr(section, entry.name) for entry in fields(Model)}
    inline = {
        key: value
        for key, value in said.items()
        if value is not None and key not in ("name", "file", "family")
    }
    return _complete(replace(base, **inline), name, where if inline else place)


def is_program(path: Path) -> bool:
    """Whether a file is a program: it has an ending of an opener with `PROGRAMS = True`."""
    openers = plugins.plugins_in("prestep.openers").values() if path.suffix else ()
    literals = (plugins.outline_of(opener).constants for opener in openers)
    return any(o.get("PROGRAMS") and path.suffix in o["ENDINGS"] for o in literals)


def read_model(path: Path, family: str = "") -> Model:
    """The keys in a TOML model, a Hugging Face config.json (read as a ``family``) or a file of Megatron's arguments."""
    if is_program(path):
        return Model(kind=PROGRAM)
    expected = "a TOML model, a Hugging Face config.json or Megatron's arguments (.txt, .sh, .yaml)"
    arguments, parse = path.suffix in ARGUMENTS, files.toml
    if path.suffix == ".json":
        parse = files.json_of
    try:
        text = path.read_text(encoding="utf-8")
        table = {} if arguments else parse(text)
    except FileNotFoundError:
        raise InputError.of(str(path), "", "no such file", expected) from None
    except (OSError, ValueError) as error:
        raise InputError.of(str(path), "", str(error), expected) from None
    if path.suffix == ".json":
        from prestep.workloads.models.hugging_face import translate

        table = translate(table, str(path), family)
    elif arguments:
        from prestep.workloads.arguments.megatron import sections_of

        table = sections_of(text, str(path)).get("model", {})
    section, mistakes = strict.build(Model, table, str(path), "", {})
    expected = "the model's own keys, beginning with kind"
    mistakes += [
        Mistake(str(path), key, "a reference", expected)
        for key in ("name", "file")
        if getattr(section, key) is not None
    ]
    InputError.check(mistakes)
    return section


def _named(name: str, where: str) -> Path:
    file = data_files.file(MODELS, "models", name) if name in model_names() else None
    if file is None:
        raise InputError(unknown(where, "model.name", name, model_names()))
    return file


def _complete(section: Model, name: str, where: str) -> ModelSpec:
    """`section` with defaults for what was not said, checked."""
    kind = section.kind
    if kind is None:
        kinds = f"one of {', '.join(_REQUIRED)}"
        raise InputError.of(where, "model.kind", "nothing", kinds)
    if section.layer_pattern and section.layers is None:
        section = replace(section, layers=len(section.layer_pattern))
    mistakes = [
        Mistake(where, f"model.{key}", "nothing", f"a value: a {kind} needs it")
        for key in _REQUIRED[kind]
        if getattr(section, key) is None
    ]
    InputError.check(mistakes)
    complete = {
        "transformer": _transformer,
        "vit": _vit,
        "mlp": _mlp,
        "resnet": _resnet,
        PROGRAM: lambda *_: (ModelSpec(name=name, kind=PROGRAM), []),
    }[kind]
    spec, mistakes = complete(section, name, where)
    mistakes += checks.foreign(section, spec, where)
    InputError.check(mistakes)
    return spec


#: Keys of compressed attention and of residual streams.
_COMPRESSED_KEYS = """
compress_ratios streams hash_layers index_heads index_head_dim index_topk o_groups o_lora_rank
"""


def _transformer(s: Model, name: str, where: str) -> tuple[ModelSpec, list[Mistake]]:
    others = any(getattr(s, key) for key in _COMPRESSED_KEYS.split())
    latent = s.kv_lora_rank and s.index_topk and not s.compress_ratios
    kind = indexed if latent else compressed
    said = {entry.name: getattr(s, entry.name) for entry in fields(s)}
    decided = {
        "name": name,
        "file": None,
        "family": None,
        "norm": s.norm or "rms",
        "norm_bias": s.norm_bias if s.norm_bias is not None else s.norm == "layer",
        "positions": s.positions or "rope",
        **_attention(s),
        **_feed_forward(s),
        **hybrid.keys_of(s),
        **(kind.keys_of(s) if others else {}),
    }
    spec = ModelSpec(**said | decided)
    mistakes = checks.numbers(s, spec, where) + checks.parts(s, spec, where)
    wrong = [*hybrid.wrong_keys(s, spec)]
    wrong += kind.wrong_keys(s, spec) if others else ()
    mistakes += [
        Mistake(where, f"model.{key}", found, expected)
        for key, found, expected in wrong
    ]
    return spec, mistakes


def _vit(s: Model, name: str, where: str) -> tuple[ModelSpec, list[Mistake]]:
    """A vision transformer as timm's: layer norms, biases, GELU; its tokens are patches of a picture and one more."""
    decided: dict[str, Any] = {"gated": False, "bias": True, "norm": "layer"}
    decided |= {"image_size": s.image_size or 224, "classes": s.classes or 1000}
    plain = replace(s, kind="transformer", positions="none", **decided)
    spec, mistakes = _transformer(plain, name, where)
    if spec.image_size % spec.patch:
        expected = f"a divisor of image_size = {spec.image_size}"
        mistakes.append(Mistake(where, "model.patch", str(spec.patch), expected))
    return spec, mistakes


def _attention(s: Model) -> dict[str, Any]:
    """Heads, and their width: an equal part of the model's if it is not said."""
    heads = s.heads or 0
    head_dim = s.head_dim or (s.hidden or 0) // heads
    return {
        "kv_heads": s.kv_heads or heads,
        "head_dim": head_dim,
        "v_head_dim": (s.v_head_dim or head_dim) if s.kv_lora_rank else 0,
        "qkv_bias": s.qkv_bias if s.qkv_bias is not None else bool(s.bias),
        "out_bias": s.out_bias if s.out_bias is not None else bool(s.bias),
    }


def _feed_forward(s: Model) -> dict[str, Any]:
    """The feed-forward network, gated if nothing is said, and its experts."""
    gated = s.gated if s.gated is not None else True
    experts = s.experts or 0
    return {
        "gated": gated,
        "activation": s.activation or ("silu" if gated else "gelu"),
        "experts_per_token": (s.experts_per_token or 1) if experts else 0,
        "moe_ffn": (s.moe_ffn or s.ffn or 0) if experts else 0,
    }


def _mlp(s: Model, name: str, where: str) -> tuple[ModelSpec, list[Mistake]]:
    sizes, few = s.sizes or (), "two widths or more, input to output"
    mistake = Mistake(where, "model.sizes", str(list(sizes)), few)
    said: dict[str, Any] = {"sizes": sizes, "activation": s.activation or "relu"}
    spec = ModelSpec(name=name, kind="mlp", bias=s.bias is not False, **said)
    return spec, [] if len(sizes) > 1 else [mistake]


def _resnet(s: Model, name: str, where: str) -> tuple[ModelSpec, list[Mistake]]:
    only = "50: ResNet-50 is the only one"
    mistake = Mistake(where, "model.layers", str(s.layers), only)
    said: dict[str, Any] = {"image_size": s.image_size or 224}
    said["classes"] = s.classes or 1000
    spec = ModelSpec(name=name, kind="resnet", layers=50, activation="relu", **said)
    return spec, [] if s.layers == 50 else [mistake]
