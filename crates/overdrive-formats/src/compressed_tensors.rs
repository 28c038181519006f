//! The layout of quantized states in a file: names and packing of compressed-tensors, which the
//! ecosystem's engines read.
//!
//! A graph has a state for what it computes with; a file holds, for a state `W` (`layer.weight`):
//!
//! | state | in the file |
//! |---|---|
//! | `W` i4 `[N, K]` | `W_packed` i32 `[N, ⌈K/8⌉]`, codes plus 8, low bits first; `W_shape` `[2]` |
//! | `W` i8 `[N, K]`, where words say so | the same of `[N, ⌈K/4⌉]`, codes plus 128 |
//! | `W` f4e2m1 `[N, K]`, K even | `W_packed` u8 `[N, K/2]`, the even column in the low bits |
//! | e8m0, whatever its name | u8 of the same name: the biased exponent |
//! | f6e2m3 and f6e3m2 `[.., K]` | u8 `[.., 6 K / 8]` of the same name, lowest bits first |
//! | `W_tensor_scale` f32 `[]` | `W_global_scale` f32 `[1]`, its reciprocal where exact both ways |
//! | `layer.input_scale`, `layer.input_zero_point` `[]` | the same `[1]` |
//! | `W.compressed` `[N, K/2]` of 2:4 | the same, and `W.shape` i64 `[2]` |
//!
//! Everything else is as it is, e4m3 as `F8_E4M3`. Types that safetensors lacks are stored as their
//! bytes. So are those of six bits, which the package for Python refuses. The file's metadata then
//! says what they are. Invariant: what is read is bit for bit what was written. Source:
//! <https://github.com/vllm-project/compressed-tensors>, its formats pack-quantized,
//! nvfp4-pack-quantized, mxfp4-pack-quantized, float-quantized, int-quantized and
//! sparse-24-bitmask.
//!
//! Long because each row of the table has its way out and its way back side by side.

mod config;
mod transform;

pub use config::{Words, quantization_config};
pub use transform::{FieldDifference, TRANSFORMS, field_difference};

use crate::safetensors::can_hold;
use crate::{FormatError, Tensors};
use config::COMPRESSED;
use overdrive_ir::{DType, Graph, Tensor, TensorType};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::path::Path;

const WEIGHT: &str = ".weight";
const PACKED: &str = "_packed";
const SHAPE: &str = "_shape";
const SCALE: &str = "_scale";
const TENSOR_SCALE: &str = "_tensor_scale";
const GLOBAL_SCALE: &str = "_global_scale";
const INPUTS: [&str; 2] = [".input_scale", ".input_zero_point"];
/// Suffix of the mask of a compressed weight.
const BITMASK: &str = ".bitmask";
const SPARSE_SHAPE: &str = ".shape";

/// Offset that makes a signed code of four bits unsigned.
const OFFSET_OF_FOUR: u8 = 1 << 3;
/// And one of eight.
const OFFSET_OF_EIGHT: u8 = 1 << 7;

/// The tensors of a file that hold these states, whose config has these words about them.
pub fn stored(states: Tensors, words: Option<&Json>) -> Tensors {
    let packed_bytes = words.map(config::packed_bytes).unwrap_or_default();
    let is_packed = |name: &str| packed_bytes.contains(name.strip_suffix(WEIGHT).unwrap_or(name));
    let mut file = Tensors::new();
    for (name, tensor) in states {
        match form(&name, tensor.ty()) {
            StateForm::Own => drop(file.insert(name, tensor)),
            StateForm::Int8(_) if !is_packed(&name) => drop(file.insert(name, tensor)),
            StateForm::Int4([n, k]) | StateForm::Int8([n, k]) => {
                file.insert(format!("{name}{SHAPE}"), shape_of([n, k]));
                file.insert(format!("{name}{PACKED}"), packed(&tensor, [n, k]));
            }
            StateForm::Float4([n, k]) => {
                let ty = TensorType::new(DType::U8, [n, k / 2]);
                file.insert(format!("{name}{PACKED}"), relabelled(&tensor, ty));
            }
            StateForm::Exponent(ty) | StateForm::Bytes(ty) | StateForm::Single(ty) => {
                file.insert(name, relabelled(&tensor, ty));
            }
            StateForm::Reciprocal(base) => match reciprocal(tensor.to_f32()[0]) {
                Some(global) => drop(file.insert(
                    format!("{base}{GLOBAL_SCALE}"),
                    Tensor::from_f32([1usize], &[global]),
                )),
                None => drop(file.insert(name, tensor)),
            },
            StateForm::Sparse(base) => {
                let [n, half] = [tensor.ty().sizes()[0], tensor.ty().sizes()[1]];
                file.insert(format!("{base}{SPARSE_SHAPE}"), shape_of([n, 2 * half]));
                file.insert(name, tensor);
            }
        }
    }
    file
}

/// The states that a file holds, by names and types; tensors that are none of them stay, for the
/// caller to name.
///
/// # Errors
/// When a tensor of a state has another type or shape than the state's layout, or a scale is not
/// finite.
pub fn restored<'s>(
    path: &Path,
    declared: impl IntoIterator<Item = (&'s str, &'s TensorType)>,
    mut file: Tensors,
) -> Result<Tensors, FormatError> {
    let mut states = Tensors::new();
    for (name, ty) in declared {
        if ty.shape.known().is_none() || !ty.is_addressable() {
            continue;
        }
        if file.get(name).is_some_and(|tensor| tensor.ty() == ty) {
            // States that a file stores unchanged need no layout. 2:4 weights come with a tensor of
            // their shape.
            if let StateForm::Sparse(base) = form(name, ty) {
                let half = ty.sizes()[1];
                take(
                    path,
                    &mut file,
                    &format!("{base}{SPARSE_SHAPE}"),
                    shape_of([ty.sizes()[0], 2 * half]),
                )?;
                let name = format!("{base}{BITMASK}");
                file.get(&name).map_or(Ok(()), |mask| check_places(path, &name, mask, 2 * half))?;
            }
            continue;
        }
        let tensor = match form(name, ty) {
            StateForm::Own | StateForm::Sparse(_) => continue,
            StateForm::Int4([n, k]) | StateForm::Int8([n, k]) => {
                let packed = TensorType::new(DType::I32, [n, k.div_ceil(32 / ty.dtype.bits())]);
                let Some(packed) = typed(path, &mut file, &format!("{name}{PACKED}"), &packed)?
                else {
                    continue;
                };
                take(path, &mut file, &format!("{name}{SHAPE}"), shape_of([n, k]))?;
                unpacked(&packed, ty.dtype, [n, k])
            }
            StateForm::Float4([n, k]) => {
                let packed = TensorType::new(DType::U8, [n, k / 2]);
                let Some(packed) = typed(path, &mut file, &format!("{name}{PACKED}"), &packed)?
                else {
                    continue;
                };
                relabelled(&packed, ty.clone())
            }
            StateForm::Exponent(held) | StateForm::Bytes(held) | StateForm::Single(held) => {
                // A tensor of another type is a difference like any other.
                match file.remove(name) {
                    Some(tensor) if *tensor.ty() == held => relabelled(&tensor, ty.clone()),
                    other => {
                        file.extend(other.map(|tensor| (name.to_owned(), tensor)));
                        continue;
                    }
                }
            }
            StateForm::Reciprocal(base) => {
                let held = TensorType::new(DType::F32, [1usize]);
                let Some(global) = typed(path, &mut file, &format!("{base}{GLOBAL_SCALE}"), &held)?
                else {
                    continue;
                };
                Tensor::from_f32(Vec::<usize>::new(), &[1.0 / global.to_f32()[0]])
            }
        };
        states.insert(name.to_owned(), tensor);
    }
    states.extend(file);
    check_scales(path, &states)?;
    Ok(states)
}

/// The types of states whose elements no reader would guess from the file, by name.
pub(crate) fn described(states: &Tensors) -> BTreeMap<String, String> {
    let is_bytes = |name: &str, ty: &TensorType| matches!(form(name, ty), StateForm::Bytes(_));
    let bytes = states.iter().filter(|(name, tensor)| is_bytes(name, tensor.ty()));
    bytes.map(|(name, tensor)| (name.clone(), tensor.ty().to_string())).collect()
}

/// Names and types of the states of a graph.
pub(crate) fn declared(graph: &Graph) -> impl Iterator<Item = (&str, &TensorType)> {
    graph.states().iter().map(|state| (state.name.as_str(), graph.ty(state.value)))
}

/// How a file holds a state.
enum StateForm<'n> {
    /// As it is.
    Own,
    /// Codes of an i4 matrix.
    Int4([usize; 2]),
    /// An i8 matrix: as it is, or packed.
    Int8([usize; 2]),
    /// Codes of an f4e2m1 matrix.
    Float4([usize; 2]),
    /// Exponents.
    Exponent(TensorType),
    /// Its bytes.
    Bytes(TensorType),
    /// A scalar as one element.
    Single(TensorType),
    /// The scale of a tensor, of the weight of this name, as what values were multiplied by.
    Reciprocal(&'n str),
    /// Values of the 2:4 weight of this name.
    Sparse(&'n str),
}

fn form<'n>(name: &'n str, ty: &TensorType) -> StateForm<'n> {
    match (ty.dtype, &ty.sizes()[..]) {
        (DType::I4, &[n, k]) => StateForm::Int4([n, k]),
        (DType::F4E2M1, &[n, k]) if k.is_multiple_of(2) => StateForm::Float4([n, k]),
        (DType::E8M0, _) => StateForm::Exponent(ty.with_dtype(DType::U8)),
        (dtype, &[ref rows @ .., k]) if dtype.bits() == 6 && (6 * k).is_multiple_of(8) => {
            StateForm::Bytes(TensorType::new(DType::U8, [rows, &[6 * k / 8]].concat()))
        }
        (dtype, _) if !can_hold(dtype) || dtype.bits() == 6 => {
            StateForm::Bytes(TensorType::new(DType::U8, [ty.bytes()]))
        }
        (DType::F32, []) if name.ends_with(TENSOR_SCALE) => {
            StateForm::Reciprocal(name.strip_suffix(TENSOR_SCALE).expect("it ends so"))
        }
        (dtype, []) if INPUTS.iter().any(|input| name.ends_with(input)) => {
            StateForm::Single(TensorType::new(dtype, [1usize]))
        }
        (_, &[_, _]) if name.ends_with(COMPRESSED) => {
            StateForm::Sparse(name.strip_suffix(COMPRESSED).expect("it ends so"))
        }
        (DType::I8, &[n, k]) => StateForm::Int8([n, k]),
        _ => StateForm::Own,
    }
}

/// The same bytes under a type of as many.
fn relabelled(tensor: &Tensor, ty: TensorType) -> Tensor {
    Tensor::from_bytes(ty, tensor.bytes().to_vec()).expect("both types have as many bytes")
}

fn shape_of([n, k]: [usize; 2]) -> Tensor {
    Tensor::from_ints(DType::I64, [2usize], &[n as i128, k as i128])
}

/// The tensor of this name and type, out of the file; `None` where there is none of the name.
fn typed(
    path: &Path,
    file: &mut Tensors,
    name: &str,
    ty: &TensorType,
) -> Result<Option<Tensor>, FormatError> {
    match file.remove(name) {
        Some(tensor) if tensor.ty() != ty => Err(FormatError::damaged(path, name, ty, tensor.ty())
            .remedy("the file is mislabelled: write the model again")),
        found => Ok(found),
    }
}

/// Takes a tensor out of the file that must hold just this.
fn take(path: &Path, file: &mut Tensors, name: &str, expected: Tensor) -> Result<(), FormatError> {
    let wrong = |found: String| {
        let expected = format!("{:?}", expected.to_ints());
        FormatError::damaged(path, name, expected, found)
            .remedy("the file is mislabelled: write the model again")
    };
    match file.remove(name) {
        Some(tensor) if tensor == expected => Ok(()),
        Some(tensor) if tensor.ty() == expected.ty() => {
            Err(wrong(format!("{:?}", tensor.to_ints())))
        }
        Some(tensor) => Err(wrong(tensor.ty().to_string())),
        None => Err(wrong("no tensor of this name".to_owned())),
    }
}

/// Errs unless each four bits of the mask of a 2:4 weight of `k` columns have two set. Values then
/// stand only in the places where a sparse tensor core puts them.
fn check_places(path: &Path, name: &str, mask: &Tensor, k: usize) -> Result<(), FormatError> {
    let row = mask.ty().sizes().last().copied().unwrap_or(0).max(1);
    let groups = (0..2 * mask.bytes().len()).filter(|at| 4 * (at % (2 * row)) < k);
    let mut wrong =
        groups.map(|at| (at, nibble(mask.bytes(), at).count_ones())).filter(|(_, bits)| *bits != 2);
    let Some((at, bits)) = wrong.next() else { return Ok(()) };
    let (group, line) = (at % (2 * row), at / (2 * row));
    let found = format!("{bits} in group {group} of row {line}");
    Err(FormatError::damaged(path, name, "two bits in each group of four", found)
        .remedy("write the model again"))
}

/// Errs if a scale is not finite. Its values would be lost, and without notice if codes are
/// clamped.
fn check_scales(path: &Path, states: &Tensors) -> Result<(), FormatError> {
    let scales =
        states.iter().filter(|(name, tensor)| name.ends_with(SCALE) && !tensor.ty().dtype.is_int());
    for (name, tensor) in scales {
        if let Some((at, scale)) =
            tensor.to_f64().into_iter().enumerate().find(|(_, x)| !x.is_finite())
        {
            let found = format!("{scale} at element {at}");
            return Err(FormatError::damaged(path, name, "finite scales", found)
                .remedy("write the model again"));
        }
    }
    Ok(())
}

/// The four bits of an element.
fn nibble(bytes: &[u8], at: usize) -> u8 {
    bytes[at / 2] >> (4 * (at % 2)) & 0xF
}

/// Codes of four or eight bits, made unsigned, in rows of whole i32, what is left over being zero
/// bits.
fn packed(tensor: &Tensor, [n, k]: [usize; 2]) -> Tensor {
    let bits = tensor.ty().dtype.bits();
    let width = 4 * k.div_ceil(32 / bits);
    let mut bytes = vec![0u8; n * width];
    if bits == 8 {
        let rows = bytes.chunks_mut(width.max(1)).zip(tensor.bytes().chunks(k.max(1)));
        for (to, code) in rows.flat_map(|(row, codes)| row.iter_mut().zip(codes)) {
            *to = code ^ OFFSET_OF_EIGHT;
        }
    } else {
        for at in 0..n * k {
            let (row, column) = (at / k, at % k);
            bytes[row * width + column / 2] |=
                (nibble(tensor.bytes(), at) ^ OFFSET_OF_FOUR) << (4 * (column % 2));
        }
    }
    Tensor::from_bytes(TensorType::new(DType::I32, [n, width / 4]), bytes).expect("rows are whole")
}

fn unpacked(packed: &Tensor, dtype: DType, [n, k]: [usize; 2]) -> Tensor {
    let ty = TensorType::new(dtype, [n, k]);
    let (width, mut bytes) = (4 * k.div_ceil(32 / dtype.bits()), vec![0u8; ty.bytes()]);
    if dtype.bits() == 8 {
        let rows = bytes.chunks_mut(k.max(1)).zip(packed.bytes().chunks(width.max(1)));
        for (code, from) in rows.flat_map(|(codes, row)| codes.iter_mut().zip(row)) {
            *code = from ^ OFFSET_OF_EIGHT;
        }
    } else {
        for at in 0..n * k {
            let code = nibble(packed.bytes(), 2 * (at / k) * width + at % k) ^ OFFSET_OF_FOUR;
            bytes[at / 2] |= code << (4 * (at % 2));
        }
    }
    Tensor::from_bytes(ty, bytes).expect("the bytes were counted from the type")
}

/// A number whose reciprocal is `x` bit for bit, if f32 has one near `1 / x`.
fn reciprocal(x: f32) -> Option<f32> {
    let near = (1.0 / x).to_bits();
    let candidates = [near, near.wrapping_add(1), near.wrapping_sub(1)].map(f32::from_bits);
    candidates.into_iter().find(|c| c.is_finite() && (1.0 / c).to_bits() == x.to_bits())
}

#[cfg(test)]
mod tests {
    use super::*;
    use overdrive_ir::{Builder, Init};
    use serde_json::json;

    fn graph(states: &Tensors) -> Graph {
        let b = Builder::new("states");
        for (name, tensor) in states {
            b.state_named(name, tensor.ty().clone(), Init::Value(tensor.clone()));
        }
        b.finish().expect("states alone are a graph")
    }

    fn codes(dtype: DType, sizes: [usize; 2]) -> Tensor {
        let ty = TensorType::new(dtype, sizes);
        let bytes = (0..ty.bytes()).map(|i| (i * 37 % 256) as u8).collect::<Vec<_>>();
        // Bits behind the last element are zero in a tensor.
        let values = Tensor::from_bytes(ty, bytes).expect("counted").to_f64();
        Tensor::from_f64(dtype, sizes, &values)
    }

    fn states() -> Tensors {
        let scalar = |dtype, x| Tensor::scalar(dtype, x);
        [
            ("a.weight", codes(DType::I4, [3, 13])),
            ("a.weight_scale", Tensor::from_f32([3usize, 1], &[0.5, 0.25, 3.0])),
            ("b.weight", codes(DType::F4E2M1, [2, 32])),
            ("b.weight_scale", codes(DType::E8M0, [2, 1])),
            ("b.weight_tensor_scale", Tensor::from_f32(Vec::<usize>::new(), &[1.0 / 2688.25f32])),
            ("c.weight", codes(DType::F8E4M3, [2, 3])),
            ("c.six", codes(DType::F6E3M2, [2, 8])),
            ("c.odd", codes(DType::F6E2M3, [3, 3])),
            ("c.input_scale", scalar(DType::F32, 0.125)),
            ("c.input_zero_point", scalar(DType::I8, -7.0)),
            ("d.weight.compressed", codes(DType::I8, [2, 4])),
            ("d.weight.bitmask", Tensor::from_ints(DType::U8, [2usize, 1], &[0x35, 0xc6])),
        ]
        .map(|(name, tensor)| (name.to_owned(), tensor))
        .into()
    }

    #[test]
    fn names_and_packing_are_those_of_the_ecosystem() {
        let file = stored(states(), None);
        let ty = |name: &str| file[name].ty().to_string();
        assert_eq!([ty("a.weight_packed"), ty("a.weight_shape")], ["i32[3, 2]", "i64[2]"]);
        assert_eq!([ty("b.weight_packed"), ty("b.weight_scale")], ["u8[2, 16]", "u8[2, 1]"]);
        assert_eq!(ty("b.weight_global_scale"), "f32[1]");
        assert_eq!([ty("c.weight"), ty("c.input_scale")], ["f8e4m3[2, 3]", "f32[1]"]);
        assert_eq!([ty("c.six"), ty("c.odd")], ["u8[2, 6]", "u8[7]"]);
        let said = described(&states());
        assert_eq!([&said["c.six"], &said["c.odd"]], ["f6e3m2[2, 8]", "f6e2m3[3, 3]"]);
        assert_eq!(said.len(), 2);
        assert_eq!(file["d.weight.shape"].to_ints(), [2, 8]);
        // -8 to 7 become 0 to 15, the first in the lowest bits.
        let row: Vec<f64> = (0..8).map(|i| f64::from(i) - 8.0).collect();
        let packed = packed(&Tensor::from_f64(DType::I4, [1usize, 8], &row), [1, 8]);
        assert_eq!(packed.to_ints(), [0x7654_3210]);
    }

    #[test]
    fn bytes_are_packed_where_words_say_so() {
        let path = Path::new("model.safetensors");
        let group = |format: &str, layer: &str| {
            let weights = json!({ "num_bits": 8 });
            json!({ "format": format, "weights": weights, "targets": [layer] })
        };
        let groups = [group("pack-quantized", "a"), group("int-quantized", "b")];
        let words = json!({ "config_groups": { "group_0": groups[0], "group_1": groups[1] } });
        let row: Vec<f64> = [-128.0, -1.0, 0.0, 127.0, 1.0].into();
        let codes = Tensor::from_f64(DType::I8, [1usize, 5], &row);
        let states: Tensors =
            ["a.weight", "b.weight"].map(|name| (name.to_owned(), codes.clone())).into();
        let file = stored(states.clone(), Some(&words));
        // -128 to 127 become 0 to 255, the first in the lowest bits.
        assert_eq!(
            file["a.weight_packed"].to_ints(),
            [0xFF80_7F00u32 as i32, 0x81].map(i128::from)
        );
        assert_eq!(file["a.weight_shape"].to_ints(), [1, 5]);
        assert_eq!(file["b.weight"], codes);
        let graph = graph(&states);
        for file in [file, stored(states.clone(), None)] {
            assert_eq!(restored(path, declared(&graph), file).expect("whole"), states);
        }
    }

    #[test]
    fn what_was_written_is_read_back_bit_for_bit() {
        let (states, path) = (states(), Path::new("model.safetensors"));
        assert_eq!(
            restored(path, declared(&graph(&states)), stored(states.clone(), None)).expect("whole"),
            states
        );
        // Older files have codes of six bits under their own type.
        let mut older = stored(states.clone(), None);
        older.insert("c.six".to_owned(), states["c.six"].clone());
        assert_eq!(restored(path, declared(&graph(&states)), older).expect("whole"), states);
        for bits in (1..2000u32).map(|i| 0x3880_0000 + i * 4099) {
            let global = f32::from_bits(bits);
            let scale = 1.0 / global;
            assert!(reciprocal(scale).is_some_and(|g| 1.0 / g == scale), "{global}");
        }
    }

    #[test]
    fn a_mislabelled_file_is_an_error() {
        let (states, path) = (states(), Path::new("model.safetensors"));
        let graph = graph(&states);
        let spoilt = |name: &str, tensor: Tensor| {
            let mut file = stored(states.clone(), None);
            file.insert(name.to_owned(), tensor);
            restored(path, declared(&graph), file).expect_err("it is mislabelled").to_string()
        };
        let message = spoilt("a.weight_packed", Tensor::from_f32([3usize, 2], &[0.0; 6]));
        assert!(message.contains("i32[3, 2]") && message.contains("f32[3, 2]"), "{message}");
        let message = spoilt("a.weight_shape", shape_of([3, 16]));
        assert!(message.contains("[3, 13]") && message.contains("[3, 16]"), "{message}");
        let message = spoilt("b.weight_global_scale", Tensor::from_f32([2usize], &[1.0; 2]));
        assert!(message.contains("f32[1]"), "{message}");
        let message =
            spoilt("d.weight.bitmask", Tensor::from_ints(DType::U8, [2usize, 1], &[0x35, 0x86]));
        assert!(message.contains("1 in group 1 of row 1"), "{message}");
        let message = spoilt("b.weight_global_scale", Tensor::from_f32([1usize], &[0.0]));
        assert!(message.contains("expected finite scales, found inf at element 0"), "{message}");
    }
}
