//! In which packs the trajectories of a step are.

use tree_pack::PackedStep;

/// Where the predictions of each trajectory of a step are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spread(Vec<Home>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    Nowhere,
    Pack(usize),
    Several,
}

impl Spread {
    /// Looks through the occurrences of a step, of which none are merged.
    pub fn new(step: &PackedStep) -> Self {
        let mut homes = vec![Home::Nowhere; step.trajectories.len()];
        for (index, pack) in step.packs.iter().enumerate() {
            for &trajectory in &pack.occurrences.trajectories {
                let home = &mut homes[trajectory as usize];
                *home = match *home {
                    Home::Nowhere => Home::Pack(index),
                    Home::Pack(pack) if pack == index => Home::Pack(pack),
                    _ => Home::Several,
                };
            }
        }
        Self(homes)
    }

    /// Whether all predictions of each trajectory are in one pack.
    pub fn is_whole(&self) -> bool {
        !self.0.contains(&Home::Several)
    }

    /// Whether all predictions of two trajectories, by their index in the step, are in one pack.
    pub fn is_together(&self, first: usize, second: usize) -> bool {
        match (self.0[first], self.0[second]) {
            (Home::Pack(first), Home::Pack(second)) => first == second,
            (Home::Several, _) | (_, Home::Several) => false,
            (Home::Nowhere, _) | (_, Home::Nowhere) => true,
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
        let spread = |token_budget| {
            let options = PackOptions {
                loss: LossForm::PerTrajectory,
                ..PackOptions::new(token_budget)
            };
            Spread::new(&pack_step(&trajectories, &forests, &options).unwrap())
        };
        let (one, two) = (spread(8), spread(4));
        assert!(one.is_whole() && two.is_whole());
        assert!(one.is_together(0, 1) && one.is_together(0, 2));
        assert!(two.is_together(0, 1) && !two.is_together(0, 2));
    }
}
