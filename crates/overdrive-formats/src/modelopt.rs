//! Folders of NVIDIA's Model Optimizer: layers of NVFP4 codes.
//!
//! | state | in the file |
//! |---|---|
//! | `layer.weight` f4e2m1 `[N, K]` | u8 `[N, K/2]` of the same name, even columns in low bits |
//! | `layer.weight_scale` f8e4m3 `[N, K/16]` | the same |
//! | `layer.weight_tensor_scale` f32 `[]` | `layer.weight_scale_2`, the same |
//!
//! The scale of a tensor multiplies here. In compressed-tensors it is the reciprocal. `modelopt`
//! words of a folder stand in config.json, and in `hf_quant_config.json` for older readers.
//! Invariant: what is read is bit for bit what was written. Source: `modelopt/torch/export` of
//! <https://github.com/NVIDIA/Model-Optimizer>.

mod words;

use crate::{FormatError, Tensors};
use overdrive_ir::{DType, Tensor, TensorType};
use std::collections::BTreeSet;
use std::path::Path;
pub use words::{ModelOptConfig, Words, words};

/// Ends of the names of a layer's tensors in a file.
const CODES: &str = ".weight";
const SCALE: &str = ".weight_scale";
const TENSOR_SCALE: &str = ".weight_scale_2";
/// The state that the last of them is.
const TENSOR_SCALE_STATE: &str = ".weight_tensor_scale";
/// Scales of what a layer reads, and of what the cache holds.
const INPUT_SCALE: &str = ".input_scale";
const CACHE_SCALES: [&str; 2] = [".k_scale", ".v_scale"];
/// Codes that share a scale.
const BLOCK: usize = 16;

/// The tensors of a file whose `layers` have codes; every other state is as it is.
pub fn stored(layers: &BTreeSet<String>, mut states: Tensors) -> Tensors {
    for layer in layers {
        if let Some(codes) = states.get_mut(&format!("{layer}{CODES}")) {
            let sizes = codes.ty().sizes();
            let ty = TensorType::new(DType::U8, [sizes[0], sizes[1] / 2]);
            *codes = relabelled(codes, ty);
        }
        if let Some(scale) = states.remove(&format!("{layer}{TENSOR_SCALE_STATE}")) {
            states.insert(format!("{layer}{TENSOR_SCALE}"), scale);
        }
    }
    states
}

/// The layers of a file.
#[derive(Debug, Default)]
pub struct Found {
    /// Names of the layers that have codes.
    pub layers: BTreeSet<String>,
    /// Tensors that were left out: scales of activations and of the cache.
    pub left_out: usize,
}

/// Puts the states of every layer with codes in the place of its tensors. Scales of activations and
/// of the cache are taken out, because both stay in float here.
///
/// # Errors
/// When the tensors of a layer do not fit each other, or a scale is not finite.
pub fn restored(path: &Path, file: &mut Tensors) -> Result<Found, FormatError> {
    let is_coded = |name: &String| name.strip_suffix(TENSOR_SCALE).map(str::to_owned);
    let layers: BTreeSet<String> = file.keys().filter_map(is_coded).collect();
    for layer in &layers {
        restore(path, layer, file)?;
    }
    let before = file.len();
    file.retain(|name, _| {
        let of_input = name.strip_suffix(INPUT_SCALE).is_some_and(|layer| layers.contains(layer));
        !of_input && !CACHE_SCALES.iter().any(|scale| name.ends_with(scale))
    });
    Ok(Found { layers, left_out: before - file.len() })
}

fn restore(path: &Path, layer: &str, file: &mut Tensors) -> Result<(), FormatError> {
    let wrong = |part: &str, expected: String, found: String| {
        FormatError::damaged(path, &format!("{layer}{part}"), expected, found)
            .remedy("the file is mislabelled: fetch or write the folder again")
    };
    let mut take = |part: &str| {
        let none = || wrong(part, "a tensor".to_owned(), "no tensor of this name".to_owned());
        file.remove(&format!("{layer}{part}")).ok_or_else(none)
    };
    let (codes, scale, whole) = (take(CODES)?, take(SCALE)?, take(TENSOR_SCALE)?);
    let [n, k] = match (codes.ty().dtype, <[usize; 2]>::try_from(codes.ty().sizes())) {
        (DType::U8, Ok([n, half])) if half.is_multiple_of(BLOCK / 2) => [n, 2 * half],
        _ => {
            let expected = format!("codes u8[N, K/2], where {BLOCK} divides K");
            return Err(wrong(CODES, expected, codes.ty().to_string()));
        }
    };
    let blocks = TensorType::new(DType::F8E4M3, [n, k / BLOCK]);
    if *scale.ty() != blocks {
        return Err(wrong(SCALE, blocks.to_string(), scale.ty().to_string()));
    }
    if whole.ty().dtype != DType::F32 || whole.ty().elements() != 1 {
        return Err(wrong(TENSOR_SCALE, "one f32".to_owned(), whole.ty().to_string()));
    }
    for (part, scales) in [(SCALE, &scale), (TENSOR_SCALE, &whole)] {
        let numbers = scales.to_f32();
        if let Some(at) = numbers.iter().position(|scale| !scale.is_finite()) {
            let found = format!("{} at element {at}", numbers[at]);
            return Err(wrong(part, "finite scales".to_owned(), found));
        }
    }
    let whole = Tensor::from_f32(Vec::<usize>::new(), &whole.to_f32());
    let mut put = |part: &str, tensor| _ = file.insert(format!("{layer}{part}"), tensor);
    put(CODES, relabelled(&codes, TensorType::new(DType::F4E2M1, [n, k])));
    put(SCALE, scale);
    put(TENSOR_SCALE_STATE, whole);
    Ok(())
}

/// The same bytes under a type of as many.
fn relabelled(tensor: &Tensor, ty: TensorType) -> Tensor {
    Tensor::from_bytes(ty, tensor.bytes().to_vec()).expect("both types have as many bytes")
}

/// Scales of blocks and of tensors that are those of one tensor. Engines join some layers into one,
/// queries, keys and values for example, and take one scale of the tensor for all. It is the
/// largest one. Scales of blocks are rounded anew, and none that was a number becomes zero.
pub fn joined(parts: &mut [(&mut Tensor, &mut Tensor)]) {
    let of = |scale: &Tensor| scale.to_f32()[0];
    let largest = parts.iter().map(|(_, whole)| of(whole)).fold(0.0, f32::max);
    let format = DType::F8E4M3.float_format().expect("e4m3 is a float");
    let least = format.decode(1);
    for (blocks, whole) in parts.iter_mut().filter(|(_, whole)| of(whole) != largest) {
        let share = f64::from(of(whole)) / f64::from(largest);
        let scaled = |scale: f64| if scale == 0.0 { 0.0 } else { (scale * share).max(least) };
        let scales: Vec<f64> = blocks.to_f64().into_iter().map(scaled).collect();
        **blocks = Tensor::from_f64(DType::F8E4M3, blocks.ty().shape.clone(), &scales);
        **whole = Tensor::from_f32(Vec::<usize>::new(), &[largest]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Codes 0 to 15 again and again, one in each half of a byte.
    fn states(layer: &str) -> Tensors {
        let format = DType::F4E2M1.float_format().unwrap();
        let codes: Vec<f64> = (0..2 * 32).map(|i| format.decode(i * 7 % 16)).collect();
        let scales = [1.0, 448.0, 0.001953125, 0.0];
        [
            (CODES, Tensor::from_f64(DType::F4E2M1, [2, 32], &codes)),
            (SCALE, Tensor::from_f64(DType::F8E4M3, [2, 2], &scales)),
            (TENSOR_SCALE_STATE, Tensor::scalar(DType::F32, 0.3)),
        ]
        .map(|(part, tensor)| (format!("{layer}{part}"), tensor))
        .into()
    }

    #[test]
    fn a_layer_has_the_bytes_of_the_format() {
        let layers = BTreeSet::from(["a".to_owned()]);
        let file = stored(&layers, states("a"));
        assert_eq!(
            file.keys().collect::<Vec<_>>(),
            ["a.weight", "a.weight_scale", "a.weight_scale_2"]
        );
        let codes: Vec<u8> =
            (0..32u32).map(|i| ((i * 14 % 16) | ((i * 14 + 7) % 16) << 4) as u8).collect();
        assert_eq!(file["a.weight"].ty(), &TensorType::new(DType::U8, [2, 16]));
        assert_eq!(file["a.weight"].bytes(), codes);
        // 1, 448, the smallest number and 0 of e4m3.
        assert_eq!(file["a.weight_scale"].bytes(), [0x38, 0x7e, 0x01, 0x00]);
        assert_eq!(file["a.weight_scale_2"].bytes(), 0.3f32.to_le_bytes());
        let mut back = file;
        back.insert("a.input_scale".to_owned(), Tensor::scalar(DType::F32, 1.0));
        back.insert("b.k_scale".to_owned(), Tensor::scalar(DType::F32, 1.0));
        let found = restored(Path::new("m"), &mut back).unwrap();
        assert_eq!((found.layers, found.left_out), (layers, 2));
        assert_eq!(back, states("a"));
    }

    #[test]
    fn tensors_that_do_not_fit_are_errors() {
        let layers = BTreeSet::from(["a".to_owned()]);
        let spoilt = |name: &str, tensor: Option<Tensor>| {
            let mut file = stored(&layers, states("a"));
            file.remove(name);
            file.extend(tensor.map(|tensor| (name.to_owned(), tensor)));
            restored(Path::new("m"), &mut file).unwrap_err().to_string()
        };
        let said = spoilt("a.weight_scale", None);
        assert!(said.contains("no tensor of this name"), "{said}");
        let said = spoilt("a.weight", Some(Tensor::from_ints(DType::U8, [2, 12], &[0; 24])));
        assert!(said.contains("u8[N, K/2]") && said.contains("u8[2, 12]"), "{said}");
        let scales = Tensor::from_f64(DType::F8E4M3, [2, 1], &[1.0; 2]);
        let said = spoilt("a.weight_scale", Some(scales));
        assert!(said.contains("f8e4m3[2, 2]"), "{said}");
        let said = spoilt("a.weight_scale_2", Some(Tensor::scalar(DType::F32, f64::NAN)));
        assert!(said.contains("finite scales"), "{said}");
    }

    #[test]
    fn joined_layers_have_the_largest_scale() {
        let blocks = |scales: &[f64]| Tensor::from_f64(DType::F8E4M3, [1, scales.len()], scales);
        let whole = |scale| Tensor::scalar(DType::F32, scale);
        let (mut a, mut b) = (blocks(&[1.0, 0.0, 0.001953125]), blocks(&[448.0, 8.0, 1.0]));
        let (mut one, mut other) = (whole(0.25), whole(1.0));
        joined(&mut [(&mut a, &mut one), (&mut b, &mut other)]);
        assert_eq!([one.to_f32()[0], other.to_f32()[0]], [1.0, 1.0]);
        assert_eq!(a.to_f64(), [0.25, 0.0, 0.001953125]);
        assert_eq!(b.to_f64(), [448.0, 8.0, 1.0]);
    }
}
