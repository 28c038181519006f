//! `avg_pool2d(x)`: the mean of each window of x `[N, C, H, W]`, with padding counted as zeros or
//! left out.
//!
//! Source: LeCun et al., "Gradient-based learning applied to document recognition", Proc. IEEE 1998
//! (subsampling). ONNX leaves padding out by default, PyTorch counts it. `Pool2d`, the geometry of
//! the windows, stands here for both poolings.

use crate::{
    Array, Builder, Dim, Expr, Graph, Mismatch, Op, Operation, Prim, Reducer, Sample, Tensor,
    TensorType, Types, Window,
};
use serde::{Deserialize, Serialize};

/// Windows over the height and width of `[N, C, H, W]`.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pool2d {
    /// Height and width of a window.
    pub window: [usize; 2],
    /// Step between windows, down and across.
    pub stride: [usize; 2],
    /// Padding, smaller than the window: `[[top, bottom], [left, right]]`.
    pub pad: [[usize; 2]; 2],
}

/// How padding counts in an average.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Padding {
    /// Zeros: each sum is divided by the window's size.
    Counted,
    /// Nothing: each sum is divided by the number of elements of x in the window.
    LeftOut,
}

/// Mean over windows.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct AvgPool2d {
    /// Geometry of the windows.
    pub pool: Pool2d,
    /// How padding counts.
    pub padding: Padding,
}

impl<'b> Expr<'b> {
    /// The mean of each window of self `[N, C, H, W]`.
    pub fn avg_pool2d(self, pool: Pool2d, padding: Padding) -> Expr<'b> {
        self.builder().op1(AvgPool2d { pool, padding }, &[self])
    }
}

impl Pool2d {
    /// Square windows without padding.
    pub const fn new(window: usize, stride: usize) -> Self {
        Self { window: [window; 2], stride: [stride; 2], pad: [[0; 2]; 2] }
    }

    fn windows(&self) -> Vec<Window> {
        let whole = Window { size: 1, stride: 1, dilation: 1, pad_low: 0, pad_high: 0 };
        let axis = |d: usize| {
            let [pad_low, pad_high] = self.pad[d];
            Window { size: self.window[d], stride: self.stride[d], dilation: 1, pad_low, pad_high }
        };
        vec![whole, whole, axis(0), axis(1)]
    }

    pub(super) fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        let [x] = types.exactly()?;
        types.same_float(types.operands)?;
        if x.rank() != 4 {
            return Err(Mismatch::new("x of [N, C, H, W]", x.to_string()));
        }
        if (0..2).any(|d| self.pad[d].iter().any(|&pad| pad >= self.window[d].max(1))) {
            let expected = format!("padding smaller than the window {:?}", self.window);
            return Err(Mismatch::new(expected, format!("{:?}", self.pad)));
        }
        Operation::from(Prim::ReduceWindow { reducer: Reducer::Max, windows: self.windows() })
            .infer(types)
    }

    /// `fold` of the elements of x in each window.
    pub(super) fn eval(&self, x: &Array, fold: impl Fn(&[f64]) -> f64) -> Array {
        let extent = |d: usize| {
            let padded = x.shape[2 + d] + self.pad[d][0] + self.pad[d][1];
            (padded - self.window[d]) / self.stride[d] + 1
        };
        let inside = |d: usize, at: usize| {
            let taps = (0..self.window[d])
                .filter_map(move |u| (at * self.stride[d] + u).checked_sub(self.pad[d][0]));
            taps.filter(move |&p| p < x.shape[2 + d])
        };
        Array::build(x.dtype, &[x.shape[0], x.shape[1], extent(0), extent(1)], |at| {
            let rows = inside(0, at[2]);
            let window = rows.flat_map(|row| inside(1, at[3]).map(move |column| (row, column)));
            let elements: Vec<f64> =
                window.map(|(row, column)| x.at(&[at[0], at[1], row, column])).collect();
            fold(&elements)
        })
    }

    pub(super) fn reduce<'b>(&self, x: Expr<'b>, reducer: Reducer) -> Expr<'b> {
        x.builder().op1(Prim::ReduceWindow { reducer, windows: self.windows() }, &[x])
    }
}

impl Op for AvgPool2d {
    const NAME: &'static str = "avg_pool2d";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        self.pool.infer(types)
    }

    fn eval(&self, args: &[Array], _regions: &[Graph]) -> Vec<Array> {
        let size = self.pool.window[0] * self.pool.window[1];
        vec![self.pool.eval(&args[0], |window| {
            let count = if self.padding == Padding::Counted { size } else { window.len() };
            window.iter().sum::<f64>() / count as f64
        })]
    }

    fn expand<'b>(&self, b: &'b Builder, args: &[Expr<'b>], _regions: &[Graph]) -> Vec<Expr<'b>> {
        let x = args[0].widen();
        let sum = self.pool.reduce(x, Reducer::Sum);
        let size = (self.pool.window[0] * self.pool.window[1]) as f64;
        let mean = if self.padding == Padding::Counted || self.pool.pad == [[0; 2]; 2] {
            sum * (1.0 / size)
        } else {
            // The counts depend on shapes only: a constant of one image.
            let image = Array::build(x.dtype(), &[1, 1, x.size(2), x.size(3)], |_| 1.0);
            let shares = self.pool.eval(&image, |window| 1.0 / window.len() as f64);
            let shares: Tensor = shares.to_tensor();
            sum * b.constant(shares)
        };
        vec![mean.convert(args[0].dtype())]
    }

    fn samples() -> Vec<Sample> {
        let uneven = Pool2d { window: [3, 2], stride: [2, 1], pad: [[1, 2], [0, 1]] };
        let sample = |pool, padding| Sample::new(AvgPool2d { pool, padding });
        vec![
            sample(Pool2d::new(2, 2), Padding::Counted).normal([
                Dim::from("N"),
                "C".into(),
                6.into(),
                4.into(),
            ]),
            sample(uneven, Padding::Counted).normal([2usize, 3, 7, 5]),
            sample(uneven, Padding::LeftOut).normal([2usize, 3, 7, 5]),
        ]
    }
}
