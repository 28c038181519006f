//! `Codes`: integers of 8 bits or fewer that stand for `codes - zero`, and their products, exact in
//! i32.
//!
//! Devices multiply i8 by i8. Codes of other types are moved into i8 together with their zero
//! point. The part of zero points in a sum of products is subtracted afterwards:
//! `Σ (a - za)(b - zb) = Σ a b - zb (A - K za) - za B`. A and B are the sums of the codes
//! themselves over K products. If B is of weights, it is known before the model runs. Source: Jacob
//! et al., arXiv:1712.05877, section 2.3. Invariant: equal to the formula for every code and zero
//! point, as long as the sum fits i32.

use crate::{Convolution, DType, DotGeneral, Expr, Pad, Precision, Prim, Shape};

/// Codes of i8, u8 or i4.
#[derive(Copy, Clone, Debug)]
pub struct Codes<'b> {
    /// The codes.
    pub codes: Expr<'b>,
    /// The code of zero; `None` means 0. It has the rank of the codes, and each extent is 1 or that
    /// of the codes. Along axes that are summed over it is 1.
    pub zero: Option<Expr<'b>>,
}

/// Positions of the axes of one side of a product in its result.
#[derive(Clone, Debug)]
pub struct Placement {
    /// Axes in the order of the result, those that are summed over last.
    order: Vec<usize>,
    /// Positions in the result of the axes that are not summed over, which come first in `order`.
    places: Vec<usize>,
}

impl Placement {
    /// Placements of both sides of a product of these ranks: batch axes first, then the free ones
    /// of both.
    pub fn of_dot(
        ranks: [usize; 2],
        batch: &[(usize, usize)],
        contract: &[(usize, usize)],
    ) -> [Self; 2] {
        let side = |rank: usize, axis: fn(&(usize, usize)) -> usize, first: usize| {
            let [batched, summed] =
                [batch, contract].map(|pairs| pairs.iter().map(axis).collect::<Vec<usize>>());
            let mut free: Vec<usize> = (0..rank).collect();
            free.retain(|axis| !batched.contains(axis) && !summed.contains(axis));
            let places = (0..batch.len()).chain((0..free.len()).map(|i| first + i)).collect();
            Self { order: [batched, free, summed].concat(), places }
        };
        let left = side(ranks[0], |pair| pair.0, batch.len());
        let right = side(ranks[1], |pair| pair.1, left.places.len());
        [left, right]
    }

    /// For a side of this rank that is summed over all axes but the first. That one is at `place`
    /// in the result.
    pub fn of_first(rank: usize, place: usize) -> Self {
        Self { order: (0..rank).collect(), places: vec![place] }
    }

    /// A tensor with extent 1 where the product sums, or one number, in the shape of the result.
    pub fn spread<'b>(&self, x: Expr<'b>, result: &Shape) -> Expr<'b> {
        if x.sizes().iter().product::<usize>() == 1 {
            return x.reshape(Shape::default()).broadcast_in(result, &[]);
        }
        let ordered = x.transpose(&self.order);
        let kept: Vec<usize> = ordered.sizes()[..self.places.len()].to_vec();
        ordered.reshape(kept).broadcast_in(result, &self.places)
    }
}

/// One side of a product of codes.
struct CodesOperand<'b> {
    /// i8, with an i32 zero point.
    of: Codes<'b>,
    placement: Placement,
}

impl<'b> CodesOperand<'b> {
    fn spread(&self, x: Expr<'b>, result: &Shape) -> Expr<'b> {
        self.placement.spread(x, result)
    }

    /// The sums of the codes over what the product sums, kept with extent 1.
    fn sums(&self) -> Expr<'b> {
        let Placement { order, places } = &self.placement;
        let mut axes = order[places.len()..].to_vec();
        axes.sort_unstable();
        let sums = self.of.codes.convert(DType::I32).sum(&axes);
        let mut shape = self.of.codes.sizes();
        axes.iter().for_each(|&axis| shape[axis] = 1);
        sums.reshape(shape)
    }
}

impl<'b> Codes<'b> {
    /// The same numbers as i8 codes with an i32 zero point.
    fn signed(self) -> Self {
        let zero = self.zero.map(|zero| zero.convert(DType::I32));
        if self.codes.dtype() != DType::U8 {
            return Self { codes: self.codes.convert(DType::I8), zero };
        }
        let moved = |x: Expr<'b>| x - x.constant(128.0);
        let none = || self.codes.builder().full(DType::I32, vec![1usize; self.codes.rank()], 0.0);
        let codes = moved(self.codes.convert(DType::I32)).convert(DType::I8);
        Self { codes, zero: Some(moved(zero.unwrap_or_else(none))) }
    }

    /// `Σ (self - zero)(other - zero)` over `contract`, in i32: batch axes first, then the free
    /// ones of both.
    pub fn dot(
        self,
        other: Codes<'b>,
        batch: &[(usize, usize)],
        contract: &[(usize, usize)],
    ) -> Expr<'b> {
        let (left, right) = (self.signed(), other.signed());
        let dot = DotGeneral {
            batch: batch.to_vec(),
            contract: contract.to_vec(),
            accumulate: DType::I32,
            out: DType::I32,
            precision: Precision::Exact,
        };
        let sums = self.codes.builder().op1(Prim::DotGeneral(dot), &[left.codes, right.codes]);
        if sums.is_poison() {
            return sums;
        }
        let placements =
            Placement::of_dot([left.codes.rank(), right.codes.rank()], batch, contract);
        let [of_left, of_right] = placements;
        let (left, right) = (
            CodesOperand { of: left, placement: of_left },
            CodesOperand { of: right, placement: of_right },
        );
        let k: usize = contract.iter().map(|&(axis, _)| self.codes.size(axis)).product();
        let shape = sums.shape();
        let mut corrected = sums;
        if let Some(zero) = right.of.zero {
            let of_left =
                left.of.zero.map_or(left.sums(), |own| left.sums() - own * own.constant(k as f64));
            corrected = corrected - left.spread(of_left, &shape) * right.spread(zero, &shape);
        }
        if let Some(zero) = left.of.zero {
            corrected = corrected
                - match zero.sizes().iter().product() {
                    1usize => right.spread(right.sums() * zero.reshape(Shape::default()), &shape),
                    _ => left.spread(zero, &shape) * right.spread(right.sums(), &shape),
                };
        }
        corrected
    }

    /// The convolution of self `[N, C, ...]`, whose zero point is one number, with weights
    /// `[O, C/groups, ...]`, in i32. Padding around self stands for the number 0.
    pub fn convolve(self, weights: Codes<'b>, geometry: &Convolution) -> Expr<'b> {
        let (x, w) = (self.signed(), weights.signed());
        let b = x.codes.builder();
        let mut conv = Convolution { accumulate: DType::I32, out: DType::I32, ..geometry.clone() };
        let mut codes = x.codes;
        if let Some(zero) = x.zero {
            // Codes are padded with the code of zero, not with the code 0.
            let fill = zero.convert(DType::I8).reshape(Shape::default());
            let around = conv.window.iter().map(|d| Pad {
                low: d.pad_low,
                high: d.pad_high,
                interior: d.input_dilation.saturating_sub(1),
            });
            let pads: Vec<Pad> = [Pad::default(); 2].into_iter().chain(around).collect();
            if pads.iter().any(|pad| *pad != Pad::default()) {
                codes = b.op1(Prim::Pad { pads }, &[codes, fill]);
            }
            for d in &mut conv.window {
                (d.pad_low, d.pad_high, d.input_dilation) = (0, 0, 1);
            }
        }
        let sums = b.op1(Prim::Convolution(conv.clone()), &[codes, w.codes]);
        if sums.is_poison() {
            return sums;
        }
        let (shape, mut corrected) = (sums.shape(), sums);
        let channels = |per_channel: Expr<'b>| {
            let count = per_channel.sizes().iter().product::<usize>();
            per_channel.reshape([count]).broadcast_in(&shape, &[1])
        };
        if let Some(zero) = w.zero {
            // The sum of each group of the codes under a window, for all of the channels that the
            // group gives.
            let mut ones = w.codes.sizes();
            let k: usize = ones[1..].iter().product();
            let each = ones[0] / conv.groups;
            ones[0] = conv.groups;
            let ones = b.full(DType::I8, ones, 1.0);
            let mut of_x = b.op1(Prim::Convolution(conv), &[codes, ones]);
            if let Some(own) = x.zero {
                of_x = of_x - (own * own.constant(k as f64)).reshape(Shape::default());
            }
            let mut split = of_x.sizes();
            split.insert(2, 1);
            let mut spread = split.clone();
            spread[2] = each;
            let dims: Vec<usize> = (0..spread.len()).collect();
            let of_x = of_x
                .reshape(split)
                .broadcast_in(&Shape::from(spread), &dims)
                .reshape(shape.clone());
            corrected = corrected - of_x * channels(zero);
        }
        if let Some(zero) = x.zero {
            let axes: Vec<usize> = (1..w.codes.rank()).collect();
            let of_w = w.codes.convert(DType::I32).sum(&axes);
            corrected = corrected - channels(of_w * zero.reshape(Shape::default()));
        }
        corrected
    }
}
