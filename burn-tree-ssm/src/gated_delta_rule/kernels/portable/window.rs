//! Which part of a problem a cube works on.

use cubecl::prelude::*;

use super::tile::{Matrix, Quad, SQUARE_LANES, TILE, block_column, block_row};

/// Not a slot.
pub(super) const NOWHERE: u32 = u32::MAX;
/// The entry of a state of zeros.
pub(super) const ZERO: u32 = u32::MAX;
/// Entries from here on are initial states: 0 is `ZERO - 1`, 1 is `ZERO - 2`, and so on.
pub(super) const INITIAL: u32 = 1 << 31;

/// Sizes, and the lists of the recurrence with where each of them starts (see
/// [`crate::TreeRecurrence`]). All of them are run-time arguments.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Problem {
    /// All lists.
    pub schedule: Box<[u32]>,
    /// Of queries.
    pub scale: f32,
    pub key_heads: u32,
    pub value_heads: u32,
    pub key_dim: u32,
    pub value_dim: u32,
    /// Columns of the inverse.
    pub window_rows: u32,
    /// Pieces of work of the launch, a cube for each; further cubes have nothing to do.
    pub items: u32,
    /// First path of the launch's level.
    pub first_path: u32,
    pub subtree_ends: u32,
    pub window_starts: u32,
    pub window_lengths: u32,
    pub window_slots: u32,
    pub path_offsets: u32,
    pub path_entries: u32,
    /// Number of requested rows.
    pub requested: u32,
    pub slot_child_offsets: u32,
    pub slot_children: u32,
}

/// A window and one of the value heads.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Window {
    pub index: usize,
    /// Its first row.
    pub start: usize,
    pub rows: usize,
    /// Value head.
    pub head: usize,
    pub key_head: usize,
}

#[cube]
pub(super) fn window_at(problem: &Problem, index: usize, head: usize) -> Window {
    let group = (problem.value_heads / problem.key_heads) as usize;
    let start = problem.schedule[problem.window_starts as usize + index];
    let rows = problem.schedule[problem.window_lengths as usize + index];
    Window {
        index,
        start: start as usize,
        rows: rows as usize,
        head,
        key_head: head / group,
    }
}

/// The window and head of this cube, the heads of a window one after another.
#[cube]
pub(super) fn window_of_cube(problem: &Problem) -> Window {
    let heads = problem.value_heads as usize;
    window_at(problem, CUBE_POS / heads, CUBE_POS % heads)
}

/// The window's rows of a tensor `[R, HK, DK]`.
#[cube]
pub(super) fn key_rows(problem: &Problem, window: &Window) -> Matrix {
    rows(window, window.key_head, problem.key_heads, problem.key_dim)
}

/// The window's rows of a tensor `[R, HV, DK]`.
#[cube]
pub(super) fn head_key_rows(problem: &Problem, window: &Window) -> Matrix {
    rows(window, window.head, problem.value_heads, problem.key_dim)
}

/// The window's rows of a tensor `[R, HV, DV]`.
#[cube]
pub(super) fn value_rows(problem: &Problem, window: &Window) -> Matrix {
    rows(window, window.head, problem.value_heads, problem.value_dim)
}

#[cube]
fn rows(window: &Window, head: usize, heads: u32, width: u32) -> Matrix {
    let (heads, width) = (heads as usize, width as usize);
    Matrix {
        start: (window.start * heads + head) * width,
        stride: heads * width,
        rows: window.rows,
        columns: width,
    }
}

/// The window's part of the inverse `[R, HV, window_rows]`.
#[cube]
pub(super) fn inverse_rows(problem: &Problem, window: &Window) -> Matrix {
    let matrix = rows(
        window,
        window.head,
        problem.value_heads,
        problem.window_rows,
    );
    Matrix {
        start: matrix.start,
        stride: matrix.stride,
        rows: window.rows,
        columns: window.rows,
    }
}

/// A head of the state `index` of a tensor `[.., HV, DK, DV]`.
#[cube]
pub(super) fn state(problem: &Problem, index: usize, head: usize) -> Matrix {
    let (keys, values) = (problem.key_dim as usize, problem.value_dim as usize);
    Matrix {
        start: (index * problem.value_heads as usize + head) * keys * values,
        stride: values,
        rows: keys,
        columns: values,
    }
}

/// Where the window's state is in a tensor of a state for each window.
#[cube]
pub(super) fn window_state(problem: &Problem, window: &Window) -> Matrix {
    state(problem, window.index, window.head)
}

/// A path, a value head and a tile of columns of the values, one after another.
#[derive(CubeType, Clone, Copy)]
pub(super) struct PathTile {
    pub path: usize,
    /// Windows of the path.
    pub first: usize,
    pub end: usize,
    /// Value head.
    pub head: usize,
    /// First column.
    pub column: usize,
}

/// What this cube works on; paths are in order of the schedule, long ones first.
#[cube]
pub(super) fn path_tile_of_cube(problem: &Problem, #[comptime] columns: usize) -> PathTile {
    let tiles = (problem.value_dim as usize).div_ceil(columns);
    let heads = problem.value_heads as usize;
    let path = problem.first_path as usize + CUBE_POS / (tiles * heads);
    let first = problem.schedule[problem.path_offsets as usize + path];
    let end = problem.schedule[problem.path_offsets as usize + path + 1];
    PathTile {
        path,
        first: first as usize,
        end: end as usize,
        head: CUBE_POS / tiles % heads,
        column: CUBE_POS % tiles * columns,
    }
}

/// Where the state before a path comes from: a slot, [`ZERO`] or from [`INITIAL`] on.
#[cube]
pub(super) fn entry(problem: &Problem, path: usize) -> u32 {
    problem.schedule[problem.path_entries as usize + path]
}

/// Where the state after a window's last row is stored, or [`NOWHERE`].
#[cube]
pub(super) fn slot(problem: &Problem, window: &Window) -> u32 {
    problem.schedule[problem.window_slots as usize + window.index]
}

/// Gates of the rows of a window, in shared memory.
#[derive(CubeType)]
pub(super) struct Gates {
    /// Sums of the log decay over the path within the window, up to and with the row.
    pub sums: Shared<[f32]>,
    pub beta: Shared<[f32]>,
    /// One past the last row of the window in the row's subtree; 0 for rows that are not there.
    ends: Shared<[u32]>,
}

/// Numbers of a row and head in the buffer of gates.
pub(super) const GATES: usize = 5;
/// The sum of the log decay.
pub(super) const SUM: usize = 0;
pub(super) const BETA: usize = 1;
/// What each of the log decays of [`SUM`] gets from what passes through all of them.
pub(super) const GRAD_SUM: usize = 2;
/// What the row's log decay gets from what passes from rows above it.
pub(super) const GRAD_LOG_DECAY: usize = 3;
pub(super) const GRAD_BETA: usize = 4;

/// Index of the gates of a row of the window.
#[cube]
pub(super) fn gate_index(problem: &Problem, window: &Window, row: usize) -> usize {
    ((window.start + row) * problem.value_heads as usize + window.head) * GATES
}

/// The gates of a window, for all units.
#[cube]
pub(super) fn load_gates(gates: &[f32], problem: &Problem, window: &Window) -> Gates {
    let mut loaded = Gates {
        sums: Shared::<[f32]>::new_slice(TILE),
        beta: Shared::<[f32]>::new_slice(TILE),
        ends: Shared::<[u32]>::new_slice(TILE),
    };
    let row = UNIT_POS as usize;
    if row < TILE {
        let mut sum = 0.0f32;
        let mut beta = 0.0f32;
        let mut end = 0u32;
        if row < window.rows {
            let at = gate_index(problem, window, row);
            sum = gates[at + SUM];
            beta = gates[at + BETA];
            end = end_in_window(problem, window, row);
        }
        loaded.sums[row] = sum;
        loaded.beta[row] = beta;
        loaded.ends[row] = end;
    }
    sync_cube();
    loaded
}

/// One past the last row of the window in the subtree of its row `row`.
#[cube]
pub(super) fn end_in_window(problem: &Problem, window: &Window, row: usize) -> u32 {
    let end = problem.schedule[problem.subtree_ends as usize + window.start + row];
    min(end - window.start as u32, window.rows as u32)
}

/// Whether row `ancestor` of the window is on the path to `row`, which it may be itself.
#[cube]
pub(super) fn sees(gates: &Gates, row: usize, ancestor: usize) -> bool {
    ancestor <= row && (row as u32) < gates.ends[ancestor]
}

/// What is left at `row` of what was there at `ancestor`; 0 if that is not on its path. The
/// difference of the sums is exponentiated: each exponential alone may overflow, and so may the
/// difference between rows of different paths.
#[cube]
pub(super) fn decay(gates: &Gates, row: usize, ancestor: usize) -> f32 {
    let mut factor = 0.0f32;
    if sees(gates, row, ancestor) {
        factor = (gates.sums[row] - gates.sums[ancestor]).exp();
    }
    factor
}

/// Multiplies the unit's block of a tile of pairs of rows by `scale` and by what is left at each
/// pair's row of what was at its column, or the other way round if `transposed`.
#[cube]
pub(super) fn scale_by_decays(
    block: &mut Array<Quad>,
    gates: &Gates,
    scale: f32,
    #[comptime] transposed: bool,
) {
    let row = block_row(SQUARE_LANES);
    let column = block_column(SQUARE_LANES);
    #[unroll]
    for r in 0..4usize {
        let mut quad = block[r];
        #[unroll]
        for c in 0..4usize {
            let factor = if comptime!(transposed) {
                decay(gates, column + c, row + r)
            } else {
                decay(gates, row + r, column + c)
            };
            let value = scale * factor * quad.extract(c);
            quad.insert(c, value);
        }
        block[r] = quad;
    }
}
