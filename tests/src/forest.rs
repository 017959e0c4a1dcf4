//! Random prefix trees of trajectories for property tests.
//!
//! They have forks of any fan-out, nodes of one token and long ones, several roots per task,
//! non-adjacent duplicates, strict prefixes, and masks that differ between the trajectories of one
//! tree token. A failing case shrinks to few, short nodes with all tokens trained, and prints as an
//! indented tree.

use std::fmt;
use std::ops::RangeInclusive;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use tree_pack::Trajectory;

/// Sizes of the random forests.
#[derive(Clone, Debug)]
pub struct ForestShape {
    /// Number of tasks.
    pub tasks: RangeInclusive<usize>,
    /// Nodes per task.
    pub nodes: RangeInclusive<usize>,
    /// Tokens of a long node.
    pub long_node: RangeInclusive<usize>,
    /// Weight of long nodes, where nodes of one token and of two to five have weight four each.
    pub long_share: u32,
    /// Number of different tokens. With few, siblings share prefixes and targets repeat.
    pub vocabulary: u32,
}

impl Default for ForestShape {
    fn default() -> Self {
        Self {
            tasks: 1..=3,
            nodes: 1..=7,
            long_node: 6..=40,
            long_share: 1,
            vocabulary: 13,
        }
    }
}

/// A trajectory that ends at a node.
#[derive(Clone, Debug, PartialEq)]
pub struct End {
    /// Token `t` is trained unless bit `t % 64` is set.
    pub untrained_bits: u64,
    /// Number of leading tokens that are not trained.
    pub prompt: usize,
    /// Weight of the trajectory.
    pub weight: f64,
}

/// A run of tokens that continues another node, or starts a tree.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Index of an earlier node of the task.
    pub parent: Option<usize>,
    /// At least one token.
    pub tokens: Vec<u32>,
    /// The trajectories that end here; leaves have at least one.
    pub ends: Vec<End>,
}

/// The nodes of all tasks, and the order of their trajectories.
#[derive(Clone, PartialEq)]
pub struct Forest {
    /// Nodes of each task.
    pub tasks: Vec<Vec<Node>>,
    /// Seed of the order of trajectories; 0 keeps the order of the nodes.
    pub order: u64,
}

impl Forest {
    /// The trajectories in the order of [`Forest::order`].
    pub fn trajectories(&self) -> Vec<Trajectory> {
        let mut trajectories = Vec::new();
        for (task, nodes) in self.tasks.iter().enumerate() {
            for (index, node) in nodes.iter().enumerate() {
                let tokens = path(nodes, index);
                for end in &node.ends {
                    let mask = (0..tokens.len())
                        .map(|t| t >= end.prompt && (end.untrained_bits >> (t % 64)) & 1 == 0);
                    let mut trajectory = Trajectory::new(
                        format!("task-{task}"),
                        format!("rollout-{}", trajectories.len()),
                        tokens.clone(),
                        mask.collect(),
                    );
                    trajectory.weight = end.weight;
                    trajectories.push(trajectory);
                }
            }
        }
        if self.order != 0 {
            let key = |t: &Trajectory| hash(self.order, &t.rollout_id);
            trajectories.sort_by_key(key);
        }
        trajectories
    }

    /// The forest with shifted token ids, so that no two tasks share a token.
    pub fn with_disjoint_tasks(mut self, vocabulary: u32) -> Self {
        for (task, nodes) in (0..).zip(&mut self.tasks) {
            for token in nodes.iter_mut().flat_map(|node| &mut node.tokens) {
                *token += task * vocabulary;
            }
        }
        self
    }

    /// Number of trained predictions.
    pub fn trained(&self) -> usize {
        self.trajectories()
            .iter()
            .map(Trajectory::trained_tokens)
            .sum()
    }
}

fn hash(seed: u64, text: &str) -> u64 {
    // FNV-1a: the same order on every platform and toolchain.
    text.bytes()
        .fold(seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        })
        .rotate_left(29)
}

/// Tokens from the root to the end of `node`.
fn path(nodes: &[Node], node: usize) -> Vec<u32> {
    let mut ancestors = vec![node];
    while let Some(parent) = nodes[ancestors[ancestors.len() - 1]].parent {
        ancestors.push(parent);
    }
    ancestors
        .iter()
        .rev()
        .flat_map(|&index| nodes[index].tokens.iter().copied())
        .collect()
}

impl fmt::Debug for Forest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Forest, order {}", self.order)?;
        for (task, nodes) in self.tasks.iter().enumerate() {
            writeln!(f, "  task-{task}")?;
            // An explicit stack of (node, depth), children in order.
            let children = |parent: Option<usize>| {
                (0..nodes.len())
                    .filter(move |&index| nodes[index].parent == parent)
                    .rev()
            };
            let mut stack: Vec<_> = children(None).map(|root| (root, 0)).collect();
            while let Some((index, depth)) = stack.pop() {
                let Node { tokens, ends, .. } = &nodes[index];
                write!(f, "    {}{tokens:?}", "  ".repeat(depth))?;
                for end in ends {
                    write!(
                        f,
                        "  <- trajectory, untrained bits {:#x}, prompt {}, weight {}",
                        end.untrained_bits, end.prompt, end.weight
                    )?;
                }
                writeln!(f)?;
                stack.extend(children(Some(index)).map(|child| (child, depth + 1)));
            }
        }
        Ok(())
    }
}

fn end() -> impl Strategy<Value = End> {
    let bits = prop_oneof![2 => Just(0), 3 => any::<u64>()];
    // Weights with few binary digits: sums of them are exact.
    let weight = (1_u32..=12).prop_map(|quarters| f64::from(quarters) / 4.0);
    (bits, 0_usize..6, weight).prop_map(|(untrained_bits, prompt, weight)| End {
        untrained_bits,
        prompt,
        weight,
    })
}

fn nodes(shape: &ForestShape) -> impl Strategy<Value = Vec<Node>> + use<> {
    let length =
        prop_oneof![4 => Just(1), 4 => 2_usize..6, shape.long_share => shape.long_node.clone()];
    let token = 0..shape.vocabulary;
    let tokens = length.prop_flat_map(move |length| vec(token.clone(), length));
    let ends = prop_oneof![3 => Just(0_usize), 2 => Just(1), 1 => Just(2)]
        .prop_flat_map(|count| vec(end(), count));
    vec((any::<Index>(), tokens, ends, end()), shape.nodes.clone()).prop_map(|drawn| {
        let mut has_child = vec![false; drawn.len()];
        let mut nodes: Vec<Node> = Vec::with_capacity(drawn.len());
        let mut leaf_ends = Vec::with_capacity(drawn.len());
        for (index, (parent, tokens, ends, leaf_end)) in drawn.into_iter().enumerate() {
            // One in `index + 1` nodes starts another tree of the task.
            let parent = Some(parent.index(index + 1)).filter(|&parent| parent < index);
            if let Some(parent) = parent {
                has_child[parent] = true;
            }
            nodes.push(Node {
                parent,
                tokens,
                ends,
            });
            leaf_ends.push(leaf_end);
        }
        for ((node, has_child), end) in nodes.iter_mut().zip(has_child).zip(leaf_ends) {
            if !has_child && node.ends.is_empty() {
                node.ends.push(end);
            }
        }
        nodes
    })
}

/// The configuration of a property test: `default` cases, or `PROPTEST_CASES` if that is more.
pub fn cases(default: u32) -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok());
    ProptestConfig {
        cases: asked.unwrap_or(0).max(default),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// Random forests in which at least one prediction is trained.
pub fn forests(shape: ForestShape) -> impl Strategy<Value = Forest> {
    (
        vec(nodes(&shape), shape.tasks.clone()),
        prop_oneof![Just(0), any::<u64>()],
    )
        .prop_map(|(tasks, order)| Forest { tasks, order })
        .prop_filter("at least one trained prediction", |forest| {
            forest.trained() > 0
        })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    use super::*;

    fn node(parent: Option<usize>, tokens: &[u32], ends: usize) -> Node {
        let end = End {
            untrained_bits: 0b10,
            prompt: 1,
            weight: 1.0,
        };
        Node {
            parent,
            tokens: tokens.to_vec(),
            ends: vec![end; ends],
        }
    }

    #[test]
    fn trajectories_are_root_to_end_paths() {
        let forest = Forest {
            tasks: vec![vec![
                node(None, &[1, 2], 1),
                node(Some(0), &[3], 2),
                node(Some(1), &[4, 5], 1),
            ]],
            order: 0,
        };
        let tokens: Vec<_> = forest
            .trajectories()
            .into_iter()
            .map(|t| t.tokens)
            .collect();
        assert_eq!(
            tokens,
            [
                vec![1, 2],
                vec![1, 2, 3],
                vec![1, 2, 3],
                vec![1, 2, 3, 4, 5]
            ]
        );
        let last = forest.trajectories().pop().unwrap();
        assert_eq!(last.loss_mask, [false, false, true, true, true]);
        let printed = format!("{forest:?}");
        assert!(printed.contains("\n      [3]  <- trajectory"), "{printed}");
        assert!(
            printed.contains("\n        [4, 5]  <- trajectory"),
            "{printed}"
        );
    }

    /// Checks that the random forests have the features that property tests rely on.
    #[test]
    fn all_kinds_of_trees_are_drawn() {
        let mut runner = TestRunner::deterministic();
        let mut seen = BTreeMap::new();
        let strategy = forests(ForestShape::default());
        for _ in 0..100 {
            let forest = strategy.new_tree(&mut runner).expect("a forest").current();
            for (kind, found) in kinds(&forest) {
                *seen.entry(kind).or_insert(0) += usize::from(found);
            }
        }
        for (kind, count) in seen {
            assert!(count >= 10, "{count} of 100 forests have {kind}");
        }
    }

    fn kinds(forest: &Forest) -> [(&'static str, bool); 9] {
        let nodes = || forest.tasks.iter().flatten();
        let children = |nodes: &[Node], parent: Option<usize>| {
            nodes.iter().filter(|node| node.parent == parent).count()
        };
        let with_children = |count: usize| {
            forest
                .tasks
                .iter()
                .any(|nodes| (0..nodes.len()).any(|node| children(nodes, Some(node)) >= count))
        };
        let trajectories = forest.trajectories();
        let pairs = || {
            let same_task = |a: &Trajectory, b: &Trajectory| a.task_id == b.task_id;
            let all = trajectories.iter().enumerate();
            all.flat_map(|(i, a)| trajectories[i + 1..].iter().map(move |b| (a, b)))
                .filter(move |(a, b)| same_task(a, b))
        };
        let is_prefix =
            |a: &Trajectory, b: &Trajectory| a.len() < b.len() && b.tokens[..a.len()] == a.tokens;
        [
            ("several tasks", forest.tasks.len() > 1),
            (
                "several trees in a task",
                forest.tasks.iter().any(|n| children(n, None) > 1),
            ),
            ("a fork", with_children(2)),
            ("a fork of three", with_children(3)),
            (
                "a node of one token",
                nodes().any(|node| node.tokens.len() == 1),
            ),
            ("a long node", nodes().any(|node| node.tokens.len() >= 6)),
            ("duplicates", pairs().any(|(a, b)| a.tokens == b.tokens)),
            (
                "a strict prefix",
                pairs().any(|(a, b)| is_prefix(a, b) || is_prefix(b, a)),
            ),
            (
                "masks that differ on a shared token",
                pairs().any(|(a, b)| {
                    let shared = a.tokens.iter().zip(&b.tokens).take_while(|(a, b)| a == b);
                    let shared = shared.count();
                    a.loss_mask[..shared] != b.loss_mask[..shared]
                }),
            ),
        ]
    }

    proptest! {
        #[test]
        fn every_leaf_ends_a_trajectory(forest in forests(ForestShape::default())) {
            for nodes in &forest.tasks {
                for (index, node) in nodes.iter().enumerate() {
                    let leaf = nodes.iter().all(|other| other.parent != Some(index));
                    prop_assert!(!leaf || !node.ends.is_empty());
                }
            }
        }
    }
}
