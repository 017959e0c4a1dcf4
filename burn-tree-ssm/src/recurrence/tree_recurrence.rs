//! The recurrence of a batch: its rows, their schedule, and the plans made from them.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use tree_pack::{IndexMemory, TreeLayout};

use super::check::{check_depths, check_root_states, tree_of};
use super::convolution::ConvolutionPlan;
#[cfg(feature = "cubecl-backend")]
use super::device::{DeviceListsCache, RecurrenceList, RunList};
use super::error::RecurrenceError;
use super::limits::MAX_WINDOW_ROWS;
use super::paths::Paths;
#[cfg(any(feature = "cubecl-backend", feature = "flex"))]
use super::runs::Runs;
use super::tree::Tree;
use super::windows;

/// Who continues whom in a batch of tree layouts, and the schedule of recurrent operations on it.
/// Built once per batch and shared by all layers; cloning is cheap.
///
/// Rows are those of the flattened batch: row `i` of batch row `b` is `b * N + i`. Rows past the
/// end of a layout are padding: they are in no window, operations give zeros there and pass no
/// gradient.
///
/// # Example
/// ```
/// use burn_tree_ssm::TreeRecurrence;
/// use tree_pack::{Segment, TreeLayout};
///
/// // A prompt of two tokens and two answers of one token.
/// let layout = TreeLayout {
///     tokens: vec![7, 8, 9, 10],
///     position_ids: vec![0, 1, 2, 2],
///     parents: vec![-1, 0, 1, 1],
///     subtree_ends: vec![4, 4, 3, 4],
///     segments: vec![
///         Segment { start: 0, end: 2, parent: None },
///         Segment { start: 2, end: 3, parent: Some(0) },
///         Segment { start: 3, end: 4, parent: Some(0) },
///     ],
/// };
/// let recurrence = TreeRecurrence::from_layouts(&[layout], 4).with_requested_rows(&[1]);
/// // The state after row 1 is asked for, so that a window ends there; the answers share one.
/// assert_eq!(recurrence.window_starts(), [0, 2]);
/// assert_eq!(recurrence.window_lengths(), [2, 2]);
/// ```
#[derive(Clone)]
pub struct TreeRecurrence(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) batch_size: usize,
    pub(super) row_length: usize,
    pub(super) tree: Tree,
    pub(super) requested_rows: Vec<u32>,
    pub(super) window_rows: usize,
    pub(super) paths: Paths,
    pub(super) convolutions: Mutex<Vec<Arc<ConvolutionPlan>>>,
    #[cfg(feature = "cubecl-backend")]
    pub(super) device_lists: DeviceListsCache<RecurrenceList>,
    #[cfg(any(feature = "cubecl-backend", feature = "flex"))]
    pub(super) runs: std::sync::OnceLock<Runs>,
    #[cfg(feature = "cubecl-backend")]
    pub(super) run_lists: DeviceListsCache<RunList>,
}

impl TreeRecurrence {
    /// The recurrence on a batch of layouts, each padded to `row_length` rows, whose trees start
    /// from zero.
    ///
    /// # Panics
    /// If [`try_from_layouts`](Self::try_from_layouts) refuses the arguments.
    pub fn from_layouts(layouts: &[TreeLayout], row_length: usize) -> Self {
        Self::try_from_layouts(layouts, row_length).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The recurrence on a batch of layouts, each padded to `row_length` rows, whose trees start
    /// from zero.
    ///
    /// # Errors
    /// If there are no rows, a layout is longer than `row_length` or contradicts itself, the rows
    /// exceed the index range, or a tree begins below its root: it continues rows of another pack,
    /// whose states [`try_continuing`](Self::try_continuing) takes.
    pub fn try_from_layouts(
        layouts: &[TreeLayout],
        row_length: usize,
    ) -> Result<Self, RecurrenceError> {
        let tree = tree_of(layouts, row_length)?;
        check_depths(layouts, &[])?;
        let shape = (layouts.len(), row_length);
        Ok(Self::build(shape, tree, Vec::new(), MAX_WINDOW_ROWS))
    }

    /// The recurrence on a batch of layouts some of whose trees continue rows of earlier packs:
    /// `root_states[r]` is the index of the incoming state (and convolution tail) from which the
    /// tree of root `r` starts, `None` if it starts from zero; roots in row order, batch row after
    /// batch row.
    ///
    /// # Errors
    /// As [`try_from_layouts`](Self::try_from_layouts); if there is not one entry per root, an
    /// index is not below the number of roots, or a root below the first token of its path has no
    /// state.
    pub fn try_continuing(
        layouts: &[TreeLayout],
        row_length: usize,
        root_states: &[Option<u32>],
    ) -> Result<Self, RecurrenceError> {
        let mut tree = tree_of(layouts, row_length)?;
        check_root_states(root_states, tree.roots.len())?;
        check_depths(layouts, root_states)?;
        tree.root_states = root_states.to_vec();
        let shape = (layouts.len(), row_length);
        Ok(Self::build(shape, tree, Vec::new(), MAX_WINDOW_ROWS))
    }

    /// The same rows, with an initial state for some trees: `root_states[r]` is the index of the
    /// incoming state (and convolution tail) from which the tree of root `r` starts, in order of
    /// [`roots`](Self::roots).
    ///
    /// # Panics
    /// If [`try_with_initial_states`](Self::try_with_initial_states) refuses the argument.
    pub fn with_initial_states(self, root_states: &[Option<u32>]) -> Self {
        self.try_with_initial_states(root_states)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`with_initial_states`](Self::with_initial_states).
    ///
    /// # Errors
    /// If there is not one entry per root, or an index is not below the number of roots.
    pub fn try_with_initial_states(
        self,
        root_states: &[Option<u32>],
    ) -> Result<Self, RecurrenceError> {
        let inner = &self.0;
        check_root_states(root_states, inner.tree.roots.len())?;
        let mut tree = inner.tree.clone();
        tree.root_states = root_states.to_vec();
        let requested = inner.requested_rows.clone();
        Ok(Self::build(
            inner.shape(),
            tree,
            requested,
            inner.window_rows,
        ))
    }

    /// The same rows, with the states (and convolution tails) after `rows` as outputs, in this
    /// order. Rows are those of the flattened batch.
    ///
    /// # Panics
    /// If [`try_with_requested_rows`](Self::try_with_requested_rows) refuses the argument.
    pub fn with_requested_rows(self, rows: &[u32]) -> Self {
        self.try_with_requested_rows(rows)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`with_requested_rows`](Self::with_requested_rows).
    ///
    /// # Errors
    /// If a row is padding or out of range, or is named twice.
    pub fn try_with_requested_rows(self, rows: &[u32]) -> Result<Self, RecurrenceError> {
        let inner = &self.0;
        let mut seen = vec![false; inner.tree.rows()];
        for (index, &row) in rows.iter().enumerate() {
            match seen.get_mut(row as usize) {
                Some(seen) if !inner.tree.is_padding(row as usize) => {
                    if std::mem::replace(seen, true) {
                        return Err(RecurrenceError::RepeatedRow { index, row });
                    }
                }
                _ => {
                    let rows = inner.tree.rows();
                    return Err(RecurrenceError::RequestedRow { index, row, rows });
                }
            }
        }
        let tree = inner.tree.clone();
        Ok(Self::build(
            inner.shape(),
            tree,
            rows.to_vec(),
            inner.window_rows,
        ))
    }

    /// The same rows, cut into windows of at most `window_rows` rows.
    ///
    /// # Panics
    /// If [`try_with_window_rows`](Self::try_with_window_rows) refuses the argument.
    pub fn with_window_rows(self, window_rows: usize) -> Self {
        self.try_with_window_rows(window_rows)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`with_window_rows`](Self::with_window_rows).
    ///
    /// # Errors
    /// If `window_rows` is not in `1..=`[`MAX_WINDOW_ROWS`].
    pub fn try_with_window_rows(self, window_rows: usize) -> Result<Self, RecurrenceError> {
        if !(1..=MAX_WINDOW_ROWS).contains(&window_rows) {
            return Err(RecurrenceError::WindowRows { found: window_rows });
        }
        let inner = &self.0;
        let (tree, requested) = (inner.tree.clone(), inner.requested_rows.clone());
        Ok(Self::build(inner.shape(), tree, requested, window_rows))
    }

    fn build(
        (batch_size, row_length): (usize, usize),
        tree: Tree,
        requested_rows: Vec<u32>,
        window_rows: usize,
    ) -> Self {
        let windows = windows::cut(&tree, &requested_rows, window_rows);
        let paths = Paths::build(&tree, &windows, &requested_rows);
        Self(Arc::new(Inner {
            batch_size,
            row_length,
            tree,
            requested_rows,
            window_rows,
            paths,
            convolutions: Mutex::default(),
            #[cfg(feature = "cubecl-backend")]
            device_lists: Default::default(),
            #[cfg(any(feature = "cubecl-backend", feature = "flex"))]
            runs: Default::default(),
            #[cfg(feature = "cubecl-backend")]
            run_lists: Default::default(),
        }))
    }

    /// Number of batch rows, `B`.
    pub fn batch_size(&self) -> usize {
        self.0.batch_size
    }

    /// Number of rows of each batch row with padding, `N`.
    pub fn row_length(&self) -> usize {
        self.0.row_length
    }

    /// Number of rows of the flattened batch with padding, `R = B * N`.
    pub fn rows(&self) -> usize {
        self.0.tree.rows()
    }

    /// `[R]` previous row of the path, -1 at roots and in padding.
    pub fn parents(&self) -> &[i32] {
        &self.0.tree.parents
    }

    /// `[R]` one past the last row of the row's subtree, 0 in padding.
    pub fn subtree_ends(&self) -> &[u32] {
        &self.0.tree.subtree_ends
    }

    /// Whether a row of the flattened batch is padding.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn is_padding(&self, row: usize) -> bool {
        self.0.tree.is_padding(row)
    }

    /// Whether there is padding.
    pub(crate) fn has_padding(&self) -> bool {
        let layouts = &self.0.tree.layouts;
        layouts.iter().map(Range::len).sum::<usize>() < self.rows()
    }

    /// First rows of the trees, ascending.
    pub fn roots(&self) -> &[u32] {
        &self.0.tree.roots
    }

    /// The initial state of every root, if it has one.
    pub fn root_states(&self) -> &[Option<u32>] {
        &self.0.tree.root_states
    }

    /// Number of initial states, `G`: one more than the largest index a root names.
    pub fn n_initial_states(&self) -> usize {
        self.0.tree.n_initial_states()
    }

    /// Rows whose states are outputs: their slots are `0..X`, in this order.
    pub fn requested_rows(&self) -> &[u32] {
        &self.0.requested_rows
    }

    /// Most rows of a window, `C`.
    pub fn window_rows(&self) -> usize {
        self.0.window_rows
    }

    /// The paths in pieces for kernels, made on first use.
    #[cfg(any(feature = "cubecl-backend", feature = "flex"))]
    pub(crate) fn runs(&self) -> &Runs {
        self.0.runs.get_or_init(|| Runs::build(&self.0.paths))
    }

    /// Bytes of the lists that say how rows hang together, of those of runs and convolutions, and
    /// of their copies on devices, as far as they have been made.
    pub fn index_memory(&self) -> IndexMemory {
        let inner = &*self.0;
        let convolutions = inner
            .convolutions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let convolutions: IndexMemory = convolutions.iter().map(|plan| plan.index_memory()).sum();
        let tree = &inner.tree;
        let host_bytes = size_of_val(tree.parents.as_slice())
            + size_of_val(tree.subtree_ends.as_slice())
            + size_of_val(tree.depths.as_slice())
            + size_of_val(tree.roots.as_slice())
            + size_of_val(tree.root_states.as_slice())
            + size_of_val(inner.requested_rows.as_slice())
            + inner.paths.bytes();
        #[cfg(any(feature = "cubecl-backend", feature = "flex"))]
        let host_bytes = host_bytes + inner.runs.get().map_or(0, Runs::bytes);
        #[cfg(feature = "cubecl-backend")]
        let device_bytes = inner.device_lists.sum(|lists| lists.bytes())
            + inner.run_lists.sum(|lists| lists.bytes());
        #[cfg(not(feature = "cubecl-backend"))]
        let device_bytes = 0;
        convolutions
            + IndexMemory {
                host_bytes: host_bytes as u64,
                device_bytes,
            }
    }

    /// What a causal convolution with `kernel_size` taps reads, made on first use.
    ///
    /// # Errors
    /// If `kernel_size` is 0, or so large that the lists exceed the index range.
    pub fn convolution(&self, kernel_size: usize) -> Result<Arc<ConvolutionPlan>, RecurrenceError> {
        let mut plans = self
            .0
            .convolutions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(plan) = plans.iter().find(|plan| plan.kernel_size() == kernel_size) {
            return Ok(plan.clone());
        }
        let plan = Arc::new(ConvolutionPlan::build(
            &self.0.tree,
            self.requested_rows(),
            kernel_size,
        )?);
        plans.push(plan.clone());
        Ok(plan)
    }
}

impl Inner {
    fn shape(&self) -> (usize, usize) {
        (self.batch_size, self.row_length)
    }
}

impl fmt::Debug for TreeRecurrence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TreeRecurrence")
            .field("batch_size", &self.batch_size())
            .field("row_length", &self.row_length())
            .field("windows", &self.n_windows())
            .field("levels", &self.levels())
            .finish()
    }
}
