//! The backward pass.

use std::ops::Range;

use burn::backend::TensorMetadata;
use burn::tensor::{DType, Shape};
use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::cube::{address_type, empty, units};

use super::super::backward::StateGradientInputsLaunch;
use super::super::elementwise::InitialChildrenLaunch;
use super::super::gradients::{
    PairGradientInputsLaunch, QueryGradientInputsLaunch, StateKeyGradientInputsLaunch,
};
use super::super::scan::TransitionsLaunch;
use super::super::tile::TILE;
use super::super::{backward, elementwise, forward, gates, gradients, scan};
use super::call::{Call, buffer};
use crate::gated_delta_rule::kernels::call::Inputs;
use crate::recurrence::device::RecurrenceList;

impl Call<'_> {
    /// What outputs add to the gradients of updates, `[R, HV, DV]`.
    pub(crate) fn update_gradients(
        &self,
        inputs: &Inputs,
        grad_output: &CubeTensor,
        gates: &CubeTensor,
    ) -> CubeTensor {
        let grad_updates = self.value_rows(inputs.value.dtype);
        let items = self.window_heads();
        let (count, dim) = self.cubes(items, forward::UNITS);
        // SAFETY: rows, windows and slots are those of the schedule, which made the sizes.
        unsafe {
            backward::update_gradients::launch_unchecked(
                &self.client,
                count,
                dim,
                address_type(&[&inputs.query, grad_output, gates]),
                buffer(&inputs.query),
                buffer(&inputs.key),
                buffer(grad_output),
                buffer(gates),
                buffer(&grad_updates),
                self.problem(items, 0),
                self.stored,
            );
        }
        grad_updates
    }

    /// What windows add to the gradients of the states before them, `[W, HV, DK, DV]`.
    pub(crate) fn state_gradients(
        &self,
        inputs: &Inputs,
        w: &CubeTensor,
        grad_output: &CubeTensor,
        grad_updates: &CubeTensor,
        gates: &CubeTensor,
    ) -> CubeTensor {
        let window_grads = self.empty_window_states();
        let items = self.window_heads() * self.dims.value_dim.div_ceil(TILE);
        let (count, dim) = self.cubes(items, forward::UNITS);
        // SAFETY: rows, windows and slots are those of the schedule, which made the sizes.
        unsafe {
            backward::state_gradients::launch_unchecked(
                &self.client,
                count,
                dim,
                address_type(&[&inputs.query, w, grad_output, gates, &window_grads]),
                StateGradientInputsLaunch::new(
                    buffer(&inputs.query),
                    buffer(w),
                    buffer(grad_output),
                    buffer(grad_updates),
                ),
                buffer(gates),
                buffer(&window_grads),
                self.problem(items, 0),
                self.key_tiles(),
                self.stored,
            );
        }
        window_grads
    }

    /// `[X + P, HV, DK, DV]`: the gradients of requested states, and room for those of the states
    /// before each path.
    pub(crate) fn state_grads(&self, grad_states: CubeTensor) -> CubeTensor {
        let requested = self.recurrence.requested_rows().len();
        let state_grads = self.empty_states(requested + self.recurrence.n_paths(), DType::F32);
        if requested > 0 {
            let total = grad_states.shape().num_elements();
            let (count, dim) = units(&self.client, total);
            // SAFETY: there are `total` numbers in both.
            unsafe {
                elementwise::copy::launch_unchecked(
                    &self.client,
                    count,
                    dim,
                    address_type(&[&state_grads]),
                    grad_states.into_buffer_arg(),
                    buffer(&state_grads),
                    total,
                );
            }
        }
        state_grads
    }

    /// Gradients of the states of the paths `paths`; `grad_updates` and `window_grads` are
    /// completed in place.
    pub(crate) fn scan_backward(
        &self,
        key: &CubeTensor,
        [w, grad_updates, gates]: [&CubeTensor; 3],
        window_grads: &CubeTensor,
        state_grads: &CubeTensor,
        paths: Range<usize>,
    ) {
        let items = self.path_tiles(&paths);
        let (count, dim) = self.cubes(items, scan::UNITS);
        // SAFETY: rows, windows and slots are those of the schedule, which made the sizes.
        unsafe {
            scan::scan_backward::launch_unchecked(
                &self.client,
                count,
                dim,
                address_type(&[key, w, grad_updates, gates, window_grads, state_grads]),
                TransitionsLaunch::new(buffer(key), buffer(w), buffer(gates)),
                buffer(grad_updates),
                buffer(window_grads),
                buffer(state_grads),
                self.problem(items, paths.start),
                self.key_tiles(),
                self.stored,
            );
        }
    }

    /// Gradients of the values, `[R, HV, DV]`; `grad_updates` become `X`.
    pub(crate) fn value_gradients(
        &self,
        inputs: &Inputs,
        inverse: &CubeTensor,
        grad_updates: &CubeTensor,
        gates: &CubeTensor,
    ) -> CubeTensor {
        let grad_value = self.value_rows(inputs.value.dtype);
        self.clear_padding(&grad_value);
        let items = self.window_heads();
        let (count, dim) = self.cubes(items, forward::UNITS);
        // SAFETY: rows, windows and slots are those of the schedule, which made the sizes.
        unsafe {
            gradients::value_gradients::launch_unchecked(
                &self.client,
                count,
                dim,
                address_type(&[&inputs.value, inverse, gates, &grad_value]),
                buffer(&inputs.value),
                buffer(inverse),
                buffer(grad_updates),
                buffer(gates),
                buffer(&grad_value),
                self.problem(items, 0),
                self.stored,
            );
        }
        grad_value
    }

    /// Gradients of the queries, `[R, HK, DK]`.
    pub(crate) fn query_gradients(
        &self,
        inputs: &Inputs,
        grad_output: &CubeTensor,
        updates: &CubeTensor,
        window_states: &CubeTensor,
        gates: &CubeTensor,
    ) -> CubeTensor {
        let grad_query = self.key_rows(DType::F32);
        let items = self.window_heads();
        let (count, dim) = self.cubes(items, forward::UNITS);
        // SAFETY: rows, windows and slots are those of the schedule, which made the sizes.
        unsafe {
            gradients::query_gradients::launch_unchecked(
                &self.client,
                count,
                dim,
                address_type(&[
                    &inputs.query,
                    grad_output,
                    window_states,
                    gates,
                    &grad_query,
                ]),
                QueryGradientInputsLaunch::new(
                    buffer(&inputs.query),
                    buffer(&inputs.key),
                    buffer(grad_output),
                    buffer(updates),
                    buffer(window_states),
                ),
                buffer(gates),
                buffer(&grad_query),
                self.problem(items, 0),
                self.stored,
            );
        }
        self.sum_heads(grad_query, &inputs.query)
    }

    /// Gradients of the keys, `[R, HK, DK]`.
    pub(crate) fn key_gradients(
        &self,
        inputs: &Inputs,
        grad_output: &CubeTensor,
        [updates, x, window_states, window_grads, gates]: [&CubeTensor; 5],
    ) -> CubeTensor {
        let grad_key = self.key_rows(DType::F32);
        let items = self.window_heads();
        let (count, dim) = self.cubes(items, forward::UNITS);
        // SAFETY: rows, windows and slots are those of the schedule, which made the sizes.
        unsafe {
            gradients::key_gradients_of_pairs::launch_unchecked(
                &self.client,
                count,
                dim,
                address_type(&[&inputs.key, grad_output, gates, &grad_key]),
                PairGradientInputsLaunch::new(
                    buffer(&inputs.query),
                    buffer(&inputs.key),
                    buffer(grad_output),
                    buffer(updates),
                    buffer(x),
                ),
                buffer(gates),
                buffer(&grad_key),
                self.problem(items, 0),
                self.stored,
            );
        }
        let items = self.window_heads();
        let (count, dim) = self.cubes(items, forward::UNITS);
        // SAFETY: rows, windows and slots are those of the schedule, which made the sizes.
        unsafe {
            gradients::key_gradients_of_states::launch_unchecked(
                &self.client,
                count,
                dim,
                address_type(&[&inputs.key, updates, window_states, gates, &grad_key]),
                StateKeyGradientInputsLaunch::new(
                    buffer(&inputs.key),
                    buffer(updates),
                    buffer(x),
                    buffer(window_states),
                    buffer(window_grads),
                ),
                buffer(gates),
                buffer(&grad_key),
                self.problem(items, 0),
                self.stored,
            );
        }
        self.sum_heads(grad_key, &inputs.key)
    }

    /// The gradient of a tensor `[R, HK, DK]` from those of its value heads, `[R, HV, DK]`.
    fn sum_heads(&self, per_head: CubeTensor, of: &CubeTensor) -> CubeTensor {
        let sums = empty(of, of.shape(), of.dtype);
        let total = of.shape().num_elements();
        let (count, dim) = units(&self.client, total);
        // SAFETY: each sum has its own numbers in `per_head`.
        unsafe {
            elementwise::sum_heads::launch_unchecked(
                &self.client,
                count,
                dim,
                address_type(&[&per_head]),
                per_head.into_buffer_arg(),
                buffer(&sums),
                self.dims.value_heads / self.dims.key_heads,
                self.dims.key_dim,
                total,
                self.stored,
            );
        }
        self.clear_padding(&sums);
        sums
    }

    /// Gradients of log decay and beta, `[R, HV]`.
    pub(crate) fn gate_gradients(&self, gates: &CubeTensor) -> (CubeTensor, CubeTensor) {
        let [log_decay, beta] = [(); 2].map(|()| {
            let shape = [self.dims.rows, self.dims.value_heads];
            let gradient = empty(&self.near, shape, DType::F32);
            self.clear_padding(&gradient);
            gradient
        });
        let items = self.windows();
        let (count, dim) = self.cubes(items, forward::UNITS);
        // SAFETY: rows, windows and slots are those of the schedule, which made the sizes.
        unsafe {
            gates::gate_gradients::launch_unchecked(
                &self.client,
                count,
                dim,
                address_type(&[gates]),
                buffer(gates),
                buffer(&log_decay),
                buffer(&beta),
                self.problem(items, 0),
            );
        }
        (log_decay, beta)
    }

    /// Gradients of the initial states, zero where no path starts.
    pub(crate) fn initial_gradients(&self, state_grads: &CubeTensor, shape: &Shape) -> CubeTensor {
        let gradient = empty(&self.near, shape.clone(), DType::F32);
        let total = shape.num_elements();
        let (count, dim) = units(&self.client, total);
        // SAFETY: the lists of the schedule name paths, whose states are there.
        unsafe {
            elementwise::initial_gradients::launch_unchecked(
                &self.client,
                count,
                dim,
                address_type(&[state_grads, &gradient]),
                buffer(state_grads),
                InitialChildrenLaunch::new(
                    self.schedule.buffer(),
                    self.schedule.start(RecurrenceList::InitialChildOffsets),
                    self.schedule.start(RecurrenceList::InitialChildren),
                    self.recurrence.n_initial_states() as u32,
                    self.recurrence.requested_rows().len() as u32,
                ),
                buffer(&gradient),
                total / shape[0],
                total,
            );
        }
        gradient
    }
}
