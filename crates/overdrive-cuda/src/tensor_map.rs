//! Tensor maps: how the bulk copy engine (TMA) finds boxes in a matrix.
//!
//! A map holds an address, and the host encodes it. Invariant: a map is encoded again only if its
//! address changes.

use crate::Error;
use cudarc::driver::sys::{
    self, CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave,
    CUtensorMapL2promotion, CUtensorMapSwizzle,
};
use overdrive_ir::DType;
use std::cell::{RefCell, RefMut};

/// One dimension: its extent, and the elements from one index to the next.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    size: u64,
    stride: u64,
}

impl Extent {
    pub(crate) fn new(size: usize, stride: i64) -> Self {
        Self { size: size as u64, stride: stride.unsigned_abs() }
    }
}

/// A tensor map but for its address: three dimensions to five, along memory first, and a box of the
/// first of them.
#[derive(Clone, Debug)]
pub(crate) struct Boxes {
    dtype: DType,
    extents: Vec<Extent>,
    shape: Vec<u32>,
}

impl Boxes {
    pub(crate) fn new(
        dtype: DType,
        extents: impl Into<Vec<Extent>>,
        shape: impl AsRef<[usize]>,
    ) -> Self {
        let shape = shape.as_ref().iter().map(|&n| n as u32).collect();
        Self { dtype, extents: extents.into(), shape }
    }

    /// The map of a matrix at `address`. Elements of a box outside of the matrix read as zero and
    /// are not written.
    fn encode(&self, address: u64) -> Result<CUtensorMap, Error> {
        use CUtensorMapDataType as Type;
        let bytes = self.dtype.bits() as u64 / 8;
        let dtype = match self.dtype {
            DType::BF16 => Type::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            DType::F16 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            DType::F32 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
            // Only moved: by width.
            _ => match bytes {
                1 => Type::CU_TENSOR_MAP_DATA_TYPE_UINT8,
                2 => Type::CU_TENSOR_MAP_DATA_TYPE_UINT16,
                _ => Type::CU_TENSOR_MAP_DATA_TYPE_UINT32,
            },
        };
        let swizzle = match u64::from(self.shape[0]) * bytes {
            128 => CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            64 => CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_64B,
            _ => CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_32B,
        };
        let rank = self.extents.len();
        let sizes: Vec<u64> = self.extents.iter().map(|extent| extent.size).collect();
        let strides: Vec<u64> =
            self.extents[1..].iter().map(|extent| extent.stride * bytes).collect();
        let mut shape = self.shape.clone();
        shape.resize(rank, 1);
        let steps = vec![1u32; rank];
        let mut map = CUtensorMap { opaque: [0; 16] };
        // SAFETY: all arrays have the rank's length, and live through the call.
        unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                dtype,
                rank as u32,
                address as *mut _,
                sizes.as_ptr(),
                strides.as_ptr(),
                shape.as_ptr(),
                steps.as_ptr(),
                CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle,
                CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
            .result()?;
        }
        Ok(map)
    }
}

/// The tensor maps that a launch passes, as they were at the addresses of the last one.
#[derive(Debug)]
pub(crate) struct Maps {
    boxes: Vec<Boxes>,
    /// Addresses, and the maps that hold them.
    last: RefCell<(Vec<u64>, Vec<CUtensorMap>)>,
}

impl Maps {
    pub(crate) fn new(boxes: Vec<Boxes>) -> Self {
        let blank = CUtensorMap { opaque: [0; 16] };
        Self { last: RefCell::new((vec![0; boxes.len()], vec![blank; boxes.len()])), boxes }
    }

    /// The maps of matrices at `addresses`, as many as there are boxes.
    pub(crate) fn at(&self, addresses: &[u64]) -> Result<RefMut<'_, [CUtensorMap]>, Error> {
        assert_eq!(addresses.len(), self.boxes.len(), "each box has an address");
        let mut last = self.last.borrow_mut();
        let (known, maps) = &mut *last;
        for (i, &address) in addresses.iter().enumerate() {
            if known[i] != address {
                (known[i], maps[i]) = (address, self.boxes[i].encode(address)?);
            }
        }
        Ok(RefMut::map(last, |(_, maps)| maps.as_mut_slice()))
    }
}
