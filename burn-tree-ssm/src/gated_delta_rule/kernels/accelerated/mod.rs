//! Kernels for tensor cores: `mma.sync` with `ldmatrix` and asynchronous copies, on NVIDIA GPUs
//! through CubeCL's C++ compiler.

mod arguments;
mod backward;
mod blocks;
mod decays;
mod forward;
mod pass;
mod place;
mod rows;
mod states;
#[cfg(all(test, feature = "cuda"))]
mod transpiled;
mod words;

use burn::tensor::DType;
use burn_tree_kit::cube::matrix::{missing_instructions, operand};
use burn_tree_kit::implementation::Unavailable;
use cubecl::prelude::*;

use super::call::Dims;
pub(crate) use backward::backward;
use blocks::ROWS;
pub(crate) use forward::forward;

/// Whether these kernels run on a device, for windows of `window_rows` rows.
pub(crate) fn check_available(
    properties: &DeviceProperties,
    dtype: DType,
    dims: &Dims,
    window_rows: usize,
) -> Result<(), Unavailable> {
    let refuse = |text: String| Err(Unavailable(text));
    let Some(element) = operand(dtype) else {
        return refuse(format!("{dtype:?} tensors; f16 or bf16 are needed"));
    };
    for (of, dim) in [("key", dims.key_dim), ("value", dims.value_dim)] {
        if !matches!(dim, 64 | 128) {
            return refuse(format!(
                "the head dimension of the {of} is {dim}; 64 or 128 are needed"
            ));
        }
    }
    if window_rows != ROWS {
        return refuse(format!(
            "windows of {window_rows} rows; windows of {ROWS} are needed"
        ));
    }
    if let Some(missing) = missing_instructions(properties, element) {
        return refuse(missing);
    }
    let needed = forward::shared_bytes(dims.key_dim, dims.value_dim)
        .max(backward::shared_bytes(dims.key_dim, dims.value_dim));
    let available = properties.hardware.max_shared_memory_size;
    if available < needed {
        return refuse(format!(
            "{available} bytes of shared memory; {needed} are needed"
        ));
    }
    check_sizes(dims)
}

/// Refuses tensors that 32 bits cannot count as the kernels do: rows of value heads in windows of
/// 64 numbers, in chunks of eight.
fn check_sizes(dims: &Dims) -> Result<(), Unavailable> {
    let chunks = dims.rows as u64 * dims.value_heads as u64 * (ROWS as u64 / 8);
    match u32::try_from(chunks) {
        Ok(_) => Ok(()),
        Err(_) => Err(Unavailable(format!(
            "{} rows of {} heads are too many for one launch",
            dims.rows, dims.value_heads
        ))),
    }
}
