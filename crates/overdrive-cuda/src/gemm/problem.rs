//! `Problem`: a `GemmCall` in the form that matrix kernels take, and their assumptions about
//! addresses.

use overdrive_ir::DType;
use overdrive_ir::plan::{Access, GemmCall, MatrixView};

/// Bytes that every slot begins at a multiple of.
pub(super) const SLOT_ALIGNMENT: u64 = overdrive_ir::Plan::ALIGNMENT as u64;

/// The index of a matrix that is contiguous in memory.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Major {
    /// Neighbours in memory are neighbours in a row.
    Row,
    /// Neighbours in memory are neighbours in a column.
    Column,
}

/// A matrix whose rows, or columns, are contiguous.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Dense {
    pub(super) major: Major,
    /// Elements from one row (column) to the next.
    pub(super) leading: i64,
}

/// A matrix of `rows` by `columns` as rows or columns of contiguous elements; `None` for any other
/// strides.
pub(super) fn dense(
    [rows, columns]: [usize; 2],
    [row_stride, col_stride]: [i64; 2],
) -> Option<Dense> {
    // A stride along an extent of 1 is never taken.
    let row_major = col_stride == 1 || columns == 1;
    let column_major = row_stride == 1 || rows == 1;
    let leading = |stride: i64, extent: usize, along: usize| {
        if extent == 1 {
            Some(along.max(1) as i64)
        } else {
            (stride >= along as i64).then_some(stride)
        }
    };
    let by_row = row_major.then(|| leading(row_stride, rows, columns)).flatten();
    let by_column = column_major.then(|| leading(col_stride, columns, rows)).flatten();
    let row = by_row.map(|leading| Dense { major: Major::Row, leading });
    let column = by_column.map(|leading| Dense { major: Major::Column, leading });
    // A single column that is contiguous is one line, not many of one element.
    if columns == 1 { column.or(row) } else { row.or(column) }
}

/// Several batch dimensions as one: its extent, and for each list of strides the one stride. `None`
/// where a list is no arithmetic progression.
pub(super) fn one_batch<const N: usize>(
    extents: &[usize],
    strides: [&[i64]; N],
) -> Option<(usize, [i64; N])> {
    let mut count = 1;
    let mut steps: Option<[i64; N]> = None;
    for d in (0..extents.len()).rev().filter(|&d| extents[d] != 1) {
        let here = strides.map(|s| s[d]);
        match steps {
            None => steps = Some(here),
            Some(inner) if (0..N).any(|i| here[i] != inner[i] * count as i64) => return None,
            Some(_) => {}
        }
        count *= extents[d];
    }
    Some((count, steps.unwrap_or([0; N])))
}

/// Bytes that the address of every element of a set of strides and an offset is a multiple of, at
/// most `SLOT_ALIGNMENT`.
pub(super) fn alignment(dtype: DType, offset: i64, strides: &[i64]) -> u64 {
    let steps = strides.iter().fold(offset.unsigned_abs(), |all, step| all | step.unsigned_abs());
    let bits = steps.saturating_mul(dtype.bits() as u64);
    (1 << (bits / 8).trailing_zeros().min(SLOT_ALIGNMENT.trailing_zeros())).min(SLOT_ALIGNMENT)
}

/// The strides of an access over `[batch..., m, n]`: those of the batch, and of row and column.
pub(super) fn split(access: &Access) -> (&[i64], [i64; 2]) {
    let (batch, matrix) = access.strides.split_at(access.strides.len() - 2);
    (batch, [matrix[0], matrix[1]])
}

/// The type in which a kernel of ours sums: at least f32, so that narrow accumulation types are
/// kept with room to spare.
pub(super) fn sums(call: &GemmCall) -> DType {
    if call.accumulate.is_float() && call.accumulate != DType::F64 {
        DType::F32
    } else {
        call.accumulate
    }
}

/// The strides of row and column; one of the two is the contracted dimension.
pub(super) fn strides(view: &MatrixView) -> [i64; 2] {
    [view.row_stride, view.col_stride]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_of_one_have_any_stride() {
        assert_eq!(dense([1, 8], [3, 1]), Some(Dense { major: Major::Row, leading: 8 }));
        assert_eq!(dense([8, 1], [1, 5]), Some(Dense { major: Major::Column, leading: 8 }));
        assert_eq!(dense([8, 4], [1, 8]), Some(Dense { major: Major::Column, leading: 8 }));
        assert_eq!(dense([8, 4], [2, 8]), None);
        assert_eq!(dense([8, 4], [0, 1]), None, "rows that overlap");
    }

    #[test]
    fn batches_collapse_when_every_operand_agrees() {
        assert_eq!(one_batch(&[2, 3], [&[12, 4], &[0, 0]]), Some((6, [4, 0])));
        assert_eq!(one_batch(&[2, 3], [&[12, 4], &[7, 0]]), None);
        assert_eq!(one_batch(&[1, 3], [&[99, 4]]), Some((3, [4])));
        assert_eq!(one_batch::<1>(&[], [&[]]), Some((1, [0])));
    }

    #[test]
    fn addresses_are_as_aligned_as_offset_and_strides() {
        assert_eq!(alignment(DType::BF16, 0, &[512, 1 << 20]), 64);
        assert_eq!(alignment(DType::BF16, 0, &[10]), 4);
        assert_eq!(alignment(DType::F32, 3, &[512]), 4);
        assert_eq!(alignment(DType::I8, 0, &[0]), 64);
    }
}
