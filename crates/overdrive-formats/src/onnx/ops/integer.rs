//! Products of codes: operands of matrix products and convolutions in the form in which `Codes` are
//! multiplied.

use crate::onnx::axes::{broadcast, common, sizes};
use crate::onnx::call::{Call, Outcome, one};
use crate::onnx::fault::{Fault, invalid};
use overdrive_ir::{Codes, DType, Expr, Tensor};

/// Codes, and their zero point where it is not known to be 0.
pub(super) type Offset<'b> = (Expr<'b>, Option<Expr<'b>>);

/// The dimension of a matrix that has a zero point for each element.
#[derive(Copy, Clone)]
pub(super) enum ZeroPointAxis {
    /// The last but one, of a left operand.
    Rows,
    /// The last, of a right operand.
    Columns,
}

/// The zero point, unless it is known to be 0 throughout.
pub(super) fn offset<'b>(c: &Call<'_, 'b>, index: usize) -> Result<Option<Expr<'b>>, Fault> {
    let nothing = |tensor: &Tensor| tensor.to_f64().iter().all(|&x| x == 0.0);
    if c.peek(index).is_some_and(nothing) { Ok(None) } else { c.maybe(index) }
}

/// Errs unless these are codes that a device multiplies.
pub(super) fn check(codes: Expr<'_>) -> Result<(), Fault> {
    match codes.dtype() {
        DType::I8 | DType::U8 => Ok(()),
        _ => Err(invalid("codes of 8-bit integers", codes.ty().to_string())),
    }
}

/// Codes as matrices; a vector is a row on the left and a column on the right.
fn matrix((codes, zero): Offset<'_>, side: ZeroPointAxis) -> Result<Codes<'_>, Fault> {
    check(codes)?;
    let mut shape = sizes(codes)?;
    match (shape.len(), side) {
        (0, _) => return Err(invalid("codes of one dimension or more", codes.ty().to_string())),
        (1, ZeroPointAxis::Rows) => shape.insert(0, 1),
        (1, ZeroPointAxis::Columns) => shape.push(1),
        _ => {}
    }
    let rank = shape.len();
    let (axis, summed) = match side {
        ZeroPointAxis::Rows => (rank - 2, rank - 1),
        ZeroPointAxis::Columns => (rank - 1, rank - 2),
    };
    let aligned = |zero: Expr<'_>| {
        let given = sizes(zero)?;
        let mut along = vec![1; rank];
        along[axis] = shape[axis];
        if given.iter().product::<usize>() == 1 {
            Ok(vec![1; rank])
        } else if given == [shape[axis]] {
            Ok(along)
        } else if given.len() == rank && given[summed] == 1 {
            Ok(given)
        } else {
            Err(invalid(format!("a zero point, or {} of them", shape[axis]), zero.ty().to_string()))
        }
    };
    let zero = zero.map(|zero| aligned(zero).map(|shape| zero.reshape(shape))).transpose()?;
    Ok(Codes { codes: codes.reshape(shape), zero })
}

/// NumPy's matmul of codes, in i32.
pub(super) fn matmul_codes<'b>(x: Offset<'b>, y: Offset<'b>) -> Result<Expr<'b>, Fault> {
    let vectors = [x.0.rank() == 1, y.0.rank() == 1];
    let (x, y) = (matrix(x, ZeroPointAxis::Rows)?, matrix(y, ZeroPointAxis::Columns)?);
    let (mut a, mut b) = (sizes(x.codes)?, sizes(y.codes)?);
    let sums = if b.len() == 2 {
        x.dot(y, &[], &[(a.len() - 1, 0)])
    } else {
        let lead = common(&a[..a.len() - 2], &b[..b.len() - 2])?;
        let rank = lead.len() + 2;
        let widened = |of: Codes<'b>, shape: &[usize]| {
            let aligned = |zero: Expr<'b>| {
                let own = zero.sizes();
                zero.reshape([vec![1; rank - own.len()], own].concat())
            };
            Codes { codes: broadcast(of.codes, shape), zero: of.zero.map(aligned) }
        };
        a.splice(..a.len() - 2, lead.iter().copied());
        b.splice(..b.len() - 2, lead.iter().copied());
        let batch: Vec<(usize, usize)> = (0..lead.len()).map(|i| (i, i)).collect();
        widened(x, &a).dot(widened(y, &b), &batch, &[(rank - 1, rank - 2)])
    };
    let shape = sizes(sums)?;
    let last = shape.len() - 2;
    let kept = |&(axis, _): &(usize, usize)| axis < last || !vectors[axis - last];
    let shape: Vec<usize> = shape.into_iter().enumerate().filter(kept).map(|(_, n)| n).collect();
    Ok(sums.reshape(shape))
}

/// i32 sums of 8-bit products, without zero points.
pub(super) fn mat_mul_integer<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    one(matmul_codes((c.x(0)?, c.maybe(2)?), (c.x(1)?, c.maybe(3)?))?)
}
