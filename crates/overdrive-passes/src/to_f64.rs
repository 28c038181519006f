//! `to_f64` gives every float of a graph f64: the reference run of a model on a back end.
//!
//! It is what the graph would compute without rounding. Conversions between float formats vanish,
//! so that the distance of the original's results from these is all its rounding.

use crate::rebuild::{rebuild, regions};
use overdrive_ir::{
    Builder, Convolution, DType, DotGeneral, Expr, Graph, GraphError, Init, Operation, Prim,
    TensorType,
};

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

/// Like [`to_f64`], but inputs and states keep their types and are widened where they are read.
/// Nobody holds the parameters of a large model in f64 on the host, and a device widens them
/// faster. States are updated in their own types.
///
/// # Errors
/// As [`to_f64`].
pub fn compute_in_f64(graph: &Graph) -> Result<Graph, GraphError> {
    // Without values, which would be converted here.
    let wide = to_f64(&graph.clone().with_initial_values(|_, _| Init::ZEROS))?;
    let b = Builder::new(graph.name());
    let mut map: Vec<Option<Expr<'_>>> = vec![None; wide.value_count()];
    for (port, widened) in graph.inputs().iter().zip(wide.inputs()) {
        let input = b.input(&port.name, graph.ty(port.value).clone());
        map[widened.value.0 as usize] = Some(input.convert(wide.ty(widened.value).dtype));
    }
    for (state, widened) in graph.states().iter().zip(wide.states()) {
        let stored = b.state_named(&state.name, graph.ty(state.value).clone(), state.init.clone());
        map[widened.value.0 as usize] = Some(stored.convert(wide.ty(widened.value).dtype));
    }
    for node in wide.nodes() {
        let operands: Vec<Expr<'_>> =
            node.operands.iter().map(|v| map[v.0 as usize].expect("operands come first")).collect();
        let _scope = b.scope_path(&node.scope);
        let results = b.node(node.op.clone(), &operands, node.regions.clone());
        node.results.iter().zip(results).for_each(|(v, result)| map[v.0 as usize] = Some(result));
    }
    let of = |value: overdrive_ir::Value| map[value.0 as usize].expect("it was computed");
    wide.outputs().iter().for_each(|port| b.output(&port.name, of(port.value)));
    for (state, widened) in graph.states().iter().zip(wide.states()) {
        if let Some(update) = widened.update {
            b.update(&state.name, of(update).convert(graph.ty(state.value).dtype));
        }
    }
    b.finish()
}

fn wide(dtype: DType) -> DType {
    if dtype.is_float() { DType::F64 } else { dtype }
}

fn primitive(prim: &Prim) -> Prim {
    let mut prim = prim.clone();
    match &mut prim {
        Prim::Constant { value } if value.ty().dtype.is_float() => {
            *value = value.convert(DType::F64)
        }
        Prim::Convert { to: dtype, .. } | Prim::Iota { dtype, .. } => *dtype = wide(*dtype),
        Prim::DotGeneral(DotGeneral { accumulate, out, .. })
        | Prim::Convolution(Convolution { accumulate, out, .. }) => {
            (*accumulate, *out) = (wide(*accumulate), wide(*out));
        }
        _ => {}
    }
    prim
}

/// Attributes that are float formats become f64; nothing else in an attribute can be mistaken for
/// one.
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
