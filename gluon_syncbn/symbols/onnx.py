"""Write plain symbols as ONNX files, with MXNet's own exporter."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Iterator, Sequence, Tuple

import mxnet as mx
import numpy as np

from .folding import Arrays
from .graph import last_line

Shape = Tuple[int, ...]

# The newest that MXNet 1.9.1's exporter writes.
OPSET = 13

_INSTALL = "pip install 'gluon_syncbn[onnx]'"


def check_onnx() -> None:
    """Raise a ValueError if MXNet's exporter cannot use the installed package onnx."""
    try:
        import onnx
    except ImportError as error:
        raise ValueError(f"ONNX files need the package onnx ({error}): {_INSTALL}") from error
    try:
        import onnx.mapping
    except ImportError as error:
        raise ValueError(
            f"MXNet's exporter does not work with onnx {onnx.__version__}, which has no "
            f"onnx.mapping any more: {_INSTALL}"
        ) from error


def write_onnx(
    symbol: mx.sym.Symbol, args: Arrays, aux: Arrays, file: str | Path, shapes: Sequence[Shape]
) -> None:
    """Write a symbol of plain MXNet operators and its parameters as an ONNX file, opset 13.

    The file keeps the `shapes` of the inputs, in the order of the symbol's arguments. If a shape
    does not fit, or MXNet's exporter does not know an operator, this raises a ValueError.
    """
    import onnx

    label = f"{symbol.name}_label"  # of an output layer such as SoftmaxOutput; left out
    inputs = [name for name in symbol.list_arguments() if name not in args and name != label]
    if len(inputs) != len(shapes):
        raise ValueError(
            f"--input-shape was given {len(shapes)} times for {len(inputs)} inputs: "
            f"{', '.join(inputs)}"
        )
    dtypes = {np.dtype(array.dtype).name for array in args.values()}
    if dtypes - {"float32"}:
        raise ValueError(
            "MXNet's exporter writes float32 parameters only, and the network has "
            f"{', '.join(sorted(dtypes))}"
        )
    try:
        symbol.infer_shape(**dict(zip(inputs, shapes)))
    except mx.base.MXNetError as error:
        given = ", ".join(f"{name} {shape}" for name, shape in zip(inputs, shapes))
        raise ValueError(f"--input-shape does not fit ({given}): {last_line(error)}") from error
    try:
        with _opset():
            mx.onnx.export_model(
                symbol, {**args, **aux}, list(shapes), np.float32, onnx_file_path=str(file)
            )
        model = onnx.load(str(file))
        # Parameters are constants, and onnxruntime warns of constants that are inputs too.
        constants = {initializer.name for initializer in model.graph.initializer}
        data = [each for each in model.graph.input if each.name not in constants]
        del model.graph.input[:]
        model.graph.input.extend(data)
        onnx.checker.check_model(model)
        onnx.save(model, str(file))
    except OSError:
        raise
    except Exception as error:  # converters raise errors of any type
        reason = " ".join(str(error).split())
        raise ValueError(f"MXNet's ONNX exporter cannot write this network: {reason}") from error


@contextlib.contextmanager
def _opset() -> Iterator[None]:
    """Make `OPSET` the newest opset of the package onnx.

    MXNet labels its files with that (mxnet/python/mxnet/onnx/mx2onnx/_export_model.py).
    """
    import onnx

    defs: Any = onnx.defs
    context = onnx.checker.DEFAULT_CONTEXT
    newest, checked = defs.onnx_opset_version, context.opset_imports
    defs.onnx_opset_version, context.opset_imports = lambda: OPSET, {"": OPSET}
    try:
        yield
    finally:
        defs.onnx_opset_version, context.opset_imports = newest, checked
