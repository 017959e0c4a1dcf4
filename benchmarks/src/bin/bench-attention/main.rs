//! Measures the TFLOP/s of tree attention by tree.

mod accuracy;
mod args;
mod burn_attention;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use burn::tensor::{Device, Tensor};
use burn_tree_attn::{Implementation, TreeMask};
use burn_tree_trainer::device::device_by_name;
use burn_tree_trainer::memory::format_bytes;
use burn_tree_trainer::report::timing::{Repetitions, seconds_with_results};
use burn_tree_trainer::report::{table, tera};
use burn_tree_trainer::run::atomic;
use clap::Parser;
use serde::Serialize;
use tree_training_benchmarks::Dtype;
use tree_training_benchmarks::attention::{AttentionInputs, Heads};
use tree_training_benchmarks::packs::NamedPack;
use tree_training_benchmarks::repeated::{self, Repeated, Repetition};

use accuracy::Errors;
use args::Args;

/// One tree, dtype, head configuration and implementation.
#[derive(Clone, Debug, Serialize)]
struct Measured {
    tree: String,
    heads: String,
    dtype: String,
    implementation: String,
    rows: usize,
    visible_share: f64,
    /// Host time of building the mask.
    mask_seconds: f64,
    forward_seconds: f64,
    backward_seconds: f64,
    /// Forward TFLOP/s.
    forward_tflops: f64,
    /// Backward TFLOP/s.
    backward_tflops: f64,
    errors: Option<Errors>,
    /// Repetitions of the forward pass, compared with its first run.
    forward_repeated: Repeated,
    /// Repetitions of the backward pass, compared with its first run.
    backward_repeated: Repeated,
}

/// All results.
#[derive(Serialize)]
struct Results {
    /// Seed of the checked rows.
    seed: u64,
    attention: Vec<Measured>,
    burn: Vec<burn_attention::Comparison>,
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
    let packs = args.trees.iter();
    let packs = packs.map(|name| NamedPack::new(name, args.rows, &args.data).context("--trees"));
    let packs = packs.collect::<Result<Vec<_>>>()?;
    if let Some(folder) = &args.write_packs {
        return NamedPack::save_all(&packs, folder).context("--write-packs");
    }
    let device = device_by_name(&args.device)?;
    let mut results = Results {
        seed: args.seed,
        attention: Vec::new(),
        burn: Vec::new(),
    };
    for pack in &packs {
        for heads in args.heads() {
            for &dtype in &args.dtypes {
                for &implementation in &args.implementations {
                    let implementation = implementation.into();
                    let measured = measure(pack, heads, dtype, implementation, &device, args)?;
                    println!("{}", line(&measured));
                    results.attention.push(measured);
                    write(args, &results)?;
                }
            }
        }
    }
    let heads = args.heads().next().context("--heads: none")?;
    let dtype = args.dtypes.first().context("--dtypes: none")?.dtype();
    for &rows in &args.burn_rows {
        let comparison = burn_attention::compare(rows, heads, dtype, &device, repetitions(args));
        results.burn.push(comparison);
    }
    print_table(&results.attention);
    print_burn_table(&results.burn);
    write(args, &results)
}

/// Writes the results so far.
fn write(args: &Args, results: &Results) -> Result<()> {
    if let Some(file) = &args.json {
        atomic::write(file, &serde_json::to_vec_pretty(results)?)?;
    }
    Ok(())
}

fn repetitions(args: &Args) -> Repetitions {
    Repetitions {
        warm_up: 2,
        samples: args.samples,
        runs: args.runs,
    }
}

fn measure(
    pack: &NamedPack,
    heads: Heads,
    dtype: Dtype,
    implementation: Implementation,
    device: &Device,
    args: &Args,
) -> Result<Measured> {
    let row = &pack.step.packs[0];
    let new_mask =
        || TreeMask::from_layouts(std::slice::from_ref(&row.layout), row.padded_len, device);
    // The first use of a device may include its initialisation.
    let mask = new_mask();
    let start = Instant::now();
    drop(new_mask());
    let mask_seconds = start.elapsed().as_secs_f64();
    let inputs = AttentionInputs::random(&mask, heads, dtype.dtype(), implementation)
        .with_context(|| format!("{implementation:?} in {dtype:?}"))?;

    let output = inputs.forward();
    let gradients = inputs.backward(&output);
    let errors = (args.checked > 0).then(|| {
        accuracy::errors(
            &inputs,
            &output,
            &gradients,
            mask.visibility(),
            heads,
            args.checked,
            args.seed,
        )
    });
    let repetitions = repetitions(args);
    let mut forward = Repetition::new(device);
    let forward_seconds = seconds_with_results(
        device,
        repetitions,
        || inputs.forward(),
        |again| {
            let numbers = repeated::differ(&output.output, again.output);
            forward.add(numbers.bool_or(repeated::differ(&output.log_sum_exp, again.log_sum_exp)));
        },
    );
    let mut backward = Repetition::new(device);
    let backward_seconds = seconds_with_results(
        device,
        repetitions,
        || inputs.backward(&output),
        |again| {
            let differ = gradients
                .iter()
                .zip(again)
                .map(|(first, again)| repeated::differ(first, again));
            backward.add(differ.reduce(Tensor::bool_or).expect("three gradients"));
        },
    );
    let pairs = mask.visible_pairs();
    Ok(Measured {
        tree: pack.name.clone(),
        heads: format!("{}/{}", heads.query, heads.key_value),
        dtype: format!("{dtype:?}").to_lowercase(),
        implementation: format!("{implementation:?}").to_lowercase(),
        rows: row.padded_len,
        visible_share: pairs as f64 / (row.padded_len as f64).powi(2),
        mask_seconds,
        forward_seconds,
        backward_seconds,
        forward_tflops: heads.forward_flops(pairs) / forward_seconds / 1e12,
        backward_tflops: heads.backward_flops(pairs) / backward_seconds / 1e12,
        errors,
        forward_repeated: forward.result(),
        backward_repeated: backward.result(),
    })
}

fn line(measured: &Measured) -> String {
    format!(
        "{} {} {} {}: forward {:.3} ms ({}), backward {:.3} ms ({})",
        measured.tree,
        measured.heads,
        measured.dtype,
        measured.implementation,
        measured.forward_seconds * 1e3,
        measured.forward_repeated,
        measured.backward_seconds * 1e3,
        measured.backward_repeated,
    )
}

fn print_table(measured: &[Measured]) {
    let rows = measured.iter().map(|one| {
        let error = |value: fn(&Errors) -> f64| match &one.errors {
            Some(errors) => format!("{:.1e}", value(errors)),
            None => "-".to_owned(),
        };
        vec![
            one.tree.clone(),
            one.heads.clone(),
            one.dtype.clone(),
            one.implementation.clone(),
            one.rows.to_string(),
            format!("{:.3}", one.visible_share),
            format!("{:.2}", one.mask_seconds * 1e3),
            tera(one.forward_tflops * 1e12),
            tera(one.backward_tflops * 1e12),
            error(|errors| errors.output),
            error(|errors| errors.worst_output_row),
            error(Errors::worst_gradient),
            one.forward_repeated.to_string(),
            one.backward_repeated.to_string(),
        ]
    });
    let header = [
        "tree",
        "heads",
        "dtype",
        "implementation",
        "rows",
        "visible",
        "mask ms",
        "forward TFLOP/s",
        "backward TFLOP/s",
        "output error",
        "of the worst row",
        "worst gradient error",
        "forward again",
        "backward again",
    ];
    println!("{}", table(&header, rows.collect()));
}

fn print_burn_table(comparisons: &[burn_attention::Comparison]) {
    if comparisons.is_empty() {
        return;
    }
    let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), format_bytes);
    let rows = comparisons.iter().map(|one| {
        vec![
            one.rows.to_string(),
            format!("{:.2}", one.tree.seconds * 1e3),
            format!("{:.2}", one.burn.seconds * 1e3),
            format!("{:.1}x", one.burn.seconds / one.tree.seconds),
            bytes(one.tree.bytes),
            bytes(one.burn.bytes),
        ]
    });
    let header = [
        "rows of one path",
        "tree attention ms",
        "Burn's ms",
        "faster",
        "memory",
        "Burn's memory",
    ];
    println!("{}", table(&header, rows.collect()));
}
