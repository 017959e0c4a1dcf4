//! Memory of masks, plans and indices.

use std::slice::from_ref;

use burn::tensor::Device;
use burn_tree_train::BlockContext;
use tree_pack::{IndexMemory, Pack, TreeBatch};

/// Bytes of the mask, the positions, the predictions and, for recurrent layers, the recurrence of
/// the largest pack that does not continue another. Kernels build further plans on first use.
pub fn index_memory(packs: &[Pack], recurrent: bool, device: &Device) -> Option<IndexMemory> {
    let whole = packs.iter().filter(|pack| pack.gateway.is_none());
    let largest = whole.max_by_key(|pack| pack.layout.len())?;
    let batch = TreeBatch::new(from_ref(largest), &device.clone().inner());
    let context = BlockContext::new(&batch);
    if recurrent {
        context.recurrence();
    }
    Some(batch.index_memory() + context.index_memory())
}
