//! Packs as tensors: every value against the pack it comes from, and through Burn's `DataLoader`.

use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataset::InMemDataset;
use burn::tensor::{DType, Device, FloatDType, Int, Tensor};
use tree_pack::{
    Advantage, LossForm, PackOptions, PackedStep, Trajectory, TreeBatch, TreeBatcher,
    build_forests, pack_step,
};

/// Two packs of different length: a tree with a fork and an inner end, and a path.
fn step() -> PackedStep {
    let trajectory = |task: &str, tokens: &[u32], advantage: f32| Trajectory {
        advantage: Some(Advantage::Trajectory(advantage)),
        old_log_probs: Some(
            tokens[1..]
                .iter()
                .map(|&token| -0.1 * token as f32)
                .collect(),
        ),
        ..Trajectory::new(task, "r", tokens.to_vec(), vec![true; tokens.len()])
    };
    let trajectories = [
        trajectory("a", &[11, 12, 13], 0.5),
        trajectory("a", &[11, 12], -1.5),
        trajectory("a", &[11, 14], 2.5),
        trajectory("b", &[21, 22], 3.5),
    ];
    let forests = build_forests(&trajectories).unwrap();
    let options = PackOptions {
        pad_to_multiple: 5,
        loss: LossForm::PerToken,
        ..PackOptions::new(4)
    };
    pack_step(&trajectories, &forests, &options).unwrap()
}

fn integers<const D: usize>(tensor: &Tensor<D, Int>) -> Vec<i64> {
    tensor.to_data().iter::<i64>().collect()
}

fn floats(tensor: &Tensor<1>) -> Vec<f64> {
    tensor.to_data().iter::<f64>().collect()
}

#[test]
fn tensors_hold_the_packs() {
    let step = step();
    assert_eq!(step.packs.len(), 2);
    let batch = TreeBatch::with_dtype(&step.packs, &Device::flex(), FloatDType::F64);
    assert_eq!(batch.dims(), [2, 5]);
    assert_eq!(
        integers(&batch.tokens),
        [11, 12, 13, 14, 0, 21, 22, 0, 0, 0]
    );
    assert_eq!(batch.host_tokens(), [11, 12, 13, 14, 0, 21, 22, 0, 0, 0]);
    assert_eq!(
        integers(&batch.position_ids),
        [0, 1, 2, 1, 0, 0, 1, 0, 0, 0]
    );
    assert_eq!(
        integers(&batch.parents),
        [-1, 0, 1, 0, -1, -1, 0, -1, -1, -1]
    );
    assert_eq!(integers(&batch.key_start), [0, 1, 2, 3, 0, 0, 1, 0, 0, 0]);
    assert_eq!(integers(&batch.key_end), [4, 3, 3, 4, 0, 2, 2, 0, 0, 0]);

    let occurrences = &batch.occurrences;
    assert_eq!(occurrences.len(), 5);
    // 11 -> 12 twice with different advantages, 11 -> 14, 12 -> 13; then 21 -> 22.
    assert_eq!(integers(&occurrences.rows), [0, 0, 0, 1, 5]);
    assert_eq!(*occurrences.host_rows, [0, 0, 0, 1, 5]);
    assert_eq!(integers(&occurrences.targets), [12, 12, 14, 13, 22]);
    assert_eq!(integers(&occurrences.trajectories), [0, 1, 2, 0, 3]);
    assert_eq!(integers(&occurrences.token_indices), [1, 1, 1, 2, 1]);
    assert_eq!(occurrences.weights.dtype(), DType::F64);
    assert_eq!(floats(&occurrences.weights), [1.0 / 5.0; 5]);
    let advantages = occurrences.advantages.as_ref().unwrap();
    assert_eq!(floats(advantages), [0.5, -1.5, 2.5, 0.5, 3.5]);
    let old = floats(occurrences.old_log_probs.as_ref().unwrap());
    // The inputs are f32.
    let expected = [12.0, 12.0, 14.0, 13.0, 22.0].map(|token: f32| f64::from(-0.1 * token));
    assert_eq!(old, expected);
    assert!(occurrences.ref_log_probs.is_none());
    assert!(
        batch
            .layouts
            .iter()
            .eq(step.packs.iter().map(|pack| &pack.layout))
    );
}

#[test]
fn floats_are_f32_unless_asked() {
    let batch = TreeBatch::new(&step().packs, &Device::flex());
    assert_eq!(batch.occurrences.weights.dtype(), DType::F32);
    assert_eq!(batch.occurrences.advantages.unwrap().dtype(), DType::F32);
}

#[test]
fn a_pack_that_trains_nothing_joins_a_batch() {
    let mut packs = step().packs;
    packs[1].occurrences = tree_pack::Occurrences::default();
    let batch = TreeBatch::new(&packs, &Device::flex());
    assert_eq!(integers(&batch.occurrences.rows), [0, 0, 0, 1]);
    assert_eq!(batch.occurrences.advantages.unwrap().dims(), [4]);
}

#[test]
#[should_panic(expected = "only some packs of the batch carry advantages")]
fn packs_with_and_without_inputs_are_no_batch() {
    let mut packs = step().packs;
    packs[1].occurrences.advantages = None;
    TreeBatch::new(&packs, &Device::flex());
}

#[test]
fn the_data_loader_gives_batches_of_packs() {
    let step = step();
    let loader = DataLoaderBuilder::new(TreeBatcher::default())
        .batch_size(1)
        .set_device(Device::flex())
        .build(InMemDataset::new(step.packs.clone()));
    let batches: Vec<TreeBatch> = loader.iter().map(Result::unwrap).collect();
    assert_eq!(batches.len(), 2);
    for (batch, pack) in batches.iter().zip(&step.packs) {
        assert_eq!(batch.dims(), [1, pack.padded_len]);
        assert_eq!(*batch.occurrences.host_rows, pack.occurrences.rows);
        let tokens = integers(&batch.tokens);
        let expected = pack.layout.tokens.iter().map(|&token| i64::from(token));
        assert!(tokens.into_iter().take(pack.layout.len()).eq(expected));
    }
}
