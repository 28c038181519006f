//! Initial values of states, as data: a 6.7 B model can be planned without ever making its weights.

use crate::eval::philox;
use crate::{Shape, Tensor, TensorType};
use serde::{Deserialize, Serialize};

/// What a state is before the first call. Random values depend on the seed, the state's name and
/// the element's index only, never on the order of declaration.
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
    /// The numbers of this tensor, which is of a narrower float type: 16-bit weights stay as a file
    /// has them until somebody asks for a state.
    Widened(Tensor),
}

impl Init {
    /// All zeros.
    pub const ZEROS: Init = Init::Constant(0.0);

    /// The initial value of the state `name` of type `ty`, which must be bound.
    pub fn tensor(&self, name: &str, ty: &TensorType) -> Tensor {
        let shape = || Shape::clone(&ty.shape);
        let count = ty.elements();
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
            Init::Constant(c) => Tensor::from_f64(ty.dtype, shape(), &vec![*c; count]),
            Init::Normal { std, seed } => {
                let values: Vec<f64> = philox::normals(*seed, philox::site_of(name))
                    .take(count)
                    .map(|z| z * std)
                    .collect();
                Tensor::from_f64(ty.dtype, shape(), &values)
            }
            Init::Uniform { bound, seed } => {
                let values: Vec<f64> = philox::uniforms(*seed, philox::site_of(name))
                    .take(count)
                    .map(|u| (2.0 * u - 1.0) * bound)
                    .collect();
                Tensor::from_f64(ty.dtype, shape(), &values)
            }
        }
    }
}
