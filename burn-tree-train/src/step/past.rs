//! The past context of a pack on the device, and the return of its gradients to earlier packs.

use burn::backend::ExecutionError;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use burn_tree_kit::dtype::at_least_f32;
use tree_pack::IndexMemory;

use super::output_store::{Kept, OutputStore};
use super::pack_tree::PastRows;
use super::rows::{BlockRows, ROW_DIM, Rows};

/// A selection of the rows that a pack provides, in ascending order, for one later pack.
#[derive(Debug)]
struct Selection {
    /// The pack.
    pack: usize,
    /// Number of rows selected.
    len: usize,
    /// The plan to gather them and to scatter their gradients; `None` if all rows are selected.
    indices: Option<Indices>,
}

#[derive(Debug)]
struct Indices {
    /// `[len]` the rows.
    selected: Tensor<1, Int>,
    /// `[left]` position in the selection of each row that the pack provides; `len` if not
    /// selected.
    places: Tensor<1, Int>,
}

impl Selection {
    /// `left` is the number of rows that the pack provides.
    fn new(past: &PastRows, left: usize, device: &Device) -> Self {
        let len = past.slots.len();
        let indices = (len < left).then(|| {
            let mut places = vec![len as i32; left];
            for (place, &slot) in past.slots.iter().enumerate() {
                places[slot as usize] = place as i32;
            }
            let selected = past
                .slots
                .iter()
                .map(|&slot| slot as i32)
                .collect::<Vec<_>>();
            let tensor = |values: Vec<i32>| {
                let len = values.len();
                Tensor::<1, Int>::from_data(TensorData::new(values, [len]), device)
            };
            Indices {
                selected: tensor(selected),
                places: tensor(places),
            }
        });
        Self {
            pack: past.pack,
            len,
            indices,
        }
    }

    fn gather(&self, rows: Tensor<4>) -> Tensor<4> {
        match &self.indices {
            None => rows,
            Some(indices) => rows.select(ROW_DIM, indices.selected.clone()),
        }
    }

    /// The gradient of all rows that the pack provides, with zeros where none is selected. Computed
    /// as a gather, so it needs no atomic additions.
    fn scatter(&self, gradient: Tensor<4>) -> Tensor<4> {
        match &self.indices {
            None => gradient,
            Some(indices) => {
                let [_, heads, _, width] = gradient.dims();
                let device = (&gradient.device(), gradient.dtype());
                let zeros = Tensor::zeros([1, heads, 1, width], device);
                let padded = Tensor::cat(vec![gradient, zeros], ROW_DIM);
                padded.select(ROW_DIM, indices.places.clone())
            }
        }
    }
}

/// Concatenates the tensors; a single one is not copied, unlike with `Tensor::cat`.
fn joined(mut parts: Vec<Tensor<4>>) -> Tensor<4> {
    match parts.len() {
        1 => parts.remove(0),
        _ => Tensor::cat(parts, ROW_DIM),
    }
}

/// The sources of the past context of a pack.
pub(super) struct PastSources {
    /// Sources of keys and values.
    keys: Vec<Selection>,
    /// Sources of states and convolution tails.
    states: Option<Selection>,
}

impl PastSources {
    /// `left` returns the numbers of rows for which a pack provides keys and states.
    pub(super) fn new(
        past: &[PastRows],
        states: Option<&PastRows>,
        left: impl Fn(usize) -> (usize, usize),
        device: &Device,
    ) -> Self {
        let device = &device.clone().inner();
        Self {
            keys: past
                .iter()
                .map(|past| Selection::new(past, left(past.pack).0, device))
                .collect(),
            states: states.map(|past| Selection::new(past, left(past.pack).1, device)),
        }
    }

    /// Bytes of the indices.
    pub(super) fn index_memory(&self) -> IndexMemory {
        let selections = self.keys.iter().chain(&self.states);
        let tensors = selections
            .filter_map(|selection| selection.indices.as_ref())
            .flat_map(|indices| [&indices.selected, &indices.places]);
        let bytes = tensors.map(|tensor| tensor.shape().num_elements() * tensor.dtype().size());
        IndexMemory {
            host_bytes: 0,
            device_bytes: bytes.sum::<usize>() as u64,
        }
    }

    /// The past context of block `block`, without autodiff.
    pub(super) fn gather(&self, store: &OutputStore, block: usize) -> BlockRows<Rows> {
        let Some(states) = &self.states else {
            return BlockRows::Nothing;
        };
        let load =
            |kept: &Kept, selection: &Selection| selection.gather(kept.tensor.load(&store.device));
        match store.block(states.pack, block) {
            BlockRows::Nothing => BlockRows::Nothing,
            BlockRows::Recurrent {
                states: kept,
                conv_tails,
            } => {
                let rows = |kept: &Kept| Rows {
                    tensor: load(kept, states),
                    features: kept.features.clone(),
                };
                BlockRows::Recurrent {
                    states: rows(kept),
                    conv_tails: conv_tails.as_ref().map(rows),
                }
            }
            BlockRows::Attention { key, value } => {
                let mut keys = Vec::with_capacity(self.keys.len());
                let mut values = Vec::with_capacity(self.keys.len());
                for selection in &self.keys {
                    let BlockRows::Attention { key, value } = store.block(selection.pack, block)
                    else {
                        unreachable!("a block is of the same kind in every pack");
                    };
                    keys.push(load(key, selection));
                    values.push(load(value, selection));
                }
                let rows = |kept: &Kept, parts| Rows {
                    tensor: joined(parts),
                    features: kept.features.clone(),
                };
                BlockRows::Attention {
                    key: rows(key, keys),
                    value: rows(value, values),
                }
            }
        }
    }

    /// Adds the gradients of the past context of block `block` to the sums of the packs that own
    /// the rows.
    pub(super) fn add_gradients(
        &self,
        store: &mut OutputStore,
        block: usize,
        gradients: BlockRows<Option<Tensor<4>>>,
    ) -> Result<(), ExecutionError> {
        let (storage, device) = (store.gradients, store.device.clone());
        let mut add = |selection: &Selection, index: usize, gradient: Tensor<4>| {
            let blocks = store.packs[selection.pack].as_mut();
            let kept = &mut blocks.expect("a pack is left after its descendants")[block];
            let kept = kept.as_mut().into_vec().swap_remove(index);
            let wide = DType::from(at_least_f32(gradient.dtype()));
            kept.add_gradient(selection.scatter(gradient.cast(wide)), storage, &device)
        };
        let by_row = matches!(gradients, BlockRows::Attention { .. });
        for (index, gradient) in gradients.into_vec().into_iter().enumerate() {
            let Some(gradient) = gradient else {
                continue;
            };
            if by_row {
                let mut start = 0;
                for selection in &self.keys {
                    let end = start + selection.len;
                    add(
                        selection,
                        index,
                        gradient.clone().slice_dim(ROW_DIM, start..end),
                    )?;
                    start = end;
                }
            } else if let Some(states) = &self.states {
                add(states, index, gradient)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::output_store::Storage;
    use super::*;

    fn rows(values: &[f32], dtype: DType) -> Tensor<4> {
        let data = TensorData::new(values.to_vec(), [1, 1, values.len(), 1]);
        Tensor::from_data(data, (&Device::flex(), dtype))
    }

    fn read(tensor: Tensor<4>) -> Vec<f32> {
        tensor.into_data().iter::<f32>().collect()
    }

    /// A pack that provides the rows 1, 2 and 3 of one attention block.
    fn store(storage: Storage) -> OutputStore {
        let kept = |values: &[f32]| {
            let rows = Rows {
                tensor: rows(values, DType::BF16),
                features: vec![1, 1],
            };
            Kept::new(rows, storage).unwrap()
        };
        let mut store = OutputStore::new(1, storage, &Device::flex());
        let block = BlockRows::Attention {
            key: kept(&[1.0, 2.0, 3.0]),
            value: kept(&[4.0, 5.0, 6.0]),
        };
        store.put(0, vec![block]);
        store
    }

    fn sources(slots: &[u32]) -> PastSources {
        let past = |slots: &[u32]| PastRows {
            pack: 0,
            slots: slots.to_vec(),
        };
        let states = past(&slots[..1]);
        PastSources::new(&[past(slots)], Some(&states), |_| (3, 3), &Device::flex())
    }

    #[test]
    fn descendants_see_the_rows_they_selected() {
        for storage in [Storage::Device, Storage::Host] {
            let gathered = sources(&[0, 2])
                .gather(&store(storage), 0)
                .map(|rows| read(rows.tensor));
            assert_eq!(gathered.into_vec(), [vec![1.0, 3.0], vec![4.0, 6.0]]);
        }
    }

    /// Fault 24: bfloat16 has 8 significant bits, so 256 + 1 would be rounded to 256.
    #[test]
    fn gradients_of_many_descendants_are_summed_in_f32() {
        for storage in [Storage::Device, Storage::Host] {
            let mut store = store(storage);
            let all = sources(&[0, 1, 2]);
            let some = sources(&[1]);
            for descendant in 0..1000 {
                let (sources, values) = match descendant % 2 {
                    0 => (&all, &[256.0, 1.0, 3.0][..]),
                    _ => (&some, &[1.0][..]),
                };
                let gradients = BlockRows::Attention {
                    key: Some(rows(values, DType::BF16)),
                    value: None,
                };
                sources.add_gradients(&mut store, 0, gradients).unwrap();
            }
            let mut blocks = store.remove(0).unwrap();
            let sums = blocks[0].as_mut().into_vec();
            let sums: Vec<_> = sums
                .into_iter()
                .map(|kept| kept.take_gradient(&Device::flex()).map(read))
                .collect();
            assert_eq!(sums, [Some(vec![128_000.0, 1000.0, 1500.0]), None]);
        }
    }
}
