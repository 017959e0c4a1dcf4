//! One call of the kernels.

use std::sync::Arc;

use burn::tensor::DType;
use burn_cubecl::CubeDevice;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::implementation::Unavailable;

use super::device_plan::DevicePlan;
use super::plan::TileShape;
use crate::mask::Visibility;
use crate::tree_attention::dims::Dims;
use crate::tree_attention::options::AttentionSettings;

/// What a call is before its tensors are there.
pub(crate) struct Call<'a> {
    pub device: &'a CubeDevice,
    pub dtype: DType,
    pub dims: Dims,
    pub visibility: &'a Visibility,
    pub settings: AttentionSettings,
}

impl Call<'_> {
    /// The plan of the mask for these tiles on the device.
    pub(super) fn plan(&self, tiles: TileShape) -> Result<Arc<DevicePlan>, Unavailable> {
        let window = self.settings.sliding_window;
        DevicePlan::of(self.visibility, self.device, tiles, window)
    }
}

/// Query, key and value of a call, contiguous.
pub(super) struct Inputs {
    pub query: CubeTensor,
    pub key: CubeTensor,
    pub value: CubeTensor,
}

impl Inputs {
    pub(super) fn contiguous(tensors: [&CubeTensor; 3]) -> Self {
        let [query, key, value] = tensors.map(|tensor| into_contiguous(tensor.clone()));
        Self { query, key, value }
    }

    pub(super) fn call<'a>(
        &'a self,
        visibility: &'a Visibility,
        settings: AttentionSettings,
    ) -> Call<'a> {
        Call {
            device: &self.query.device,
            dtype: self.query.dtype,
            dims: Dims::new(&self.query, &self.key, &self.value),
            visibility,
            settings,
        }
    }
}

/// What the backward pass needs besides the inputs, contiguous.
pub(super) struct Results {
    pub output: CubeTensor,
    pub log_sum_exp: CubeTensor,
    pub grad_output: CubeTensor,
}

/// Gradients of query, key and value.
pub(super) type Gradients = (CubeTensor, CubeTensor, CubeTensor);
