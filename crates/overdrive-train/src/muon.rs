//! Muon: the moment of a matrix, made orthogonal.
//!
//! `m' = μ m + g` and `u = g + μ m'` (Nesterov). With `u = U S Vᵀ` the update is about `U Vᵀ`: all
//! directions of the moment count alike. Five Newton-Schulz steps bring the singular values near 1,
//! to between 0.7 and 1.2. They are products alone, of the smaller side:
//!
//! `X = u / |u|`, then five times `A = X Xᵀ`, `X' = a X + (b A + c A A) X`.
//!
//! Then `p' = p - lr (0.2 √max(rows, columns) X + λ p)`. The factor gives the update the root mean
//! square of AdamW's, so that rate and decay are AdamW's too. Sources: Jordan et al., "Muon: an
//! optimizer for hidden layers in neural networks", 2024; Liu et al., "Muon is scalable for LLM
//! training", arXiv:2502.16982.

use overdrive_ir::{DType, Expr};

/// The scope of a matrix's Newton-Schulz steps.
pub(crate) const ORTHOGONAL: &str = "orthogonal";

/// a, b and c.
const COEFFICIENTS: [f64; 3] = [3.4445, -4.7750, 2.0315];
const STEPS: usize = 5;
/// Root mean square of AdamW's updates.
const LIKE_ADAMW: f64 = 0.2;
/// Keeps the quotient of a zero matrix finite.
const TINY: f64 = 1e-7;

/// The update of a matrix from the moment `u`, f32, before rate and decay. Operands of products are
/// rounded to `products`; sums are in f32.
pub(crate) fn direction<'b>(u: Expr<'b>, products: DType) -> Expr<'b> {
    let [rows, columns] = [u.size(0), u.size(1)];
    let _scope = u.builder().scope(ORTHOGONAL);
    let dot = |x: Expr<'b>, y: Expr<'b>, contract: (usize, usize)| {
        x.convert(products).dot_to(y.convert(products), &[], &[contract], u.dtype())
    };
    let [a, b, c] = COEFFICIENTS;
    let norm = (u * u).sum(&[0, 1]).sqrt();
    let mut x = u / (norm + TINY);
    for _ in 0..STEPS {
        let is_wide = rows <= columns;
        let square = if is_wide { dot(x, x, (1, 1)) } else { dot(x, x, (0, 0)) };
        let inner = square * b + dot(square, square, (1, 0)) * c;
        let more = if is_wide { dot(inner, x, (1, 0)) } else { dot(x, inner, (1, 0)) };
        x = x * a + more;
    }
    x * (LIKE_ADAMW * (rows.max(columns) as f64).sqrt())
}
