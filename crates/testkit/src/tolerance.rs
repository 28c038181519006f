//! How far a result may lie from the f64 definition.
//!
//! Invariant: a tolerance is computed from the element type, the length of the longest sum and the
//! magnitude of what is summed. It is never tuned until a test passes.

use overdrive_ir::{Array, DType};

/// A bound on `|found - expected|`.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Tolerance {
    /// Relative to the expected element.
    pub relative: f64,
    /// In addition, whatever the element.
    pub absolute: f64,
}

impl Tolerance {
    /// For results of type `dtype` after sums of `length` terms of about `magnitude`, accumulated
    /// in at least f32.
    ///
    /// The result is rounded once to its own type, and what it was made from a few times. A sum of
    /// n terms errs by at most (n - 1) units of the accumulator, and by about √n in practice. The
    /// tolerance is √n with a margin of four. Source: Higham and Mary, "A new approach to
    /// probabilistic rounding error analysis", SIAM J. Sci. Comput. 2019.
    pub fn new(dtype: DType, length: usize, magnitude: f64) -> Self {
        let sum = 4.0 * (length.max(1) as f64).sqrt() * dtype.accumulation().epsilon();
        let unit = 4.0 * dtype.epsilon();
        Self { relative: unit, absolute: (unit + sum) * magnitude }
    }

    /// Whether `found` may stand for `expected`: NaN for NaN, infinities exactly.
    pub fn allows(&self, expected: f64, found: f64) -> bool {
        if expected.is_nan() || found.is_nan() {
            return expected.is_nan() && found.is_nan();
        }
        expected == found
            || (found - expected).abs() <= self.absolute + self.relative * expected.abs()
    }
}

/// Largest finite magnitude of any element, and at least the smallest normal number.
pub(crate) fn magnitude<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> f64 {
    let elements = arrays.into_iter().filter(|a| a.dtype.is_float()).flat_map(|a| a.floats());
    elements.filter(|x| x.is_finite()).fold(f64::MIN_POSITIVE, |max, x| max.max(x.abs()))
}

/// Errs with the worst element where `found` is not `expected`: types, integers exactly, floats
/// within `tolerance`.
pub fn compare(expected: &Array, found: &Array, tolerance: Tolerance) -> Result<(), String> {
    if expected.ty() != found.ty() {
        return Err(format!("expected {}, found {}", expected.ty(), found.ty()));
    }
    if !expected.dtype.is_float() {
        let differing = expected.ints().iter().zip(found.ints()).position(|(e, f)| e != f);
        return differing.map_or(Ok(()), |i| {
            Err(format!("element {i}: expected {}, found {}", expected.ints()[i], found.ints()[i]))
        });
    }
    let pairs = || expected.floats().iter().zip(found.floats()).enumerate();
    let wrong = pairs().filter(|(_, (e, f))| !tolerance.allows(**e, **f)).count();
    let distance = |e: f64, f: f64| if (e - f).is_nan() { f64::INFINITY } else { (e - f).abs() };
    let worst = pairs()
        .filter(|(_, (e, f))| !tolerance.allows(**e, **f))
        .max_by(|a, b| distance(*a.1.0, *a.1.1).total_cmp(&distance(*b.1.0, *b.1.1)));
    worst.map_or(Ok(()), |(i, (e, f))| {
        let count = expected.len();
        Err(format!(
            "{wrong} of {count} elements, the worst at {i}: expected {e:e}, found {f:e}, \
             {tolerance:?}"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tolerance_tells_rounding_from_error() {
        let tolerance = Tolerance::new(DType::F32, 100, 1.0);
        assert!(tolerance.allows(1.0, 1.0 + 1e-7) && !tolerance.allows(1.0, 1.0 + 1e-4));
        assert!(
            tolerance.allows(f64::NEG_INFINITY, f64::NEG_INFINITY)
                && tolerance.allows(f64::NAN, f64::NAN)
        );
        for wrong in [f64::NAN, f64::INFINITY, 0.0] {
            assert!(!tolerance.allows(1.0, wrong), "{wrong}");
        }
        assert!(
            Tolerance::new(DType::BF16, 1, 1.0).absolute
                > Tolerance::new(DType::F16, 1, 1.0).absolute
        );
    }
}
