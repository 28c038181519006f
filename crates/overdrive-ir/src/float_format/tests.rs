//! Every code, every 16-bit input, ties and edges of f32, against a search among all values of a
//! format.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::DType;

const SMALL: [DType; 5] =
    [DType::F8E4M3, DType::F8E5M2, DType::F6E2M3, DType::F6E3M2, DType::F4E2M1];

/// The finite values of a format that are not negative, by code.
fn magnitudes(format: &FloatFormat) -> Vec<f64> {
    (0..=format.max_code()).map(|code| format.decode(code)).collect()
}

/// The code nearest to a finite `x` by search: the definition of round to nearest, ties to even.
/// Beyond the largest value there is one more step, which overflows.
fn nearest(format: &FloatFormat, values: &[f64], x: f64) -> Option<u32> {
    let a = x.abs();
    let beyond = 2.0 * values[values.len() - 1] - values[values.len() - 2];
    let above = values.partition_point(|v| *v < a);
    let high = values.get(above).copied().unwrap_or(beyond);
    let code = match above {
        0 => 0,
        _ => {
            let (down, up) = (a - values[above - 1], high - a);
            if up < down || (up == down && above % 2 == 0) { above } else { above - 1 }
        }
    };
    let sign = if x.is_sign_negative() { format.sign_bit() } else { 0 };
    (code < values.len() && a < beyond).then_some(sign | code as u32)
}

/// Inputs that matter: every f16, every bf16, and in f32 each value, each midpoint of two, and
/// their neighbours.
fn inputs(values: &[f64]) -> Vec<f64> {
    let halves = (0..=u16::MAX).flat_map(|bits| {
        [half::f16::from_bits(bits).to_f64(), half::bf16::from_bits(bits).to_f64()]
    });
    let midpoints = values.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
    let edges = values.iter().copied().chain(midpoints).flat_map(|v| {
        let v = v as f32;
        [v, v.next_up(), v.next_down()].map(f64::from)
    });
    let all: Vec<f64> = halves.chain(edges.clone()).chain(edges.map(|v| -v)).collect();
    all.into_iter().filter(|x| x.is_finite()).collect()
}

#[test]
fn every_input_of_16_bits_and_every_tie_gets_the_nearest_code() {
    for dtype in SMALL {
        let format = dtype.float_format().unwrap();
        let values = magnitudes(&format);
        for x in inputs(&values) {
            let saturated = format.encode(x, Overflow::Saturate);
            let sign = if x.is_sign_negative() { format.sign_bit() } else { 0 };
            let expected = nearest(&format, &values, x);
            assert_eq!(
                saturated,
                expected.unwrap_or(sign | format.max_code()),
                "{dtype} {x:e} saturating"
            );
            let ieee = format.decode(format.encode(x, Overflow::Ieee));
            match expected {
                Some(code) => assert_eq!(format.encode(x, Overflow::Ieee), code, "{dtype} {x:e}"),
                None if format.specials == Specials::Ieee => {
                    assert_eq!(ieee, f64::INFINITY.copysign(x))
                }
                None if format.specials == Specials::NanOnly => {
                    assert!(ieee.is_nan(), "{dtype} {x:e}")
                }
                None => assert_eq!(ieee.abs(), format.max(), "{dtype} {x:e}"),
            }
        }
        assert!(
            format.specials == Specials::None
                || format.decode(format.encode(f64::NAN, Overflow::Ieee)).is_nan()
        );
    }
}

#[test]
fn published_edges_of_fp8() {
    let e4m3 = DType::F8E4M3.float_format().unwrap();
    let e5m2 = DType::F8E5M2.float_format().unwrap();
    assert_eq!(e4m3.decode(e4m3.encode(464.0, Overflow::Ieee)), 448.0);
    assert!(e4m3.decode(e4m3.encode(465.0, Overflow::Ieee)).is_nan());
    assert_eq!(e4m3.decode(e4m3.encode(465.0, Overflow::Saturate)), 448.0);
    assert_eq!(e5m2.decode(e5m2.encode(58000.0, Overflow::Ieee)), 57344.0);
    assert_eq!(e5m2.decode(e5m2.encode(-62000.0, Overflow::Ieee)), f64::NEG_INFINITY);
    assert_eq!(e4m3.decode(1), 2f64.powi(-9));
    assert_eq!(e5m2.decode(1), 2f64.powi(-16));
}

#[test]
fn half_formats_agree_with_the_half_crate_on_every_code_and_on_random_values() {
    let (f16, bf16) = (DType::F16.float_format().unwrap(), DType::BF16.float_format().unwrap());
    for code in 0..=u16::MAX {
        for (format, reference) in [
            (f16, half::f16::from_bits(code).to_f64()),
            (bf16, half::bf16::from_bits(code).to_f64()),
        ] {
            let value = format.decode(code as u32);
            assert!(value == reference || (value.is_nan() && reference.is_nan()), "{code:#x}");
            if !value.is_nan() {
                assert_eq!(format.encode(value, Overflow::Ieee), code as u32);
            }
        }
    }
    let mut state = 1u64;
    for _ in 0..200_000 {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let x = f32::from_bits((state >> 32) as u32) as f64;
        if x.is_nan() {
            continue;
        }
        assert_eq!(
            f16.encode(x, Overflow::Ieee),
            half::f16::from_f32(x as f32).to_bits() as u32,
            "{x:e}"
        );
        assert_eq!(
            bf16.encode(x, Overflow::Ieee),
            half::bf16::from_f32(x as f32).to_bits() as u32,
            "{x:e}"
        );
    }
}

#[test]
fn micro_formats_round_trip_every_code_and_have_the_published_maxima() {
    for (dtype, max) in [
        (DType::F8E4M3, 448.0),
        (DType::F8E5M2, 57344.0),
        (DType::F6E2M3, 7.5),
        (DType::F6E3M2, 28.0),
        (DType::F4E2M1, 6.0),
        (DType::E8M0, 2f64.powi(127)),
    ] {
        let format = dtype.float_format().unwrap();
        assert_eq!(format.max(), max, "{dtype}");
        for code in 0..(1u32 << dtype.bits()) {
            let value = format.decode(code);
            if !value.is_nan() {
                assert_eq!(format.encode(value, Overflow::Ieee), code, "{dtype} {code:#x}");
            }
        }
    }
}
