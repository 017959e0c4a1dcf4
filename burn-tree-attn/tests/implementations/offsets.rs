//! Tensors that 32-bit offsets cannot index.

use burn::tensor::{DType, Tensor};
use burn_tree_attn::{Implementation, TreeAttentionOptions, TreeMask, try_tree_attention};

use super::{available, bits};
use crate::support::{Forest, device};

/// More than 2^31 elements: the last trees give the same as alone. Needs some 30 GB of device
/// memory: `cargo test --release --test implementations -- --ignored`.
#[test]
#[ignore = "needs some 30 GB of device memory"]
fn offsets_beyond_2_31() {
    const HEADS: usize = 16;
    const DIM: usize = 128;
    let device = device();
    let dtype = DType::F16;
    let tree = Forest(vec![(None, 60), (Some(0), 40), (Some(0), 28)]);
    let trees = (1usize << 31) / (HEADS * DIM * 128) + 2;
    let forest = |trees: usize| {
        let nodes = (0..trees).flat_map(|it| {
            let in_tree = move |parent: Option<usize>| parent.map(|parent| 3 * it + parent);
            tree.0
                .iter()
                .map(move |&(parent, len)| (in_tree(parent), len))
                .collect::<Vec<_>>()
        });
        Forest(nodes.collect())
    };
    let n = 128 * trees;
    assert!(HEADS * n * DIM > 1 << 31);
    let noise = || {
        let between = burn::tensor::Distribution::Uniform(-1.0, 1.0);
        Tensor::<4>::random([1, HEADS, n, DIM], between, (&device, dtype))
    };
    let inputs = [noise(), noise(), noise()];
    let attend = |inputs: [Tensor<4>; 3], trees, implementation| {
        let mask = TreeMask::from_layouts(&[forest(trees).layout()], 128 * trees, &device);
        let options = TreeAttentionOptions {
            implementation,
            ..Default::default()
        };
        let [query, key, value] = inputs.map(|it| Tensor::from_inner(it).require_grad());
        let inputs = (query.clone(), key.clone(), value.clone());
        let output = try_tree_attention(inputs.0, inputs.1, inputs.2, &mask, options).unwrap();
        let gradients = output.clone().sum().backward();
        [output.inner()]
            .into_iter()
            .chain([query, key, value].map(|leaf| leaf.grad(&gradients).unwrap()))
            .map(last)
            .collect::<Vec<_>>()
    };
    fn last(tensor: Tensor<4>) -> Tensor<4> {
        let [_, heads, rows, dim] = tensor.dims();
        tensor.slice([0..1, 0..heads, rows - 256..rows, 0..dim])
    }
    for implementation in available(dtype, DIM, DIM) {
        if implementation == Implementation::Generic {
            continue;
        }
        let whole = attend(inputs.clone(), trees, implementation);
        let alone = attend(inputs.clone().map(last), 2, implementation);
        for (whole, alone) in whole.iter().zip(&alone) {
            assert!(bits(whole) == bits(alone), "{implementation:?}");
        }
    }
}
