//! Memory of the head: only the logits of one chunk of rows exist at a time, for any number of
//! rows.

#![cfg(feature = "flex")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use burn::tensor::{Device, Distribution, Tensor};
use burn_tree_nn::{LmHeadOptions, token_log_probs};
use tree_pack::{PackOptions, Trajectory, TreeBatch, build_forests, pack_step};

/// Counts the allocations of Flex.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls forward to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(held, Relaxed);
        // SAFETY: as the caller guarantees.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as the caller guarantees.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const HIDDEN: usize = 8;
const VOCAB: usize = 20_000;
const CHUNK_ROWS: usize = 64;

/// Peak number of bytes besides the inputs, in the forward and backward pass of the loss of `rows`
/// rows, all with predictions.
fn peak_bytes(rows: usize) -> usize {
    let device = Device::flex().autodiff();
    let tokens = (0..=rows as u32).map(|token| token % VOCAB as u32);
    let path = Trajectory::new("path", "0", tokens.collect(), vec![true; rows + 1]);
    let forests = build_forests(std::slice::from_ref(&path)).unwrap();
    let options = PackOptions::new(rows + 1);
    let step = pack_step(&[path], &forests, &options).unwrap();
    let batch = TreeBatch::new(&step.packs, &device);
    let random = |shape| Tensor::<2>::random(shape, Distribution::Default, &device);
    let hidden = random([rows + 1, HIDDEN])
        .reshape([1, rows + 1, HIDDEN])
        .detach();
    let (hidden, head) = (
        hidden.require_grad(),
        random([VOCAB, HIDDEN]).require_grad(),
    );
    let options = LmHeadOptions {
        chunk_rows: Some(CHUNK_ROWS),
        ..Default::default()
    };
    let before = HELD.load(Relaxed);
    PEAK.store(before, Relaxed);
    let output = token_log_probs(hidden, head, &batch.occurrences, options);
    let loss = (output.log_probs * batch.occurrences.weights.clone())
        .sum()
        .neg();
    drop(loss.backward());
    PEAK.load(Relaxed) - before
}

#[test]
fn logits_are_there_for_one_chunk_whatever_the_rows() {
    // The first call creates threads and their buffers.
    peak_bytes(2 * CHUNK_ROWS);
    let (small, large) = (peak_bytes(512), peak_bytes(4096));
    let chunk = CHUNK_ROWS * VOCAB * size_of::<f32>();
    // Logits, their softmax and its gradient; the head's gradient has the size of a few rows of
    // logits.
    assert!(
        small < 5 * chunk,
        "{small}: more than five chunks of {chunk}"
    );
    // Otherwise only data per row grows: states, their gradients, targets. All logits of the larger
    // case would be 56 more chunks.
    let by_row = 64 * HIDDEN * size_of::<f32>();
    assert!(large - small < (4096 - 512) * by_row, "{small} {large}");
}
