//! `Nest`: extents and strides as kernels take them, and `ViewStart`, where a view's first element
//! is.
//!
//! Invariant: `Nest` and the structs that hold it have the layout of the structs of the same names
//! in `nest.cuh`.

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{DeviceRepr, LaunchConfig};
use overdrive_ir::plan::{SlotId, View};

use crate::launch::{Addresses, Refusal};

/// Dimensions that a kernel can take, once those that merge have merged.
pub(super) const RANK: usize = 8;
/// Threads of a block of a kernel that has no reason for another number.
const THREADS: u32 = 256;

/// Nested loops over `N` buffers: strides in elements.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Nest<const N: usize> {
    pub(super) count: u64,
    pub(super) rank: u32,
    pub(super) sizes: [u32; RANK],
    pub(super) strides: [[i64; RANK]; N],
}

// SAFETY: plain numbers in C's layout.
unsafe impl<const N: usize> DeviceRepr for Nest<N> {}

impl<const N: usize> Nest<N> {
    /// Loops over `sizes`; neighbours that all buffers read as one dimension become one.
    ///
    /// # Errors
    /// `Unsupported` past [`RANK`] dimensions, or 2^32 elements a dimension.
    pub(super) fn new(sizes: &[usize], strides: [&[i64]; N]) -> Result<Self, Refusal> {
        let count = sizes.iter().product::<usize>() as u64;
        let mut merged: Vec<(usize, [i64; N])> = Vec::new();
        for (d, &size) in sizes.iter().enumerate().filter(|&(_, &size)| size != 1) {
            let inner = strides.map(|s| s[d]);
            match merged.last_mut() {
                Some((extent, outer)) if (0..N).all(|n| outer[n] == inner[n] * size as i64) => {
                    (*extent, *outer) = (*extent * size, inner);
                }
                _ => merged.push((size, inner)),
            }
        }
        if merged.len() > RANK || merged.iter().any(|&(size, _)| u32::try_from(size).is_err()) {
            let found = format!("{sizes:?} with strides {strides:?}");
            return Err(Refusal::Unsupported(format!(
                "a kernel takes up to {RANK} dimensions that do not merge, each below 2^32, not \
                 {found}; reshape it"
            )));
        }
        let mut nest =
            Self { count, rank: merged.len() as u32, sizes: [1; RANK], strides: [[0; RANK]; N] };
        for (d, (size, inner)) in merged.into_iter().enumerate() {
            nest.sizes[d] = size as u32;
            (0..N).for_each(|n| nest.strides[n][d] = inner[n]);
        }
        Ok(nest)
    }

    /// Whether elements twice as wide would do: the innermost loop is even and dense in every
    /// buffer, all else divides.
    pub(super) fn can_double(&self) -> bool {
        let Some(last) = (self.rank as usize).checked_sub(1) else { return false };
        let even = |strides: &[i64; RANK]| {
            strides[last] == 1 && strides[..last].iter().all(|s| s % 2 == 0)
        };
        self.sizes[last].is_multiple_of(2) && self.strides.iter().all(even)
    }

    /// The same over elements twice as wide.
    pub(super) fn double(&mut self) {
        let last = self.rank as usize - 1;
        self.count /= 2;
        self.sizes[last] /= 2;
        for strides in &mut self.strides {
            strides[..last].iter_mut().for_each(|s| *s /= 2);
        }
    }
}

/// Address of the first element of a view.
#[derive(Clone, Copy, Debug)]
pub(super) struct ViewStart {
    slot: SlotId,
    /// The offset in bytes.
    offset: i64,
}

impl ViewStart {
    /// The place of a view whose elements are whole bytes.
    pub(super) fn new(view: &View) -> Self {
        Self { slot: view.slot, offset: view.offset * (view.ty.dtype.bits() / 8) as i64 }
    }

    /// Its address during a call.
    pub(super) fn of(&self, addresses: &Addresses) -> CUdeviceptr {
        addresses.of(self.slot).wrapping_add_signed(self.offset)
    }

    /// Whether its address is a multiple of `bytes` wherever the slot is.
    pub(super) fn is_aligned(&self, bytes: usize) -> bool {
        self.offset % bytes as i64 == 0
    }
}

/// The type that counts this many positions in a kernel: division of 64 bits is slow.
pub(super) fn position(count: u64) -> &'static str {
    if count < 1 << 31 { "u32" } else { "u64" }
}

/// One thread for each of `count` positions.
///
/// # Errors
/// `Unsupported` for more blocks than a grid has.
pub(super) fn one_each(count: u64) -> Result<LaunchConfig, Refusal> {
    let blocks = count.div_ceil(THREADS.into());
    if blocks > i32::MAX as u64 {
        let reason =
            format!("{count} elements are more than one launch has threads for; split the tensor");
        return Err(Refusal::Unsupported(reason));
    }
    let grid_dim = (blocks as u32, 1, 1);
    Ok(LaunchConfig { grid_dim, block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_merge_where_every_buffer_reads_them_as_one() {
        let nest =
            Nest::new(&[2, 3, 1, 4], [&[12, 4, 9, 1], &[24, 8, 9, 2]]).expect("few dimensions");
        assert_eq!((nest.count, nest.rank, nest.sizes[0]), (24, 1, 24));
        let apart = Nest::new(&[2, 3], [&[3, 1], &[1, 2]]).expect("few dimensions");
        assert_eq!((apart.rank, &apart.sizes[..2]), (2, &[2, 3][..]));
        assert!(Nest::new(&[2; 9], [&[1, 3, 9, 27, 81, 243, 729, 2187, 6561]]).is_err());
    }

    #[test]
    fn elements_double_only_where_all_is_even_and_dense() {
        let mut nest = Nest::new(&[3, 6], [&[10, 1]]).expect("few dimensions");
        assert!(nest.can_double());
        nest.double();
        assert_eq!((nest.count, nest.sizes[1], nest.strides[0][0]), (9, 3, 5));
        assert!(!nest.can_double(), "3 is odd");
        assert!(!Nest::new(&[4], [&[2]]).expect("few dimensions").can_double(), "not dense");
    }
}
