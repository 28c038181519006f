//! Programs of fused loops for tests: a builder, random programs, and the comparison with their
//! definition.

use crate::definition::BoundedValue;
use overdrive_ir::eval::philox;
use overdrive_ir::plan::{Access, Instr, Program, Reduction, Register, Store};
use overdrive_ir::{Binary, Compare, DType, Overflow, Reducer, SlotId, Tensor, Unary, row_major};

/// Normal numbers, or integers about 50 times as large.
pub fn normal(dtype: DType, dims: &[usize], seed: u64) -> Tensor {
    let count = dims.iter().product();
    let values: Vec<f64> = philox::normals(seed, 7).take(count).collect();
    if dtype.is_float() {
        Tensor::from_f64(dtype, dims.to_vec(), &values)
    } else {
        let ints: Vec<i128> = values.iter().map(|v| (v * 50.0) as i128).collect();
        let ints = ints
            .into_iter()
            .map(|i| if dtype == DType::Bool { i & 1 } else { i })
            .collect::<Vec<_>>();
        Tensor::from_ints(dtype, dims.to_vec(), &ints)
    }
}

/// NaN, or 1 for integers: what a missing write leaves.
pub fn blank(dtype: DType, dims: &[usize]) -> Tensor {
    let fill = if dtype.is_float() { f64::NAN } else { 1.0 };
    Tensor::from_f64(dtype, dims.to_vec(), &vec![fill; dims.iter().product()])
}

/// An access from the origin.
pub fn access(slot: u32, strides: &[usize]) -> Access {
    Access { slot: SlotId(slot), offset: 0, strides: strides.iter().map(|&s| s as i64).collect() }
}

/// Row-major access.
pub fn dense(slot: u32, extents: &[usize]) -> Access {
    access(slot, &row_major(extents))
}

/// Access by rows: stride 0 over the last dimension.
pub fn by_row(slot: u32, extents: &[usize]) -> Access {
    let mut strides = row_major(&extents[..extents.len() - 1]);
    strides.push(0);
    access(slot, &strides)
}

/// A program while it is written.
pub struct ProgramBuilder(pub Program);

impl ProgramBuilder {
    /// A program over these extents; the last `reduced` of them are folded.
    pub fn new(extents: &[usize], reduced: usize) -> Self {
        ProgramBuilder(Program { extents: extents.to_vec(), reduced, ..Program::default() })
    }

    /// An element.
    pub fn load(&mut self, access: Access, dtype: DType) -> Register {
        self.0.push(Instr::Load(access), dtype)
    }

    /// A number.
    pub fn constant(&mut self, x: f64, dtype: DType) -> Register {
        self.0.push(Instr::Constant(x), dtype)
    }

    /// A function of one register.
    pub fn unary(&mut self, kind: Unary, a: Register) -> Register {
        let dtype = self.0.dtype(a);
        self.0.push(Instr::Unary(kind, a), dtype)
    }

    /// A function of two.
    pub fn binary(&mut self, kind: Binary, a: Register, b: Register) -> Register {
        let dtype = self.0.dtype(a);
        self.0.push(Instr::Binary(kind, a, b), dtype)
    }

    /// As another type.
    pub fn convert(&mut self, a: Register, to: DType) -> Register {
        self.0.push(Instr::Convert(a, Overflow::Ieee), to)
    }

    /// A fold over the reduced dimensions.
    pub fn reduce(&mut self, reducer: Reducer, value: Register) -> Register {
        let dtype = self.0.dtype(value);
        self.0.push(Instr::Reduce(Reduction { reducer, value }), dtype)
    }

    /// Writes a register.
    pub fn store(&mut self, access: Access, value: Register) {
        self.0.stores.push(Store { access, value });
    }
}

/// Checks each value of a slot after a program ran. It has to lie within the bounds of `expected`,
/// or to be as `before` if the program does not write it.
///
/// # Panics
/// If a value is not.
pub fn assert_agrees(got: &Tensor, expected: &[Option<BoundedValue>], before: &Tensor, what: &str) {
    let dtype = got.ty().dtype;
    let (floats, old) = (got.to_f64(), before.to_f64());
    let ints = if dtype.is_float() { vec![0; floats.len()] } else { got.to_ints() };
    for (i, expected) in expected.iter().enumerate() {
        let Some(v) = expected else {
            assert!(
                floats[i] == old[i] || old[i].is_nan(),
                "{what}: element {i} was not to be written"
            );
            continue;
        };
        if dtype.is_float() {
            let rounded = |x| dtype.round(x, Overflow::Ieee);
            let (lo, hi) = (rounded(v.x - v.error), rounded(v.x + v.error));
            let fits = (lo <= floats[i] && floats[i] <= hi)
                || v.error.is_infinite()
                || v.x.is_nan() && floats[i].is_nan()
                || rounded(v.x) == floats[i]
                || (v.error.is_nan());
            assert!(
                fits,
                "{what}: element {i} is {:e}, expected {:e} +- {:e}",
                floats[i], v.x, v.error
            );
        } else if v.error == 0.0 {
            assert_eq!(ints[i], v.i, "{what}: element {i}");
        }
    }
}

/// Random numbers for programs.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 += 1;
        philox::bits(99, 3, self.0) as usize % sides
    }
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.roll(from.len())]
    }
}

/// A random program over random extents, with every kind of instruction, and its slots.
pub fn random_program(seed: u64) -> (Program, Vec<Tensor>) {
    let dice = &mut Dice(seed * 100_000);
    let rank = 1 + dice.roll(3);
    let extents: Vec<usize> = (0..rank).map(|_| dice.pick(&[1, 2, 3, 7, 16, 33, 130])).collect();
    let reduced = dice.roll(rank + 1);
    let mut b = ProgramBuilder::new(&extents, reduced);
    let mut slots = Vec::new();
    let float = dice.pick(&[DType::F32, DType::F32, DType::F64]);
    let mut floats = Vec::new();
    let mut ints = Vec::new();
    for _ in 0..2 + dice.roll(3) {
        let dtype =
            dice.pick(&[float, float, DType::BF16, DType::F16, DType::I32, DType::U8, DType::I64]);
        let strides: Vec<usize> = row_major(&extents)
            .into_iter()
            .map(|s| if dice.roll(4) == 0 { 0 } else { s })
            .collect();
        let size: usize = extents.iter().product();
        slots.push(normal(dtype, &[size], seed + 17 * slots.len() as u64));
        let x = b.load(access(slots.len() as u32 - 1, &strides), dtype);
        if dtype.is_float() {
            floats.push(b.convert(x, float))
        } else {
            ints.push(b.convert(x, DType::I32))
        }
    }
    let c = b.constant(0.75, float);
    floats.push(c);
    let index = b.0.push(Instr::Index(dice.roll(rank)), DType::I32);
    ints.push(index);
    for _ in 0..3 + dice.roll(9) {
        let (x, y) = (dice.pick(&floats), dice.pick(&floats));
        let (i, j) = (dice.pick(&ints), dice.pick(&ints));
        match dice.roll(8) {
            0 | 1 => {
                let kind = dice.pick(&[
                    Unary::Neg,
                    Unary::Abs,
                    Unary::Tanh,
                    Unary::Logistic,
                    Unary::Sin,
                    Unary::Erf,
                    Unary::Cos,
                    Unary::Sign,
                    Unary::Floor,
                ]);
                let v = b.unary(kind, x);
                floats.push(v);
            }
            2 | 3 => {
                let kind = dice.pick(&[
                    Binary::Add,
                    Binary::Sub,
                    Binary::Mul,
                    Binary::Max,
                    Binary::Min,
                    Binary::Div,
                ]);
                let v = b.binary(kind, x, y);
                floats.push(v);
            }
            4 => {
                let kind = dice.pick(&[
                    Binary::Add,
                    Binary::Mul,
                    Binary::Xor,
                    Binary::Shl,
                    Binary::Shr,
                    Binary::Div,
                    Binary::Rem,
                    Binary::Max,
                ]);
                let v = b.binary(kind, i, j);
                ints.push(v);
            }
            5 => {
                let kind = dice.pick(&[Compare::Lt, Compare::Ge, Compare::Eq, Compare::Ne]);
                let condition = b.0.push(Instr::Compare(kind, x, y), DType::Bool);
                let v = b.0.push(Instr::Select(condition, y, x), float);
                floats.push(v);
                let v = b.0.push(Instr::Select(condition, i, j), DType::I32);
                ints.push(v);
            }
            6 => {
                let half = b.convert(x, DType::BF16);
                let v = b.convert(half, float);
                floats.push(v);
                let v = b.convert(i, float);
                floats.push(v);
            }
            _ => {
                let level = b.0.element_level();
                if level[x.0 as usize] {
                    let reducer = dice.pick(&[Reducer::Sum, Reducer::Max, Reducer::Min]);
                    let v = b.reduce(reducer, x);
                    floats.push(v);
                }
            }
        }
    }
    for (value, dtype) in [
        (*floats.last().expect("there is a constant"), float),
        (*ints.last().expect("there is an index"), DType::I32),
        (dice.pick(&floats), float),
    ] {
        let level = b.0.element_level();
        let first = rank - reduced;
        let mut strides = row_major(&extents);
        if !level[value.0 as usize] && dice.roll(3) > 0 {
            strides = row_major(&extents[..first]);
            strides.resize(rank, 0);
        }
        slots.push(blank(dtype, &[extents.iter().product()]));
        b.store(access(slots.len() as u32 - 1, &strides), value);
    }
    (b.0, slots)
}
