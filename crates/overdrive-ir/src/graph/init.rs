//! Initial values of states, as data: a 6.7 B model can be planned without ever making its weights.

use crate::eval::philox;
use crate::{DType, Shape, Tensor, TensorType};
use serde::{Deserialize, Serialize};

/// The value of a state before the first call. Random values depend on the seed, the state's name
/// and the element's index only, never on the order of declaration or the device. Numbers in fewer
/// bits than f32 are those of f32, rounded. So a copy in 16 bits begins as the cast of its master.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Init {
    /// Every element is this number.
    Constant(#[serde(with = "crate::text::number")] f64),
    /// Normal with mean 0.
    Normal {
        /// Standard deviation.
        #[serde(with = "crate::text::number")]
        std: f64,
        /// Seed.
        seed: u64,
    },
    /// Uniform in `[-bound, bound)`.
    Uniform {
        /// Half width.
        #[serde(with = "crate::text::number")]
        bound: f64,
        /// Seed.
        seed: u64,
    },
    /// Exactly this tensor.
    Value(Tensor),
    /// The numbers of this tensor, which has a narrower float type. So 16-bit weights stay as a
    /// file has them until somebody asks for a state.
    Widened(Tensor),
}

impl Init {
    /// All zeros.
    pub const ZEROS: Init = Init::Constant(0.0);

    /// Elements of a [`part`](Self::part). A block of random bits and a byte each hold a whole
    /// fraction of it.
    pub const PART: usize = 1 << 16;

    /// The initial value of the state `name` of type `ty`, which must be bound.
    pub fn tensor(&self, name: &str, ty: &TensorType) -> Tensor {
        match self {
            Init::Value(tensor) => {
                assert_eq!(
                    tensor.ty(),
                    ty,
                    "the initial value of state `{name}` must have its declared type"
                );
                tensor.clone()
            }
            Init::Widened(tensor) => {
                assert_eq!(
                    tensor.ty().shape,
                    ty.shape,
                    "the initial value of state `{name}` must have its declared shape"
                );
                tensor.convert(ty.dtype)
            }
            Init::Constant(c) => constant(*c, ty),
            Init::Normal { .. } | Init::Uniform { .. } => {
                let mut bytes = Vec::with_capacity(ty.bytes());
                for part in 0..ty.elements().div_ceil(Self::PART) {
                    bytes.extend_from_slice(self.part(name, ty, part).bytes());
                }
                Tensor::from_bytes(ty.clone(), bytes).expect("every element was drawn")
            }
        }
    }

    /// Whether each byte of such a value is 0, so that a device can fill memory with it.
    pub fn is_zero(&self, dtype: DType) -> bool {
        let Init::Constant(c) = self else { return false };
        rounded(dtype, [1usize], &[*c]).bytes().iter().all(|&byte| byte == 0)
    }

    /// Elements from `part * PART` to the next part of a random state, so that several threads can
    /// draw one state. They are equal to those of [`tensor`](Self::tensor).
    ///
    /// # Panics
    /// When the state is not random.
    pub fn part(&self, name: &str, ty: &TensorType, part: usize) -> Tensor {
        let start = part * Self::PART;
        let length = Self::PART.min(ty.elements() - start);
        let (site, block) = (philox::site_of(name), start as u64 / 4);
        let values: Vec<f64> = match *self {
            Init::Normal { std, seed } => {
                philox::normals_from(seed, site, block).take(length).map(|z| z * std).collect()
            }
            Init::Uniform { bound, seed } => {
                let units = philox::uniforms_from(seed, site, block).take(length);
                units.map(|u| (2.0 * u - 1.0) * bound).collect()
            }
            _ => panic!("the state `{name}` is not random"),
        };
        rounded(ty.dtype, [length], &values)
    }
}

/// Zeros are never written element by element, since models hold billions of them.
fn constant(c: f64, ty: &TensorType) -> Tensor {
    if Init::Constant(c).is_zero(ty.dtype) {
        return Tensor::from_bytes(ty.clone(), vec![0; ty.bytes()]).expect("a zero an element");
    }
    rounded(ty.dtype, Shape::clone(&ty.shape), &vec![c; ty.elements()])
}

/// Numbers in a format, by way of f32 where that has more bits.
fn rounded(dtype: DType, shape: impl Into<Shape>, values: &[f64]) -> Tensor {
    if dtype.is_float() && dtype.bits() < DType::F32.bits() {
        return Tensor::from_f64(DType::F32, shape, values).convert(dtype);
    }
    Tensor::from_f64(dtype, shape, values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_in_fewer_bits_begins_as_the_cast_of_its_master() {
        let wide = TensorType::new(DType::F32, [3usize, 4000]);
        let inits = [
            Init::Normal { std: 0.02, seed: 3 },
            Init::Uniform { bound: 0.5, seed: 4 },
            // Just above the middle of two bf16, by less than f32 tells.
            Init::Constant(1.0 + 2f64.powi(-8) + 2f64.powi(-40)),
        ];
        for init in inits {
            for dtype in [DType::BF16, DType::F16, DType::F8E4M3] {
                let cast = init.tensor("w", &wide).convert(dtype);
                assert_eq!(init.tensor("w", &wide.with_dtype(dtype)), cast, "{init:?} {dtype}");
            }
        }
    }
}
