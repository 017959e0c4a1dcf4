//! Windows of a run in shared memory, of which copying units fill one while others compute with
//! the ones before. Both kernels along runs have them.

use burn_tree_kit::cube::matrix::*;
use cubecl::prelude::*;

use super::super::arguments::{Sizes, Windows};
use super::super::place::*;
use super::super::rows::*;
use super::super::states::*;

/// Compile-time shape of the stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stages {
    pub path: PathConfig,
    /// Tensors with rows of `DK` numbers.
    pub keys: usize,
    /// Tensors of whose rows the cube has its value columns.
    pub slices: usize,
    /// Whether runs are walked from their ends.
    pub reversed: bool,
}

impl Stages {
    /// Bytes of a stage.
    pub(super) const fn bytes(self) -> usize {
        self.path.stage_bytes(self.keys, self.slices)
    }

    /// Where a stage has the rows of keys number `number`.
    pub(super) const fn key_at(self, number: usize) -> usize {
        number * self.path.key_tile()
    }

    /// Where a stage has slice number `number`; after the last one, the decays.
    pub(super) const fn slice_at(self, number: usize) -> usize {
        self.key_at(self.keys) + number * self.path.slice_tile()
    }

    /// Where a stage has the decays from the window's entry, before those to its last token.
    pub(super) const fn decays_at(self) -> usize {
        self.slice_at(self.slices)
    }

    /// Bytes of shared memory of a cube: the stages, then rows in which planes turn states.
    pub(super) const fn shared_bytes(self) -> usize {
        self.path.stages * self.bytes() + self.path.staging_bytes()
    }
}

/// The decays of a head, which a cube copies from.
#[derive(CubeType, Clone, Copy)]
pub(super) struct HeadDecays {
    /// Address of those from the entry.
    from_entry: u64,
    /// Bytes from them to those to the last token.
    part: u64,
}

/// Those of `decays [3, HV, R]`.
#[cube]
pub(super) fn head_decays(decays: &[f32], sizes: &Sizes, place: &Place) -> HeadDecays {
    let heads = u64::cast_from(sizes.value_heads);
    let head = u64::cast_from(place.head);
    HeadDecays {
        from_entry: global_address::<f32>(decays) + (heads + head) * u64::cast_from(sizes.rows) * 4,
        part: heads * u64::cast_from(sizes.rows) * 4,
    }
}

/// What a cube copies from.
#[derive(CubeType)]
pub(super) struct Sources {
    /// Rows of `DK` numbers.
    pub keys: Sequence<HeadRows>,
    /// Rows of the cube's value columns.
    pub slices: Sequence<HeadRows>,
    pub decays: HeadDecays,
}

/// The window that is taken as number `step` of a run.
#[cube]
pub(super) fn window_of_step(place: &Place, step: u32, #[comptime] stages: Stages) -> u32 {
    if comptime!(stages.reversed) {
        place.end - 1 - step
    } else {
        place.first + step
    }
}

/// Starts copying a window into a stage, by one of the copying units.
#[cube]
fn copy_window(
    sources: &Sources,
    windows: &Windows,
    window: u32,
    stage: u32,
    unit: u32,
    #[comptime] stages: Stages,
) {
    let config = comptime!(stages.path);
    let units = comptime!(config.copying());
    let start = windows.starts[window as usize];
    let length = windows.lengths[window as usize];
    #[unroll]
    for i in 0..comptime!(stages.keys) {
        let rows = rows_from(sources.keys.index(i), start);
        let to = stage + comptime!(stages.key_at(i) as u32);
        copy_window_rows(&rows, to, unit, length, config.key_dim, units);
    }
    #[unroll]
    for i in 0..comptime!(stages.slices) {
        let rows = rows_from(sources.slices.index(i), start);
        let to = stage + comptime!(stages.slice_at(i) as u32);
        copy_window_rows(&rows, to, unit, length, comptime!(config.columns()), units);
    }
    copy_decays(
        sources.decays.from_entry + u64::cast_from(start) * 4,
        sources.decays.part,
        stage + comptime!(stages.decays_at() as u32),
        unit,
        length,
        config,
    );
}

/// Starts copying the first windows of a run, one for each stage but the last, by a copying unit.
#[cube]
pub(super) fn copy_first_windows(
    sources: &Sources,
    windows: &Windows,
    place: &Place,
    shared: u32,
    #[comptime] stages: Stages,
) {
    #[unroll]
    for ahead in 0..comptime!(stages.path.stages - 1) {
        if (ahead as u32) < place.end - place.first {
            let window = window_of_step(place, ahead as u32, stages);
            let to = shared + comptime!((ahead * stages.bytes()) as u32);
            copy_window(sources, windows, window, to, place.unit, stages);
        }
        commit_copies();
    }
}

/// Starts copying the window that stage `slot`, which holds that of `step`, leaves the last stage
/// for, by a copying unit.
#[cube]
pub(super) fn copy_next_window(
    sources: &Sources,
    windows: &Windows,
    place: &Place,
    step: u32,
    slot: u32,
    shared: u32,
    #[comptime] stages: Stages,
) {
    let count = comptime!(stages.path.stages as u32);
    let ahead = step + (count - 1);
    if ahead < place.end - place.first {
        let mut to = slot + (count - 1);
        if to >= count {
            to -= count;
        }
        let to = shared + to * comptime!(stages.bytes() as u32);
        let window = window_of_step(place, ahead, stages);
        copy_window(sources, windows, window, to, place.unit, stages);
    }
    commit_copies();
}

/// The stage after stage `slot`.
#[cube]
pub(super) fn next_slot(slot: u32, #[comptime] stages: Stages) -> u32 {
    let next = slot + 1;
    select(next == comptime!(stages.path.stages as u32), 0u32, next)
}

/// The rows in which the plane turns states.
#[cube]
pub(super) fn staging_rows(shared: u32, place: &Place, #[comptime] stages: Stages) -> u32 {
    let path = comptime!(stages.path);
    shared
        + comptime!((path.stages * stages.bytes()) as u32)
        + place.plane * comptime!(tile_bytes(16, path.key_dim) as u32)
}

/// The cube's value columns of the rows of its head of the tensor `[R, HV, DV]` at `address`.
#[cube]
pub(super) fn slice_rows(
    address: u64,
    sizes: &Sizes,
    place: &Place,
    #[comptime] config: PathConfig,
) -> HeadRows {
    let rows = head_rows(
        address,
        0u32,
        sizes.value_heads,
        place.head,
        config.value_dim,
    );
    columns_from(&rows, 2 * place.first_column)
}
