//! Tensors that the backward pass reads and writes.

use burn_tree_kit::cpu::{DisjointMut, Storage};

/// Gradients of the inputs.
pub(crate) struct Gradients<E: Storage> {
    pub(crate) query: Vec<E>,
    pub(crate) key: Vec<E>,
    pub(crate) value: Vec<E>,
    pub(crate) log_decay: Vec<E::Compute>,
    pub(crate) beta: Vec<E::Compute>,
    pub(crate) initial_states: Vec<E::Compute>,
}

/// What the backward pass gets besides the inputs.
pub(crate) struct Results<'a, E: Storage> {
    /// `[max(S, 1), HV, DK, DV]`
    pub(crate) states: &'a [E::Compute],
    /// `[R, HV, C]`
    pub(crate) inverse: &'a [E],
    /// `[R, HV, DV]`
    pub(crate) grad_output: &'a [E],
    /// `[max(X, 1), HV, DK, DV]`
    pub(crate) grad_states: &'a [E::Compute],
}

/// Gradients that tasks write: each row of a head by one of them.
pub(super) struct Targets<'a, E: Storage> {
    pub(super) query: DisjointMut<'a, E>,
    pub(super) key: DisjointMut<'a, E>,
    pub(super) value: DisjointMut<'a, E>,
    pub(super) log_decay: DisjointMut<'a, E::Compute>,
    pub(super) beta: DisjointMut<'a, E::Compute>,
}
