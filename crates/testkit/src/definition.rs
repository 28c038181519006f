//! The slow definition of a program: every instruction at every point, in f64 (integers exactly).
//! Each value has a bound on the error that f32 arithmetic may make in it. The bounds are the
//! tests' tolerance. The functions are the evaluator's, which `tests/all/formulas.rs` holds
//! against formulas that it shares nothing with.

use overdrive_ir::eval::{for_each_index, philox, scalar};
use overdrive_ir::plan::{Access, Instr, Program, Reduction, Register};
use overdrive_ir::{Binary, Compare, DType, Overflow, Reducer, Tensor, TensorType, Unary};

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
    let read = slots
        .iter()
        .map(|t| (t.to_f64(), if t.ty().dtype.is_float() { vec![] } else { t.to_ints() }))
        .collect();
    let mut definition = Definition { program, read, points: Points::of(program), values: vec![] };
    for register in 0..program.instrs.len() {
        let values = definition.register(register);
        definition.values.push(values);
    }
    definition.stored(slots)
}

/// The points that a program is evaluated at, row after row.
struct Points {
    points: Vec<Vec<usize>>,
    rows: usize,
    per_row: usize,
    /// An empty row still has its row-level values: one ghost point stands for it.
    ghosts: bool,
}

impl Points {
    fn of(program: &Program) -> Self {
        let (kept, reduced) = program.extents.split_at(program.extents.len() - program.reduced);
        let elements: usize = reduced.iter().product();
        let mut points = Vec::new();
        for_each_index(&program.extents, |index| points.push(index.to_vec()));
        if elements == 0 {
            for_each_index(kept, |index| {
                let mut index = index.to_vec();
                index.resize(program.extents.len(), 0);
                points.push(index);
            });
        }
        let rows = kept.iter().product();
        Self { points, rows, per_row: elements.max(1), ghosts: elements == 0 }
    }
}

/// The element of a slot that an access means at a point.
fn at(access: &Access, index: &[usize]) -> usize {
    let i: i64 = index.iter().zip(&access.strides).map(|(&i, s)| i as i64 * s).sum();
    (access.offset + i) as usize
}

/// A program, what it reads, and the values of its first registers at every point.
struct Definition<'a> {
    program: &'a Program,
    /// For each slot, its values as floats, and those of integers exactly.
    read: Vec<(Vec<f64>, Vec<i128>)>,
    points: Points,
    values: Vec<Vec<BoundedValue>>,
}

impl Definition<'_> {
    /// The values of a register at every point.
    fn register(&self, r: usize) -> Vec<BoundedValue> {
        match &self.program.instrs[r] {
            Instr::Reduce(fold) => self.reduced(r, fold),
            Instr::Load(access) => self.loaded(r, access),
            _ => (0..self.points.points.len()).map(|p| self.value(r, p)).collect(),
        }
    }

    fn reduced(&self, r: usize, fold: &Reduction) -> Vec<BoundedValue> {
        let Points { rows, per_row, ghosts, .. } = self.points;
        let mut out = Vec::with_capacity(self.points.points.len());
        for row in 0..rows {
            let all = &self.values[fold.value.0 as usize];
            let members = if ghosts { &[][..] } else { &all[row * per_row..][..per_row] };
            let folded = reduce(fold.reducer, self.program.dtypes[r], members);
            out.extend(std::iter::repeat_n(folded, per_row));
        }
        out
    }

    fn loaded(&self, r: usize, access: &Access) -> Vec<BoundedValue> {
        let (floats, ints) = &self.read[access.slot.0 as usize];
        let is_nowhere = self.points.ghosts && self.program.element_level()[r];
        let load = |index: &Vec<usize>| {
            if is_nowhere {
                return BoundedValue { x: 0.0, i: 0, error: 0.0 };
            }
            let i = at(access, index);
            BoundedValue { x: floats[i], i: ints.get(i).copied().unwrap_or(0), error: 0.0 }
        };
        self.points.points.iter().map(load).collect()
    }

    /// The value of a register at one point, from that point alone.
    fn value(&self, r: usize, p: usize) -> BoundedValue {
        let (dtype, index) = (self.program.dtypes[r], &self.points.points[p]);
        let of = |register: &Register| self.values[register.0 as usize][p];
        let ty = |register: &Register| self.program.dtypes[register.0 as usize];
        match &self.program.instrs[r] {
            Instr::Constant(x) if dtype.is_float() => {
                BoundedValue { x: dtype.round(*x, Overflow::Ieee), i: 0, error: 0.0 }
            }
            Instr::Constant(x) => int(dtype, *x as i128, 0.0),
            Instr::Index(d) if dtype.is_float() => {
                BoundedValue { x: index[*d] as f64, i: 0, error: 0.0 }
            }
            Instr::Index(d) => int(dtype, index[*d] as i128, 0.0),
            Instr::RandomBits { seed, site } => {
                let extents = &self.program.extents;
                let linear = index.iter().zip(extents).fold(0, |at, (&i, &n)| at * n + i);
                int(dtype, philox::bits(of(seed).i as u64, *site, linear as u64).into(), 0.0)
            }
            Instr::Unary(kind, a) => unary(*kind, dtype, of(a)),
            Instr::Binary(kind, a, b) => binary(*kind, dtype, of(a), of(b)),
            Instr::Compare(kind, a, b) => compare(*kind, ty(a), of(a), of(b)),
            Instr::Select(c, a, b) => select(of(c), of(a), of(b)),
            Instr::Convert(a, overflow) => convert(ty(a), dtype, of(a), *overflow),
            Instr::Bitcast(a) => bitcast(ty(a), dtype, of(a)),
            Instr::Accumulator => panic!("no loop has an accumulator"),
            Instr::Load(_) | Instr::Reduce(_) => unreachable!("defined over all points"),
        }
    }

    /// The values that the stores leave in slots like these.
    fn stored(&self, slots: &[Tensor]) -> Vec<Vec<Option<BoundedValue>>> {
        let (level, first) =
            (self.program.element_level(), self.program.extents.len() - self.program.reduced);
        let mut out: Vec<Vec<Option<BoundedValue>>> =
            slots.iter().map(|t| vec![None; t.ty().elements()]).collect();
        for store in &self.program.stores {
            let element = level[store.value.0 as usize]
                || store.access.strides[first..].iter().any(|&s| s != 0);
            if self.points.ghosts && element {
                continue;
            }
            for (p, index) in self.points.points.iter().enumerate() {
                out[store.access.slot.0 as usize][at(&store.access, index)] =
                    Some(self.values[store.value.0 as usize][p]);
            }
        }
        out
    }
}

fn unary(kind: Unary, dtype: DType, a: BoundedValue) -> BoundedValue {
    if !dtype.is_float() {
        return int(dtype, scalar::unary_int(kind, dtype, a.i), a.error);
    }
    let error = moved(|x| scalar::unary(kind, x), a.x, a.error);
    float(dtype, scalar::unary(kind, a.x), error, FUNCTION_ULPS)
}

fn binary(kind: Binary, dtype: DType, a: BoundedValue, b: BoundedValue) -> BoundedValue {
    if !dtype.is_float() {
        return int(dtype, scalar::binary_int(kind, dtype, a.i, b.i), a.error + b.error);
    }
    let error = moved(|x| scalar::binary(kind, x, b.x), a.x, a.error)
        + moved(|y| scalar::binary(kind, a.x, y), b.x, b.error)
        + if kind == Binary::Mul { a.error * b.error } else { 0.0 };
    float(dtype, scalar::binary(kind, a.x, b.x), error, FUNCTION_ULPS)
}

/// Compares values of one type; the answer is in doubt where they are as near as they may be off.
fn compare(kind: Compare, of: DType, a: BoundedValue, b: BoundedValue) -> BoundedValue {
    let error = a.error + b.error;
    let (holds, is_near) = if of.is_float() {
        (scalar::compare(kind, &a.x, &b.x), (a.x - b.x).abs() <= 2.0 * error)
    } else {
        (scalar::compare(kind, &a.i, &b.i), true)
    };
    int(DType::Bool, holds as i128, f64::from(u8::from(error > 0.0 && is_near)))
}

fn select(c: BoundedValue, a: BoundedValue, b: BoundedValue) -> BoundedValue {
    let chosen = if c.i != 0 { a } else { b };
    BoundedValue { error: if c.error > 0.0 { f64::INFINITY } else { chosen.error }, ..chosen }
}

fn bitcast(from: DType, to: DType, a: BoundedValue) -> BoundedValue {
    let bits = if from.is_float() {
        Tensor::from_f64(from, [1usize], &[a.x])
    } else {
        Tensor::from_ints(from, [1usize], &[a.i])
    };
    let cast = Tensor::from_bytes(TensorType::new(to, [1usize]), bits.bytes().to_vec())
        .expect("integers have a range");
    let error = if a.error > 0.0 { f64::INFINITY } else { 0.0 };
    let i = if to.is_float() { 0 } else { cast.to_ints()[0] };
    BoundedValue { x: cast.to_f64()[0], i, error }
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
