//! Arguments of `tokens`.

use super::shared::Replacing;
use clap::Args;
use std::path::PathBuf;

/// Arguments of `tokens`.
#[derive(Args, Debug)]
pub(crate) struct Tokens {
    /// Files of UTF-8 text, in this order. A .jsonl file has an object a line, whose `text` is a
    /// document; any other file is one document
    #[arg(required = true, value_name = "TEXT")]
    pub texts: Vec<PathBuf>,
    /// A tokenizer.json, or the folder of a model that has one
    #[arg(long, value_name = "FILE|DIR")]
    pub tokenizer: PathBuf,
    /// The token behind each document, such as `<|endoftext|>` [default: none]
    #[arg(long, value_name = "TOKEN")]
    pub separator: Option<String>,
    /// The token file to write
    #[arg(short, long, value_name = "FILE")]
    pub out: PathBuf,
    /// Which existing outputs may be replaced.
    #[command(flatten)]
    pub replacing: Replacing,
}
