"""Packed steps as `tree_pack` saves them (safetensors), read into PyTorch."""

import json
from dataclasses import dataclass

import torch
from safetensors import safe_open
from safetensors.numpy import load_file
from torch.nn.attention.flex_attention import BlockMask, create_block_mask


@dataclass
class Pack:
    """One row of tokens, padded to `rows`; padding sees nothing and is seen by nobody."""

    rows: int
    tokens: torch.Tensor  # [rows]
    position_ids: torch.Tensor  # [rows]
    key_end: torch.Tensor  # [rows] int32: key j is visible to the queries j <= i < key_end[j]
    projected_rows: torch.Tensor  # [projected] rows that predict something
    slots: torch.Tensor  # [predictions] index in `projected_rows`
    targets: torch.Tensor  # [predictions]
    weights: torch.Tensor  # [predictions] coefficients in the loss of the step
    visible_pairs: int


def load_step(path: str, device: str = "cuda") -> list[Pack]:
    with safe_open(path, framework="numpy") as file:
        description = json.loads(file.metadata()["tree_pack"])
    columns = load_file(path)
    packs = []
    for number, entry in enumerate(description["packs"]):
        rows = entry["padded_len"]

        def column(name: str, dtype: torch.dtype, padded: bool) -> torch.Tensor:
            values = torch.from_numpy(columns[f"{number}.{name}"].astype("int64"))
            if padded:
                values = torch.nn.functional.pad(values, (0, rows - len(values)))
            return values.to(device=device, dtype=dtype)

        position_ids = column("position_ids", torch.int64, True)
        used = len(columns[f"{number}.tokens"])
        projected_rows, slots = torch.unique(
            column("occurrences.rows", torch.int64, False), return_inverse=True
        )
        weights = torch.from_numpy(columns[f"{number}.occurrences.weights"])
        packs.append(
            Pack(
                rows=rows,
                tokens=column("tokens", torch.int64, True),
                position_ids=position_ids,
                key_end=column("subtree_ends", torch.int32, True),
                projected_rows=projected_rows,
                slots=slots,
                targets=column("occurrences.targets", torch.int64, False),
                weights=weights.to(device=device, dtype=torch.float32),
                visible_pairs=int((position_ids[:used] + 1).sum()),
            )
        )
    return packs


def block_mask(pack: Pack) -> BlockMask:
    """The tree mask of FlexAttention: one interval of queries per key."""
    key_end = pack.key_end

    def visible(batch, head, query, key):
        return (query >= key) & (query < key_end[key])

    return create_block_mask(
        visible, None, None, pack.rows, pack.rows, device=key_end.device, _compile=True
    )
