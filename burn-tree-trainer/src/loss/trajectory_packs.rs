//! Which packs hold the predictions of each trajectory of a step.

use tree_pack::PackedStep;

/// For each trajectory of a step: no pack, one pack or several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrajectoryPacks(Vec<Location>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Location {
    NoPack,
    Pack(usize),
    Several,
}

impl TrajectoryPacks {
    /// Reads the occurrences of a step, which must not be merged.
    pub fn new(step: &PackedStep) -> Self {
        let mut locations = vec![Location::NoPack; step.trajectories.len()];
        for (index, pack) in step.packs.iter().enumerate() {
            for &trajectory in &pack.occurrences.trajectories {
                let location = &mut locations[trajectory as usize];
                *location = match *location {
                    Location::NoPack => Location::Pack(index),
                    Location::Pack(pack) if pack == index => Location::Pack(pack),
                    _ => Location::Several,
                };
            }
        }
        Self(locations)
    }

    /// Whether all predictions of each trajectory are in one pack.
    pub fn is_whole(&self) -> bool {
        !self.0.contains(&Location::Several)
    }

    /// Whether all predictions of two trajectories, by their index in the step, are in one pack.
    pub fn is_together(&self, first: usize, second: usize) -> bool {
        match (self.0[first], self.0[second]) {
            (Location::Pack(first), Location::Pack(second)) => first == second,
            (Location::Several, _) | (_, Location::Several) => false,
            (Location::NoPack, _) | (_, Location::NoPack) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tree_pack::{LossForm, PackOptions, Trajectory, build_forests, pack_step};

    #[test]
    fn trees_of_one_task_can_be_in_different_packs() {
        let trajectories = [[1, 2, 3], [1, 2, 4], [5, 6, 7]].map(|tokens| {
            let mask = vec![false, true, true];
            Trajectory::new("task", "run", tokens.to_vec(), mask)
        });
        let forests = build_forests(&trajectories).unwrap();
        let packs_of = |token_budget| {
            let options = PackOptions {
                loss: LossForm::PerTrajectory,
                ..PackOptions::new(token_budget)
            };
            TrajectoryPacks::new(&pack_step(&trajectories, &forests, &options).unwrap())
        };
        let (one, two) = (packs_of(8), packs_of(4));
        assert!(one.is_whole() && two.is_whole());
        assert!(one.is_together(0, 1) && one.is_together(0, 2));
        assert!(two.is_together(0, 1) && !two.is_together(0, 2));
    }
}
