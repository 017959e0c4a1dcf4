//! Runs the program `tree-pack` as a user does.

mod pack;

use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn data(path: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../data")
        .join(path);
    path.to_str().unwrap().to_owned()
}

fn tree_pack(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tree-pack"));
    command
        .args(arguments)
        .env("NO_COLOR", "1")
        .env("COLUMNS", "200");
    command
}

fn run(arguments: &[&str]) -> Output {
    tree_pack(arguments).output().unwrap()
}

/// Standard output of a run that succeeds.
fn succeed(arguments: &[&str]) -> String {
    let output = run(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// The message of a run that ends with exit code 1 and prints nothing.
fn fail(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Two tasks: a fork with a strict prefix, a duplicate and a single-token branch; and one chain.
const SMALL: &str = r#"
{"task_id":"fork","rollout_id":"a","reward":1,"tokens":[1,2,3,4,5,6,7,8],"loss_mask":[0,0,0,0,1,1,0,1]}
{"task_id":"fork","rollout_id":"b","reward":0.5,"tokens":[1,2,3,4,5,9],"loss_mask":[0,0,0,0,1,1]}
{"task_id":"fork","rollout_id":"b2","tokens":[1,2,3,4,5,9],"loss_mask":[0,0,0,0,0,1]}
{"task_id":"fork","rollout_id":"c","tokens":[1,2,3,4],"loss_mask":[0,0,0,1]}
{"task_id":"fork","rollout_id":"d","segment":1,"segments":2,"tokens":[1,2,10,11,12,13],"loss_mask":[0,0,1,1,0,0]}
{"task_id":"chain","rollout_id":"a","tokens":[1,2,3],"loss_mask":[0,1,1]}
"#;

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, contents: &str) -> String {
        let path = self.path(name);
        fs::write(&path, contents).unwrap();
        path
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(self.0.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

#[test]
fn stats_equal_the_recorded_ones() {
    let recorded: Vec<Value> =
        serde_json::from_str(&fs::read_to_string(data("tokens/stats.json")).unwrap()).unwrap();
    assert_eq!(recorded.len(), 6);
    for file in recorded {
        let name = format!("tokens/{}.jsonl.gz", file["name"].as_str().unwrap());
        let output = succeed(&["stats", &data(&name), "--format", "json"]);
        let stats: Value = serde_json::from_str(&output).unwrap();
        for (ours, recorded) in [
            ("tokens", "tokens"),
            ("unique_tokens", "unique"),
            ("trained_tokens", "trained_tokens"),
            ("unique_trained_tokens", "unique_trained"),
            ("nodes", "nodes"),
            ("leaves", "leaves"),
            ("branch_nodes", "branch_nodes"),
            ("max_out_degree", "max_out_degree"),
            ("max_depth_nodes", "max_depth_nodes"),
            ("longest_path_tokens", "longest_path_tokens"),
            ("largest_tree_tokens", "largest_tree_unique"),
            ("mask_conflicts", "mask_conflicts"),
        ] {
            assert_eq!(stats["total"][ours], file[recorded], "{name}: {ours}");
        }
        let tasks = stats["tasks"].as_array().unwrap();
        assert_eq!(
            tasks.len() as u64,
            file["tasks"].as_u64().unwrap(),
            "{name}"
        );
        let sum: u64 = tasks
            .iter()
            .map(|task| task["unique_tokens"].as_u64().unwrap())
            .sum();
        assert_eq!(sum, file["unique"].as_u64().unwrap(), "{name}");
    }
}

#[test]
fn tables_and_trees_in_the_terminal() {
    let folder = Folder::new();
    let small = folder.write("small.jsonl", SMALL);
    insta::assert_snapshot!("stats", succeed(&["stats", &small, "--drift"]));
    insta::assert_snapshot!("show", succeed(&["show", &small, "--task", "fork"]));
    insta::assert_snapshot!(
        "show_few_nodes",
        succeed(&[
            "show",
            &small,
            "--task",
            "fork",
            "--max-nodes",
            "2",
            "--bar-width",
            "10"
        ])
    );
}

/// Numbers that follow `attribute="` on the elements that begin with `element`.
fn attributes(svg: &str, element: &str, attribute: &str) -> Vec<f64> {
    let start = format!("<{element} ");
    let elements = svg.split(start.as_str()).skip(1);
    let number = |element: &str| {
        let (_, value) = element.split_once(&format!(" {attribute}=\""))?;
        value.split_once('"')?.0.parse().ok()
    };
    elements
        .filter_map(|rest| number(&format!(" {}", rest.split_once('>').unwrap().0)))
        .collect()
}

#[test]
fn svg_bars_are_as_long_as_their_tokens() {
    let folder = Folder::new();
    let small = folder.write("small.jsonl", SMALL);
    let path = folder.path("tree.svg");
    succeed(&["show", &small, "--task", "fork", "--svg", &path]);
    let svg = fs::read_to_string(&path).unwrap();
    // Each node is a group that begins with its title and its bar.
    let bars: Vec<f64> = svg
        .split("<g>")
        .skip(1)
        .map(|group| attributes(group, "rect", "width")[0])
        .collect();
    let tokens = [2.0, 2.0, 1.0, 3.0, 1.0, 4.0];
    assert_eq!(bars.len(), tokens.len());
    for (bar, tokens) in bars.iter().zip(tokens) {
        // Widths are printed with two decimals.
        assert!(
            (bar / bars[0] - tokens / tokens_of_root()).abs() < 1e-3,
            "{bars:?}"
        );
    }
    assert!(
        svg.contains(">a, reward 1</text>") && svg.contains(">b, reward 0.5 and 1 more</text>")
    );
    assert_eq!(
        svg.matches("<circle").count(),
        1,
        "one trajectory ends at an inner node"
    );
    assert_eq!(svg.matches("<svg").count(), svg.matches("</svg>").count());

    fn tokens_of_root() -> f64 {
        2.0
    }
}

#[test]
fn plots_are_png_or_svg() {
    let folder = Folder::new();
    let file = data("tokens/toolbench_dfsdt.jsonl.gz");
    let png = folder.path("active.png");
    succeed(&["stats", &file, "--plot", &png]);
    let bytes = fs::read(&png).unwrap();
    assert!(bytes.starts_with(b"\x89PNG\r\n\x1a\n"));
    // The header contains width and height. A blank picture would compress to far fewer bytes.
    assert_eq!(bytes[16..24], [0, 0, 0x04, 0x4c, 0, 0, 0x02, 0x30]);
    assert!(bytes.len() > 10_000);
    let svg = folder.path("active.svg");
    succeed(&["stats", &file, "--plot", &svg]);
    let text = fs::read_to_string(&svg).unwrap();
    assert!(text.contains("area 68,870 tokens") && text.contains("POR 81.3 %"));
    let message = fail(&["stats", &file, "--plot", &folder.path("active.pdf")]);
    assert!(
        message.contains("a plot is a .png or .svg file"),
        "{message}"
    );
    assert_eq!(folder.names(), ["active.png", "active.svg"]);
}

#[test]
fn errors_name_what_is_wrong() {
    let folder = Folder::new();
    let small = folder.write("small.jsonl", SMALL);
    let bad = folder.write("bad.jsonl", &format!("{}{{\"task_id\":1}}\n", &SMALL[1..]));
    let message = fail(&["stats", &bad]);
    assert!(
        message.starts_with("error: ") && message.contains("bad.jsonl:7: rollout_id"),
        "{message}"
    );
    let message = fail(&["stats", &folder.path("missing.jsonl")]);
    assert!(
        message.contains("missing.jsonl: cannot be opened"),
        "{message}"
    );
    let message = fail(&["stats", &folder.write("empty.jsonl", "\n")]);
    assert!(message.contains("no trajectories in"), "{message}");
    let message = fail(&["show", &small]);
    assert!(
        message.contains("choose one of 2 tasks with --task: `fork`, `chain`"),
        "{message}"
    );
    let message = fail(&["show", &small, "--task", "other"]);
    assert!(
        message.contains("no trajectory of task `other`"),
        "{message}"
    );
    let message = fail(&["stats", &small, "--vocab-size", "5"]);
    assert!(
        message.contains("small.jsonl:2: tokens[4]: got 5"),
        "{message}"
    );
    for usage in [
        vec!["stats"],
        vec!["unknown"],
        vec!["pack", &small, "--budget", "x"],
    ] {
        assert_eq!(run(&usage).status.code(), Some(2), "{usage:?}");
    }
}

#[test]
fn reads_standard_input_and_survives_a_closed_pipe() {
    let mut child = tree_pack(&["stats", "-", "--format", "json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(SMALL.as_bytes())
        .unwrap();
    let stats: Value = serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(stats["total"]["trajectories"], 6);

    let file = data("tokens/tot_game24_bfs.jsonl.gz");
    let mut child = tree_pack(&["stats", &file, "--drift", "--format", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The output is far larger than the buffer of a pipe.
    let mut start = [0; 1];
    child.stdout.take().unwrap().read_exact(&mut start).unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{errors}");
}

mod text {
    use std::path::Path;

    use flate2::read::MultiGzDecoder;
    use serde_json::json;

    use super::*;

    fn unpacked(path: impl AsRef<Path>) -> String {
        let mut text = String::new();
        MultiGzDecoder::new(fs::File::open(path).unwrap())
            .read_to_string(&mut text)
            .unwrap();
        text
    }

    /// Byte for byte the recorded file.
    #[test]
    fn tokenize_writes_the_recorded_file() {
        let folder = Folder::new();
        let output = folder.path("tokens.jsonl.gz");
        succeed(&[
            "tokenize",
            &data("trajectories/toolbench_dfsdt.jsonl.gz"),
            "--tokenizer",
            &data("tokenizer"),
            "--template",
            &data("tokenizer/qwen3_instruct_2507.jinja"),
            "--tools",
            &data("trajectories/toolbench_dfsdt.tools.json"),
            "--output",
            &output,
        ]);
        let (ours, recorded) = (
            unpacked(&output),
            unpacked(data("tokens/toolbench_dfsdt.jsonl.gz")),
        );
        assert_eq!(ours.lines().count(), 131);
        for (number, (ours, recorded)) in ours.lines().zip(recorded.lines()).enumerate() {
            assert!(ours == recorded, "line {}", number + 1);
        }
        assert_eq!(ours.len(), recorded.len());
    }

    #[test]
    fn tokenize_takes_fields_and_variables() {
        let folder = Folder::new();
        let line = json!({"task_id": "t", "rollout_id": "r", "weight": 2.0, "advantage": -0.5, "messages": [
            {"role": "user", "content": "2+2?"},
            {"role": "assistant", "action": "4", "thought": "easy", "content": "unused"},
        ]});
        let file = folder.write("chat.jsonl", &line.to_string());
        let (output, tokenizer) = (folder.path("out.jsonl"), data("tokenizer"));
        let common = ["tokenize", &file, "-o", &output, "--tokenizer", &tokenizer];
        let text_of = |more: &[&str]| {
            succeed(&[&common[..], more].concat());
            let line: Value = serde_json::from_str(&fs::read_to_string(&output).unwrap()).unwrap();
            assert_eq!(
                (&line["weight"], &line["advantage"]),
                (&json!(2.0), &json!(-0.5))
            );
            let tokens: Vec<u32> = serde_json::from_value(line["tokens"].clone()).unwrap();
            let tokenizer = data("tokenizer/tokenizer.json.gz");
            let tokenizer =
                tree_pack::text::TextTokenizer::from_file(Path::new(&tokenizer)).unwrap();
            tokenizer.decode(&tokens).unwrap()
        };
        let start = "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n";
        assert_eq!(
            text_of(&["--content-field", "action", "--reasoning-field", "thought"]),
            format!("{start}<think>\neasy\n</think>\n\n4<|im_end|>")
        );
        assert_eq!(
            text_of(&[
                "--content-field",
                "action",
                "--no-reasoning",
                "--set",
                "enable_thinking=false"
            ]),
            format!("{start}<think>\n\n</think>\n\n4<|im_end|>")
        );

        fs::remove_file(&output).unwrap();
        let message = fail(&[&common[..], &["--content-field", "answer"]].concat());
        assert!(
            message.contains("chat.jsonl:1: messages[1].answer: got nothing"),
            "{message}"
        );
        let message = fail(&[&common[..], &["--template", &folder.path("no.jinja")]].concat());
        assert!(message.contains("no.jinja: cannot be read"), "{message}");
        assert_eq!(
            folder.names(),
            ["chat.jsonl"],
            "nothing is left of a run that fails"
        );
    }
}
