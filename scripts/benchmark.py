"""Time gluon_syncbn.SyncBatchNorm beside MXNet's layers, plain copies of memory and PyTorch.

Everything is timed in turns on the same machine, so that ratios mean something where times do not.
Prints a table of medians and quartiles, and writes JSON and a bar chart.

  op        forward and backward of one layer, shapes of segmentation networks
  fused     the same with the ReLU behind it, and with a sum in between: in one pass, or one by one
  overhead  the fixed cost of a round, on tiny arrays
  net       hybridized training steps of FCN, PSPNet and DeepLabV3 on ResNet-50, and peak memory
  waiting   the same steps, beside those of BatchNorm if its contexts met at each norm
  deploy    inference of the same networks, exported and folded
  accuracy  errors against float64, by the mean of the data
  memory    what a layer adds to the peak memory of training
  inplace   memory of training FCN-ResNet50 with leaky ReLU, in place and not
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import commands
from benchmarks.report import Row, draw, time_table, write_json
from benchmarks.worker import WITH_ONEDNN, WITHOUT_ONEDNN

COMMANDS = {
    "op": (commands.run_op, time_table, "ms"),
    "fused": (commands.run_fused, time_table, "ms"),
    "overhead": (commands.run_overhead, time_table, "ms"),
    "net": (commands.run_net, time_table, "ms"),
    "waiting": (commands.run_waiting, time_table, "ms"),
    "deploy": (commands.run_deploy, time_table, "ms"),
    "accuracy": (commands.run_accuracy, commands.accuracy_table, "relative error of the output"),
    "memory": (commands.run_memory, commands.memory_table, "MB a layer"),
    "inplace": (commands.run_inplace, commands.inplace_table, "MB, or pixels"),
}


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--quick", action="store_true", help="small and few cases: does it work?")
    parser.add_argument(
        "--out", type=Path, help="folder for results (default: runs/benchmark-COMMAND)"
    )
    networks = parser.add_argument_group("net, waiting, deploy and inplace")
    networks.add_argument("--models", nargs="+", choices=("fcn", "psp", "deeplab"))
    networks.add_argument(
        "--side", type=int, help="side of images (default: 96, deploy: 240, inplace: 480)"
    )
    networks.add_argument(
        "--rounds", type=int, help="runs of each network (default: 12, inplace: 3)"
    )
    networks.add_argument(
        "--fuse", action="store_true", help="net: with gluon_syncbn.fuse beside the others"
    )
    return parser.parse_args()


def bar_values(rows: list[Row]) -> dict[str, dict[str, float]]:
    """Choose what is drawn of each row."""
    bars = {}
    for row in rows:
        if "results" in row:
            values = {method: result["median_ms"] for method, result in row["results"].items()}
        elif "errors" in row:
            # An error that is not a number has no bar.
            errors = {method: error["out"] for method, error in row["errors"].items()}
            values = {method: error for method, error in errors.items() if error > 0}
        elif "values" in row:
            values = row["values"]
        else:
            values = {method: max(mb, 0.01) for method, mb in row["layer_mb"].items()}
        bars[row["title"]] = values
    return bars


def main() -> int:
    """Run a benchmark; return the exit status."""
    options = parse_arguments()
    run, tabulate, unit = COMMANDS[options.command]
    rows = run(options)
    folder = options.out or Path("runs") / f"benchmark-{options.command}"
    folder.mkdir(parents=True, exist_ok=True)
    print(f"\n{tabulate(rows)}\n")
    workers = {"plain": WITHOUT_ONEDNN, "onednn": WITH_ONEDNN}
    write_json(folder / "results.json", rows, {"workers": workers})
    draw(folder / "results.png", f"benchmark {options.command}", unit, bar_values(rows))
    print(f"results: {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
