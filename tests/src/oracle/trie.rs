//! Finds the tokens of a trajectory in packed rows, from tokens and parents.

use std::collections::HashMap;

use tree_pack::{Pack, Trajectory};

/// Rows by path, from the tokens and parents of the packs.
#[derive(Clone, Debug)]
pub struct RowsByPath {
    rows: HashMap<Vec<u32>, (usize, usize)>,
}

impl RowsByPath {
    /// Reads the paths of all packs. The tasks must not share a first token.
    ///
    /// # Panics
    /// If a path occurs twice.
    pub fn new(packs: &[Pack]) -> Self {
        let mut rows = HashMap::new();
        for (index, pack) in packs.iter().enumerate() {
            let mut paths: Vec<Vec<u32>> = Vec::with_capacity(pack.layout.len());
            for (row, (&token, &parent)) in pack
                .layout
                .tokens
                .iter()
                .zip(&pack.layout.parents)
                .enumerate()
            {
                let mut path = usize::try_from(parent).map_or(Vec::new(), |p| paths[p].clone());
                path.push(token);
                paths.push(path.clone());
                let earlier = rows.insert(path, (index, row));
                assert_eq!(
                    earlier, None,
                    "pack {index} row {row}: a token that was laid out before"
                );
            }
        }
        Self { rows }
    }

    /// `(pack, row)` of the last token of a path.
    ///
    /// # Panics
    /// If the path is in no pack.
    pub fn row(&self, path: &[u32]) -> (usize, usize) {
        *self
            .rows
            .get(path)
            .unwrap_or_else(|| panic!("the path {path:?} is in no pack"))
    }

    /// `(pack, row)` of each token of a trajectory.
    ///
    /// # Panics
    /// If a token is in no pack.
    pub fn of(&self, trajectory: &Trajectory) -> Vec<(usize, usize)> {
        let tokens = &trajectory.tokens;
        (1..=tokens.len())
            .map(|end| self.row(&tokens[..end]))
            .collect()
    }
}
