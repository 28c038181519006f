//! Outputs against those that a file expects: floats within a tolerance, everything else exactly.
//!
//! Integers, booleans and codes are exact, since a wrong one is wrong by however little; so are
//! infinities. Unsigned integers in a file, as wide as an output of a float format, are its bits:
//! NumPy views formats that it lacks this way. NaN agrees with NaN alone. If a file holds NaN, it
//! is expected, and the count is reported.

use overdrive::bench::deviation::Deviation;
use overdrive::bench::deviation::Tolerance;
use overdrive::ir::{DType, Tensor, TensorType};

/// Whether an output is as expected, and in words how near it is.
pub(super) fn verdict(found: &Tensor, expected: &Tensor, limit: Tolerance) -> (bool, String) {
    if let Some(reason) = incomparable(found.ty(), expected.ty()) {
        return (false, reason);
    }
    let (ours, theirs) = (found.ty().dtype, expected.ty().dtype);
    if ours.is_arithmetic_float() && theirs.is_arithmetic_float() {
        return floats(&found.to_f64(), &expected.to_f64(), limit);
    }
    match (ours.is_float(), theirs.is_float()) {
        (false, false) => exactly(&found.to_ints(), &expected.to_ints(), |a, b| a == b),
        (true, true) => {
            let same = |a: &f64, b: &f64| a == b || a.is_nan() && b.is_nan();
            exactly(&found.to_f64(), &expected.to_f64(), same)
        }
        _ => {
            let width = ours.bits().div_ceil(8);
            let bits = |tensor: &Tensor| -> Vec<u64> {
                let word = |bytes: &[u8]| {
                    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
                };
                tensor.bytes().chunks(width).map(word).collect()
            };
            exactly(&bits(found), &bits(expected), |a, b| a == b)
        }
    }
}

/// Why no values of these types agree, if none do.
pub(super) fn incomparable(found: &TensorType, expected: &TensorType) -> Option<String> {
    let (ours, theirs) = (found.dtype, expected.dtype);
    let of_a_kind =
        ours.is_float() == theirs.is_float() || are_bits(ours, theirs) || are_bits(theirs, ours);
    let agree = found.shape == expected.shape && of_a_kind;
    (!agree).then(|| format!("expected {expected}, found {found}"))
}

/// Whether unsigned integers of one format can be the bits of floats of the other.
fn are_bits(integers: DType, floats: DType) -> bool {
    let is_unsigned = matches!(integers, DType::U8 | DType::U16 | DType::U32 | DType::U64);
    is_unsigned && floats.is_float() && integers.bits() == floats.bits()
}

/// Element by element, with nothing between right and wrong.
fn exactly<T: std::fmt::Display>(
    found: &[T],
    expected: &[T],
    same: impl Fn(&T, &T) -> bool,
) -> (bool, String) {
    let pairs = || found.iter().zip(expected).enumerate();
    let wrong = pairs().filter(|(_, (a, b))| !same(a, b)).count();
    match pairs().find(|(_, (a, b))| !same(a, b)) {
        None => (true, format!("all {} values are equal", found.len())),
        Some((at, (a, b))) => {
            let count = found.len();
            (
                false,
                format!(
                    "{wrong} of {count} values differ, the first at {at}: expected {b}, found {a}"
                ),
            )
        }
    }
}

/// Finite values within the tolerance; infinities exactly, NaN where NaN is expected.
fn floats(found: &[f64], expected: &[f64], limit: Tolerance) -> (bool, String) {
    let both = |(a, b): &(&f64, &f64)| a.is_nan() && b.is_nan();
    let pairs = || found.iter().zip(expected);
    let nans = pairs().filter(both).count();
    let (mut ours, mut theirs, mut apart) = (Vec::new(), Vec::new(), 0);
    for (a, b) in pairs().filter(|pair| !both(pair)) {
        if a.is_finite() && b.is_finite() {
            ours.push(*a);
            theirs.push(*b);
        } else if a != b {
            apart += 1;
        }
    }
    let worst = Deviation::between(&ours, &theirs, limit).expect("both have one length");
    let mut text = format!(
        "largest difference {:.3e} absolute, {:.3e} relative (error {:.2} of the tolerance)",
        worst.absolute, worst.relative, worst.share_of_tolerance
    );
    if apart > 0 {
        text += &format!(", {apart} values are NaN or infinite in one and not so in the other");
    }
    if nans > 0 {
        text += &format!(", {nans} NaN where NaN is expected");
    }
    (worst.agrees() && apart == 0, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agree(found: &Tensor, expected: &Tensor) -> bool {
        verdict(found, expected, Tolerance::of_elements(1e-3, 1e-5)).0
    }

    #[test]
    fn only_floats_have_a_tolerance() {
        let ints = |dtype, value: i128| Tensor::from_ints(dtype, [2], &[value, 1]);
        let million = ints(DType::I64, 1_000_000);
        assert!(agree(&million, &million) && !agree(&million, &ints(DType::I64, 1_000_003)));
        assert!(
            agree(&million, &ints(DType::I32, 1_000_000)),
            "the width of an integer is no value"
        );
        let last = i128::from(i64::MAX);
        assert!(
            !agree(&ints(DType::I64, last), &ints(DType::I64, last - 1)),
            "no double tells them apart"
        );
        assert!(!agree(&ints(DType::Bool, 1), &ints(DType::Bool, 0)));
        let float = |value| Tensor::from_f64(DType::F32, [2], &[value, 1.0]);
        assert!(agree(&float(1e6), &float(1e6 + 3.0)));
        assert!(!agree(&million, &float(1e6)), "integers are no floats");
    }

    #[test]
    fn codes_are_exact_as_values_and_as_bits() {
        let scale = |value| Tensor::from_f64(DType::E8M0, [1], &[value]);
        assert!(agree(&scale(2f64.powi(-90)), &scale(2f64.powi(-90))));
        assert!(
            !agree(&scale(2f64.powi(-90)), &scale(2f64.powi(-91))),
            "both are smaller than the tolerance"
        );
        let bits = |value| Tensor::from_ints(DType::U8, [1], &[value]);
        assert!(agree(&scale(1.0), &bits(127)) && !agree(&scale(1.0), &bits(126)));
        let half = Tensor::from_f64(DType::BF16, [1], &[1.0]);
        assert!(agree(&half, &Tensor::from_ints(DType::U16, [1], &[0x3f80])));
        assert!(!agree(&half, &Tensor::from_ints(DType::U16, [1], &[0x3f81])));
    }

    #[test]
    fn infinities_are_exact_and_nan_is_counted() {
        let of = |values: &[f32]| Tensor::from_f32([3], values);
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        assert!(agree(&of(&[inf, -inf, 1.0]), &of(&[inf, -inf, 1.0])));
        for wrong in [[f32::MAX, -inf, 1.0], [-inf, -inf, 1.0], [nan, -inf, 1.0], [inf, -inf, nan]]
        {
            assert!(!agree(&of(&wrong), &of(&[inf, -inf, 1.0])), "{wrong:?}");
        }
        let limit = Tolerance::of_elements(1e-3, 1e-5);
        let (agrees, text) = verdict(&of(&[nan, 1.0, nan]), &of(&[nan, 1.0, nan]), limit);
        assert!(agrees && text.contains("2 NaN where NaN is expected"), "{text}");
    }
}
