//! The plan of a mask on a device.

use std::sync::Arc;

use burn_cubecl::CubeDevice;
use burn_tree_kit::cube::DeviceSections;
use cubecl::prelude::BufferArg;
use tree_pack::IndexMemory;

use super::plan::{BlockPlan, TileShape, too_large};
use crate::mask::Visibility;
use burn_tree_kit::implementation::Unavailable;

/// The parts of a [`DevicePlan`]'s buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    /// `[B, M]` first query row that sees the key.
    KeyStart,
    /// `[B, M]` one past the last query row that sees the key.
    KeyEnd,
    /// `[B, M]` position of the key on its path.
    KeyPosition,
    /// `[B, N]` position of the query on its path.
    QueryPosition,
    /// [`BlockPlan::by_query`]
    QueryOffsets,
    QueryEntries,
    QueryOrder,
    /// [`BlockPlan::by_key`]
    KeyOffsets,
    KeyEntries,
    KeyOrder,
}

/// A plan and the intervals of the mask on a device.
#[derive(Debug)]
pub(crate) struct DevicePlan {
    /// Number of query tiles, over all batch rows.
    pub n_query_tiles: usize,
    /// Number of key tiles, over all batch rows.
    pub n_key_tiles: usize,
    /// Number of pairs of tiles.
    pub n_pairs: usize,
    /// Number of query tiles that see the key tile that most see.
    pub most_seen: usize,
    sections: DeviceSections,
}

impl DevicePlan {
    /// The plan of a mask on a device, made on first use and kept with the mask.
    ///
    /// # Errors
    /// If the plan has more numbers than kernels can index.
    pub(crate) fn of(
        visibility: &Visibility,
        device: &CubeDevice,
        tiles: TileShape,
        sliding_window: Option<usize>,
    ) -> Result<Arc<Self>, Unavailable> {
        let key = (device.clone(), tiles, sliding_window);
        visibility.derived().get(key, || {
            let plan = Self::upload(visibility, tiles, sliding_window, device)?;
            let memory = IndexMemory {
                host_bytes: 0,
                device_bytes: plan.sections.bytes(),
            };
            Ok((plan, memory))
        })
    }

    fn upload(
        visibility: &Visibility,
        tiles: TileShape,
        sliding_window: Option<usize>,
        device: &CubeDevice,
    ) -> Result<Self, Unavailable> {
        let plan = BlockPlan::build(visibility, tiles, sliding_window)?;
        let (by_query, by_key) = (&plan.by_query, &plan.by_key);
        // In the order of `Section`.
        let lists: [&[u32]; _] = [
            visibility.key_start(),
            visibility.key_end(),
            visibility.key_position(),
            visibility.query_position(),
            &by_query.offsets,
            &by_query.entries,
            &by_query.order,
            &by_key.offsets,
            &by_key.entries,
            &by_key.order,
        ];
        let sections = DeviceSections::new(&device.client(), &lists);
        Ok(Self {
            n_query_tiles: by_query.order.len(),
            n_key_tiles: by_key.order.len(),
            n_pairs: by_key.entries.len(),
            most_seen: by_key.order.first().map_or(0, |&tile| {
                let tile = tile as usize;
                (by_key.offsets[tile + 1] - by_key.offsets[tile]) as usize
            }),
            sections: sections.ok_or_else(|| too_large(visibility, tiles))?,
        })
    }

    /// The whole buffer.
    pub(crate) fn buffer(&self) -> BufferArg {
        self.sections.buffer()
    }

    /// Where a section starts in the buffer.
    pub(crate) fn start(&self, section: Section) -> u32 {
        self.sections.start(section as usize)
    }

    /// One section as a buffer of its own.
    pub(crate) fn section(&self, section: Section) -> BufferArg {
        self.sections.section(section as usize)
    }
}
