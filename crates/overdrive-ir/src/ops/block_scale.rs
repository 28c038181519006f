//! `block_scale(x)`: what each block of x is to be divided by, so that its largest magnitude fits
//! an element type.
//!
//! Let `a = max |x|` over a block, in f32 for scales that are not wide, and `m` the largest value
//! of the element type. `wide`: `max(a / m, 2^-126)`. `f8e4m3`: `max(a / m, 2^-9)` to nearest,
//! saturating. `e8m0_floor`: `2^(floor(log2 a) - floor(log2 m))`, which may clip the largest
//! elements. `e8m0_up`: `2^ceil(log2(a / m))`, which does not. Powers of two are at least 2^-126; a
//! block that is not finite has the scale NaN. Sources: OCP Microscaling Formats 1.0, 6.3 (floor);
//! Mishra et al., "Recipes for pre-training LLMs with MXFP8", arXiv:2506.08027 (up); NVIDIA,
//! "Pretraining large language models with NVFP4", arXiv:2509.25149 (e4m3).

use crate::blocks::Blocks;
use crate::{
    Array, Binary, Builder, Compare, DType, Dim, Expr, Fill, Graph, Mismatch, Op, Overflow, Prim,
    Reducer, Sample, Shape, TensorType, Types,
};
use serde::{Deserialize, Serialize};

/// The type of scales and how they are rounded to it.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScaleFormat {
    /// The type that sums use: f32, and f64 of f64.
    Wide,
    /// A power of two, rounded down: the OCP rule.
    E8m0Floor,
    /// A power of two, rounded up.
    E8m0Up,
    /// An fp8 number, to nearest.
    F8e4m3,
}

impl ScaleFormat {
    /// The type of the scales of an `x` of type `dtype`.
    pub fn dtype(self, dtype: DType) -> DType {
        match self {
            Self::Wide => dtype.accumulation(),
            Self::E8m0Floor | Self::E8m0Up => DType::E8M0,
            Self::F8e4m3 => DType::F8E4M3,
        }
    }

    /// The scale of a block whose largest magnitude is `a`.
    pub fn of(self, a: f64, element: DType) -> f64 {
        let max = element.max_value();
        let narrow = |x: f64| DType::F32.round(x, Overflow::Ieee);
        let power = |exponent: f64| if a.is_finite() { 2f64.powf(exponent) } else { f64::NAN };
        match self {
            _ if a.is_nan() => f64::NAN,
            Self::Wide => (a / max).max(TINY),
            Self::F8e4m3 => {
                DType::F8E4M3.round((narrow(a) / max).max(SMALLEST_E4M3), Overflow::Saturate)
            }
            Self::E8m0Floor => {
                power((narrow(a).log2().floor() - max.log2().floor()).max(TINY.log2()))
            }
            Self::E8m0Up => power(narrow(narrow(a) / max).max(TINY).log2().ceil()),
        }
    }
}

/// The smallest normal f32.
const TINY: f64 = f32::MIN_POSITIVE as f64;
/// The smallest positive f8e4m3.
const SMALLEST_E4M3: f64 = 1.0 / 512.0;
/// Sign and exponent of an f32 without its mantissa, sign cleared.
const EXPONENT: f64 = 0x7F80_0000 as f64;
/// All ones in the mantissa of an f32.
const MANTISSA: f64 = 0x007F_FFFF as f64;

/// Scales by the largest magnitude of each block.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct BlockScale {
    /// Extent of a block along each axis; `None` is the whole axis.
    pub block: Vec<Option<usize>>,
    /// The type that the elements of x will have.
    pub element: DType,
    /// The type that the scales have.
    pub scale: ScaleFormat,
}

impl<'b> Expr<'b> {
    /// The scale of each block of self, for codes of type `element`.
    pub fn block_scale(
        self,
        block: &[Option<usize>],
        element: DType,
        scale: ScaleFormat,
    ) -> Expr<'b> {
        self.builder().op1(BlockScale { block: block.to_vec(), element, scale }, &[self])
    }
}

impl BlockScale {
    fn shape(&self, x: &TensorType) -> Result<Shape, Mismatch> {
        let count = |(block, dim): (&Option<usize>, &Dim)| match (block, dim) {
            (None, _) => Ok(Dim::Size(1)),
            (Some(1), dim) => Ok(dim.clone()),
            (Some(block), Dim::Size(size)) if *block > 0 && size.is_multiple_of(*block) => {
                Ok(Dim::Size(size / block))
            }
            (Some(block), dim) => Err(Mismatch::new(
                format!(
                    "blocks of {block} that divide the extent {dim}"
                ),
                x.to_string(),
            )
            .remedy("take a block size that divides it, or pad")),
        };
        if self.block.len() != x.rank() {
            return Err(Mismatch::new(format!("x of rank {}", self.block.len()), x.to_string()));
        }
        Ok(Shape(self.block.iter().zip(&x.shape.0).map(count).collect::<Result<_, _>>()?))
    }
}

impl Op for BlockScale {
    const NAME: &'static str = "block_scale";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        let [x] = types.exactly()?;
        types.same_float(types.operands)?;
        if self.element == DType::Bool || self.element == DType::E8M0 {
            return Err(Mismatch::new(
                "an element type that holds signed numbers",
                self.element.to_string(),
            ));
        }
        Ok(vec![TensorType::new(self.scale.dtype(x.dtype), self.shape(x)?)])
    }

    fn eval(&self, args: &[Array], _regions: &[Graph]) -> Vec<Array> {
        let x = &args[0];
        let shape =
            self.shape(&x.ty()).expect("types were inferred").known().expect("extents are known");
        let blocks = Blocks::new(&x.shape, &shape);
        let mut largest = Array::build(DType::F64, &shape, |_| 0.0);
        let positions = Array::build(DType::F64, &shape, |_| 0.0);
        let crate::eval::Data::Float(values) = &mut largest.data else {
            unreachable!("f64 is a float")
        };
        crate::eval::for_each_index(&x.shape, |at| {
            let (value, covered) = (x.at(at).abs(), positions.position(&blocks.at(at)));
            values[covered] =
                if value.is_nan() || value > values[covered] { value } else { values[covered] };
        });
        let dtype = self.scale.dtype(x.dtype);
        vec![Array::float(
            dtype,
            &shape,
            largest.floats().iter().map(|&a| self.scale.of(a, self.element)).collect(),
        )]
    }

    fn expand<'b>(&self, b: &'b Builder, args: &[Expr<'b>], _regions: &[Graph]) -> Vec<Expr<'b>> {
        let x = args[0].widen();
        let shape =
            self.shape(&x.ty()).expect("types were inferred").known().expect("extents are known");
        let blocks = Blocks::new(&x.sizes(), &shape);
        let split = blocks.split(x);
        // The largest magnitude of no elements is 0, not the identity of the maximum.
        let a = blocks.fold(split.max(-split), Reducer::Max);
        let a = a.max(a.constant(0.0));
        let max = self.element.max_value();
        let word = |value: f64| b.constant(crate::Tensor::scalar(DType::U32, value));
        let cast = |x: Expr<'b>, to: DType| b.op1(Prim::Bitcast { to }, &[x]);
        let exponent =
            |word_of: Expr<'b>| cast(word_of.binary(Binary::And, word(EXPONENT)), DType::F32);
        let finite = |q: Expr<'b>, power: Expr<'b>| {
            q.compare(Compare::Le, q.constant(f64::from(f32::MAX)))
                .select(power, q)
                .convert(DType::E8M0)
        };
        vec![match self.scale {
            ScaleFormat::Wide => (a / max).max(a.constant(TINY)),
            ScaleFormat::F8e4m3 => {
                let wide = a.convert(DType::F32) / max;
                let overflow = Overflow::Saturate;
                b.op1(
                    Prim::Convert { to: DType::F8E4M3, overflow },
                    &[wide.max(wide.constant(SMALLEST_E4M3))],
                )
            }
            ScaleFormat::E8m0Floor => {
                let power_of_max = 2f64.powf(max.log2().floor());
                let a = a.convert(DType::F32);
                let a = a.max(a.constant(TINY * power_of_max));
                finite(a, exponent(cast(a, DType::U32)) * (1.0 / power_of_max))
            }
            ScaleFormat::E8m0Up => {
                let q = a.convert(DType::F32) / max;
                let q = q.max(q.constant(TINY));
                finite(q, exponent(cast(q, DType::U32) + word(MANTISSA)))
            }
        }]
    }

    fn samples() -> Vec<Sample> {
        let sample = |block: &[Option<usize>], element, scale| {
            Sample::new(BlockScale { block: block.to_vec(), element, scale })
        };
        let powers = Fill::Values(vec![0.0, 448.0, 449.0, 1e-30, -6.0, 6.5, 1.0, -0.999]);
        vec![
            sample(&[Some(1), None], DType::I8, ScaleFormat::Wide).normal(["M", "K"]),
            sample(&[None, Some(4)], DType::I4, ScaleFormat::Wide)
                .normal(["M".into(), Dim::Size(12)]),
            sample(&[Some(1), Some(32)], DType::F8E4M3, ScaleFormat::E8m0Floor)
                .normal(["M".into(), Dim::Size(64)]),
            sample(&[Some(1)], DType::F8E4M3, ScaleFormat::E8m0Up)
                .operand(TensorType::new(DType::F32, [8usize]), powers.clone()),
            sample(&[Some(1)], DType::F4E2M1, ScaleFormat::E8m0Floor)
                .operand(TensorType::new(DType::F32, [8usize]), powers),
            sample(&[Some(1), Some(16)], DType::F4E2M1, ScaleFormat::F8e4m3)
                .normal(["M".into(), Dim::Size(32)]),
        ]
    }
}
