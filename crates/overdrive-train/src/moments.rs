//! `Moments`: the number format in which an optimizer keeps its moments.
//!
//! The update itself is in f32. The loop of the update widens a moment as it reads it, and rounds
//! it as it writes it. So no f32 copy of a moment is ever in memory.
//!
//! - `bf16`: a moment takes half of its bytes.
//! - `fp8`: codes of 8 bits with an f32 scale for each block of at most 256 elements in a row, by
//!   its largest magnitude. The source is Dettmers et al., "8-bit optimizers via block-wise
//!   quantization", 2022. Codes of the first moment have a sign, 3 bits of exponent and 4 of
//!   mantissa. Below a 128th of the largest they are evenly spaced, and 0 is one of them. Those of
//!   the second are of its root, which spans half as many powers of two. A root has no sign, so
//!   they have 4 bits of exponent and 4 of mantissa.
//!
//! Rounding. With β₂ = 0.999 a step changes the second moment by a thousandth. Half a unit of the
//! last place of bf16 is up to four thousandths. So rounding to nearest would never let it fall,
//! and a root only halves its changes. It is instead rounded up or down by a threshold that changes
//! from step to step. So the mean over steps is exact: that of v in bf16, that of its root in
//! codes. The first moment changes by a tenth of what is new. Its codes are a 32nd to a 16th of it
//! apart, so they have thresholds too. In bf16 it is rounded to nearest.
//!
//! Thresholds are a sequence that fills 0 to 1 evenly over steps and over the elements of a row.
//! The source is Roberts, "The unreasonable effectiveness of quasirandom sequences", 2018. A mean
//! over few steps is then nearer than with random numbers. They also cost one addition, depend on
//! no rank, and are the same in a run that goes on from a checkpoint.

use overdrive_ir::{Binary, DType, Expr, Init, Prim, Reducer, TensorType, Unary};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The number format of moments.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Moments {
    /// As the update computes them.
    #[default]
    F32,
    /// Half of that.
    Bf16,
    /// Codes of 8 bits, with a scale for each block of at most 256 elements.
    Fp8,
}

impl fmt::Display for Moments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Fp8 => "fp8",
        })
    }
}

/// Elements of a block at most.
const BLOCK: usize = 256;
/// Elements of a block at least: a scale of 4 bytes then adds an eighth of a byte to each.
const LEAST_BLOCK: usize = 32;
/// Elements of a tensor at least.
const LEAST: usize = 4096;

/// Steps of the two-dimensional sequence, as parts of 2^32: the powers of 1 over the root of
/// x^3 = x + 1.
const OF_STEP: f64 = 3_242_174_889.0;
const OF_ELEMENT: f64 = 2_447_445_414.0;

/// Bits of an f32 behind those that a code has.
const CODE_BITS: u32 = 19;
/// The root of code 0, 2^-15, as its bits in f32; that of code 255 is 1.9375. No root is 0: a
/// second moment of 0 below a first one that is not would make a giant step.
const LEAST_ROOT: u32 = (127 - 15) << 23;
/// Codes of a first moment are of its magnitude plus this, 2^-7, as its bits in f32. So code 0 is
/// 0, and code 127 is 1.9375 less that.
const ABOVE_ZERO: u32 = (127 - 7) << 23;
/// The largest number of a code in units of the scale. It is so far below 1.9375 that no rounding
/// of the quotient reaches the code after the last.
const LARGEST_SCALED: f64 = 1.9375 * (1.0 - 1.0 / 1_048_576.0);
/// The bit of a code of a first moment that is set below 0.
const SIGN: u32 = 128;
/// Smaller scales would have no reciprocal.
const LEAST_SCALE: f64 = f32::MIN_POSITIVE as f64;

/// The format of one parameter's moments, and the shape in which its update is computed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    moments: Moments,
    /// The parameter's extents, of which blocks are the last.
    view: Vec<usize>,
    /// How many of the first extents count blocks.
    blocks: usize,
}

/// The sign that a moment may have.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Sign {
    /// Any number.
    Any,
    /// None below 0.
    Positive,
}

/// A moment as a step finds it.
pub(crate) struct Moment<'b> {
    state: String,
    sign: Sign,
    kept: Expr<'b>,
    scale: Option<Expr<'b>>,
    /// Its numbers in f32, in the shape of the update.
    pub(crate) value: Expr<'b>,
}

impl Moments {
    /// Whether they are as the update computes them.
    pub(crate) fn is_f32(&self) -> bool {
        *self == Self::F32
    }

    /// The layout of moments of a parameter with these extents. Vectors and small tensors keep
    /// theirs in f32, and so do those that no block of a useful size divides.
    pub(crate) fn layout(self, sizes: &[usize]) -> Layout {
        let whole = |moments| Layout { moments, view: sizes.to_vec(), blocks: sizes.len() };
        if is_small(sizes) {
            return whole(Self::F32);
        }
        match self {
            Self::F32 | Self::Bf16 => whole(self),
            Self::Fp8 => in_blocks(sizes).unwrap_or_else(|| whole(Self::F32)),
        }
    }
}

/// Whether a tensor of these extents keeps f32, since all of them together are few bytes.
pub(crate) fn is_small(sizes: &[usize]) -> bool {
    sizes.len() < 2 || sizes.iter().product::<usize>() < LEAST
}

/// The largest blocks of neighbours that divide a tensor.
fn in_blocks(sizes: &[usize]) -> Option<Layout> {
    let (mut axis, mut within) = (sizes.len() - 1, 1);
    while axis > 0 && within * sizes[axis] <= BLOCK {
        within *= sizes[axis];
        axis -= 1;
    }
    let size = sizes[axis];
    let part = (1..=BLOCK / within).rev().find(|part| size.is_multiple_of(*part))?;
    let view = [&sizes[..axis], &[size / part, part], &sizes[axis + 1..]].concat();
    let moments = Moments::Fp8;
    (within * part >= LEAST_BLOCK).then_some(Layout { moments, view, blocks: axis + 1 })
}

impl Layout {
    /// A tensor of the parameter's shape in that of the update.
    pub(crate) fn view<'b>(&self, x: Expr<'b>) -> Expr<'b> {
        in_shape(x, &self.view)
    }

    /// Declares the moment `kind` of the parameter `p` called `name`, and reads it.
    pub(crate) fn moment<'b>(
        &self,
        (kind, sign): (&str, Sign),
        (name, p): (&str, Expr<'b>),
    ) -> Moment<'b> {
        let b = p.builder();
        let state = format!("optimizer.{kind}.{name}");
        let ty = |dtype| TensorType::new(dtype, p.shape());
        match self.moments {
            Moments::F32 => {
                let kept = b.state_named(&state, ty(DType::F32), Init::ZEROS);
                Moment { state, sign, kept, scale: None, value: kept }
            }
            Moments::Bf16 => {
                let kept = b.state_named(&state, ty(DType::BF16), Init::ZEROS);
                Moment { state, sign, kept, scale: None, value: kept.convert(DType::F32) }
            }
            Moments::Fp8 => {
                let kept = self.view(b.state_named(&state, ty(DType::U8), Init::ZEROS));
                let scales = TensorType::new(DType::F32, self.view[..self.blocks].to_vec());
                let scale = b.state_named(&scale_of(&state), scales, Init::ZEROS);
                let mut spread = self.view.clone();
                spread[self.blocks..].fill(1);
                let scale = scale.reshape(spread);
                let value = match sign {
                    Sign::Any => of_signed_code(kept) * scale,
                    Sign::Positive => {
                        let root = root_of_code(kept) * scale;
                        root * root
                    }
                };
                Moment { state, sign, kept, scale: Some(scale), value }
            }
        }
    }

    /// Replaces a moment, unless the step is not applied: where `finite` is false all stays as it
    /// is. `step` is the threshold of the step.
    pub(crate) fn replace<'b>(
        &self,
        moment: &Moment<'b>,
        new: Expr<'b>,
        (finite, step): (Expr<'b>, Expr<'b>),
    ) {
        let b = new.builder();
        let update = |state: &str, old: Expr<'b>, new: Expr<'b>| {
            let whole = b.find_state(state).expect("the moment was declared").sizes();
            b.update(state, in_shape(finite.select(new, old), &whole));
        };
        let Some(old_scale) = moment.scale else {
            let new = match (self.moments, moment.sign) {
                (Moments::Bf16, Sign::Any) => new.convert(DType::BF16),
                (Moments::Bf16, Sign::Positive) => to_bf16(new, threshold(step, new)),
                _ => new,
            };
            return update(&moment.state, moment.kept, new);
        };
        let (magnitude, largest_code) = match moment.sign {
            Sign::Any => (new.unary(Unary::Abs), LARGEST_SCALED - float(ABOVE_ZERO)),
            Sign::Positive => (new.sqrt(), LARGEST_SCALED),
        };
        let within: Vec<usize> = (self.blocks..self.view.len()).collect();
        let largest = magnitude.reduce_keep(Reducer::Max, &within);
        let scale = (largest * (1.0 / largest_code)).max(largest.constant(LEAST_SCALE));
        let units = scale.unary(Unary::Reciprocal).broadcast_to(&new.shape());
        let codes = match moment.sign {
            Sign::Any => signed_code(new, magnitude * units, threshold(step, new)),
            Sign::Positive => code_of_root(magnitude * units, threshold(step, new)),
        };
        update(&moment.state, moment.kept, codes);
        update(&scale_of(&moment.state), old_scale, scale);
    }
}

/// The same elements in these extents.
pub(crate) fn in_shape<'b>(x: Expr<'b>, sizes: &[usize]) -> Expr<'b> {
    if x.sizes() == sizes { x } else { x.reshape(sizes.to_vec()) }
}

/// The state of the scales of a moment: `optimizer.m_scale.w` for `optimizer.m.w`.
fn scale_of(state: &str) -> String {
    let mut parts: Vec<String> = state.splitn(3, '.').map(str::to_owned).collect();
    parts[1].push_str("_scale");
    parts.join(".")
}

/// The threshold of a step as a part of 2^32, from its number.
pub(crate) fn of_step(count: Expr<'_>) -> Expr<'_> {
    let count = count.convert(DType::U32);
    count * count.constant(OF_STEP)
}

/// The thresholds of the elements of a row of `x`.
fn threshold<'b>(step: Expr<'b>, x: Expr<'b>) -> Expr<'b> {
    let element = x.builder().iota(DType::U32, [x.size(x.rank() - 1)], 0);
    element * element.constant(OF_ELEMENT) + step.broadcast_to(&element.shape())
}

fn cast(x: Expr<'_>, to: DType) -> Expr<'_> {
    x.builder().op1(Prim::Bitcast { to }, &[x])
}

/// As much of a threshold as the last `bits` bits of a word hold.
fn last_bits(threshold: Expr<'_>, bits: u32) -> Expr<'_> {
    threshold.binary(Binary::Shr, threshold.constant(f64::from(32 - bits)))
}

/// The bf16 above or below each number.
fn to_bf16<'b>(x: Expr<'b>, threshold: Expr<'b>) -> Expr<'b> {
    const BITS: u32 = 16;
    let raised = cast(x, DType::U32) + last_bits(threshold, BITS);
    let kept = raised.binary(Binary::And, raised.constant(f64::from(u32::MAX << BITS)));
    cast(kept, DType::F32).convert(DType::BF16)
}

fn float(bits: u32) -> f64 {
    f64::from(f32::from_bits(bits))
}

/// The bits of numbers of an f32 that codes have, up or down by thresholds.
fn rounded<'b>(x: Expr<'b>, threshold: Expr<'b>) -> Expr<'b> {
    let raised = cast(x, DType::U32) + last_bits(threshold, CODE_BITS);
    raised.binary(Binary::Shr, raised.constant(f64::from(CODE_BITS)))
}

fn shifted(x: Expr<'_>, by: u32) -> Expr<'_> {
    x.binary(Binary::Shl, x.constant(f64::from(by)))
}

/// Roots, in units of their scale, as codes.
fn code_of_root<'b>(x: Expr<'b>, threshold: Expr<'b>) -> Expr<'b> {
    // The bits of the least root end as a multiple of 256, which u8 leaves out.
    rounded(x.max(x.constant(float(LEAST_ROOT))), threshold).convert(DType::U8)
}

/// The root that a code stands for, in units of its scale.
fn root_of_code(code: Expr<'_>) -> Expr<'_> {
    let code = code.convert(DType::U32);
    let above = shifted(code, CODE_BITS);
    cast(above + above.constant(f64::from(LEAST_ROOT)), DType::F32)
}

/// First moments, whose magnitudes are given in units of their scale, as codes.
fn signed_code<'b>(x: Expr<'b>, magnitude: Expr<'b>, threshold: Expr<'b>) -> Expr<'b> {
    let number = rounded(magnitude + magnitude.constant(float(ABOVE_ZERO)), threshold);
    let number = number - number.constant(f64::from(ABOVE_ZERO >> CODE_BITS));
    let bits = cast(x, DType::U32);
    let sign = bits.binary(Binary::Shr, bits.constant(24.0));
    let sign = sign.binary(Binary::And, sign.constant(f64::from(SIGN)));
    (number + sign).convert(DType::U8)
}

/// The number that a code stands for, in units of its scale.
fn of_signed_code(code: Expr<'_>) -> Expr<'_> {
    let code = code.convert(DType::U32);
    let only = |bits: u32| code.binary(Binary::And, code.constant(f64::from(bits)));
    let above = shifted(only(SIGN - 1), CODE_BITS) + code.constant(f64::from(ABOVE_ZERO));
    let above = cast(above, DType::F32);
    let magnitude = cast(above - above.constant(float(ABOVE_ZERO)), DType::U32);
    cast(magnitude + shifted(only(SIGN), 24), DType::F32)
}
