//! Axes and extents as ONNX counts them: negative ones from the end.

use super::fault::{Fault, invalid, unsupported};
use overdrive_ir::{DType, Expr, Shape, Tensor, TensorType};

/// Extents of an expression; errs where the builder holds an error.
pub(super) fn sizes(x: Expr<'_>) -> Result<Vec<usize>, Fault> {
    if x.is_poison() { Err(Fault::Built) } else { Ok(x.sizes()) }
}

/// Extents of an expression of exactly `N` dimensions.
pub(super) fn exactly<const N: usize>(x: Expr<'_>, what: &str) -> Result<[usize; N], Fault> {
    let found = sizes(x)?;
    found.try_into().map_err(|_| invalid(format!("{what} of {N} dimensions"), x.ty().to_string()))
}

/// An axis of `rank` dimensions.
pub(super) fn axis(number: i64, rank: usize) -> Result<usize, Fault> {
    let wrapped = if number < 0 { number.checked_add(rank as i64).unwrap_or(-1) } else { number };
    let fits = usize::try_from(wrapped).ok().filter(|&a| a < rank);
    fits.ok_or_else(|| invalid(format!("an axis of {rank} dimensions"), number.to_string()))
}

/// Different axes of `rank` dimensions, in order.
pub(super) fn axes(numbers: &[i64], rank: usize) -> Result<Vec<usize>, Fault> {
    let mut found =
        numbers.iter().map(|&n| axis(n, rank)).collect::<Result<Vec<usize>, Fault>>()?;
    found.sort_unstable();
    match found.windows(2).all(|w| w[0] < w[1]) {
        true => Ok(found),
        false => Err(invalid("axes that differ", format!("{numbers:?}"))),
    }
}

/// An extent from an integer.
pub(super) fn extent(number: i64) -> Result<usize, Fault> {
    usize::try_from(number).map_err(|_| invalid("a size of at least 0", number.to_string()))
}

/// Extents from integers.
pub(super) fn extents(numbers: &[i64]) -> Result<Vec<usize>, Fault> {
    numbers.iter().map(|&n| extent(n)).collect()
}

/// A count of at least one: strides, dilations, groups, windows.
pub(super) fn positive(number: i64, what: &str) -> Result<usize, Fault> {
    match usize::try_from(number) {
        // The bound keeps products of a few of them within 64 bits.
        Ok(n) if (1..=1 << 31).contains(&n) => Ok(n),
        _ => Err(invalid(format!("{what} of at least 1"), number.to_string())),
    }
}

/// The shape that both broadcast to, as NumPy has it.
pub(super) fn common(a: &[usize], b: &[usize]) -> Result<Vec<usize>, Fault> {
    let rank = a.len().max(b.len());
    let at = |s: &[usize], i: usize| (i + s.len()).checked_sub(rank).map_or(1, |i| s[i]);
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (x, y) if x == y || y == 1 => Ok(x),
            (1, y) => Ok(y),
            _ => Err(invalid("shapes that broadcast", format!("{a:?} and {b:?}"))),
        })
        .collect()
}

/// Repeats `x` to `shape` as NumPy does.
pub(super) fn broadcast<'b>(x: Expr<'b>, shape: &[usize]) -> Expr<'b> {
    x.broadcast_to(&Shape::from(shape))
}

/// `x` with `indices` (any shape) along one axis, whose place the dimensions of `indices` take.
pub(super) fn take<'b>(x: Expr<'b>, indices: Expr<'b>, axis: usize) -> Result<Expr<'b>, Fault> {
    let (x_sizes, mut column) = (sizes(x)?, sizes(indices)?);
    let taken = column.len();
    if x_sizes[axis] == 0 && !column.contains(&0) {
        return Err(invalid("an axis with elements to take", x.ty().to_string()));
    }
    column.push(1);
    let rows = x.gather(indices.reshape(column), &[axis]);
    // The dimensions of `indices` came first; they belong where `axis` was.
    let rank = taken + x_sizes.len() - 1;
    let mut perm: Vec<usize> = (taken..taken + axis).collect();
    perm.extend(0..taken);
    perm.extend(taken + axis..rank);
    Ok(rows.transpose(&perm))
}

/// Elements of one axis that are picked at most: their positions are a constant of the graph, of
/// eight bytes each.
const MOST_PICKED: usize = 1 << 24;

/// `count` elements of one axis by known positions.
pub(super) fn pick<'b>(
    x: Expr<'b>,
    count: usize,
    position: impl Fn(usize) -> usize,
    axis: usize,
) -> Result<Expr<'b>, Fault> {
    if count > MOST_PICKED {
        let what =
            format!("{count} elements of {} picked one by one, more than {MOST_PICKED}", x.ty());
        return Err(unsupported(what));
    }
    let bytes: Vec<u8> = (0..count).flat_map(|i| (position(i) as u64).to_le_bytes()).collect();
    let indices = Tensor::from_bytes(TensorType::new(DType::I64, [count]), bytes);
    take(x, x.builder().constant(indices.expect("eight bytes each")), axis)
}

/// `x` backwards along an axis.
pub(super) fn reverse(x: Expr<'_>, axis: usize) -> Result<Expr<'_>, Fault> {
    let n = sizes(x)?[axis];
    pick(x, n, |i| n - 1 - i, axis)
}
