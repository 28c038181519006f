//! What can be measured: anything that can be called, and that can say whether its answer was
//! right.

use std::hint::black_box;
use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::oracle::Tolerance;
use crate::outcome::Failure;
use crate::series::Flag;

/// Something that can be called once and timed: an executable, a library's function, a closure.
pub trait Subject {
    /// Puts the inputs of these calls in place, untimed. Inputs are random normal, never zeros, and
    /// differ from call to call; a subject may rotate through a pool by `index`.
    ///
    /// # Errors
    /// Whatever keeps the calls from being made.
    fn prepare(&mut self, calls: Range<u64>) -> Result<(), Failure> {
        let _ = calls;
        Ok(())
    }

    /// One call, to its completion. `index` counts the calls since the beginning.
    ///
    /// # Errors
    /// Whatever kept the call from completing.
    fn call(&mut self, index: u64) -> Result<(), Failure>;

    /// Runs on inputs drawn from `seed` and compares the output with a reference of higher
    /// precision; the output buffer is filled with NaN before and the inputs are found unchanged
    /// after. `None` says that there is no reference, and then nothing may be claimed.
    ///
    /// # Errors
    /// Whatever kept the comparison from being made.
    fn verify(&mut self, seed: u64) -> Result<Option<Deviation>, Failure>;

    /// What outputs are compared with, for the results.
    fn reference(&self) -> &str {
        "given by the caller"
    }

    /// Steps of a call, each of which a device with a clock of its own is told to begin; `None`
    /// where none is known.
    fn launches_per_call(&self) -> Option<u64> {
        None
    }

    /// Compares the output of the call made last, one of those that were timed, with the reference.
    /// `None` where the subject does not keep it.
    ///
    /// # Errors
    /// Whatever kept the comparison from being made.
    fn verify_last(&mut self) -> Result<Option<Deviation>, Failure> {
        Ok(None)
    }

    /// Times these calls as one span. The default reads the host's clock around [`Subject::call`];
    /// a back end with a clock of its own reads that too.
    ///
    /// # Errors
    /// Those of [`Subject::call`].
    fn sample(&mut self, calls: Range<u64>, clock: &dyn Clock) -> Result<Reading, Failure> {
        on_the_host(self, calls, clock)
    }
}

/// Reads the host's clock around these calls.
pub(crate) fn on_the_host<S: Subject + ?Sized>(
    subject: &mut S,
    calls: Range<u64>,
    clock: &dyn Clock,
) -> Result<Reading, Failure> {
    let start = clock.now_ns();
    for index in calls {
        subject.call(index)?;
    }
    Ok(Reading::host(clock.now_ns() - start))
}

/// One timed span, as a [`Subject`] read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// Span on the host's clock.
    pub host_ns: u64,
    /// Span on the device's clock, where it has one.
    pub device_ns: Option<u64>,
    /// Device cycles during the span.
    pub cycles: Option<u64>,
    /// What the device reported meanwhile.
    pub flags: Vec<Flag>,
}

impl Reading {
    /// A span that only the host timed.
    pub fn host(host_ns: u64) -> Self {
        Self { host_ns, device_ns: None, cycles: None, flags: Vec::new() }
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

/// A closure as a subject, so that any two implementations can be compared.
///
/// `verify` has no default: an implementation whose answer nobody checks can be timed, but its
/// closure must say so by returning `Ok(None)`.
pub struct Function<F, V> {
    call: F,
    verify: V,
}

impl<T, F, V> Function<F, V>
where
    F: FnMut(u64) -> T,
    V: FnMut(u64) -> Result<Option<Deviation>, Failure>,
{
    /// `call` is given the index of the call, and its result is kept from being optimised away;
    /// `verify` a seed.
    pub fn new(call: F, verify: V) -> Self {
        Self { call, verify }
    }
}

impl<T, F, V> Subject for Function<F, V>
where
    F: FnMut(u64) -> T,
    V: FnMut(u64) -> Result<Option<Deviation>, Failure>,
{
    fn call(&mut self, index: u64) -> Result<(), Failure> {
        black_box((self.call)(index));
        Ok(())
    }

    fn verify(&mut self, seed: u64) -> Result<Option<Deviation>, Failure> {
        (self.verify)(seed)
    }
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
