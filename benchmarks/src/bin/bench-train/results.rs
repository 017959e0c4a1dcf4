//! Tables and JSON.

use std::path::Path;

use anyhow::Result;
use burn_tree_trainer::memory::format_bytes;
use burn_tree_trainer::report::{grouped, table, tera};
use burn_tree_trainer::run::atomic;
use serde::Serialize;
use tree_training_benchmarks::products::ProductTimes;

use crate::measure::{Comparison, Measured, Rates};

/// All results.
#[derive(Serialize)]
pub struct Results {
    products: Vec<ProductRates>,
    shadow_seconds: f64,
    update_seconds: f64,
    steps: Vec<Comparison>,
}

/// FLOP/s of the three products with matrices of one shape.
#[derive(Serialize)]
struct ProductRates {
    input: usize,
    output: usize,
    result: f64,
    input_gradient: f64,
    weight_gradient: f64,
}

impl Results {
    /// Results without steps.
    pub fn new(rates: &Rates) -> Self {
        let ProductTimes { by_shape, .. } = &rates.products;
        let products = by_shape.iter().map(|&([input, output], rates)| {
            let [result, input_gradient, weight_gradient] = rates;
            ProductRates {
                input,
                output,
                result,
                input_gradient,
                weight_gradient,
            }
        });
        Self {
            products: products.collect(),
            shadow_seconds: rates.shadow_seconds,
            update_seconds: rates.update_seconds,
            steps: Vec::new(),
        }
    }

    /// Adds a step and prints a line about it.
    pub fn push(&mut self, step: Comparison) {
        println!(
            "{}: tree {:.1} ms {:?}, separate {:.1} ms {:?}",
            step.name,
            step.tree.seconds * 1e3,
            milliseconds(&step.tree.samples),
            step.flat.seconds * 1e3,
            milliseconds(&step.flat.samples),
        );
        self.steps.push(step);
    }

    /// The rates of the matrix products.
    pub fn print_rates(&self) {
        let rows = self.products.iter().map(|rates| {
            vec![
                format!("{} x {}", rates.input, rates.output),
                tera(rates.result),
                tera(rates.input_gradient),
                tera(rates.weight_gradient),
            ]
        });
        let header = ["TFLOP/s of products", "x w", "g wT", "xT g"];
        println!("{}", table(&header, rows.collect()));
        println!(
            "Fixed time of a step: copy of parameters {:.2} ms, clipping and optimizer {:.2} ms",
            self.shadow_seconds * 1e3,
            self.update_seconds * 1e3
        );
    }

    /// The tables of speed-ups and of the parts of steps.
    pub fn print_tables(&self) {
        let speedups = self.steps.iter().map(|step| {
            vec![
                step.name.clone(),
                format!("{:.3}", step.overlap),
                format!("{:.2}", step.token_bound),
                format!("{:.2}", step.step_bound),
                format!("{:.2}", step.step_bound_with_constants),
                format!("{:.2}", step.achieved),
                format!("{:.3}", step.achieved / step.step_bound),
                format!("{:.3}", step.achieved / step.step_bound_with_constants),
                grouped(step.original_tokens_per_second as u64),
                step.loss_deviation
                    .map_or_else(|| "-".to_owned(), |deviation| format!("{deviation:.0e}")),
            ]
        });
        let header = [
            "step",
            "POR",
            "token bound",
            "step bound",
            "with constants",
            "achieved",
            "of step bound",
            "of it with constants",
            "original tokens/s",
            "loss differs by",
        ];
        println!("{}", table(&header, speedups.collect()));

        let variants = self.steps.iter().flat_map(|step| {
            let variants = [("tree", &step.tree), ("flat", &step.flat)];
            variants.map(|(variant, measured)| variant_row(&step.name, variant, measured))
        });
        let header = [
            "step",
            "variant",
            "packs",
            "tokens",
            "ms",
            "model TFLOP/s",
            "products",
            "attention",
            "recurrence",
            "rest",
            "memory",
            "rows of earlier packs",
            "indices of the largest",
            "predicted ms",
        ];
        println!("{}", table(&header, variants.collect()));
    }

    /// Writes all results as JSON.
    pub fn write(&self, path: &Path) -> Result<()> {
        Ok(atomic::write(path, &serde_json::to_vec_pretty(self)?)?)
    }
}

fn variant_row(name: &str, variant: &str, measured: &Measured) -> Vec<String> {
    let share = |seconds: f64| format!("{:.1} %", 100.0 * seconds / measured.seconds);
    let known = measured.product_seconds + measured.attention_seconds + measured.recurrence_seconds;
    vec![
        name.to_owned(),
        variant.to_owned(),
        measured.packs.to_string(),
        grouped(measured.tokens),
        format!("{:.1}", measured.seconds * 1e3),
        tera(measured.flops / measured.seconds),
        share(measured.product_seconds),
        share(measured.attention_seconds),
        share(measured.recurrence_seconds),
        share(measured.seconds - known),
        measured
            .reserved_bytes
            .map_or_else(|| "-".to_owned(), format_bytes),
        grouped(measured.past_rows),
        format_bytes(measured.index_bytes),
        measured.predicted_seconds.map_or_else(
            || "-".to_owned(),
            |seconds| {
                let error = 100.0 * (seconds / measured.seconds - 1.0);
                format!("{:.1} ({error:+.0} %)", seconds * 1e3)
            },
        ),
    ]
}

fn milliseconds(samples: &[f64]) -> Vec<u64> {
    samples
        .iter()
        .map(|seconds| (seconds * 1e3) as u64)
        .collect()
}
