//! The forward pass.

use std::ops::Range;

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::cube::address_type;

use super::super::window::GATES;
use super::super::{forward, gates, scan};
use super::call::Call;
use crate::gated_delta_rule::kernels::call::Inputs;

impl Call<'_> {
    /// `[R, HV, GATES]`, see [`GATES`].
    pub(crate) fn window_gates(&self, inputs: &Inputs) -> CubeTensor {
        let gates = self.rows_of(GATES, DType::F32);
        let items = self.windows();
        let (count, dim) = self.cubes(items, forward::UNITS);
        // SAFETY: rows and windows are those of the schedule, which made the sizes.
        unsafe {
            gates::window_gates::launch_unchecked(
                &self.client,
                count,
                dim,
                address_type(&[&gates]),
                inputs.log_decay.clone().into_buffer_arg(),
                inputs.beta.clone().into_buffer_arg(),
                self.schedule.buffer(),
                gates.clone().into_buffer_arg(),
                self.problem(items, 0),
            );
        }
        gates
    }

    /// `[R, HV, C]`
    pub(crate) fn window_inverse(&self, inputs: &Inputs, gates: &CubeTensor) -> CubeTensor {
        let inverse = self.rows_of(self.recurrence.window_rows(), inputs.value.dtype);
        let items = self.window_heads();
        let (count, dim) = self.cubes(items, forward::UNITS);
        // SAFETY: rows and windows are those of the schedule, which made the sizes.
        unsafe {
            forward::window_inverse::launch_unchecked(
                &self.client,
                count,
                dim,
                address_type(&[&inputs.key, gates, &inverse]),
                inputs.key.clone().into_buffer_arg(),
                gates.clone().into_buffer_arg(),
                self.schedule.buffer(),
                inverse.clone().into_buffer_arg(),
                self.problem(items, 0),
                self.stored,
            );
        }
        inverse
    }

    /// `w [R, HV, DK]` and `u [R, HV, DV]`
    pub(crate) fn window_operators(
        &self,
        inputs: &Inputs,
        inverse: &CubeTensor,
        gates: &CubeTensor,
    ) -> (CubeTensor, CubeTensor) {
        let dtype = inputs.value.dtype;
        let (w, u) = (self.key_rows(dtype), self.value_rows(dtype));
        let items = self.window_heads();
        let (count, dim) = self.cubes(items, forward::UNITS);
        // SAFETY: rows and windows are those of the schedule, which made the sizes.
        unsafe {
            forward::window_operators::launch_unchecked(
                &self.client,
                count,
                dim,
                address_type(&[&inputs.key, &inputs.value, inverse, gates, &w, &u]),
                inputs.key.clone().into_buffer_arg(),
                inputs.value.clone().into_buffer_arg(),
                inverse.clone().into_buffer_arg(),
                gates.clone().into_buffer_arg(),
                self.schedule.buffer(),
                w.clone().into_buffer_arg(),
                u.clone().into_buffer_arg(),
                self.problem(items, 0),
                self.stored,
            );
        }
        (w, u)
    }

    /// States of the paths `paths`, of which `states` gets those of slots if `stores_slots`;
    /// `updates` come in place of `u`.
    pub(crate) fn scan(
        &self,
        inputs: &Inputs,
        [w, updates, gates]: [&CubeTensor; 3],
        window_states: &CubeTensor,
        states: &CubeTensor,
        paths: Range<usize>,
        stores_slots: bool,
    ) {
        let items = self.path_tiles(&paths);
        let (count, dim) = self.cubes(items, scan::UNITS);
        // SAFETY: rows, windows and slots are those of the schedule, which made the sizes.
        unsafe {
            scan::scan::launch_unchecked(
                &self.client,
                count,
                dim,
                address_type(&[
                    &inputs.key,
                    w,
                    updates,
                    &inputs.initial_states,
                    gates,
                    window_states,
                    states,
                ]),
                inputs.key.clone().into_buffer_arg(),
                w.clone().into_buffer_arg(),
                updates.clone().into_buffer_arg(),
                inputs.initial_states.clone().into_buffer_arg(),
                gates.clone().into_buffer_arg(),
                self.schedule.buffer(),
                window_states.clone().into_buffer_arg(),
                states.clone().into_buffer_arg(),
                self.problem(items, paths.start),
                self.key_tiles(),
                stores_slots,
                self.stored,
            );
        }
    }

    /// `[R, HV, DV]`
    pub(crate) fn window_output(
        &self,
        inputs: &Inputs,
        updates: &CubeTensor,
        window_states: &CubeTensor,
        gates: &CubeTensor,
    ) -> CubeTensor {
        let output = self.value_rows(inputs.value.dtype);
        self.clear_padding(&output);
        let items = self.window_heads();
        let (count, dim) = self.cubes(items, forward::UNITS);
        // SAFETY: rows and windows are those of the schedule, which made the sizes.
        unsafe {
            forward::window_output::launch_unchecked(
                &self.client,
                count,
                dim,
                address_type(&[&inputs.query, updates, window_states, gates, &output]),
                inputs.query.clone().into_buffer_arg(),
                inputs.key.clone().into_buffer_arg(),
                updates.clone().into_buffer_arg(),
                window_states.clone().into_buffer_arg(),
                gates.clone().into_buffer_arg(),
                self.schedule.buffer(),
                output.clone().into_buffer_arg(),
                self.problem(items, 0),
                self.scale,
                self.stored,
            );
        }
        output
    }
}
