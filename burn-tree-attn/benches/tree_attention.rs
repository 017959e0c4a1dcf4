//! Tree attention on Flex against plain matrix products of the same number of operations.
//!
//! `cargo bench -p burn-tree-attn [-- ROWS... TREES...]` (default 4096 8192 16384, all trees). For every tree and `N`
//! it prints the time of forward and backward, the ratio to the time in which Flex multiplies
//! matrices with as many floating-point operations (`4 d` per visible pair and query head forward,
//! 2.5 times that backward), and the most memory held besides the inputs.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use burn::tensor::{Device, Distribution, Int, Tensor};
use burn_tree_attn::{RopeConfig, TreeAttentionOptions, TreeMask, rope, tree_attention};

#[path = "../tests/support/mod.rs"]
mod support;
use support::Forest;

const QUERY_HEADS: usize = 16;
const KV_HEADS: usize = 8;
const HEAD_DIM: usize = 128;
const REPETITIONS: usize = 5;

/// The system allocator, counting.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is passed on to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

fn count(size: usize) {
    PEAK.fetch_max(HELD.fetch_add(size, Relaxed) + size, Relaxed);
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One path.
fn causal(rows: usize) -> Forest {
    Forest(vec![(None, rows)])
}

/// A prompt of an eighth of the rows and 16 equal answers.
fn star16(rows: usize) -> Forest {
    let mut nodes = vec![(None, rows / 8)];
    nodes.resize(17, (Some(0), (rows - rows / 8) / 16));
    Forest(nodes)
}

/// A prompt of 2048 and answers of 40.
fn leaf40(rows: usize) -> Forest {
    let mut nodes = vec![(None, 2048)];
    nodes.resize(1 + (rows - 2048) / 40, (Some(0), 40));
    Forest(nodes)
}

/// A spine of turns of 192, each with two side leaves of 160.
fn comb(rows: usize) -> Forest {
    let mut nodes: Vec<(Option<usize>, usize)> = Vec::new();
    for turn in 0..rows / 512 {
        let spine = turn.checked_sub(1).map(|previous| previous * 3);
        nodes.push((spine, 192));
        nodes.extend([(Some(turn * 3), 160); 2]);
    }
    Forest(nodes)
}

/// Many short nodes: a spine of turns of 12, each with three leaves of 4.
fn bushy(rows: usize) -> Forest {
    let mut nodes: Vec<(Option<usize>, usize)> = Vec::new();
    for turn in 0..rows / 24 {
        let spine = turn.checked_sub(1).map(|previous| previous * 4);
        nodes.push((spine, 12));
        nodes.extend([(Some(turn * 4), 4); 3]);
    }
    Forest(nodes)
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64()
}

fn time<R>(f: impl FnOnce() -> R) -> (Duration, R) {
    let start = Instant::now();
    let result = f();
    (start.elapsed(), result)
}

fn random(shape: [usize; 4], device: &Device) -> Tensor<4> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), device)
}

/// Floating-point operations per second of plain products: the faster of square ones and of the
/// two that dense attention consists of.
fn product_rate(device: &Device) -> f64 {
    let square = Tensor::<2>::random([2048, 2048], Distribution::Default, device);
    let (elapsed, _) = time(|| square.clone().matmul(square.clone()));
    let square_rate = 2.0 * 2048f64.powi(3) / elapsed.as_secs_f64();

    let rows = 1024;
    let query = random([1, QUERY_HEADS, rows, HEAD_DIM], device);
    let (elapsed, _) = time(|| {
        query
            .clone()
            .matmul(query.clone().transpose())
            .matmul(query.clone())
    });
    let operations = 4 * QUERY_HEADS * rows * rows * HEAD_DIM;
    square_rate.max(operations as f64 / elapsed.as_secs_f64())
}

fn bench_attention(name: &str, forest: &Forest, rows: usize) {
    let device = Device::flex();
    let layout = forest.layout();
    let (plan_time, mask) = time(|| TreeMask::from_layouts(&[layout], rows, &device));
    let autodiff = device.clone().autodiff();
    let leaf = |heads| random([1, heads, rows, HEAD_DIM], &autodiff).require_grad();
    let (query, key, value) = (leaf(QUERY_HEADS), leaf(KV_HEADS), leaf(KV_HEADS));
    let operations = 4.0 * (HEAD_DIM * QUERY_HEADS) as f64 * mask.visible_pairs() as f64;

    let (mut forward, mut backward, mut products) = (Vec::new(), Vec::new(), Vec::new());
    let before = HELD.load(Relaxed);
    PEAK.store(before, Relaxed);
    for _ in 0..REPETITIONS {
        let rate = product_rate(&device);
        PEAK.store(before, Relaxed);
        products.push(Duration::from_secs_f64(operations / rate));
        let (elapsed, output) = time(|| {
            let options = TreeAttentionOptions::default();
            tree_attention(query.clone(), key.clone(), value.clone(), &mask, options)
        });
        forward.push(elapsed);
        let (elapsed, _gradients) = time(|| output.sum().backward());
        backward.push(elapsed);
    }
    let peak = (PEAK.load(Relaxed) - before) as f64 / 1e6;
    let (forward, backward, products) = (median(forward), median(backward), median(products));
    println!(
        "{name:>8} {rows:>6} {:>9.3} {forward:>9.3} {backward:>9.3} {:>9.2} {:>9.2} {:>9.2} {peak:>10.0} {:>9.2}",
        mask.visible_pairs() as f64 / (rows as f64).powi(2),
        forward / products,
        backward / (2.5 * products),
        (forward + backward) / (3.5 * products),
        plan_time.as_secs_f64() * 1e3,
    );
}

fn bench_rope(rows: usize) {
    let device = Device::flex();
    let x = random([1, QUERY_HEADS, rows, HEAD_DIM], &device);
    let ids = Tensor::<1, Int>::arange(0..rows as i64, &device).reshape([1, rows]);
    let config = RopeConfig::new(1e6);
    let times = (0..REPETITIONS).map(|_| time(|| rope(x.clone(), ids.clone(), &config)).0);
    let copies = (0..REPETITIONS).map(|_| time(|| x.clone() + 1.0).0);
    let (rope, copy) = (median(times.collect()), median(copies.collect()));
    println!(
        "rope {rows}: {:.1} ms; adding a number: {:.1} ms",
        rope * 1e3,
        copy * 1e3
    );
}

fn main() {
    // Cargo passes `--bench`.
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| arg != "--bench")
        .collect();
    let mut rows: Vec<usize> = arguments
        .iter()
        .filter_map(|arg| arg.parse().ok())
        .collect();
    if rows.is_empty() {
        rows = vec![4096, 8192, 16384];
    }
    let names: Vec<&String> = arguments
        .iter()
        .filter(|arg| arg.parse::<usize>().is_err())
        .collect();
    println!(
        "{QUERY_HEADS}/{KV_HEADS} heads, head dimension {HEAD_DIM}, f32, {} threads; times in s, ratios to plain products",
        std::thread::available_parallelism().map_or(1, usize::from)
    );
    println!(
        "{:>8} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>10} {:>9}",
        "tree",
        "rows",
        "visible",
        "forward",
        "backward",
        "fwd ratio",
        "bwd ratio",
        "ratio",
        "peak MB",
        "mask ms"
    );
    type Tree = fn(usize) -> Forest;
    let trees: [(&str, Tree); 5] = [
        ("star16", star16),
        ("leaf40", leaf40),
        ("comb", comb),
        ("bushy", bushy),
        ("causal", causal),
    ];
    for &rows in &rows {
        for (name, tree) in trees {
            if names.is_empty() || names.iter().any(|wanted| *wanted == name) {
                bench_attention(name, &tree(rows), rows);
            }
        }
        bench_rope(rows);
    }
}
