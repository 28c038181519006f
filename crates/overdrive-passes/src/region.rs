//! Score and mask functions of attention as scalar programs.
//!
//! A region is scalar code that reads captured tensors at computed indices. It becomes a `Program`,
//! which each back end prints or runs as it does fused loops. Values of few elements (an index
//! vector, say) are so many registers. A read is an `Instr::Load` whose element is kept beside the
//! program, because it is not affine.

mod grain;

pub use grain::greatest_common_divisor;

use std::collections::HashMap;

use overdrive_ir::eval::{eval_region, for_each_index};
use overdrive_ir::plan::{Access, Instr, Program, Register, View};
use overdrive_ir::{Array, Builder, DType, Graph, Node, Operation, Prim, TensorType, Value};

/// Elements of an intermediate value of a region, at most.
const MOST: usize = 256;

/// The form of a region's value.
#[derive(Clone)]
enum RegionValue {
    /// All of a captured tensor.
    Capture(usize),
    /// These elements, in row-major order.
    Elements(Vec<Register>),
}

/// A read of a capture: which, and the index along each of its dimensions.
#[derive(Clone, PartialEq, Debug)]
pub struct CaptureRead {
    /// The number of the capture.
    pub capture: usize,
    /// The index along each of its dimensions.
    pub index: Vec<At>,
}

/// An index along one dimension.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// Known ahead.
    Fixed(usize),
    /// Computed, and clamped to the dimension.
    Computed(Register),
}

/// A score or mask function as a program without stores: `Instr::Accumulator` is the score,
/// `Instr::Index` 0 to 3 are b, h, q and k.
#[derive(Clone, PartialEq, Debug)]
pub struct Region {
    /// The instructions; a load reads the slot of a capture.
    pub program: Program,
    /// The element of its capture that each load reads.
    pub reads: HashMap<Register, CaptureRead>,
    /// The elements of each output: the score, or whether the key is visible, first.
    pub outputs: Vec<Vec<Register>>,
}

impl Region {
    /// The program of a region that reads `captures`.
    ///
    /// # Errors
    /// If a region contains something that no scalar program computes, or a capture has elements
    /// that share bytes.
    pub fn new(region: &Graph, captures: &[View]) -> Result<Self, String> {
        if let Some(packed) = captures.iter().map(|view| view.ty.dtype).find(|d| d.bits() < 8) {
            return Err(format!(
                "a captured tensor of {packed}, which is less than a byte; convert it"
            ));
        }
        let output = region.ty(region.outputs()[0].value).dtype;
        let mut translator =
            Translator { captures, program: Program::default(), reads: HashMap::new() };
        let scalar = |translator: &mut Translator<'_>, instr, dtype| {
            RegionValue::Elements(vec![translator.program.push(instr, dtype)])
        };
        let mut arguments = Vec::new();
        if output != DType::Bool {
            arguments.push(scalar(&mut translator, Instr::Accumulator, output));
        }
        arguments.extend((0..4).map(|d| scalar(&mut translator, Instr::Index(d), DType::I32)));
        arguments.extend((0..captures.len()).map(RegionValue::Capture));
        let known = translator.region(region, &arguments)?;
        let outputs = known.into_iter().zip(region.outputs()).map(|(known, port)| match known {
            RegionValue::Elements(registers) => registers,
            // A score that is a captured number.
            RegionValue::Capture(capture) => {
                let read = CaptureRead { capture, index: Vec::new() };
                vec![translator.read(read, region.ty(port.value).dtype)]
            }
        });
        let outputs = outputs.collect();
        Ok(Self { program: translator.program, reads: translator.reads, outputs })
    }
}

/// A region on its way to a program.
struct Translator<'a> {
    captures: &'a [View],
    program: Program,
    reads: HashMap<Register, CaptureRead>,
}

fn unsupported(node: &Node) -> String {
    let reason = format!(
        "`{}` in a score or mask function; write it with elementwise ops and reads",
        node.op.name()
    );
    reason
}

impl Translator<'_> {
    /// The outputs of the region.
    fn region(
        &mut self,
        region: &Graph,
        arguments: &[RegionValue],
    ) -> Result<Vec<RegionValue>, String> {
        let mut known: Vec<Option<RegionValue>> = vec![None; region.value_count()];
        for (port, argument) in region.inputs().iter().zip(arguments) {
            known[port.value.0 as usize] = Some(argument.clone());
        }
        let at = |known: &[Option<RegionValue>], v: Value| {
            known[v.0 as usize].clone().expect("operands precede their node")
        };
        // Derivatives come with nodes that nobody reads, such as those of a captured tensor.
        let mut live = vec![false; region.value_count()];
        region.outputs().iter().for_each(|port| live[port.value.0 as usize] = true);
        for node in region.nodes().iter().rev() {
            if node.results.iter().any(|v| live[v.0 as usize]) {
                node.operands.iter().for_each(|v| live[v.0 as usize] = true);
            }
        }
        for node in region.nodes() {
            if node.results.iter().all(|v| !live[v.0 as usize]) {
                continue;
            }
            let operands: Vec<RegionValue> = node.operands.iter().map(|&v| at(&known, v)).collect();
            let types = region.types(&node.operands);
            let results = match &node.op {
                Operation::Composite(_) => {
                    self.region(&node.op.expansion(&types, &node.regions), &operands)?
                }
                Operation::Prim(prim) => {
                    let ty = region.ty(node.results[0]);
                    vec![RegionValue::Elements(self.prim(node, prim, (&operands, &types), ty)?)]
                }
            };
            for (&value, result) in node.results.iter().zip(results) {
                known[value.0 as usize] = Some(result);
            }
        }
        Ok(region.outputs().iter().map(|port| at(&known, port.value)).collect())
    }

    fn prim(
        &mut self,
        node: &Node,
        prim: &Prim,
        (operands, types): (&[RegionValue], &[TensorType]),
        ty: &TensorType,
    ) -> Result<Vec<Register>, String> {
        let count = ty.elements();
        if count > MOST {
            return Err(unsupported(node));
        }
        if let (Prim::Gather { axes }, RegionValue::Capture(capture)) =
            (prim, &operands[..].first().cloned().unwrap_or(RegionValue::Elements(vec![])))
        {
            let indices = self.elements(&operands[1], node)?;
            return Ok(self.gather((*capture, axes), &indices, &types[1].sizes(), ty.dtype));
        }
        let elements: Vec<Vec<Register>> = operands
            .iter()
            .map(|operand| self.elements(operand, node))
            .collect::<Result<_, _>>()?;
        let each = |this: &mut Self, instr: &dyn Fn(usize) -> Instr| -> Vec<Register> {
            (0..count).map(|i| this.program.push(instr(i), ty.dtype)).collect()
        };
        Ok(match prim {
            Prim::Constant { value } => {
                let value = Array::from(value);
                each(self, &|i| Instr::Constant(value.get(i)))
            }
            Prim::Iota { shape, axis, .. } => {
                let sizes = shape.known().ok_or_else(|| unsupported(node))?;
                let mut indices = Vec::with_capacity(count);
                for_each_index(&sizes, |index| indices.push(index[*axis] as f64));
                each(self, &|i| Instr::Constant(indices[i]))
            }
            Prim::Unary { kind } => each(self, &|i| Instr::Unary(*kind, elements[0][i])),
            Prim::Binary { kind } => {
                each(self, &|i| Instr::Binary(*kind, elements[0][i], elements[1][i]))
            }
            Prim::Compare { kind } => {
                each(self, &|i| Instr::Compare(*kind, elements[0][i], elements[1][i]))
            }
            Prim::Select => {
                each(self, &|i| Instr::Select(elements[0][i], elements[1][i], elements[2][i]))
            }
            Prim::Convert { overflow, .. } => {
                each(self, &|i| Instr::Convert(elements[0][i], *overflow))
            }
            Prim::Bitcast { .. } => each(self, &|i| Instr::Bitcast(elements[0][i])),
            Prim::Reduce { reducer, axes } => {
                let (from, mut sums) = (types[0].sizes(), vec![None; count]);
                let kept: Vec<usize> =
                    (0..from.len()).filter(|axis| !axes.contains(axis)).collect();
                let mut position = 0;
                for_each_index(&from, |index| {
                    let to = kept.iter().fold(0, |at, &axis| at * from[axis] + index[axis]);
                    let next = elements[0][position];
                    position += 1;
                    sums[to] = Some(sums[to].map_or(next, |sum| {
                        self.program.push(Instr::Binary(reducer.binary(), sum, next), ty.dtype)
                    }));
                });
                let identity = Instr::Constant(reducer.identity());
                sums.into_iter()
                    .map(|sum| sum.unwrap_or_else(|| self.program.push(identity.clone(), ty.dtype)))
                    .collect()
            }
            Prim::Broadcast { .. }
            | Prim::Reshape { .. }
            | Prim::Transpose { .. }
            | Prim::Slice { .. }
            | Prim::Pad { .. }
            | Prim::Concat { .. } => moved(prim, &elements, types),
            _ => return Err(unsupported(node)),
        })
    }

    /// The elements of a value; of a capture that is small enough.
    fn elements(&mut self, value: &RegionValue, node: &Node) -> Result<Vec<Register>, String> {
        match value {
            RegionValue::Elements(registers) => Ok(registers.clone()),
            RegionValue::Capture(capture) => {
                let ty = &self.captures[*capture].ty;
                if ty.elements() > MOST {
                    return Err(unsupported(node));
                }
                let mut registers = Vec::with_capacity(ty.elements());
                let (sizes, dtype) = (ty.sizes(), ty.dtype);
                for_each_index(&sizes, |index| {
                    let index = index.iter().map(|&i| At::Fixed(i)).collect();
                    registers.push(self.read(CaptureRead { capture: *capture, index }, dtype));
                });
                Ok(registers)
            }
        }
    }

    /// Windows of a capture at computed indices.
    fn gather(
        &mut self,
        (capture, axes): (usize, &[usize]),
        indices: &[Register],
        shape: &[usize],
        dtype: DType,
    ) -> Vec<Register> {
        let sizes = self.captures[capture].ty.sizes();
        let window_axes: Vec<usize> =
            (0..sizes.len()).filter(|axis| !axes.contains(axis)).collect();
        let window: Vec<usize> = window_axes.iter().map(|&axis| sizes[axis]).collect();
        let rows: usize = shape[..shape.len() - 1].iter().product();
        let mut results = Vec::new();
        for row in 0..rows {
            for_each_index(&window, |inner| {
                let mut index = vec![At::Fixed(0); sizes.len()];
                window_axes.iter().zip(inner).for_each(|(&axis, &i)| index[axis] = At::Fixed(i));
                axes.iter().enumerate().for_each(|(i, &axis)| {
                    index[axis] = At::Computed(indices[row * axes.len() + i])
                });
                results.push(self.read(CaptureRead { capture, index }, dtype));
            });
        }
        results
    }

    fn read(&mut self, read: CaptureRead, dtype: DType) -> Register {
        let access = Access { slot: self.captures[read.capture].slot, offset: 0, strides: vec![] };
        let register = self.program.push(Instr::Load(access), dtype);
        self.reads.insert(register, read);
        register
    }
}

/// Elements that a primitive only moves: what it does to their numbers, by the definition.
fn moved(prim: &Prim, elements: &[Vec<Register>], types: &[TensorType]) -> Vec<Register> {
    let b = Builder::new("moved");
    let inputs: Vec<_> = types
        .iter()
        .enumerate()
        .map(|(i, ty)| b.input(&format!("x{i}"), ty.with_dtype(DType::I64)))
        .collect();
    b.output("y", b.op1(prim.clone(), &inputs));
    let graph = b.finish().expect("the region was well typed");
    let numbers = |registers: &Vec<Register>, ty: &TensorType| {
        Array::int(DType::I64, &ty.sizes(), registers.iter().map(|r| i128::from(r.0)).collect())
    };
    let numbers: Vec<Array> =
        elements.iter().zip(types).map(|(registers, ty)| numbers(registers, ty)).collect();
    eval_region(&graph, &numbers)[0].ints().iter().map(|&number| Register(number as u32)).collect()
}
