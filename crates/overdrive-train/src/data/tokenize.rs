//! Texts to a token file, on all cores.
//!
//! Worker I of N takes the pieces I, I + N, I + 2N and so on, and the writer takes from the workers
//! in turn. So tokens come in the order of the text, and few pieces are in memory at a time.

use super::text::Text;
use super::token_file::is_token_file;
use super::token_header::Token;
use super::token_writer::TokenWriter;
use crate::TrainError;
use overdrive_formats::huggingface::Tokenizer;
use std::fs::File;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::thread;

/// Pieces that a worker may be ahead of the writer.
const AHEAD: usize = 4;

/// A piece in tokens, and its bytes of the file.
type Made = Result<(Vec<Token>, u64), TrainError>;

/// The size of the work that was done.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Tokenized {
    /// Number of tokens.
    pub tokens: u64,
    /// Bytes of the texts.
    pub text_bytes: u64,
    /// Worker threads.
    pub threads: usize,
}

/// Writes a token file of these texts, one after another. A file `.jsonl` is a document a line, any
/// other file is one document. `separator` is the token behind each document. `told` hears how
/// many bytes of how many are done, and may end the work, which is then `None`.
///
/// # Errors
/// When a text cannot be read, is no UTF-8, or has a part that the tokenizer does not know. When
/// the file cannot be created or written; errors call it `shown`.
pub fn tokenize(
    texts: &[PathBuf],
    (tokenizer, separator): (&Tokenizer, Option<u32>),
    (path, shown): (&Path, &Path),
    told: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Option<Tokenized>, TrainError> {
    let texts = texts.iter().map(|path| opened(path)).collect::<Result<Vec<Text>, _>>()?;
    let text_bytes = texts.iter().map(Text::len).sum();
    let file = File::create_new(path).map_err(TrainError::io(shown, "create"))?;
    let mut told = |done| told(done, text_bytes);
    let written = write_tokens(&texts, (tokenizer, separator), (file, shown), &mut told)?;
    Ok(written.map(|(_, tokens)| Tokenized { tokens, text_bytes, threads: threads() }))
}

/// A text, which is not in tokens yet.
fn opened(path: &Path) -> Result<Text, TrainError> {
    if is_token_file(path)? {
        let (found, remedy) = ("a token file", "train on it as it is, or name its text");
        return Err(TrainError::invalid(path.display(), "text", found, remedy));
    }
    Text::open_documents(path)
}

/// The same of opened texts to an empty file, which errors call by its path: the file and the
/// number of its tokens.
pub(super) fn write_tokens(
    texts: &[Text],
    (tokenizer, separator): (&Tokenizer, Option<u32>),
    (file, path): (File, &Path),
    told: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<Option<(File, u64)>, TrainError> {
    let mut writer = TokenWriter::begin(file, path, tokenizer)?;
    let whole = tokenizer.for_long_texts();
    let by = (&whole, separator);
    let count = threads();
    let ended = thread::scope(|scope| -> Result<ControlFlow<()>, TrainError> {
        let worker = |number: usize| {
            let (give, take) = sync_channel::<Made>(AHEAD);
            scope.spawn(move || {
                for (text, piece) in pieces(texts).skip(number).step_by(count) {
                    let made = piece.and_then(|piece| in_tokens(text, &piece, by));
                    // The writer is gone after a failure.
                    if give.send(made).is_err() {
                        return;
                    }
                }
            });
            take
        };
        let workers: Vec<_> = (0..count).map(worker).collect();
        let mut done = 0;
        // The first worker without a piece is that of the first piece that there is not.
        for made in workers.iter().cycle().map_while(|worker| worker.recv().ok()) {
            let (tokens, bytes) = made?;
            writer.push(&tokens)?;
            done += bytes;
            if told(done).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    })?;
    if ended.is_break() { Ok(None) } else { writer.finish().map(Some) }
}

/// One for each core that the process may use.
fn threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

fn pieces(texts: &[Text]) -> impl Iterator<Item = (&Text, Result<Range<u64>, TrainError>)> {
    texts.iter().flat_map(|text| text.pieces().map(move |piece| (text, piece)))
}

fn in_tokens(
    text: &Text,
    piece: &Range<u64>,
    (tokenizer, separator): (&Tokenizer, Option<u32>),
) -> Made {
    let mut tokens = Vec::new();
    text.documents(piece, |part, ends| {
        tokens.extend(tokenizer.tokens(part).map_err(|error| {
            let place = format!("{}, near byte {}", text.name(), piece.start);
            let remedy = "use a tokenizer that knows every character, or clean the text";
            TrainError::invalid(place, "text that the tokenizer knows", error, remedy)
        })?);
        tokens.extend(separator.filter(|_| ends).map(|id| (id, 0)));
        Ok(())
    })?;
    Ok((tokens, piece.end - piece.start))
}
