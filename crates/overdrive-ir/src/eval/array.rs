//! `Array`: a value of the reference evaluator.

use crate::{DType, Overflow, Tensor, TensorType};

/// Elements in row-major order.
#[derive(Clone, PartialEq, Debug)]
pub enum Data {
    /// Every float type, unrounded.
    Float(Vec<f64>),
    /// Every integer type and bool, exact.
    Int(Vec<i128>),
}

/// A typed array of the evaluator. `dtype` is the declared type; float elements keep f64 precision.
#[derive(Clone, PartialEq, Debug)]
pub struct Array {
    /// Declared element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Vec<usize>,
    /// Elements.
    pub data: Data,
}

impl Array {
    /// A float array.
    pub fn float(dtype: DType, shape: &[usize], data: Vec<f64>) -> Self {
        assert!(dtype.is_float(), "{dtype} is not a float type");
        assert_eq!(data.len(), shape.iter().product::<usize>(), "data must fill {shape:?}");
        Self { dtype, shape: shape.to_vec(), data: Data::Float(data) }
    }

    /// An integer or bool array; values wrap into the type's range.
    pub fn int(dtype: DType, shape: &[usize], mut data: Vec<i128>) -> Self {
        let (lo, hi) =
            dtype.int_range().unwrap_or_else(|| panic!("{dtype} is not an integer type"));
        assert_eq!(data.len(), shape.iter().product::<usize>(), "data must fill {shape:?}");
        let span = hi - lo + 1;
        data.iter_mut().for_each(|x| *x = (*x - lo).rem_euclid(span) + lo);
        Self { dtype, shape: shape.to_vec(), data: Data::Int(data) }
    }

    /// An array of any type from f64 values (integers truncate and saturate).
    pub fn from_f64(dtype: DType, shape: &[usize], values: Vec<f64>) -> Self {
        if dtype.is_float() {
            Self::float(dtype, shape, values)
        } else {
            let ints =
                values.into_iter().map(|v| dtype.round(v, Overflow::Saturate) as i128).collect();
            Self::int(dtype, shape, ints)
        }
    }

    /// An array whose elements `f` computes from their multi-index.
    pub fn build(dtype: DType, shape: &[usize], mut f: impl FnMut(&[usize]) -> f64) -> Self {
        let mut values = Vec::with_capacity(shape.iter().product());
        for_each_index(shape, |index| values.push(f(index)));
        Self::from_f64(dtype, shape, values)
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// True without elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its type.
    pub fn ty(&self) -> TensorType {
        TensorType::new(self.dtype, self.shape.clone())
    }

    /// Row-major position of a multi-index.
    pub fn position(&self, index: &[usize]) -> usize {
        debug_assert_eq!(index.len(), self.shape.len(), "an index has one entry per dimension");
        index.iter().zip(&self.shape).fold(0, |at, (&i, &n)| at * n + i)
    }

    /// Element at a row-major position, as f64.
    pub fn get(&self, position: usize) -> f64 {
        match &self.data {
            Data::Float(v) => v[position],
            Data::Int(v) => v[position] as f64,
        }
    }

    /// Element at a multi-index, as f64.
    pub fn at(&self, index: &[usize]) -> f64 {
        self.get(self.position(index))
    }

    /// Elements of a float array.
    pub fn floats(&self) -> &[f64] {
        match &self.data {
            Data::Float(v) => v,
            Data::Int(_) => panic!("{} is not a float array", self.ty()),
        }
    }

    /// Elements of an integer or bool array.
    pub fn ints(&self) -> &[i128] {
        match &self.data {
            Data::Int(v) => v,
            Data::Float(_) => panic!("{} is not an integer array", self.ty()),
        }
    }

    /// All elements as f64.
    pub fn to_f64(&self) -> Vec<f64> {
        match &self.data {
            Data::Float(v) => v.clone(),
            Data::Int(v) => v.iter().map(|&x| x as f64).collect(),
        }
    }

    /// The same elements in another order or number: element `i` of the result is element
    /// `source(i)`.
    pub fn rearrange(&self, shape: &[usize], source: impl Fn(usize) -> usize) -> Self {
        let count = shape.iter().product();
        let data = match &self.data {
            Data::Float(v) => Data::Float((0..count).map(|i| v[source(i)]).collect()),
            Data::Int(v) => Data::Int((0..count).map(|i| v[source(i)]).collect()),
        };
        Self { dtype: self.dtype, shape: shape.to_vec(), data }
    }

    /// The same elements under another shape.
    pub fn reshaped(&self, shape: &[usize]) -> Self {
        assert_eq!(
            self.len(),
            shape.iter().product::<usize>(),
            "reshape keeps the number of elements"
        );
        Self { shape: shape.to_vec(), ..self.clone() }
    }

    /// Applies a function to each float.
    pub fn map(&self, f: impl Fn(f64) -> f64) -> Self {
        Self::float(self.dtype, &self.shape, self.floats().iter().map(|&x| f(x)).collect())
    }

    /// A host tensor, rounded to the declared type.
    pub fn to_tensor(&self) -> Tensor {
        match &self.data {
            Data::Float(v) => Tensor::from_f64(self.dtype, self.shape.clone(), v),
            Data::Int(v) => Tensor::from_ints(self.dtype, self.shape.clone(), v),
        }
    }
}

impl From<&Tensor> for Array {
    fn from(tensor: &Tensor) -> Self {
        let (dtype, shape) = (tensor.ty().dtype, tensor.ty().sizes());
        if dtype.is_float() {
            Array::float(dtype, &shape, tensor.to_f64())
        } else {
            Array::int(dtype, &shape, tensor.to_ints())
        }
    }
}

/// Calls `f` with every multi-index of `shape`, in row-major order.
pub fn for_each_index(shape: &[usize], mut f: impl FnMut(&[usize])) {
    if shape.contains(&0) {
        return;
    }
    let mut index = vec![0; shape.len()];
    loop {
        f(&index);
        let mut axis = shape.len();
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
}
