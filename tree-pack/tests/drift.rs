//! Compares forks of forests with a comparison of all pairs; tests retokenisation drift.

use std::collections::BTreeSet;

use proptest::prelude::*;
use tree_pack::{Trajectory, build_forests, forks};

fn trajectories(sequences: Vec<Vec<u32>>) -> Vec<Trajectory> {
    let trajectory = |(number, tokens): (usize, Vec<u32>)| {
        let mask = (0..tokens.len())
            .map(|index| (index + number).is_multiple_of(3))
            .collect();
        Trajectory::new("task", number.to_string(), tokens, mask)
    };
    sequences.into_iter().enumerate().map(trajectory).collect()
}

/// Every pair of trajectories of which neither is a prefix of the other diverges at exactly one
/// fork, into different branches. At every fork some pair diverges.
fn check_against_all_pairs(trajectories: &[Trajectory]) {
    let forests = build_forests(trajectories).unwrap();
    let forest = &forests[0];
    let forks = forks(forest, trajectories);
    // Trajectories by the prefix that leads to a fork, and the next token.
    let mut expected = BTreeSet::new();
    for left in trajectories {
        for right in trajectories {
            let shared = left
                .tokens
                .iter()
                .zip(&right.tokens)
                .take_while(|(a, b)| a == b)
                .count();
            if shared < left.len().min(right.len()) {
                expected.insert((left.tokens[..shared].to_vec(), left.tokens[shared]));
            }
        }
    }
    let mut found = BTreeSet::new();
    for fork in &forks {
        assert!(fork.branches.len() >= 2);
        let position = fork.position as usize;
        for branch in &fork.branches {
            let first = &trajectories[branch.trajectory as usize];
            let start = first.tokens[..=position].to_vec();
            let through: Vec<_> = trajectories
                .iter()
                .filter(|other| other.tokens.starts_with(&start))
                .collect();
            assert_eq!(branch.trajectories as usize, through.len());
            assert_eq!(branch.is_trained, first.is_trained(position));
            let below: BTreeSet<_> = through
                .iter()
                .flat_map(|other| (position + 1..=other.len()).map(|end| &other.tokens[..end]))
                .collect();
            assert_eq!(branch.tokens as usize, below.len());
            let is_new = found.insert((start[..position].to_vec(), start[position]));
            assert!(is_new, "each branch is reported once");
        }
    }
    assert_eq!(found, expected);
}

proptest! {
    #[test]
    fn forks_are_where_pairs_part(
        sequences in prop::collection::vec(prop::collection::vec(1u32..4, 1..7), 1..9)
    ) {
        check_against_all_pairs(&trajectories(sequences));
    }
}

#[test]
fn ends_and_duplicates_are_no_forks() {
    let data = trajectories(vec![vec![1, 2, 3], vec![1, 2], vec![1, 2, 3]]);
    assert!(forks(&build_forests(&data).unwrap()[0], &data).is_empty());
    // A million branches of one token: linear, and one fork.
    let wide = (0..1_000_000).map(|token| vec![7, token + 8]).collect();
    let data = trajectories(wide);
    let found = forks(&build_forests(&data).unwrap()[0], &data);
    assert_eq!((found.len(), found[0].branches.len()), (1, 1_000_000));
}

mod text {
    use super::*;
    use std::path::Path;
    use tree_pack::text::TextTokenizer;

    fn tokenizer() -> TextTokenizer {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/tokenizer/tokenizer.json.gz");
        TextTokenizer::from_file(&path).unwrap()
    }

    /// One text, tokenised as a whole and in parts as a model may sample it, with the same tokens
    /// after it; and a branch of another text.
    #[test]
    fn same_text_in_other_tokens_is_found() {
        let tokenizer = tokenizer();
        let encode = |text: &str| tokenizer.encode(text).unwrap();
        let pieces =
            |parts: &[&str]| -> Vec<u32> { parts.iter().flat_map(|part| encode(part)).collect() };
        for (whole, parts) in [
            (" unbelievable", vec![" un", "believ", "able"]),
            // The parts of a character that is split between tokens are not text.
            ("\u{1f9ec}", vec!["\u{1f9ec}"]),
            ("<|im_end|>", vec!["<|im", "_end|>"]),
        ] {
            let rest = encode(" and the same words follow.");
            let sampled = match whole {
                // Bytes, which are tokens of every tokenizer of this kind.
                "\u{1f9ec}" => "\u{1f9ec}"
                    .bytes()
                    .map(|byte| byte_token(&tokenizer, byte))
                    .collect::<Vec<_>>(),
                _ => pieces(&parts),
            };
            assert_ne!(encode(whole), sampled, "{whole}");
            let start = encode("Some words");
            let data = trajectories(vec![
                [start.clone(), encode(whole), rest.clone()].concat(),
                [start.clone(), encode(" something else")].concat(),
                [start.clone(), sampled.clone(), rest.clone()].concat(),
            ]);
            let forests = build_forests(&data).unwrap();
            let found: Vec<_> = forks(&forests[0], &data)
                .iter()
                .flat_map(|fork| {
                    let found = fork.retokenizations(&data, &tokenizer).unwrap();
                    found
                        .into_iter()
                        .map(|found| (fork.position as usize, found))
                        .collect::<Vec<_>>()
                })
                .collect();
            let [(position, drift)] = found.as_slice() else {
                panic!("{whole}: {found:?}")
            };
            let tokens = [encode(whole), sampled];
            let shared = tokens[0]
                .iter()
                .zip(&tokens[1])
                .take_while(|(a, b)| a == b)
                .count();
            assert_eq!(*position, start.len() + shared, "{whole}");
            assert_eq!(drift.equal_after, rest.len(), "{whole}");
            assert_eq!(
                drift.tokens,
                tokens.map(|tokens| tokens[shared..].to_vec()),
                "{whole}"
            );
        }
    }

    /// The token of a single byte: a byte-level tokenizer can encode every text with them.
    fn byte_token(tokenizer: &TextTokenizer, byte: u8) -> u32 {
        // Bytes outside printable ASCII are written as the characters from U+0100 on, in order,
        // except those of Latin-1 that represent themselves.
        let stands_for_itself = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        let character = match stands_for_itself(byte) {
            true => char::from(byte),
            false => {
                let before = (0..byte).filter(|&other| !stands_for_itself(other)).count() as u32;
                char::from_u32(0x100 + before).unwrap()
            }
        };
        tokenizer.token_id(&character.to_string()).unwrap()
    }

    /// Different texts are never reported, whatever they have in common.
    #[test]
    fn other_texts_are_not() {
        let tokenizer = tokenizer();
        let data = trajectories(
            [
                "run the tests",
                "run the test",
                "run a test",
                "Run the tests",
                "runner",
            ]
            .iter()
            .map(|text| tokenizer.encode(text).unwrap())
            .collect(),
        );
        let forests = build_forests(&data).unwrap();
        for fork in forks(&forests[0], &data) {
            assert_eq!(fork.retokenizations(&data, &tokenizer).unwrap(), []);
        }
    }
}
