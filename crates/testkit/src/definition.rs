//! The slow definition of a program: every instruction at every point, in f64 (integers exactly).
//! Each value has a bound on the error that f32 arithmetic may make in it. The bounds are the
//! tests' tolerance. The functions are the evaluator's, which `tests/formulas.rs` holds against
//! formulas that it shares nothing with.

use overdrive_ir::eval::{for_each_index, philox, scalar};
use overdrive_ir::plan::{Access, Instr, Program};
use overdrive_ir::{Binary, DType, Overflow, Reducer, Tensor};

/// A float (`x`, off by at most `error`) or an integer (`i`; `error` is not 0 where it is in
/// doubt).
#[derive(Clone, Copy, Debug)]
pub struct BoundedValue {
    /// The float.
    pub x: f64,
    /// The integer.
    pub i: i128,
    /// How far off it may be.
    pub error: f64,
}

/// Units in the last place that a transcendental function may be off.
const FUNCTION_ULPS: f64 = 8.0;
/// Rounding errors, relative to the sum of magnitudes, that a sum may gather: blocks add one after
/// the other.
const SUM_ULPS: f64 = 32.0;

fn epsilon(dtype: DType) -> f64 {
    if dtype == DType::F64 { f64::EPSILON } else { f32::EPSILON as f64 }
}

fn wrap(dtype: DType, i: i128) -> i128 {
    let (lo, hi) = dtype.int_range().expect("integers have a range");
    (i - lo).rem_euclid(hi - lo + 1) + lo
}

fn float(dtype: DType, x: f64, error: f64, ulps: f64) -> BoundedValue {
    // f32 flushes nothing, but a function may end below its subnormals.
    let tiny = if dtype == DType::F64 { 0.0 } else { 2e-38 };
    let rounding = if x.is_finite() { ulps * epsilon(dtype) * x.abs() + tiny } else { 0.0 };
    BoundedValue { x, i: 0, error: error + rounding }
}

fn int(dtype: DType, i: i128, error: f64) -> BoundedValue {
    BoundedValue { x: 0.0, i: wrap(dtype, i), error }
}

/// How far `f` moves when its argument moves by as much as it may be off.
fn moved(f: impl Fn(f64) -> f64, x: f64, error: f64) -> f64 {
    if error == 0.0 {
        return 0.0;
    }
    let d = (f(x + error) - f(x)).abs().max((f(x - error) - f(x)).abs());
    if d.is_nan() { f64::INFINITY } else { d }
}

/// All values of all registers of `program`, and then its stores into `slots`: for each slot its
/// values, `None` where nothing was stored.
pub fn define(program: &Program, slots: &[Tensor]) -> Vec<Vec<Option<BoundedValue>>> {
    let read: Vec<(Vec<f64>, Vec<i128>)> = slots
        .iter()
        .map(|t| (t.to_f64(), if t.ty().dtype.is_float() { vec![] } else { t.to_ints() }))
        .collect();
    let mut points = Vec::new();
    for_each_index(&program.extents, |index| points.push(index.to_vec()));
    let at = |access: &Access, index: &[usize]| {
        let i: i64 = index.iter().zip(&access.strides).map(|(&i, s)| i as i64 * s).sum();
        (access.offset + i) as usize
    };
    let reduced: usize =
        program.extents[program.extents.len() - program.reduced..].iter().product();
    let rows: usize = program.extents[..program.extents.len() - program.reduced].iter().product();
    // An empty row still has its row-level values: one ghost point stands for it.
    let ghosts = reduced == 0;
    if ghosts {
        let outer = program.extents.len() - program.reduced;
        for_each_index(&program.extents[..outer], |index| {
            let mut index = index.to_vec();
            index.resize(program.extents.len(), 0);
            points.push(index);
        });
    }
    let per_row = reduced.max(1);
    let mut values: Vec<Vec<BoundedValue>> = Vec::new();
    for (r, instr) in program.instrs.iter().enumerate() {
        let dtype = program.dtypes[r];
        let of = |reg: &overdrive_ir::plan::Register| &values[reg.0 as usize];
        let ty = |reg: &overdrive_ir::plan::Register| program.dtypes[reg.0 as usize];
        let element = program.element_level()[r];
        let row: Vec<BoundedValue> = match instr {
            Instr::Reduce(fold) => {
                let mut out = Vec::with_capacity(points.len());
                for row in 0..rows {
                    let members =
                        if ghosts { &[][..] } else { &of(&fold.value)[row * per_row..][..per_row] };
                    let folded = reduce(fold.reducer, dtype, members);
                    out.extend(std::iter::repeat_n(folded, per_row));
                }
                out
            }
            _ => (0..points.len())
                .map(|p| {
                    let index = &points[p];
                    match instr {
                        Instr::Load(_) if ghosts && element => {
                            BoundedValue { x: 0.0, i: 0, error: 0.0 }
                        }
                        Instr::Load(access) => {
                            let (floats, ints) = &read[access.slot.0 as usize];
                            let i = at(access, index);
                            BoundedValue {
                                x: floats[i],
                                i: ints.get(i).copied().unwrap_or(0),
                                error: 0.0,
                            }
                        }
                        Instr::Constant(x) if dtype.is_float() => {
                            BoundedValue { x: dtype.round(*x, Overflow::Ieee), i: 0, error: 0.0 }
                        }
                        Instr::Constant(x) => int(dtype, *x as i128, 0.0),
                        Instr::Index(d) if dtype.is_float() => {
                            BoundedValue { x: index[*d] as f64, i: 0, error: 0.0 }
                        }
                        Instr::Index(d) => int(dtype, index[*d] as i128, 0.0),
                        Instr::Accumulator => panic!("no loop has an accumulator"),
                        Instr::Unary(kind, a) => {
                            let a = of(a)[p];
                            if dtype.is_float() {
                                float(
                                    dtype,
                                    scalar::unary(*kind, a.x),
                                    moved(|x| scalar::unary(*kind, x), a.x, a.error),
                                    FUNCTION_ULPS,
                                )
                            } else {
                                int(dtype, scalar::unary_int(*kind, dtype, a.i), a.error)
                            }
                        }
                        Instr::Binary(kind, a, b) => {
                            let (a, b) = (of(a)[p], of(b)[p]);
                            if dtype.is_float() {
                                let error = moved(|x| scalar::binary(*kind, x, b.x), a.x, a.error)
                                    + moved(|y| scalar::binary(*kind, a.x, y), b.x, b.error)
                                    + if *kind == Binary::Mul { a.error * b.error } else { 0.0 };
                                float(dtype, scalar::binary(*kind, a.x, b.x), error, FUNCTION_ULPS)
                            } else {
                                int(
                                    dtype,
                                    scalar::binary_int(*kind, dtype, a.i, b.i),
                                    a.error + b.error,
                                )
                            }
                        }
                        Instr::Compare(kind, a, b) => {
                            let floats = ty(a).is_float();
                            let (a, b) = (of(a)[p], of(b)[p]);
                            let doubt = if floats {
                                a.error + b.error > 0.0
                                    && (a.x - b.x).abs() <= 2.0 * (a.error + b.error)
                            } else {
                                a.error + b.error > 0.0
                            };
                            let holds = if floats {
                                scalar::compare(*kind, &a.x, &b.x)
                            } else {
                                scalar::compare(*kind, &a.i, &b.i)
                            };
                            int(DType::Bool, holds as i128, f64::from(u8::from(doubt)))
                        }
                        Instr::Select(c, a, b) => {
                            let (c, a, b) = (of(c)[p], of(a)[p], of(b)[p]);
                            let mut chosen = if c.i != 0 { a } else { b };
                            if c.error > 0.0 {
                                chosen.error = f64::INFINITY;
                            }
                            chosen
                        }
                        Instr::Convert(a, overflow) => convert(ty(a), dtype, of(a)[p], *overflow),
                        Instr::Bitcast(a) => {
                            let (from, v) = (ty(a), of(a)[p]);
                            let bits = if from.is_float() {
                                Tensor::from_f64(from, [1usize], &[v.x])
                            } else {
                                Tensor::from_ints(from, [1usize], &[v.i])
                            };
                            let ty = overdrive_ir::TensorType::new(dtype, [1usize]);
                            let cast = Tensor::from_bytes(ty, bits.bytes().to_vec())
                                .expect("integers have a range");
                            let doubt = if v.error > 0.0 { f64::INFINITY } else { 0.0 };
                            let i = if dtype.is_float() { 0 } else { cast.to_ints()[0] };
                            BoundedValue { x: cast.to_f64()[0], i, error: doubt }
                        }
                        Instr::RandomBits { seed, site } => {
                            let linear = index
                                .iter()
                                .zip(&program.extents)
                                .fold(0, |at, (&i, &n)| at * n + i);
                            int(
                                dtype,
                                philox::bits(of(seed)[p].i as u64, *site, linear as u64).into(),
                                0.0,
                            )
                        }
                        Instr::Reduce(_) => unreachable!(),
                    }
                })
                .collect(),
        };
        values.push(row);
    }
    let level = program.element_level();
    let mut out: Vec<Vec<Option<BoundedValue>>> =
        slots.iter().map(|t| vec![None; t.ty().elements()]).collect();
    for store in &program.stores {
        for (p, index) in points.iter().enumerate() {
            let first = program.extents.len() - program.reduced;
            let element = level[store.value.0 as usize]
                || store.access.strides[first..].iter().any(|&s| s != 0);
            if ghosts && element {
                continue;
            }
            out[store.access.slot.0 as usize][at(&store.access, index)] =
                Some(values[store.value.0 as usize][p]);
        }
    }
    out
}

fn convert(from: DType, to: DType, a: BoundedValue, overflow: Overflow) -> BoundedValue {
    match (from.is_float(), to.is_float()) {
        (true, true) => {
            let x = to.round(a.x, overflow);
            let step = (to.round(a.x + a.error, overflow) - x)
                .abs()
                .max((to.round(a.x - a.error, overflow) - x).abs());
            BoundedValue { x, i: 0, error: if step.is_nan() { f64::INFINITY } else { step } }
        }
        (false, true) => BoundedValue {
            x: to.round(a.i as f64, overflow),
            i: 0,
            error: if a.error > 0.0 { f64::INFINITY } else { 0.0 },
        },
        (true, false) => {
            let (lo, hi) = to.int_range().expect("integers have a range");
            // The largest i64 is no f64: its rounding is one more.
            let round = |x: f64| (to.round(x, overflow) as i128).clamp(lo, hi);
            let i = round(a.x);
            let doubt = round(a.x + a.error) != i
                || round(a.x - a.error) != i
                || (to == DType::Bool && a.error > a.x.abs());
            BoundedValue { x: 0.0, i, error: f64::from(u8::from(doubt)) }
        }
        (false, false) => {
            let (lo, hi) = to.int_range().expect("integers have a range");
            let i = match (to, overflow) {
                (DType::Bool, _) => (a.i != 0) as i128,
                (_, Overflow::Saturate) => a.i.clamp(lo, hi),
                _ => wrap(to, a.i),
            };
            BoundedValue { x: 0.0, i, error: a.error }
        }
    }
}

fn reduce(reducer: Reducer, dtype: DType, members: &[BoundedValue]) -> BoundedValue {
    let doubt = members.iter().map(|v| v.error).fold(0.0, f64::max);
    if !dtype.is_float() {
        let mut i = match (reducer, dtype.int_range().expect("integers have a range")) {
            (Reducer::Max, (lo, _)) => lo,
            (Reducer::Min, (_, hi)) => hi,
            (Reducer::And, _) if dtype != DType::Bool => -1,
            (reducer, _) => reducer.identity() as i128,
        };
        members
            .iter()
            .for_each(|v| i = wrap(dtype, scalar::binary_int(reducer.binary(), dtype, i, v.i)));
        return int(dtype, i, doubt);
    }
    let x = members
        .iter()
        .fold(reducer.identity(), |acc, v| scalar::binary(reducer.binary(), acc, v.x));
    let error = match reducer {
        Reducer::Sum => {
            let magnitude: f64 = members.iter().map(|v| v.x.abs()).sum();
            members.iter().map(|v| v.error).sum::<f64>() + SUM_ULPS * epsilon(dtype) * magnitude
        }
        Reducer::Prod => {
            let relative: f64 = members.iter().map(|v| v.error / v.x.abs() + epsilon(dtype)).sum();
            2.0 * relative * x.abs()
        }
        _ => doubt,
    };
    float(dtype, x, if error.is_nan() { f64::INFINITY } else { error }, 1.0)
}
