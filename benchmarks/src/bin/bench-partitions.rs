//! A step on the parts of one tree compared with a step on the whole tree: time, and memory on the
//! CPU, with each option of a step.

use std::alloc::{GlobalAlloc, Layout, System};
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result};
use burn::tensor::{Device, FloatDType};
use burn_tree_models::Precision;
use burn_tree_models::{CausalLm, ModelConfig};
use burn_tree_train::{StepOptions, sft_loss, step_gradients};
use burn_tree_trainer::device::device_by_name;
use burn_tree_trainer::report::table;
use burn_tree_trainer::report::timing::{median, wait};
use clap::Parser;
use tree_pack::{
    PackOptions, PackedStep, Partitioning, PrefixForest, Trajectory, build_forests, pack_step,
};
use tree_training_benchmarks::trees::TreeShape;

/// Times the gradients of one tree, whole and in parts, with a random model: with graphs kept, with
/// activation checkpointing, and with host offload.
///
/// The cases are interleaved, so that changes in the speed of the machine affect all of them. On
/// Linux the CPU time of the process is measured, too, which depends less on other load. Memory is
/// the peak of the bytes allocated on the host during a step, less those before it: tensors on CPU
/// backends.
#[derive(Parser, Debug)]
#[command(name = "bench-partitions", version)]
struct Args {
    /// Device.
    #[arg(long, default_value = "flex")]
    device: String,
    /// Configuration of the model.
    #[arg(long, default_value = "tiny")]
    model: String,
    /// Vocabulary size of the model.
    #[arg(long, default_value_t = 4096)]
    vocab: usize,
    /// Dtype of the blocks; embedding and head stay f32.
    #[arg(long)]
    bf16: bool,
    /// Tree: star8, star16, comb, leaf40 or causal.
    #[arg(long, default_value = "star16")]
    tree: String,
    /// Tokens of the tree.
    #[arg(long, default_value_t = 4096)]
    tokens: usize,
    /// Number of parts of the tree: the smallest token budget with at most so many parts is used.
    #[arg(long, default_value = "4")]
    parts: NonZeroUsize,
    /// Whether sibling subtrees may share a part.
    #[arg(long)]
    shared: bool,
    /// Rounds, whose median is taken, after one untimed round.
    #[arg(long, default_value = "5")]
    repetitions: NonZeroUsize,
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

/// An option of the step with its measurements.
struct Way {
    name: &'static str,
    step: PackedStep,
    options: StepOptions,
    seconds: Vec<f64>,
    /// CPU seconds on all cores.
    cpu_seconds: Vec<f64>,
    bytes: usize,
}

fn run(args: &Args) -> Result<()> {
    let device = device_by_name(&args.device)?.autodiff();
    let config = ModelConfig::named(&args.model, args.vocab)?;
    let master = CausalLm::random(&config, 0, FloatDType::F32, &device);
    let precision = Precision {
        blocks: match args.bf16 {
            true => FloatDType::BF16,
            false => FloatDType::F32,
        },
        ..Precision::F32
    };
    let model = precision.shadow(&master);
    drop(master);

    let mut ways = ways(args)?;
    let sizes = |step: &PackedStep| {
        let sizes = step.packs.iter().map(|pack| pack.layout.len().to_string());
        sizes.collect::<Vec<_>>().join(", ")
    };
    println!(
        "{}, {}: {} tokens whole, or parts of {}",
        args.model,
        args.tree,
        sizes(&ways[0].step),
        sizes(&ways[2].step)
    );
    for round in 0..=args.repetitions.get() {
        for way in &mut ways {
            let measured = measure(&model, way, &device)?;
            if round > 0 {
                way.seconds.push(measured.seconds);
                way.cpu_seconds.push(measured.cpu_seconds);
                way.bytes = way.bytes.max(measured.bytes);
            }
        }
    }
    let whole = &ways[0];
    let ratio = |of: &[f64], whole: &[f64]| {
        let pairs = of.iter().zip(whole);
        format!(
            "{:.3}",
            median(pairs.map(|(of, whole)| of / whole).collect())
        )
    };
    let rows = ways.iter().map(|way| {
        vec![
            way.name.to_owned(),
            way.step.packs.len().to_string(),
            format!("{:.3}", median(way.seconds.clone())),
            ratio(&way.seconds, &whole.seconds),
            format!("{:.3}", median(way.cpu_seconds.clone())),
            ratio(&way.cpu_seconds, &whole.cpu_seconds),
            format!("{:.1}", way.bytes as f64 / f64::from(1 << 20)),
            format!("{:.3}", way.bytes as f64 / whole.bytes as f64),
        ]
    });
    let header = [
        "step", "packs", "s", "to whole", "CPU s", "to whole", "peak MiB", "to whole",
    ];
    println!("{}", table(&header, rows.collect()));
    Ok(())
}

fn ways(args: &Args) -> Result<Vec<Way>> {
    let shape = TreeShape::named(&args.tree, args.tokens).with_context(|| {
        format!(
            "--tree {}: there are {}",
            args.tree,
            TreeShape::NAMES.join(", ")
        )
    })?;
    let trajectories = shape.trajectories("tree", args.vocab);
    let forests = build_forests(&trajectories)?;
    let whole = pack(&trajectories, &forests, shape.len(), Partitioning::Refuse)?;
    let partitioning = match args.shared {
        true => Partitioning::Shared,
        false => Partitioning::Connected,
    };
    // The smallest budget with few enough parts.
    let (mut low, mut high) = (shape.len() / args.parts, shape.len());
    while low < high {
        let budget = low.midpoint(high);
        let step = pack(&trajectories, &forests, budget.max(1), partitioning)?;
        match step.packs.len() <= args.parts.get() {
            true => high = budget,
            false => low = budget + 1,
        }
    }
    let parts = pack(&trajectories, &forests, high.max(1), partitioning)?;
    // A part that continues no other is a step by itself.
    let first = PackedStep {
        packs: parts.packs[..1].to_vec(),
        ..parts.clone()
    };
    let way = |name, step: &PackedStep, recompute, offload| Way {
        name,
        step: step.clone(),
        options: StepOptions {
            recompute,
            offload,
            ..StepOptions::default()
        },
        seconds: Vec::new(),
        cpu_seconds: Vec::new(),
        bytes: 0,
    };
    Ok(vec![
        way("whole", &whole, false, false),
        way("whole, recompute", &whole, true, false),
        way("parts", &parts, false, false),
        way("parts, offload", &parts, false, true),
        way("parts, recompute", &parts, true, false),
        way("parts, recompute, offload", &parts, true, true),
        way("first part alone", &first, false, false),
        way("first part alone, recompute", &first, true, false),
    ])
}

fn pack(
    trajectories: &[Trajectory],
    forests: &[PrefixForest],
    budget: usize,
    partitioning: Partitioning,
) -> Result<PackedStep> {
    let options = PackOptions {
        partitioning,
        ..PackOptions::new(budget)
    };
    Ok(pack_step(trajectories, forests, &options)?)
}

/// The measurements of one step.
struct Measured {
    seconds: f64,
    cpu_seconds: f64,
    /// Peak of the allocated bytes, less those before.
    bytes: usize,
}

fn measure(model: &CausalLm, way: &Way, device: &Device) -> Result<Measured> {
    let plain = device.clone().inner();
    wait(&plain);
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let (start, cpu_start) = (Instant::now(), cpu_seconds());
    let gradients = step_gradients(
        model,
        &way.step,
        &way.options,
        device,
        |_, output, occurrences| sft_loss(output, occurrences),
    )?;
    wait(&plain);
    let (seconds, cpu_seconds) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu_start);
    drop(gradients);
    Ok(Measured {
        seconds,
        cpu_seconds,
        bytes: PEAK.load(Ordering::Relaxed) - before,
    })
}

/// CPU seconds of this process, which depend little on other load. NaN if the system does not
/// report them.
fn cpu_seconds() -> f64 {
    /// Ticks per second of the kernel's interface.
    const TICKS: f64 = 100.0;
    let read = || {
        let text = std::fs::read_to_string("/proc/self/stat").ok()?;
        // After the name in brackets: user and system time are the fields 14 and 15.
        let fields: Vec<_> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = |index: usize| fields.get(index)?.parse::<f64>().ok();
        Some((ticks(11)? + ticks(12)?) / TICKS)
    };
    read().unwrap_or(f64::NAN)
}

/// The system allocator with counters.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

impl Counting {
    fn add(bytes: usize) {
        let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
        PEAK.fetch_max(live, Ordering::Relaxed);
    }
}

// SAFETY: all calls are forwarded to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::add(layout.size());
        // SAFETY: the arguments are those of the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::add(layout.size());
        // SAFETY: the arguments are those of the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the arguments are those of the caller.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::add(size);
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the arguments are those of the caller.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
