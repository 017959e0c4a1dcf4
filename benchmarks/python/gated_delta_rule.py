"""Milliseconds of flash-linear-attention's chunked gated delta rule on one path.

    python3 gated_delta_rule.py [--rows 8192 16384 32768] [--heads 16/32] [--json FILE]

The inputs are those of `bench-delta-rule`: normalised queries and keys, decays `-A softplus(a)` with
rates from 0.05 to 16, `beta` a sigmoid. Needs the package `flash-linear-attention` and a CUDA
device. TFLOP/s count what `bench-delta-rule` counts.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from triton.testing import do_bench

try:
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
except ImportError as missing:
    sys.exit(f"flash-linear-attention is not installed ({missing}): pip install flash-linear-attention")

CHECKED_ROWS = 512
WINDOW = 64


def random_inputs(rows: int, key_heads: int, value_heads: int, dim: int) -> list[torch.Tensor]:
    """Query, key, value, log decay and beta, token by token. Query and key heads are repeated for
    the value heads that use them, as models do that call this operation."""

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(1, rows, *shape, device="cuda")

    share = value_heads // key_heads
    query, key = (
        F.normalize(normal(key_heads, dim), dim=-1).bfloat16().repeat_interleave(share, 2)
        for _ in range(2)
    )
    value = normal(value_heads, dim).bfloat16()
    rates = torch.logspace(0, 1, value_heads, base=16 / 0.05, device="cuda") * 0.05
    rates = rates.view(share, key_heads).T.reshape(-1)
    log_decay = -rates * F.softplus(normal(value_heads))
    beta = normal(value_heads).sigmoid().bfloat16()
    return [x.contiguous().requires_grad_() for x in (query, key, value, log_decay, beta)]


def relative_error(output: torch.Tensor, inputs: list[torch.Tensor]) -> float:
    """Of the first rows, against the recurrence in f64."""
    query, key, value, log_decay, beta = (x[0, :CHECKED_ROWS].detach().double() for x in inputs)
    state = query.new_zeros(query.shape[1], query.shape[2], value.shape[2])
    rows = []
    for q, k, v, g, b in zip(query, key, value, log_decay, beta):
        state = state * g.exp()[:, None, None]
        update = b[:, None] * (v - torch.einsum("hkv,hk->hv", state, k))
        state = state + k[:, :, None] * update[:, None, :]
        rows.append(torch.einsum("hkv,hk->hv", state, q) * q.shape[-1] ** -0.5)
    expected = torch.stack(rows)
    output = output[0, :CHECKED_ROWS].detach().double()
    return float((output - expected).norm() / expected.norm())


def tflops(rows: int, heads: int, dim: int, states: float, pairs: float, milliseconds: float):
    """Of products in full windows: `states` of 64 x d x d and `pairs` of 64 x 64 x d."""
    multiply_adds = rows * heads * (states * dim * dim + pairs * WINDOW * dim)
    return 2 * multiply_adds / milliseconds / 1e9


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", type=int, default=[8192, 16384, 32768])
    parser.add_argument("--heads", default="16/32")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    key_heads, value_heads = map(int, arguments.heads.split("/"))
    dim = arguments.head_dim

    results = []
    for rows in arguments.rows:
        inputs = random_inputs(rows, key_heads, value_heads, dim)
        result = {"rows": rows, "heads": arguments.heads, "head_dim": dim}
        results.append(result)

        output = chunk_gated_delta_rule(*inputs)[0]
        result["output_error"] = relative_error(output, inputs)
        result["forward_ms"] = do_bench(
            lambda: chunk_gated_delta_rule(*inputs)[0], 25, 150, return_mode="median"
        )
        result["forward_tflops"] = tflops(
            rows, value_heads, dim, 3, 4, result["forward_ms"]
        )
        gradient = torch.randn_like(output)
        try:
            result["backward_ms"] = do_bench(
                lambda: torch.autograd.grad(output, inputs, gradient, retain_graph=True),
                25,
                150,
                return_mode="median",
            )
            result["backward_tflops"] = tflops(
                rows, value_heads, dim, 8, 15, result["backward_ms"]
            )
        # Versions of Triton that miscompile the backward pass are refused by an exception.
        except Exception as refused:  # noqa: BLE001
            result["backward_refused"] = first_line(refused)
        print(" ".join(
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in result.items()
        ), flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
