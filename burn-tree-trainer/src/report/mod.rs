//! The output of a run: progress lines, tables and plots.

pub mod metrics;
pub mod plots;
pub mod summary;
pub mod timing;

use burn_tree_train::{ModelCost, StepBound, StepCounts};
use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{CellAlignment, Table};

use crate::memory::format_bytes;
use crate::report::metrics::{ComparisonRecord, StepRecord, VariantRecord};
use crate::report::timing::median;

/// One line about a step, with the given `metrics`.
pub fn step_line(record: &StepRecord, total_steps: usize, metrics: &[&str]) -> String {
    let mut line = format!("step {:>3}/{total_steps}", record.step);
    let first = record.tree.as_ref().or(record.flat.as_ref());
    if let Some(variant) = first {
        line += &format!(
            "  loss {:.5}  grad {:.3}  lr {:.2e}  {:.2} s",
            variant.loss, variant.gradient_norm, record.learning_rate, variant.seconds
        );
        if let Some(predicted) = variant.predicted_seconds {
            line += &format!(" (predicted {predicted:.2} s)");
        }
        for name in metrics {
            if let Some(value) = variant.metrics.get(*name) {
                line += &format!("  {name} {value:.4}");
            }
        }
    }
    if let Some(bytes) = first.and_then(|variant| variant.reserved_bytes) {
        line += &format!("  {}", format_bytes(bytes));
    }
    if let (Some(flat), Some(comparison)) = (&record.flat, record.comparison) {
        line += &format!(
            "  | flat: loss {:.5} (differs by {:.0e})  {:.2} s  | {:.2}x faster, bound {:.2}x",
            flat.loss,
            comparison.relative_loss_deviation,
            flat.seconds,
            comparison.speedup,
            comparison.step_bound
        );
    }
    if let Some(loss) = record.validation_loss {
        line += &format!("  | validation {loss:.5}");
    }
    line
}

/// The comparison over a whole run, from sums over its steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// Both bounds of the compared steps.
    pub bound: StepBound,
    /// Flat seconds over tree seconds.
    pub speedup: f64,
    /// Median over the steps of the speed-up divided by the step bound.
    pub median_share_of_bound: f64,
    /// Largest relative deviation of the losses.
    pub largest_loss_deviation: f64,
    /// Largest relative deviation of the gradient norms.
    pub largest_gradient_deviation: f64,
    /// Flat seconds over tree seconds of the log-probabilities computed at the beginning of
    /// batches, if any.
    pub log_prob_speedup: Option<f64>,
    /// Number of timed steps.
    pub steps: usize,
}

impl Comparison {
    /// Compares the variants over all steps that have both. The first step is not timed, because
    /// allocators and caches warm up, unless it is the only one.
    pub fn new(records: &[StepRecord], cost: &ModelCost) -> Option<Self> {
        let compared: Vec<_> = records
            .iter()
            .filter_map(|record| {
                let (tree, flat) = (record.tree.as_ref()?, record.flat.as_ref()?);
                Some((tree, flat, record.comparison?))
            })
            .collect();
        let timed = if compared.len() > 1 {
            &compared[1..]
        } else {
            &compared[..]
        };
        let sum = |variants: &mut dyn Iterator<Item = &VariantRecord>| {
            variants.fold(
                (StepCounts::default(), 0.0),
                |(counts, seconds), variant| (counts + variant.counts(), seconds + variant.seconds),
            )
        };
        let (tree, tree_seconds) = sum(&mut timed.iter().map(|variants| variants.0));
        let (flat, flat_seconds) = sum(&mut timed.iter().map(|variants| variants.1));
        let largest = |deviation: fn(&ComparisonRecord) -> f64| {
            let deviations = compared.iter().map(|(_, _, c)| deviation(c));
            deviations.fold(0.0, f64::max)
        };
        let log_prob_seconds = |variant: fn(&StepRecord) -> Option<&VariantRecord>| {
            let variants = records.iter().filter_map(variant);
            variants
                .filter_map(|variant| variant.log_prob_seconds)
                .sum::<f64>()
        };
        let [tree_log_probs, flat_log_probs] = [
            log_prob_seconds(|record| record.tree.as_ref()),
            log_prob_seconds(|record| record.flat.as_ref()),
        ];
        Some(Self {
            log_prob_speedup: (tree_log_probs > 0.0).then(|| flat_log_probs / tree_log_probs),
            bound: StepBound::new(cost, &tree, &flat)?,
            speedup: flat_seconds / tree_seconds,
            median_share_of_bound: median(
                timed
                    .iter()
                    .map(|(_, _, c)| c.speedup / c.step_bound)
                    .collect(),
            ),
            largest_loss_deviation: largest(|c| c.relative_loss_deviation),
            largest_gradient_deviation: largest(|c| c.relative_gradient_deviation),
            steps: timed.len(),
        })
    }
}

/// Tokens and model FLOPs per second of one variant, over all steps but the first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throughput {
    /// Median seconds of a step.
    pub seconds_per_step: f64,
    /// Computed tokens per second.
    pub tokens_per_second: f64,
    /// Model FLOPs per second.
    pub flops_per_second: f64,
}

impl Throughput {
    /// The throughput of the variant that `variant` selects. `None` without records.
    pub fn new(
        records: &[StepRecord],
        variant: fn(&StepRecord) -> Option<&VariantRecord>,
    ) -> Option<Self> {
        let all: Vec<&VariantRecord> = records.iter().filter_map(variant).collect();
        let timed = if all.len() > 1 { &all[1..] } else { &all[..] };
        let seconds: f64 = timed.iter().map(|variant| variant.seconds).sum();
        (!timed.is_empty()).then(|| Self {
            seconds_per_step: median(timed.iter().map(|variant| variant.seconds).collect()),
            tokens_per_second: timed
                .iter()
                .map(|variant| variant.tokens as f64)
                .sum::<f64>()
                / seconds,
            flops_per_second: timed.iter().map(|variant| variant.flops).sum::<f64>() / seconds,
        })
    }
}

/// A table with a header and rows of a name and values, the values right-aligned.
pub fn table(header: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_BORDERS_ONLY).set_header(header);
    for row in rows {
        table.add_row(row);
    }
    for index in 1..header.len() {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string()
}

/// A rate in TFLOP/s with three significant digits.
pub fn tera(flops_per_second: f64) -> String {
    let rate = flops_per_second / 1e12;
    match rate {
        100.0.. => format!("{rate:.0}"),
        10.0.. => format!("{rate:.1}"),
        1.0.. => format!("{rate:.2}"),
        _ => format!("{rate:.4}"),
    }
}

/// A count with separated thousands: `367 389`.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::Metrics;

    fn variant(seconds: f64, tokens: u64) -> VariantRecord {
        VariantRecord {
            loss: 2.0,
            loss_scale: None,
            gradient_norm: 1.0,
            seconds,
            packs: 1,
            tokens,
            visible_pairs: 0,
            projected_rows: 0,
            predictions: 0,
            flops: tokens as f64 * 100.0,
            log_prob_seconds: None,
            predicted_seconds: None,
            reserved_bytes: None,
            metrics: Metrics::new(),
        }
    }

    fn record(step: usize, tree_seconds: f64, flat_seconds: f64) -> StepRecord {
        StepRecord {
            step,
            epoch: 1,
            learning_rate: 1e-3,
            tree: Some(variant(tree_seconds, 10)),
            flat: Some(variant(flat_seconds, 40)),
            comparison: Some(ComparisonRecord {
                relative_loss_deviation: step as f64 * 1e-7,
                relative_gradient_deviation: step as f64 * 1e-6,
                speedup: flat_seconds / tree_seconds,
                token_bound: 4.0,
                step_bound: 4.0,
            }),
            validation_loss: None,
        }
    }

    const COST: ModelCost = ModelCost {
        trunk_parameters: 5,
        trained_trunk_parameters: 5,
        attention_width: 2,
        recurrence_width: 0,
        head_parameters: 3,
        head_trained: true,
    };

    #[test]
    fn a_run_is_compared_without_its_first_step() {
        let records = [
            record(1, 9.0, 10.0),
            record(2, 1.0, 3.0),
            record(3, 1.0, 3.8),
        ];
        let comparison = Comparison::new(&records, &COST).unwrap();
        assert_eq!(comparison.steps, 2);
        assert!((comparison.speedup - 3.4).abs() < 1e-12);
        assert!((comparison.median_share_of_bound - (0.75 + 0.95) / 2.0).abs() < 1e-12);
        assert_eq!(comparison.bound.step_bound, 4.0);
        assert_eq!(comparison.largest_loss_deviation, 3e-7);
        assert_eq!(comparison.largest_gradient_deviation, 3e-6);
        let throughput = Throughput::new(&records, |record| record.flat.as_ref()).unwrap();
        assert!((throughput.tokens_per_second - 80.0 / 6.8).abs() < 1e-12);
    }

    #[test]
    fn nothing_compared_no_comparison() {
        let mut one = record(1, 1.0, 1.0);
        one.flat = None;
        one.comparison = None;
        assert_eq!(Comparison::new(&[one], &COST), None);
        assert_eq!(Throughput::new(&[], |record| record.tree.as_ref()), None);
    }

    #[test]
    fn rates_have_three_digits() {
        let rates = [512.34e12, 51.23e12, 5.123e12, 51.2e9];
        assert_eq!(rates.map(tera), ["512", "51.2", "5.12", "0.0512"]);
    }

    #[test]
    fn thousands_are_set_apart() {
        let counts = [0, 999, 1000, 1234567];
        assert_eq!(counts.map(grouped), ["0", "999", "1 000", "1 234 567"]);
    }
}
