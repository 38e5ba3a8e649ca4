"""Check and time the GPU backend on a machine with a GPU, in 10 minutes, with what is there.

Needs Python 3.8 and nvcc with a C++17 compiler. PyTorch, CMake with doctest's header (in the folder
DOCTEST, or installed), profilers and compute-sanitizer have a part if they are there. Every check
has a limit and stops no other. Results: OUT/results.md, results.jsonl; output: OUT/log.txt.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, Callable, Iterator, NamedTuple, Sequence

ROOT = Path(__file__).resolve().parent.parent
EPS, OLD = 1e-5, 0.9  # OLD: weight of the old running statistics
TOLERANCE = {"float32": 2e-5, "float64": 1e-11, "float16": 4e-3}  # in the order of Element
ARRAYS = ("x", "dy", "y", "dx", "gamma", "beta", "mean", "var", "dgamma", "dbeta")
LEAST_PASSES = {"moments": 1, "normalization": 2, "gradient sums": 2, "input gradient": 3}
LEAST_PASSES.update({f"{phase} + ReLU": LEAST_PASSES[phase] for phase in list(LEAST_PASSES)[1:]})
PEERS = ("torch's SyncBatchNorm", "torch's batch_norm")
DID_NOTHING = ("skipped: ", "no GPU: ", "test cases: 0 ", "==ERROR==", "No kernels were profiled")
SIGNATURES = """device:ppp copy:ppq delay:i finish: begin: end:pp
open:qqqiiididdp array:pipp run:pi error:pp close:p"""


class Case(NamedTuple):
    """A layer on data of shape (batch, channels, side, side), shared by contexts."""

    batch: int
    channels: int
    side: int
    dtype: str = "float32"
    channels_are: str = "first"
    contexts: int = 1
    mean: float = 0.0


ORDERS = ("first", "last")
KINDS = list(product(("float32", "float16"), ORDERS))
FEW = [Case(9, 65, 7, *kind, contexts=2) for kind in KINDS]
CORRECT = FEW + [
    Case(*shape, dtype, order, contexts, mean)
    for shape in ((9, 3, 1), (9, 65, 7), (32, 3, 60), (4, 64, 119))
    for dtype, order, contexts, mean in product(TOLERANCE, ORDERS, (1, 2, 8), (0.0, 30.0))
]
TIMED = [
    *(Case(*shape, *kind) for shape in ((8, 128, 16), (16, 256, 60)) for kind in KINDS),
    *(Case(16, 256, 32, "float32", order) for order in ORDERS),
    Case(4, 256, 119),  # rows that do not begin at multiples of 16 bytes
    Case(8, 128, 16, contexts=8),
]


class Bridge:
    """The library of tests/native/bridge."""

    def __init__(self, library: str) -> None:
        kinds = {"p": ctypes.c_void_p, "q": ctypes.c_int64, "d": ctypes.c_double, "i": ctypes.c_int}
        self._library = ctypes.CDLL(str(Path(library).resolve()))
        for function, types in (one.split(":") for one in SIGNATURES.split()):
            found = getattr(self._library, f"gpu_bridge_{function}")
            found.argtypes, found.restype = [kinds[t] for t in types], ctypes.c_char_p
        name, stream, cache = ctypes.c_char_p(), ctypes.c_void_p(), ctypes.c_int64()
        self.call("device", *map(ctypes.byref, (name, stream, cache)))
        self.name, self.stream = str(name.value), stream.value

    def call(self, name: str, *arguments: Any) -> None:
        error = getattr(self._library, f"gpu_bridge_{name}")(*arguments)
        if error is not None:
            raise RuntimeError(f"gpu_bridge_{name}: {error.decode()}")

    def seconds(self, work: Callable[[], object], copies: int = 0) -> tuple[float, bool]:
        """Time work behind copies on the GPU; also tell whether it was launched during these."""
        seconds, queued = ctypes.c_double(), ctypes.c_int()
        self.call("delay", copies)
        self.call("begin")
        work()
        self.call("end", ctypes.byref(seconds), ctypes.byref(queued))
        return seconds.value, bool(queued.value)

    def measure(self, work: Callable[[], object]) -> tuple[float, bool]:
        """Return the median time, and whether the GPU never waited for launches."""
        copy = max(self.seconds(lambda: self.call("delay", 10), 2)[0] / 10, 1e-5)
        work()  # which allocates what it needs
        self.call("finish")
        begin = time.perf_counter()
        work()
        launching = time.perf_counter() - begin
        copies = min(2 + int(4 * launching / copy), 400)
        seconds, queued = zip(*(self.seconds(work, copies) for _ in range(7)))
        return statistics.median(seconds), all(queued)


class Layer:
    """A layer with the arrays of one step. `at`: address and size of each."""

    def __init__(self, bridge: Bridge, case: Case, seed: int = 0) -> None:
        self.bridge, self.case, self.handle = bridge, case, ctypes.c_void_p()
        kind = (list(TOLERANCE).index(case.dtype), case.channels_are == "last", *case[5:])
        shape = (case.batch, case.channels, case.side**2)
        bridge.call("open", *shape, *kind, seed, EPS, OLD, ctypes.byref(self.handle))
        self.at: dict[str, tuple[int, int]] = {}
        for i, name in enumerate(ARRAYS):
            begin, size = ctypes.c_void_p(), ctypes.c_int64()
            bridge.call("array", self.handle, i, ctypes.byref(begin), ctypes.byref(size))
            self.at[name] = (begin.value or 0, size.value)

    def run(self, *phases: int) -> None:
        for phase in phases or range(4):
            self.bridge.call("run", self.handle, phase)

    def error(self) -> float:
        """Run the first step; return the error of its results."""
        self.run()
        error = ctypes.c_double()
        self.bridge.call("error", self.handle, ctypes.byref(error))
        return error.value


def peers(torch: Any, layers: list[Layer]) -> tuple[list[Any], list[Any]]:
    """Return our y, dx and gradients of gamma and beta, and PyTorch's steps to them."""
    bridge, case = layers[0].bridge, layers[0].case
    device = "cuda" if bridge.stream else "cpu"

    def tensor(layer: Layer, name: str) -> Any:
        kind = getattr(torch, case.dtype) if name in ARRAYS[:4] else torch.float32
        found = torch.empty(layer.at[name][1] // kind.itemsize, dtype=kind, device=device)
        bridge.call("copy", found.data_ptr(), *layer.at[name])
        bridge.call("finish")
        if name not in ARRAYS[:4]:
            return found.view(-1, case.channels).sum(0)
        if case.channels_are == "last":
            return found.view(case.batch, case.side, case.side, -1).permute(0, 3, 1, 2)
        return found.view(case.batch, -1, case.side, case.side)

    def sync(slot: int) -> Sequence[Any]:
        x, dy, gamma, beta, *running = slots[slot]
        own = (one[None] for one in torch.batch_norm_stats(x, EPS))
        gather = (x, *own, *running, 1 - OLD, EPS, count)
        batch = torch.batch_norm_gather_stats_with_counts(*gather)  # mean and 1 / deviation
        y = torch.batch_norm_elemt(x, gamma, beta, *batch, EPS)
        arrays = (dy, x, *batch, gamma)
        *sums, dgamma, dbeta = torch.batch_norm_backward_reduce(*arrays, True, True, True)
        dx = torch.batch_norm_backward_elemt(*arrays, *sums, count.to(torch.int32))
        return y, dx, dgamma, dbeta

    def layer(slot: int) -> Sequence[Any]:
        x, dy, gamma, beta, *running = slots[slot]
        leaves = [array.detach().requires_grad_() for array in (x, gamma, beta)]
        with torch.enable_grad():
            y = torch.nn.functional.batch_norm(leaves[0], *running, *leaves[1:], True, 1 - OLD, EPS)
        return (y.detach(), *torch.autograd.grad(y, leaves, dy))

    count = torch.full((1,), case.batch * case.side**2, device=device, dtype=torch.float32)
    names = ("x", "dy", "gamma", "beta", "mean", "var")
    slots = [[tensor(one, name) for name in names] for one in layers]
    ours = [tensor(layers[0], name).double() for name in ("y", "dx", "dgamma", "dbeta")]
    return ours, [sync, layer]


def emit(out: str, **row: Any) -> None:
    """Write a result at once."""
    with (Path(out) / "results.jsonl").open("a") as file:
        for stream in (file, sys.stdout):
            print(json.dumps(row), file=stream, flush=True)


def correctness(out: str, library: str, which: str = "") -> bool:
    """Compare cases with float64; others than all of them are for profilers and sanitizers."""
    bridge, worst = Bridge(library), 0.0
    cases = {"few": FEW, "large": TIMED[4:8]}.get(which, CORRECT) if bridge.stream else FEW
    for case in cases:
        layer = Layer(bridge, case)
        error = layer.error() / TOLERANCE[case.dtype]
        bridge.call("close", layer.handle)
        worst = max(worst, error)
        if error > 1:
            emit(out, case=case, wrong=error * TOLERANCE[case.dtype])
    emit(out, gpu=bridge.name, correct=worst <= 1, cases=len(cases), of_tolerance=worst)
    return worst <= 1


def time_case(out: str, library: str, number: str, *peers_too: str) -> bool:
    bridge, case = Bridge(library), TIMED[int(number)]
    if not bridge.stream:  # emulated, and slow
        case = case._replace(channels=5, side=7)
    layers = [Layer(bridge, case)]
    row: dict[str, Any] = {"case": case, "method": "ours", "error": layers[0].error()}
    if not row["error"] <= TOLERANCE[case.dtype]:
        raise RuntimeError(f"{case}: not timed, as its relative error is {row['error']:g}")
    size, row["queued"] = layers[0].at["x"][1], True
    slots = max(2, min(16, (64 << 20) // size) // case.contexts)
    layers += [Layer(bridge, case, seed) for seed in range(1, slots)]

    def seconds(work: Callable[[int], object]) -> float:
        time, queued = bridge.measure(lambda: [work(slot) for slot in range(slots)])
        row["queued"] &= queued
        return time / slots

    copy = seconds(lambda i: bridge.call("copy", layers[i].at["y"][0], *layers[i].at["x"]))
    row["copy GB/s"] = 2e-9 * size / copy
    for k, (phase, passes) in enumerate(LEAST_PASSES.items()):
        row[phase] = passes / 2 * copy / seconds(lambda i, k=k: layers[i].run(k))  # type: ignore
    row["step us"] = 1e6 * seconds(lambda i: layers[i].run())
    emit(out, **row)
    if not peers_too:
        return True
    torch = import_module("torch")
    torch.set_grad_enabled(False)
    with torch.cuda.stream(torch.cuda.ExternalStream(bridge.stream) if bridge.stream else None):
        (ours, methods), passed = peers(torch, layers), True
        for name, step in zip(PEERS, methods):
            row = {"case": case, "method": name, "queued": True}
            try:
                pairs = zip(step(0), ours)
                row["error"] = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
                passed &= row["error"] <= 10 * TOLERANCE[case.dtype]
                if case.contexts == 1:
                    row["step us"] = 1e6 * seconds(step)
            except Exception as error:
                row["failed"] = f"{type(error).__name__}: {error}"
            emit(out, **row)
    return passed


def machine(out: str, _: str) -> bool:
    """Ask the driver for the architecture of the first GPU."""
    driver, values = ctypes.CDLL("libcuda.so.1"), (ctypes.c_int(), ctypes.c_int())
    ask = driver.cuDeviceGetAttribute  # whose attributes 75 and 76 are the compute capability
    errors = [driver.cuInit(0), *(ask(ctypes.byref(v), 75 + i, 0) for i, v in enumerate(values))]
    if any(errors):
        raise RuntimeError(f"the driver finds no GPU: errors {errors}")
    emit(out, architecture="".join(str(value.value) for value in values), python=sys.version)
    return True


def build_command(library: Path, nvcc: str, architecture: object) -> list[Any]:
    """Return what builds the library of tests/native/bridge by nvcc alone."""
    source, home = ROOT / "src", Path(nvcc).resolve().parent.parent
    (bridge,) = (ROOT / "tests").rglob("gpu_bridge.cc")
    host = (f"cuda/**/{name}.cc" for name in ("phases", "tiling", "runtime", "thread_context"))
    sources = [*source.rglob("*.cu"), *(next(source.rglob(name)) for name in host)]
    sources += [bridge, bridge.with_name("device_cuda.cc")]
    flags = ["-shared", "-std=c++17", "-O3", "--threads=0", f"-arch=sm_{architecture}"]
    flags += ["-Xcompiler=-fPIC,-fvisibility=hidden", f"-I{source}", f"-I{bridge.parent.parent}"]
    return [nvcc, *flags, f"-L{home}/lib", f"-L{home}/lib64", "-o", library, *sources]


class Checks:
    """Programs that run one after the other, each with a time limit."""

    def __init__(self, out: Path, seconds: float) -> None:
        self.out, self.end, self.failed = out, time.monotonic() + seconds, False

    def run(self, name: str, command: Sequence[Any], limit: float, **needed: Any) -> bool:
        """Return whether it passed. All that is needed must be there."""
        needed[Path(command[0]).name] = shutil.which(command[0])
        missing = [what for what, found in needed.items() if not found]
        begin, limit = time.monotonic(), min(limit, self.end - time.monotonic())
        if missing or limit < 1:
            result = f"not run: no {', '.join(missing) or 'time left'}"
        else:
            with (self.out / "log.txt").open("a+b", buffering=0) as log:
                log.write(f"\n== {name}: {command}\n".encode())
                start = log.tell()
                result = result_of([str(word) for word in command], limit, log)
                log.seek(start)
                output = log.read().decode(errors="replace")
            print(*output.splitlines()[-5:], sep="\n")
            if result == "passed" and any(sign in output for sign in DID_NOTHING):
                result = f"FAILED: {next(sign for sign in DID_NOTHING if sign in output)}"
        self.failed |= result.startswith("FAILED")
        self.write(f"| {name} | {result} | {time.monotonic() - begin:.0f} s |")
        return result == "passed"

    def write(self, line: str) -> None:
        print(line, flush=True)
        with (self.out / "results.md").open("a") as file:
            file.write(f"{line}\n")

    def rows(self) -> Iterator[dict[str, Any]]:
        for line in (self.out / "results.jsonl").read_text().splitlines():
            with contextlib.suppress(ValueError):  # of a worker that was stopped within a line
                yield json.loads(line)


def result_of(command: list[str], limit: float, log: Any) -> str:
    """Run a program, and end it with its children after so many seconds."""
    tests = {"GLUON_SYNCBN_SHARE_GPUS": "1", "GLUON_SYNCBN_TEST_DEVICE": "gpu"}
    variables = {**os.environ, **tests, "PYTHONUNBUFFERED": "1"}
    streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
    try:
        program = subprocess.Popen(command, env=variables, start_new_session=True, **streams)
    except OSError as error:
        return f"FAILED: {error}"
    try:
        status = program.wait(limit)
        return f"FAILED: status {status}" if status else "passed"
    except subprocess.TimeoutExpired:
        return f"FAILED: not done in {limit:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(program.pid, signal.SIGKILL)
            program.wait(5)  # and no longer: a driver may hang


def report(checks: Checks) -> None:
    """Tabulate phases, as parts of a copy's speed, and the time of steps relative to others."""
    rows = [row for row in checks.rows() if "method" in row]
    steps = {(*row["case"], row["method"]): row.get("step us", math.nan) for row in rows}
    head = ["case", "copy GB/s", *LEAST_PASSES, "step us", *PEERS, "first", "1 context", "queued"]
    checks.write(f"\n| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    for row in (row for row in rows if row["method"] == "ours"):
        case = Case(*row["case"])
        similar = (case._replace(channels_are="first"), case._replace(contexts=1))
        others = [*((*case, name) for name in PEERS), *((*one, "ours") for one in similar)]
        cells = [row[name] for name in head[1 : 3 + len(LEAST_PASSES)]]
        cells += [row["step us"] / steps.get(other, math.nan) for other in others]
        cells = [tuple(case), *(f"{cell:.2f}" for cell in cells), row["queued"]]
        checks.write(f"| {' | '.join(map(str, cells))} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=os.environ.get("OUT", ROOT / "runs/check-gpu"))
    parser.add_argument("--binaries", type=Path, help="where libgpu_bridge.so and others are built")
    parser.add_argument("--architecture", help="such as 90; default: that of this machine's GPU")
    parser.add_argument("--minutes", type=float, default=9.5, help="for all (default: %(default)s)")
    options = parser.parse_args()
    out, binaries = options.out.resolve(), (options.binaries or ROOT / "build" / "gpu").resolve()
    for folder in (out, binaries):
        folder.mkdir(parents=True, exist_ok=True)
    for name in ("results.md", "results.jsonl", "log.txt"):
        (out / name).write_text("")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and so ends what runs
    checks, library = Checks(out, 60 * options.minutes), binaries / "libgpu_bridge.so"
    checks.write("| check | result | time |\n| --- | --- | --- |")

    def worker(name: str, *more: Any) -> list[Any]:
        return [sys.executable, __file__, "worker", name, out, library, *more]

    checks.run("machine", worker("machine"), 60)
    found = [row["architecture"] for row in checks.rows() if "architecture" in row]
    nvcc = shutil.which(os.environ.get("CUDACXX", "nvcc")) or "nvcc"
    doctest = Path(os.environ.get("DOCTEST", "/usr/include"))
    needed = {"architecture": options.architecture or (found[0] if found else None)}
    if not options.binaries:
        library.unlink(missing_ok=True)
        checks.run("kernels built", build_command(library, nvcc, **needed), 200, **needed)
    there = {library.name: library.exists()}
    is_correct = checks.run("correctness", worker("correctness"), 90, **there)
    if not options.binaries:
        needed.update(nvcc=shutil.which(nvcc), cmake=shutil.which("cmake"))
        needed["doctest"] = (doctest / "doctest" / "doctest.h").exists()
        script = f"""cmake -S '{ROOT}' -B '{binaries}' -DCMAKE_CUDA_COMPILER='{needed["nvcc"]}' \\
          -DCMAKE_BUILD_TYPE=Release -DGLUON_SYNCBN_CUDA=ON -DGLUON_SYNCBN_BUILD_TESTS=ON \\
          -DGLUON_SYNCBN_CUDA_ARCHITECTURES={needed["architecture"]}-real \\
          -DDOCTEST_INCLUDE_DIR='{doctest}' && cmake --build '{binaries}' -j {os.cpu_count()} \\
          --target cuda_tests mxnet_tests_on_gpus"""
        checks.run("native tests built", ["bash", "-c", script], 200, **needed)
    checks.run("native tests", [binaries / "cuda_tests", "--test-case=cuda*"], 120)
    whole = [binaries / "mxnet_tests_on_gpus", "--test-suite-exclude=end"]
    checks.run("library on a fake MXNet", whole, 60)
    version = "import torch; print(torch.__version__, torch.backends.cudnn.version())"
    torch = checks.run("PyTorch", [sys.executable, "-c", version], 60, torch=find_spec("torch"))
    for number, case in enumerate(TIMED):
        command = worker("time_case", number, *(["beside torch"] if torch else []))
        checks.run(f"times of {tuple(case)}", command, 40, **there)
    report(checks)
    tools = {"ncu": ["ncu", "--target-processes=all", "--clock-control=none"]}
    tools["ncu"] += ["--section=SpeedOfLight", "--section=Occupancy"]
    sanitizer = ["compute-sanitizer", "--target-processes=all", "--report-api-errors=no"]
    for tool in ("memcheck", "racecheck", "synccheck", "initcheck"):
        tools[tool] = [*sanitizer, "--error-exitcode=9", f"--tool={tool}"]
    tools["nsys"] = ["nsys", "profile", "--stats=true", f"--output={out / 'nsys'}"]
    for name, command in tools.items():
        which = "large" if name in ("ncu", "nsys") else "few"
        checks.run(name, [*command, *worker("correctness", which)], 75, **there)
    return int(checks.failed or not is_correct)


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        workers = {one.__name__: one for one in (machine, correctness, time_case)}
        sys.exit(not workers[sys.argv[2]](*sys.argv[3:]))
    sys.exit(main())
