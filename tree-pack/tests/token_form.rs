//! Trajectories in token form are read back unchanged.

use std::io::Cursor;

use proptest::prelude::*;
use tree_pack::{Advantage, Trajectory, TrajectoryReader, write_trajectory};

fn floats(length: usize) -> impl Strategy<Value = Option<Vec<f32>>> {
    let float = any::<f32>().prop_filter("finite", |value| value.is_finite());
    prop::option::of(prop::collection::vec(float, length))
}

fn any_trajectory() -> impl Strategy<Value = Trajectory> {
    (1usize..12).prop_flat_map(|length| {
        (
            ("\\PC{0,8}", "\\PC{0,8}", 0u32..4, 0u32..4),
            prop::option::of(-1e30f32..1e30),
            prop::collection::vec((0..=tree_pack::MAX_TOKEN_ID, any::<bool>()), length),
            (floats(length - 1), floats(length - 1), floats(length - 1)),
            prop_oneof![Just(1.0), 0.0..1e6],
        )
            .prop_map(
                |((task, rollout, segment, more), reward, tokens, logs, weight)| {
                    let (tokens, mask) = tokens.into_iter().unzip();
                    Trajectory {
                        segment,
                        segments: segment + 1 + more,
                        reward,
                        advantage: match (reward, logs.0) {
                            (Some(value), None) => Some(Advantage::Trajectory(value)),
                            (_, values) => values.map(Advantage::Token),
                        },
                        old_log_probs: logs.1,
                        ref_log_probs: logs.2,
                        weight,
                        ..Trajectory::new(task, rollout, tokens, mask)
                    }
                },
            )
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read(trajectories in prop::collection::vec(any_trajectory(), 0..5)) {
        let mut file = Vec::new();
        for trajectory in &trajectories {
            write_trajectory(&mut file, trajectory).unwrap();
        }
        let reader = TrajectoryReader::new("written", Cursor::new(file)).unwrap();
        let read: Vec<_> = reader.map(Result::unwrap).collect();
        prop_assert_eq!(read, trajectories);
    }
}
