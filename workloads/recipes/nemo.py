"""NeMo's recipes: Python with nemo_run (NeMo 2), or YAML of its launcher (NeMo 1); nothing is imported."""

from __future__ import annotations

from prestep.workloads.recipes import _core, _core_model, _python
from prestep.workloads.recipes._documents import Document
from prestep.workloads.recipes._reading import Recipe

#: How people know such a recipe.
LOOKS = "Python that imports nemo.collections.llm, or YAML with trainer.devices and model.tensor_model_parallel_size"
#: distributed_fused_adam_with_cosine_annealing and bf16_mixed (nemo/collections/llm/recipes).
USUAL = {"parallel.data_parallel": "zero1", "megatron.main_grads": "fp32"}
#: The function that a file of NeMo's is for.
FUNCTIONS = ("pretrain_recipe",)


def recognise(document: Document) -> bool:
    if document.kind == "python":
        return "nemo.collections" in document.text or "nemo_run" in document.text
    keys = document.entries
    return (
        document.kind == "yaml"
        and "trainer.devices" in keys
        and any(key.startswith("model.") for key in keys)
    )


def read(document: Document, beside: tuple[Document, ...] = ()) -> Recipe:
    """What the function or the file sets."""
    draft = Recipe("nemo", str(document.path))
    open_ones: tuple[str, ...] = ()
    if document.kind == "python":
        document, open_ones = _python.read_recipe(document, document.part, FUNCTIONS)
    draft.set_all(USUAL)
    draft.assume(
        "the distributed optimizer, gradients in fp32, bf16, where nothing else is said"
    )
    _core.read(draft, document)
    if document.kind == "yaml":
        _launcher(draft, document)
    draft.hosts = draft.count(document, "trainer.num_nodes")
    stated = ("trainer.devices", "trainer.num_gpus_per_node")
    per_host = next((draft.count(document, k) for k in stated if document.get(k)), None)
    if draft.hosts and per_host:
        draft.gpus = draft.hosts * per_host
    configs = [document.get(key) for key in ("model.config", "model")]
    names = [word for text in configs for word in _python.words(text)]
    _core_model.model(draft, document, [*names, document.path.stem], "model")
    _core.adapters(draft, document)
    draft.unknown += open_ones
    return draft


def _launcher(draft: Recipe, document: Document) -> None:
    """NeMo 1: the distributed optimizer by its name."""
    name = str(document.get("model.optim.name", "distributed_fused_adam"))
    way = "zero1" if name.startswith(("distributed", "mcore")) else "ddp"
    draft.set("parallel.data_parallel", way, "model.optim.name", document)
    if way == "ddp":
        draft.drop("megatron.overlap_param_gather")
