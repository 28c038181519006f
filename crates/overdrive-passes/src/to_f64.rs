//! `to_f64` gives every float of a graph f64: the reference run of a model on a back end.
//!
//! It is what the graph would compute without rounding: conversions between float formats vanish, so that the
//! distance of the original's results from these is all its rounding.

use crate::rebuild::{rebuild, regions};
use overdrive_ir::{Convolution, DType, DotGeneral, Graph, GraphError, Operation, Prim, TensorType};

/// The same graph in f64: inputs, states, constants and attributes.
pub fn to_f64(graph: &Graph) -> Result<Graph, GraphError> {
    let retype = |ty: &TensorType| ty.with_dtype(wide(ty.dtype));
    rebuild(graph, &retype, &mut |place| {
        let op = match &place.node.op {
            Operation::Prim(Prim::Convert { to, .. })
                if to.is_float() && place.operands[0].dtype() == DType::F64 =>
            {
                return Ok(place.operands.clone());
            }
            Operation::Prim(prim) => Operation::Prim(primitive(prim)),
            Operation::Composite(_) => composite(graph, &place.node.op)?,
        };
        Ok(place.builder.node(op, &place.operands, regions(place.node, to_f64)?))
    })
}

fn wide(dtype: DType) -> DType {
    if dtype.is_float() { DType::F64 } else { dtype }
}

fn primitive(prim: &Prim) -> Prim {
    let mut prim = prim.clone();
    match &mut prim {
        Prim::Constant { value } if value.ty().dtype.is_float() => *value = value.convert(DType::F64),
        Prim::Convert { to: dtype, .. } | Prim::Iota { dtype, .. } => *dtype = wide(*dtype),
        Prim::DotGeneral(DotGeneral { accumulate, out, .. })
        | Prim::Convolution(Convolution { accumulate, out, .. }) => {
            (*accumulate, *out) = (wide(*accumulate), wide(*out));
        }
        _ => {}
    }
    prim
}

/// Attributes that are float formats become f64; nothing else in an attribute can be mistaken for one.
fn composite(graph: &Graph, op: &Operation) -> Result<Operation, GraphError> {
    let mut attributes = op.attributes();
    for value in attributes.values_mut() {
        let named = value.as_str().and_then(|name| name.parse::<DType>().ok());
        if named.is_some_and(DType::is_float) {
            *value = DType::F64.name().into();
        }
    }
    Operation::parse(&op.name(), attributes).map_err(|found| GraphError {
        op: op.name(),
        scope: graph.name().into(),
        expected: "attributes that permit f64".into(),
        found,
        remedy: "leave this op out of the reference run".into(),
    })
}
