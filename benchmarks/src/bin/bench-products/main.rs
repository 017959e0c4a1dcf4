//! TFLOP/s of the matrix products of linear layers.

mod args;
mod product;

use std::io::BufRead;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use burn::tensor::Device;
use burn_tree_trainer::device::device_by_name;
use burn_tree_trainer::report::timing::median;
use burn_tree_trainer::report::{table, tera};
use burn_tree_trainer::run::atomic;
use clap::{Parser, ValueEnum};
use serde::Serialize;

use args::{Args, Form, Implementation};
use product::{Product, Window};

/// Weights of Qwen3-0.6B, Qwen3-4B and Qwen3.5-0.8B, `[K, N]`, and a square.
const WEIGHTS: [[usize; 2]; 14] = [
    [1024, 1024],
    [1024, 2048],
    [1024, 3072],
    [2048, 1024],
    [3072, 1024],
    [2560, 4096],
    [2560, 1024],
    [4096, 2560],
    [2560, 9728],
    [9728, 2560],
    [1024, 6144],
    [1024, 3584],
    [3584, 1024],
    [8192, 8192],
];

/// One product and implementation.
#[derive(Debug, Serialize)]
struct Measured {
    rows: usize,
    weight: [usize; 2],
    form: Form,
    implementation: Implementation,
    flops_per_second: f64,
    /// Relative error of sampled numbers against sums in f64.
    error: f64,
    /// Whether two runs gave the same bits.
    repeatable: bool,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let device = device_by_name(&args.device)?;
    if args.serve {
        return serve(args, &device);
    }
    let weights = match args.weights.is_empty() {
        true => WEIGHTS.to_vec(),
        false => args.weights.clone(),
    };
    let mut results = Vec::new();
    for &weight in &weights {
        for &rows in &args.rows {
            for &form in &args.forms {
                for &implementation in &args.implementations {
                    let product =
                        Product::random([rows, weight[0], weight[1]], form, args, &device);
                    results.push(measure(&product, weight, implementation, args)?);
                    if let Some(file) = &args.json {
                        atomic::write(file, &serde_json::to_vec_pretty(&results)?)?;
                    }
                }
            }
        }
    }
    print_table(&results);
    Ok(())
}

fn measure(
    product: &Product,
    weight: [usize; 2],
    implementation: Implementation,
    args: &Args,
) -> Result<Measured> {
    let (error, repeatable) = product.check(implementation)?;
    let window = Window::new(args.window);
    let rates = (0..args.samples).map(|_| product.rate(implementation, window));
    Ok(Measured {
        rows: product.rows(),
        weight,
        form: product.form(),
        implementation,
        flops_per_second: median(rates.collect()),
        error,
        repeatable,
    })
}

/// Answers requests from standard input, one measurement each.
fn serve(args: &Args, device: &Device) -> Result<()> {
    let mut current: Option<(String, Product)> = None;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let mut words = line.split_whitespace();
        let form = words.next().context("no form")?;
        let form = match Form::from_str(form, true) {
            Ok(form) => form,
            Err(error) => bail!("{form}: {error}"),
        };
        let sizes = words.map(str::parse).collect::<Result<Vec<usize>, _>>()?;
        let sizes: [usize; 3] = sizes.try_into().ok().context("expected rows, K and N")?;
        let product = match current {
            Some((ref of, ref product)) if *of == line => product,
            _ => {
                &current
                    .insert((line, Product::random(sizes, form, args, device)))
                    .1
            }
        };
        let rate = product.rate(Implementation::Linear, Window::new(args.window));
        println!("{:.1}", rate / 1e12);
    }
    Ok(())
}

fn print_table(results: &[Measured]) {
    let header = [
        "rows",
        "K x N",
        "product",
        "implementation",
        "TFLOP/s",
        "error",
        "repeated",
    ];
    let name = |value: &dyn std::fmt::Debug| format!("{value:?}");
    let rows = results.iter().map(|measured| {
        vec![
            measured.rows.to_string(),
            format!("{} x {}", measured.weight[0], measured.weight[1]),
            name(&measured.form),
            name(&measured.implementation),
            tera(measured.flops_per_second),
            format!("{:.1e}", measured.error),
            if measured.repeatable {
                "same"
            } else {
                "differs"
            }
            .to_owned(),
        ]
    });
    println!("{}", table(&header, rows.collect()));
}
