//! Smaller trees that repeat common prefixes: the alternative to parts with gateways.

use std::ops::Range;

use crate::forest::Node;

/// A tree as several smaller ones. Each repeats the nodes on the path to its first new node.
pub struct SmallerTrees {
    /// For each smaller tree, the nodes that no earlier one has, as numbers in the tree.
    pub new_nodes: Vec<Range<usize>>,
}

impl SmallerTrees {
    /// Puts as many consecutive root-to-leaf paths into each tree as fit.
    ///
    /// # Errors
    /// The number of tokens of a path that does not fit.
    pub fn new(nodes: &[Node], budget: usize) -> Result<Self, usize> {
        let mut trees: Vec<Range<usize>> = Vec::new();
        let mut first = 0;
        // Tokens of the tree so far.
        let mut tokens = 0;
        for (number, node) in nodes.iter().enumerate() {
            if node.subtree_end != node.end {
                continue;
            }
            // A leaf and the nodes above it that are new.
            let new = (node.end - nodes[first].start) as usize;
            let path = node.position as usize + node.token_count();
            if path > budget {
                return Err(path);
            }
            match trees.last_mut() {
                Some(tree) if tokens + new <= budget => {
                    tree.end = number + 1;
                    tokens += new;
                }
                _ => {
                    trees.push(first..number + 1);
                    tokens = path;
                }
            }
            first = number + 1;
        }
        Ok(Self { new_nodes: trees })
    }

    /// Number of trees.
    pub fn len(&self) -> usize {
        self.new_nodes.len()
    }
}
