//! The ceiling of products on a device: the rate of the fastest candidate on a large square one.

use super::tune::tune;
use crate::Device;
use crate::launch::{Refusal, Site};
use overdrive_ir::plan::{
    Access, Epilogue, GemmCall, Instr, Layout, MatrixView, Plan, Program, Slot, SlotId, SlotPlace,
};
use overdrive_ir::plan::{Step, StepKind, Store};
use overdrive_ir::{Cost, DType, Mode, Precision, TensorType, Tuning};
use std::sync::Arc;

/// Extent of the product: large enough to fill any device, small enough to take milliseconds.
const EXTENT: usize = 8192;

/// Multiplies two random square matrices and returns the FLOP/s and the name of the best candidate.
/// They have 8,192 rows, or 2,048 for f64 and f32. `precision` is `Tf32` for the tensor cores' rate
/// on f32.
///
/// # Errors
/// As `compile`; `Unsupported` for a type that there is nothing to choose for.
pub fn peak(
    device: &Arc<Device>,
    dtype: DType,
    precision: Precision,
) -> Result<(f64, String), Refusal> {
    let slow =
        matches!(dtype, DType::F64) || (dtype == DType::F32 && precision == Precision::Exact);
    let n = if slow { EXTENT / 4 } else { EXTENT };
    let (accumulate, out) = match dtype {
        DType::I8 => (DType::I32, DType::I32),
        DType::F8E4M3 | DType::F8E5M2 => (DType::F32, DType::BF16),
        other => (other.accumulation(), other),
    };
    let mut program = Program { extents: vec![n, n], ..Program::default() };
    let sum = program.push(Instr::Accumulator, accumulate);
    let value = if out == accumulate {
        sum
    } else {
        program.push(Instr::Convert(sum, overdrive_ir::Overflow::Ieee), out)
    };
    let access = Access { slot: SlotId(2), offset: 0, strides: vec![n as i64, 1] };
    program.stores.push(Store { access, value });
    let view = |slot, strides: [i64; 2]| MatrixView {
        slot: SlotId(slot),
        dtype,
        offset: 0,
        row_stride: strides[0],
        col_stride: strides[1],
        batch_strides: vec![],
    };
    let (lhs, rhs) = (view(0, [n as i64, 1]), view(1, [1, n as i64]));
    let epilogue = Epilogue(program);
    let call = GemmCall { batch: vec![], m: n, n, k: n, lhs, rhs, accumulate, precision, epilogue };
    let slot =
        |dtype, place| Slot { ty: TensorType::new(dtype, [n, n]), layout: Layout::RowMajor, place };
    let slots = vec![
        slot(dtype, SlotPlace::Input(0)),
        slot(dtype, SlotPlace::Input(1)),
        slot(out, SlotPlace::Output(0)),
    ];
    let plan = Plan { name: "peak".to_owned(), slots, ..Plan::default() };
    let step = Step {
        kind: StepKind::Gemm(call.clone()),
        reads: vec![SlotId(0), SlotId(1)],
        writes: vec![SlotId(2)],
        aliases: vec![],
        stream: 0,
        waits: vec![],
        records: None,
        prepare: false,
        only_if: None,
        scratch_bytes: 0,
        cost: Cost::default(),
        name: "dot_general".to_owned(),
        scope: String::new(),
    };
    let site =
        Site { plan: &plan, step: &step, device, tuning: &Tuning::default(), mode: Mode::Compile };
    let choice = tune(&site, &call)?;
    let Some((_, choice)) = choice else {
        return Err(Refusal::Unsupported(format!(
            "products of {dtype} have one kernel alone here"
        )));
    };
    let ns = choice.timings_ns[&choice.candidate];
    Ok((2.0 * (n as f64).powi(3) / (ns * 1e-9), choice.candidate))
}
