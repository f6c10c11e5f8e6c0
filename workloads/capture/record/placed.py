"""Tensors whose content is put in another place: `parameter.data = parameter.data.cuda()`."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor

from prestep.workloads.capture.record.stand_in import outward

_content, _device = torch._C.TensorBase.data, torch._C.TensorBase.device


def install() -> None:
    """A tensor takes a fake one's place where the program gives it that content: PyTorch would not mix the two."""
    torch.Tensor.data = property(_get, _set)
    DTensor.device = property(lambda t: outward(_device.__get__(t)))


def _get(tensor: torch.Tensor) -> Any:
    return _content.__get__(tensor)


def _set(tensor: torch.Tensor, content: torch.Tensor) -> None:
    if _alike(tensor, content):
        _content.__set__(tensor, content)
        return
    new: Any = content.detach().requires_grad_(tensor.requires_grad)
    if isinstance(tensor, torch.nn.Parameter):
        new = torch.nn.Parameter(new, tensor.requires_grad)
    torch._C._swap_tensor_impl(tensor, new)
    tensor.__class__, tensor.__dict__ = type(new), {**tensor.__dict__, **new.__dict__}


def _alike(tensor: torch.Tensor, content: torch.Tensor) -> bool:
    """Whether PyTorch can put the content of one in the other's place: both real, or both fake and on one device."""
    fake = isinstance(tensor, FakeTensor), isinstance(content, FakeTensor)
    return fake[0] == fake[1] and (not fake[0] or tensor.device == content.device)
