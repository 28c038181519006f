//! `Case`: a sample of an op with its dimensions bound, its float type chosen and its operands
//! filled.
//!
//! One sample stands for many cases. They have every float type, and they bind named dimensions to:
//! - small distinct sizes, so that two axes cannot be mistaken for one another;
//! - 1;
//! - 0, one dimension at a time;
//! - larger odd sizes that no tile divides.

use crate::prim_samples;
use overdrive_ir::eval::philox;
use overdrive_ir::ops::{Float8Attention, OPS};
use overdrive_ir::{
    Array, Builder, Convolution, DType, Dim, DotGeneral, Fill, Graph, Operand, Operation, Prim,
    Sample, Shape, Tensor, TensorType, Types,
};
use std::collections::{BTreeMap, BTreeSet};

/// Float types that a sample's f32 stands for.
const FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::BF16];

/// A sample that can be run.
#[derive(Clone, Debug)]
pub struct Case {
    /// Op, bound operand types, regions.
    pub sample: Sample,
    /// The type that f32 became.
    pub dtype: DType,
}

impl Case {
    /// Every case of every composite and primitive: what a back end is checked on.
    pub fn every() -> Result<Vec<Case>, String> {
        let samples = OPS.iter().flat_map(|op| (op.samples)()).chain(prim_samples());
        Ok(samples.map(|sample| Case::all(&sample)).collect::<Result<Vec<_>, _>>()?.concat())
    }

    /// Every case of a sample that `infer` takes. A type that no binding of the sample takes is
    /// left out. A binding that is refused in a type that takes others is an error, because the
    /// sample promised that its names are free.
    pub fn all(sample: &Sample) -> Result<Vec<Case>, String> {
        let mut cases = Vec::new();
        for dtype in FLOATS {
            let bound: Vec<Case> =
                bindings(sample).iter().map(|sizes| Case::bind(sample, dtype, sizes)).collect();
            let results: Vec<_> = bound.iter().map(Case::infer).collect();
            if results.iter().all(Result::is_err) && dtype != DType::F32 {
                continue;
            }
            for (case, result) in bound.into_iter().zip(results) {
                result.map_err(|e| {
                    format!("{}: infer refuses what the sample offers: {e}", case.describe())
                })?;
                cases.push(case);
            }
        }
        Ok(cases)
    }

    /// The sample with names bound to `sizes` and f32 replaced by `dtype`.
    fn bind(sample: &Sample, dtype: DType, sizes: &BTreeMap<String, usize>) -> Case {
        let mut sample = sample.clone();
        for Operand { ty, .. } in &mut sample.operands {
            *ty = bind_type(ty, dtype, sizes);
        }
        let regions = std::mem::take(&mut sample.regions);
        sample.op = follow(&sample.op, dtype);
        sample.regions = regions.iter().map(|region| retype(region, dtype, sizes)).collect();
        Case { sample, dtype }
    }

    /// Op, types and float type, for messages.
    pub fn describe(&self) -> String {
        let types: Vec<String> = self.types().iter().map(TensorType::to_string).collect();
        format!("{:?}({})", self.sample.op, types.join(", "))
    }

    /// Operand types.
    pub fn types(&self) -> Vec<TensorType> {
        self.sample.operands.iter().map(|operand| operand.ty.clone()).collect()
    }

    fn infer(&self) -> Result<Vec<TensorType>, String> {
        let types = Types { operands: &self.types(), regions: &self.sample.regions };
        self.sample
            .op
            .infer(&types)
            .map_err(|m| format!("expected {}, found {}", m.expected, m.found))
    }

    /// The types of the results, by `infer`.
    pub fn result_types(&self) -> Vec<TensorType> {
        self.infer().expect("`Case::all` keeps only what `infer` takes")
    }

    /// Operand values that the operand types can hold, the same for the same seed.
    pub fn inputs(&self, seed: u64) -> Vec<Array> {
        let operands = self.sample.operands.iter().enumerate();
        operands.map(|(site, operand)| fill(operand, seed, site as u64)).collect()
    }

    /// The op alone as a graph: inputs `x0, x1, ...`, outputs `y0, y1, ...`.
    pub fn graph(&self) -> Graph {
        let b = Builder::new(&self.sample.op.name());
        let inputs = self.types().into_iter().enumerate();
        let inputs: Vec<_> = inputs.map(|(i, ty)| b.input(&format!("x{i}"), ty)).collect();
        let results = b.node(self.sample.op.clone(), &inputs, self.sample.regions.clone());
        for (i, result) in results.iter().enumerate() {
            b.output(&format!("y{i}"), *result);
        }
        b.finish().expect("`Case::all` keeps only what `infer` takes")
    }
}

fn bind_shape(shape: &Shape, sizes: &BTreeMap<String, usize>) -> Shape {
    let bind = |dim: &Dim| match dim {
        Dim::Named(name) => Dim::Size(sizes[name.as_ref()]),
        size => size.clone(),
    };
    Shape(shape.0.iter().map(bind).collect())
}

fn bind_type(ty: &TensorType, dtype: DType, sizes: &BTreeMap<String, usize>) -> TensorType {
    let dtype = if ty.dtype == DType::F32 { dtype } else { ty.dtype };
    TensorType::new(dtype, bind_shape(&ty.shape, sizes))
}

/// A region with its inputs bound; nodes are built anew, so that their types follow.
fn retype(region: &Graph, dtype: DType, sizes: &BTreeMap<String, usize>) -> Graph {
    let b = Builder::new(region.name());
    let inputs: Vec<_> = region
        .inputs()
        .iter()
        .map(|port| b.input(&port.name, bind_type(region.ty(port.value), dtype, sizes)))
        .collect();
    let mut values = vec![None; region.value_count()];
    for (port, input) in region.inputs().iter().zip(inputs) {
        values[port.value.0 as usize] = Some(input);
    }
    for node in region.nodes() {
        let operands: Vec<_> = node
            .operands
            .iter()
            .map(|v| values[v.0 as usize].expect("operands precede their node"))
            .collect();
        let results = b.node(retype_op(&node.op, dtype), &operands, node.regions.clone());
        for (value, result) in node.results.iter().zip(results) {
            values[value.0 as usize] = Some(result);
        }
    }
    for port in region.outputs() {
        b.output(&port.name, values[port.value.0 as usize].expect("outputs are computed"));
    }
    b.finish().unwrap_or_else(|e| panic!("region `{}` in {dtype}: {e}", region.name()))
}

/// A contraction with the types that follow from its operands'. Attention of codes has no operand
/// of numbers to follow but its scales.
fn follow(op: &Operation, dtype: DType) -> Operation {
    let accumulate = dtype.accumulation();
    if let Some(of_codes) = op.composite::<Float8Attention>()
        && of_codes.to == DType::F32
    {
        return Operation::from(Float8Attention { to: dtype, ..*of_codes });
    }
    match op.prim() {
        Some(Prim::DotGeneral(dot)) => {
            Prim::DotGeneral(DotGeneral { accumulate, out: dtype, ..dot.clone() }).into()
        }
        Some(Prim::Convolution(convolution)) => {
            Prim::Convolution(Convolution { accumulate, out: dtype, ..convolution.clone() }).into()
        }
        _ => op.clone(),
    }
}

/// Attributes that name f32 (constants, conversions) name `dtype`.
fn retype_op(op: &Operation, dtype: DType) -> Operation {
    match op.prim() {
        Some(Prim::Constant { value }) if value.ty().dtype == DType::F32 => {
            Prim::Constant { value: value.convert(dtype) }.into()
        }
        Some(Prim::Convert { to: DType::F32, overflow }) => {
            Prim::Convert { to: dtype, overflow: *overflow }.into()
        }
        Some(Prim::Iota { dtype: DType::F32, shape, axis }) => {
            Prim::Iota { dtype, shape: shape.clone(), axis: *axis }.into()
        }
        _ => op.clone(),
    }
}

/// The bindings of a sample's names; one empty binding where it has none.
fn bindings(sample: &Sample) -> Vec<BTreeMap<String, usize>> {
    let dims = sample.operands.iter().flat_map(|operand| &operand.ty.shape.0);
    let names: BTreeSet<String> = dims
        .filter_map(|dim| match dim {
            Dim::Named(name) => Some(name.to_string()),
            Dim::Size(_) => None,
        })
        .collect();
    let with = |size: &dyn Fn(usize) -> usize| -> BTreeMap<String, usize> {
        names.iter().enumerate().map(|(i, name)| (name.clone(), size(i))).collect()
    };
    const SMALL: [usize; 6] = [3, 5, 2, 7, 4, 6];
    const LARGE: [usize; 6] = [17, 33, 1, 19, 2, 3];
    let mut bindings = vec![with(&|i| SMALL[i % 6])];
    if !names.is_empty() {
        bindings.push(with(&|_| 1));
        bindings.push(with(&|i| LARGE[i % 6]));
        bindings.push(with(&|i| LARGE[(names.len() - i) % 6]));
        bindings.extend(
            (0..names.len()).map(|zero| with(&|i| if i == zero { 0 } else { SMALL[i % 6] })),
        );
    }
    bindings
}

/// Values of one operand, rounded to its type.
fn fill(operand: &Operand, seed: u64, site: u64) -> Array {
    let (ty, count) = (&operand.ty, operand.ty.elements());
    let values: Vec<f64> = match &operand.fill {
        Fill::Normal => philox::normals(seed, site).take(count).collect(),
        Fill::Uniform(low, high) => {
            philox::uniforms(seed, site).take(count).map(|u| low + u * (high - low)).collect()
        }
        Fill::Index(n) => {
            philox::uniforms(seed, site).take(count).map(|u| (u * *n as f64).floor()).collect()
        }
        Fill::Values(values) => values.iter().copied().cycle().take(count).collect(),
    };
    Array::from(&Tensor::from_f64(ty.dtype, ty.shape.clone(), &values))
}
