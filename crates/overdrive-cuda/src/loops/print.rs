//! The one printer of scalar expressions: instructions of a `Program` as C++ over
//! `headers/scalar.cuh`.
//!
//! Fused loops, epilogues of products, and score and mask functions differ in two things alone. One
//! is where an element comes from, the other where a point of the space is. They say so through
//! `Spelling`. Invariant: the text means what the f64 evaluator means, rounded to each register's
//! type.

use overdrive_ir::plan::{Access, Instr, Program, Register};
use overdrive_ir::{Binary, Compare, DType, Overflow, Reducer, Unary};

/// Spells the parts of a program that depend on where it runs.
pub trait Spelling {
    /// The element that `register` reads through `access`, of the type of the register.
    fn load(&self, register: Register, access: &Access) -> String;

    /// The index along a dimension of the iteration space, as an integer expression.
    fn index(&self, dimension: usize) -> String;

    /// The row-major index of the point in the iteration space, as an integer expression of 64
    /// bits.
    fn point(&self) -> String;

    /// The sum of the contraction, of the type of its register.
    fn accumulator(&self) -> String {
        unreachable!("only epilogues and score functions have an accumulator")
    }

    /// Whether a faster function will do for a register; `loose` tells.
    fn is_loose(&self, _: Register) -> bool {
        false
    }

    /// The name of a register where it is used.
    fn name(&self, register: Register) -> String {
        format!("t{}", register.0)
    }
}

/// A register's declaration and value, as one statement: `const f32 t5 = op_add(t3, t4);`.
///
/// # Panics
/// For `Instr::Reduce`, which no expression contains.
pub fn statement(program: &Program, register: Register, spelling: &dyn Spelling) -> String {
    let value = value(program, register, spelling);
    format!("const {} t{} = {value};", program.dtype(register), register.0)
}

/// Every instruction of a program without reductions, in order, one statement a line.
pub fn body(program: &Program, spelling: &dyn Spelling) -> String {
    let registers = (0..program.instrs.len() as u32).map(Register);
    registers.map(|r| statement(program, r, spelling) + "\n").collect()
}

/// The value of a register as an expression.
pub(super) fn value(program: &Program, register: Register, spelling: &dyn Spelling) -> String {
    let dtype = program.dtype(register);
    let plain = |r: &Register| spelling.name(*r);
    let operand = |r: &Register| match program.dtype(*r) {
        same if same == dtype => plain(r),
        _ => format!("convert<{dtype}>({})", plain(r)),
    };
    match program.instr(register) {
        Instr::Load(access) => spelling.load(register, access),
        Instr::Constant(number) => constant(*number, dtype),
        Instr::Index(dimension) => {
            format!("convert<{dtype}>((i64)({}))", spelling.index(*dimension))
        }
        Instr::Accumulator => spelling.accumulator(),
        Instr::Unary(kind, a) => {
            let function =
                if spelling.is_loose(register) { fast_unary(*kind) } else { unary(*kind) };
            format!("{function}({})", operand(a))
        }
        Instr::Binary(Binary::Div, a, b) if spelling.is_loose(register) => {
            match program.instr(*b) {
                // The compiler does not see through `fast_div`: a known divisor is a factor.
                Instr::Constant(by) if ((1.0 / by) as f32).is_normal() => {
                    let factor = constant(1.0 / by, dtype);
                    format!("{}({}, {factor})", binary(Binary::Mul), operand(a))
                }
                _ => format!("fast_div({}, {})", operand(a), operand(b)),
            }
        }
        Instr::Binary(kind, a, b) => format!("{}({}, {})", binary(*kind), operand(a), operand(b)),
        Instr::Compare(kind, a, b) => format!("{}({}, {})", compare(*kind), plain(a), plain(b)),
        Instr::Select(c, a, b) => format!("{} ? {} : {}", plain(c), operand(a), operand(b)),
        Instr::Convert(a, Overflow::Ieee) => format!("convert<{dtype}>({})", plain(a)),
        Instr::Convert(a, Overflow::Saturate) => {
            format!("convert<{dtype}, Overflow::saturate>({})", plain(a))
        }
        Instr::Bitcast(a) => format!("bitcast<{dtype}>({})", plain(a)),
        Instr::RandomBits { seed, site } => {
            format!("random_bits({}, {site:#x}ull, {})", plain(seed), spelling.point())
        }
        Instr::Reduce(_) => unreachable!("reductions are loops, not expressions"),
    }
}

/// A number of a type as a literal.
pub fn constant(number: f64, dtype: DType) -> String {
    match dtype {
        DType::F64 if number.is_finite() => format!("{number:?}"),
        DType::F64 => format!("__longlong_as_double({:#x}ll)", number.to_bits()),
        DType::F32 if (number as f32).is_finite() => format!("{:?}f", number as f32),
        DType::F32 => format!("__uint_as_float({:#x}u)", (number as f32).to_bits()),
        DType::Bool => (number != 0.0).to_string(),
        DType::I4 => format!("wrap<i4>({})", number as i64),
        _ => match dtype.float_format() {
            Some(format) => format!("{dtype}{{{:#x}}}", format.encode(number, Overflow::Ieee)),
            None => format!("({dtype}){:#x}ull", number as i128 as u64),
        },
    }
}

/// As `unary`, within 2^-17 of the result.
fn fast_unary(kind: Unary) -> &'static str {
    match kind {
        Unary::Exp => "fast_exp",
        Unary::Logistic => "fast_logistic",
        Unary::Reciprocal => "fast_reciprocal",
        Unary::Tanh => "fast_tanh",
        _ => unary(kind),
    }
}

fn unary(kind: Unary) -> &'static str {
    match kind {
        Unary::Neg => "op_neg",
        Unary::Abs => "op_abs",
        Unary::Sign => "op_sign",
        Unary::Exp => "op_exp",
        Unary::Expm1 => "op_expm1",
        Unary::Log => "op_log",
        Unary::Log1p => "op_log1p",
        Unary::Sqrt => "op_sqrt",
        Unary::Rsqrt => "op_rsqrt",
        Unary::Reciprocal => "op_reciprocal",
        Unary::Sin => "op_sin",
        Unary::Cos => "op_cos",
        Unary::Tanh => "op_tanh",
        Unary::Erf => "op_erf",
        Unary::Logistic => "op_logistic",
        Unary::Floor => "op_floor",
        Unary::Ceil => "op_ceil",
        Unary::Round => "op_round",
        Unary::Not => "op_not",
    }
}

fn binary(kind: Binary) -> &'static str {
    match kind {
        Binary::Add => "op_add",
        Binary::Sub => "op_sub",
        Binary::Mul => "op_mul",
        Binary::Div => "op_div",
        Binary::Rem => "op_rem",
        Binary::Pow => "op_pow",
        Binary::Max => "op_max",
        Binary::Min => "op_min",
        Binary::And => "op_and",
        Binary::Or => "op_or",
        Binary::Xor => "op_xor",
        Binary::Shl => "op_shl",
        Binary::Shr => "op_shr",
    }
}

fn compare(kind: Compare) -> &'static str {
    match kind {
        Compare::Eq => "op_eq",
        Compare::Ne => "op_ne",
        Compare::Lt => "op_lt",
        Compare::Le => "op_le",
        Compare::Gt => "op_gt",
        Compare::Ge => "op_ge",
    }
}

/// The fold of `headers/loop.cuh`.
pub(super) fn reducer(kind: Reducer) -> &'static str {
    match kind {
        Reducer::Sum => "Sum",
        Reducer::Prod => "Prod",
        Reducer::Max => "Max",
        Reducer::Min => "Min",
        Reducer::And => "And",
        Reducer::Or => "Or",
    }
}
