//! Single blocks: they continue from past rows, return the requested outputs, and use given
//! experts.

use burn::tensor::{DType, FloatDType, Int, Tensor};
use burn_tree_attn::PastKeyValue;
use burn_tree_attn::PastKeys;
use burn_tree_train::{BlockContext, BlockOutputs, BlockPast, TreeModel};
use tree_pack::{Pack, TreeBatch, TreeLayout};
use tree_training_tests::device::{autodiff_device, supports_f64};
use tree_training_tests::models::{hybrid_config, moe_config, random_model};
use tree_training_tests::step::sequence_layout;
use tree_training_tests::tensors::HostTensor;

const TOKENS: [u32; 12] = [1, 5, 3, 9, 2, 2, 7, 11, 4, 8, 6, 10];

fn pack(layout: TreeLayout) -> Pack {
    Pack {
        padded_len: layout.len(),
        layout,
        ..Pack::default()
    }
}

/// The sequence from a depth on.
fn rest(depth: usize) -> TreeLayout {
    let mut layout = sequence_layout(&TOKENS[depth..]);
    for position in &mut layout.position_ids {
        *position += depth as u32;
    }
    layout
}

fn close<const D: usize>(found: &Tensor<D>, expected: &Tensor<D>, what: &str) {
    let (found, expected) = (HostTensor::read(found), HostTensor::read(expected));
    let distance = found.distance(&expected) / expected.norm();
    let bar = if supports_f64() { 1e-12 } else { 1e-5 };
    assert!(distance < bar, "{what} differs by {distance:e}");
}

/// The past context after a sequence: all keys and values, or the last state.
fn past(outputs: BlockOutputs) -> BlockPast {
    match outputs {
        BlockOutputs {
            key: Some(key),
            value: Some(value),
            ..
        } => BlockPast::Attention(PastKeyValue { key, value }),
        BlockOutputs {
            states: Some(states),
            conv_tails,
            ..
        } => BlockPast::Recurrent { states, conv_tails },
        _ => panic!("a block that leaves nothing"),
    }
}

/// Each block of a hybrid model on a sequence and on its two parts; states of requested rows in the
/// first part, the second and the whole.
#[test]
fn blocks_continue_what_the_rows_before_left() {
    const CUT: usize = 7;
    let device = autodiff_device();
    let dtype = if supports_f64() {
        DType::F64
    } else {
        DType::F32
    };
    let model = random_model(&hybrid_config(13), 3, dtype, &device);
    let batch = |layout| TreeBatch::try_part(&pack(layout), &device, FloatDType::F32).unwrap();

    let whole_batch = batch(sequence_layout(&TOKENS));
    let none = [PastKeys::default()];
    let whole = BlockContext::continuing(&whole_batch, &none, vec![], vec![11, 6]).unwrap();
    let first_batch = batch(sequence_layout(&TOKENS[..CUT]));
    let first = BlockContext::continuing(&first_batch, &none, vec![], vec![6]).unwrap();
    let second_batch = batch(rest(CUT));
    let past_keys = PastKeys {
        start: vec![0; CUT],
        end: vec![(TOKENS.len() - CUT) as u32; CUT],
        position: (0..CUT as u32).collect(),
    };
    let second =
        BlockContext::continuing(&second_batch, &[past_keys], vec![Some(0)], vec![4]).unwrap();

    let mut x = model.embed(whole_batch.tokens, &whole);
    let mut x_first = model.embed(first_batch.tokens, &first);
    let mut x_second = model.embed(second_batch.tokens, &second);
    for block in 0..model.n_blocks() {
        let (y, outputs) = model.block(block, x, &whole, None).unwrap();
        let (y_first, left) = model.block(block, x_first, &first, None).unwrap();
        let states_in_between = left.states.clone();
        let past = past(left);
        let (y_second, last) = model.block(block, x_second, &second, Some(&past)).unwrap();
        let name = format!("block {block}");
        close(&y_first, &y.clone().slice_dim(1, 0..CUT), &name);
        close(&y_second, &y.clone().slice_dim(1, CUT..TOKENS.len()), &name);
        if let Some(states) = outputs.states {
            // In the order of the requests.
            close(
                &last.states.expect("requested"),
                &states.clone().slice_dim(0, 0..1),
                &name,
            );
            let in_between = states_in_between.expect("requested");
            close(&in_between, &states.slice_dim(0, 1..2), &name);
            let tails = outputs.conv_tails.expect("requested").slice_dim(0, 0..1);
            close(&last.conv_tails.expect("requested"), &tails, &name);
        }
        (x, x_first, x_second) = (y, y_first, y_second);
    }
}

/// A recomputed block must not choose experts again.
#[test]
fn experts_that_were_chosen_are_taken_again() {
    let device = autodiff_device();
    let model = random_model(&moe_config(13), 3, DType::F32, &device);
    let batch = TreeBatch::new(&[pack(sequence_layout(&TOKENS))], &device);
    let context = BlockContext::new(&batch);
    let x = model.embed(batch.tokens, &context);
    let (x, _) = model.block(0, x, &context, None).unwrap();
    let run = |context: &BlockContext| {
        let (y, outputs) = model.block(1, x.clone(), context, None).unwrap();
        let experts = outputs.router.expect("a mixture").experts;
        (HostTensor::read(&y), experts)
    };
    let read = |experts: &Tensor<2, Int>| experts.to_data().iter::<i64>().collect::<Vec<_>>();

    let (y, experts) = run(&context);
    let (again, _) = run(&context.clone().with_routing(1, experts.clone()));
    assert_eq!(again, y);
    let others = (experts.clone() + 1).remainder_scalar(6);
    let (with_others, taken) = run(&context.clone().with_routing(1, others.clone()));
    assert_eq!(read(&taken), read(&others));
    assert_ne!(with_others, y);
    // The routing of another block has no effect.
    let (unchanged, _) = run(&context.with_routing(0, others));
    assert_eq!(unchanged, y);
}

#[test]
#[should_panic(expected = "begins at depth 7, expected 0")]
fn parts_are_refused_where_their_past_is_not_known() {
    let part = TreeBatch::try_part(&pack(rest(7)), &autodiff_device(), FloatDType::F32);
    BlockContext::new(&part.unwrap());
}
