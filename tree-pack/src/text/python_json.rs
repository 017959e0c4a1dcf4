//! JSON text as Python's `json.dumps` writes it: the output of `tojson` in chat templates.

use serde_json::Value;

/// The arguments of `json.dumps` that templates use.
#[derive(Clone, Debug)]
pub(crate) struct JsonStyle {
    pub ensure_ascii: bool,
    /// Indentation of one level; `None` writes everything on one line.
    pub indent: Option<String>,
    pub item_separator: String,
    pub key_separator: String,
    pub sort_keys: bool,
}

impl JsonStyle {
    /// Python's separators: without indentation items are separated by `", "`, with it by `","`.
    pub(crate) fn new(indent: Option<String>) -> Self {
        Self {
            ensure_ascii: false,
            item_separator: if indent.is_some() { "," } else { ", " }.into(),
            key_separator: ": ".into(),
            indent,
            sort_keys: false,
        }
    }
}

/// Writes `value`; keys keep their order unless `sort_keys` is set.
pub(crate) fn dumps(value: &Value, style: &JsonStyle) -> String {
    let mut writer = Writer {
        out: String::new(),
        style,
    };
    writer.value(value, 0);
    writer.out
}

struct Writer<'a> {
    out: String,
    style: &'a JsonStyle,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) {
        match value {
            Value::Null => self.out.push_str("null"),
            Value::Bool(flag) => self.out.push_str(if *flag { "true" } else { "false" }),
            Value::Number(number) => match number.as_f64() {
                Some(float) if number.is_f64() => self.out.push_str(&python_float(float)),
                _ => self.out.push_str(&number.to_string()),
            },
            Value::String(text) => self.string(text),
            Value::Array(items) => {
                self.out.push('[');
                for (index, item) in items.iter().enumerate() {
                    self.start_item(index == 0, depth + 1);
                    self.value(item, depth + 1);
                }
                self.close(items.is_empty(), depth, ']');
            }
            Value::Object(map) => {
                let mut entries: Vec<_> = map.iter().collect();
                if self.style.sort_keys {
                    entries.sort_by(|a, b| a.0.cmp(b.0));
                }
                self.out.push('{');
                for (index, (key, item)) in entries.iter().enumerate() {
                    self.start_item(index == 0, depth + 1);
                    self.string(key);
                    self.out.push_str(&self.style.key_separator);
                    self.value(item, depth + 1);
                }
                self.close(entries.is_empty(), depth, '}');
            }
        }
    }

    fn start_item(&mut self, first: bool, depth: usize) {
        if !first {
            self.out.push_str(&self.style.item_separator);
        }
        self.new_line(depth);
    }

    fn close(&mut self, empty: bool, depth: usize, bracket: char) {
        if !empty {
            self.new_line(depth);
        }
        self.out.push(bracket);
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.style.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for character in text.chars() {
            match character {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                control if control < ' ' => self.escape(control as u16),
                wide if self.style.ensure_ascii && wide > '~' => {
                    for unit in wide.encode_utf16(&mut [0; 2]) {
                        self.escape(*unit);
                    }
                }
                plain => self.out.push(plain),
            }
        }
        self.out.push('"');
    }

    fn escape(&mut self, unit: u16) {
        self.out.push_str(&format!("\\u{unit:04x}"));
    }
}

/// `repr` of a finite Python float: the shortest digits that parse to the same value, in positional
/// notation for exponents from -4 to 15.
pub(crate) fn python_float(value: f64) -> String {
    let scientific = format!("{value:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    match exponent.parse::<i32>() {
        Ok(-4..16) | Err(_) => {
            let mut text = value.to_string();
            if !text.contains('.') {
                text.push_str(".0");
            }
            text
        }
        Ok(exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{mantissa}e{sign}{:02}", exponent.abs())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Left: JSON input; right: the output of `json.dumps(.., ensure_ascii=False)` in CPython 3.12.
    #[test]
    fn equals_json_dumps() {
        for (input, expected) in [
            (
                r#"{"b":1,"a":[1,2],"c":{}}"#,
                r#"{"b": 1, "a": [1, 2], "c": {}}"#,
            ),
            (
                r#"[1.0,1e-5,1e16,123456789012345680.0,0.0001]"#,
                "[1.0, 1e-05, 1e+16, 1.2345678901234568e+17, 0.0001]",
            ),
            (
                r#"[-0.0,1.5e300,9999999999999998.0,5e-324]"#,
                "[-0.0, 1.5e+300, 9999999999999998.0, 5e-324]",
            ),
            (
                r#""é <a> & 'b' \u0001 \u007f \"q\" \\ \/""#,
                "\"é <a> & 'b' \\u0001 \u{7f} \\\"q\\\" \\\\ /\"",
            ),
            ("[null,true,false,[],-3]", "[null, true, false, [], -3]"),
        ] {
            let value: Value = serde_json::from_str(input).unwrap();
            assert_eq!(dumps(&value, &JsonStyle::new(None)), expected);
        }
    }

    #[test]
    fn indents_sorts_and_escapes_on_request() {
        let value: Value = serde_json::from_str(r#"{"b":[1,{"x":"é😀"}],"a":[]}"#).unwrap();
        let mut style = JsonStyle::new(Some("  ".into()));
        style.sort_keys = true;
        style.ensure_ascii = true;
        assert_eq!(
            dumps(&value, &style),
            "{\n  \"a\": [],\n  \"b\": [\n    1,\n    {\n      \"x\": \"\\u00e9\\ud83d\\ude00\"\n    }\n  ]\n}"
        );
    }
}
