"""TFLOP/s of `linear` beside cuBLAS, in turns on one card.

    python3 products.py --ours ./bench-products [--rows 26240 32768] [--weights 1024x2048 ..]

The card's power limits both, so a rate depends on what ran just before. Each measurement is a
window after a warm-up of the same product; windows of both take turns in random order, and the
medians are compared.
"""

import argparse
import json
import math
import random
import statistics
import subprocess
from pathlib import Path

import torch

FORMS = ("output", "grad-input", "grad-weight")
WEIGHTS = ["1024x1024", "1024x2048", "1024x3072", "2048x1024", "3072x1024"]


class Ours:
    """The program `bench-products --serve`."""

    def __init__(self, program: str, window: float) -> None:
        command = [program, "--serve", "--window", str(window)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def rate(self, request: str) -> float:
        self.process.stdin.write(request + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"bench-products ended at: {request}")
        return float(answer)


def operands(form: str, rows: int, inner: int, columns: int):
    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda").bfloat16()

    x, weight, gradient = (rows, inner), (inner, columns), (rows, columns)
    if form == "output":
        left, right = normal(*x), normal(*weight)
        return lambda: left @ right
    if form == "grad-input":
        left, right = normal(*gradient), normal(*weight)
        return lambda: left @ right.T
    left, right = normal(*x), normal(*gradient)
    return lambda: left.T @ right


def seconds(work, count: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / count / 1e3


def rate(work, flops: float, window: float) -> float:
    one = seconds(work, 2)
    seconds(work, max(1, math.ceil(window / 3e3 / one)))
    return flops / seconds(work, max(3, math.ceil(window / 1e3 / one))) / 1e12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ours", required=True, help="path of bench-products")
    parser.add_argument("--rows", nargs="+", type=int, default=[26_240, 32_768])
    parser.add_argument("--weights", nargs="+", default=WEIGHTS, help="K x N")
    parser.add_argument("--forms", nargs="+", default=FORMS, choices=FORMS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--window", type=float, default=20.0, help="milliseconds")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.zeros(1, device="cuda")
    ours = Ours(arguments.ours, arguments.window)
    results = []
    ratios = {form: [] for form in arguments.forms}
    print(f"{'rows':>6} {'K x N':>12} {'product':<12} {'linear':>7} {'cuBLAS':>7} ratio")
    for rows in arguments.rows:
        for weight in arguments.weights:
            inner, columns = map(int, weight.split("x"))
            for form in arguments.forms:
                work = operands(form, rows, inner, columns)
                flops = 2.0 * rows * inner * columns
                request = f"{form} {rows} {inner} {columns}"
                measured = {"linear": [], "cuBLAS": []}
                for _ in range(arguments.rounds):
                    for name in random.sample(list(measured), 2):
                        value = (
                            ours.rate(request)
                            if name == "linear"
                            else rate(work, flops, arguments.window)
                        )
                        measured[name].append(value)
                medians = {name: statistics.median(v) for name, v in measured.items()}
                ratio = medians["linear"] / medians["cuBLAS"]
                ratios[form].append(ratio)
                results.append({"rows": rows, "weight": weight, "form": form, **medians})
                print(
                    f"{rows:>6} {weight:>12} {form:<12} {medians['linear']:>7.0f} "
                    f"{medians['cuBLAS']:>7.0f} {ratio:5.2f}",
                    flush=True,
                )
                del work
                torch.cuda.empty_cache()
    for form, values in ratios.items():
        print(f"{form}: geometric mean {statistics.geometric_mean(values):.3f}, "
              f"least {min(values):.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
