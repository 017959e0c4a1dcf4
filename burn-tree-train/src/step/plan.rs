//! The packs of a step as a tree: what each continues from, what it leaves, and in which order they
//! are visited. On the host, once per step.

use burn_tree_attn::PastKeys;
use tree_pack::{Gateway, Pack, PacksError, validate_packs};

/// What is to be done with each pack, and when.
pub(super) struct StepPlan {
    pub(super) packs: Vec<PackPlan>,
    pub(super) visits: Vec<Visit>,
}

/// Packs are visited depth-first: what a pack leaves is there from `Enter` to `Leave`, and all
/// packs that continue it are entered and left in between, one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Visit {
    Enter(usize),
    Leave(usize),
}

/// What a pack continues from and leaves.
#[derive(Debug, Default)]
pub(super) struct PackPlan {
    /// Rows whose keys and values later packs see, ascending.
    pub(super) kept_rows: Vec<u32>,
    /// Rows whose states later packs start from, ascending.
    pub(super) requested_rows: Vec<u32>,
    /// Whose rows the past keys are, the outermost pack first.
    pub(super) past: Vec<PastRows>,
    /// The past keys as the mask takes them.
    pub(super) past_keys: PastKeys,
    /// Whose rows the initial states come from.
    pub(super) states: Option<PastRows>,
    /// Which of the initial states each root starts from; empty without any.
    pub(super) root_states: Vec<Option<u32>>,
}

/// Rows that one earlier pack leaves.
#[derive(Debug)]
pub(super) struct PastRows {
    /// The pack that owns them.
    pub(super) pack: usize,
    /// Which of the rows that it leaves, ascending.
    pub(super) slots: Vec<u32>,
}

impl StepPlan {
    pub(super) fn new(packs: &[Pack]) -> Result<Self, PacksError> {
        validate_packs(packs)?;
        let gateways = packs.iter().map(|pack| pack.gateway.as_ref());
        let mut plans: Vec<PackPlan> = gateways
            .map(|gateway| gateway.map(continued).unwrap_or_default())
            .collect();
        number_slots(&mut plans);
        Ok(Self {
            packs: plans,
            visits: depth_first(packs),
        })
    }
}

/// What a pack continues from; its slots are still rows of the packs that own them.
fn continued(gateway: &Gateway) -> PackPlan {
    let mut plan = PackPlan::default();
    for run in &gateway.runs {
        let owner = run.pack as usize;
        match plan.past.last_mut() {
            Some(past) if past.pack == owner => past.slots.extend(run.rows.clone()),
            _ => plan.past.push(PastRows {
                pack: owner,
                slots: run.rows.clone().collect(),
            }),
        }
        for position in (run.position..).take(run.rows.len()) {
            plan.past_keys.start.push(run.visible_to.start);
            plan.past_keys.end.push(run.visible_to.end);
            plan.past_keys.position.push(position);
        }
    }
    if let Some(parent) = plan.past.last() {
        // The parent's past keys are the last ones.
        let first = plan.past_keys.start.len() - parent.slots.len();
        let row_before = |&past_key: &u32| parent.slots[past_key as usize - first];
        let rows: Vec<u32> = gateway.root_parents.iter().map(row_before).collect();
        // Roots that continue the same row start from the same state.
        let mut distinct = rows.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let state = |row| distinct.binary_search(row).ok().map(|state| state as u32);
        plan.root_states = rows.iter().map(state).collect();
        plan.states = Some(PastRows {
            pack: parent.pack,
            slots: distinct,
        });
    }
    plan
}

/// Collects what each pack has to leave, and turns rows of other packs into numbers among these.
fn number_slots(plans: &mut [PackPlan]) {
    let mut kept: Vec<Vec<u32>> = vec![Vec::new(); plans.len()];
    let mut requested = kept.clone();
    for plan in plans.iter() {
        for past in &plan.past {
            kept[past.pack].extend(&past.slots);
        }
        if let Some(past) = &plan.states {
            requested[past.pack].extend(&past.slots);
        }
    }
    for rows in kept.iter_mut().chain(&mut requested) {
        rows.sort_unstable();
        rows.dedup();
    }
    let number = |past: &mut PastRows, left: &[Vec<u32>]| {
        let rows = &left[past.pack];
        for slot in &mut past.slots {
            *slot = rows.binary_search(slot).expect("collected above") as u32;
        }
    };
    for plan in plans.iter_mut() {
        plan.past.iter_mut().for_each(|past| number(past, &kept));
        if let Some(states) = &mut plan.states {
            number(states, &requested);
        }
    }
    for (plan, (kept, requested)) in plans.iter_mut().zip(kept.into_iter().zip(requested)) {
        plan.kept_rows = kept;
        plan.requested_rows = requested;
    }
}

fn depth_first(packs: &[Pack]) -> Vec<Visit> {
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); packs.len()];
    let mut stack = Vec::new();
    for (index, pack) in packs.iter().enumerate() {
        match &pack.gateway {
            Some(gateway) => children[gateway.parent as usize].push(index),
            None => stack.push(Visit::Enter(index)),
        }
    }
    stack.reverse();
    let mut visits = Vec::with_capacity(2 * packs.len());
    while let Some(visit) = stack.pop() {
        visits.push(visit);
        if let Visit::Enter(index) = visit {
            stack.push(Visit::Leave(index));
            let children = children[index].iter().rev();
            stack.extend(children.map(|&child| Visit::Enter(child)));
        }
    }
    visits
}

#[cfg(test)]
mod tests {
    use super::*;
    use tree_pack::{PackOptions, Partitioning, Trajectory, build_forests, pack_step};

    fn plan(sequences: &[&[u32]], budget: usize) -> StepPlan {
        let trajectories: Vec<_> = sequences
            .iter()
            .map(|tokens| Trajectory::new("t", "r", tokens.to_vec(), vec![true; tokens.len()]))
            .collect();
        let forests = build_forests(&trajectories).unwrap();
        let options = PackOptions {
            partitioning: Partitioning::Connected,
            ..PackOptions::new(budget)
        };
        let step = pack_step(&trajectories, &forests, &options).unwrap();
        StepPlan::new(&step.packs).unwrap()
    }

    fn past(plan: &PackPlan) -> Vec<(usize, &[u32])> {
        let past = plan.past.iter();
        past.map(|past| (past.pack, past.slots.as_slice()))
            .collect()
    }

    #[test]
    fn a_chain_continues_every_part_before() {
        let plan = plan(&[&[1, 2, 3, 4, 5, 6, 7, 8, 9]], 3);
        assert_eq!(past(&plan.packs[2]), [(0, &[0, 1, 2][..]), (1, &[0, 1, 2])]);
        assert_eq!(plan.packs[0].kept_rows, [0, 1, 2]);
        let requested: Vec<_> = plan.packs.iter().map(|pack| &pack.requested_rows).collect();
        assert_eq!(requested, [&[2][..], &[2], &[]]);
        assert_eq!(plan.packs[2].past_keys.position, [0, 1, 2, 3, 4, 5]);
    }

    /// 24: what is left are ancestors of later parts, not their siblings.
    #[test]
    fn siblings_are_not_left() {
        let plan = plan(&[&[1, 2, 3, 4], &[1, 2, 5, 6, 7, 8, 9, 10]], 6);
        let [first, second] = &plan.packs[..] else {
            panic!("{} parts", plan.packs.len());
        };
        // Rows 2 and 3 are the short branch.
        let rows: Vec<u32> = past(second)[0]
            .1
            .iter()
            .map(|&slot| first.kept_rows[slot as usize])
            .collect();
        assert_eq!(rows, first.kept_rows);
        assert!(!rows.contains(&2) && !rows.contains(&3), "{rows:?}");
    }

    #[test]
    fn children_come_one_after_another() {
        use Visit::{Enter, Leave};
        let plan = plan(&[&[1, 2, 3, 4, 5, 6], &[1, 2, 3, 7, 8, 9]], 3);
        assert_eq!(
            plan.visits,
            [Enter(0), Enter(1), Leave(1), Enter(2), Leave(2), Leave(0)]
        );
    }
}
