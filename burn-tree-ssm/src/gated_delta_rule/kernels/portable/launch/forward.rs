//! The forward pass.

use std::ops::Range;

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::cube::address_type;

use super::super::scan::{ScanConfig, TransitionsLaunch};
use super::super::window::GATES;
use super::super::{forward, gates, scan};
use super::call::{Call, buffer};
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
                buffer(&inputs.log_decay),
                buffer(&inputs.beta),
                buffer(&gates),
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
                buffer(&inputs.key),
                buffer(gates),
                buffer(&inverse),
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
                buffer(&inputs.key),
                buffer(&inputs.value),
                buffer(inverse),
                buffer(gates),
                buffer(&w),
                buffer(&u),
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
        let config = ScanConfig {
            key_tiles: self.key_tiles(),
            stores_slots,
        };
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
                TransitionsLaunch::new(buffer(&inputs.key), buffer(w), buffer(gates)),
                buffer(updates),
                buffer(&inputs.initial_states),
                buffer(window_states),
                buffer(states),
                self.problem(items, paths.start),
                config,
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
                buffer(&inputs.query),
                buffer(&inputs.key),
                buffer(updates),
                buffer(window_states),
                buffer(gates),
                buffer(&output),
                self.problem(items, 0),
                self.stored,
            );
        }
        output
    }
}
