//! `conv2d(x, w, bias?)`: `y[n, o, i, j] = Σ_{c, u, v} x[n, c, i s + u d - p, j s + v d - p] w[o,
//! c, u, v] + bias[o]`.
//!
//! x is `[N, C, H, W]`, w `[O, C/groups, kernel H, kernel W]`, bias `[O]`; positions outside x
//! are 0. As everywhere in deep learning it is a correlation: the kernel is not flipped.
//! Source: LeCun et al., "Gradient-based learning applied to document recognition", Proc. IEEE
//! 1998; groups: Krizhevsky et al., NIPS 2012.

use crate::window_dimension::WindowDimension;
use crate::{
    Array, Builder, Convolution, DType, Expr, Graph, Mismatch, Op, Operation, Prim, Sample,
    TensorType, Types,
};
use serde::{Deserialize, Serialize};

/// Two-dimensional convolution. The bias operand may be absent.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Conv2d {
    /// Step between windows, down and across.
    pub stride: [usize; 2],
    /// Zeros around x: `[[top, bottom], [left, right]]`.
    pub pad: [[usize; 2]; 2],
    /// Distance between taps, down and across.
    pub dilation: [usize; 2],
    /// Groups of channels that see only each other; C and O are divisible by it.
    pub groups: usize,
}

impl Conv2d {
    /// Square stride and padding, no dilation, one group.
    pub const fn new(stride: usize, pad: usize) -> Self {
        Self { stride: [stride; 2], pad: [[pad; 2]; 2], dilation: [1; 2], groups: 1 }
    }

    /// The primitive, for operands of type `dtype`.
    pub fn convolution(&self, dtype: DType) -> Convolution {
        let window = (0..2).map(|d| WindowDimension {
            stride: self.stride[d],
            pad_low: self.pad[d][0] as i64,
            pad_high: self.pad[d][1] as i64,
            input_dilation: 1,
            kernel_dilation: self.dilation[d],
        });
        let (window, groups) = (window.collect(), self.groups);
        Convolution { window, groups, accumulate: dtype.accumulation(), out: dtype }
    }
}

impl<'b> Expr<'b> {
    /// Convolves self `[N, C, H, W]` with w `[O, C/groups, kernel H, kernel W]` and adds bias
    /// `[O]`.
    pub fn conv2d(self, w: Expr<'b>, bias: Option<Expr<'b>>, geometry: Conv2d) -> Expr<'b> {
        let operands: Vec<Expr<'b>> = [self, w].into_iter().chain(bias).collect();
        self.builder().op1(geometry, &operands)
    }
}

impl Op for Conv2d {
    const NAME: &'static str = "conv2d";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        if !(2..=3).contains(&types.operands.len()) {
            let found = format!("{} operands", types.operands.len());
            return Err(Mismatch::new("x, w and at most a bias", found));
        }
        let dtype = types.same_float(types.operands)?;
        let product = Types { operands: &types.operands[..2], regions: &[] };
        let y = Operation::from(Prim::Convolution(self.convolution(dtype))).infer(&product)?;
        if types.operands.len() == 3 {
            types.shaped(2, "a bias", vec![types.operands[1].shape[0].clone()])?;
        }
        Ok(y)
    }

    fn eval(&self, args: &[Array], _regions: &[Graph]) -> Vec<Array> {
        let (x, w) = (&args[0], &args[1]);
        let [outputs, per_group, kernel_h, kernel_w] = w.shape[..] else {
            unreachable!("w is [O, C/groups, H, W]")
        };
        let extent = |d: usize| {
            let reach = (w.shape[2 + d] - 1) * self.dilation[d] + 1;
            (x.shape[2 + d] + self.pad[d][0] + self.pad[d][1] - reach) / self.stride[d] + 1
        };
        let shape = [x.shape[0], outputs, extent(0), extent(1)];
        vec![Array::build(x.dtype, &shape, |at| {
            let [n, o, i, j] = at[..] else { unreachable!("y is [N, O, H, W]") };
            let first = o / (outputs / self.groups) * per_group;
            let position = |d: usize, window: usize, tap: usize| {
                let padded = window * self.stride[d] + tap * self.dilation[d];
                padded.checked_sub(self.pad[d][0]).filter(|&p| p < x.shape[2 + d])
            };
            let mut sum = args.get(2).map_or(0.0, |bias| bias.get(o));
            for c in 0..per_group {
                for u in 0..kernel_h {
                    for v in 0..kernel_w {
                        if let (Some(row), Some(column)) = (position(0, i, u), position(1, j, v)) {
                            sum += x.at(&[n, first + c, row, column]) * w.at(&[o, c, u, v]);
                        }
                    }
                }
            }
            sum
        })]
    }

    fn expand<'b>(&self, b: &'b Builder, args: &[Expr<'b>], _regions: &[Graph]) -> Vec<Expr<'b>> {
        let y = b.op1(Prim::Convolution(self.convolution(args[0].dtype())), &args[..2]);
        vec![args.get(2).map_or(y, |bias| y + bias.broadcast_in(&y.shape(), &[1]))]
    }

    fn samples() -> Vec<Sample> {
        let depthwise = Conv2d { groups: 4, ..Conv2d::new(1, 1) };
        let uneven = Conv2d { stride: [2, 3], pad: [[0, 2], [1, 0]], dilation: [2, 1], groups: 2 };
        vec![
            Sample::new(Conv2d::new(1, 1))
                .normal(named([3, 6, 5]))
                .normal([4usize, 3, 3, 3])
                .normal([4usize]),
            Sample::new(Conv2d::new(2, 1)).normal(named([2, 7, 8])).normal([3usize, 2, 3, 3]),
            Sample::new(Conv2d::new(1, 0))
                .normal(named([5, 4, 4]))
                .normal([2usize, 5, 1, 1])
                .normal([2usize]),
            Sample::new(depthwise)
                .normal([1usize, 4, 5, 5])
                .normal([8usize, 1, 3, 3])
                .normal([8usize]),
            Sample::new(uneven).normal([2usize, 4, 9, 7]).normal([6usize, 2, 3, 2]),
        ]
    }
}

/// `[N, ...]` with a named batch.
fn named([c, h, w]: [usize; 3]) -> crate::Shape {
    crate::Shape(vec!["N".into(), c.into(), h.into(), w.into()])
}
