//! Graph to module: arguments, nodes in order, results.

use super::literal::{Unsaid, check, tensor_type};
use super::prim;
use super::writer::{Term, Writer};
use crate::{FormatError, file};
use overdrive_ir::{Graph, Node, TensorType, Value};
use std::collections::HashMap;
use std::path::Path;

/// Writes a bound graph; the file appears whole or not at all.
///
/// # Errors
/// As `text`, and when the system refuses.
pub fn write(path: &Path, graph: &Graph) -> Result<(), FormatError> {
    let text = text(graph)?;
    file::replace(path, |unfinished| {
        std::fs::write(unfinished, &text).map_err(FormatError::io(path, "write"))
    })
}

/// The module of a bound graph. States that are updated are donated: their new value may take their
/// place.
///
/// # Errors
/// `Inexpressible`, with everything that XLA cannot say; a dimension without a size is such a
/// thing.
pub fn text(graph: &Graph) -> Result<String, FormatError> {
    let inexpressible = |parts| FormatError::Inexpressible { format: "StableHLO", parts };
    if !graph.is_bound() {
        let reason = "its dimensions have names: bind them first".to_owned();
        return Err(inexpressible(vec![(format!("graph `{}`", graph.name()), reason)]));
    }
    let mut w = Writer::default();
    let name: String =
        graph.name().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    w.line(&format!("module @m_{name} {{"));
    w.indented(|w| main(w, graph));
    w.line("}");
    if w.unsaid.is_empty() { Ok(w.finish()) } else { Err(inexpressible(w.unsaid)) }
}

fn main(w: &mut Writer, graph: &Graph) {
    let inputs = graph.inputs().iter().map(|port| (port.value, None));
    let updated = graph.states().iter().filter(|state| state.update.is_some());
    let results: Vec<Value> = graph
        .outputs()
        .iter()
        .map(|port| port.value)
        .chain(updated.filter_map(|state| state.update))
        .collect();
    let mut donated = graph.outputs().len()..;
    let states =
        graph.states().iter().map(|state| (state.value, state.update.and_then(|_| donated.next())));
    let mut arguments = Vec::new();
    let mut signature = Vec::new();
    for (value, result) in inputs.chain(states.collect::<Vec<_>>()) {
        let term = w.fresh(graph.ty(value).clone());
        if let Err(Unsaid(reason)) = check(&term.ty) {
            w.unsaid.push((format!("argument of {}", term.ty), reason));
        }
        let alias =
            result.map_or(String::new(), |r| format!(" {{tf.aliasing_output = {r} : i32}}"));
        signature.push(format!("{}: {}{alias}", term.name, tensor_type(&term.ty)));
        arguments.push((value, term));
    }
    let types: Vec<String> = results.iter().map(|&value| tensor_type(graph.ty(value))).collect();
    w.line(&format!(
        "func.func public @main({}) -> ({}) {{",
        signature.join(", "),
        types.join(", ")
    ));
    w.indented(|w| {
        let returned = w.values_of(graph, arguments, &results);
        w.leave("func.return", &returned);
    });
    w.line("}");
}

impl Writer {
    /// The outputs of a graph without states, applied to `arguments`.
    pub(super) fn graph(&mut self, graph: &Graph, arguments: &[Term]) -> Vec<Term> {
        let given =
            graph.inputs().iter().map(|port| port.value).zip(arguments.iter().cloned()).collect();
        let outputs: Vec<Value> = graph.outputs().iter().map(|port| port.value).collect();
        self.values_of(graph, given, &outputs)
    }

    fn values_of(
        &mut self,
        graph: &Graph,
        given: Vec<(Value, Term)>,
        wanted: &[Value],
    ) -> Vec<Term> {
        let mut terms: HashMap<Value, Term> = given.into_iter().collect();
        for node in graph.nodes() {
            let operands: Vec<Term> =
                node.operands.iter().map(|value| terms[value].clone()).collect();
            let types = graph.types(&node.results);
            let results = self.node(node, &operands, &types).unwrap_or_else(|Unsaid(reason)| {
                self.unsaid.push((format!("`{}` at `{}`", node.op.name(), node.scope), reason));
                types.into_iter().map(|ty| self.fresh(ty)).collect()
            });
            terms.extend(node.results.iter().copied().zip(results));
        }
        wanted.iter().map(|value| terms[value].clone()).collect()
    }

    fn node(
        &mut self,
        node: &Node,
        operands: &[Term],
        types: &[TensorType],
    ) -> Result<Vec<Term>, Unsaid> {
        operands.iter().map(|term| &term.ty).chain(types).try_for_each(check)?;
        match node.op.prim() {
            Some(prim) => prim::write(prim, self, (operands, &node.regions), types),
            None => {
                let given: Vec<TensorType> = operands.iter().map(|term| term.ty.clone()).collect();
                Ok(self.graph(&node.op.expansion(&given, &node.regions), operands))
            }
        }
    }
}
