//! Layers of AWQ in its layout `gemm`: `qweight` i32 `[K, N/8]`, `qzeros` i32 `[G, N/8]`, `scales`
//! f16 `[G, N]`.
//!
//! A word holds eight columns of a row, the lowest bits first. Their order is that in which AWQ's
//! kernel spreads them: 0, 2, 4, 6, 1, 3, 5, 7. Source: `WQLinear_GEMM` of AutoAWQ.

use super::layer::{
    CODES, Int4Layer, SCALES, WORD, ZEROS, check_words, mislabelled, scales_in, words_in,
};
use crate::{FormatError, Tensors};
use std::path::Path;

/// Columns of a word.
const SPREAD: [usize; WORD] = [0, 2, 4, 6, 1, 3, 5, 7];

/// Adds the tensors of a layer to `file`.
pub(super) fn stored(name: &str, layer: &Int4Layer, file: &mut Tensors) {
    let [n, _] = layer.sizes;
    let mut put = |part: &str, tensor| _ = file.insert(format!("{name}{part}"), tensor);
    put(CODES, Int4Layer::words_of_rows(&layer.codes, n, SPREAD));
    put(ZEROS, Int4Layer::words_of_rows(&layer.zeros, n, SPREAD));
    put(SCALES, layer.scales.clone());
}

/// Takes the tensors of a layer out of `file`.
pub(super) fn restored(place: (&Path, &str), file: &mut Tensors) -> Result<Int4Layer, FormatError> {
    let (path, name) = place;
    let (words, [k, columns]) = words_in(place, CODES, file)?;
    let (zeros, found) = words_in(place, ZEROS, file)?;
    let scales = scales_in(place, file)?;
    if k == 0 || columns == 0 {
        return Err(mislabelled(path, &format!("{name}{CODES}"), "codes", words.ty()));
    }
    let groups = scales.ty().sizes().first().copied().unwrap_or(0);
    check_words(place, ZEROS, [[groups, columns], found])?;
    let [codes, zeros] = [&words, &zeros].map(|words| Int4Layer::codes_of_rows(words, SPREAD));
    Int4Layer::of_file(place, [columns * WORD, k], (codes, zeros), scales)
}
