//! Conversions as the reference rounds them: to nearest even, and beyond a format's largest value
//! as asked.

use super::writer::{Term, Writer};
use overdrive_ir::{DType, Overflow, TensorType};

pub(super) fn convert(w: &mut Writer, x: &Term, to: DType, overflow: Overflow) -> Term {
    let from = x.dtype();
    match (from.is_float(), to.is_float()) {
        _ if from == to => x.clone(),
        _ if to == DType::Bool || from == DType::Bool && !to.is_float() => w.cast(x, to),
        (true, true) => float_to_float(w, x, to, overflow),
        (false, true) if matches!(to, DType::F64 | DType::F32) => w.cast(x, to),
        (false, true) => {
            let wide = w.cast(x, if from.bits() >= 32 { DType::F64 } else { DType::F32 });
            float_to_float(w, &wide, to, overflow)
        }
        (true, false) => float_to_int(w, x, to),
        (false, false) if overflow == Overflow::Saturate => {
            let range = |dtype: DType| dtype.int_range().expect("an integer type has a range");
            let ((low, high), (least, most)) = (range(to), range(from));
            let inside = if low > least || high < most {
                clamp_int(w, x, low.max(least), high.min(most))
            } else {
                x.clone()
            };
            w.cast(&inside, to)
        }
        (false, false) => w.cast(x, to),
    }
}

/// XLA truncates, saturates and makes 0 of NaN, as the reference does, in types of whole bytes.
fn float_to_int(w: &mut Writer, x: &Term, to: DType) -> Term {
    let x = if x.dtype().is_arithmetic_float() { x.clone() } else { w.cast(x, DType::F32) };
    if to.bits() >= 8 {
        return w.cast(&x, to);
    }
    let (low, high) = to.int_range().expect("an integer type has a range");
    let byte = w.cast(&x, DType::I8);
    let inside = clamp_int(w, &byte, low, high);
    w.cast(&inside, to)
}

fn clamp_int(w: &mut Writer, x: &Term, low: i128, high: i128) -> Term {
    let (low, high) = (w.full_int(&x.ty, low), w.full_int(&x.ty, high));
    w.apply("clamp", &[&low, x, &high], "", x.ty.clone())
}

fn float_to_float(w: &mut Writer, x: &Term, to: DType, overflow: Overflow) -> Term {
    let from = x.dtype();
    if to == DType::E8M0 {
        return exponent(w, x, overflow);
    }
    let finite_only = to == DType::F4E2M1;
    let narrows = to.max_value() < from.max_value();
    if !narrows || (overflow == Overflow::Ieee && !finite_only) {
        return w.cast(x, to);
    }
    let x = if from.is_arithmetic_float() { x.clone() } else { w.cast(x, DType::F32) };
    let (low, high) = (w.full(&x.ty, -to.max_value()), w.full(&x.ty, to.max_value()));
    let mut inside = w.apply("clamp", &[&low, &x, &high], "", x.ty.clone());
    if finite_only {
        // A format without NaN has no better answer than its largest value.
        let number = w.compare("EQ", &x, &x);
        inside = w.select(&number, &inside, &high);
    } else if to != DType::F8E4M3 {
        // Infinity stays infinity where the format has one.
        let finite = w.apply("is_finite", &[&x], "", x.ty.with_dtype(DType::Bool));
        inside = w.select(&finite, &inside, &x);
    }
    w.cast(&inside, to)
}

/// Bits of the mantissa of √2 in f64. The exponent of larger mantissas is rounded up.
const ROOT_OF_TWO: i128 = 0x6_A09E_667F_3BCD;

/// To `e8m0`, a power of two: rounds the exponent, where XLA would round the value.
fn exponent(w: &mut Writer, x: &Term, overflow: Overflow) -> Term {
    let wide = w.cast(x, DType::F64);
    let bits = w.bitcast(&wide, DType::I64);
    let ty: TensorType = bits.ty.clone();
    let mantissa_mask = w.full_int(&ty, (1 << 52) - 1);
    let mantissa = w.map("and", &[&bits, &mantissa_mask]);
    let root = w.full_int(&ty, ROOT_OF_TWO);
    let above = w.compare("GT", &mantissa, &root);
    let carry = w.cast(&above, DType::I64);
    let places = w.full_int(&ty, 52);
    let shifted = w.map("shift_right_logical", &[&bits, &places]);
    let exponent_mask = w.full_int(&ty, 0x7FF);
    let field = w.map("and", &[&shifted, &exponent_mask]);
    let rounded = w.map("add", &[&field, &carry]);
    let rebias = w.full_int(&ty, 1023 - 127);
    let code = w.map("subtract", &[&rounded, &rebias]);
    let (zero, last, nan) = (w.full_int(&ty, 0), w.full_int(&ty, 254), w.full_int(&ty, 255));
    let beyond = if overflow == Overflow::Saturate { &last } else { &nan };
    let code = w.map("maximum", &[&code, &zero]);
    let fits = w.compare("LE", &code, &last);
    let code = w.select(&fits, &code, beyond);
    let none = w.full(&wide.ty, 0.0);
    let is_size = w.compare("GE", &wide, &none);
    let code = w.select(&is_size, &code, &nan);
    let byte = w.cast(&code, DType::U8);
    w.bitcast(&byte, DType::E8M0)
}
