"""Python imports this file at its start, in a program of ``gluon-syncbn run`` and its children.

Children without MXNet run it too, so it imports little. gluon_syncbn comes together with mxnet.
"""

import atexit
import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
_RUN = os.path.dirname(_FOLDER)  # noqa: PTH120
_PACKAGE = os.path.dirname(_RUN)  # noqa: PTH120


class _Finder:
    """Imports gluon_syncbn before mxnet, and always from the package of the command."""

    loader: "_Loader | None" = None  # of mxnet

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name == "gluon_syncbn":
            from importlib.util import spec_from_file_location

            return spec_from_file_location(name, f"{_PACKAGE}/__init__.py")
        is_loading = self.loader is not None and self.loader.module is not None
        if name != "mxnet" or ("gluon_syncbn" in sys.modules and not is_loading):
            return None
        others = (each.find_spec(name, path, target) for each in sys.meta_path if each is not self)
        spec = next(filter(None, others), None)
        if spec is not None:
            self.loader = self.loader or _Loader(spec.loader)
            spec.loader = self.loader  # type: ignore[assignment]
        return spec


class _Loader:
    """Executes mxnet within the import of gluon_syncbn, in the module that the program gets."""

    def __init__(self, theirs):  # type: ignore[no-untyped-def]
        self.theirs = theirs
        self.module = None

    def __getattr__(self, name):  # type: ignore[no-untyped-def]
        return getattr(self.theirs, name)  # pkgutil reads files by the loader

    def create_module(self, _spec):  # type: ignore[no-untyped-def]
        """Return the module, if its import has begun."""
        return self.module

    def exec_module(self, module):  # type: ignore[no-untyped-def]
        """Import gluon_syncbn, whose import of mxnet calls this function again."""
        if self.module is not None:
            self.theirs.exec_module(module)
            module.__spec__.loader = module.__loader__ = self.theirs
            return
        self.module = module
        del sys.modules[module.__name__]
        try:
            __import__("gluon_syncbn")
        finally:
            self.module = None


def _summarize(root: int, convert: bool, file: str) -> None:
    """Print the summary, if this is the end of the process that the command started."""
    summary = sys.modules.get("gluon_syncbn.run.summary")
    # The loader is a class until Python has found the program. Python reports a missing program.
    loader = getattr(sys.modules.get("__main__"), "__loader__", None)
    found = not isinstance(loader, type) or sys.argv[:1] == ["-"]
    if os.getpid() != root or not found:
        return
    if summary is not None:
        summary.summarize(convert, file)
    elif os.path.exists(file):  # noqa: PTH110 - of child processes
        from runpy import run_path

        run_path(f"{_RUN}/summary.py")["summarize"](convert, file)
    elif sys.stderr is not None:
        # Without imports: some, at the end, change the status of a program that Ctrl-C ended.
        text = "warning: nothing was synchronized, because the program did not import mxnet"
        sys.stderr.write(f"gluon_syncbn: {text}\n")


if "GLUON_SYNCBN_RUN" in os.environ:
    _process, _convert, _, _file = os.environ["GLUON_SYNCBN_RUN"].split(" ", 3)
    # The first handler that is registered is the last that is called.
    atexit.register(_summarize, int(_process), _convert == "1", _file)
    sys.meta_path.insert(0, _Finder())

# The program sees sys.path and sitecustomize as without this folder. If there is no other
# sitecustomize, the module site takes the ImportError.
sys.path.remove(_FOLDER)
del sys.modules["sitecustomize"]
__import__("sitecustomize")
