//! What kernels are given besides tensors, and the place of a cube in it.

use cubecl::prelude::*;

/// Which query rows see which keys.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct Mask {
    /// `[B, M]` first query row that sees the key.
    pub key_start: Box<[u32]>,
    /// `[B, M]` one past the last query row that sees the key.
    pub key_end: Box<[u32]>,
    /// `[B, M]` position of the key on its path.
    pub key_position: Box<[u32]>,
    /// `[B, N]` position of the query on its path.
    pub query_position: Box<[u32]>,
}

/// A plan by the tiles of one side.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct Lists {
    /// `[tiles + 1]` where the list of each tile starts.
    pub offsets: Box<[u32]>,
    /// Tiles of the other side, `tile << 1 | partial`.
    pub entries: Box<[u32]>,
    /// Tiles, long lists first.
    pub order: Box<[u32]>,
}

/// A tile of the side that a cube stays on.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Tile {
    /// Over all batch rows.
    pub number: u32,
    pub batch: u32,
    /// First row in the batch row.
    pub first: u32,
}

/// The tile at `index` of the order, of `rows` rows, of which a batch row has `tiles` tiles.
#[cube]
pub(crate) fn tile_at(lists: &Lists, index: u32, tiles: u32, #[comptime] rows: usize) -> Tile {
    let number = lists.order[index as usize];
    let batch = number / tiles;
    let first = number % tiles * comptime!(rows as u32);
    Tile {
        number,
        batch,
        first,
    }
}
