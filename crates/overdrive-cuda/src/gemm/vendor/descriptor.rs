//! cuBLASLt's descriptors, destroyed when dropped.

use super::handle::Handle;
use crate::Error;
use crate::gemm::problem::Major;
use cudarc::cublas::sys::cublasOperation_t as Operation;
use cudarc::cublaslt::{result, sys};
use std::ffi::c_void;
use std::mem::MaybeUninit;
use sys::cublasLtMatmulDescAttributes_t as Attribute;

fn bytes<T>(value: &T) -> (*const c_void, usize) {
    ((&raw const *value).cast(), size_of::<T>())
}

/// How a product is computed.
pub(super) struct Description(sys::cublasLtMatmulDesc_t);

// SAFETY: a descriptor is plain memory that belongs to its owner, and to no thread.
unsafe impl Send for Description {}

impl Description {
    pub(super) fn new(
        compute: sys::cublasComputeType_t,
        factors: sys::cudaDataType,
    ) -> Result<Self, Error> {
        Ok(Self(result::create_matmul_desc(compute, factors)?))
    }

    fn set<T>(&self, attribute: Attribute, value: &T) -> Result<(), Error> {
        let (value, size) = bytes(value);
        // SAFETY: the descriptor is alive, and the value has the type that cuBLASLt documents for
        // the attribute.
        unsafe { result::set_matmul_desc_attribute(self.0, attribute, value, size)? };
        Ok(())
    }

    /// Tells cuBLASLt which operands lie by rows, so that it transposes them.
    pub(super) fn transpose(&self, majors: [Major; 2]) -> Result<(), Error> {
        let operation = |major| match major {
            Major::Column => Operation::CUBLAS_OP_N as i32,
            Major::Row => Operation::CUBLAS_OP_T as i32,
        };
        self.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &operation(majors[0]))?;
        self.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, &operation(majors[1]))
    }

    /// Lets sums of fp8 stay in the tensor core's narrow accumulator.
    pub(super) fn fast_accumulation(&self) -> Result<(), Error> {
        self.set(Attribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM, &1i8)
    }

    /// Adds a vector of this type along the columns.
    pub(super) fn bias(&self, dtype: sys::cudaDataType) -> Result<(), Error> {
        let epilogue = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS as u32;
        self.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
        self.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &(dtype as i32))
    }

    pub(super) fn bias_address(&self, address: u64) -> Result<(), Error> {
        self.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &address)
    }

    /// Sets the address of the fp8 scale of operand `number` (A or B), which multiplies the sums.
    pub(super) fn scale_address(&self, number: usize, address: u64) -> Result<(), Error> {
        let scales = [
            Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
            Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
        ];
        self.set(scales[number], &address)
    }

    pub(super) fn raw(&self) -> sys::cublasLtMatmulDesc_t {
        self.0
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: the owner is dropped, and nobody else has the descriptor.
        unsafe { result::destroy_matmul_desc(self.0) }.expect("a live descriptor can be destroyed");
    }
}

/// Type, extents and strides of a matrix with contiguous columns.
pub(super) struct Matrix(sys::cublasLtMatrixLayout_t);

// SAFETY: a descriptor is plain memory that belongs to its owner, and to no thread.
unsafe impl Send for Matrix {}

impl Matrix {
    /// `leading` elements from a column to the next; `count` matrices that are `step` elements
    /// apart.
    pub(super) fn new(
        dtype: sys::cudaDataType,
        [rows, columns]: [u64; 2],
        leading: i64,
        (count, step): (i32, i64),
    ) -> Result<Self, Error> {
        use sys::cublasLtMatrixLayoutAttribute_t as Layout;
        let matrix = Self(result::create_matrix_layout(dtype, rows, columns, leading)?);
        let set = |attribute, (value, size): (*const c_void, usize)| {
            // SAFETY: the descriptor is alive, and the values have the documented types.
            unsafe { result::set_matrix_layout_attribute(matrix.0, attribute, value, size) }
        };
        set(Layout::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, bytes(&count))?;
        set(Layout::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, bytes(&step))?;
        Ok(matrix)
    }

    pub(super) fn raw(&self) -> sys::cublasLtMatrixLayout_t {
        self.0
    }
}

impl Drop for Matrix {
    fn drop(&mut self) {
        // SAFETY: the owner is dropped, and nobody else has the descriptor.
        unsafe { result::destroy_matrix_layout(self.0) }
            .expect("a live descriptor can be destroyed");
    }
}

/// The resources that algorithms may assume and use.
pub(super) struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    /// Bytes of workspace, and the alignment of the addresses of A, B, C and D.
    pub(super) fn new(workspace_bytes: usize, aligned: &[u64; 4]) -> Result<Self, Error> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Wish;
        let preference = Self(result::create_matmul_pref()?);
        let set = |attribute, (value, size): (*const c_void, usize)| {
            // SAFETY: the descriptor is alive, and the values have the documented types.
            unsafe { result::set_matmul_pref_attribute(preference.0, attribute, value, size) }
        };
        set(Wish::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, bytes(&workspace_bytes))?;
        let [a, b, c, d] = aligned.map(|bytes| bytes as u32);
        set(Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, bytes(&a))?;
        set(Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, bytes(&b))?;
        set(Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, bytes(&c))?;
        set(Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, bytes(&d))?;
        Ok(preference)
    }

    /// The `limit` algorithms that cuBLASLt thinks best, best first; none for a product that it
    /// does not support.
    pub(super) fn algorithms(
        &self,
        library: &Handle,
        (description, layouts): (&Description, &[Matrix; 4]),
        limit: usize,
    ) -> Result<Vec<sys::cublasLtMatmulHeuristicResult_t>, Error> {
        let mut found = vec![MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::uninit(); limit];
        let mut count = 0;
        let [a, b, c, d] = layouts.each_ref().map(Matrix::raw);
        // SAFETY: all descriptors are alive; there is room for `limit` results.
        let status = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                library.raw(),
                description.raw(),
                a,
                b,
                c,
                d,
                self.0,
                limit as i32,
                found.as_mut_ptr().cast(),
                &mut count,
            )
        };
        if matches!(
            status,
            sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED
                | sys::cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE
        ) {
            return Ok(vec![]);
        }
        status.result()?;
        found.truncate(count as usize);
        // SAFETY: cuBLASLt has written the first `count` results.
        let found = found.into_iter().map(|result| unsafe { result.assume_init() });
        Ok(found.filter(|result| result.state.result().is_ok()).collect())
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: the owner is dropped, and nobody else has the descriptor.
        unsafe { result::destroy_matmul_pref(self.0) }.expect("a live descriptor can be destroyed");
    }
}
