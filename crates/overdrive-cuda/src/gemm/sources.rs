//! Representative specialisations of the kernels here, for compilation without a GPU.

use super::bunch::FewRows;
use super::hopper::{self, Fit, HopperWork, TILES};
use super::{narrow, plain, skinny, streamed, tune};
use crate::compiler::Architecture;
use crate::kernels::line::SourceByArchitecture;
use crate::loops::Following;
use overdrive_ir::plan::{
    Access, Epilogue, GemmCall, Instr, MatrixView, Program, Reduction, SlotId, Store,
};
use overdrive_ir::{Binary, DType, Overflow, Precision, Reducer, Unary};

/// The text of every kernel here. A timing depends on it beside the device.
pub(crate) const TEXT: &str = concat!(
    include_str!("../headers/hopper.cuh"),
    include_str!("kernels/skinny.cu"),
    include_str!("kernels/streamed.cu"),
    include_str!("kernels/hopper.cu"),
    include_str!("kernels/narrow.cu"),
    include_str!("kernels/plain.cu"),
    include_str!("kernels/codes.cuh"),
    include_str!("kernels/quantized_linear.cu"),
    include_str!("kernels/sparse_linear.cu")
);

/// `gelu(a x b + bias)` of dense row-major matrices, where the right one may lie transposed.
pub(super) fn linear_gelu([m, n, k]: [usize; 3], dtype: DType, transposed: bool) -> GemmCall {
    let accumulate = if dtype.is_int() { DType::I32 } else { dtype.accumulation() };
    let mut p = Program { extents: vec![m, n], ..Program::default() };
    let sum = p.push(Instr::Accumulator, accumulate);
    let out = if dtype.bits() == 8 { DType::BF16 } else { dtype };
    // Sums of whole numbers are converted on their way out.
    let (sums, accumulate) = (accumulate, if dtype.is_int() { DType::F32 } else { accumulate });
    let sum =
        if dtype.is_int() { p.push(Instr::Convert(sum, Overflow::Ieee), accumulate) } else { sum };
    let load = Access { slot: SlotId(2), offset: 0, strides: vec![0, 1] };
    let bias = p.push(Instr::Load(load), out);
    let bias = p.push(Instr::Convert(bias, Overflow::Ieee), accumulate);
    let x = p.push(Instr::Binary(Binary::Add, sum, bias), accumulate);
    let scale = p.push(Instr::Constant(std::f64::consts::FRAC_1_SQRT_2), accumulate);
    let scaled = p.push(Instr::Binary(Binary::Mul, x, scale), accumulate);
    let erf = p.push(Instr::Unary(Unary::Erf, scaled), accumulate);
    let one = p.push(Instr::Constant(1.0), accumulate);
    let shifted = p.push(Instr::Binary(Binary::Add, erf, one), accumulate);
    let half = p.push(Instr::Constant(0.5), accumulate);
    let halved = p.push(Instr::Binary(Binary::Mul, x, half), accumulate);
    let gelu = p.push(Instr::Binary(Binary::Mul, halved, shifted), accumulate);
    let value = p.push(Instr::Convert(gelu, Overflow::Ieee), out);
    let strides = vec![n as i64, 1];
    p.stores.push(Store { access: Access { slot: SlotId(3), offset: 0, strides }, value });
    let view = |slot, row_stride, col_stride| MatrixView {
        slot: SlotId(slot),
        dtype,
        offset: 0,
        row_stride,
        col_stride,
        batch_strides: vec![],
    };
    let rhs = if transposed { view(1, 1, k as i64) } else { view(1, n as i64, 1) };
    let lhs = view(0, k as i64, 1);
    let precision = Precision::Exact;
    GemmCall {
        batch: vec![],
        m,
        n,
        k,
        lhs,
        rhs,
        accumulate: sums,
        precision,
        epilogue: Epilogue(p),
    }
}

/// `x * scale / sqrt(mean(x^2))` over the rows of the result of `linear_gelu`.
fn rms_norm(call: &GemmCall) -> Program {
    let mut p = Program { extents: vec![call.m, call.n], reduced: 1, ..Program::default() };
    let load = |slot, strides| Instr::Load(Access { slot: SlotId(slot), offset: 0, strides });
    let rows = vec![call.n as i64, 1];
    let x = p.push(load(3, rows.clone()), DType::BF16);
    let x = p.push(Instr::Convert(x, Overflow::Ieee), DType::F32);
    let value = p.push(Instr::Binary(Binary::Mul, x, x), DType::F32);
    let sum = p.push(Instr::Reduce(Reduction { reducer: Reducer::Sum, value }), DType::F32);
    let count = p.push(Instr::Constant(call.n as f64), DType::F32);
    let mean = p.push(Instr::Binary(Binary::Div, sum, count), DType::F32);
    let factor = p.push(Instr::Unary(Unary::Rsqrt, mean), DType::F32);
    let scale = p.push(load(4, vec![0, 1]), DType::F32);
    let scaled = p.push(Instr::Binary(Binary::Mul, x, scale), DType::F32);
    let y = p.push(Instr::Binary(Binary::Mul, scaled, factor), DType::F32);
    let value = p.push(Instr::Convert(y, Overflow::Ieee), DType::BF16);
    p.stores.push(Store { access: Access { slot: SlotId(5), offset: 0, strides: rows }, value });
    p
}

/// At least one source of every kernel of products, and of each way through it, with the
/// architectures that it is for.
pub(crate) fn sources() -> Vec<SourceByArchitecture> {
    let mut all: Vec<SourceByArchitecture> = Vec::new();
    for dtype in DType::ALL.into_iter().filter(|dtype| dtype.bits() >= 8) {
        all.push((tune::noise_source(dtype), &Architecture::DECLARED));
    }
    for dtype in [DType::F64, DType::F32, DType::BF16, DType::F8E4M3] {
        let (source, _) = plain::source(&linear_gelu([67, 129, 35], dtype, false));
        all.push((source, &Architecture::DECLARED));
    }
    for (n, dtype) in [(10, DType::BF16), (16, DType::F32), (3, DType::F64)] {
        let (source, _) = narrow::source(&linear_gelu([32, n, 2048], dtype, false));
        all.push((source, &Architecture::DECLARED));
    }
    let ragged = [70, 200, 1104];
    let large = [8192, 16384, 4096];
    for (shape, dtype, transposed, tiles) in [
        (large, DType::BF16, false, 6),
        (large, DType::F16, true, 2),
        (large, DType::F8E4M3, true, 2),
        (large, DType::I8, true, 2),
        (ragged, DType::BF16, false, TILES.len()),
    ] {
        let call = linear_gelu(shape, dtype, transposed);
        let fit = Fit::of(&call).expect("dense, aligned and typed");
        let calls = [call];
        let sources = TILES
            .into_iter()
            .filter_map(|tile| hopper::source(HopperWork::of(&calls), &fit, tile, 132));
        all.extend(sources.take(tiles).map(|(source, _)| (source, &[Architecture::Sm90a][..])));
    }
    let calls = vec![linear_gelu([1024, 512, 512], DType::BF16, false); 3];
    let fit = Fit::of(&calls[0]).expect("dense, aligned and typed");
    let sources = TILES
        .into_iter()
        .filter_map(|tile| hopper::source(HopperWork::of(&calls), &fit, tile, 132));
    all.extend(sources.map(|(source, _)| (source, &[Architecture::Sm90a][..])));
    // Two results that the copy engine stores.
    let mut two = calls[0].clone();
    let mut second = two.epilogue.0.stores[0].clone();
    second.access.slot = SlotId(4);
    two.epilogue.0.stores.push(second);
    let two = [two];
    let sources =
        TILES.into_iter().filter_map(|tile| hopper::source(HopperWork::of(&two), &fit, tile, 132));
    all.extend(sources.map(|(source, _)| (source, &[Architecture::Sm90a][..])));
    // Products that are added up.
    let work = HopperWork { terms: &calls, ..HopperWork::of(&calls[..1]) };
    let sources = TILES.into_iter().filter_map(|tile| hopper::source(work, &fit, tile, 132));
    all.extend(sources.map(|(source, _)| (source, &[Architecture::Sm90a][..])));
    let calls = &calls[..1];
    let program = rms_norm(&calls[0]);
    let result = &calls[0].epilogue.0.stores[0].access;
    let following =
        Following::new(&program, result, [1024, 512]).expect("it folds rows of the result");
    let work = HopperWork { following: Some(&following), ..HopperWork::of(calls) };
    let sources = TILES.into_iter().filter_map(|tile| hopper::source(work, &fit, tile, 132));
    all.extend(sources.map(|(source, _)| (source, &[Architecture::Sm90a][..])));
    for (shape, dtype, transposed, weights) in [
        ([32, 2048, 2048], DType::BF16, false, skinny::WeightWrites::Settled),
        ([64, 4096, 8192], DType::F16, true, skinny::WeightWrites::Settled),
        ([13, 200, 1104], DType::BF16, true, skinny::WeightWrites::Moving),
        ([1, 2048, 2048], DType::I8, true, skinny::WeightWrites::Settled),
        ([8, 200, 1104], DType::F8E4M3, true, skinny::WeightWrites::Settled),
    ] {
        let call = linear_gelu(shape, dtype, transposed);
        let cuts = skinny::SPLITS.map(|split| skinny::Cut::new(&call, split));
        let tiles = [vec![call]];
        let parts = FewRows { tiles: &tiles, lead: None };
        let sources = cuts.iter().filter_map(|cut| skinny::source(parts, cut, weights, &[]));
        all.extend(sources.map(|source| (source, &[Architecture::Sm90a][..])));
    }
    for (shape, dtype, weights) in [
        ([1, 2048, 2048], DType::BF16, skinny::WeightWrites::Settled),
        ([1, 768, 768], DType::F32, skinny::WeightWrites::Moving),
        ([4, 333, 5640], DType::F16, skinny::WeightWrites::Settled),
    ] {
        let call = linear_gelu(shape, dtype, true);
        let tiles = [vec![call.clone(), call.clone()], vec![call]];
        let source = streamed::source(FewRows { tiles: &tiles, lead: None }, weights, &[]);
        let source = source.expect("these products are of its kind");
        all.push((source, &Architecture::DECLARED));
    }
    all
}
