//! A tokenizer read from Hugging Face's `tokenizer.json`.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use tokenizers::Tokenizer;

use super::error::TextError;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// A tokenizer read from `tokenizer.json`, which may be gzipped.
///
/// Special tokens that a text spells out become special tokens, as in `transformers`; none are
/// added.
#[derive(Clone, Debug)]
pub struct TextTokenizer {
    tokenizer: Tokenizer,
    path: PathBuf,
}

impl TextTokenizer {
    /// Reads a `tokenizer.json` or `tokenizer.json.gz`.
    pub fn from_file(path: &Path) -> Result<Self, TextError> {
        let mut bytes = fs::read(path).map_err(|error| TextError::read(path, error))?;
        if bytes.starts_with(&GZIP_MAGIC) {
            let mut unpacked = Vec::new();
            MultiGzDecoder::new(bytes.as_slice())
                .read_to_end(&mut unpacked)
                .map_err(|error| TextError::read(path, error))?;
            bytes = unpacked;
        }
        let problem = |error: tokenizers::Error| TextError::Tokenizer {
            path: path.to_owned(),
            problem: format!("not a tokenizer.json: {error}"),
        };
        let mut tokenizer = Tokenizer::from_bytes(bytes).map_err(problem)?;
        // Some files contain truncation and padding settings of an inference server. Trajectories
        // use neither.
        tokenizer.with_truncation(None).map_err(problem)?;
        tokenizer.with_padding(None);
        Ok(Self {
            tokenizer,
            path: path.to_owned(),
        })
    }

    /// Token ids of one piece of text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        match self.tokenizer.encode_fast(text, false) {
            Ok(encoding) => Ok(encoding.get_ids().to_vec()),
            Err(error) => Err(self.error(format!("cannot encode {text:?}: {error}"))),
        }
    }

    /// The text of token ids, special tokens included.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, TextError> {
        self.tokenizer
            .decode(tokens, false)
            .map_err(|error| self.error(format!("cannot decode {tokens:?}: {error}")))
    }

    /// Id of a token given by its text.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    /// The longest token added to the vocabulary (special or not) that `text` starts with.
    pub(super) fn leading_added_token(&self, text: &str) -> Option<String> {
        self.tokenizer
            .get_added_tokens_decoder()
            .into_values()
            .map(|token| token.content)
            .filter(|content| !content.is_empty() && text.starts_with(content.as_str()))
            .max_by_key(String::len)
    }

    fn error(&self, problem: String) -> TextError {
        TextError::Tokenizer {
            path: self.path.clone(),
            problem,
        }
    }
}
