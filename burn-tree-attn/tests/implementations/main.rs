//! Every implementation that a device has, forced one by one, at the head dimensions of models.

mod equality;
mod failures;
mod offsets;
#[cfg(feature = "cubecl-backend")]
mod shapes;

#[path = "../support/mod.rs"]
mod support;

use std::sync::RwLock;

use burn::tensor::{DType, Tensor};
use burn_tree_attn::{
    ArgumentError, Implementation, TreeAttentionOptions, TreeMask, try_tree_attention,
};
use support::{Case, Forest, Row, device};

const ALL: [Implementation; 4] = [
    Implementation::Automatic,
    Implementation::Generic,
    Implementation::Portable,
    Implementation::Accelerated,
];

/// Kernels are counted for the whole process: whoever counts wants to be alone.
static LAUNCHES: RwLock<()> = RwLock::new(());

/// Those that run these head dimensions in `dtype` on the device.
fn available(dtype: DType, head_dim: usize, value_dim: usize) -> Vec<Implementation> {
    let device = device();
    let mask = TreeMask::from_layouts(&[Forest(vec![(None, 1)]).layout()], 1, &device);
    let zeros = |width| Tensor::<4>::zeros([1, 1, 1, width], (&device, dtype));
    let runs = |&implementation: &Implementation| {
        let options = TreeAttentionOptions {
            implementation,
            ..Default::default()
        };
        let (query, key, value) = (zeros(head_dim), zeros(head_dim), zeros(value_dim));
        match try_tree_attention(query, key, value, &mask, options) {
            Ok(_) => true,
            Err(ArgumentError::Implementation { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    };
    ALL.into_iter().filter(runs).collect()
}

fn bits(tensor: &Tensor<4>) -> Vec<u64> {
    tensor.to_data().iter::<f64>().map(f64::to_bits).collect()
}

fn case(nodes: Vec<(Option<usize>, usize)>, (head_dim, value_dim): (usize, usize)) -> Case {
    Case {
        rows: vec![Row {
            forest: Forest(nodes),
            past: Vec::new(),
        }],
        padding: 0,
        kv_heads: 1,
        group: 2,
        head_dim,
        value_dim,
        softcap: None,
        sliding_window: None,
        seed: 11,
    }
}
