//! How far an output is from its reference, and how far it may be.

use overdrive_ir::DType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// How far an output may be from its reference.
///
/// With `rounding`, each element is held to the scale of what was summed for it. Otherwise each is
/// held to `|output - reference| <= atol + rtol |reference|`, and all of them together to the root
/// of the mean square of their differences.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// Relative part.
    pub rtol: f64,
    /// Absolute part, in the unit of the output.
    pub atol: f64,
    /// Limit on the root mean square of the error, in the unit of the output; infinite if only
    /// elements are judged.
    pub rms: f64,
    /// The largest relative error of a rounding, where each element is held to its own
    /// [`Sensitivity`](crate::oracle::Sensitivity); `rtol` is then without meaning.
    pub rounding: Option<f64>,
}

impl Tolerance {
    /// Judges each element alone.
    pub fn of_elements(rtol: f64, atol: f64) -> Self {
        Self { rtol, atol, rms: f64::INFINITY, rounding: None }
    }

    /// Judges each element by its own [`Sensitivity`](crate::oracle::Sensitivity). `rounding` is
    /// the largest relative error of a rounding, `floor` the absolute error that every element may
    /// have.
    pub fn of_rounding(rounding: f64, floor: f64) -> Self {
        Self { rounding: Some(rounding), ..Self::of_elements(0.0, floor) }
    }

    /// Units in the last place of `dtype`, relative to an output's own size and to a typical output
    /// of size 1.
    pub fn ulps(dtype: DType, ulps: f64) -> Self {
        Self::of_elements(ulps * dtype.epsilon(), ulps * dtype.epsilon())
    }
}

/// How far an output was from its reference, at worst.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Deviation {
    /// Values compared.
    pub values: u64,
    /// Largest absolute difference.
    pub absolute: f64,
    /// Largest difference relative to the reference's value, where that is not 0.
    pub relative: f64,
    /// Largest difference as a share of what the tolerance allows there; above 1, or NaN,
    /// disagrees.
    pub share_of_tolerance: f64,
}

impl Deviation {
    /// No difference, in no values.
    pub fn none() -> Self {
        Self { values: 0, absolute: 0.0, relative: 0.0, share_of_tolerance: 0.0 }
    }

    /// The worst of both, over the values of both.
    #[must_use]
    pub fn or_worse(self, other: Self) -> Self {
        Self {
            values: self.values + other.values,
            absolute: larger(self.absolute, other.absolute),
            relative: larger(self.relative, other.relative),
            share_of_tolerance: larger(self.share_of_tolerance, other.share_of_tolerance),
        }
    }

    /// Compares element by element, and all together where the tolerance says how. A NaN agrees
    /// with nothing, and an infinity only with itself.
    ///
    /// # Errors
    /// When the lengths differ.
    pub fn between(
        output: &[f64],
        reference: &[f64],
        tolerance: Tolerance,
    ) -> Result<Self, Failure> {
        let Tolerance { rtol, atol, rms, .. } = tolerance;
        if output.len() != reference.len() {
            return Err(Failure::incorrect(format!(
                "the output has {} values, the reference {}",
                output.len(),
                reference.len()
            )));
        }
        let mut worst = Self { values: output.len() as u64, ..Self::none() };
        let mut squares = 0.0;
        for (&value, &expected) in output.iter().zip(reference) {
            let difference = if value == expected { 0.0 } else { (value - expected).abs() };
            worst.absolute = larger(worst.absolute, difference);
            squares += difference * difference;
            if difference != 0.0 {
                if expected != 0.0 {
                    worst.relative = larger(worst.relative, difference / expected.abs());
                }
                worst.share_of_tolerance =
                    larger(worst.share_of_tolerance, difference / (atol + rtol * expected.abs()));
            }
        }
        if rms.is_finite() {
            let found = (squares / output.len().max(1) as f64).sqrt();
            worst.share_of_tolerance = larger(worst.share_of_tolerance, found / rms);
        }
        Ok(worst)
    }

    /// Whether every value was within the tolerance.
    pub fn agrees(&self) -> bool {
        self.share_of_tolerance <= 1.0
    }
}

/// The larger number, where NaN is larger than any: an error that cannot be expressed is not a
/// small one.
fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviation_is_measured_against_the_tolerance() {
        let deviation =
            Deviation::between(&[1.0, 2.02], &[1.0, 2.0], Tolerance::of_elements(0.01, 0.0))
                .unwrap();
        assert!(
            (deviation.absolute - 0.02).abs() < 1e-12 && (deviation.relative - 0.01).abs() < 1e-12
        );
        assert!(
            Deviation::between(&[2.01], &[2.0], Tolerance::of_elements(0.01, 0.0))
                .unwrap()
                .agrees()
        );
        assert!(
            !Deviation::between(&[2.03], &[2.0], Tolerance::of_elements(0.01, 0.0))
                .unwrap()
                .agrees()
        );
        assert!(
            Deviation::between(&[0.0], &[0.0], Tolerance::of_elements(0.0, 0.0)).unwrap().agrees()
        );
    }

    #[test]
    fn many_small_differences_are_one_large_one() {
        let held = Tolerance { rms: 0.02, ..Tolerance::of_elements(0.0, 0.1) };
        let few = Deviation::between(&[1.05, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], &[1.0; 8], held)
            .unwrap();
        assert!(few.agrees() && (few.share_of_tolerance - 0.05 / 8f64.sqrt() / 0.02).abs() < 1e-9);
        assert!(!Deviation::between(&[1.05; 8], &[1.0; 8], held).unwrap().agrees());
        assert!(!Deviation::between(&[f64::NAN], &[1.0], held).unwrap().agrees());
    }

    #[test]
    fn what_was_never_written_disagrees() {
        for (output, reference) in
            [(f64::NAN, 1.0), (1.0, f64::NAN), (f64::INFINITY, 1.0), (1.0, f64::INFINITY)]
        {
            let deviation = Deviation::between(
                &[output, 0.0],
                &[reference, 0.0],
                Tolerance::of_elements(1.0, 1.0),
            )
            .unwrap();
            assert!(!deviation.agrees(), "{output} against {reference}");
        }
        assert!(
            Deviation::between(
                &[f64::INFINITY],
                &[f64::INFINITY],
                Tolerance::of_elements(0.0, 0.0)
            )
            .unwrap()
            .agrees()
        );
        assert!(Deviation::between(&[1.0], &[1.0, 2.0], Tolerance::of_elements(1.0, 1.0)).is_err());
    }
}
