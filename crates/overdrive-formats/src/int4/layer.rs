//! A layer of four-bit codes between its states and the words of a file.
//!
//! Codes are unsigned here and input-major, as both formats have them. Invariant: every code is
//! below 16, rows are whole words and groups divide them.

use crate::{FormatError, Tensors};
use half::f16;
use overdrive_ir::{DType, Tensor, TensorType};
use std::path::Path;

/// Ends of the names of a layer's tensors in a file.
pub(super) const CODES: &str = ".qweight";
pub(super) const ZEROS: &str = ".qzeros";
pub(super) const SCALES: &str = ".scales";
pub(super) const GROUPS: &str = ".g_idx";

/// The form of a layer's codes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Int4Form {
    /// Columns that share a scale.
    pub group: usize,
    /// Whether every zero point is that of symmetric codes, and no state holds them.
    pub symmetric: bool,
}

/// Codes in a word of 32 bits.
pub(super) const WORD: usize = 8;
/// Added to a signed code.
pub(super) const OFFSET: u8 = 8;

/// A layer with `[K, N]` codes, and `[G, N]` zero points and scales.
pub(super) struct Int4Layer {
    /// N and K.
    pub(super) sizes: [usize; 2],
    /// Columns that share a scale.
    pub(super) group: usize,
    pub(super) codes: Vec<u8>,
    pub(super) zeros: Vec<u8>,
    pub(super) scales: Tensor,
}

impl Int4Layer {
    /// Takes a layer's states out of `states`.
    pub(super) fn of_states(
        path: &Path,
        name: &str,
        states: &mut Tensors,
    ) -> Result<Self, FormatError> {
        let mut take = |part: &str| states.remove(&format!("{name}.{part}"));
        let (codes, scale) = (take("weight"), take("weight_scale"));
        let zero = take("weight_zero_point");
        let refused = |expected: &str, found: String| {
            FormatError::damaged(path, name, expected, found)
                .remedy("write the folder without --export, which holds every mode")
        };
        let found = |tensor: &Option<Tensor>| {
            tensor.as_ref().map_or("none".to_owned(), |tensor| tensor.ty().to_string())
        };
        let (Some(codes), Some(scale)) = (&codes, &scale) else {
            let found = format!("{} and {}", found(&codes), found(&scale));
            return Err(refused("codes with scales", found));
        };
        let sizes = [codes.ty().sizes(), scale.ty().sizes()];
        let ([n, k], [rows, groups]) = (two(&sizes[0]), two(&sizes[1]));
        let is_int = |tensor: &Tensor| tensor.ty().dtype == DType::I4;
        if !is_int(codes) || rows != n || zero.as_ref().is_some_and(|zero| !is_int(zero)) {
            let found = format!("{} with scales {}", codes.ty(), scale.ty());
            return Err(refused("four-bit codes and scales of groups", found));
        }
        let is_whole = n.is_multiple_of(WORD) && k.is_multiple_of(WORD) && k.is_multiple_of(groups);
        if n == 0 || k == 0 || !is_whole {
            let expected = format!("numbers of outputs and inputs that {WORD} divides");
            return Err(refused(&expected, format!("{n} outputs, {k} inputs, {groups} groups")));
        }
        let scales = scale.convert(DType::F16);
        if scales.convert(DType::F32) != scale.convert(DType::F32) {
            return Err(refused("scales that are f16", "others".to_owned()));
        }
        let zeros = zero.as_ref().map_or(vec![OFFSET; groups * n], unsigned);
        Ok(Self {
            sizes: [n, k],
            group: k / groups,
            codes: unsigned(codes),
            zeros,
            scales: transposed(&scales),
        })
    }

    /// A layer of `codes` `[K, N]` and `zeros` `[G, N]`, as a file has them.
    pub(super) fn of_file(
        (path, name): (&Path, &str),
        sizes: [usize; 2],
        (codes, zeros): (Vec<u8>, Vec<u8>),
        scales: Tensor,
    ) -> Result<Self, FormatError> {
        let [n, k] = sizes;
        let groups = zeros.len() / n.max(1);
        let expected = [groups, n];
        let is_float = matches!(scales.ty().dtype, DType::F16 | DType::BF16 | DType::F32);
        if !is_float || scales.ty().sizes()[..] != expected {
            let expected = format!("f16{expected:?}");
            return Err(mislabelled(path, &format!("{name}{SCALES}"), expected, scales.ty()));
        }
        if groups == 0 || !k.is_multiple_of(groups) {
            let expected = format!("groups that divide {k} inputs");
            return Err(mislabelled(path, &format!("{name}{ZEROS}"), expected, groups));
        }
        let numbers = scales.to_f32();
        if let Some(at) = numbers.iter().position(|scale| !scale.is_finite()) {
            let found = format!("{} at element {at}", numbers[at]);
            return Err(mislabelled(path, &format!("{name}{SCALES}"), "finite scales", found));
        }
        Ok(Self { sizes, group: k / groups, codes, zeros, scales })
    }

    pub(super) fn form(&self) -> Int4Form {
        let symmetric = self.zeros.iter().all(|zero| *zero == OFFSET);
        Int4Form { group: self.group, symmetric }
    }

    /// Adds the layer's states to `states`.
    pub(super) fn into_states(self, name: &str, states: &mut Tensors) {
        let [n, k] = self.sizes;
        let groups = k / self.group;
        let mut put = |part: &str, tensor| _ = states.insert(format!("{name}.{part}"), tensor);
        if !self.form().symmetric {
            put("weight_zero_point", signed(&self.zeros, [n, groups]));
        }
        put("weight", signed(&self.codes, [n, k]));
        put("weight_scale", transposed(&self.scales).convert(DType::F32));
    }

    /// Words of eight neighbours in a row of `[rows, N]`, the lowest bits first. `order` says which
    /// of the eight stands where.
    pub(super) fn words_of_rows(codes: &[u8], n: usize, order: [usize; WORD]) -> Tensor {
        let words = codes.chunks_exact(WORD).map(|eight| word(order.map(|at| eight[at])));
        words_of([codes.len() / n, n / WORD], words)
    }

    /// The inverse of it.
    pub(super) fn codes_of_rows(words: &Tensor, order: [usize; WORD]) -> Vec<u8> {
        let mut codes = vec![0; words.ty().elements() * WORD];
        for (eight, four) in codes.chunks_exact_mut(WORD).zip(words.bytes().chunks_exact(4)) {
            for (bits, &at) in order.iter().enumerate() {
                eight[at] = nibble(four, bits);
            }
        }
        codes
    }
}

/// The tensor of words in these rows.
pub(super) fn words_of(sizes: [usize; 2], words: impl Iterator<Item = [u8; 4]>) -> Tensor {
    let bytes: Vec<u8> = words.flatten().collect();
    Tensor::from_bytes(TensorType::new(DType::I32, sizes), bytes).expect("rows are whole words")
}

/// Eight codes, the first in the lowest bits.
pub(super) fn word(codes: [u8; WORD]) -> [u8; 4] {
    [0, 2, 4, 6].map(|at| codes[at] | codes[at + 1] << 4)
}

/// A code of a word.
pub(super) fn nibble(word: &[u8], at: usize) -> u8 {
    word[at / 2] >> (4 * (at % 2)) & 15
}

/// An i32 matrix of a file.
pub(super) fn words_in(
    (path, name): (&Path, &str),
    part: &str,
    file: &mut Tensors,
) -> Result<(Tensor, [usize; 2]), FormatError> {
    let name = format!("{name}{part}");
    match file.remove(&name) {
        Some(tensor) if tensor.ty().dtype == DType::I32 && tensor.ty().rank() == 2 => {
            let sizes = two(&tensor.ty().sizes());
            Ok((tensor, sizes))
        }
        Some(tensor) => Err(mislabelled(path, &name, "a matrix of i32", tensor.ty())),
        None => Err(mislabelled(path, &name, "a matrix of i32", "no tensor of this name")),
    }
}

/// The scales of a file.
pub(super) fn scales_in(
    (path, name): (&Path, &str),
    file: &mut Tensors,
) -> Result<Tensor, FormatError> {
    let name = format!("{name}{SCALES}");
    let missing = || mislabelled(path, &name, "scales in f16", "no tensor of this name");
    file.remove(&name).ok_or_else(missing)
}

/// Takes the order of columns out of the file, which must be that of the groups.
pub(super) fn take_order(
    (path, name): (&Path, &str),
    group: usize,
    file: &mut Tensors,
) -> Result<(), FormatError> {
    let name = format!("{name}{GROUPS}");
    let Some(order) = file.remove(&name) else { return Ok(()) };
    let found = order.to_ints();
    match found.iter().enumerate().find(|(column, of)| **of != (column / group) as i128) {
        None => Ok(()),
        Some((column, of)) => {
            let expected = format!("groups of {group} columns that stand together");
            let found = format!("column {column} in group {of}");
            Err(mislabelled(path, &name, expected, found)
                .remedy("take a folder that was written with desc_act false"))
        }
    }
}

/// An error about tensors that do not fit each other.
pub(super) fn mislabelled(
    path: &Path,
    place: &str,
    expected: impl std::fmt::Display,
    found: impl std::fmt::Display,
) -> FormatError {
    FormatError::damaged(path, place, expected, found)
        .remedy("the file is mislabelled: fetch or write the folder again")
}

/// Errs unless the tensor that is unpacked into a layer's codes has the expected sizes, in words.
pub(super) fn check_words(
    (path, name): (&Path, &str),
    part: &str,
    [expected, found]: [[usize; 2]; 2],
) -> Result<(), FormatError> {
    match expected == found {
        true => Ok(()),
        false => {
            let expected = format!("i32{expected:?}, by the scales and {CODES}");
            Err(mislabelled(path, &format!("{name}{part}"), expected, format!("i32{found:?}")))
        }
    }
}

/// The scales rounded to f16, which files of both formats hold.
///
/// # Errors
/// The first scale that f16 has no number for.
pub fn f16_scales(scales: &Tensor) -> Result<Tensor, f32> {
    let half = |scale: &f32| f16::from_f32(*scale).to_f32();
    let is_lost = |scale: &&f32| !half(scale).is_finite() || (**scale != 0.0 && half(scale) == 0.0);
    let before = scales.to_f32();
    match before.iter().find(is_lost) {
        Some(scale) => Err(*scale),
        None => {
            let rounded: Vec<f32> = before.iter().map(half).collect();
            Ok(Tensor::from_f32(scales.ty().shape.clone(), &rounded))
        }
    }
}

fn two(sizes: &[usize]) -> [usize; 2] {
    match *sizes {
        [rows, columns] => [rows, columns],
        _ => [0, 0],
    }
}

/// Signed codes `[N, K]` as unsigned ones `[K, N]`.
fn unsigned(tensor: &Tensor) -> Vec<u8> {
    let [n, k] = two(&tensor.ty().sizes());
    let mut codes = vec![0; n * k];
    for row in 0..n {
        for column in 0..k {
            let at = row * k + column;
            let code = tensor.bytes()[at / 2] >> (4 * (at % 2)) & 15;
            // In four bits, adding 8 turns the highest one over.
            codes[column * n + row] = code ^ OFFSET;
        }
    }
    codes
}

/// Unsigned codes `[K, N]` as signed ones `[N, K]`.
fn signed(codes: &[u8], [n, k]: [usize; 2]) -> Tensor {
    let ty = TensorType::new(DType::I4, [n, k]);
    let mut bytes = vec![0u8; ty.bytes()];
    for row in 0..n {
        for column in 0..k {
            let at = row * k + column;
            bytes[at / 2] |= (codes[column * n + row] ^ OFFSET) << (4 * (at % 2));
        }
    }
    Tensor::from_bytes(ty, bytes).expect("the bytes were counted from the type")
}

/// A matrix of floats with its axes in the other order.
fn transposed(tensor: &Tensor) -> Tensor {
    let [rows, columns] = two(&tensor.ty().sizes());
    let width = tensor.ty().dtype.bits() / 8;
    let bytes = tensor.bytes();
    let of = |at: usize| &bytes[(at % rows * columns + at / rows) * width..][..width];
    let turned: Vec<u8> = (0..rows * columns).flat_map(of).copied().collect();
    Tensor::from_bytes(tensor.ty().with_shape([columns, rows]), turned).expect("as many numbers")
}
