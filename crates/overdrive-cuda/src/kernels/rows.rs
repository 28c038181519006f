//! `IndexedRows`: how rows of indices become places in an operand, for `gather` and `scatter`.

use cudarc::driver::DeviceRepr;
use overdrive_ir::plan::View;

use super::nest::{Nest, RANK};
use crate::launch::Refusal;

/// `IndexedRows` of `rows.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct IndexedRows {
    /// Over rows: strides in the indices, and among the windows.
    pub(super) nest: Nest<2>,
    axes: u32,
    limits: [i64; RANK],
    strides: [i64; RANK],
    step: i64,
}

// SAFETY: plain numbers in C's layout.
unsafe impl DeviceRepr for IndexedRows {}

impl IndexedRows {
    /// `whole` is indexed along `axes`; the rows of `windows` are its leading dimensions.
    pub(super) fn new(
        whole: &View,
        indices: &View,
        axes: &[usize],
        windows: &View,
    ) -> Result<Self, Refusal> {
        if axes.len() > RANK {
            let reason = format!("{} indexed axes; {RANK} are the most", axes.len());
            return Err(Refusal::Unsupported(reason));
        }
        if !indices.ty.dtype.bits().is_multiple_of(8) {
            return Err(Refusal::Unsupported(format!(
                "indices of {}; convert them first",
                indices.ty.dtype
            )));
        }
        let (sizes, rank) = (whole.ty.sizes(), indices.ty.rank() - 1);
        let nest = Nest::new(
            &indices.ty.sizes()[..rank],
            [&indices.strides[..rank], &windows.strides[..rank]],
        )?;
        let (mut limits, mut strides) = ([0; RANK], [0; RANK]);
        for (i, &axis) in axes.iter().enumerate() {
            (limits[i], strides[i]) = (sizes[axis] as i64 - 1, whole.strides[axis]);
        }
        Ok(Self { nest, axes: axes.len() as u32, limits, strides, step: indices.strides[rank] })
    }

    /// Destinations that rows can name.
    pub(super) fn destinations(&self) -> u64 {
        self.limits[..self.axes as usize].iter().map(|limit| (limit + 1) as u64).product()
    }

    /// Whether elements twice as wide would do; the strides in the indices are their own.
    pub(super) fn can_double(&self) -> bool {
        self.strides.iter().chain(&self.nest.strides[1]).all(|stride| stride % 2 == 0)
    }

    /// The same over elements twice as wide.
    pub(super) fn double(&mut self) {
        self.strides.iter_mut().chain(&mut self.nest.strides[1]).for_each(|stride| *stride /= 2);
    }
}
