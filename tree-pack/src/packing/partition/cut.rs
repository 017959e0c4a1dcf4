//! Cuts of nodes, and the two rules that choose them without a search.

use crate::forest::Node;

/// Where a node is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Whether its first token begins a part.
    pub above: bool,
    /// Tokens of the node's subtree that are in the same part as the node's first token. If this
    /// part ends inside the node, parts of `budget` tokens follow.
    pub top: u32,
}

/// Cuts that make every node a part, or several if it has more than `budget` tokens.
pub fn node_cuts(nodes: &[Node], budget: u32) -> Vec<Cut> {
    let cut = |node: &Node| Cut {
        above: true,
        top: (node.end - node.start - 1) % budget + 1,
    };
    nodes.iter().map(cut).collect()
}

/// Cuts above all children of a token or above none. Children that do not fit together remain for
/// parts with several roots.
pub fn all_or_none_cuts(nodes: &[Node], budget: u32) -> Vec<Cut> {
    let first_node = nodes[0].subtree_end_node - nodes.len() as u32;
    let mut cuts = vec![Cut::default(); nodes.len()];
    // Tokens of the open parts of each node's children.
    let mut below = vec![0u64; nodes.len()];
    let budget = u64::from(budget);
    for (number, node) in nodes.iter().enumerate().rev() {
        // The node's last token joins its children.
        let taken_in = if below[number] < budget {
            below[number]
        } else {
            0
        };
        let open = taken_in + node.token_count() as u64;
        cuts[number].top = ((open - 1) % budget) as u32 + 1;
        if let Some(parent) = node.parent {
            below[(parent - first_node) as usize] += u64::from(cuts[number].top);
        }
    }
    for (number, node) in nodes.iter().enumerate() {
        let parent = node.parent.map(|parent| (parent - first_node) as usize);
        cuts[number].above = parent.is_some_and(|parent| below[parent] >= budget);
    }
    cuts
}
