//! What kernels are given, and the place of a cube in it.

use cubecl::prelude::*;

/// Query, key and value, contiguous.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct Tensors<E: Float> {
    /// `[B, Hq, N, D]`
    pub query: Box<[E]>,
    /// `[B, Hkv, M, D]`
    pub key: Box<[E]>,
    /// `[B, Hkv, M, D]`
    pub value: Box<[E]>,
}

/// Sizes of a call.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct Sizes {
    pub n_queries: u32,
    pub n_keys: u32,
    pub kv_heads: u32,
    /// Query heads per key head.
    pub group: u32,
    pub batches: u32,
}

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

/// Which tiles a cube visits, and what is visible in them.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct Plan {
    pub mask: Mask,
    pub lists: Lists,
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

/// A tile of query rows of some heads that share a key head: `query_rows` rows of each head, one
/// head after the other.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct QueryTile {
    pub batch: u32,
    /// First query in the batch row.
    pub first: u32,
    /// First head in `[B * Hq]`.
    pub query_row: u32,
    /// First key of the batch row and key head in `[B * Hkv * M]`.
    pub first_key: u64,
    /// The tile's list.
    pub begin: u32,
    pub end: u32,
    pub n_queries: u32,
    pub n_keys: u32,
    #[cube(comptime)]
    pub query_rows: usize,
}

/// The tile at `index` of the order, of the query heads from `first_head` on.
#[cube]
pub(crate) fn query_tile(
    lists: &Lists,
    sizes: &Sizes,
    index: u32,
    first_head: u32,
    #[comptime] query_rows: usize,
) -> QueryTile {
    let tiles = sizes.n_queries.div_ceil(comptime!(query_rows as u32));
    let tile = tile_at(lists, index, tiles, query_rows);
    let query_row = tile.batch * (sizes.kv_heads * sizes.group) + first_head;
    let key_row = tile.batch * sizes.kv_heads + first_head / sizes.group;
    let first_key = u64::cast_from(key_row) * u64::cast_from(sizes.n_keys);
    let begin = lists.offsets[tile.number as usize];
    let end = lists.offsets[tile.number as usize + 1];
    QueryTile {
        batch: tile.batch,
        first: tile.first,
        query_row,
        first_key,
        begin,
        end,
        n_queries: sizes.n_queries,
        n_keys: sizes.n_keys,
        query_rows,
    }
}

#[cube]
impl QueryTile {
    /// Where a row of the tile is in its batch row.
    pub fn query(&self, tile_row: u32) -> u32 {
        self.first + tile_row % comptime!(self.query_rows as u32)
    }

    /// Where it is in `[B * Hq * N]`; `query` as above.
    pub fn at(&self, tile_row: u32, query: u32) -> u32 {
        (self.query_row + tile_row / comptime!(self.query_rows as u32)) * self.n_queries + query
    }

    /// Rows of a head from the tile's first to the last one of the batch row.
    pub fn valid_rows(&self) -> u32 {
        self.n_queries - self.first
    }

    /// The tile's first row of a head in `[B * Hq * N]`.
    pub fn first_row(&self, #[comptime] head: usize) -> u64 {
        u64::cast_from(self.query_row + comptime!(head as u32)) * u64::cast_from(self.n_queries)
            + u64::cast_from(self.first)
    }
}
