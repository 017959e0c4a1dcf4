//! Tensors that wait between the passes over a pack: rows that descendants continue from, with the sum
//! of the gradients that arrived for them.

use burn::backend::ExecutionError;
use burn::tensor::{Device, Tensor, TensorData};

use super::rows::{BlockRows, Rows};

/// Where tensors wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Device,
    Host,
}

/// A tensor that waits, without autodiff.
#[derive(Debug)]
pub(super) enum Stored<const D: usize> {
    Device(Tensor<D>),
    Host(TensorData),
}

impl<const D: usize> Stored<D> {
    pub(super) fn new(tensor: Tensor<D>, place: Place) -> Result<Self, ExecutionError> {
        let tensor = tensor.inner();
        Ok(match place {
            Place::Device => Self::Device(tensor),
            Place::Host => {
                // A copy: what CubeCL returns is not read before it is looked at, and holds its place on the
                // device until it is dropped.
                let data = tensor.try_into_data()?;
                let bytes = data.as_bytes().to_vec();
                Self::Host(TensorData::from_bytes_vec(
                    bytes,
                    data.shape().clone(),
                    data.dtype(),
                ))
            }
        })
    }

    /// The tensor on `device`, which has no autodiff.
    pub(super) fn load(&self, device: &Device) -> Tensor<D> {
        match self {
            Self::Device(tensor) => tensor.clone(),
            Self::Host(data) => Self::upload(data.clone(), device),
        }
    }

    pub(super) fn take(self, device: &Device) -> Tensor<D> {
        match self {
            Self::Device(tensor) => tensor,
            Self::Host(data) => Self::upload(data, device),
        }
    }

    fn upload(data: TensorData, device: &Device) -> Tensor<D> {
        let dtype = data.dtype();
        Tensor::from_data(data, (device, dtype))
    }
}

/// Rows of one tensor of a block that descendants continue from.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) tensor: Stored<4>,
    pub(super) features: Vec<usize>,
    gradient: Option<Stored<4>>,
}

impl Kept {
    pub(super) fn new(rows: Rows, place: Place) -> Result<Self, ExecutionError> {
        Ok(Self {
            tensor: Stored::new(rows.tensor, place)?,
            features: rows.features,
            gradient: None,
        })
    }

    /// The sum of the gradients of all descendants, in at least f32; `None` if none arrived.
    pub(super) fn take_gradient(&mut self, device: &Device) -> Option<Tensor<4>> {
        self.gradient.take().map(|gradient| gradient.take(device))
    }

    pub(super) fn add_gradient(
        &mut self,
        gradient: Tensor<4>,
        place: Place,
        device: &Device,
    ) -> Result<(), ExecutionError> {
        let sum = match self.take_gradient(device) {
            Some(sum) => sum + gradient,
            None => gradient,
        };
        self.gradient = Some(Stored::new(sum, place)?);
        Ok(())
    }
}

/// What the blocks of every pack leave that is entered and not left yet.
pub(super) struct Shelf {
    pub(super) packs: Vec<Option<Vec<BlockRows<Kept>>>>,
    /// Where sums of gradients wait.
    pub(super) gradients: Place,
    /// Without autodiff.
    pub(super) device: Device,
}

impl Shelf {
    pub(super) fn new(packs: usize, gradients: Place, device: &Device) -> Self {
        Self {
            packs: (0..packs).map(|_| None).collect(),
            gradients,
            device: device.clone().inner(),
        }
    }

    pub(super) fn put(&mut self, pack: usize, blocks: Vec<BlockRows<Kept>>) {
        self.packs[pack] = Some(blocks);
    }

    pub(super) fn remove(&mut self, pack: usize) -> Option<Vec<BlockRows<Kept>>> {
        self.packs[pack].take()
    }

    pub(super) fn block(&self, pack: usize, block: usize) -> &BlockRows<Kept> {
        let blocks = self.packs[pack]
            .as_ref()
            .expect("a pack is left after its descendants");
        &blocks[block]
    }
}
