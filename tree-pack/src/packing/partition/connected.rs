//! The fewest connected parts of at most so many tokens.
//!
//! The tree is that of its tokens: every one may begin a part. From the leaves to the root, a
//! token takes in the open parts of its children, the lightest first, as long as the budget
//! allows; the others are closed. Closing fewer is impossible, and whoever closes others is left
//! with a heavier open part, so this takes the fewest parts and of those the lightest open part,
//! below every token (S. Kundu and J. Misra, "A Linear Tree Partitioning Algorithm", SIAM Journal
//! on Computing 6, 1977). The tokens of a node are taken in together.

use crate::forest::Node;

/// Where a node is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Whether its first token begins a part.
    pub above: bool,
    /// Tokens of the part of the first token that are in the node's subtree. Where that ends
    /// inside of the node, parts of as many tokens as the budget follow.
    pub top: u32,
}

/// One [`Cut`] for each node of a tree; a node comes before its children.
pub fn fewest_cuts(nodes: &[Node], budget: u32) -> Vec<Cut> {
    let mut cuts = vec![Cut::default(); nodes.len()];
    let first_node = nodes[0].subtree_end_node - nodes.len() as u32;
    let mut children: Vec<(u32, u32)> = Vec::new();
    for (number, node) in nodes.iter().enumerate().rev() {
        children.clear();
        let mut child = number + 1;
        let subtree_end = (node.subtree_end_node - first_node) as usize;
        while child < subtree_end {
            children.push((cuts[child].top, child as u32));
            child = (nodes[child].subtree_end_node - first_node) as usize;
        }
        // The node's last token is between its children.
        let kept = lightest_within(&mut children, budget - 1);
        for &(_, closed) in &children[kept..] {
            cuts[closed as usize].above = true;
        }
        let below: u32 = children[..kept].iter().map(|&(weight, _)| weight).sum();
        let open = u64::from(below) + node.token_count() as u64;
        // 1 to the budget.
        cuts[number].top = ((open - 1) % u64::from(budget)) as u32 + 1;
    }
    cuts
}

/// Brings the lightest items whose weights add up to at most `room` to the front, in linear time;
/// returns how many these are.
fn lightest_within(items: &mut [(u32, u32)], room: u32) -> usize {
    let weight = |items: &[(u32, u32)]| -> u64 { items.iter().map(|&(w, _)| u64::from(w)).sum() };
    if weight(items) <= u64::from(room) {
        return items.len();
    }
    // The first are known to fit, the last are known not to.
    let (mut fitting, mut end, mut room) = (0, items.len(), u64::from(room));
    while fitting < end {
        let middle = (fitting + end) / 2;
        items[fitting..end].select_nth_unstable(middle - fitting);
        let sum = weight(&items[fitting..=middle]);
        if sum <= room {
            room -= sum;
            fitting = middle + 1;
        } else {
            end = middle;
        }
    }
    fitting
}
