//! Reproduces the token files in `data/tokens`, line by line, from the recorded messages, templates
//! and tokenizer.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::OnceLock;

use serde_json::{Value, json};
use tree_pack::JsonLines;
use tree_pack::text::{
    ChatTemplate, ConversationReader, ConversationTokenizer, MessageView, TextTokenizer,
    ToolSchemas,
};

fn data(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../data")
        .join(path)
}

fn tokenizer(template: &str) -> ConversationTokenizer {
    static TOKENIZER: OnceLock<TextTokenizer> = OnceLock::new();
    let load = || TextTokenizer::from_file(&data("tokenizer/tokenizer.json.gz")).unwrap();
    ConversationTokenizer::new(
        ChatTemplate::from_file(&data(&format!("tokenizer/{template}"))).unwrap(),
        TOKENIZER.get_or_init(load).clone(),
    )
    .unwrap()
}

/// Lines of a token file, by rollout.
fn token_lines(name: &str) -> BTreeMap<(String, String), Vec<Value>> {
    let mut lines = JsonLines::open(data(&format!("tokens/{name}.jsonl.gz"))).unwrap();
    let mut rollouts = BTreeMap::<_, Vec<Value>>::new();
    while let Some((_, line)) = lines.next_line().unwrap() {
        let line: Value = serde_json::from_slice(line).unwrap();
        let key = [&line["task_id"], &line["rollout_id"]].map(|id| id.as_str().unwrap().to_owned());
        rollouts.entry(key.into()).or_default().push(line);
    }
    rollouts
}

/// Renders the rollouts of `messages` that are in the token file and compares every line.
fn assert_reproduced(name: &str, messages: &str, tokenizer: &ConversationTokenizer, lines: usize) {
    let mut expected = token_lines(name);
    let conversations =
        ConversationReader::open(data(&format!("trajectories/{messages}.jsonl.gz"))).unwrap();
    // A token file contains only the first tasks, up to a size limit.
    let chosen = conversations.filter(|conversation| {
        let conversation = conversation.as_ref().unwrap();
        expected.contains_key(&(
            conversation.task_id.clone(),
            conversation.rollout_id.clone(),
        ))
    });
    let chosen: Vec<_> = chosen.collect();
    let mut compared = 0;
    tokenizer
        .tokenize_all(chosen, |conversation, trajectories| {
            let key = (
                conversation.task_id.clone(),
                conversation.rollout_id.clone(),
            );
            let expected = expected.remove(&key).unwrap();
            assert_eq!(
                trajectories.len(),
                expected.len(),
                "{name}: segments of {key:?}"
            );
            for (trajectory, expected) in trajectories.iter().zip(&expected) {
                let mask: Vec<u8> = trajectory
                    .loss_mask
                    .iter()
                    .map(|&mask| mask.into())
                    .collect();
                let line = json!({
                    "task_id": trajectory.task_id,
                    "rollout_id": trajectory.rollout_id,
                    "segment": trajectory.segment,
                    "segments": trajectory.segments,
                    "reward": trajectory.reward,
                    "tokens": trajectory.tokens,
                    "loss_mask": mask,
                });
                assert!(
                    line == *expected,
                    "{name}: segment {} of {key:?}",
                    trajectory.segment
                );
                compared += 1;
            }
            Ok::<(), tree_pack::text::TextError>(())
        })
        .unwrap();
    println!("{name}: {compared} lines equal");
    assert!(
        expected.is_empty(),
        "{name}: not in {messages}: {:?}",
        expected.keys()
    );
    assert_eq!(compared, lines, "{name}");
}

#[test]
fn tau_airline() {
    let mut tokenizer = tokenizer("qwen3_instruct_2507.jinja");
    tokenizer.tools = ToolSchemas::from_file(&data("trajectories/tau_airline.tools.json")).unwrap();
    assert_reproduced("tau_airline", "tau_airline", &tokenizer, 64);
}

#[test]
fn toolbench_dfsdt() {
    let mut tokenizer = tokenizer("qwen3_instruct_2507.jinja");
    tokenizer.tools =
        ToolSchemas::from_file(&data("trajectories/toolbench_dfsdt.tools.json")).unwrap();
    assert_reproduced("toolbench_dfsdt", "toolbench_dfsdt", &tokenizer, 131);
}

#[test]
fn tot_game24_cot16() {
    let tokenizer = tokenizer("qwen3_instruct_2507.jinja");
    assert_reproduced("tot_game24_cot16", "tot_game24_cot16", &tokenizer, 592);
}

/// The template removes reasoning from earlier turns, so rollouts have several segments.
#[test]
fn sweagent_think() {
    let mut tokenizer = tokenizer("qwen3.jinja");
    tokenizer.view = MessageView {
        content_field: "action".into(),
        ..MessageView::default()
    };
    assert_reproduced("sweagent_think", "sweagent", &tokenizer, 75);
    assert_reproduced("sweagent_think_marshmallow", "sweagent", &tokenizer, 13);
}
