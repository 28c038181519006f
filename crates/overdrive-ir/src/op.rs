//! `Op`: the open trait of composites, and `Operation`, what a node applies.
//!
//! One file per op (`ops/<op>.rs`) is enough to be right everywhere: its types, its f64 meaning,
//! its expansion into primitives, its samples. Invariant (checked by the op harness): `expand`
//! agrees with `eval`, and `grad` with central differences of `eval`.
//!
//! Long because the trait, its erased form and the table entry change together.

use crate::{Array, Builder, DType, Expr, Graph, Prim, Reducer, Sample, TensorType, prims};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// A user's mistake as an op sees it; the builder adds op and scope.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// A description of what the op expects.
    pub expected: String,
    /// A description of what was found.
    pub found: String,
    /// The remedy.
    pub remedy: String,
}

impl Mismatch {
    /// Expected against found, with the usual remedy.
    pub fn new(expected: impl Into<String>, found: impl Into<String>) -> Self {
        let remedy = "check the operands and attributes given here".to_owned();
        Self { expected: expected.into(), found: found.into(), remedy }
    }

    /// The same with a remedy of its own.
    pub fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: remedy.into(), ..self }
    }
}

/// The input of `infer`: types of operands (captures last) and regions.
#[derive(Copy, Clone, Debug)]
pub struct Types<'a> {
    /// Operand types.
    pub operands: &'a [TensorType],
    /// Regions.
    pub regions: &'a [Graph],
}

impl<'a> Types<'a> {
    /// The operands, if there are exactly `N`.
    pub fn exactly<const N: usize>(&self) -> Result<&'a [TensorType; N], Mismatch> {
        let found = format!("{} operands", self.operands.len());
        self.operands.try_into().map_err(|_| Mismatch::new(format!("{N} operands"), found))
    }

    /// Errs unless operand `index`, called `name`, has this shape.
    pub fn shaped(
        &self,
        index: usize,
        name: &str,
        shape: impl Into<crate::Shape>,
    ) -> Result<(), Mismatch> {
        let (found, shape) = (&self.operands[index], shape.into());
        if found.shape == shape {
            return Ok(());
        }
        Err(Mismatch::new(format!("{name} of shape {shape}"), found.to_string()))
    }

    /// Errs unless every one of `operands` has an arithmetic float type, and all the same.
    pub fn same_float(&self, operands: &[TensorType]) -> Result<DType, Mismatch> {
        let list = || operands.iter().map(|t| t.to_string()).collect::<Vec<_>>().join(", ");
        let dtype = operands[0].dtype;
        if !dtype.is_arithmetic_float() {
            let remedy = "convert it first";
            return Err(Mismatch::new("f64, f32, f16 or bf16", list()).remedy(remedy));
        }
        if operands.iter().any(|t| t.dtype != dtype) {
            let remedy = "convert one side; nothing is cast silently";
            return Err(Mismatch::new("one dtype for all operands", list()).remedy(remedy));
        }
        Ok(dtype)
    }
}

/// Work of a node: arithmetic and compulsory memory traffic. Counts saturate: a graph far too large
/// for memory must still be planned to say so.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Cost {
    /// Floating-point operations; a fused multiply-add counts two, a transcendental one.
    pub flops: u64,
    /// Bytes of operands read once and results written once.
    pub bytes: u64,
}

impl std::ops::Add for Cost {
    type Output = Cost;
    fn add(self, other: Cost) -> Cost {
        let flops = self.flops.saturating_add(other.flops);
        Cost { flops, bytes: self.bytes.saturating_add(other.bytes) }
    }
}

impl std::iter::Sum for Cost {
    fn sum<I: Iterator<Item = Cost>>(costs: I) -> Cost {
        costs.fold(Cost::default(), |a, b| a + b)
    }
}

/// Everything a gradient rule may use. `cotangents[i]` is `None` where output `i` does not reach
/// the loss.
#[derive(Debug)]
pub struct Gradient<'b, 'a> {
    /// The builder to build with.
    pub builder: &'b Builder,
    /// Operands of the node.
    pub inputs: &'a [Expr<'b>],
    /// Results of the node, extra results included.
    pub outputs: &'a [Expr<'b>],
    /// Cotangents of the results.
    pub cotangents: &'a [Option<Expr<'b>>],
    /// Regions of the node.
    pub regions: &'a [Graph],
}

/// A composite: an operation defined by its f64 meaning and its expansion into primitives. The
/// attributes are the fields of the implementing type.
pub trait Op:
    Clone + PartialEq + fmt::Debug + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// Its one name: in file, IR text, kernels, benchmarks and reports.
    const NAME: &'static str;
    /// Grows when the meaning changes, so that old IR text is refused and not misread.
    const VERSION: u32 = 1;

    /// Types of the results; the only place for a user's errors. Dimensions may still be names.
    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch>;
    /// The specification: slow, obvious, in f64; rounds only at convert, quantize and integer ops.
    fn eval(&self, args: &[Array], regions: &[Graph]) -> Vec<Array>;
    /// The same in primitives and other composites; shapes are concrete.
    fn expand<'b>(&self, b: &'b Builder, args: &[Expr<'b>], regions: &[Graph]) -> Vec<Expr<'b>>;
    /// Cases for the op harness, edge values among them.
    fn samples() -> Vec<Sample>;
    /// Cotangents of the operands (`None` where there is none); `None` altogether means:
    /// differentiate `expand`.
    fn grad<'b>(&self, _gradient: &Gradient<'b, '_>) -> Option<Vec<Option<Expr<'b>>>> {
        None
    }
    /// FLOPs and bytes; `None` means: FLOPs of the expansion, bytes of operands and results.
    fn cost(&self, _operands: &[TensorType], _results: &[TensorType]) -> Option<Cost> {
        None
    }
    /// How results of parts of the operands combine into the result of the whole, if this result is
    /// a fold over all elements. For example a maximum, for a largest magnitude. `None`: it is no
    /// such fold.
    fn fold(&self, _result: usize) -> Option<Reducer> {
        None
    }
}

/// The object-safe face of `Op`.
trait AnyOp: fmt::Debug + Send + Sync {
    fn name(&self) -> &'static str;
    fn version(&self) -> u32;
    fn attributes(&self) -> Map<String, Json>;
    fn as_any(&self) -> &dyn Any;
    fn equals(&self, other: &dyn AnyOp) -> bool;
    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch>;
    fn eval(&self, args: &[Array], regions: &[Graph]) -> Vec<Array>;
    fn expand<'b>(&self, b: &'b Builder, args: &[Expr<'b>], regions: &[Graph]) -> Vec<Expr<'b>>;
    fn grad<'b>(&self, gradient: &Gradient<'b, '_>) -> Option<Vec<Option<Expr<'b>>>>;
    fn cost(&self, operands: &[TensorType], results: &[TensorType]) -> Option<Cost>;
    fn fold(&self, result: usize) -> Option<Reducer>;
}

impl<T: Op> AnyOp for T {
    fn name(&self) -> &'static str {
        T::NAME
    }
    fn version(&self) -> u32 {
        T::VERSION
    }
    fn attributes(&self) -> Map<String, Json> {
        match serde_json::to_value(self).expect("op attributes are plain data") {
            Json::Object(map) => map,
            Json::Null => Map::new(),
            other => unreachable!("op attributes serialise to an object, not {other}"),
        }
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn equals(&self, other: &dyn AnyOp) -> bool {
        // Compares printed forms, in which every f64 differs from every other and NaN equals
        // itself. Otherwise a loop that runs until the graph stays equal would never end on NaN.
        other
            .as_any()
            .downcast_ref::<T>()
            .is_some_and(|other| format!("{self:?}") == format!("{other:?}"))
    }
    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        Op::infer(self, types)
    }
    fn eval(&self, args: &[Array], regions: &[Graph]) -> Vec<Array> {
        Op::eval(self, args, regions)
    }
    fn expand<'b>(&self, b: &'b Builder, args: &[Expr<'b>], regions: &[Graph]) -> Vec<Expr<'b>> {
        Op::expand(self, b, args, regions)
    }
    fn grad<'b>(&self, gradient: &Gradient<'b, '_>) -> Option<Vec<Option<Expr<'b>>>> {
        Op::grad(self, gradient)
    }
    fn cost(&self, operands: &[TensorType], results: &[TensorType]) -> Option<Cost> {
        Op::cost(self, operands, results)
    }
    fn fold(&self, result: usize) -> Option<Reducer> {
        Op::fold(self, result)
    }
}

/// A shared composite.
#[derive(Clone, Debug)]
pub struct OpRef(Arc<dyn AnyOp>);

impl OpRef {
    /// The concrete op, if it is a `T`.
    pub fn downcast<T: Op>(&self) -> Option<&T> {
        self.0.as_any().downcast_ref()
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.0.name()
    }

    /// Its version.
    pub fn version(&self) -> u32 {
        self.0.version()
    }

    /// How results of parts of the operands combine into this result, if it is a fold
    /// ([`Op::fold`]).
    pub fn fold(&self, result: usize) -> Option<Reducer> {
        self.0.fold(result)
    }
}

impl PartialEq for OpRef {
    fn eq(&self, other: &Self) -> bool {
        self.0.equals(&*other.0)
    }
}

/// The operation of a node.
#[derive(Clone, PartialEq, Debug)]
pub enum Operation {
    /// One of the closed set.
    Prim(Prim),
    /// One of the open set.
    Composite(OpRef),
}

impl From<Prim> for Operation {
    fn from(prim: Prim) -> Self {
        Operation::Prim(prim)
    }
}

impl<T: Op> From<T> for Operation {
    fn from(op: T) -> Self {
        Operation::Composite(OpRef(Arc::new(op)))
    }
}

impl Operation {
    /// Name in IR text and reports.
    pub fn name(&self) -> String {
        match self {
            Operation::Prim(prim) => prim.name(),
            Operation::Composite(op) => op.name().to_owned(),
        }
    }

    /// Attributes as JSON.
    pub fn attributes(&self) -> Map<String, Json> {
        match self {
            Operation::Prim(prim) => prim.attributes(),
            Operation::Composite(op) => op.0.attributes(),
        }
    }

    /// The operation of this name with these attributes.
    pub fn parse(name: &str, attributes: Map<String, Json>) -> Result<Self, String> {
        if let Some(prim) = Prim::parse(name, attributes.clone()) {
            return prim.map(Operation::Prim);
        }
        match crate::ops::OPS.iter().find(|entry| entry.name == name) {
            Some(entry) => (entry.parse)(Json::Object(attributes)),
            None => Err(format!("unknown op `{name}`")),
        }
    }

    /// The primitive, if it is one.
    pub fn prim(&self) -> Option<&Prim> {
        match self {
            Operation::Prim(prim) => Some(prim),
            Operation::Composite(_) => None,
        }
    }

    /// The concrete composite, if it is a `T`.
    pub fn composite<T: Op>(&self) -> Option<&T> {
        match self {
            Operation::Prim(_) => None,
            Operation::Composite(op) => op.downcast(),
        }
    }

    /// Site id of a random draw, which may be that of a part of the op.
    pub(crate) fn random_site(&self) -> Option<u64> {
        fn site_in(attributes: &Map<String, Json>) -> Option<u64> {
            let parts = attributes.values().filter_map(Json::as_object).filter_map(site_in);
            attributes.get("site").and_then(Json::as_u64).into_iter().chain(parts).max()
        }
        match self {
            Operation::Prim(Prim::RandomBits { site, .. }) => Some(*site),
            Operation::Prim(_) => None,
            Operation::Composite(op) => site_in(&op.0.attributes()),
        }
    }

    /// Result types, or the user's mistake.
    pub fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        match self {
            Operation::Prim(prim) => prims::infer(prim, types),
            Operation::Composite(op) => op.0.infer(types),
        }
    }

    /// The f64 meaning. Collectives are evaluated by the graph evaluator, which knows the other
    /// ranks.
    pub fn eval(&self, args: &[Array], regions: &[Graph]) -> Vec<Array> {
        match self {
            Operation::Prim(prim) => prims::eval(prim, args, regions),
            Operation::Composite(op) => op.0.eval(args, regions),
        }
    }

    /// The expansion of a composite; a primitive stays itself.
    pub fn expand<'b>(
        &self,
        b: &'b Builder,
        args: &[Expr<'b>],
        regions: &[Graph],
    ) -> Vec<Expr<'b>> {
        match self {
            Operation::Prim(prim) => b.node(prim.clone(), args, regions.to_vec()),
            Operation::Composite(op) => op.0.expand(b, args, regions),
        }
    }

    /// The op's own gradient rule; `None` for a composite that leaves it to its expansion.
    pub fn grad<'b>(&self, gradient: &Gradient<'b, '_>) -> Option<Vec<Option<Expr<'b>>>> {
        match self {
            Operation::Prim(prim) => Some(prims::grad(prim, gradient)),
            Operation::Composite(op) => op.0.grad(gradient),
        }
    }

    /// FLOPs and bytes; shapes are concrete.
    pub fn cost(&self, operands: &[TensorType], regions: &[Graph], results: &[TensorType]) -> Cost {
        match self {
            Operation::Prim(prim) => prims::cost(prim, operands, regions, results),
            Operation::Composite(op) => op.0.cost(operands, results).unwrap_or_else(|| {
                let bytes = operands.iter().chain(results).map(|t| t.bytes() as u64).sum();
                let expansion = self.expansion(operands, regions);
                Cost { flops: expansion.cost().flops, bytes }
            }),
        }
    }

    /// The expansion as a graph of its own: inputs `0, 1, ...`, outputs likewise.
    pub fn expansion(&self, operands: &[TensorType], regions: &[Graph]) -> Graph {
        let b = Builder::new(&self.name());
        let args: Vec<Expr<'_>> = operands
            .iter()
            .enumerate()
            .map(|(i, ty)| b.input(&i.to_string(), ty.clone()))
            .collect();
        let results = self.expand(&b, &args, regions);
        results.iter().enumerate().for_each(|(i, result)| b.output(&i.to_string(), *result));
        b.finish().unwrap_or_else(|e| {
            panic!("the expansion of `{}` must be well typed: {e}", self.name())
        })
    }
}

/// An entry of the registry.
pub struct OpEntry {
    /// Name of the op.
    pub name: &'static str,
    /// Version of its meaning.
    pub version: u32,
    /// Reads attributes.
    pub parse: fn(Json) -> Result<Operation, String>,
    /// Cases for the harness.
    pub samples: fn() -> Vec<Sample>,
    /// The first lines of its file: formula and source, for the reference page.
    pub source: &'static str,
}

impl OpEntry {
    /// The entry of `T`, whose file reads `source`.
    pub const fn of<T: Op>(source: &'static str) -> Self {
        fn parse<T: Op>(mut attributes: Json) -> Result<Operation, String> {
            // A unit struct has no attributes; serde reads it from null only.
            if attributes.as_object().is_some_and(Map::is_empty)
                && serde_json::from_value::<T>(Json::Null).is_ok()
            {
                attributes = Json::Null;
            }
            serde_json::from_value::<T>(attributes).map(Operation::from).map_err(|e| e.to_string())
        }
        Self { name: T::NAME, version: T::VERSION, parse: parse::<T>, samples: T::samples, source }
    }
}

impl fmt::Debug for OpEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpEntry({})", self.name)
    }
}
