//! The part of a tree that is drawn: its largest nodes, and the sizes of omitted branches.

use std::ops::Range;

use tree_pack::{PrefixForest, Trajectory};

/// The part of a task's forest that is drawn.
pub struct Outline {
    pub title: Title,
    /// Nodes in depth-first order.
    pub nodes: Vec<OutlineNode>,
    /// Trees that are not drawn at all.
    pub hidden_trees: Hidden,
}

/// Totals of the task.
pub struct Title {
    pub task_id: String,
    pub trajectories: usize,
    pub tokens: u64,
    pub unique_tokens: u64,
    pub trained_tokens: u64,
    pub longest_path: u64,
}

/// A node to draw.
pub struct OutlineNode {
    /// Index in [`Outline::nodes`].
    pub parent: Option<usize>,
    pub position: u32,
    pub tokens: u32,
    pub shared_by: u32,
    /// Trained tokens, as ranges within the node.
    pub trained: Vec<Range<u32>>,
    /// Trajectories that end with the node.
    pub ends: Vec<String>,
    /// Indices in [`Outline::nodes`].
    pub children: Vec<usize>,
    /// Children that are not drawn.
    pub hidden: Hidden,
    /// Index of the node in the forest.
    node: u32,
    /// Beginning of its text, with a tokenizer.
    pub preview: Option<String>,
}

/// Omitted branches.
#[derive(Clone, Copy, Default)]
pub struct Hidden {
    pub branches: u32,
    pub tokens: u32,
}

impl Hidden {
    fn add(&mut self, tokens: u32) {
        self.branches += 1;
        self.tokens += tokens;
    }
}

impl OutlineNode {
    /// Share of the tokens that are trained.
    pub fn trained_share(&self) -> f64 {
        let trained: u32 = self
            .trained
            .iter()
            .map(|range| range.end - range.start)
            .sum();
        f64::from(trained) / f64::from(self.tokens)
    }
}

impl Outline {
    /// Keeps the `max_nodes` nodes with the largest subtrees. They include the parent of each,
    /// since its subtree is larger.
    pub fn new(forest: &PrefixForest, trajectories: &[Trajectory], max_nodes: usize) -> Self {
        let nodes = forest.nodes();
        let subtree_tokens =
            |node: u32| nodes[node as usize].subtree_end - nodes[node as usize].start;
        let mut chosen: Vec<u32> = (0..nodes.len() as u32).collect();
        chosen.sort_by_key(|&node| (std::cmp::Reverse(subtree_tokens(node)), node));
        chosen.truncate(max_nodes);
        chosen.sort_unstable();

        let shared_by = forest.trajectories_by_node();
        let trained = trained_rows(forest, trajectories);
        let mut ends = vec![Vec::new(); nodes.len()];
        for (number, &index) in forest.trajectories().iter().enumerate() {
            ends[forest.end_node(number) as usize].push(end_label(&trajectories[index as usize]));
        }
        let mut outline = Self {
            title: title(forest, trajectories, &trained),
            nodes: Vec::with_capacity(chosen.len()),
            hidden_trees: Hidden::default(),
        };
        for tree in forest.trees() {
            if chosen.binary_search(&tree.nodes.start).is_err() {
                outline.hidden_trees.add(tree.rows.end - tree.rows.start);
            }
        }
        for (index, &number) in chosen.iter().enumerate() {
            let node = nodes[number as usize];
            // Parents come before their children.
            let parent = node
                .parent
                .and_then(|parent| chosen.binary_search(&parent).ok());
            if let Some(parent) = parent {
                outline.nodes[parent].children.push(index);
            }
            let mut hidden = Hidden::default();
            for child in forest.children(number) {
                if chosen.binary_search(&child).is_err() {
                    hidden.add(subtree_tokens(child));
                }
            }
            outline.nodes.push(OutlineNode {
                parent,
                position: node.position,
                tokens: node.end - node.start,
                shared_by: shared_by[number as usize],
                trained: runs(&trained[node.start as usize..node.end as usize]),
                ends: std::mem::take(&mut ends[number as usize]),
                children: Vec::new(),
                hidden,
                node: number,
                preview: None,
            });
        }
        outline
    }

    /// Adds the beginning of each node's text.
    pub fn add_previews<E>(
        &mut self,
        decode: impl Fn(&[u32]) -> Result<String, E>,
        forest: &PrefixForest,
    ) -> Result<(), E> {
        const TOKENS: usize = 24;
        for outline in &mut self.nodes {
            let node = forest.nodes()[outline.node as usize];
            let tokens = &forest.tokens()[node.start as usize..node.end as usize];
            outline.preview = Some(decode(&tokens[..tokens.len().min(TOKENS)])?);
        }
        Ok(())
    }
}

fn title(forest: &PrefixForest, trajectories: &[Trajectory], trained: &[bool]) -> Title {
    let lengths = || {
        forest
            .trajectories()
            .iter()
            .map(|&at| trajectories[at as usize].len() as u64)
    };
    Title {
        task_id: forest.task_id().to_owned(),
        trajectories: forest.trajectories().len(),
        tokens: lengths().sum(),
        unique_tokens: forest.tokens().len() as u64,
        trained_tokens: trained.iter().filter(|&&trained| trained).count() as u64,
        longest_path: lengths().max().unwrap_or(0),
    }
}

/// For each row, whether some trajectory trains its token.
fn trained_rows(forest: &PrefixForest, trajectories: &[Trajectory]) -> Vec<bool> {
    let mut trained = vec![false; forest.tokens().len()];
    for (number, &index) in forest.trajectories().iter().enumerate() {
        let trajectory = &trajectories[index as usize];
        for (token, row) in forest.rows_of(number).into_iter().enumerate() {
            trained[row as usize] |= trajectory.is_trained(token);
        }
    }
    trained
}

fn runs(flags: &[bool]) -> Vec<Range<u32>> {
    let mut runs = Vec::new();
    let mut start = 0;
    for chunk in flags.chunk_by(|left, right| left == right) {
        let end = start + chunk.len() as u32;
        if chunk[0] {
            runs.push(start..end);
        }
        start = end;
    }
    runs
}

fn end_label(trajectory: &Trajectory) -> String {
    let mut label = trajectory.rollout_id.clone();
    if trajectory.segments > 1 {
        label.push_str(&format!(
            " {}/{}",
            trajectory.segment + 1,
            trajectory.segments
        ));
    }
    if let Some(reward) = trajectory.reward {
        label.push_str(&format!(", reward {reward}"));
    }
    label
}
