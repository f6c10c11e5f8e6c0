"""Opens files of trainers as recipes: their tables, on the cluster that the command line or the recipe names.

The number of data-parallel replicas is what the GPUs leave.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prestep.sim import files
from prestep.sim.errors import InputError, Mistake
from prestep.sim.spec.openers import Completed
from prestep.sim.strict import keys_of
from prestep.topologies import cluster_names, load_cluster, several_hosts
from prestep.topologies.fabric import Fabric
from prestep.workloads import recipes
from prestep.workloads.job.pytorch import PyTorch
from prestep.workloads.models.model import MODELS, read_model
from prestep.workloads.recipes import _documents
from prestep.workloads.recipes._documents import Document
from prestep.workloads.recipes._reading import Recipe

ENDINGS = (".yaml", ".yml", ".json", ".sh", ".txt", ".args", ".py", ".toml")
FILES = "a recipe"
NEEDS_CLUSTER = True
OPTIONS = {
    "recipe.with": {
        "multiple": True,
        "metavar": "FILE",
        "help": "A recipe: one more file of the job. May be repeated.",
    },
    "recipe.function": {
        "metavar": "NAME",
        "help": "A recipe in Python: which function.",
    },
    "recipe.lenient": {
        "is_flag": True,
        "help": "A recipe: leave out what is not simulated instead of refusing it.",
    },
}
#: The table of a file that is a recipe.
TABLE = "recipe"
OPTION, WITH = "recipe.", "recipe.with"
FUNCTION, LENIENT = "recipe.function", "recipe.lenient"
#: Keys that say which cluster it is.
PLACES = ("cluster.name", "cluster.file")
#: GPUs and number formats whose products need no transposed operands.
BLACKWELL, QUANTIZED = re.compile(r"g?b[1-3]00"), ("fp8", "nvfp4")


@dataclass(frozen=True, kw_only=True)
class Placed(Completed):
    """A recipe on a cluster."""

    recipe: Recipe


def opens(path: Path) -> dict[str, Any] | None:
    """The file of a recipe, to be read with its cluster; None for TOML that no trainer writes."""
    if not path.exists():
        return None
    if path.suffix.lower() != ".toml":
        return {TABLE: recipes.document_of(path)}
    document = recipes.of_tables(path, files.toml(files.written_text(path)))
    return None if document is None else {TABLE: document}


def completed(
    tables: Mapping[str, Any], path: Path, overrides: Sequence[str]
) -> Placed:
    """The tables of a recipe, complete.

    Raises
    ------
    InputError
        With every mistake of the recipe, and all that changes a step and is not simulated unless that is allowed.
    """
    own = [item for item in overrides if _key(item).startswith(OPTION)]
    others = tuple(item for item in overrides if item not in own)
    beside, lenient, function = _told(own, path)
    document = replace(tables[TABLE], part=function)
    recipe = _read(_documents.changed(document, _changes(own)), beside)
    said = _last(others)
    mistakes = [*recipe.mistakes, *(() if lenient else recipe.missed(said))]
    mistakes += [one for key, one in recipe.lacking.items() if not _says(said, key)]
    made = _without_model(recipe.tables()) if _names_model(said) else recipe.tables()
    _leave_out_idle(made, recipe, said)
    placed, wrong_place, notes = _placed(made, recipe, said, path.parent)
    mistakes += wrong_place
    InputError.check(mistakes)
    left = tuple(item for item in others if not _used(item))
    notes = [*recipe.notes(lenient, said), *notes]
    return Placed(placed, left, tuple(notes), recipe=recipe)


def _last(overrides: Sequence[str]) -> dict[str, str]:
    """The last value of each key; a cluster's name takes the place of its file, and the other way round."""
    said: dict[str, str] = {}
    for item in overrides:
        if _key(item) in PLACES:
            said = {key: value for key, value in said.items() if key not in PLACES}
        said[_key(item)] = _value(item)
    return said


def _used(override: str) -> bool:
    """Whether a change says where the job runs, which the tables have by now; a wrong number is told of later."""
    key = _key(override)
    counts = key in ("cluster.hosts", "cluster.gpus")
    return key in PLACES or (
        counts and _number({key: _value(override)}, key) is not None
    )


def unchanged(tables: Mapping[str, Any], overrides: Sequence[str]) -> tuple[str, ...]:
    """Overrides without which a recipe is no scenario: where it runs, and what it does not say."""
    needed = {*_read(tables[TABLE], _told_files(overrides)).lacking}

    def belongs(key: str) -> bool:
        model = key.startswith("model.") and "model" in needed
        return key.startswith((OPTION, "cluster.")) or model or key in needed

    places: dict[str, str] = {}  # the first of each key: a second is a change
    for item in overrides:
        if belongs(key := _key(item)):
            one = PLACES[0] if key in PLACES else item if key == WITH else key
            places.setdefault(one, item)
    return tuple(places.values())


def _told_files(overrides: Sequence[str]) -> tuple[str, ...]:
    return tuple(_value(item) for item in overrides if _key(item) == WITH)


def _key(override: str) -> str:
    return override.partition("=")[0].strip()


def _value(override: str) -> str:
    return override.partition("=")[2].strip().strip("\"'")


def _told(own: Sequence[str], path: Path) -> tuple[tuple[str, ...], bool, str]:
    """Further files, whether what is not simulated is left out, and the function that is meant."""
    said = {
        key: [_value(i) for i in own if _key(i) == key]
        for key in (WITH, LENIENT, FUNCTION)
    }
    lenient = (said[LENIENT] or ["false"])[-1].lower()
    if lenient not in ("true", "false"):
        raise InputError.of(str(path), LENIENT, lenient, "true or false")
    return tuple(said[WITH]), lenient == "true", (said[FUNCTION] or [""])[-1]


def _changes(own: Sequence[str]) -> dict[str, str]:
    """The recipe's own keys that the command line changes: `recipe.model.context_parallel_size=2`."""
    return {
        _key(item).removeprefix(OPTION): _value(item)
        for item in own
        if _key(item) not in (WITH, LENIENT, FUNCTION)
    }


def _read(document: Document, beside: Sequence[str]) -> Recipe:
    return recipes.read(document, [recipes.document_of(Path(file)) for file in beside])


def _names_model(said: Mapping[str, str]) -> bool:
    return any(f"model.{key}" in said for key in ("name", "file", "kind"))


def _says(said: Mapping[str, str], key: str) -> bool:
    """Whether the command line says a key, or which model it is."""
    of_model = key == "model" or key.startswith("model.")
    return key in said or (of_model and _names_model(said))


def _leave_out_idle(
    tables: Mapping[str, dict[str, Any]], recipe: Recipe, said: Mapping[str, str]
) -> None:
    """Drops a trainer's defaults without a part in the step, which nobody wants to be warned of.

    Those for experts where the model has none, and dropout of attention that writes no weights.
    """
    model, megatron = tables.get("model", {}), tables.get("megatron", {})
    unnamed = "kind" in model and not any(key.startswith("model.") for key in said)
    idle = ("megatron.moe_",) if unnamed and not model.get("experts") else ()
    attention = said.get("megatron.attention", megatron.get("attention"))
    if attention != "unfused":
        idle = (*idle, "megatron.attention_dropout")
    for key, setting in recipe.settings.items():
        if setting.said == "default" and key.startswith(idle):
            megatron.pop(key.partition(".")[2], None)


def _without_model(tables: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Without the recipe's model: another one was named."""
    return {name: keys for name, keys in tables.items() if name != "model"}


def _placed(
    tables: dict[str, dict[str, Any]],
    recipe: Recipe,
    said: Mapping[str, str],
    folder: Path,
) -> tuple[dict[str, dict[str, Any]], list[Mistake], list[str]]:
    """The tables with [cluster] and the replicas that fill it."""
    stated = _place(tables.get("cluster", {}), said)
    try:
        name = _cluster_of(stated, recipe, folder)
        hosts, gpus = _number(said, "cluster.hosts"), _number(said, "cluster.gpus")
        cluster, notes = _cluster(name, hosts, gpus, recipe)
    except InputError as error:
        return tables, list(error.mistakes), []
    placed = {name: dict(keys) for name, keys in tables.items()}
    placed["cluster"] = stated | cluster
    for section in ("parallel", "training"):
        placed.setdefault(section, {})
    _operands(placed, _fabric(name).gpu_model)
    if "parallel.imbalance" not in said:
        notes += _natural(placed, recipe)
    wrong: list[Mistake] = []
    if "parallel.dp" not in said:
        wrong = _replicate(placed, recipe, said, int(cluster["gpus"]))
    return placed, wrong, notes


def _place(own: Mapping[str, Any], said: Mapping[str, str]) -> dict[str, Any]:
    """The recipe's [cluster], or the one of the command line."""
    told = {
        key.partition(".")[2]: value for key, value in said.items() if key in PLACES
    }
    kept = {k: value for k, value in own.items() if f"cluster.{k}" not in PLACES}
    return kept | told if told else dict(own)


def _cluster_of(stated: Mapping[str, Any], recipe: Recipe, folder: Path) -> str:
    """The name of a cluster, or the path of its file."""
    if "name" in stated:
        return str(stated["name"])
    if "file" in stated:
        return str(folder / str(stated["file"]))
    hint = "--cluster NAME or FILE (`prestep list clusters`)"
    raise InputError.of(recipe.where, "cluster", "nothing", "a cluster", hint)


def _operands(tables: dict[str, dict[str, Any]], gpu: str) -> None:
    """Blackwell's 8-bit products take operands of any layout; Hopper's need them written transposed as well."""
    training = tables.get("training", {})
    megatron = training.get("framework") == "megatron"
    if megatron and training.get("precision") in QUANTIZED and BLACKWELL.match(gpu):
        tables["megatron"] = {"fp8_transposes": False, **tables.get("megatron", {})}


#: Frameworks whose experts are simulated as balanced unless a load is said.
ROUTED = ("megatron", "automodel")
BALANCED = ("moe_force_load_balancing", "moe_pad_to_capacity")


def _natural(tables: dict[str, dict[str, Any]], recipe: Recipe) -> list[str]:
    """Marks experts that get what a router gives them, and tells the reader that balanced ones are simulated."""
    parallel, megatron = tables["parallel"], tables.get("megatron", {})
    model = tables.get("model", {})
    name = model.get("name")
    experts = model.get("experts") or (_experts_of(name) if name else 0)
    spread = parallel.get("ep", 1)
    routed = tables["training"].get("framework") in ROUTED and isinstance(spread, int)
    balanced = any(megatron.get(key) for key in BALANCED)
    stated = balanced or parallel.get("routing") == "consecutive"
    if not (experts and routed and spread > 1) or stated:
        return []
    parallel["natural_routing"] = True
    if "imbalance" in parallel:  # assumed for all routers of a kind (`_routers`)
        return []
    return [
        f"recipe ({recipe.format}): no key forces balanced experts, which are simulated: steps with natural routing "
        "took 1.0 to 1.6 times as long (three published ones), which the interval has; parallel.imbalance says a load"
    ]


def _experts_of(name: str) -> int:
    file = MODELS / f"{name}.toml"
    return read_model(file).experts or 0 if file.is_file() else 0


def _number(said: Mapping[str, str], key: str) -> int | None:
    """A whole number of the command line; a wrong one is told of where the scenario is read."""
    text = said.get(key, "")
    return int(text) if text.isdecimal() and int(text) else None


def _cluster(
    name: str, hosts: int | None, gpus: int | None, recipe: Recipe
) -> tuple[dict[str, Any], list[str]]:
    """[cluster] with as many hosts and GPUs as are asked for: by the command line, else by the recipe."""
    one = _fabric(name)
    per_host = max(1, len(one.gpus) // len(one.hosts))
    notes: list[str] = []
    if hosts is None and gpus is None:
        gpus = recipe.gpus or (recipe.hosts or 0) * per_host or None
        hosts = math.ceil(gpus / per_host) if gpus else None
    elif hosts is None and gpus is not None:
        hosts = math.ceil(gpus / per_host)
    if hosts is None or hosts == len(one.hosts):
        return {"gpus": gpus or len(one.gpus)}, notes
    several = several_hosts(name)
    if several and hosts > 1 and len(one.hosts) == 1:
        notes.append(f"{name} is one host: {hosts} of them are {several}")
        return {
            "name": several,
            "hosts": hosts,
            "gpus": gpus or hosts * per_host,
        }, notes
    return {"hosts": hosts, "gpus": gpus or hosts * per_host}, notes


def _fabric(name: str) -> Fabric:
    """A cluster as its file has it; those that come with prestep are built once."""
    return _bundled(name) if name in cluster_names() else load_cluster(name)


@functools.lru_cache(maxsize=8)
def _bundled(name: str) -> Fabric:
    return load_cluster(name)


def _replicate(
    tables: Mapping[str, dict[str, Any]],
    recipe: Recipe,
    said: Mapping[str, str],
    gpus: int,
) -> list[Mistake]:
    """Sets the data-parallel replicas: those that the recipe insists on, or as many as the GPUs leave."""
    parallel = tables["parallel"]
    axes = {
        axis: _number(said, f"parallel.{axis}") or parallel.get(axis, 1)
        for axis in ("tp", "pp", "cp")
    }
    if any(not isinstance(count, int) or count < 1 for count in axes.values()):
        return []  # told of where the keys are read
    rest = math.prod(axes.values())
    stated = any(key in said for key in ("cluster.hosts", "cluster.gpus"))
    layout = " x ".join(f"{axis} {count}" for axis, count in axes.items())
    if recipe.replicas and not stated:
        tables["cluster"]["gpus"] = gpus = rest * recipe.replicas
    if wrong := _wrong_count(recipe, gpus, rest, layout):
        return [wrong]
    parallel["dp"] = dp = gpus // rest
    _run_again(tables["training"], dp)
    _alone(tables, axes)
    return []


def _wrong_count(recipe: Recipe, gpus: int, rest: int, layout: str) -> Mistake | None:
    """What is wrong with a number of GPUs: a replica takes `rest` of them, and a recipe may insist on its replicas."""
    found, copies = f"{gpus} GPUs", recipe.replicas
    if gpus % rest or gpus < rest:
        expected = f"a multiple of {rest} GPUs: {layout}"
        hint = f"--hosts N takes more hosts, or --set cluster.gpus={rest} so many GPUs"
        return Mistake(recipe.where, "cluster", found, expected, hint)
    if copies and copies * rest != gpus:
        expected = f"{rest * copies}: {layout} x dp {copies}"
        return Mistake(recipe.where, "cluster", found, expected, "the recipe says so")
    return None


def _run_again(training: dict[str, Any], dp: int) -> None:
    """A recipe whose pipeline takes a local batch at once runs it as often as its global batch needs."""
    whole, per_run = training.get("global_batch"), training.get("microbatches")
    if whole and per_run and "grad_accumulation" not in training:
        once = per_run * training.get("micro_batch", 1) * dp
        training["grad_accumulation"] = max(1, whole // max(1, once))


def _alone(tables: Mapping[str, dict[str, Any]], axes: Mapping[str, int]) -> None:
    """One replica shards nothing and reduces nothing; one rank splits no norms."""
    parallel = tables["parallel"]
    if parallel["dp"] * axes["cp"] == 1 and "data_parallel" in parallel:
        parallel["data_parallel"] = "none"
    if parallel.get("data_parallel") not in ("fsdp", "zero2", "zero3"):
        for key in keys_of(PyTorch, "fsdp"):
            tables.get("pytorch", {}).pop(key, None)
    if axes["tp"] == 1:
        parallel.pop("sequence_parallel", None)
    if parallel.get("fsdp_shards") == parallel["dp"] * axes["cp"]:
        del parallel["fsdp_shards"]
