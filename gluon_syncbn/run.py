"""Run a script with SyncBatchNorm in the place of MXNet's own: ``gluon-syncbn run``."""

from __future__ import annotations

import argparse
import atexit
import builtins
import functools
import os
import re
import runpy
import sys
import threading
from collections import Counter
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

import mxnet as mx
from mxnet import gluon

from .block import OP_TYPE, SyncBatchNorm
from .convert import synchronize
from .library import LIBRARY
from .mxnet_versions import PLAIN_NORMS, name_of
from .registration import end_all_waiting

if TYPE_CHECKING:
    from collections.abc import Callable

_NAMES_SHOWN = 3

# The variables that MXNet's own operator makes in a symbol, and their initial values.
_PARAMETERS = {
    "gamma": None,
    "beta": None,
    "moving_mean": mx.init.Zero(),
    "moving_var": mx.init.One(),
}

_made: list[str] = []  # layers of the script that can synchronize
_left: Counter[str] = Counter()  # other norm layers of the script, by class


def add_command(commands: Any) -> None:
    """Add ``run`` to the commands of ``python -m gluon_syncbn``."""
    parser = commands.add_parser(
        "run",
        usage="%(prog)s [-h] [--convert] [--num-devices N] (SCRIPT | -m MODULE) [ARGUMENT ...]",
        help="run a script with SyncBatchNorm in the place of MXNet's own",
        description="Run a script as Python does, with gluon_syncbn.SyncBatchNorm in the place of "
        "MXNet's own, from wherever the script imports it. At the end, print which layers "
        "synchronized which devices.",
    )
    parser.add_argument(
        "--convert",
        action="store_true",
        help="also make a SyncBatchNorm of each plain gluon.nn.BatchNorm, for scripts without an "
        "option for it",
    )
    parser.add_argument(
        "--num-devices",
        metavar="N",
        type=int,
        help="for --convert: the number of devices of a training step. By default, the number of "
        "contexts of the parameters; networks that become symbols before they are initialized need "
        "N",
    )
    parser.add_argument(
        "-m",
        dest="module",
        metavar="MODULE",
        nargs=argparse.REMAINDER,
        help="a module to run instead of a script, as python -m does",
    )
    parser.add_argument(
        "script", metavar="SCRIPT", nargs=argparse.REMAINDER, help="the script and its arguments"
    )
    parser.set_defaults(run=functools.partial(_run, parser))


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    # The arguments after -- belong to the module too.
    program = [*(options.module or ()), *options.script]
    if not program:
        parser.error("a script, or -m and a module, is missing")
    if options.num_devices is not None and not options.convert:
        parser.error("--num-devices belongs to --convert; scripts give num_devices to their layers")
    _run_program(program, options.module is not None, options.convert, options.num_devices)


def _run_program(
    program: list[str], is_module: bool, convert: bool, num_devices: int | None
) -> None:
    """Run a script or module as Python itself would, with its arguments.

    An exception of the script passes through, so that the interpreter decides the exit status.
    """
    if not is_module and not (Path(program[0]).is_file() and os.access(program[0], os.R_OK)):
        print(f"error: {program[0]} is not a file that can be read", file=sys.stderr)
        sys.exit(2)
    _replace_layers()
    _replace_operators()
    if convert:
        _convert_new_layers(num_devices)
    _serialize_first_calls()
    LIBRARY.count_rounds()
    # The summary comes after the last operation, which the other handler waits for.
    atexit.unregister(end_all_waiting)
    atexit.register(_summarize)
    atexit.register(end_all_waiting)
    try:
        (_run_module if is_module else _run_script)(*program)
    except SystemExit:
        raise
    except BaseException:
        # The hook is read here, because the script may have set its own.
        sys.excepthook = functools.partial(_show_from_script, sys.excepthook)
        raise


def _run_script(path: str, *arguments: str) -> None:
    sys.argv[:] = [path, *arguments]
    _set_first_folder(str(Path(path).resolve().parent))
    # Since Python 3.9, __file__ of a script is an absolute path.
    file = path if sys.version_info < (3, 9) else str(Path(path).absolute())
    source = Path(file).read_bytes()
    main = ModuleType("__main__")
    main.__dict__.update(
        __annotations__={},
        __builtins__=builtins,
        __cached__=None,
        __file__=file,
        __loader__=SourceFileLoader("__main__", file),
    )
    sys.modules["__main__"] = main
    exec(compile(source, file, "exec", dont_inherit=True), main.__dict__)


def _run_module(name: str, *arguments: str) -> None:
    sys.argv[:] = [name, *arguments]
    _set_first_folder(str(Path.cwd()))
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _set_first_folder(folder: str) -> None:
    """Let the program import from `folder`, as Python does unless it was started with -I or -P."""
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        sys.path[0] = folder


def _show_from_script(
    show: Callable, kind: type, error: BaseException, traceback: TracebackType | None
) -> None:
    """Show an error without the frames between the interpreter and the script."""
    rest = traceback
    while rest is not None:
        if rest.tb_frame.f_code.co_filename == __file__:
            traceback = rest.tb_next
        rest = rest.tb_next
    error.__traceback__ = traceback
    show(kind, error, traceback)


def _replace_layers() -> None:
    """Put SyncBatchNorm wherever MXNet's own can be imported from, and note the layers made."""
    _replace_in_mxnet(PLAIN_NORMS[1], SyncBatchNorm)
    _after_init(SyncBatchNorm, lambda layer: _made.append(name_of(layer)))


def _replace_operators() -> None:
    """Replace MXNet's operator too, which programs also call without the layer."""
    for functions in (mx.nd, mx.sym):
        theirs = functions.contrib.SyncBatchNorm
        _replace_in_mxnet(theirs, functools.wraps(theirs)(_own_operator(functions)))


def _replace_in_mxnet(theirs: Any, ours: Any) -> None:
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] == "mxnet":
            for name in [name for name, value in vars(module).items() if value is theirs]:
                setattr(module, name, ours)


def _own_operator(functions: Any) -> Callable:
    """Return a function with the arguments of MXNet's ``contrib.SyncBatchNorm``."""

    def call(
        data: Any,
        gamma: Any = None,
        beta: Any = None,
        moving_mean: Any = None,
        moving_var: Any = None,
        ndev: int = 1,
        key: str = "",
        name: str | None = None,
        output_mean_var: bool = False,
        **attributes: Any,
    ) -> Any:
        if output_mean_var:
            raise ValueError(
                f"SyncBatchNorm {name or key}: output_mean_var=True is not supported; the operator "
                "of gluon_syncbn returns the normalized data only"
            )
        inputs = [data, gamma, beta, moving_mean, moving_var]
        scope = "key"
        if functions is mx.sym:
            scope = "graph"
            name = str(mx.name.NameManager.current.get(name, "syncbatchnorm"))
            _made.append(name)
            for i, (argument, initial) in enumerate(_PARAMETERS.items(), 1):
                if inputs[i] is None:
                    inputs[i] = mx.sym.var(f"{name}_{argument}", init=initial)
        return functions.Custom(
            *inputs,
            op_type=OP_TYPE,
            name=name,
            num_devices=ndev,
            key=key or name,
            scope=scope,
            **attributes,
        )

    return call


def _convert_new_layers(num_devices: int | None) -> None:
    """Make a SyncBatchNorm of each plain BatchNorm when it has been made."""

    def convert(layer: Any) -> None:
        if type(layer) is gluon.nn.BatchNorm:
            synchronize(layer, name_of(layer), num_devices, None)
            _made.append(name_of(layer))
        elif not isinstance(layer, SyncBatchNorm):
            _left[type(layer).__name__] += 1

    _after_init(gluon.nn.BatchNorm, convert)


def _after_init(block: type, then: Callable) -> None:
    init = block.__init__  # type: ignore[misc]

    @functools.wraps(init)
    def init_and_then(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        then(self)

    block.__init__ = init_and_then  # type: ignore[misc]


def _serialize_first_calls() -> None:
    """Let one thread at a time trace a network and initialize its parameters.

    GluonCV's ``DataParallelModel(sync=True)`` calls the network on one thread per device. Each
    thread could build a graph of its own, and devices with different graphs never meet. Calls of a
    network that has its graph hold the lock only while they fetch parameters.
    """
    lock = threading.RLock()

    def locked(function: Callable) -> Callable:
        @functools.wraps(function)
        def with_lock(*args: Any, **kwargs: Any) -> Any:
            with lock:
                return function(*args, **kwargs)

        return with_lock

    def building_once(call_graph: Callable) -> Callable:
        @functools.wraps(call_graph)
        def build_once_and_call(block: Any, *args: Any) -> Any:
            if block._cached_op is None:
                with lock:
                    if block._cached_op is None:
                        block._build_cache(*args)
            return call_graph(block, *args)

        return build_once_and_call

    _wrap_method(gluon.HybridBlock, "_call_cached_op", building_once)
    _wrap_method(gluon.HybridBlock, "infer_shape", locked)
    _wrap_method(gluon.Parameter, "_finish_deferred_init", locked)
    # While a parameter is initialized, for a moment it has neither data nor a deferred
    # initialization, and then data without a gradient.
    _wrap_method(gluon.Parameter, "data", locked)


def _wrap_method(cls: type, name: str, wrap: Callable) -> None:
    """Wrap a method of a class, and those of its subclasses.

    The layers of MXNet 2 have copies of the methods that they inherit (``mx.util.use_np``).
    """
    if name in vars(cls):
        setattr(cls, name, wrap(vars(cls)[name]))
    for subclass in cls.__subclasses__():
        _wrap_method(subclass, name, wrap)


def _summarize() -> None:
    """Print which layers synchronized; warn if none did."""
    layers: dict[tuple[str, str], list[str]] = {}
    for line in LIBRARY.rounds().splitlines():
        layer, rounds, devices = line.split("\t")
        # Without the token of the key: SyncBatchNorm 'batchnorm0_0a1b...'.
        name = re.sub(r"^SyncBatchNorm '(.*?)(_[0-9a-f]{32}(@[0-9,]+)?)?'", r"\1", layer)
        layers.setdefault((rounds, devices), []).append(name)
    for (rounds, devices), names in layers.items():
        shown = ", ".join(names[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "")
        _say(
            f"{_count(len(names), 'layer')} ({shown}) synchronized {devices} in "
            f"{_count(int(rounds), 'round')}{' each' * (len(names) > 1)}"
        )
    if not layers and not _made:
        _say(
            "warning: nothing was synchronized, because the program made no SyncBatchNorm. Does "
            "it need an option, such as --syncbn? run --convert converts plain BatchNorm layers"
        )
    elif not layers:
        _say(
            f"warning: nothing was synchronized, although the program made "
            f"{_count(len(_made), 'SyncBatchNorm')}: none was trained on several devices"
        )
    for kind, number in _left.items():
        _say(
            f"{_count(number, 'layer')} of {kind} stayed as they were: --convert converts "
            "layers of the class BatchNorm itself"
        )


def _say(text: str) -> None:
    print(f"gluon_syncbn: {text}", file=sys.stderr)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
