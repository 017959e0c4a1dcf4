//! Random trees, tensors and comparisons shared by the tests of this crate.

// Not every test uses everything.
#![allow(dead_code, unused_imports)]

use std::fmt;

use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_tree_ssm::TreeRecurrence;
use proptest::prelude::*;
use tree_pack::{PrefixForest, Trajectory, TreeLayout};

pub use tree_training_devices::{computes_in, device_from_environment as device};

/// Where reference results are computed, in f64, which not every device has.
pub fn reference_device() -> Device {
    #[cfg(feature = "flex")]
    return Device::flex();
    #[cfg(not(feature = "flex"))]
    device()
}

/// Settings of a property test of `cases` on Flex; fewer on other devices, where most of them
/// compile kernels first.
pub fn cases(cases: u32) -> ProptestConfig {
    let cases = match std::env::var("BURN_DEVICE") {
        Ok(name) if name != "flex" => cases.div_ceil(4),
        _ => cases,
    };
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(cases)
    }
}

/// A forest by its nodes: parent node (an earlier one; `None` for a root) and number of tokens.
#[derive(Clone)]
pub struct Forest(pub Vec<(Option<usize>, usize)>);

impl Forest {
    /// One node after another, then all others below the last of them.
    pub fn comb(trunk: &[usize], leaves: &[usize]) -> Self {
        let nodes = trunk.iter().enumerate();
        let mut nodes: Vec<_> = nodes.map(|(i, &len)| (i.checked_sub(1), len)).collect();
        let last = nodes.len().checked_sub(1);
        nodes.extend(leaves.iter().map(|&len| (last, len)));
        Self(nodes)
    }

    /// The layout that `tree-pack` makes from one trajectory per node: those of inner nodes are
    /// strict prefixes of others, and every third one is there twice.
    pub fn layout(&self) -> TreeLayout {
        if self.0.is_empty() {
            return TreeLayout::default();
        }
        let mut paths: Vec<Vec<u32>> = Vec::new();
        let mut next = 0;
        for &(parent, length) in &self.0 {
            let mut tokens = parent.map_or(Vec::new(), |parent| paths[parent].clone());
            tokens.extend(next..next + length as u32);
            next += length as u32;
            paths.push(tokens);
        }
        let duplicates: Vec<_> = paths.iter().step_by(3).cloned().collect();
        let trajectories: Vec<_> = paths
            .into_iter()
            .chain(duplicates)
            .map(|tokens| {
                let mask = vec![true; tokens.len()];
                Trajectory::new("task", "rollout", tokens, mask)
            })
            .collect();
        TreeLayout::from_forest(&PrefixForest::build(&trajectories).unwrap())
    }
}

/// `5(1 3(2 2)) 4` for a root of 5 tokens with children of 1 and 3, and a second root of 4.
impl fmt::Debug for Forest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn nodes(forest: &Forest, parent: Option<usize>) -> String {
            let children = forest.0.iter().enumerate();
            let children = children.filter(|(_, node)| node.0 == parent);
            let texts: Vec<_> = children
                .map(|(index, (_, length))| {
                    let below = nodes(forest, Some(index));
                    match below.is_empty() {
                        true => length.to_string(),
                        false => format!("{length}({below})"),
                    }
                })
                .collect();
            texts.join(" ")
        }
        write!(f, "Forest[{}]", nodes(self, None))
    }
}

/// Forests of up to `max_nodes` nodes: forks, nodes of one token and around the sizes of windows,
/// deep ones, several roots. Cases shrink to few and short nodes.
pub fn forests(max_nodes: usize) -> impl Strategy<Value = Forest> {
    let length = prop_oneof![
        4 => 1usize..=4,
        2 => 5usize..=40,
        1 => prop::sample::select(vec![15usize, 16, 17, 63, 64, 65, 130]),
    ];
    // One in eight nodes starts a tree; half of the others continue the newest node.
    let parent = (any::<prop::sample::Index>(), 0..8u8);
    prop::collection::vec((parent, length), 1..=max_nodes).prop_map(|nodes| {
        let nodes = nodes.into_iter().enumerate();
        let nodes = nodes.map(|(index, ((pick, kind), length))| {
            let parent = match kind {
                _ if index == 0 => None,
                0..4 => Some(index - 1),
                4..7 => Some(pick.index(index)),
                _ => None,
            };
            (parent, length)
        });
        Forest(nodes.collect())
    })
}

/// A batch: its forests, padding rows after the longest, and picks of what the recurrence is told.
#[derive(Clone, Debug)]
pub struct Batch {
    pub forests: Vec<Forest>,
    pub padding: usize,
    pub window_rows: usize,
    /// For each root (repeating), the initial state, from the number of roots on none.
    pub root_states: Vec<u8>,
    /// Picks among the rows that are not padding; repeated ones count once.
    pub requested: Vec<prop::sample::Index>,
}

impl Batch {
    /// One forest, nothing else.
    pub fn of(forest: Forest, window_rows: usize) -> Self {
        Self {
            forests: vec![forest],
            padding: 0,
            window_rows,
            root_states: Vec::new(),
            requested: Vec::new(),
        }
    }

    pub fn layouts(&self) -> Vec<TreeLayout> {
        self.forests.iter().map(Forest::layout).collect()
    }

    pub fn recurrence(&self) -> TreeRecurrence {
        let layouts = self.layouts();
        let longest = layouts.iter().map(TreeLayout::len).max().unwrap();
        let recurrence = TreeRecurrence::from_layouts(&layouts, longest + self.padding);
        let roots = recurrence.roots().len();
        let picks = self.root_states.iter().cycle();
        let mut states: Vec<_> = picks
            .take(roots)
            .map(|&pick| Some(u32::from(pick)).filter(|&pick| (pick as usize) < roots))
            .collect();
        states.resize(roots, None);
        let rows: Vec<u32> = (0..recurrence.rows())
            .filter(|&row| !recurrence.is_padding(row))
            .map(|row| row as u32)
            .collect();
        let mut requested = Vec::new();
        for pick in &self.requested {
            let row = *pick.get(&rows);
            if !requested.contains(&row) {
                requested.push(row);
            }
        }
        recurrence
            .with_initial_states(&states)
            .with_requested_rows(&requested)
            .with_window_rows(self.window_rows)
    }
}

/// Batches of up to `max_nodes` nodes a row.
pub fn batches(max_nodes: usize) -> impl Strategy<Value = Batch> {
    (
        prop::collection::vec(forests(max_nodes), 1..=2),
        0..3usize,
        prop::sample::select(vec![1usize, 2, 16, 24, 64]),
        prop::collection::vec(0..6u8, 0..5),
        prop::collection::vec(any::<prop::sample::Index>(), 0..4),
    )
        .prop_map(
            |(forests, padding, window_rows, root_states, requested)| Batch {
                forests,
                padding,
                window_rows,
                root_states,
                requested,
            },
        )
}

/// Numbers in -1..1 from a small generator, the same on every device.
pub fn random<const D: usize>(shape: [usize; D], seed: u64) -> Tensor<D> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let values: Vec<f64> = (0..shape.iter().product::<usize>())
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
        })
        .collect();
    let device = reference_device();
    Tensor::from_data(TensorData::new(values, shape), (&device, DType::F64))
}

/// The numbers of a tensor.
pub fn values<const D: usize>(tensor: &Tensor<D>) -> Vec<f64> {
    tensor.to_data().iter::<f64>().collect()
}

/// `||a - b|| / ||b||`; 0 if both are zero.
pub fn relative_error<const D: usize>(a: &Tensor<D>, b: &Tensor<D>) -> f64 {
    assert_eq!(a.dims(), b.dims());
    let (a, b) = (values(a), values(b));
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let error = norm(&mut a.iter().zip(&b).map(|(a, b)| a - b));
    if error == 0.0 {
        return 0.0;
    }
    error / norm(&mut b.iter().copied())
}
