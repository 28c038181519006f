//! `dropout(x, seed)`: `x / (1 - rate)` where a random number reaches the rate, 0 elsewhere.
//!
//! The numbers are Philox of (seed operand, site, element index) and of nothing else. So backward
//! draws the mask again in place of storing it, and a rematerialised clone (which keeps the site)
//! drops the same elements. Source: Srivastava et al., "Dropout: a simple way to prevent neural
//! networks from overfitting", JMLR 2014.

use crate::eval::philox;
use crate::{
    Array, Builder, Compare, DType, Expr, Fill, Gradient, Graph, Mismatch, Op, Prim, Sample, Shape,
    TensorType, Types,
};
use serde::{Deserialize, Serialize};

/// Zeroes elements at random and scales the rest.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Dropout {
    /// Probability of dropping, at least 0 and below 1.
    pub rate: f64,
    /// Identity of the draw.
    pub site: u64,
}

impl<'b> Expr<'b> {
    /// Drops elements at `rate`; `seed` is u64 and changes from step to step. The site is new.
    pub fn dropout(self, rate: f64, seed: Expr<'b>) -> Expr<'b> {
        let site = self.builder().site();
        self.builder().op1(Dropout { rate, site }, &[self, seed])
    }
}

impl Dropout {
    /// The type of a seed.
    pub const SEED: TensorType = TensorType { dtype: DType::U64, shape: Shape(vec![]) };

    /// An element stays where its 32 bits reach this number.
    pub fn threshold(&self) -> u32 {
        (self.rate * 2f64.powi(32)).round().min(u32::MAX as f64) as u32
    }

    /// Whether element `index` stays.
    fn keeps(&self, seed: u64, index: usize) -> bool {
        philox::bits(seed, self.site, index as u64) >= self.threshold()
    }

    /// Factor on element `index`.
    pub(super) fn factor(&self, seed: u64, index: usize) -> f64 {
        if self.keeps(seed, index) { 1.0 / (1.0 - self.rate) } else { 0.0 }
    }

    /// Errs unless the rate is one and the seed is there and has its type.
    pub(super) fn check(&self, seed: Option<&TensorType>) -> Result<(), Mismatch> {
        if seed != Some(&Self::SEED) {
            let found = seed.map_or("none".to_owned(), TensorType::to_string);
            return Err(Mismatch::new("a u64[] seed", found));
        }
        if !(0.0..1.0).contains(&self.rate) {
            return Err(Mismatch::new("a rate of at least 0 and below 1", self.rate.to_string()));
        }
        Ok(())
    }
}

impl Op for Dropout {
    const NAME: &'static str = "dropout";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        let [x, seed] = types.exactly()?;
        types.same_float(&types.operands[..1])?;
        self.check(Some(seed))?;
        Ok(vec![x.clone()])
    }

    fn eval(&self, args: &[Array], _regions: &[Graph]) -> Vec<Array> {
        let (x, seed) = (&args[0], args[1].ints()[0] as u64);
        let y =
            |(i, x): (usize, &f64)| if self.keeps(seed, i) { x / (1.0 - self.rate) } else { 0.0 };
        vec![Array::float(x.dtype, &x.shape, x.floats().iter().enumerate().map(y).collect())]
    }

    fn expand<'b>(&self, b: &'b Builder, args: &[Expr<'b>], _regions: &[Graph]) -> Vec<Expr<'b>> {
        let (x, seed) = (args[0].widen(), args[1]);
        let bits = b.op1(Prim::RandomBits { shape: x.shape(), site: self.site }, &[seed]);
        let kept = bits.compare(Compare::Ge, bits.constant(self.threshold() as f64));
        vec![kept.select(x * (1.0 / (1.0 - self.rate)), x.constant(0.0)).convert(args[0].dtype())]
    }

    /// Linear in x: the same op, seed and site on the cotangent.
    fn grad<'b>(&self, g: &Gradient<'b, '_>) -> Option<Vec<Option<Expr<'b>>>> {
        let dx = g.cotangents[0].map(|dy| g.builder.op1(*self, &[dy, g.inputs[1]]));
        Some(vec![dx, None])
    }

    fn samples() -> Vec<Sample> {
        let seeded = |rate, seed: f64| {
            move |sample: Sample| Sample {
                op: Dropout { rate, site: 3 }.into(),
                ..sample.operand(Dropout::SEED, Fill::Values(vec![seed]))
            }
        };
        let x = || Sample::new(Dropout { rate: 0.0, site: 3 });
        vec![
            seeded(0.1, 42.0)(x().normal(["M", "N"])),
            seeded(0.9, 7.0)(x().normal([5usize, 3, 2])),
            seeded(0.0, 1.0)(x().normal([9usize])),
        ]
    }
}
