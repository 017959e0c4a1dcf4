//! Refused arguments.

use burn::tensor::{DType, Tensor};
use burn_tree_attn::{
    KeyValue, PastKeyValue, PastKeys, TreeAttentionOptions, TreeMask, tree_attention,
    try_tree_attention, try_tree_attention_with_past,
};

use crate::support::{Forest, device};

#[test]
fn a_past_that_does_not_fit_is_refused() {
    let device = device();
    let past = [PastKeys {
        start: vec![0; 2],
        end: vec![3; 2],
        position: vec![0, 1],
    }];
    let layout = Forest(vec![(None, 3)]).layout();
    let mask = TreeMask::with_past_keys(&[layout], 3, &past, &device).unwrap();
    let zeros = |shape: [usize; 4]| Tensor::<4>::zeros(shape, &device);
    let options = TreeAttentionOptions::default();
    let own = || zeros([1, 2, 3, 4]);
    let refuse = |key, value| {
        let past = PastKeyValue { key, value };
        let (key, value) = (own(), own());
        try_tree_attention_with_past(own(), past, KeyValue { key, value }, &mask, options)
            .unwrap_err()
    };
    let shape = [1, 2, 2, 4];
    for (key, value, text) in [
        (
            [2, 2, 2, 4],
            shape,
            "past key has shape [2, 2, 2, 4], expected batch size 1 (of the key)",
        ),
        (
            [1, 1, 2, 4],
            shape,
            "past key has shape [1, 1, 2, 4], expected head count 2 (of the key)",
        ),
        (
            [1, 2, 1, 4],
            shape,
            "past and own key has shape [1, 2, 4, 4], expected row count 5 (of the mask)",
        ),
        (
            [1, 2, 2, 8],
            shape,
            "past key has shape [1, 2, 2, 8], expected head dimension 4 (of the key)",
        ),
        (
            shape,
            [1, 2, 3, 4],
            "past value has shape [1, 2, 3, 4], expected row count 2 (of the past key)",
        ),
        (
            shape,
            [1, 2, 2, 8],
            "past value has shape [1, 2, 2, 8], expected head dimension 4 (of the value)",
        ),
    ] {
        let error = refuse(zeros(key), zeros(value)).to_string();
        assert!(error.contains(text), "{error}");
    }
    assert_eq!(
        refuse(zeros(shape), zeros(shape).cast(DType::F16)).to_string(),
        "tree_attention: past value is F16, expected F32, the dtype of query"
    );
}

/// Only the keys of the rows are given, with a mask of rows that see past ones.
#[test]
fn missing_past_keys_are_named() {
    let device = device();
    let past = [PastKeys {
        start: vec![0; 56],
        end: vec![3; 56],
        position: (0..56).collect(),
    }];
    let layout = Forest(vec![(None, 3)]).layout();
    let mask = TreeMask::with_past_keys(&[layout], 3, &past, &device).unwrap();
    let refuse = |keys| {
        let rows = |rows| Tensor::<4>::zeros([1, 2, rows, 4], &device);
        let options = TreeAttentionOptions::default();
        try_tree_attention(rows(3), rows(keys), rows(keys), &mask, options)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        refuse(3),
        "tree_attention: key has shape [1, 2, 3, 4], expected row count 59 (of the mask, 56 of them \
         past keys of another pack: see tree_attention_with_past)"
    );
    // Some other mistake.
    assert_eq!(
        refuse(4),
        "tree_attention: key has shape [1, 2, 4, 4], expected row count 59 (of the mask)"
    );
}

#[test]
fn wrong_shapes_and_dtypes_are_refused() {
    let device = device();
    let mask = TreeMask::from_layouts(&[Forest(vec![(None, 3)]).layout()], 3, &device);
    let zeros = |shape: [usize; 4]| Tensor::<4>::zeros(shape, &device);
    let options = TreeAttentionOptions::default();
    let refuse = |shapes: [[usize; 4]; 3]| {
        let [query, key, value] = shapes.map(zeros);
        try_tree_attention(query, key, value, &mask, options)
            .unwrap_err()
            .to_string()
    };
    let shape = [1, 2, 3, 4];
    for (shapes, text) in [
        (
            [[2, 2, 3, 4], shape, shape],
            "query has shape [2, 2, 3, 4], expected batch size 1 (of the mask)",
        ),
        (
            [[1, 2, 5, 4], shape, shape],
            "query has shape [1, 2, 5, 4], expected row count 3 (of the mask)",
        ),
        (
            [shape, [2, 2, 3, 4], shape],
            "key has shape [2, 2, 3, 4], expected batch size 1 (of the query)",
        ),
        (
            [shape, [1, 2, 4, 4], shape],
            "key has shape [1, 2, 4, 4], expected row count 3 (of the mask)",
        ),
        (
            [shape, [1, 2, 3, 5], shape],
            "key has shape [1, 2, 3, 5], expected head dimension 4 (of the query)",
        ),
        (
            [shape, shape, [1, 1, 3, 4]],
            "value has shape [1, 1, 3, 4], expected head count 2 (of the key)",
        ),
        (
            [shape, shape, [1, 2, 2, 4]],
            "value has shape [1, 2, 2, 4], expected row count 3 (of the key)",
        ),
        (
            [[1, 3, 3, 4], shape, shape],
            "query has shape [1, 3, 3, 4], expected head count a positive multiple of 2 (key and value heads)",
        ),
    ] {
        let error = refuse(shapes);
        assert!(error.contains(text), "{error}");
    }
    let half = zeros(shape).cast(DType::F16);
    let error = try_tree_attention(zeros(shape), half, zeros(shape), &mask, options).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tree_attention: key is F16, expected F32, the dtype of query"
    );
}

#[test]
fn wrong_options_are_refused() {
    let device = device();
    let mask = TreeMask::from_layouts(&[Forest(vec![(None, 3)]).layout()], 3, &device);
    let zeros = || Tensor::<4>::zeros([1, 2, 3, 4], &device);
    let options = TreeAttentionOptions::default();
    for (options, text) in [
        (
            TreeAttentionOptions {
                scale: Some(f64::NAN),
                ..options
            },
            "option `scale` is NaN",
        ),
        (
            TreeAttentionOptions {
                softcap: Some(0.0),
                ..options
            },
            "option `softcap` is 0",
        ),
        (
            TreeAttentionOptions {
                sliding_window: Some(0),
                ..options
            },
            "option `sliding_window`",
        ),
    ] {
        let error = try_tree_attention(zeros(), zeros(), zeros(), &mask, options)
            .unwrap_err()
            .to_string();
        assert!(error.contains(text), "{error}");
    }
}

#[test]
#[should_panic(
    expected = "tree_attention: query has shape [1, 1, 2, 4], expected row count 3 (of the mask)"
)]
fn the_plain_function_panics_with_the_text_of_the_error() {
    let device = device();
    let mask = TreeMask::from_layouts(&[Forest(vec![(None, 3)]).layout()], 3, &device);
    let zeros = || Tensor::<4>::zeros([1, 1, 2, 4], &device);
    tree_attention(
        zeros(),
        zeros(),
        zeros(),
        &mask,
        TreeAttentionOptions::default(),
    );
}
