"""Time of a training step of Qwen3-0.6B's shape in PyTorch, on steps that `bench-train` saved.

    python3 qwen3_step.py FOLDER/*.safetensors [--compile] [--json FILE]

Hugging Face's model with random weights in f32 under bf16 autocast, FlexAttention with the tree
mask, log-probabilities of the rows with targets in chunks that the backward pass recomputes, one
backward pass per pack, fused AdamW. `--compile` compiles each layer.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, Qwen3Config, Qwen3ForCausalLM

from tree_packs import Pack, block_mask, load_step

CHUNK_ROWS = 4096

compiled_attention = torch.compile(flex_attention, dynamic=False)


def tree_attention(module, query, key, value, attention_mask, scaling=None, **_):
    # Norm weights in f32 widen query and key under autocast.
    query, key = query.to(value.dtype), key.to(value.dtype)
    output = compiled_attention(
        query, key, value, block_mask=attention_mask, scale=scaling, enable_gqa=True
    )
    return output.transpose(1, 2).contiguous(), None


AttentionInterface.register("tree_attention", tree_attention)


def new_model() -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=151_936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        attn_implementation="tree_attention",
        use_cache=False,
    )
    with torch.device("cuda"):
        return Qwen3ForCausalLM(config).float().train()


def chunk_loss(hidden, head, slots, targets, weights):
    with torch.autocast("cuda", torch.bfloat16):
        logits = torch.nn.functional.linear(hidden, head).float()
    log_probs = logits[slots, targets] - torch.logsumexp(logits, -1)[slots]
    return -(weights * log_probs).sum()


def pack_loss(model, pack: Pack, mask) -> torch.Tensor:
    with torch.autocast("cuda", torch.bfloat16):
        hidden = model.model(
            input_ids=pack.tokens[None],
            position_ids=pack.position_ids[None],
            attention_mask={"full_attention": mask},
        ).last_hidden_state[0, pack.projected_rows]
    loss = 0.0
    for start in range(0, len(hidden), CHUNK_ROWS):
        end = min(start + CHUNK_ROWS, len(hidden))
        chosen = (pack.slots >= start) & (pack.slots < end)
        loss = loss + checkpoint(
            chunk_loss,
            hidden[start:end],
            model.lm_head.weight,
            pack.slots[chosen] - start,
            pack.targets[chosen],
            pack.weights[chosen],
            use_reentrant=False,
        )
    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("steps", nargs="+", type=Path)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch._dynamo.config.recompile_limit = 64  # one compilation per shape and mask

    model = new_model()
    if arguments.compile:
        for layer in model.model.layers:
            layer.compile(dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.1, fused=True)

    def step(packs: list[Pack]) -> float:
        total = 0.0
        for pack in packs:
            loss = pack_loss(model, pack, block_mask(pack))
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(total)

    results = []
    for path in arguments.steps:
        packs = load_step(str(path))
        try:
            start = time.perf_counter()
            loss = step(packs)
            first = time.perf_counter() - start
            torch.cuda.reset_peak_memory_stats()
            seconds = []
            for _ in range(arguments.repetitions):
                torch.cuda.synchronize()
                start = time.perf_counter()
                step(packs)
                torch.cuda.synchronize()
                seconds.append(time.perf_counter() - start)
        except torch.OutOfMemoryError as failure:
            print(f"{path.stem}: {str(failure).splitlines()[0]}", flush=True)
            optimizer.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            continue
        results.append({
            "step": path.stem,
            "packs": len(packs),
            "rows": sum(pack.rows for pack in packs),
            "compiled": arguments.compile,
            "median_ms": statistics.median(seconds) * 1e3,
            "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
            "loss": loss,
        })
        result = results[-1]
        print(f"{path.stem}: {len(packs)} packs, {result['rows']} rows, "
              f"{result['median_ms']:.1f} ms (first {first:.1f} s), "
              f"{result['peak_gib']:.1f} GiB, loss {loss:.4f}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
