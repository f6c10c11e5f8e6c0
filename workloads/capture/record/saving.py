"""Files of tensors that have no numbers: what a program saves and loads again has shapes and types alone."""

from __future__ import annotations

import importlib.util
import itertools
import json
from typing import Any, ClassVar

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.checkpoint import default_planner

from prestep.workloads.capture.record.describe import DTYPES
from prestep.workloads.capture.record.stand_in import inward
from prestep.workloads.capture.record.values import value_of

PRINTED = 1000  # elements of a tensor that is printed whole
Shape = tuple[int, ...]


class Saved:
    """The mode in which tensors from files live, and how many tensors were saved; one for the process."""

    fake: ClassVar[FakeTensorMode]
    count: ClassVar[int] = 0


def install(fake: FakeTensorMode) -> None:
    Saved.fake = fake
    FakeTensor.__reduce_ex__ = _reduced
    FakeTensor.__format__ = _formatted
    FakeTensor.__repr__ = _printed
    FakeTensor.tolist = lambda tensor: tensor.detach().cpu().tolist()
    FakeTensor.data_ptr = _address
    torch.UntypedStorage.data_ptr = _place(torch.UntypedStorage.data_ptr)
    if importlib.util.find_spec("safetensors") is not None:
        _write_safetensors_without_numbers()
    torch.serialization.add_safe_globals([rebuilt])
    # Of a distributed checkpoint every rank would write this rank's part: the parts do not make the whole.
    default_planner._validate_global_plan = lambda plans, metadata: True
    # Real files, too: what was saved from a GPU is loaded to the host, and moves from there as the program moves it.
    torch.serialization.register_package(0, lambda storage: None, _on_host)


def _on_host(storage: Any, location: str) -> Any:
    return storage if location.startswith("cuda") else None


def rebuilt(
    shape: Shape,
    strides: Shape,
    dtype: torch.dtype,
    device: str,
    requires_grad: bool,
    parameter: bool,
    value: torch.Tensor | None,
) -> torch.Tensor:
    """A tensor like one that was saved."""
    with Saved.fake:
        made = torch.empty_strided(shape, strides, dtype=dtype, device=inward(device))
    made._value = value
    if parameter:
        return torch.nn.Parameter(made, requires_grad)
    return made.requires_grad_(requires_grad)


def _reduced(tensor: FakeTensor, _: Any) -> tuple[Any, ...]:
    described = (
        tuple(tensor.shape),
        tuple(tensor.stride()),
        tensor.dtype,
        tensor.device.type,
        tensor.requires_grad,
        isinstance(tensor, torch.nn.Parameter),
        value_of(tensor),
    )
    Saved.count += 1
    return rebuilt, described


def _printed(tensor: FakeTensor, *, tensor_contents: Any = None) -> str:
    """As the program would print it: the host reads its numbers, those of large ones in part."""
    del tensor_contents
    if tensor.layout != torch.strided:
        return f"tensor(..., size={tuple(tensor.shape)})"
    shown = tensor.detach()
    while shown.numel() > PRINTED and shown.dim():
        shown = shown[0]
    text = repr(shown.cpu())[:-1]
    return f"{text}, device='{tensor.device}', size={tuple(tensor.shape)})"


def _formatted(tensor: FakeTensor, form: str) -> str:
    """A number in a text: the host reads it."""
    if tensor.dim() == 0:
        return format(tensor.item(), form)
    return format(repr(tensor), form)


# -- addresses, by which programs tell shared memory ---------------------------------------------------
DISTANCE = 1 << 40  # of two storages; none is as large
_numbers = itertools.count(1)


def _place(real: Any) -> Any:
    """Where a storage lies: those without numbers lie somewhere, each elsewhere."""

    def place(storage: torch.UntypedStorage) -> int:
        if storage.device.type != "meta":
            return int(real(storage))
        if not hasattr(storage, "_place"):
            storage._place = next(_numbers) * DISTANCE
        return int(storage._place)

    return place


def _address(tensor: FakeTensor) -> int:
    begin = tensor.storage_offset() * tensor.element_size()
    return int(tensor.untyped_storage().data_ptr() + begin)


# -- safetensors ---------------------------------------------------------------------------------------
def _name(dtype: torch.dtype) -> str:
    """As safetensors calls a type: BF16, F8_E4M3, I64."""
    own = DTYPES[dtype].replace("fp", "f")
    return own.replace("uint", "u").replace("int", "i").upper()


def _write_safetensors_without_numbers() -> None:
    import safetensors.torch  # of the program's own environment, where it has it

    write = safetensors.torch.save_file

    def save_file(
        tensors: dict[str, torch.Tensor], filename: Any, metadata: Any = None
    ) -> None:
        if any(isinstance(tensor, FakeTensor) for tensor in tensors.values()):
            _write_zeros(tensors, filename, metadata)
        else:
            write(tensors, filename, metadata)

    safetensors.torch.save_file = save_file


def _write_zeros(
    tensors: dict[str, torch.Tensor], filename: Any, metadata: Any
) -> None:
    """A file with holes where the numbers would be: it takes no room."""
    Saved.count += len(tensors)
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    begin = 0
    for name, tensor in tensors.items():
        end = begin + tensor.numel() * tensor.element_size()
        shape = list(tensor.shape)
        header[name] = {
            "dtype": _name(tensor.dtype),
            "shape": shape,
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(header).encode()
    with open(filename, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + begin)
