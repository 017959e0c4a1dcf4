//! Synthetic trees of known shape.

use tree_pack::Trajectory;

/// Of every `PERIOD` positions, the second half is trained.
const PERIOD: usize = 64;

/// Number of leaves of [`TreeShape::two_forks`].
pub const LEAVES: usize = 16;

/// A tree as nodes in depth-first order, with parents and numbers of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeShape {
    nodes: Vec<(Option<usize>, usize)>,
}

impl TreeShape {
    /// The names of [`TreeShape::named`].
    pub const NAMES: [&str; 5] = ["star8", "star16", "comb", "leaf40", "causal"];

    /// A tree of about `rows` tokens, by name:
    ///
    /// * `star8`: a prompt and 8 answers, all of the same length;
    /// * `star16`: a prompt of an eighth of the rows and 16 answers of equal length;
    /// * `comb`: an agent's spine of turns of 192 tokens, each with two side leaves of 160;
    /// * `leaf40`: a prompt of 2048 (at most half of the rows) and leaves of 40;
    /// * `causal`: one path.
    pub fn named(name: &str, rows: usize) -> Option<Self> {
        let nodes = match name {
            "star8" => star(rows / 9, 8, rows / 9),
            "star16" => {
                let prompt = rows / 8;
                star(prompt, 16, (rows - prompt) / 16)
            }
            "comb" => comb((rows / 512).max(1)),
            "leaf40" => {
                let prompt = 2048.min(rows / 2);
                star(prompt, (rows - prompt) / 40, 40)
            }
            "causal" => vec![(None, rows)],
            _ => return None,
        };
        Some(Self { nodes })
    }

    /// A tree of [`LEAVES`] trajectories of `length` tokens that fork twice, four ways each time,
    /// with a prefix overlap ratio close to `overlap`: a root, four nodes of a quarter of a leaf's
    /// tokens, and four leaves under each.
    ///
    /// `None` unless every node gets a token, for `overlap` from about 0.16 to 0.93.
    pub fn two_forks(overlap: f64, length: usize) -> Option<Self> {
        // With a leaf of x tokens: unique = (length - 5/4 x) + 4 * x/4 + 16 x.
        let unique = (1.0 - overlap) * (LEAVES * length) as f64;
        let leaf = ((unique - length as f64) / 15.75).round();
        let inner = (leaf / 4.0).round();
        let root = length as f64 - leaf - inner;
        if leaf < 1.0 || inner < 1.0 || root < 1.0 {
            return None;
        }
        let mut nodes = vec![(None, root as usize)];
        for _ in 0..4 {
            nodes.push((Some(0), inner as usize));
            let parent = nodes.len() - 1;
            nodes.extend([(Some(parent), leaf as usize); 4]);
        }
        Some(Self { nodes })
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.nodes.iter().map(|node| node.1).sum()
    }

    /// Whether the tree has no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The root-to-leaf paths as trajectories of `task`, half of whose tokens are trained. Token
    /// ids are below `vocab_size` and depend on the task; the first tokens of siblings differ.
    ///
    /// # Panics
    /// If a node has more children than there are token ids.
    pub fn trajectories(&self, task: &str, vocab_size: usize) -> Vec<Trajectory> {
        let mut paths: Vec<Vec<u32>> = Vec::with_capacity(self.nodes.len());
        let mut children = vec![0; self.nodes.len()];
        let mut roots = 0;
        let seed = task.bytes().fold(17, |seed, byte| mix(seed ^ byte as u64));
        for (node, &(parent, length)) in self.nodes.iter().enumerate() {
            let (mut path, sibling) = match parent {
                Some(parent) => (paths[parent].clone(), &mut children[parent]),
                None => (Vec::new(), &mut roots),
            };
            assert!(*sibling < vocab_size, "more siblings than token ids");
            let first = seed as usize % vocab_size + *sibling;
            *sibling += 1;
            path.extend((0..length).map(|index| match index {
                0 => (first % vocab_size) as u32,
                _ => (mix(seed ^ ((node as u64) << 32 | index as u64)) % vocab_size as u64) as u32,
            }));
            paths.push(path);
        }
        let leaves = paths.into_iter().zip(children);
        leaves
            .filter(|(_, children)| *children == 0)
            .enumerate()
            .map(|(leaf, (tokens, _))| {
                let trained = |index| index % PERIOD >= PERIOD / 2;
                let mask = (0..tokens.len()).map(trained).collect();
                Trajectory::new(task, leaf.to_string(), tokens, mask)
            })
            .collect()
    }
}

fn star(prompt: usize, leaves: usize, leaf: usize) -> Vec<(Option<usize>, usize)> {
    let mut nodes = vec![(None, prompt)];
    nodes.resize(1 + leaves, (Some(0), leaf));
    nodes
}

fn comb(turns: usize) -> Vec<(Option<usize>, usize)> {
    let mut nodes = Vec::with_capacity(3 * turns);
    for turn in 0..turns {
        nodes.push((turn.checked_sub(1).map(|before| 3 * before), 192));
        nodes.extend([(Some(3 * turn), 160); 2]);
    }
    nodes
}

/// The finaliser of SplitMix64: scrambles consecutive numbers.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tree_pack::{TreeLayout, TreeStats, build_forests};

    #[test]
    fn named_trees_have_their_shape_after_merging() {
        for (name, rows, leaves) in [
            ("star8", 1024, 8),
            ("star16", 1024, 16),
            ("comb", 1024, 4),
            ("leaf40", 1024, 12),
            ("causal", 1000, 1),
        ] {
            let shape = TreeShape::named(name, rows).unwrap();
            let trajectories = shape.trajectories("task", 1000);
            assert_eq!(trajectories.len(), leaves, "{name}");
            let forests = build_forests(&trajectories).unwrap();
            let layout = TreeLayout::from_forest(&forests[0]);
            assert_eq!(layout.len(), shape.len(), "{name}");
            assert!(rows - shape.len() < 40, "{name}: {}", shape.len());
        }
        assert_eq!(TreeShape::named("oak", 10), None);
    }

    #[test]
    fn two_forks_have_the_overlap_asked_for() {
        for overlap in [0.2, 0.4, 0.6, 0.8, 0.92] {
            let trajectories = TreeShape::two_forks(overlap, 2048)
                .unwrap()
                .trajectories("task", 151_936);
            assert_eq!(trajectories.len(), LEAVES);
            assert!(trajectories.iter().all(|path| path.len() == 2048));
            let forests = build_forests(&trajectories).unwrap();
            let stats = TreeStats::of_all(&forests, &trajectories);
            let reached = stats.prefix_overlap_ratio();
            // Nodes have whole tokens.
            assert!((reached - overlap).abs() < 1e-3, "{overlap}: {reached}");
        }
        assert_eq!(TreeShape::two_forks(0.97, 2048), None);
    }

    #[test]
    fn tasks_share_nothing() {
        let shape = TreeShape::named("causal", 100).unwrap();
        let [one, other] = ["a", "b"].map(|task| shape.trajectories(task, 151_936));
        assert_ne!(one[0].tokens, other[0].tokens);
    }
}
