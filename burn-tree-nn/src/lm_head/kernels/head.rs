//! The head's matrix products.

use std::ops::Range;

use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, Slice};
use burn_cubecl::kernel::matmul::{MatmulStrategy, matmul};
use burn_cubecl::{CubeBackend, tensor::CubeTensor};
use burn_tree_kit::cube::{
    DeviceList, RowGroups, contiguous, plane_width, probe, units_per_cube, vector_size,
};

use crate::gather_rows;
use crate::lm_head::plan::LmHeadPlan;
use crate::lm_head::tensors::LmHeadInputs;
use crate::product::{Form, Products};

/// Default number of logits in a chunk: 512 MiB in f32.
const CHUNK_LOGITS: usize = 1 << 27;

/// Inputs of both directions: states of the projected rows, head and targets.
pub(super) struct Head<'a> {
    /// Hidden states of the projected rows, in the dtype of the products.
    pub(super) states: CubeTensor,
    /// In the dtype of the products.
    pub(super) weight: CubeTensor,
    /// `[n]`
    pub(super) targets: CubeTensor,
    /// First occurrence of each projected row, and their number at the end.
    pub(super) starts: DeviceList,
    pub(super) plan: &'a LmHeadPlan,
}

impl<'a> Head<'a> {
    pub(super) fn new(inputs: LmHeadInputs<CubeBackend>, plan: &'a LmHeadPlan) -> Self {
        let LmHeadInputs {
            hidden,
            head_weight: weight,
            targets,
        } = inputs;
        let dtype = plan.product_dtype(hidden.dtype, weight.dtype);
        let starts = plan.device_starts.get(&hidden, |client| {
            DeviceList::new(client, &plan.occurrence_starts())
        });
        let states = gather_rows::kernel::forward(hidden, plan.gather());
        let [weight, targets] = contiguous([weight, targets]);
        Self {
            states: CubeBackend::float_cast(states, dtype),
            weight: CubeBackend::float_cast(weight, dtype),
            targets,
            starts,
            plan,
        }
    }

    /// `[vocab, hidden size]`
    pub(super) fn shape(&self) -> [usize; 2] {
        [self.weight.meta.shape()[0], self.weight.meta.shape()[1]]
    }

    /// Maximum number of logits at a time.
    pub(super) fn chunk_logits(&self) -> usize {
        let [vocab, _] = self.shape();
        let largest = self.weight.client.properties().memory.max_page_size / 4;
        let most = CHUNK_LOGITS.min(usize::try_from(largest).unwrap_or(usize::MAX));
        self.plan.chunk_rows().map_or(most, |rows| rows * vocab)
    }
}

/// A matrix product, by the tensor-core kernel where it runs, else by Burn. Sums are in f32, the
/// result in `dtype`: f32 or that of the factors.
pub(super) fn product(form: Form, left: CubeTensor, right: CubeTensor, dtype: DType) -> CubeTensor {
    let terms = vec![(left.clone(), right.clone())];
    let product = match Products::sum(form, terms, dtype) {
        Ok(products) => products.launch().remove(0),
        Err(_) => burn_product(form, left, right, dtype),
    };
    // Probes the largest tensor of a step: later chunks write to the same result and clear the mark
    // of a failed chunk.
    probe(&product);
    product
}

fn burn_product(form: Form, left: CubeTensor, right: CubeTensor, dtype: DType) -> CubeTensor {
    probe(&left);
    probe(&right);
    let (left, right) = match form {
        Form::Plain => (left, right),
        Form::RightTransposed => (left, CubeBackend::float_transpose(right)),
        Form::LeftTransposed => (CubeBackend::float_transpose(left), right),
    };
    matmul(left, right, None, MatmulStrategy::default(), dtype)
        .unwrap_or_else(|error| panic!("matrix product of the language-model head: {error:?}"))
}

pub(super) fn slice_rows(tensor: &CubeTensor, rows: Range<usize>) -> CubeTensor {
    CubeBackend::float_slice(tensor.clone(), &[Slice::from(rows)])
}

/// Logits may have space between rows.
pub(super) fn logits_vector(logits: &CubeTensor) -> usize {
    let size = |width| vector_size(&logits.client, &[DType::F32], width);
    size(logits.meta.shape()[1]).min(size(logits.meta.strides()[0]))
}

pub(super) fn cube_per_row(near: &CubeTensor) -> RowGroups {
    let units = units_per_cube(&near.client);
    RowGroups {
        units,
        lanes: units,
        plane: plane_width(&near.client).min(units),
    }
}
