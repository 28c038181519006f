//! Tensor maps: how the bulk copy engine (TMA) finds boxes in a matrix.

use crate::Error;
use cudarc::driver::sys::{
    self, CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave,
    CUtensorMapL2promotion, CUtensorMapSwizzle,
};
use overdrive_ir::DType;

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

/// A tensor map but for its address: three dimensions, along memory first, and a box of the first two.
#[derive(Clone, Debug)]
pub(crate) struct Boxes {
    dtype: DType,
    extents: [Extent; 3],
    shape: [u32; 2],
}

impl Boxes {
    pub(crate) fn new(dtype: DType, extents: [Extent; 3], shape: [usize; 2]) -> Self {
        Self { dtype, extents, shape: shape.map(|n| n as u32) }
    }

    /// The map for a matrix at `address`. What a box has outside of it reads as zero and is not written.
    pub(crate) fn encode(&self, address: u64) -> Result<CUtensorMap, Error> {
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
        let sizes = self.extents.map(|extent| extent.size);
        let strides = [self.extents[1].stride * bytes, self.extents[2].stride * bytes];
        let shape = [self.shape[0], self.shape[1], 1];
        let mut map = CUtensorMap { opaque: [0; 16] };
        // SAFETY: all arrays have the rank's length, and live through the call.
        unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                dtype,
                3,
                address as *mut _,
                sizes.as_ptr(),
                strides.as_ptr(),
                shape.as_ptr(),
                [1u32; 3].as_ptr(),
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
