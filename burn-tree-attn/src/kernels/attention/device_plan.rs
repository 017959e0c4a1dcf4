//! The plan of a mask on a device.

use std::ops::Range;
use std::sync::Arc;

use burn_cubecl::CubeDevice;
use cubecl::prelude::{BufferArg, CubeElement};
use cubecl::server::Handle;

use super::Unavailable;
use super::plan::{BlockPlan, TileShape, too_large};
use crate::visibility::Visibility;

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

const N_SECTIONS: usize = Section::KeyOrder as usize + 1;

/// Sections start at multiples of this many numbers (256 bytes), as bindings must on any device.
const SECTION_ALIGNMENT: usize = 64;

/// A plan and the intervals of the mask on a device: one buffer of u32, since WGSL offers few
/// bindings, whose sections can also be bound one by one.
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
    buffer: Handle,
    len: usize,
    sections: [Range<u32>; N_SECTIONS],
}

impl DevicePlan {
    pub(crate) fn upload(
        visibility: &Visibility,
        tiles: TileShape,
        sliding_window: Option<usize>,
        device: &CubeDevice,
    ) -> Result<Self, Unavailable> {
        let plan = BlockPlan::build(visibility, tiles, sliding_window)?;
        let (by_query, by_key) = (&plan.by_query, &plan.by_key);
        let parts: [&[u32]; N_SECTIONS] = [
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
        let mut len = 0;
        let starts = parts.map(|part| {
            let start = len;
            // An empty section cannot be bound.
            len += part.len().max(1).next_multiple_of(SECTION_ALIGNMENT);
            start
        });
        u32::try_from(len).map_err(|_| too_large(visibility, tiles))?;
        let mut values = vec![0u32; len];
        for (part, start) in parts.iter().zip(starts) {
            values[start..start + part.len()].copy_from_slice(part);
        }
        let section = |index: usize| {
            let start = starts[index] as u32;
            start..start + parts[index].len().max(1) as u32
        };
        Ok(Self {
            n_query_tiles: by_query.order.len(),
            n_key_tiles: by_key.order.len(),
            n_pairs: by_key.entries.len(),
            most_seen: by_key.order.first().map_or(0, |&tile| {
                let tile = tile as usize;
                (by_key.offsets[tile + 1] - by_key.offsets[tile]) as usize
            }),
            buffer: device.client().create_from_slice(u32::as_bytes(&values)),
            len,
            sections: std::array::from_fn(section),
        })
    }

    /// The whole buffer.
    pub(crate) fn buffer(&self) -> BufferArg {
        // SAFETY: the buffer was created with this length.
        unsafe { BufferArg::from_raw_parts(self.buffer.clone(), self.len) }
    }

    /// Where a section starts in the buffer.
    pub(crate) fn start(&self, section: Section) -> u32 {
        self.sections[section as usize].start
    }

    /// One section as a buffer of its own.
    pub(crate) fn section(&self, section: Section) -> BufferArg {
        let range = &self.sections[section as usize];
        let bytes = |numbers: usize| (numbers * size_of::<u32>()) as u64;
        let handle = self.buffer.clone();
        let handle = handle
            .offset_start(bytes(range.start as usize))
            .offset_end(bytes(self.len - range.end as usize));
        // SAFETY: the section lies within the buffer.
        unsafe { BufferArg::from_raw_parts(handle, range.len()) }
    }
}

/// What a device plan depends on, besides the mask.
type DevicePlanKey = (CubeDevice, TileShape, Option<usize>);

/// Device plans made so far.
pub(crate) type DevicePlans = Vec<(DevicePlanKey, Arc<DevicePlan>)>;

impl Visibility {
    /// The plan on a device, made on first use and shared afterwards.
    pub(crate) fn device_plan(
        &self,
        device: &CubeDevice,
        tiles: TileShape,
        sliding_window: Option<usize>,
    ) -> Result<Arc<DevicePlan>, Unavailable> {
        let mut plans = self.device_plans();
        let key = (device.clone(), tiles, sliding_window);
        if let Some((_, plan)) = plans.iter().find(|(known, _)| *known == key) {
            return Ok(plan.clone());
        }
        let plan = Arc::new(DevicePlan::upload(self, tiles, sliding_window, device)?);
        plans.push((key, plan.clone()));
        Ok(plan)
    }
}
