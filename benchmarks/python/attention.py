"""Useful TFLOP/s of FlexAttention on the trees that `bench-attention --write-packs` saved.

    python3 attention.py FOLDER/*.safetensors [--heads 16/8 32/8] [--json FILE]

Useful FLOPs are 4 d per visible (query, key) pair and query head forward, 2.5 times that backward.
On a single path, `scaled_dot_product_attention` with its causal flag is timed, too.
"""

import argparse
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention
from triton.testing import do_bench

from tree_packs import Pack, block_mask, load_step

SAMPLED_ROWS = 64


def relative_error(output, query, key, value, pack: Pack) -> float:
    """Against attention in f64 on some rows of all heads."""
    rows = torch.randperm(pack.rows, device=query.device)[:SAMPLED_ROWS].sort().values
    group = query.shape[1] // key.shape[1]
    query = query[0][:, rows].double()
    key, value = (x[0].repeat_interleave(group, 0).double() for x in (key, value))
    index = torch.arange(pack.rows, device=query.device)
    visible = (index <= rows[:, None]) & (rows[:, None] < pack.key_end)
    scores = query @ key.transpose(1, 2) * query.shape[-1] ** -0.5
    # Padding sees nothing: its output is zero.
    expected = scores.masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num() @ value
    return float((output[0][:, rows].double() - expected).norm() / expected.norm())


def time(attention, query, key, value) -> tuple[float, float]:
    """Milliseconds of the forward and of the backward pass, medians."""
    # With gradients on, so that nothing is compiled a second time for inference.
    forward = do_bench(lambda: attention(query, key, value), 25, 150, return_mode="median")
    output = attention(query, key, value)
    gradient = torch.randn_like(output)
    backward = do_bench(
        lambda: torch.autograd.grad(output, (query, key, value), gradient, retain_graph=True),
        25,
        150,
        return_mode="median",
    )
    return forward, backward


def sdpa(backend: SDPBackend):
    def attention(query, key, value):
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=True
            )

    return attention


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("steps", nargs="+", type=Path)
    parser.add_argument("--heads", nargs="+", default=["16/8", "32/8"])
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch._dynamo.config.recompile_limit = 64  # one compilation per shape and mask

    compiled = torch.compile(flex_attention, dynamic=False)
    results = []
    print(f"{'tree':<14} {'heads':>6} {'rows':>6} {'visible':>8} {'implementation':<16} "
          f"{'forward':>8} {'backward':>8} {'error':>9}  (TFLOP/s)")
    for path in arguments.steps:
        pack = load_step(str(path))[0]
        mask = block_mask(pack)
        for heads in arguments.heads:
            query_heads, kv_heads = map(int, heads.split("/"))

            def random(count: int) -> torch.Tensor:
                shape = (1, count, pack.rows, arguments.head_dim)
                return torch.randn(
                    shape, device="cuda", dtype=torch.bfloat16, requires_grad=True
                )

            query, key, value = random(query_heads), random(kv_heads), random(kv_heads)
            implementations = {
                "flex": lambda q, k, v: compiled(q, k, v, block_mask=mask, enable_gqa=True)
            }
            if pack.visible_pairs == pack.rows * (pack.rows + 1) // 2:
                implementations["sdpa cudnn"] = sdpa(SDPBackend.CUDNN_ATTENTION)
                implementations["sdpa flash"] = sdpa(SDPBackend.FLASH_ATTENTION)
            flops = 4.0 * arguments.head_dim * query_heads * pack.visible_pairs
            for name, attention in implementations.items():
                try:
                    error = relative_error(attention(query, key, value), query, key, value, pack)
                    forward, backward = time(attention, query, key, value)
                except RuntimeError as failure:
                    print(f"{path.stem:<14} {heads:>6} {name}: {str(failure).splitlines()[0]}")
                    continue
                results.append({
                    "tree": path.stem,
                    "heads": heads,
                    "rows": pack.rows,
                    "visible_share": pack.visible_pairs / pack.rows**2,
                    "implementation": name,
                    "forward_tflops": flops / forward / 1e9,
                    "backward_tflops": 2.5 * flops / backward / 1e9,
                    "forward_error": error,
                })
                result = results[-1]
                print(f"{path.stem:<14} {heads:>6} {pack.rows:>6} {result['visible_share']:>8.3f} "
                      f"{name:<16} {result['forward_tflops']:>8.0f} "
                      f"{result['backward_tflops']:>8.0f} {error:>9.1e}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
