//! cuBLASLt: products whose matrices have contiguous rows or columns, stored plainly, with a bias,
//! added to a matrix, or of fp8 with scales.
//!
//! cuBLASLt is column-major, so a row-major result is requested as its transpose. Its ReLU drops
//! NaN and its GELU is the tanh formula alone, so neither is used. Invariant: a descriptor that
//! cuBLASLt does not support is `None`, never another computation. Only roundings to bf16 before a
//! summand of sums of codes are left out.
//!
//! Long because each property of a call becomes an attribute of one descriptor, in one order.

mod descriptor;
mod handle;
#[cfg(test)]
mod tests;

use super::base::Base;
use super::problem::{Dense, Major, alignment, dense, one_batch, split, strides};
use crate::Error;
use crate::launch::{Addresses, Launch, Site};
use cudarc::cublaslt::{result, sys};
use cudarc::driver::CudaStream;
use descriptor::{Description, Matrix, Preference};
use handle::Handle;
use overdrive_ir::plan::{Access, GemmCall, Instr, Program, Register};
use overdrive_ir::{Binary, DType, Overflow, Precision};
use std::cell::Cell;
use std::ffi::c_void;
use std::sync::Arc;
use sys::cublasComputeType_t as Compute;

/// Most calls of the library that one product may take where its batch is no single progression.
const CALLS: usize = 64;

/// Stands for the address of a scale until the first call: aligned, and never read.
const UNKNOWN_ADDRESS: u64 = 256;

/// Scratch that an algorithm may ask for: NVIDIA's recommendation for Hopper.
pub(super) const WORKSPACE_BYTES: usize = 32 << 20;

/// The epilogue that cuBLASLt can apply to the sums on their way out.
#[derive(Clone, Debug)]
struct Fused {
    store: Access,
    out: DType,
    /// Added to every row (or column) of the result, and its type.
    bias: Option<(Access, DType)>,
    /// A matrix that is added.
    added: Option<Access>,
    /// Scalars of f32 that multiply the sums: the scales of operands of fp8.
    scales: Vec<Access>,
}

impl Fused {
    /// The sums stored, converted or not, after adding at most one vector and one matrix of the
    /// result's type. Sums of codes may be rounded to bf16 before, as layers say. That rounding is
    /// left out, since the library rounds what it stores: one error less. To results of f32 it adds
    /// a vector of bf16 alone there.
    fn of(call: &GemmCall) -> Option<Self> {
        let (program, is_of_codes) = (&call.epilogue.0, call.lhs.dtype.is_fp8());
        let [store] = &program.stores[..] else { return None };
        let out = program.dtype(store.value);
        let mut fused =
            Self { store: store.access.clone(), out, bias: None, added: None, scales: vec![] };
        let widened = |register: Register| match program.instr(register) {
            Instr::Convert(from, _)
                if program.dtype(*from).bits() < program.dtype(register).bits() =>
            {
                *from
            }
            _ => register,
        };
        let type_of_bias = if is_of_codes && out == DType::F32 { DType::BF16 } else { out };
        let mut value = match program.instr(store.value) {
            Instr::Convert(from, Overflow::Ieee) => *from,
            _ => store.value,
        };
        while *program.instr(value) != Instr::Accumulator {
            if let Some(from) = unrounded(program, value).filter(|_| is_of_codes) {
                value = from;
                continue;
            }
            if let Instr::Binary(Binary::Mul, a, b) = *program.instr(value) {
                let scaled = [(a, b), (b, a)]
                    .into_iter()
                    .find_map(|(sum, by)| Some((sum, scalars(program, by)?)));
                let (sum, by) = scaled?;
                fused.scales.extend(by);
                value = sum;
                continue;
            }
            // A summand is added after the scales.
            if !fused.scales.is_empty() {
                return None;
            }
            let Instr::Binary(Binary::Add, a, b) = *program.instr(value) else { return None };
            let (sum, term) = match program.instr(widened(b)) {
                Instr::Load(_) => (a, widened(b)),
                _ => (b, widened(a)),
            };
            let Instr::Load(access) = program.instr(term) else { return None };
            let dtype = program.dtype(term);
            let (batch, along) = split(access);
            let is_first = match along {
                [0, 1] | [1, 0] if batch.iter().all(|&s| s == 0) => {
                    dtype == type_of_bias && fused.bias.replace((access.clone(), dtype)).is_none()
                }
                [0, _] | [_, 0] => false,
                _ => dtype == out && fused.added.replace(access.clone()).is_none(),
            };
            if !is_first {
                return None;
            }
            value = sum;
        }
        (fused.scales.len() <= 2).then_some(fused)
    }
}

/// The register of f32 that this one is in bf16, or the other way round. The range is the same, so
/// that nothing overflows in one and not in the other.
fn unrounded(program: &Program, register: Register) -> Option<Register> {
    let Instr::Convert(from, Overflow::Ieee) = *program.instr(register) else { return None };
    let types = [from, register].map(|register| program.dtype(register));
    matches!(types, [DType::F32, DType::BF16] | [DType::BF16, DType::F32]).then_some(from)
}

/// The scalars of f32 that a register is the product of; `None` where it is anything else.
fn scalars(program: &Program, register: Register) -> Option<Vec<Access>> {
    match program.instr(register) {
        Instr::Load(access) if program.dtype(register) == DType::F32 => {
            access.strides.iter().all(|&stride| stride == 0).then(|| vec![access.clone()])
        }
        Instr::Binary(Binary::Mul, a, b) => {
            Some([scalars(program, *a)?, scalars(program, *b)?].concat())
        }
        _ => None,
    }
}

fn data_type(dtype: DType) -> Option<sys::cudaDataType> {
    Some(match dtype {
        DType::F64 => sys::cudaDataType::CUDA_R_64F,
        DType::F32 => sys::cudaDataType::CUDA_R_32F,
        DType::F16 => sys::cudaDataType::CUDA_R_16F,
        DType::BF16 => sys::cudaDataType::CUDA_R_16BF,
        DType::F8E4M3 => sys::cudaDataType::CUDA_R_8F_E4M3,
        DType::F8E5M2 => sys::cudaDataType::CUDA_R_8F_E5M2,
        DType::I8 => sys::cudaDataType::CUDA_R_8I,
        DType::I32 => sys::cudaDataType::CUDA_R_32I,
        _ => return None,
    })
}

/// How sums are formed, and the type of the factors before them.
fn compute(call: &GemmCall) -> Option<(Compute, DType)> {
    Some(match (call.lhs.dtype, call.accumulate) {
        (DType::F64, DType::F64) => (Compute::CUBLAS_COMPUTE_64F, DType::F64),
        (DType::I8, DType::I32) => (Compute::CUBLAS_COMPUTE_32I, DType::I32),
        (DType::F32, DType::F32) if call.precision == Precision::Tf32 => {
            (Compute::CUBLAS_COMPUTE_32F_FAST_TF32, DType::F32)
        }
        (dtype, DType::F32 | DType::F16 | DType::BF16)
            if dtype.is_float() && dtype != DType::F64 =>
        {
            (Compute::CUBLAS_COMPUTE_32F, DType::F32)
        }
        _ => return None,
    })
}

/// The operands in cuBLASLt's order: `D[m, n] = A[m, k] x B[k, n]`, D with contiguous columns.
struct CublasOperands {
    extents: [usize; 3],
    a: CublasOperand,
    b: CublasOperand,
    leading: i64,
    /// Stride pattern of a bias that cuBLASLt can add: along its rows.
    bias: [i64; 2],
    added: Option<i64>,
}

struct CublasOperand {
    base: Base,
    dtype: DType,
    dense: Dense,
    batch: Vec<i64>,
    aligned: u64,
}

impl CublasOperands {
    fn of(call: &GemmCall, fused: &Fused) -> Option<Self> {
        let (_, out) = split(&fused.store);
        let result = dense([call.m, call.n], out)?;
        let side = |view: &overdrive_ir::plan::MatrixView, shape: [usize; 2], by: [i64; 2]| {
            let every: Vec<i64> =
                view.batch_strides.iter().copied().chain(by).filter(|&s| s != 1).collect();
            let aligned = alignment(view.dtype, view.offset, &every);
            let batch = view.batch_strides.clone();
            Some(CublasOperand {
                base: Base::of(view),
                dtype: view.dtype,
                dense: dense(shape, by)?,
                batch,
                aligned,
            })
        };
        let (m, n, k) = (call.m, call.n, call.k);
        let ([lr, lc], [rr, rc]) = (strides(&call.lhs), strides(&call.rhs));
        let transposed = result.major == Major::Row;
        let (extents, a, b) = if transposed {
            ([n, m, k], side(&call.rhs, [n, k], [rc, rr])?, side(&call.lhs, [k, m], [lc, lr])?)
        } else {
            ([m, n, k], side(&call.lhs, [m, k], [lr, lc])?, side(&call.rhs, [k, n], [rr, rc])?)
        };
        let added = match &fused.added {
            Some(access) => {
                let matrix = dense([m, n], split(access).1)?;
                Some((matrix.major == result.major).then_some(matrix.leading)?)
            }
            None => None,
        };
        let bias = if transposed { [0, 1] } else { [1, 0] };
        Some(Self { extents, a, b, leading: result.leading, bias, added })
    }
}

/// A product as calls of the library that differ in addresses alone.
struct Vendor {
    library: Arc<Handle>,
    description: Description,
    /// A, B, C and D.
    layouts: [Matrix; 4],
    algorithm: sys::cublasLtMatmulAlgo_t,
    workspace_bytes: usize,
    /// One and the factor of C, in the type of factors.
    factors: [[u8; 8]; 2],
    bias: Option<Base>,
    /// The address of the bias that the description holds.
    bias_address: Cell<u64>,
    scales: Vec<Base>,
    /// The addresses of the scales that the description holds.
    scale_addresses: Cell<[u64; 2]>,
    /// First elements of A, B, C and D for each call.
    calls: Vec<[Base; 4]>,
}

/// The product by algorithm number `rank` of cuBLASLt's own order of preference; `None` where it
/// has none, or does not know such a product.
pub(super) fn compile(
    site: &Site<'_>,
    call: &GemmCall,
    rank: usize,
) -> Result<Option<Box<dyn Launch>>, Error> {
    let Some(product) = product(site, call)? else { return Ok(None) };
    let Some(algorithm) = product.algorithms(rank + 1)?.into_iter().nth(rank) else {
        return Ok(None);
    };
    let (algorithm, workspace_bytes) = (algorithm.algo, algorithm.workspaceSize);
    Ok(Some(Box::new(Vendor { algorithm, workspace_bytes, ..product.vendor })))
}

/// How many algorithms, at most `limit`, cuBLASLt offers.
pub(super) fn count(site: &Site<'_>, call: &GemmCall, limit: usize) -> Result<usize, Error> {
    Ok(match product(site, call)? {
        Some(product) => product.algorithms(limit)?.len(),
        None => 0,
    })
}

/// A product before its algorithm is chosen.
struct Product {
    vendor: Vendor,
    aligned: [u64; 4],
}

impl Product {
    fn algorithms(&self, limit: usize) -> Result<Vec<sys::cublasLtMatmulHeuristicResult_t>, Error> {
        let Self { vendor: Vendor { library, description, layouts, .. }, aligned } = self;
        Preference::new(WORKSPACE_BYTES, aligned)?.algorithms(
            library,
            (description, layouts),
            limit,
        )
    }
}

/// A product in the words of cuBLASLt, which need not have an algorithm for it.
struct KnownProduct {
    fused: Fused,
    compute: Compute,
    /// The type of factors.
    factor: DType,
    columns: CublasOperands,
    /// Types of A, B, the result and the factors.
    types: [sys::cudaDataType; 4],
    /// Batch dimensions that are calls of the library.
    outer: usize,
    /// The extent of the others together, and the step of A, B, C and D along it.
    inner: (i32, [i64; 4]),
}

impl KnownProduct {
    fn of(call: &GemmCall) -> Option<Self> {
        let fused = Fused::of(call)?;
        let (compute, factor) = compute(call)?;
        let columns = CublasOperands::of(call, &fused)?;
        let along = fused.bias.as_ref().map(|(access, _)| split(access).1);
        let is_scaled = !fused.scales.is_empty();
        let fits =
            along.is_none_or(|s| s == columns.bias) && (call.lhs.dtype.is_fp8() || !is_scaled);
        let [a, b, out, by] = [columns.a.dtype, columns.b.dtype, fused.out, factor].map(data_type);
        let types = [a?, b?, out?, by?];
        let all = batches(&columns, &fused);
        let inner = (0..=call.batch.len()).find_map(|outer| {
            let inner = one_batch(&call.batch[outer..], all.map(|s| &s[outer..]))?;
            Some((outer, inner))
        });
        let (outer, (count, steps)) = inner.expect("no dimension at all is one");
        let inner = (i32::try_from(count).ok()?, steps);
        let few = call.batch[..outer].iter().product::<usize>() <= CALLS;
        let known = Self { fused, compute, factor, columns, types, outer, inner };
        (call.k > 0 && fits && few).then_some(known)
    }
}

/// The steps of A, B, C and D along each dimension of a batch.
fn batches<'a>(columns: &'a CublasOperands, fused: &'a Fused) -> [&'a [i64]; 4] {
    let (store, _) = split(&fused.store);
    let added = fused.added.as_ref().map_or(store, |access| split(access).0);
    [&columns.a.batch, &columns.b.batch, added, store]
}

/// Whether cuBLASLt may have algorithms for a product with its epilogue.
pub(super) fn knows(call: &GemmCall) -> bool {
    KnownProduct::of(call).is_some()
}

/// Whether it has, wherever it is there and takes the types at all. A bias is only for floats of 16
/// bits, f32 and fp8.
pub(super) fn takes(call: &GemmCall) -> bool {
    let has_bias = !matches!(call.lhs.dtype, DType::F64 | DType::I8);
    KnownProduct::of(call).is_some_and(|known| has_bias || known.fused.bias.is_none())
}

fn product(site: &Site<'_>, call: &GemmCall) -> Result<Option<Product>, Error> {
    let Some(known) = KnownProduct::of(call) else { return Ok(None) };
    let Some(library) = Handle::of(site.device)? else { return Ok(None) };
    let KnownProduct { fused, compute, factor, columns, types, outer, inner: (count, steps) } =
        known;
    let [a_type, b_type, out_type, factor_type] = types;
    let all = batches(&columns, &fused);

    let [m, n, k] = columns.extents;
    let layout = |dtype, [rows, cols]: [usize; 2], leading, step| {
        Matrix::new(dtype, [rows as u64, cols as u64], leading, (count, step))
    };
    let stored = |side: &CublasOperand, [rows, cols]: [usize; 2]| match side.dense.major {
        Major::Column => [rows, cols],
        Major::Row => [cols, rows],
    };
    let layouts = [
        layout(a_type, stored(&columns.a, [m, k]), columns.a.dense.leading, steps[0])?,
        layout(b_type, stored(&columns.b, [k, n]), columns.b.dense.leading, steps[1])?,
        layout(out_type, [m, n], columns.added.unwrap_or(columns.leading), steps[2])?,
        layout(out_type, [m, n], columns.leading, steps[3])?,
    ];
    let description = Description::new(compute, factor_type)?;
    description.transpose([columns.a.dense.major, columns.b.dense.major])?;
    if call.precision == Precision::FastFp8 {
        description.fast_accumulation()?;
    }
    if let Some((_, dtype)) = &fused.bias {
        description.bias(data_type(*dtype).expect("a bias has a type of results"))?;
    }

    // The request for algorithms says that there are scales.
    (0..fused.scales.len())
        .try_for_each(|number| description.scale_address(number, UNKNOWN_ADDRESS))?;

    let out = Base::at(fused.store.slot, fused.out, fused.store.offset);
    let added =
        fused.added.as_ref().map_or(out, |access| Base::at(access.slot, fused.out, access.offset));
    let bases = [columns.a.base, columns.b.base, added, out];
    let widths =
        [columns.a.dtype, columns.b.dtype, fused.out, fused.out].map(|d| d.bits() as i64 / 8);
    let mut calls = Vec::new();
    overdrive_ir::eval::for_each_index(&call.batch[..outer], |index| {
        let moved = |i: usize| {
            let elements: i64 = index.iter().zip(all[i]).map(|(&at, &step)| at as i64 * step).sum();
            Base { bytes: bases[i].bytes + elements * widths[i], ..bases[i] }
        };
        calls.push([moved(0), moved(1), moved(2), moved(3)]);
    });
    let of = |access: &Access, leading: i64| {
        let every: Vec<i64> = split(access).0.iter().copied().chain([leading]).collect();
        alignment(fused.out, access.offset, &every)
    };
    let d_aligned = of(&fused.store, columns.leading);
    let c_aligned = fused.added.as_ref().map_or(d_aligned, |a| of(a, columns.added.unwrap_or(1)));
    let aligned = [columns.a.aligned, columns.b.aligned, c_aligned, d_aligned];
    let bias = fused.bias.as_ref();
    let bias = bias.map(|(access, dtype)| Base::at(access.slot, *dtype, access.offset));
    let beta = if fused.added.is_some() { 1.0 } else { 0.0 };
    let vendor = Vendor {
        library,
        description,
        layouts,
        algorithm: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
        workspace_bytes: 0,
        factors: [1.0, beta].map(|x| bytes_of(x, factor)),
        bias,
        bias_address: Cell::new(0),
        scales: fused
            .scales
            .iter()
            .map(|access| Base::at(access.slot, DType::F32, access.offset))
            .collect(),
        scale_addresses: Cell::default(),
        calls,
    };
    Ok(Some(Product { vendor, aligned }))
}

/// A factor in the type that the library reads it in.
fn bytes_of(x: f64, dtype: DType) -> [u8; 8] {
    let mut bytes = [0; 8];
    match dtype {
        DType::F64 => bytes = x.to_le_bytes(),
        DType::I32 => bytes[..4].copy_from_slice(&(x as i32).to_le_bytes()),
        _ => bytes[..4].copy_from_slice(&(x as f32).to_le_bytes()),
    }
    bytes
}

impl Launch for Vendor {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        stream.context().bind_to_thread()?;
        if let Some(bias) = self.bias {
            let address = bias.address(addresses);
            if self.bias_address.replace(address) != address {
                self.description.bias_address(address)?;
            }
        }
        let mut scales = [0; 2];
        self.scales
            .iter()
            .zip(&mut scales)
            .for_each(|(base, scale)| *scale = base.address(addresses));
        if self.scale_addresses.replace(scales) != scales {
            let used = &scales[..self.scales.len()];
            used.iter()
                .enumerate()
                .try_for_each(|(i, &at)| self.description.scale_address(i, at))?;
        }
        let [a_layout, b_layout, c_layout, d_layout] = &self.layouts;
        for call in &self.calls {
            let [a, b, c, d] = call.map(|base| base.address(addresses) as *mut c_void);
            // SAFETY: descriptors and handle live as long as `self`. The plan's matrices are inside
            // their slots, and the workspace has the requested size.
            unsafe {
                result::matmul(
                    self.library.raw(),
                    self.description.raw(),
                    self.factors[0].as_ptr().cast(),
                    self.factors[1].as_ptr().cast(),
                    a,
                    a_layout.raw(),
                    b,
                    b_layout.raw(),
                    c,
                    c_layout.raw(),
                    d,
                    d_layout.raw(),
                    &self.algorithm,
                    addresses.workspace() as *mut c_void,
                    self.workspace_bytes,
                    stream.cu_stream().cast(),
                )?;
            }
        }
        Ok(())
    }

    fn workspace_bytes(&self) -> usize {
        self.workspace_bytes
    }
}
