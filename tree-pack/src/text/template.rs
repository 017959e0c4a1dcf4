//! Chat templates in the Jinja dialect of Hugging Face's `apply_chat_template`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use jiff::Zoned;
use jiff::civil::DateTime;
use jiff::fmt::strtime;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, Error, ErrorKind, Value};

use super::error::TextError;
use super::python_json::{JsonStyle, dumps, python_float};

/// Keys of `tokenizer_config.json` that templates may use as variables.
const SPECIAL_TOKENS: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

const TEMPLATE_NAME: &str = "chat_template";

/// A compiled chat template and the variables of every rendering.
///
/// The dialect: `trim_blocks`, `lstrip_blocks`, `break` and `continue`, Python's methods of
/// strings, lists and dicts, `namespace`, negative slice steps, `raise_exception(message)`,
/// `strftime_now(format)`, `tojson` as `json.dumps(.., ensure_ascii=False)` prints it, and `{%
/// generation %}` blocks (which render their content; the loss mask does not depend on them).
///
/// ```
/// # use tree_pack::text::ChatTemplate;
/// let template = ChatTemplate::from_source(
///     "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}\n{% endfor %}",
/// )?;
/// let messages = serde_json::json!([{"role": "user", "content": " hello "}]);
/// let messages = messages.as_array().unwrap();
/// assert_eq!(template.render(messages, None, false)?, "<user>hello\n");
/// # Ok::<(), tree_pack::text::TextError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    variables: BTreeMap<String, Value>,
    origin: String,
}

impl ChatTemplate {
    /// Compiles the text of a template.
    pub fn from_source(source: &str) -> Result<Self, TextError> {
        Self::compile(source, "chat template")
    }

    /// Reads a template from a Jinja file or, if the name ends in `.json`, from the
    /// `chat_template` of a `tokenizer_config.json` together with its special tokens.
    ///
    /// If the configuration contains several named templates, the one named `default` is used.
    pub fn from_file(path: &Path) -> Result<Self, TextError> {
        let text = fs::read_to_string(path).map_err(|error| TextError::read(path, error))?;
        let origin = path.display().to_string();
        if path
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            let config = parse_config(path, &text)?;
            let source = template_of_config(&config).ok_or_else(|| TextError::NoTemplate {
                path: path.to_owned(),
            })?;
            Ok(Self::compile(source, &origin)?.with_config(&config))
        } else {
            Self::compile(&text, &origin)
        }
    }

    /// Takes the special tokens (`bos_token`, `eos_token`, ...) from a `tokenizer_config.json`.
    pub fn with_special_tokens(self, path: &Path) -> Result<Self, TextError> {
        let text = fs::read_to_string(path).map_err(|error| TextError::read(path, error))?;
        Ok(self.with_config(&parse_config(path, &text)?))
    }

    /// Sets a variable of the template, such as `enable_thinking`.
    pub fn with_variable(mut self, name: impl Into<String>, value: &serde_json::Value) -> Self {
        self.variables
            .insert(name.into(), Value::from(Serde(value)));
        self
    }

    /// Sets the local time that `strftime_now` formats (`2025-01-31` or `2025-01-31T12:00:00`), so
    /// that a recorded run is rendered as on the day of recording.
    pub fn with_now(mut self, now: &str) -> Result<Self, TextError> {
        let now: DateTime = now
            .parse()
            .map_err(|error: jiff::Error| TextError::Argument {
                name: "now",
                value: now.to_owned(),
                problem: error.to_string(),
            })?;
        self.environment
            .add_function("strftime_now", move |format: &str| {
                strtime::format(format, now).map_err(invalid_format)
            });
        Ok(self)
    }

    /// Renders a conversation.
    ///
    /// `tools` is the list of tool schemas; `add_generation_prompt` appends the header that opens
    /// an assistant turn.
    pub fn render(
        &self,
        messages: &[serde_json::Value],
        tools: Option<&serde_json::Value>,
        add_generation_prompt: bool,
    ) -> Result<String, TextError> {
        let messages: Vec<Value> = messages
            .iter()
            .map(|message| Value::from(Serde(message)))
            .collect();
        self.render_values(&messages, &Value::from(Serde(tools)), add_generation_prompt)
    }

    /// File name, or its substitute in errors.
    pub(crate) fn origin(&self) -> &str {
        &self.origin
    }

    /// As [`Self::render`], with values that are already converted, so that a conversation is
    /// converted only once.
    pub(crate) fn render_values(
        &self,
        messages: &[Value],
        tools: &Value,
        add_generation_prompt: bool,
    ) -> Result<String, TextError> {
        let mut context: BTreeMap<&str, Value> = self
            .variables
            .iter()
            .map(|(name, value)| (name.as_str(), value.clone()))
            .collect();
        context.insert("messages", messages.iter().cloned().collect());
        context.insert("tools", tools.clone());
        context
            .entry("documents")
            .or_insert_with(|| Value::from(()));
        context.insert("add_generation_prompt", add_generation_prompt.into());
        self.environment
            .get_template(TEMPLATE_NAME)
            .and_then(|template| template.render(context))
            .map_err(|error| TextError::template(&self.origin, &error))
    }

    fn compile(source: &str, origin: &str) -> Result<Self, TextError> {
        let mut environment = Environment::new();
        environment.set_syntax(
            SyntaxConfig::builder()
                .trim_blocks(true)
                .lstrip_blocks(true)
                .build()
                .map_err(|error| TextError::template(origin, &error))?,
        );
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_formatter(|out, state, value| match f64::try_from(value.clone()) {
            Ok(float) if value.is_number() && !value.is_integer() => {
                Ok(out.write_str(&python_float(float))?)
            }
            _ => minijinja::escape_formatter(out, state, value),
        });
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", to_json);
        environment.add_function(
            "raise_exception",
            |message: String| -> Result<Value, Error> {
                Err(Error::new(ErrorKind::InvalidOperation, message))
            },
        );
        environment.add_function("strftime_now", |format: &str| {
            strtime::format(format, &Zoned::now()).map_err(invalid_format)
        });
        environment
            .add_template_owned(TEMPLATE_NAME, without_generation_tags(source))
            .map_err(|error| TextError::template(origin, &error))?;
        Ok(Self {
            environment,
            variables: BTreeMap::new(),
            origin: origin.to_owned(),
        })
    }

    fn with_config(mut self, config: &serde_json::Value) -> Self {
        for name in SPECIAL_TOKENS {
            // A token is a text, or an `AddedToken` object that contains the text.
            let token = match &config[name] {
                serde_json::Value::Object(token) => token.get("content"),
                token => Some(token),
            };
            if let Some(text) = token.and_then(|token| token.as_str()) {
                self.variables.insert(name.to_owned(), text.into());
            }
        }
        self
    }
}

fn parse_config(path: &Path, text: &str) -> Result<serde_json::Value, TextError> {
    serde_json::from_str(text).map_err(|error| TextError::Json {
        path: path.to_owned(),
        problem: error.to_string(),
    })
}

fn template_of_config(config: &serde_json::Value) -> Option<&str> {
    match &config["chat_template"] {
        serde_json::Value::Array(named) => named
            .iter()
            .find(|template| template["name"] == "default")
            .and_then(|template| template["template"].as_str()),
        template => template.as_str(),
    }
}

fn invalid_format(error: jiff::Error) -> Error {
    Error::new(
        ErrorKind::InvalidOperation,
        format!("strftime_now: {error}"),
    )
}

/// `tojson(indent, ensure_ascii, separators, sort_keys)` with the defaults of `transformers`.
fn to_json(value: &Value, indent: Option<Value>, arguments: Kwargs) -> Result<Value, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => arguments.get::<Option<Value>>("indent")?,
    };
    let indent = match indent.filter(|indent| !indent.is_none()) {
        None => None,
        Some(indent) => Some(match indent.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::from(u8::try_from(indent)?)),
        }),
    };
    let mut style = JsonStyle::new(indent);
    if let Some(flag) = arguments.get::<Option<bool>>("ensure_ascii")? {
        style.ensure_ascii = flag;
    }
    if let Some(flag) = arguments.get::<Option<bool>>("sort_keys")? {
        style.sort_keys = flag;
    }
    if let Some(separators) = arguments.get::<Option<Vec<String>>>("separators")? {
        let [item, key] = <[String; 2]>::try_from(separators).map_err(|_| {
            Error::new(
                ErrorKind::InvalidOperation,
                "tojson: separators must be a pair",
            )
        })?;
        style.item_separator = item;
        style.key_separator = key;
    }
    arguments.assert_all_used()?;
    if value.is_undefined() {
        return Err(Error::new(
            ErrorKind::UndefinedError,
            "tojson of an undefined value",
        ));
    }
    let json = serde_json::to_value(value).map_err(|error| {
        Error::new(ErrorKind::BadSerialization, "tojson: not serializable").with_source(error)
    })?;
    Ok(Value::from_safe_string(dumps(&json, &style)))
}

/// Replaces the tags `generation` and `endgeneration`, an extension of `transformers`, by an `if`
/// that is always true; their whitespace control is kept.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let (before, tag) = rest.split_at(open);
        out.push_str(before);
        let Some(close) = tag.find("%}") else {
            return out + tag;
        };
        let (tag, after) = tag.split_at(close + 2);
        let name = tag[2..close].trim_matches(|c: char| c.is_whitespace() || "+-".contains(c));
        match name {
            "generation" => out.push_str(&tag.replacen(name, "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen(name, "endif", 1)),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out + rest
}
