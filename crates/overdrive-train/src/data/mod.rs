//! The data to learn from: labelled samples and text, split by a fixed rule, handed out as tensors.
//!
//! A [`Split`] is a part of a data set and gives batches of it by sample number. It holds bytes in
//! the form that they came in, or reads them where they lie. Invariant: which sample is in which
//! part depends on the data alone.

mod batch;
mod column_range;
mod csv_file;
mod idx;
mod labelled;
mod npz_file;
mod open;
mod parts;
mod reading;
mod shifted;
mod subset;
mod targets;
mod text;
mod texts;
mod token_file;
mod token_header;
mod token_writer;
mod tokenize;
mod tokens;
mod vendored;
mod windows;

pub use batch::{Batch, Split};
pub(crate) use labelled::hex;
pub use labelled::{Labelled, Samples};
pub use open::{Dataset, open, open_as};
pub use parts::{FOLDS, Parts};
pub use reading::Reading;
pub use shifted::Shifted;
pub use subset::Subset;
pub use targets::{Target, Targets};
pub use texts::{Encoded, Meaning, Rows, Texts};
pub use token_file::is_token_file;
pub use token_header::Token;
pub use tokenize::{Tokenized, tokenize};
pub use tokens::Tokens;
pub use vendored::{books, digits};
pub use windows::Windows;
