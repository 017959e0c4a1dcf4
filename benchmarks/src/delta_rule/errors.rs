//! Errors of the gated delta rule against the token recurrence in f64.

use burn::tensor::{DType, Tensor};

use super::reference::{Group, GroupResults};
use super::{DeltaRuleGradients, DeltaRuleInputs, DeltaRuleOutput};

/// `||x - reference|| / ||reference||` over all rows of the checked heads. NaN counts as large.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Errors {
    /// Of the output.
    pub output: f64,
    /// Of the output, the largest error of one row of one head, relative to the mean norm of such a
    /// row (a row may be close to zero). An error in a single row does not show in `output`.
    pub worst_output_row: f64,
    /// Gradient of the queries.
    pub query: f64,
    /// Gradient of the keys.
    pub key: f64,
    /// Gradient of the values.
    pub value: f64,
    /// Gradient of the log-decay.
    pub log_decay: f64,
    /// Gradient of beta.
    pub beta: f64,
}

impl Errors {
    /// Checks the key heads `groups` with their value heads.
    pub fn new(
        inputs: &DeltaRuleInputs,
        forward: &DeltaRuleOutput,
        gradients: &DeltaRuleGradients,
        groups: &[usize],
    ) -> Self {
        let mut differences = [Difference::default(); 6];
        let mut worst_output_row = 0.0;
        for &group in groups {
            let expected = expected(inputs, group);
            let pairs = [
                (of_group(&forward.output, inputs, group), &expected.output),
                (of_group(&gradients.query, inputs, group), &expected.query),
                (of_group(&gradients.key, inputs, group), &expected.key),
                (of_group(&gradients.value, inputs, group), &expected.value),
                (
                    numbers_of_group(&gradients.log_decay, inputs, group),
                    &expected.log_decay,
                ),
                (
                    numbers_of_group(&gradients.beta, inputs, group),
                    &expected.beta,
                ),
            ];
            let [_, _, value_dim] = inputs.value.dims();
            worst_output_row = worse(
                worst_output_row,
                worst_row(&pairs[0].0, pairs[0].1, value_dim),
            );
            for (sums, (values, expected)) in differences.iter_mut().zip(pairs) {
                sums.add(&values, expected);
            }
        }
        let [output, query, key, value, log_decay, beta] = differences.map(Difference::relative);
        Self {
            output,
            worst_output_row,
            query,
            key,
            value,
            log_decay,
            beta,
        }
    }

    /// The largest error of the gradients; NaN if one is NaN.
    pub fn worst_gradient(&self) -> f64 {
        let all = [self.query, self.key, self.value, self.log_decay, self.beta];
        all.into_iter().fold(0.0, worse)
    }
}

/// The larger value; NaN if one is NaN.
fn worse(a: f64, b: f64) -> f64 {
    if b > a || b.is_nan() { b } else { a }
}

/// Sums of squares of a difference and of the reference.
#[derive(Clone, Copy, Default)]
struct Difference {
    difference: f64,
    reference: f64,
}

impl Difference {
    fn add(&mut self, values: &[f64], reference: &[f64]) {
        assert_eq!(values.len(), reference.len());
        for (value, expected) in values.iter().zip(reference) {
            self.difference += (value - expected).powi(2);
            self.reference += expected.powi(2);
        }
    }

    /// Zero if there is no difference.
    fn relative(self) -> f64 {
        match self.difference == 0.0 {
            true => 0.0,
            false => (self.difference / self.reference).sqrt(),
        }
    }
}

/// The largest difference of one row of `width` numbers, relative to the mean norm of a row.
fn worst_row(values: &[f64], reference: &[f64], width: usize) -> f64 {
    let mut all = Difference::default();
    let mut worst = 0.0;
    for (values, reference) in values.chunks(width).zip(reference.chunks(width)) {
        let mut row = Difference::default();
        row.add(values, reference);
        worst = worse(worst, row.difference);
        all.reference += row.reference;
    }
    let rows = (values.len() / width).max(1) as f64;
    Difference {
        difference: worst,
        reference: all.reference / rows,
    }
    .relative()
}

fn expected(inputs: &DeltaRuleInputs, group: usize) -> GroupResults {
    let recurrence = inputs.recurrence();
    let is_padding: Vec<bool> = (0..recurrence.rows())
        .map(|row| recurrence.is_padding(row))
        .collect();
    let [_, _, key_dim] = inputs.key.dims();
    let [_, _, value_dim] = inputs.value.dims();
    Group {
        parents: recurrence.parents(),
        is_padding: &is_padding,
        scale: inputs.scale(),
        key_dim,
        value_dim,
        query: &of_group(&inputs.query, inputs, group),
        key: &of_group(&inputs.key, inputs, group),
        value: &of_group(&inputs.value, inputs, group),
        log_decay: &numbers_of_group(&inputs.log_decay, inputs, group),
        beta: &numbers_of_group(&inputs.beta, inputs, group),
        grad_output: &of_group(&inputs.grad_output, inputs, group),
    }
    .results()
}

/// The heads of `x [R, H, D]` that belong to key head `group`.
fn of_group(x: &Tensor<3>, inputs: &DeltaRuleInputs, group: usize) -> Vec<f64> {
    let [_, groups, _] = inputs.key.dims();
    let [_, heads, _] = x.dims();
    let of_group = heads / groups;
    read(
        x.clone()
            .slice_dim(1, group * of_group..(group + 1) * of_group),
    )
}

/// The heads of `x [R, HV]` that belong to key head `group`.
fn numbers_of_group(x: &Tensor<2>, inputs: &DeltaRuleInputs, group: usize) -> Vec<f64> {
    let [rows, heads] = x.dims();
    of_group(&x.clone().reshape([rows, heads, 1]), inputs, group)
}

fn read(x: Tensor<3>) -> Vec<f64> {
    // All dtypes but f64 are exact in f32, which every device supports.
    let wide = match x.dtype() {
        DType::F64 => x,
        _ => x.cast(DType::F32),
    };
    wide.into_data().iter::<f64>().collect()
}
