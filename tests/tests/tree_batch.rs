//! Packs as tensors: every value compared with the pack, and, with the feature `dataset`, through
//! Burn's `DataLoader`.

use burn::tensor::{DType, Device, FloatDType, Int, Tensor};
use tree_pack::{
    Advantage, BatchId, LossForm, Pack, PackOptions, PackedStep, Partitioning, Trajectory,
    TreeBatch, build_forests, pack_step,
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

fn message(packs: &[Pack]) -> String {
    TreeBatch::try_new(packs, &Device::flex())
        .unwrap_err()
        .to_string()
}

#[test]
fn packs_that_are_no_batch_are_named() {
    type Damage = (&'static str, fn(&mut Vec<Pack>));
    let damages: [Damage; 17] = [
        (
            "pack 1 is of another optimizer step than pack 0: its weights have another denominator",
            |packs| packs[1] = other_step().packs.remove(0),
        ),
        (
            "only some packs of the batch carry old log-probs: pack 0 has none",
            |packs| packs[0].occurrences.old_log_probs = None,
        ),
        (
            "only some packs of the batch carry sampling log-probs: pack 0 has none",
            |packs| packs[1].occurrences.sampling_log_probs = Some(vec![0.0]),
        ),
        (
            "packs 0 and 1 of the batch have different forms of loss",
            |packs| packs[1].occurrences.loss_form = LossForm::LogLikelihood,
        ),
        (
            "pack 1: padded_len is 1, expected at least 2, its tokens",
            |packs| packs[1].padded_len = 1,
        ),
        (
            "a batch of 2 rows of 1073741824 tokens exceeds the index range",
            |packs| packs[0].padded_len = 1 << 30,
        ),
        (
            "pack 1: layout: position_ids: got 1 entries, expected 2",
            |packs| packs[1].layout.position_ids.truncate(1),
        ),
        (
            "pack 1: layout: parents: got 1 entries, expected 2",
            |packs| packs[1].layout.parents.truncate(1),
        ),
        (
            "pack 1: layout: subtree_ends: got 3 entries, expected 2",
            |packs| packs[1].layout.subtree_ends.push(3),
        ),
        (
            "pack 1: occurrences: targets: got 0 entries, expected 1, as many as rows",
            |packs| packs[1].occurrences.targets.clear(),
        ),
        (
            "pack 1: occurrences: weights: got 2 entries, expected 1, as many as rows",
            |packs| packs[1].occurrences.weights.push(1.0),
        ),
        (
            "pack 1: occurrences: multiplicities: got 0 entries, expected 1, as many as rows",
            |packs| packs[1].occurrences.multiplicities.clear(),
        ),
        (
            "pack 1: occurrences: advantages: got 2 entries, expected 1, as many as rows",
            |packs| packs[1].occurrences.advantages = Some(vec![0.0; 2]),
        ),
        (
            "pack 1: occurrences: rows: got 2 at entry 0, expected a row below 2",
            |packs| packs[1].occurrences.rows[0] = 2,
        ),
        (
            "pack 0: occurrences: rows: got 0 at entry 1, expected at least 1, the row before: \
             rows ascend",
            |packs| packs[0].occurrences.rows.swap(0, 3),
        ),
        (
            "row 0 of pack 1 begins at depth 3, expected 0: its pack continues another one (see \
             step_gradients)",
            |packs| packs[1].layout.position_ids = vec![3, 4],
        ),
        (
            "row 0 of pack 1 begins at depth 0, expected 0: its pack continues another one (see \
             step_gradients)",
            |packs| packs[1].gateway = parts().packs[1].gateway.clone(),
        ),
    ];
    for (expected, damage) in damages {
        let mut packs = step().packs;
        damage(&mut packs);
        assert_eq!(message(&packs), expected);
    }
}

/// The same packs with one more trajectory elsewhere: another denominator.
fn other_step() -> PackedStep {
    let more = [
        Trajectory::new("b", "r", vec![21, 22], vec![true; 2]),
        Trajectory::new("c", "r", vec![31, 32, 33], vec![true; 3]),
    ];
    let forests = build_forests(&more).unwrap();
    pack_step(&more, &forests, &PackOptions::new(4)).unwrap()
}

/// A path in three parts.
fn parts() -> PackedStep {
    let path = [Trajectory::new(
        "long",
        "r",
        (1..=9).collect(),
        vec![true; 9],
    )];
    let options = PackOptions {
        partitioning: Partitioning::Connected,
        ..PackOptions::new(3)
    };
    let step = pack_step(&path, &build_forests(&path).unwrap(), &options).unwrap();
    assert_eq!(step.packs.len(), 3);
    step
}

#[test]
fn a_batch_does_not_compute_parts() {
    let packs = parts().packs;
    assert_eq!(
        message(&packs),
        "row 0 of pack 1 begins at depth 3, expected 0: its pack continues another one (see \
         step_gradients)"
    );
    assert!(TreeBatch::try_new(&packs[..1], &Device::flex()).is_ok());
    let part = TreeBatch::try_part(&packs[1], &Device::flex(), FloatDType::F64).unwrap();
    assert_eq!(integers(&part.position_ids), [3, 4, 5]);
    assert_eq!(part.occurrences.weights.dtype(), DType::F64);
    // All other columns of a part are checked, too.
    let mut wrong = packs[1].clone();
    wrong.occurrences.targets.pop();
    let error = TreeBatch::try_part(&wrong, &Device::flex(), FloatDType::F64).unwrap_err();
    assert_eq!(
        error.to_string(),
        "pack 0: occurrences: targets: got 2 entries, expected 3, as many as rows"
    );
}

#[test]
#[should_panic(expected = "row 0 of pack 1 begins at depth 3, expected 0")]
fn refusal_panics_with_the_text_of_the_error() {
    TreeBatch::new(&parts().packs, &Device::flex());
}

/// Packs created by hand belong to no step and can be combined with any.
#[test]
fn packs_of_unknown_steps_join_a_batch() {
    let mut packs = step().packs;
    packs[1].step = None;
    assert!(TreeBatch::try_new(&packs, &Device::flex()).is_ok());
}

#[test]
fn a_batch_and_its_predictions_say_which_it_is() {
    let step = step();
    let batch = TreeBatch::new(&step.packs, &Device::flex());
    assert_eq!(batch.id(), BatchId::new(&batch.layouts, 5));
    assert_eq!(batch.id().dims(), batch.dims());
    assert_eq!(batch.occurrences.batch, Some(batch.id()));
    let again = TreeBatch::with_dtype(&step.packs, &Device::flex(), FloatDType::F64);
    assert_eq!(batch.id(), again.id());
    let mut packs = step.packs;
    packs[1].layout.tokens[0] = 20;
    assert_ne!(TreeBatch::new(&packs, &Device::flex()).id(), batch.id());
}

#[test]
fn targets_are_on_the_host_and_counted() {
    let step = step();
    let batch = TreeBatch::new(&step.packs, &Device::flex());
    assert_eq!(*batch.occurrences.host_targets, [12, 12, 14, 13, 22]);
    // Rows, targets and trajectories, four bytes each.
    assert_eq!(batch.occurrences.index_memory().host_bytes, 3 * 5 * 4);
}

#[test]
fn tokens_outside_of_the_vocabulary_are_named_by_row() {
    let step = step();
    let batch = |packs: &[Pack]| TreeBatch::new(packs, &Device::flex());
    assert_eq!(batch(&step.packs).check_vocabulary(23), Ok(()));
    assert_eq!(
        batch(&step.packs)
            .check_vocabulary(22)
            .unwrap_err()
            .to_string(),
        "row 1 of pack 1: token 22 at position 1, expected an id below 22, the size of the \
         vocabulary"
    );
    // A target without a row, as if it were in the next pack.
    let mut packs = step.packs;
    packs[1].occurrences.targets[0] = 50;
    assert_eq!(
        batch(&packs).check_vocabulary(50).unwrap_err().to_string(),
        "target of row 0 of pack 1: token 50 at position 1, expected an id below 50, the size of \
         the vocabulary"
    );
}

#[cfg(feature = "dataset")]
mod data_loader {
    use std::panic::AssertUnwindSafe;

    use burn::data::dataloader::DataLoaderBuilder;
    use burn::data::dataset::InMemDataset;
    use tree_pack::{BatchError, TreeBatcher};

    use super::*;

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

    /// Batches with all packs of a step, and batches without.
    #[test]
    fn the_data_loader_gives_batches_of_steps() {
        let mut packs = step().packs;
        packs.extend(other_step().packs);
        assert_eq!(packs.len(), 4);
        let loader = |batch_size: usize| {
            DataLoaderBuilder::new(TreeBatcher::default())
                .batch_size(batch_size)
                .set_device(Device::flex())
                .build(InMemDataset::new(packs.clone()))
        };
        let batches: Vec<TreeBatch> = loader(2).iter().map(Result::unwrap).collect();
        assert_eq!(batches.len(), 2);
        assert_eq!(batches[0].layouts[1], packs[1].layout);
        assert_eq!(batches[1].layouts[0], packs[2].layout);
        let error = TreeBatch::try_new(&packs[..3], &Device::flex()).unwrap_err();
        assert!(matches!(error, BatchError::OtherStep { pack: 2, first: 0 }));
        let three = std::panic::catch_unwind(AssertUnwindSafe(|| loader(3).iter().count()));
        let message = three.expect_err("a batch of two steps");
        let message = message.downcast_ref::<String>().expect("a text");
        assert_eq!(*message, error.to_string());
    }
}
