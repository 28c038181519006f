//! The number formats of products, by their names in plans.

use half::{bf16, f16};
use overdrive_ir::DType;

use crate::gemm::Element;

/// Types by their names in plans.
pub(crate) trait Named {
    const DTYPE: DType;
}

impl Named for f64 {
    const DTYPE: DType = DType::F64;
}
impl Named for f32 {
    const DTYPE: DType = DType::F32;
}
impl Named for f16 {
    const DTYPE: DType = DType::F16;
}
impl Named for bf16 {
    const DTYPE: DType = DType::BF16;
}
impl Named for i8 {
    const DTYPE: DType = DType::I8;
}
impl Named for i32 {
    const DTYPE: DType = DType::I32;
}

/// Formats of products in plans.
pub(crate) trait Format: Element<Acc: Named> + Named {}

impl<T: Element<Acc: Named> + Named> Format for T {}
