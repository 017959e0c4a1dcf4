//! Chat templates behave as in `transformers`, and bad input of any kind is an error, not a panic.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::{Value, json};
use tree_pack::text::{ChatTemplate, Conversation, TextError, TextTokenizer, TurnFormat};

fn messages() -> Vec<Value> {
    let call = json!({"name": "f", "arguments": {"b": 1.0, "a": [true, null, 1e-7]}});
    vec![
        json!({"role": "system", "content": "Be <brief> & 'kind'."}),
        json!({"role": "user", "content": "Größe? 😀\n"}),
        json!({
            "role": "assistant", "content": null,
            "tool_calls": [{"type": "function", "function": call}],
        }),
        json!({"role": "tool", "content": "  x\ty "}),
    ]
}

fn tools() -> Value {
    json!([{"type": "function", "function": {
        "name": "f", "parameters": {"z": 1, "a": {"type": "string", "enum": ["ä", "b"]}}
    }}])
}

/// `jinja_dialect.json` contains templates and the output of Jinja2 3.1.6 with the settings of
/// `transformers`, or an error; only its existence is compared.
#[test]
fn renders_as_jinja2_does() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("jinja_dialect.json")).unwrap();
    let mut different = Vec::new();
    for case in &cases {
        let source = case["template"].as_str().unwrap();
        let rendered = ChatTemplate::from_source(source)
            .map(|template| template.with_variable("bos_token", &json!("<s>")))
            .and_then(|template| template.render(&messages(), Some(&tools()), true));
        let equal = match (&rendered, case["expected"].as_str()) {
            (Ok(rendered), Some(expected)) => rendered == expected,
            (Err(_), None) => true,
            _ => false,
        };
        if !equal {
            different.push(format!("{source}\n  {rendered:?}\n  {case}"));
        }
    }
    assert!(
        different.is_empty(),
        "{} differ:\n{}",
        different.len(),
        different.join("\n")
    );
}

#[test]
fn errors_name_file_line_and_message() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("bad.jinja");
    fs::write(&path, "a\n{{ raise_exception('only two roles') }}").unwrap();
    let error = ChatTemplate::from_file(&path)
        .unwrap()
        .render(&messages(), None, false);
    let expected = format!("{}:2: invalid operation: only two roles", path.display());
    assert_eq!(error.unwrap_err().to_string(), expected);

    fs::write(&path, "a\n\n{% for x in %}").unwrap();
    let error = ChatTemplate::from_file(&path).unwrap_err();
    assert!(
        matches!(error, TextError::Template { line: 3, .. }),
        "{error}"
    );
}

#[test]
fn time_can_be_fixed() {
    let template = ChatTemplate::from_source("{{ strftime_now('%d %B %Y, %H:%M') }}").unwrap();
    let fixed = template.clone().with_now("2024-05-15T15:00:00").unwrap();
    assert_eq!(
        fixed.render(&messages(), None, false).unwrap(),
        "15 May 2024, 15:00"
    );
    assert_ne!(
        template.render(&messages(), None, false).unwrap(),
        "15 May 2024, 15:00"
    );
    let error = template.with_now("yesterday").unwrap_err().to_string();
    assert!(error.starts_with("now is `yesterday`"), "{error}");
}

#[test]
fn generation_blocks_render_their_content() {
    let template = ChatTemplate::from_source(
        "{# {% generation %} #}{% for m in messages -%}\n {%- generation -%} [{{ m.role }}] {%- endgeneration %}\n{% endfor %}",
    )
    .unwrap();
    assert_eq!(
        template.render(&messages()[..2], None, false).unwrap(),
        "[system][user]"
    );
}

fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../data/tokenizer")
        .join(path)
}

/// `tokenizer_config.json` contains the template published with the model, and its special tokens.
#[test]
fn configuration_gives_template_and_special_tokens() {
    let config = ChatTemplate::from_file(&data("tokenizer_config.json")).unwrap();
    let file = ChatTemplate::from_file(&data("qwen3.jinja")).unwrap();
    let chat = [
        json!({"role": "user", "content": "x"}),
        json!({"role": "assistant", "content": "y"}),
    ];
    assert_eq!(
        config.render(&chat, None, true).unwrap(),
        file.render(&chat, None, true).unwrap()
    );

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokenizer_config.json");
    let named = json!({
        "bos_token": {"content": "<s>"},
        "eos_token": "</s>",
        "unk_token": null,
        "chat_template": [
            {"name": "tool_use", "template": "no"},
            {"name": "default", "template": "{{ bos_token }}{{ eos_token }}{{ unk_token }}"},
        ],
    });
    fs::write(&path, named.to_string()).unwrap();
    let template = ChatTemplate::from_file(&path).unwrap();
    assert_eq!(template.render(&chat, None, true).unwrap(), "<s></s>");

    fs::write(&path, "{}").unwrap();
    assert!(matches!(
        ChatTemplate::from_file(&path),
        Err(TextError::NoTemplate { .. })
    ));
}

#[test]
fn turn_format_is_found_in_every_bundled_template() {
    let tokenizer = TextTokenizer::from_file(&data("tokenizer.json.gz")).unwrap();
    for file in [
        "qwen3.jinja",
        "qwen3_training.jinja",
        "qwen3_instruct_2507.jinja",
        "tokenizer_config.json",
    ] {
        let template = ChatTemplate::from_file(&data(file)).unwrap();
        for template in [
            template.clone(),
            template.with_variable("enable_thinking", &json!(false)),
        ] {
            let format = TurnFormat::detect(&template, &tokenizer).unwrap();
            assert_eq!((format.start.id, format.end.id), (151644, 151645), "{file}");
            assert_eq!(format.assistant_header, "assistant\n", "{file}");
        }
    }
}

/// Formats of other model families, with tokens that this tokenizer has.
#[test]
fn turn_format_of_other_templates() {
    let tokenizer = TextTokenizer::from_file(&data("tokenizer.json.gz")).unwrap();
    let detect = |source: &str| {
        let template = ChatTemplate::from_source(source).unwrap();
        TurnFormat::detect(&template, &tokenizer)
    };
    // A header that ends with a special token.
    let headers = detect(
        "{% for m in messages %}<|box_start|>{{ m.role }}<|box_end|>\n\n{{ m.content }}<|quad_end|>{% endfor %}\
         {% if add_generation_prompt %}<|box_start|>assistant<|box_end|>\n\n<think>\n{% endif %}",
    )
    .unwrap();
    assert_eq!(headers.assistant_header, "assistant<|box_end|>\n\n");
    assert_eq!(
        (headers.start.text.as_str(), headers.end.text.as_str()),
        ("<|box_start|>", "<|quad_end|>")
    );
    // A token for each role, and reasoning that begins in the prompt.
    let roles = detect(
        "{% for m in messages %}{{ {'user': '<|box_start|>', 'assistant': '<|quad_start|>'}[m.role] }}{{ m.content }}\
         {{ '<|endoftext|>' if m.role == 'assistant' }}{% endfor %}\
         {{ '<|quad_start|><think>\\n' if add_generation_prompt }}",
    )
    .unwrap();
    assert_eq!(
        (roles.start.text.as_str(), roles.assistant_header.as_str()),
        ("<|quad_start|>", "")
    );

    for (source, problem) in [
        (
            "{% for m in messages %}{{ m.content }}{% endfor %}",
            "appends nothing",
        ),
        (
            "{{ messages }}{{ 'A:' if add_generation_prompt }}",
            "does not begin with an added token",
        ),
        (
            "{{ '<think>' if add_generation_prompt }}",
            "does not render the content",
        ),
        (
            "{{ messages }}{{ '<think>' if add_generation_prompt }}",
            "no added token of the tokenizer follows",
        ),
    ] {
        let error = detect(source).unwrap_err();
        assert!(matches!(error, TextError::TurnFormat { .. }), "{error}");
        assert!(error.to_string().contains(problem), "{error}");
    }
}

fn line_error(line: &str) -> String {
    Conversation::from_json(Path::new("runs.jsonl"), 7, line.as_bytes())
        .unwrap_err()
        .to_string()
}

#[test]
fn conversation_errors_name_file_line_and_field() {
    assert_eq!(
        line_error(r#"{"task_id":"a","rollout_id":null,"messages":[]}"#),
        "runs.jsonl:7: rollout_id: got null, expected a string or an integer"
    );
    assert_eq!(
        line_error(
            r#"{"task_id":"a","rollout_id":3,"messages":[{"role":"user"},{"content":"x"}]}"#
        ),
        "runs.jsonl:7: messages[1].role: got nothing, expected a string such as \"user\""
    );
    assert_eq!(
        line_error(r#"{"task_id":"a","rollout_id":3,"messages":[{"role":"user"}],"tools":{}}"#),
        "runs.jsonl:7: tools: got an object, expected a list of tool schemas or null"
    );
    assert_eq!(
        line_error(r#"{"task_id":"a","rollo"#),
        "runs.jsonl:7:21: EOF while parsing a string"
    );
}

/// JSON that may be a conversation.
fn json_values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z<|>_{%}\\PC]{0,12}".prop_map(Value::from),
        prop_oneof!["user", "assistant", "tool", "system"].prop_map(Value::from),
    ];
    let keys = prop_oneof![
        Just("task_id"),
        Just("rollout_id"),
        Just("messages"),
        Just("role"),
        Just("content"),
        Just("tools"),
        Just("reward"),
        Just("weight"),
        Just("tool_calls"),
        Just("reasoning_content"),
    ];
    leaf.prop_recursive(5, 48, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((keys.clone(), inner), 0..7).prop_map(|entries| {
                Value::Object(
                    entries
                        .into_iter()
                        .map(|(key, value)| (key.to_owned(), value))
                        .collect(),
                )
            }),
        ]
    })
}

proptest! {
    #[test]
    fn any_bytes_are_a_conversation_or_an_error(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let _ = Conversation::from_json(Path::new("x"), 1, &bytes);
    }

    #[test]
    fn any_json_is_a_conversation_or_an_error(value in json_values()) {
        let text = value.to_string();
        if let Ok(conversation) = Conversation::from_json(Path::new("x"), 1, text.as_bytes()) {
            prop_assert!(!conversation.messages.is_empty());
            prop_assert!(conversation.messages.iter().all(|message| message["role"].is_string()));
        }
    }

    /// A real template renders messages of any shape to text or returns an error.
    #[test]
    fn any_messages_render_or_fail(
        chat in prop::collection::vec(json_values(), 0..4),
        tools in json_values(),
    ) {
        let template = ChatTemplate::from_file(&data("qwen3.jinja")).unwrap();
        let _ = template.render(&chat, Some(&tools), true);
    }

    #[test]
    fn any_text_is_a_template_or_an_error(
        source in prop::collection::vec(prop_oneof![
            "[ -~]{0,6}",
            prop::sample::select(vec![
                "{%", "%}", "{{", "}}", "{#", "#}", "{%-", "-%}", "generation", "endgeneration", "for",
                "in", "endfor", "if", "endif", "messages", "[::-1]", "| tojson", "(", ")", "loop.index",
                "namespace(", "set", "strftime_now('%", "raise_exception('", "'", "é", ".split('",
                "macro", "endmacro", "range(9)",
            ]).prop_map(str::to_owned),
        ], 0..14)
    ) {
        if let Ok(template) = ChatTemplate::from_source(&source.join(" ")) {
            let _ = template.render(&messages(), Some(&tools()), true);
        }
    }
}
