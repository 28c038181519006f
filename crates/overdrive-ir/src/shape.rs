//! Shapes and tensor types, with dimensions that may still be names.
//!
//! Why names: a model is written once and bound to sizes later. Invariant: after the `bind` pass
//! every `Dim` is `Size`, and only then may `sizes()` be called.

use crate::DType;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// One dimension.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Dim {
    /// A known extent.
    Size(usize),
    /// A name that `bind` replaces by a size.
    Named(Arc<str>),
}

impl Dim {
    /// The extent, if known.
    pub fn size(&self) -> Option<usize> {
        match self {
            Dim::Size(n) => Some(*n),
            Dim::Named(_) => None,
        }
    }
}

impl From<usize> for Dim {
    fn from(n: usize) -> Self {
        Dim::Size(n)
    }
}

impl From<&str> for Dim {
    fn from(name: &str) -> Self {
        Dim::Named(name.into())
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Size(n) => write!(f, "{n}"),
            Dim::Named(name) => f.write_str(name),
        }
    }
}

/// Dimensions, outermost first.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Shape(pub Vec<Dim>);

impl Shape {
    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The extents, if none is a name.
    pub fn known(&self) -> Option<Vec<usize>> {
        self.0.iter().map(Dim::size).collect()
    }

    /// Product of the known extents and the sorted names: equal for two shapes exactly when their
    /// element counts are equal for every binding.
    pub fn volume(&self) -> (usize, Vec<&str>) {
        let mut names: Vec<&str> = Vec::new();
        let mut product = 1usize;
        for dim in &self.0 {
            match dim {
                Dim::Size(n) => product = product.saturating_mul(*n),
                Dim::Named(name) => names.push(name),
            }
        }
        names.sort_unstable();
        (product, names)
    }
}

impl<D: Into<Dim>, const N: usize> From<[D; N]> for Shape {
    fn from(dims: [D; N]) -> Self {
        Shape(dims.into_iter().map(Into::into).collect())
    }
}

impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Self {
        Shape(dims.into_iter().map(Dim::Size).collect())
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Self {
        dims.to_vec().into()
    }
}

impl From<Vec<Dim>> for Shape {
    fn from(dims: Vec<Dim>) -> Self {
        Shape(dims)
    }
}

impl std::ops::Index<usize> for Shape {
    type Output = Dim;
    fn index(&self, axis: usize) -> &Dim {
        &self.0[axis]
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.0.iter().map(Dim::to_string).collect();
        write!(f, "[{}]", dims.join(", "))
    }
}

/// Element type and shape of a value.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Dimensions, outermost first.
    pub shape: Shape,
}

impl TensorType {
    /// A type from its parts.
    pub fn new(dtype: DType, shape: impl Into<Shape>) -> Self {
        Self { dtype, shape: shape.into() }
    }

    /// The type of a single number.
    pub fn scalar(dtype: DType) -> Self {
        Self { dtype, shape: Shape::default() }
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.rank()
    }

    /// The extents. Call only after `bind`.
    pub fn sizes(&self) -> Vec<usize> {
        self.shape.known().expect("shapes are concrete after `bind`")
    }

    /// Number of elements. Call only after `bind`.
    pub fn elements(&self) -> usize {
        self.sizes().iter().product()
    }

    /// Packed size in bytes. Call only after `bind`.
    pub fn bytes(&self) -> usize {
        self.dtype.bytes_for(self.elements())
    }

    /// Whether its bits can be counted in a `usize`, with 1 for each name. Types that come from
    /// outside are checked, so that sizes can be multiplied without a thought afterwards.
    pub fn is_addressable(&self) -> bool {
        let sizes = self.shape.0.iter().filter_map(Dim::size).map(|n| n.max(1));
        sizes.into_iter().try_fold(self.dtype.bits(), usize::checked_mul).is_some()
    }

    /// The same shape with another element type.
    pub fn with_dtype(&self, dtype: DType) -> Self {
        Self { dtype, shape: self.shape.clone() }
    }

    /// The same element type with another shape.
    pub fn with_shape(&self, shape: impl Into<Shape>) -> Self {
        Self { dtype: self.dtype, shape: shape.into() }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

/// Row-major strides, in elements, of a dense tensor with these extents.
pub fn row_major(sizes: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; sizes.len()];
    for axis in (1..sizes.len()).rev() {
        strides[axis - 1] = strides[axis] * sizes[axis];
    }
    strides
}
