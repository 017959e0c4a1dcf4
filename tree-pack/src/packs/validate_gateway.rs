//! Checks of gateways against the packs before them.

use super::derive_gateway::GatewayError;
use super::gateway::{Gateway, PastRun};
use super::pack::Pack;
use crate::layout::TreeLayout;

impl GatewayError {
    /// Checks the layout of a pack without a gateway.
    pub(crate) fn unless_roots_begin_paths(layout: &TreeLayout) -> Result<(), Self> {
        for (index, root) in layout.roots().enumerate() {
            let position = layout.position_ids[root.start as usize];
            if position != 0 {
                return Err(Self {
                    what: "position of root",
                    index,
                    value: position.to_string(),
                    expected: "0, or a gateway".into(),
                });
            }
        }
        Ok(())
    }
}

impl Gateway {
    /// Checks the gateway of the pack `number`, which has this layout. All earlier packs are valid.
    pub(crate) fn validate(
        &self,
        packs: &[Pack],
        number: usize,
        layout: &TreeLayout,
    ) -> Result<(), GatewayError> {
        let error = |what, index, value: String, expected: String| {
            Err(GatewayError {
                what,
                index,
                value,
                expected,
            })
        };
        if self.parent as usize >= number {
            let expected = format!("a pack before {number}");
            return error("parent of pack", number, self.parent.to_string(), expected);
        }
        let mut past_keys = 0u64;
        let mut first_keys = Vec::with_capacity(self.runs.len());
        for (index, run) in self.runs.iter().enumerate() {
            first_keys.push(past_keys);
            let rows = packs[..number]
                .get(run.pack as usize)
                .map_or(0, |pack| pack.layout.len());
            if run.rows.is_empty() || run.rows.end as usize > rows {
                let found = format!("rows {:?} of pack {}", run.rows, run.pack);
                return error("run", index, found, "rows of an earlier pack".into());
            }
            past_keys += run.rows.len() as u64;
        }
        let mut continued = Vec::with_capacity(self.root_parents.len());
        for (root, &key) in self.root_parents.iter().enumerate() {
            if u64::from(key) >= past_keys {
                let expected = format!("a past key below {past_keys}");
                return error("root_parents", root, key.to_string(), expected);
            }
            let index = first_keys.partition_point(|&first| first <= u64::from(key)) - 1;
            let run = &self.runs[index];
            if run.pack != self.parent {
                let found = format!("a row of pack {}", run.pack);
                let expected = format!("a row of pack {}", self.parent);
                return error("root_parents", root, found, expected);
            }
            continued.push(run.rows.start + (key - first_keys[index] as u32));
        }
        let expected = Self::derive(packs, 0, self.parent, &continued, layout)?;
        let parent_layout = &packs[self.parent as usize].layout;
        for (index, (root, &row)) in layout.roots().zip(&continued).enumerate() {
            let position = layout.position_ids[root.start as usize];
            let before = parent_layout.position_ids[row as usize];
            if position != before + 1 {
                let expected = (before + 1).to_string();
                return error("position of root", index, position.to_string(), expected);
            }
        }
        let runs = self.runs.len().max(expected.runs.len());
        let differing = (0..runs).find(|&run| self.runs.get(run) != expected.runs.get(run));
        if let Some(index) = differing {
            let text = |runs: &[PastRun]| {
                runs.get(index)
                    .map_or("nothing".into(), |run| format!("{run:?}"))
            };
            return error("run", index, text(&self.runs), text(&expected.runs));
        }
        Ok(())
    }
}
