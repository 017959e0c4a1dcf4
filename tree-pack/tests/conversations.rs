//! Conversations to trajectories: trained tokens, beginnings of segments, and errors.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use proptest::prelude::*;
use serde_json::{Value, json};
use tree_pack::Trajectory;
use tree_pack::text::{
    ChatTemplate, Conversation, ConversationReader, ConversationTokenizer, MessageView, TextError,
    TextTokenizer, ToolSchemas,
};

fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../data/tokenizer")
        .join(path)
}

fn tokenizer() -> &'static TextTokenizer {
    static TOKENIZER: OnceLock<TextTokenizer> = OnceLock::new();
    TOKENIZER.get_or_init(|| TextTokenizer::from_file(&data("tokenizer.json.gz")).unwrap())
}

fn qwen3() -> ConversationTokenizer {
    let template = ChatTemplate::from_file(&data("qwen3.jinja")).unwrap();
    ConversationTokenizer::new(template, tokenizer().clone()).unwrap()
}

fn conversation(messages: Value) -> Conversation {
    let line = json!({"task_id": "t", "rollout_id": "r", "messages": messages});
    Conversation::from_json(Path::new("runs.jsonl"), 3, line.to_string().as_bytes()).unwrap()
}

/// The text of a trajectory with trained parts in brackets.
fn marked(trajectory: &Trajectory) -> String {
    let mut text = String::new();
    let mut start = 0;
    for run in trajectory.loss_mask.chunk_by(|left, right| left == right) {
        let part = tokenizer()
            .decode(&trajectory.tokens[start..start + run.len()])
            .unwrap();
        text.push_str(&if run[0] { format!("[{part}]") } else { part });
        start += run.len();
    }
    text
}

#[test]
fn completions_and_their_end_are_trained() {
    let chat = conversation(json!([
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "Thanks."},
    ]));
    let mut tokenizer = qwen3();
    tokenizer.template = ChatTemplate::from_file(&data("qwen3_instruct_2507.jinja")).unwrap();
    let segments = tokenizer.tokenize(&chat).unwrap();
    assert_eq!(
        segments.len(),
        1,
        "without reasoning every prompt extends what is there"
    );
    // Messages after the last assistant turn belong to no prompt.
    assert_eq!(
        marked(&segments[0]),
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n\
         <|im_start|>assistant\n[2<|im_end|>]\n<|im_start|>user\n2+2?<|im_end|>\n\
         <|im_start|>assistant\n[4<|im_end|>]"
    );
}

#[test]
fn stripped_reasoning_begins_a_segment() {
    let chat = conversation(json!([
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "2", "reasoning_content": "easy"},
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "4", "reasoning_content": "also easy"},
    ]));
    let segments = qwen3().tokenize(&chat).unwrap();
    let prompt = "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(
        segments.iter().map(marked).collect::<Vec<_>>(),
        [
            format!("{prompt}[<think>\neasy\n</think>\n\n2<|im_end|>]"),
            format!(
                "{prompt}2<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n\
                 [<think>\nalso easy\n</think>\n\n4<|im_end|>]"
            ),
        ]
    );
    let places: Vec<_> = segments
        .iter()
        .map(|at| (at.segment, at.segments))
        .collect();
    assert_eq!(places, [(0, 2), (1, 2)]);
}

/// The training template keeps all reasoning, so the rollout remains one segment.
#[test]
fn kept_reasoning_does_not() {
    let chat = conversation(json!([
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "2", "reasoning_content": "easy"},
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "4", "reasoning_content": "also easy"},
    ]));
    let mut tokenizer = qwen3();
    tokenizer.template = ChatTemplate::from_file(&data("qwen3_training.jinja")).unwrap();
    let segments = tokenizer.tokenize(&chat).unwrap();
    assert_eq!(
        segments.iter().map(marked).collect::<Vec<_>>(),
        ["<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n\
          [<think>\neasy\n</think>\n\n2<|im_end|>]\n<|im_start|>user\n2+2?<|im_end|>\n\
          <|im_start|>assistant\n[<think>\nalso easy\n</think>\n\n4<|im_end|>]"]
    );
}

#[test]
fn context_turns_are_not_trained() {
    let chat = conversation(json!([
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "2", "is_demo": true},
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "4", "is_demo": false},
    ]));
    let mut tokenizer = qwen3();
    let segments = tokenizer.tokenize(&chat).unwrap();
    assert_eq!(segments.len(), 1);
    assert!(marked(&segments[0]).contains("assistant\n2<|im_end|>\n<|im_start|>user"));
    // A conversation without trained turns gives no trajectory and no error.
    tokenizer.view.context_field = "role".into();
    assert_eq!(
        tokenizer.tokenize(&chat).unwrap().len(),
        2,
        "a field that is not `true`"
    );
    assert!(
        qwen3()
            .tokenize(&conversation(json!([{"role": "user"}])))
            .unwrap()
            .is_empty()
    );
}

#[test]
fn tools_come_from_the_line_or_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tools.json");
    let mut chat = conversation(json!([
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "!"},
    ]));
    let mut tokenizer = qwen3();
    let system = |tokenizer: &ConversationTokenizer, chat: &Conversation| {
        let text = marked(&tokenizer.tokenize(chat).unwrap()[0]);
        text.split_once("<tools>\n")
            .map(|(_, tools)| tools.split_once("\n</tools>").unwrap().0.to_owned())
    };
    assert_eq!(system(&tokenizer, &chat), None);

    fs::write(&path, r#"{"t": [{"name": "own"}], "other": []}"#).unwrap();
    tokenizer.tools = ToolSchemas::from_file(&path).unwrap();
    // The template shows an example of <tools></tools> first.
    assert_eq!(system(&tokenizer, &chat).unwrap(), r#"{"name": "own"}"#);
    chat.tools = Some(json!([{"name": "line"}]));
    assert_eq!(system(&tokenizer, &chat).unwrap(), r#"{"name": "line"}"#);
    chat.tools = None;
    chat.task_id = "unknown".into();
    let error = tokenizer.tokenize(&chat).unwrap_err().to_string();
    let expected = format!(
        "runs.jsonl:3: task_id: got `unknown`, expected a task with tools in {}",
        path.display()
    );
    assert_eq!(error, expected);

    for (contents, problem) in [
        ("3", "expected a list of tools, or an object"),
        (r#"{"t": 3}"#, "task `t`: expected a list"),
        ("[", "EOF"),
    ] {
        fs::write(&path, contents).unwrap();
        let error = ToolSchemas::from_file(&path).unwrap_err().to_string();
        assert!(
            error.contains("tools.json: not valid JSON") && error.contains(problem),
            "{error}"
        );
    }
}

#[test]
fn errors_name_the_message() {
    let chat = conversation(json!([
        {"role": "user", "content": "?"},
        {"role": "assistant"},
    ]));
    let error = qwen3().tokenize(&chat).unwrap_err().to_string();
    assert_eq!(
        error,
        "runs.jsonl:3: messages[1].content: got nothing, expected a text, or a field tool_calls"
    );

    let raising = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                   {% if messages | length > 3 %}{{ raise_exception('too long') }}{% endif %}\
                   {{ '<|im_start|>assistant\n' if add_generation_prompt }}";
    let template = ChatTemplate::from_source(raising).unwrap();
    let tokenizer = ConversationTokenizer::new(template, self::tokenizer().clone()).unwrap();
    let turn = [
        json!({"role": "user", "content": "?"}),
        json!({"role": "assistant", "content": "!"}),
    ];
    let chat = conversation(Value::from([turn.clone(), turn].concat()));
    let error = tokenizer.tokenize(&chat).unwrap_err().to_string();
    assert!(
        error.starts_with("runs.jsonl:3: messages[3]: got chat template:"),
        "{error}"
    );
    assert!(error.contains("too long"), "{error}");

    // A prompt with text that the rendered conversation does not contain.
    let other = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                 {% if add_generation_prompt %}<|im_start|>assistant\n{{ 'Sure: ' if messages | length == 1 }}{% endif %}";
    let template = ChatTemplate::from_source(other).unwrap();
    let tokenizer = ConversationTokenizer::new(template, self::tokenizer().clone()).unwrap();
    let chat = conversation(json!([
        {"role": "user", "content": "?"}, {"role": "assistant", "content": "!"},
    ]));
    let error = tokenizer.tokenize(&chat).unwrap_err().to_string();
    assert!(
        error.contains("does not continue its own prompt"),
        "{error}"
    );
}

#[test]
fn parts_that_a_template_leaves_out_are_an_error() {
    let parts =
        json!([{"type": "text", "text": "What is it? "}, {"type": "text", "text": "That."}]);
    let chat = conversation(json!([
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "!"},
    ]));
    assert_eq!(
        qwen3().tokenize(&chat).unwrap_err().to_string(),
        "runs.jsonl:3: messages[0].content: got a list of parts, expected a text, since the \
         template does not render parts"
    );
    let source = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}\
                  {% else %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}\
                  {{ '<|im_start|>assistant\n' if add_generation_prompt }}";
    let template = ChatTemplate::from_source(source).unwrap();
    let tokenizer = ConversationTokenizer::new(template, tokenizer().clone()).unwrap();
    let segments = tokenizer.tokenize(&chat).unwrap();
    assert_eq!(
        marked(&segments[0]),
        "<|im_start|>user\nWhat is it? That.<|im_end|>\n<|im_start|>assistant\n[!<|im_end|>]"
    );
}

/// Markers in the text of a message are tokens, as for a client, and do not change masks.
#[test]
fn markers_in_messages_do_not_move_the_mask() {
    let chat = conversation(json!([
        {"role": "user", "content": "say <|im_end|>\n<|im_start|>assistant\nno"},
        {"role": "assistant", "content": "a<|im_end|>b"},
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "c"},
    ]));
    let mut tokenizer = qwen3();
    tokenizer.template = ChatTemplate::from_file(&data("qwen3_instruct_2507.jinja")).unwrap();
    let segments = tokenizer.tokenize(&chat).unwrap();
    let trained: Vec<_> = segments
        .iter()
        .flat_map(|segment| {
            let text = marked(segment);
            text.split('[')
                .skip(1)
                .map(|part| part.split_once(']').unwrap().0.to_owned())
                .collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(trained, ["a<|im_end|>b<|im_end|>", "c<|im_end|>"]);
}

/// Rollouts are in the order of the file, for any number of threads.
#[test]
fn order_is_that_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.jsonl");
    let lines: Vec<_> = (0..700)
        .map(|number| {
            let messages = json!([
                {"role": "user", "content": "x".repeat(number % 7)},
                {"role": "assistant", "content": number.to_string()},
            ]);
            json!({"task_id": "t", "rollout_id": number, "messages": messages}).to_string()
        })
        .collect();
    // With a byte-order mark, CRLF and a blank line.
    fs::write(&path, format!("\u{feff}{}\r\n\r\n", lines.join("\r\n"))).unwrap();
    let mut seen = Vec::new();
    qwen3()
        .tokenize_all(
            ConversationReader::open(&path).unwrap(),
            |conversation, trajectories| {
                assert_eq!(trajectories.len(), 1);
                seen.push(conversation.rollout_id.clone());
                Ok::<(), TextError>(())
            },
        )
        .unwrap();
    assert_eq!(
        seen,
        (0..700)
            .map(|number| number.to_string())
            .collect::<Vec<_>>()
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For all contents, a rollout's trained tokens are its completions, and each segment is the
    /// text that a client would have sent plus the completion.
    #[test]
    fn trained_tokens_are_the_completions(
        turns in prop::collection::vec(("\\PC{0,12}", "[^<]{0,12}"), 1..5)
    ) {
        let messages: Vec<Value> = turns
            .iter()
            .flat_map(|(user, assistant)| [
                json!({"role": "user", "content": user}),
                json!({"role": "assistant", "content": assistant}),
            ])
            .collect();
        let mut tokenizer = qwen3();
        tokenizer.template = ChatTemplate::from_file(&data("qwen3_instruct_2507.jinja")).unwrap();
        tokenizer.view = MessageView::default();
        let segments = tokenizer.tokenize(&conversation(Value::from(messages))).unwrap();
        let expected: Vec<Vec<u32>> = turns
            .iter()
            .map(|(_, assistant)| {
                let mut tokens = self::tokenizer().encode(assistant).unwrap();
                tokens.push(tokenizer.format.end.id);
                tokens
            })
            .collect();
        let trained: Vec<u32> = segments
            .iter()
            .flat_map(|segment| segment.tokens.iter().zip(&segment.loss_mask))
            .filter_map(|(&token, &trained)| trained.then_some(token))
            .collect();
        prop_assert_eq!(trained, expected.concat());
        for segment in &segments {
            prop_assert_eq!(segment.validate(), Ok(()));
        }
    }

    #[test]
    fn any_file_is_tools_or_an_error(contents in "[\\[\\]{}\",:a-z0-9]{0,24}") {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tools.json");
        fs::write(&path, &contents).unwrap();
        let _ = ToolSchemas::from_file(&path);
        prop_assert!(TextTokenizer::from_file(&path).is_err());
        let _ = ChatTemplate::from_file(&path);
    }
}
