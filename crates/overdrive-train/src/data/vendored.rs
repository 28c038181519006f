//! The data that comes with the program; `data/README.md` has licences, sources and hashes.

use super::{Reading, Samples, Tokens, csv_file};
use flate2::read::GzDecoder;
use std::io::Read;
use std::sync::Arc;

const DIGITS: &[u8] = include_bytes!("../../data/digits.csv.gz");
const BOOKS: [&[u8]; 2] = [
    include_bytes!("../../data/emma.txt.gz"),
    include_bytes!("../../data/pride-and-prejudice.txt.gz"),
];

fn inflate(bytes: &[u8], into: &mut Vec<u8>) {
    GzDecoder::new(bytes).read_to_end(into).expect("the data in the program is whole");
}

/// 1,797 handwritten digits of 8x8 pixels, ten classes.
pub fn digits() -> Arc<Samples> {
    let mut text = Vec::new();
    inflate(DIGITS, &mut text);
    let read = csv_file::decode("digits", &text, &Reading::default());
    // Images, which are scaled as such and not column by column.
    Arc::new(read.expect("the data in the program holds together").without_columns())
}

/// Two novels of Jane Austen's one after the other, 1.57 MB, a token a byte.
pub fn books() -> Arc<Tokens> {
    let mut bytes = Vec::new();
    BOOKS.iter().for_each(|book| inflate(book, &mut bytes));
    Arc::new(Tokens::of_bytes(bytes))
}
