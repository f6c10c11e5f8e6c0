"""The files of one job: which of them is the recipe, what the others are, and which formats have a use for them.

A format lists the kinds of files that it reads beside its own in ``BESIDE``. A file that nobody reads is a mistake: an
FSDP job whose configuration of FSDP was dropped would be predicted as another job.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from prestep.sim.errors import InputError, Mistake
from prestep.workloads.recipes import _models
from prestep.workloads.recipes._documents import Document, beneath, text_of
from prestep.workloads.recipes._reading import Recipe, Setting, shown
from prestep.workloads.recipes._rules import OFF, words_of

#: Kinds of files beside a recipe.
ENGINE, MODEL, LAUNCH, ARGUMENTS = "engine", "model", "launch", "arguments"
PARTS = (ENGINE, MODEL, LAUNCH, ARGUMENTS)
#: How an error calls them.
NAMES = {
    ENGINE: "a configuration of DeepSpeed",
    MODEL: "a model's config.json",
    LAUNCH: "a configuration of accelerate",
    ARGUMENTS: "TrainingArguments",
}
#: Formats whose files may also lie beside another's, those that say more of a job first.
GENERAL = ("launch", "hugging_face", "deepspeed")


@dataclass(frozen=True)
class Job:
    """The files of a job.

    Attributes
    ----------
    recipe : Document
        The file that says most of it: a trainer's own.
    format : str
        Its format.
    beside : tuple of (Document, str)
        The other files, with what each of them is: one of `PARTS`, or the name of its format.
    """

    recipe: Document
    format: str
    beside: tuple[tuple[Document, str], ...]

    def companions(self, kinds: Sequence[str]) -> tuple[Document, ...]:
        """The other files of some kinds, in the order of the kinds."""
        return tuple(
            document for kind in kinds for document, own in self.beside if own == kind
        )


def sort(files: Sequence[tuple[Document, str]]) -> Job:
    """Finds the recipe among the files of a job, each with its format; their order does not matter."""
    recipe, form = min(files, key=lambda one: _rank(*one))
    others = [(one, name) for one, name in files if one is not recipe]
    return Job(recipe, form, tuple((one, part_of(one, name)) for one, name in others))


def part_of(document: Document, name: str) -> str:
    """What a file of a format is beside a recipe: one of `PARTS`, else the format itself."""
    if name == "deepspeed":
        return ENGINE
    if name != "hugging_face":
        return name
    if "model_type" in document.entries:
        return MODEL
    return LAUNCH if "distributed_type" in document.entries else ARGUMENTS


def _rank(document: Document, name: str) -> int:
    """Orders files by how much they say of a job: a trainer's own first, a model alone last."""
    part = part_of(document, name)
    order = (GENERAL[0], ARGUMENTS, LAUNCH, ENGINE, MODEL)
    return order.index(part) + 1 if part in order else 0


def check(job: Job, takes: Sequence[str]) -> None:
    """Refuses files beside a recipe that its format does not read, and a second one of a kind that there is one of.

    Raises
    ------
    InputError
        With a mistake for each file.
    """
    allowed = (*takes, *(() if MODEL in takes else (MODEL,)))
    words = ", ".join(NAMES[kind] for kind in allowed)
    wrong: list[Mistake] = []
    for document, kind in job.beside:
        where = str(document.path)
        if kind not in allowed:
            what = NAMES.get(kind, f"a recipe of {kind}")
            expected = (
                f"beside a recipe of {job.format} ({job.recipe.path.name}): {words}"
            )
            wrong.append(Mistake(where, "", what, expected, "nothing in it is used"))
        elif kind != ARGUMENTS and document is not job.companions((kind,))[0]:
            wrong.append(Mistake(where, "", f"{NAMES[kind]}, a second one", "one"))
    InputError.check(wrong)


def complete(job: Job, recipe: Recipe, folder: Path) -> None:
    """Gives the recipe of a job paths from the folder of its first file, and the model of a config.json.

    Formats that read no config.json take the model from it where they know none.

    Raises
    ------
    InputError
        If the recipe says its model itself.
    """
    settings, own = recipe.settings, job.recipe.path.parent
    file = settings.get("model.file")
    if file is not None and own != folder:
        settings["model.file"] = replace(file, value=str((own / file.value).absolute()))
    for config in job.companions((MODEL,)):
        path = str(config.path.absolute())
        if "model" in recipe.lacking:
            made = Setting("model.file", path, "config.json", str(config.path))
            settings["model.file"] = made
        elif file is None or str(file.value) != path:
            found, expected = NAMES[MODEL], "no second model: the recipe names one"
            hint = "--set model.file=FILE replaces it"
            raise InputError.of(str(config.path), "", found, expected, hint)


def named(
    draft: Recipe,
    said: Document,
    key: str,
    given: Sequence[Document],
    read: Callable[[Path, str], Document],
) -> list[Document]:
    """The file that a key of a recipe names, or the one that was given in its place.

    A file of another name stands for the one that is named only where that one is missing: with both there, nobody
    knows which of them the job uses.
    """
    name = said.get(key)
    if not isinstance(name, str) or not name:
        return list(given)
    there = beneath(said.path, name)
    strange = [one for one in given if one.path.name != Path(name).name]
    if strange and there is not None:
        expected = f"{strange[0].path.name}, which was given beside it"
        hint = f"change {key} in the recipe, or leave --with out"
        draft.wrong(said, key, shown(name), expected, hint)
    elif strange:
        draft.assume(
            f"{key} = {name} is not there: {strange[0].path.name} stands for it"
        )
    if given:
        return list(given)
    if there is not None:
        return [read(there, text_of(there))]
    expected = "a file beside this one, or --with FILE"
    draft.wrong(said, key, shown(name), expected)
    return []


#: Words of keys that only such a training has.
KEYS = frozenset(
    ("vision", "image", "images", "video", "audio", "multimodal", "pixels", "vlm")
)
#: Words of keys whose values name a model, its class or its data's form.
NAMING = frozenset(
    ("model", "target", "template", "recipe", "processor", "architecture", "class")
)
#: Names of models that see or hear, and of their classes, templates and programs.
TOWERS = re.compile(
    r"(?:^|[^a-z])(?:vlm?|vision|omni|audio|multimodal|llava\w*|pixtral|paligemma\d?|internvl\w*|smolvlm\w*|idefics\w*)"
    r"(?:$|[^a-z])|vision2seq|imagetexttotext|conditionalgeneration|forvlm|qwen[\d.]*_?vl"
)
#: Arguments and programs of scripts.
SCRIPT = re.compile(
    r"\b(pretrain_vlm|pretrain_vision\w*|train_vlm|--vision-[\w-]+|--img-[hw])\b"
)
#: What a Python recipe that trains such a model says in its function or its file's name.
PYTHON = re.compile(r"(?:^|_)(?:vl|vlm|omni|audio|vision)(?:$|_)")
WHAT = "the part of the model that sees or hears"


def check_text_model(recipe: Recipe, document: Document) -> None:
    """Notes that a file trains more than a text model: among what is not simulated where nobody knows how much more."""
    for key, found in islice(_signs(document), 1):
        if weights := _models.tower_of(recipe):
            recipe.leave_out_tower(weights)
        if recipe.towers:
            return
        hint = f"{WHAT}; --lenient predicts its text model alone"
        lost = Mistake(document.place(key), key, found, "a text model", hint)
        recipe.lost.append(lost)


def _signs(document: Document) -> Iterator[tuple[str, str]]:
    """Keys, with what they say, that only such a training has."""
    for key, entry in document.entries.items():
        words, text = set(words_of(key)), str(entry.value).lower()
        if entry.value is None or text in OFF:
            continue
        named = isinstance(entry.value, str) and TOWERS.search(text)
        if words & KEYS or (words & NAMING and named):
            yield key, shown(entry.value)
    if document.kind == "shell" and (word := SCRIPT.search(document.text)):
        yield word[1], "an argument or a program"
    names = (document.part, document.path.stem, document.path.parent.name)
    if document.kind == "python":
        yield from (("", name) for name in names if PYTHON.search(name.lower()))
