//! Bytes of masks, plans and indices.

use burn::tensor::Tensor;
use burn_tree_train::BlockContext;
use tree_pack::{Pack, PackOptions, Trajectory, TreeBatch, build_forests, pack_step};

use crate::support::device;

/// A prompt of half of the rows and 16 answers.
fn star(rows: u32) -> Vec<Pack> {
    let trajectories: Vec<Trajectory> = (0..16)
        .map(|answer| {
            let own = (0..rows / 32).map(|index| rows + answer * rows + index);
            let tokens: Vec<u32> = (0..rows / 2).chain(own).collect();
            let mask = vec![true; tokens.len()];
            Trajectory::new("star", answer.to_string(), tokens, mask)
        })
        .collect();
    let forests = build_forests(&trajectories).unwrap();
    let options = PackOptions::new(rows as usize);
    pack_step(&trajectories, &forests, &options).unwrap().packs
}

/// The index memory of a tree is linear in its rows: some tens of values per row.
#[test]
fn indices_are_linear_in_rows() {
    let bytes_of = |rows: u32| {
        let batch = TreeBatch::new(&star(rows), &device());
        let context = BlockContext::new(&batch);
        let before = context.index_memory();
        context.recurrence().convolution(4).unwrap();
        context.mask().visibility().plan(64, None);
        let after = context.index_memory();
        // The recurrence and the plans count once they are built.
        assert!(after.host_bytes > before.host_bytes);
        let memory = after + batch.index_memory();
        (memory.host_bytes + memory.device_bytes) as f64
    };
    let (small, large) = (bytes_of(1024), bytes_of(8192));
    assert!(large < 200.0 * 8192.0, "{large}");
    assert!(large / small < 8.5, "{small} {large}");
}

#[test]
fn tensors_of_a_batch_are_counted() {
    let packs = star(64);
    let batch = TreeBatch::new(&packs, &device());
    let memory = batch.index_memory();
    let int = Tensor::<1, burn::tensor::Int>::zeros([1], &device())
        .dtype()
        .size() as u64;
    let n = packs[0].occurrences.len() as u64;
    // Position, parent and interval of a row; row, target, trajectory, index, weight and
    // multiplicity of a prediction.
    assert_eq!(memory.device_bytes, 4 * 64 * int + n * (4 * int + 2 * 4));
}
