//! Layers of GPTQ.
//!
//! `qweight` i32 `[K/8, N]` has eight rows of a column in a word, the first in the lowest bits.
//! `qzeros` i32 `[G, N/8]` has eight columns in a word. `scales` are f16 `[G, N]`. `g_idx` i32
//! `[K]` is the group of each row.
//!
//! `checkpoint_format` says whether a zero point is stored less 1 (`gptq`) or as it is
//! (`gptq_v2`). Source: `qlinear_cuda.py` of AutoGPTQ, and `convert_gptq_v1_to_v2_format` of
//! GPTQModel.

use super::layer::{
    CODES, GROUPS, Int4Layer, SCALES, WORD, ZEROS, check_words, mislabelled, nibble, scales_in,
    take_order, word, words_in, words_of,
};
use super::words::Int4Config;
use crate::{FormatError, Tensors};
use overdrive_ir::{DType, Tensor};
use std::array::from_fn;
use std::path::Path;

/// The zero points that have one meaning less 1.
const LEAST_ZERO: &str = "zero points from 1 to 15";

/// Columns of a word of zero points.
const IN_ORDER: [usize; WORD] = [0, 1, 2, 3, 4, 5, 6, 7];

/// Adds the tensors of a layer to `file`, zero points less 1.
pub(super) fn stored(
    (path, name): (&Path, &str),
    layer: &Int4Layer,
    file: &mut Tensors,
) -> Result<(), FormatError> {
    let [n, k] = layer.sizes;
    if layer.zeros.contains(&0) {
        let place = format!("{name}{ZEROS}");
        return Err(FormatError::damaged(path, &place, LEAST_ZERO, 0)
            .remedy("write the folder with --export awq"));
    }
    let rows = layer.codes.chunks_exact(WORD * n);
    let words =
        rows.flat_map(|eight| (0..n).map(move |column| word(from_fn(|i| eight[i * n + column]))));
    let zeros: Vec<u8> = layer.zeros.iter().map(|zero| zero - 1).collect();
    let groups: Vec<i128> = (0..k).map(|row| (row / layer.group) as i128).collect();
    let mut put = |part: &str, tensor| _ = file.insert(format!("{name}{part}"), tensor);
    put(CODES, words_of([k / WORD, n], words));
    put(ZEROS, Int4Layer::words_of_rows(&zeros, n, IN_ORDER));
    put(SCALES, layer.scales.clone());
    put(GROUPS, Tensor::from_ints(DType::I32, [k], &groups));
    Ok(())
}

/// Takes the tensors of a layer out of `file`.
pub(super) fn restored(
    place: (&Path, &str),
    config: &Int4Config,
    file: &mut Tensors,
) -> Result<Int4Layer, FormatError> {
    let (path, name) = place;
    let (words, [rows, n]) = words_in(place, CODES, file)?;
    let (zeros, found) = words_in(place, ZEROS, file)?;
    let scales = scales_in(place, file)?;
    let k = rows * WORD;
    if n == 0 || k == 0 || !n.is_multiple_of(WORD) {
        let expected = format!("a number of columns that {WORD} divides");
        return Err(mislabelled(path, &format!("{name}{CODES}"), expected, words.ty()));
    }
    let groups = scales.ty().sizes().first().copied().unwrap_or(0);
    check_words(place, ZEROS, [[groups, n / WORD], found])?;
    let mut codes = vec![0; k * n];
    for (at, four) in words.bytes().chunks_exact(4).enumerate() {
        let (row, column) = (at / n * WORD, at % n);
        (0..WORD).for_each(|i| codes[(row + i) * n + column] = nibble(four, i));
    }
    let mut zeros = Int4Layer::codes_of_rows(&zeros, IN_ORDER);
    if config.zeros_less_one {
        // Readers differ about a zero point of 16.
        if zeros.contains(&15) {
            let place = format!("{name}{ZEROS}");
            return Err(mislabelled(path, &place, LEAST_ZERO, "0 or 16")
                .remedy("take the folder that it was quantized from"));
        }
        zeros.iter_mut().for_each(|zero| *zero += 1);
    }
    let layer = Int4Layer::of_file(place, [n, k], (codes, zeros), scales)?;
    take_order(place, layer.group, file)?;
    Ok(layer)
}
