"""A GPU that is not there: tensors "on cuda" are fake ones on PyTorch's device for backends written in Python.

Programs see devices called "cuda" and a `torch.cuda` that answers. Inside, tensors lie on a backend of our own: PyTorch
can run autograd for it without a driver, which it can not for "cuda".
"""

from __future__ import annotations

import copyreg
import itertools
from types import SimpleNamespace
from typing import Any

import torch
from torch._library import infer_schema
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.nested._internal.nested_int import NestedIntNode
from torch.nested._internal.nested_tensor import NestedTensor
from torch.optim.optimizer import _foreach_supported_types as OPTIMIZED
from torch.utils import backend_registration
from torch.utils._foreach_utils import _foreach_supported_types as LISTED

from prestep.workloads.capture.record import (
    attention,
    autocast,
    composites,
    cuda,
    cuda_shapes,
    typed,
    values,
)
from prestep.workloads.capture.record.streams import SHOWN

NAME = "standin"
backend_registration._setup_privateuseone_for_python_backend(
    NAME, backend_module=backend_registration._DummyBackendModule()
)
INSIDE = torch.device(NAME, 0)
Device = torch.device  # PyTorch's own, before another takes its name


def inward(device: Any) -> Any:
    """The device inside for one that a program names; other values as they are."""
    if isinstance(device, Device):
        return INSIDE if device.type in ("cuda", NAME) else device
    if isinstance(device, str) and device.startswith("cuda"):
        return INSIDE
    return device


def outward(device: torch.device) -> torch.device:
    return SHOWN if device.type == NAME else device


def install(properties: SimpleNamespace, gpus: int, local_rank: int) -> FakeTensorMode:
    """Puts the stand-in in CUDA's place, for this process; returns the mode in which its tensors live."""
    # PyTorch's compiler looks at torch.cuda as it is imported, here: before that answers for a GPU.
    fake = FakeTensorMode(allow_non_fake_inputs=True, allow_fallback_kernels=False)
    # Constants are made on the host and moved as a program would, not by C++ on a device that is not there.
    FakeTensorMode.avoid_device_init = property(lambda mode: True)
    torch._C._set_only_lift_cpu_tensors(True)
    _import_without_extensions()
    _own_kernels()
    _rename_devices()
    cuda.answer(properties, gpus, local_rank)
    autocast.install(NAME)
    cuda_shapes.install()
    attention.install()
    composites.install((properties.major, properties.minor))
    values.keep_plain()
    _take_lists()
    _number_lengths()
    _pin_nothing()
    _move_modules_by_content()
    return fake


#: Operators that CUDA has kernels for, while other backends run them as several operators.
WHOLE = (
    "silu_backward",
    "mish_backward",
    "_fused_rms_norm",
    "_fused_rms_norm_backward",
)
_library = torch.library.Library("aten", "IMPL")


def _own_kernels() -> None:
    """Operators that CUDA runs whole are whole here."""

    def never(*_: Any) -> Any:
        raise NotImplementedError("a fake tensor's operators do not compute")

    for name in WHOLE:
        _library.impl(name, never, "PrivateUse1")


def _pin_nothing() -> None:
    """Memory of the host counts as pinned; a data loader asks for that on a thread of its own."""
    torch.Tensor.pin_memory = lambda tensor, *_: tensor


def _take_lists() -> None:
    """Optimizers and clipping take lists of tensors by one operation: as of plain ones, so of fake ones."""
    for supported in (OPTIMIZED, LISTED):
        supported.append(FakeTensor)


def _number_lengths() -> None:
    """Nested tensors of the same offsets have the same rows: a number stands for these, as for real offsets."""
    numbers = itertools.count()

    def nested_int(offsets: Any, *, coeff: int = 1) -> Any:
        if not hasattr(offsets, "_rows"):
            offsets._rows = torch.SymInt(NestedIntNode(next(numbers), coeff))
        return offsets._rows

    FakeTensor.get_nested_int = nested_int


def _import_without_extensions() -> None:
    """A package is imported though its compiled operators can not be loaded, as torchvision's for CUDA."""
    register = torch.library.register_fake

    def registered(operator: Any, *arguments: Any, **options: Any) -> Any:
        # PyTorch looks at the module that registers: that of our caller.
        level = options.pop("_stacklevel", 1) + 1
        decorate = register(operator, *arguments, **options, _stacklevel=level)

        def decorated(function: Any) -> Any:
            try:
                return decorate(function)
            except RuntimeError as error:
                if "does not exist" not in str(error):
                    raise
                return function

        return decorated if callable(decorate) else decorate

    torch.library.register_fake = registered


def _made_inside(new: Any) -> Any:
    """A fake tensor's constructor (class, mode, content, device) that takes the device a program names."""

    def made(
        cls: Any, mode: Any, content: Any, device: Any, *others: Any, **options: Any
    ) -> Any:
        return new(cls, mode, content, inward(device), *others, **options)

    return made


class _Nobody:
    """No tensor is one."""


def _rename_devices() -> None:
    """Fake tensors inside say that they are on cuda."""
    # PyTorch 2.13 has one place where devices are made uniform, older releases have none.
    normalize = getattr(FakeTensor, "_normalize_fake_device", None)

    def device(tensor: FakeTensor) -> torch.device:
        if tensor.fake_mode.in_kernel_invocation:
            return torch.device("meta")
        return outward(tensor.fake_device)

    kind = torch.Tensor.type

    def named_type(tensor: torch.Tensor, dtype: Any = None, **options: Any) -> Any:
        if dtype is None:
            return kind(tensor).replace(f"torch.{NAME}", "torch.cuda")
        if (older := typed.named(dtype)) is not None:
            return tensor.to("cuda", older.dtype)
        return kind(tensor, dtype, **options)

    torch.Tensor.type = named_type
    # Programs that ask whether a tensor is fake would build what they need for tracing, such as whole masks.
    torch._subclasses.FakeTensor = _Nobody
    if normalize is None:
        FakeTensor.__new__ = staticmethod(_made_inside(FakeTensor.__new__))
    else:
        FakeTensor._normalize_fake_device = staticmethod(lambda d: normalize(inward(d)))
    FakeTensor.device = property(device)
    # Its C++ refuses streams that are none of PyTorch's own. It delays when memory is used again, not when it counts as
    # free.
    torch.Tensor.record_stream = lambda tensor, stream: None
    torch.Tensor.is_cuda = property(lambda tensor: tensor.device.type == "cuda")
    torch.Tensor.get_device = lambda tensor: (
        -1 if tensor.device.type == "cpu" else tensor.device.index
    )


def _move_modules_by_content() -> None:
    """`module.to(...)` gives parameters that PyTorch would not mix with fake ones their new content all the same.

    They stay the same objects, which optimizers and others may hold already.
    """
    apply = torch.nn.Module._apply

    def moved_to(
        module: torch.nn.Module, function: Any, recurse: bool = True
    ) -> torch.nn.Module:
        done: dict[int, tuple[Any, Any]] = {}
        for part in module.modules() if recurse else (module,):
            if any(_is_wrapper(p) for p in part._parameters.values()):
                apply(part, function, False)
                continue
            for name, parameter in part._parameters.items():
                if parameter is not None and not _is_later(parameter, function):
                    part._parameters[name] = _moved(parameter, function, done)
            for name, buffer in part._buffers.items():
                if buffer is not None and not _is_later(buffer, function):
                    part._buffers[name] = function(buffer)
        return module

    torch.nn.Module._apply = moved_to


def _is_later(parameter: Any, function: Any) -> bool:
    """Whether a weight has no shape yet, as those of `LazyLinear`: it is made later, where it would be now."""
    if not torch.nn.parameter.is_lazy(parameter):
        return False
    like = function(torch.empty(0, dtype=parameter.dtype))

    def materialize(shape: Any, device: Any = None, dtype: Any = None) -> None:
        del device
        # Its class changes with the content.
        parameter.data = like.new_empty(shape, dtype=dtype)

    parameter.materialize = materialize
    return True


def _is_wrapper(parameter: Any) -> bool:
    """A tensor made of other tensors, such as DTensor."""
    return (
        parameter is not None
        and not isinstance(parameter, FakeTensor)
        and torch.utils._python_dispatch.is_traceable_wrapper_subclass(parameter)
    )


def _moved(parameter: Any, function: Any, done: dict[int, tuple[Any, Any]]) -> Any:
    """A parameter with its content where `function` puts it; one that several modules share is moved once."""
    key = id(parameter)
    if key not in done:
        with torch.no_grad():
            content = function(parameter)
        same = content is parameter
        done[key] = parameter, parameter if same else _with_content(parameter, content)
    return done[key][1]


def _with_content(parameter: Any, content: torch.Tensor) -> Any:
    """The parameter itself, or another one where a graph of autograd holds its old content."""
    try:
        parameter.data = content
    except RuntimeError:
        new = torch.nn.Parameter(content, parameter.requires_grad)
        # What the program hung on it; not where a fake tensor says it lies.
        new.__dict__.update({**parameter.__dict__, **new.__dict__})
        return new
    return parameter


_Device = torch.device


class _Kind(type):
    """The class of what stands in `torch.device`'s place: it makes PyTorch's own devices, and knows them."""

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, _Device)

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        number = arguments[0] if len(arguments) == 1 else None
        if isinstance(number, int) and not isinstance(number, bool):
            return _Device("cuda", number)
        return _Device(*arguments, **options)


def name_devices_by_number() -> None:
    device = _Kind("device", (), {"__module__": "torch", "__doc__": _Device.__doc__})
    torch.device = device
    infer_schema.SUPPORTED_PARAM_TYPES[device] = "Device"
    copyreg.pickle(_Device, lambda made: (device, (str(made),)))


_content, _device = torch._C.TensorBase.data, torch._C.TensorBase.device


def put_content() -> None:
    """A tensor takes a fake one's place where the program gives it that content: PyTorch would not mix the two."""
    torch.Tensor.data = property(_content_of, _put_content)
    for wrapper in (DTensor, NestedTensor):
        wrapper.device = property(lambda t: outward(_device.__get__(t)))
    torch.Tensor._make_wrapper_subclass = staticmethod(_wrap_inside)


_wrap = torch.Tensor._make_wrapper_subclass


def _wrap_inside(*arguments: Any, **options: Any) -> Any:
    """A tensor made of others lies where they do; C++ is told of no GPU."""
    options = {name: inward(value) for name, value in options.items()}
    return _wrap(*(inward(each) for each in arguments), **options)


def _content_of(tensor: torch.Tensor) -> Any:
    return _content.__get__(tensor)


def _put_content(tensor: torch.Tensor, content: torch.Tensor) -> None:
    if _is_mixable(tensor, content):
        _content.__set__(tensor, content)
        return
    new: Any = content.detach().requires_grad_(tensor.requires_grad)
    if isinstance(tensor, torch.nn.Parameter):
        new = torch.nn.Parameter(new, tensor.requires_grad)
    torch._C._swap_tensor_impl(tensor, new)
    tensor.__class__, tensor.__dict__ = type(new), {**tensor.__dict__, **new.__dict__}


def _is_mixable(tensor: torch.Tensor, content: torch.Tensor) -> bool:
    """Whether PyTorch can put the content of one in the other's place: both real, or both fake and on one device."""
    fake = isinstance(tensor, FakeTensor), isinstance(content, FakeTensor)
    return fake[0] == fake[1] and (not fake[0] or tensor.device == content.device)
