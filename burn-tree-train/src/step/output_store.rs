//! Storage of tensors between the passes over packs: rows for later packs, with the sums of the
//! gradients that arrived for them.

use burn::backend::ExecutionError;
use burn::tensor::{Device, Tensor, TensorData};

use super::rows::{BlockRows, Rows};

/// Where tensors that are not in use are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Storage {
    Device,
    Host,
}

/// A stored tensor, without autodiff.
#[derive(Debug)]
pub(super) enum Stored<const D: usize> {
    Device(Tensor<D>),
    Host(TensorData),
}

impl<const D: usize> Stored<D> {
    pub(super) fn new(tensor: Tensor<D>, storage: Storage) -> Result<Self, ExecutionError> {
        let tensor = tensor.inner();
        Ok(match storage {
            Storage::Device => Self::Device(tensor),
            Storage::Host => {
                // Copied: data returned by CubeCL is not read until its bytes are accessed, and
                // occupies the device until it is dropped.
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

    /// Loads the tensor onto `device`, which has no autodiff.
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

/// Rows of one output tensor of a block for later packs.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) tensor: Stored<4>,
    pub(super) features: Vec<usize>,
    gradient: Option<Stored<4>>,
}

impl Kept {
    pub(super) fn new(rows: Rows, storage: Storage) -> Result<Self, ExecutionError> {
        Ok(Self {
            tensor: Stored::new(rows.tensor, storage)?,
            features: rows.features,
            gradient: None,
        })
    }

    /// The sum of the gradients from later packs, in at least f32; `None` if none arrived.
    pub(super) fn take_gradient(&mut self, device: &Device) -> Option<Tensor<4>> {
        self.gradient.take().map(|gradient| gradient.take(device))
    }

    pub(super) fn add_gradient(
        &mut self,
        gradient: Tensor<4>,
        storage: Storage,
        device: &Device,
    ) -> Result<(), ExecutionError> {
        let sum = match self.take_gradient(device) {
            Some(sum) => sum + gradient,
            None => gradient,
        };
        self.gradient = Some(Stored::new(sum, storage)?);
        Ok(())
    }
}

/// The outputs of the blocks of every pack that is entered and not yet left.
pub(super) struct OutputStore {
    pub(super) packs: Vec<Option<Vec<BlockRows<Kept>>>>,
    /// Where sums of gradients are stored.
    pub(super) gradients: Storage,
    /// Without autodiff.
    pub(super) device: Device,
}

impl OutputStore {
    pub(super) fn new(packs: usize, gradients: Storage, device: &Device) -> Self {
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
