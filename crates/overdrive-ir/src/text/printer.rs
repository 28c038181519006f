//! Printing: inputs and states first, then nodes in order, then outputs and updates.

use crate::{Dim, Graph, Node, Operation, TensorType, Value};
use serde_json::Value as Json;
use std::fmt::{self, Display, Formatter};

/// Version of the syntax and of the primitives.
pub const VERSION: u32 = 1;

impl Display for Graph {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "overdrive-ir {VERSION}")?;
        print_graph(self, f, 0)
    }
}

/// A JSON string: quoted, with escapes.
fn quoted(text: &str) -> impl Display {
    Json::from(text)
}

fn list<T>(items: &[T], text: impl Fn(&T) -> String) -> String {
    items.iter().map(text).collect::<Vec<_>>().join(", ")
}

fn value(value: &Value) -> String {
    format!("%{}", value.0)
}

/// A type as text; names of dimensions that are no plain words are quoted, so that any name reads
/// back.
fn type_text(ty: &TensorType) -> String {
    let dims = list(&ty.shape.0, |dim| match dim {
        Dim::Size(n) => n.to_string(),
        Dim::Named(name) if is_word(name) => name.to_string(),
        Dim::Named(name) => quoted(name).to_string(),
    });
    format!("{}[{dims}]", ty.dtype)
}

/// A letter or underscore, then letters, digits and underscores.
pub(super) fn is_word(text: &str) -> bool {
    !text.starts_with(|c: char| c.is_ascii_digit())
        && !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn print_graph(graph: &Graph, f: &mut Formatter<'_>, depth: usize) -> fmt::Result {
    let pad = "  ".repeat(depth);
    writeln!(f, "{pad}graph {} {{", quoted(graph.name()))?;
    for port in graph.inputs() {
        let ty = type_text(graph.ty(port.value));
        writeln!(f, "{pad}  input {} {} {ty}", value(&port.value), quoted(&port.name))?;
    }
    for state in graph.states() {
        let (ty, init) = (type_text(graph.ty(state.value)), serde_json::to_value(&state.init));
        let init = init.expect("an initial value is plain data");
        writeln!(f, "{pad}  state {} {} {ty} {init}", value(&state.value), quoted(&state.name))?;
    }
    for node in graph.nodes() {
        print_node(graph, node, f, depth + 1)?;
    }
    for port in graph.outputs() {
        writeln!(f, "{pad}  output {} {}", quoted(&port.name), value(&port.value))?;
    }
    for state in graph.states() {
        if let Some(update) = &state.update {
            writeln!(f, "{pad}  update {} {}", quoted(&state.name), value(update))?;
        }
    }
    writeln!(f, "{pad}}}")
}

fn print_node(graph: &Graph, node: &Node, f: &mut Formatter<'_>, depth: usize) -> fmt::Result {
    let pad = "  ".repeat(depth);
    f.write_str(&pad)?;
    if !node.results.is_empty() {
        write!(f, "{} = ", list(&node.results, value))?;
    }
    f.write_str(&node.op.name())?;
    if let Operation::Composite(op) = &node.op
        && op.version() != 1
    {
        write!(f, "@{}", op.version())?;
    }
    write!(f, "({})", list(&node.operands, value))?;
    let attributes = node.op.attributes();
    if !attributes.is_empty() {
        write!(f, " {}", Json::Object(attributes))?;
    }
    if !node.results.is_empty() {
        write!(f, " : {}", list(&graph.types(&node.results), type_text))?;
    }
    if !node.scope.is_empty() {
        write!(f, " at {}", quoted(&node.scope))?;
    }
    if node.regions.is_empty() {
        return writeln!(f);
    }
    writeln!(f, " {{")?;
    node.regions.iter().try_for_each(|region| print_graph(region, f, depth + 1))?;
    writeln!(f, "{pad}}}")
}
