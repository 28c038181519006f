//! GELU and its slope in programs whose results have at most 16 bits. One function replaces an
//! error function, a tanh or two logistic functions, and the operations around them.
//!
//! CUDA's `erff` is right to an ulp of f32 and takes some forty instructions a sum. A product of
//! moderate depth cannot hide them. `gelu.cuh` describes the replacement. Its error is a fraction
//! of the rounding when results are stored.

use super::print::{Spelling, statement};
use overdrive_ir::plan::{Instr, Program, Register};
use overdrive_ir::{Binary, DType, Unary};
use std::collections::BTreeMap;

/// The functions.
pub(crate) const TEXT: &str = include_str!("gelu.cuh");

const CUBIC: f64 = 0.044715;
const SLOPE: f64 = 0.797_884_560_802_865_4;

/// The C++ of every instruction of a program without reductions, in order, one statement a line.
/// Statements of `TEXT` take the place of registers that hold GELUs.
pub(crate) fn statements(program: &Program, spelling: &dyn Spelling) -> String {
    let gelus = found(program);
    let line = |register: Register| match gelus.get(&register) {
        Some(call) => format!("        {call}\n"),
        None => format!("        {}\n", statement(program, register, spelling)),
    };
    (0..program.instrs.len() as u32).map(Register).map(line).collect()
}

/// The statements that take the place of registers which hold GELUs; none where a result has more
/// than 16 bits.
fn found(program: &Program) -> BTreeMap<Register, String> {
    if program.stores.iter().any(|store| program.dtype(store.value).bits() > 16) {
        return BTreeMap::new();
    }
    let is_f16 = program.stores.iter().any(|store| program.dtype(store.value) == DType::F16);
    let digits = if is_f16 { 11 } else { 8 };
    let registers = (0..program.instrs.len() as u32).map(Register);
    registers
        .filter(|&register| program.dtype(register) == DType::F32)
        .filter_map(|register| {
            let (x, function) = gelu(program, register).or_else(|| slope(program, register))?;
            Some((register, format!("const f32 t{} = {function}<{digits}>(t{});", register.0, x.0)))
        })
        .collect()
}

/// The x of `x / 2 * (1 + f(..))`, and the function that it is.
fn gelu(p: &Program, at: Register) -> Option<(Register, &'static str)> {
    let (left, right) = operands(p, at, Binary::Mul)?;
    [(left, right), (right, left)].into_iter().find_map(|(half, centred)| {
        let x = with_constant(p, half, Binary::Mul, 0.5)?;
        let odd = with_constant(p, centred, Binary::Add, 1.0)?;
        match *p.instr(odd) {
            Instr::Unary(Unary::Erf, u) => {
                let scaled = with_constant(p, u, Binary::Mul, std::f64::consts::FRAC_1_SQRT_2)?;
                (scaled == x).then_some((x, "gelu_erf"))
            }
            Instr::Unary(Unary::Tanh, u) => {
                let cubic = with_constant(p, u, Binary::Mul, SLOPE)?;
                is_cubic(p, (cubic, CUBIC), x).then_some((x, "gelu_tanh"))
            }
            _ => None,
        }
    })
}

/// The x of the derivative of GELU by the tanh, as its op writes it: `s + 2 u' x s logistic(-2 u)`
/// with `s = logistic(2 u)`.
fn slope(p: &Program, at: Register) -> Option<(Register, &'static str)> {
    let (left, rest) = operands(p, at, Binary::Add)?;
    let Instr::Unary(Unary::Logistic, twice) = *p.instr(left) else { return None };
    let (steep, right) = operands(p, rest, Binary::Mul)?;
    let Instr::Unary(Unary::Logistic, negative) = *p.instr(right) else { return None };
    let is_negative = matches!(*p.instr(negative), Instr::Unary(Unary::Neg, u) if u == twice);
    let (steep, s) = operands(p, steep, Binary::Mul)?;
    let cubics = [twice, steep].map(|doubled| with_constant(p, doubled, Binary::Mul, 2.0 * SLOPE));
    let [cubic, steep] = [cubics[0]?, cubics[1]?];
    let (a, b) = operands(p, cubic, Binary::Mul)?;
    let x = [a, b].into_iter().find(|&x| is_cubic(p, (cubic, CUBIC), x))?;
    let is_slope = is_negative && s == left && is_cubic(p, (steep, 3.0 * CUBIC), x);
    is_slope.then_some((x, "gelu_tanh_slope"))
}

/// Whether a register holds `x (1 + factor x²)`.
fn is_cubic(p: &Program, (at, factor): (Register, f64), x: Register) -> bool {
    let bracket = || {
        let (a, b) = operands(p, at, Binary::Mul)?;
        let bracket = if a == x { b } else { (b == x).then_some(a)? };
        let scaled = with_constant(p, bracket, Binary::Add, 1.0)?;
        let square = with_constant(p, scaled, Binary::Mul, factor)?;
        Some(operands(p, square, Binary::Mul)? == (x, x))
    };
    bracket() == Some(true)
}

fn operands(p: &Program, at: Register, kind: Binary) -> Option<(Register, Register)> {
    match *p.instr(at) {
        Instr::Binary(found, a, b) if found == kind => Some((a, b)),
        _ => None,
    }
}

/// The operand of a register beside the f32 nearest to a number.
fn with_constant(p: &Program, at: Register, kind: Binary, number: f64) -> Option<Register> {
    let (a, b) = operands(p, at, kind)?;
    let is_number =
        |r: Register| matches!(p.instr(r), Instr::Constant(c) if *c as f32 == number as f32);
    if is_number(b) { Some(a) } else { is_number(a).then_some(b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overdrive_ir::ops::gelu::Approximation;
    use overdrive_ir::plan::StepKind;
    use overdrive_ir::{Builder, Description, Mode, TensorType, Tuning, WithoutKernels, gradients};

    /// The functions of a product's epilogue with GELU in it, forward and backward.
    fn functions(approximation: Approximation) -> [Vec<String>; 2] {
        let b = Builder::new("layer");
        let bf16 = |shape: [usize; 2]| TensorType::new(DType::BF16, shape);
        let (x, w) = (b.input("x", bf16([8, 16])), b.input("w", bf16([16, 32])));
        let (dy, v) = (b.input("dy", bf16([8, 16])), b.input("v", bf16([32, 16])));
        let before = x.dot(w, &[], &[(1, 0)]);
        b.output("y", before.gelu(approximation));
        b.output("dy", dy.dot(v, &[], &[(1, 1)]));
        let graph = b.finish().unwrap_or_else(|e| panic!("{e}"));
        let b = Builder::new("trained");
        let map = b.append(&graph).unwrap_or_else(|e| panic!("{e}"));
        let gelu = graph.outputs()[0].value;
        let before = graph.producer(gelu).map(|node| node.operands[0]).unwrap_or(gelu);
        let dy = map[graph.outputs()[1].value.0 as usize];
        b.output("y", map[gelu.0 as usize]);
        let dx = gradients(&b, &graph, &map, &[(gelu, dy)], &[before])[0];
        b.output("dx", dx.unwrap_or(dy));
        let graph = b.finish().unwrap_or_else(|e| panic!("{e}"));
        let target = WithoutKernels(Description {
            contraction_dtypes: [DType::BF16].into(),
            loop_dtypes: DType::ALL.into(),
            ..Description::default()
        });
        let plan = overdrive_passes::plan(&graph, Mode::Compile, &target, &Tuning::default())
            .unwrap_or_else(|e| panic!("{e}"));
        let found: Vec<Vec<String>> = plan
            .steps
            .iter()
            .filter_map(|step| match &step.kind {
                StepKind::Gemm(call) => Some(found(&call.epilogue.0).into_values().collect()),
                _ => None,
            })
            .collect();
        found.try_into().unwrap_or_else(|found| panic!("two products: {found:?}, {plan}"))
    }

    #[test]
    fn gelu_by_the_tangent_and_its_slope_are_found_as_their_op_writes_them() {
        let [forward, backward] = functions(Approximation::Tanh);
        assert!(forward.iter().any(|text| text.contains("gelu_tanh<8>")), "{forward:?}");
        assert!(backward.iter().any(|text| text.contains("gelu_tanh_slope<8>")), "{backward:?}");
    }
}
