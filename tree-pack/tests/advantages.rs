//! Advantages from rewards.

use proptest::prelude::*;
use tree_pack::{AdvantageError, AdvantageEstimator, Trajectory, assign_advantages};

const ESTIMATORS: [AdvantageEstimator; 3] = [
    AdvantageEstimator::Standardized { epsilon: 1e-6 },
    AdvantageEstimator::Centered,
    AdvantageEstimator::LeaveOneOut,
];

fn rollout(task: &str, rollout: &str, reward: Option<f32>) -> Trajectory {
    let mut trajectory = Trajectory::new(task, rollout, vec![1, 2], vec![false, true]);
    trajectory.reward = reward;
    trajectory
}

fn assigned(trajectories: &[Trajectory]) -> Vec<f32> {
    let advantage = |trajectory: &Trajectory| trajectory.advantage_of(1).unwrap();
    trajectories.iter().map(advantage).collect()
}

/// Mean 2, standard deviation of a sample 2.
#[test]
fn formulas() {
    let group = |estimator: AdvantageEstimator| estimator.of_group(&[0.0, 2.0, 4.0]).unwrap();
    let exact = AdvantageEstimator::Standardized { epsilon: 0.0 };
    assert_eq!(group(exact), [-1.0, 0.0, 1.0]);
    let damped = AdvantageEstimator::Standardized { epsilon: 2.0 };
    assert_eq!(group(damped), [-0.5, 0.0, 0.5]);
    assert_eq!(group(AdvantageEstimator::Centered), [-2.0, 0.0, 2.0]);
    assert_eq!(group(AdvantageEstimator::LeaveOneOut), [-3.0, 0.0, 3.0]);
    assert_eq!(AdvantageEstimator::Centered.of_group(&[1.0]), None);
}

#[test]
fn names_are_read_as_they_are_written() {
    for estimator in ESTIMATORS {
        assert_eq!(estimator.to_string().parse(), Ok(estimator));
    }
    let error = "grpo".parse::<AdvantageEstimator>().unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("advantage estimator \"grpo\": expected")
    );
}

/// Tasks are interleaved; the segments of a rollout count as one and share its advantage.
#[test]
fn groups_are_the_rollouts_of_a_task() {
    let mut trajectories = vec![
        rollout("a", "0", Some(1.0)),
        rollout("b", "0", Some(10.0)),
        rollout("a", "1", Some(0.0)),
        rollout("a", "0", Some(1.0)),
        rollout("b", "1", Some(20.0)),
        rollout("a", "0", Some(1.0)),
    ];
    let stats = assign_advantages(&mut trajectories, AdvantageEstimator::Centered).unwrap();
    assert_eq!(assigned(&trajectories), [0.5, -5.0, -0.5, 0.5, 5.0, 0.5]);
    assert_eq!(
        (stats.rollouts, stats.groups, stats.uniform_groups),
        (4, 2, 0)
    );
    assert_eq!((stats.mean, stats.min, stats.max), (7.75, 0.0, 20.0));
    // Variance (1 + 100 + 0 + 400) / 4 - 7.75^2.
    assert!((stats.standard_deviation - 65.1875f64.sqrt()).abs() < 1e-12);
}

#[test]
fn what_has_no_advantage_is_named_and_nothing_is_changed() {
    let cases = [
        (
            vec![rollout("a", "0", Some(1.0)), rollout("a", "1", None)],
            "trajectory 1 (task \"a\", rollout \"1\") has the reward None, expected a finite number",
        ),
        (
            vec![
                rollout("a", "0", Some(f32::NAN)),
                rollout("a", "1", Some(0.0)),
            ],
            "trajectory 0 (task \"a\", rollout \"0\") has the reward Some(NaN), expected a finite number",
        ),
        (
            vec![rollout("a", "0", Some(1.0)), rollout("a", "0", Some(2.0))],
            "trajectory 1 (task \"a\", rollout \"0\") has the reward 2, an earlier one of the same \
             rollout 1",
        ),
        (
            vec![
                rollout("a", "0", Some(1.0)),
                rollout("a", "1", Some(2.0)),
                rollout("b", "x", Some(2.0)),
            ],
            "task \"b\" has one rollout (\"x\"), expected at least two to compare",
        ),
    ];
    for (mut trajectories, expected) in cases {
        let error = assign_advantages(&mut trajectories, ESTIMATORS[0]).unwrap_err();
        assert_eq!(error.to_string(), expected);
        assert!(
            trajectories
                .iter()
                .all(|trajectory| trajectory.advantage.is_none())
        );
    }
    let negative = AdvantageEstimator::Standardized { epsilon: -1.0 };
    let error = assign_advantages(&mut [], negative).unwrap_err();
    assert_eq!(error, AdvantageError::Epsilon { epsilon: -1.0 });
    assert_eq!(
        assign_advantages(&mut [], ESTIMATORS[0]).unwrap().rollouts,
        0
    );
}

proptest! {
    /// Even if the mean is rounded: 0.1 + 0.1 + 0.1 is not three times 0.1.
    #[test]
    fn equal_rewards_have_no_advantage(reward in -1e30f32..1e30, count in 2usize..40) {
        for estimator in ESTIMATORS {
            prop_assert_eq!(estimator.of_group(&vec![reward; count]).unwrap(), vec![0.0; count]);
        }
    }

    /// Sums in f64, results rounded to f32.
    #[test]
    fn advantages_of_a_group_are_centered(rewards in prop::collection::vec(-5.0f32..5.0, 2..20)) {
        for estimator in ESTIMATORS {
            let advantages = estimator.of_group(&rewards).unwrap();
            let sum: f64 = advantages.iter().map(|&a| f64::from(a)).sum();
            let size: f64 = advantages.iter().map(|&a| f64::from(a).abs()).sum();
            prop_assert!(sum.abs() <= 1e-6 * size, "{sum} of {size}");
            // The advantages have the order of the rewards.
            for (i, j) in (0..rewards.len()).zip(1..rewards.len()) {
                if rewards[i] < rewards[j] {
                    prop_assert!(advantages[i] <= advantages[j]);
                }
            }
        }
    }
}
