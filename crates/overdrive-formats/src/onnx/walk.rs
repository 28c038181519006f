//! The walk over a graph: names to values, nodes to importers, calls to function bodies.
//!
//! Sub-graphs and function bodies are walked into the same builder, so control flow is resolved
//! while reading. Invariant: the number of nodes and the depth of calls are bounded, however a file
//! refers to itself.

use super::call::Call;
use super::fault::{Fault, invalid};
use super::fold::{Folding, fold};
use super::importer::{Import, importer};
use super::item::Item;
use super::lacking::{Functions, lacking};
use super::proto::{AttributeProto, FunctionProto, GraphProto, NodeProto};
use super::tensor::ExternalData;
use crate::FormatError;
use overdrive_ir::Builder;
use std::cell::Cell;
use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;

/// Nodes that are imported at most, every turn of a loop counted.
const MOST_NODES: usize = 200_000;

/// Calls of functions inside functions, and sub-graphs inside sub-graphs.
const DEEPEST: usize = 32;

/// Data that one import shares.
pub(super) struct Walk<'m, 'b> {
    pub(super) b: &'b Builder,
    path: &'m Path,
    pub(super) storage: &'m ExternalData,
    functions: Functions<'m>,
    folding: Folding,
    nodes: Cell<usize>,
}

/// Data that the nodes of one body share.
#[derive(Copy, Clone)]
pub(super) struct Frame<'f> {
    opsets: &'f HashMap<&'f str, i64>,
    /// Attributes of the call, where the body is a function's.
    attributes: Option<&'f [AttributeProto]>,
    depth: usize,
    /// Whether initializers are parameters of the model: names inside sub-graphs may come again.
    named: Naming,
}

#[derive(Copy, Clone, PartialEq)]
enum Naming {
    Parameters,
    Constants,
}

impl<'f> Frame<'f> {
    pub(super) fn of_model(opsets: &'f HashMap<&'f str, i64>) -> Self {
        Self { opsets, attributes: None, depth: 0, named: Naming::Parameters }
    }

    /// One level down.
    pub(super) fn inner(self) -> Self {
        Self { depth: self.depth + 1, named: Naming::Constants, ..self }
    }
}

/// Values by name, those of the graph around behind them.
#[derive(Default)]
pub(super) struct Env<'e, 'b> {
    outer: Option<&'e Env<'e, 'b>>,
    items: HashMap<String, Item<'b>>,
}

impl<'e, 'b> Env<'e, 'b> {
    pub(super) fn inside(outer: &'e Env<'e, 'b>) -> Self {
        Self { outer: Some(outer), items: HashMap::new() }
    }

    pub(super) fn insert(&mut self, name: &str, item: Item<'b>) {
        self.items.insert(name.to_owned(), item);
    }

    /// Whether this body itself, not one around it, has given the name to a value.
    fn has_own(&self, name: &str) -> bool {
        self.items.contains_key(name)
    }

    fn get(&self, name: &str) -> Option<&Item<'b>> {
        self.items.get(name).or_else(|| self.outer?.get(name))
    }
}

/// The default domain has two names.
pub(super) fn domain(name: &str) -> &str {
    if name == "ai.onnx" { "" } else { name }
}

/// The name of a node for users.
pub(super) fn label(node: &NodeProto) -> &str {
    let first = || node.output.iter().find(|name| !name.is_empty()).map_or("?", String::as_str);
    if node.name().is_empty() { first() } else { node.name() }
}

impl<'m, 'b> Walk<'m, 'b> {
    pub(super) fn new(
        b: &'b Builder,
        path: &'m Path,
        storage: &'m ExternalData,
        (functions, folding): (Functions<'m>, Folding),
    ) -> Self {
        Self { b, path, storage, functions, folding, nodes: Cell::new(0) }
    }

    /// Errs with every op of a graph that has no importer.
    pub(super) fn check_known(&self, graph: &GraphProto) -> Result<(), FormatError> {
        match lacking(graph, &self.functions) {
            missing if missing.is_empty() => Ok(()),
            ops => Err(FormatError::Lacking { path: self.path.to_owned(), ops }),
        }
    }

    /// Walks a graph whose inputs are in `env`; gives its outputs.
    pub(super) fn body(
        &self,
        graph: &GraphProto,
        frame: &Frame<'_>,
        mut env: Env<'_, 'b>,
    ) -> Result<Vec<Item<'b>>, FormatError> {
        let damaged = |expected: &str, found: String| {
            FormatError::damaged(self.path, &format!("graph `{}`", graph.name()), expected, found)
        };
        if frame.depth > DEEPEST {
            return Err(damaged("graphs nested less deep", format!("{} levels", frame.depth)));
        }
        if let Some(sparse) = graph.sparse_initializer.first() {
            let name = sparse.values.as_ref().map_or("", |v| v.name());
            let error = damaged("dense initializers", format!("sparse `{name}`"));
            return Err(
                error.remedy("write the weights dense, as tensors of the model or external data")
            );
        }
        for proto in &graph.initializer {
            if env.has_own(proto.name()) {
                return Err(damaged(
                    "a name of its own for each initializer",
                    format!("`{}` again", proto.name()),
                ));
            }
            let parameter = (frame.named == Naming::Parameters).then(|| Rc::from(proto.name()));
            let value = self.storage.value(proto, parameter)?;
            env.insert(proto.name(), Item { value, sources: Default::default() });
        }
        for node in &graph.node {
            self.node(node, frame, &mut env)?;
        }
        let output = |name: &str| {
            let missing = || damaged("outputs that a node computes", format!("`{name}`"));
            env.get(name).cloned().ok_or_else(missing)
        };
        graph.output.iter().map(|info| output(info.name())).collect()
    }

    fn node(
        &self,
        node: &NodeProto,
        frame: &Frame<'_>,
        env: &mut Env<'_, 'b>,
    ) -> Result<(), FormatError> {
        let substituted;
        let node = match frame.attributes {
            Some(attributes) => {
                substituted = substitute(node, attributes);
                &substituted
            }
            None => node,
        };
        let _scope = self.b.scope_path(label(node));
        let results = self.results(node, frame, env).map_err(|fault| self.explain(node, fault))?;
        for (name, item) in node.output.iter().zip(results) {
            if env.has_own(name) {
                let found = format!("`{name}`, which is the name of an earlier value");
                return Err(self.explain(node, invalid("outputs with new names", found)));
            }
            if !name.is_empty() {
                env.insert(name, item);
            }
        }
        Ok(())
    }

    fn results(
        &self,
        node: &NodeProto,
        frame: &Frame<'_>,
        env: &Env<'_, 'b>,
    ) -> Result<Vec<Item<'b>>, Fault> {
        self.nodes.set(self.nodes.get() + 1);
        if self.nodes.get() > MOST_NODES {
            return Err(invalid(format!("at most {MOST_NODES} nodes with loops unrolled"), "more"));
        }
        let operand = |name: &String| match name.as_str() {
            "" => Ok(None),
            name => {
                let found = || {
                    invalid(
                        "inputs that come before",
                        format!("`{name}`, which nothing before computes"),
                    )
                };
                env.get(name).cloned().map(Some).ok_or_else(found)
            }
        };
        let operands = node.input.iter().map(operand).collect::<Result<Vec<_>, Fault>>()?;
        let domain = domain(node.domain());
        if let Some(function) = self.functions.get(&(domain, node.op_type())) {
            return self.function(function, node, frame, operands);
        }
        let import = importer(domain, node.op_type())
            .ok_or_else(|| invalid("an op known here", format!("`{}`", node.op_type())))?;
        let opset = frame.opsets.get(domain).copied().unwrap_or(1);
        let call = Call::new(self.b, node, opset, operands, self.storage);
        let results = match import {
            Import::Control(import) => import(self, frame, env, &call)?,
            Import::Node(import) => {
                let values = match fold(import, &call, self.folding)? {
                    Some(values) => values,
                    None => import(&call)?,
                };
                let sources = call.sources();
                values.into_iter().map(|value| Item { value, sources: sources.clone() }).collect()
            }
        };
        if self.b.failed() {
            return Err(Fault::Built);
        }
        match call.unread() {
            Some(name) => Err(invalid("attributes that are known here", format!("`{name}`"))),
            None => Ok(results),
        }
    }

    /// Walks the body of a function of the model.
    fn function(
        &self,
        function: &FunctionProto,
        node: &NodeProto,
        frame: &Frame<'_>,
        operands: Vec<Option<Item<'b>>>,
    ) -> Result<Vec<Item<'b>>, Fault> {
        if frame.depth > DEEPEST {
            return Err(invalid(
                format!("functions that end, within {DEEPEST} calls of each other"),
                format!("`{}` still deeper", function.name()),
            ));
        }
        let opsets: HashMap<&str, i64> =
            function.opset_import.iter().map(|i| (domain(i.domain()), i.version())).collect();
        let mut attributes = node.attribute.clone();
        let given = |name: &str| node.attribute.iter().any(|a| a.name() == name);
        attributes.extend(function.attribute_proto.iter().filter(|a| !given(a.name())).cloned());
        let frame = Frame { opsets: &opsets, attributes: Some(&attributes), ..frame.inner() };
        let mut env = Env::default();
        for (name, item) in function.input.iter().zip(operands) {
            if let Some(item) = item {
                env.insert(name, item);
            }
        }
        for node in &function.node {
            let known = |name: &String| name.is_empty() || env.get(name).is_some();
            // An optional input that the caller left out is left out inside, too.
            let absent = |name: &String| !known(name) && function.input.contains(name);
            if node.input.iter().any(absent) {
                let mut node = node.clone();
                node.input.iter_mut().filter(|n| absent(n)).for_each(String::clear);
                self.node(&node, &frame, &mut env)?;
            } else {
                self.node(node, &frame, &mut env)?;
            }
        }
        let output = |name: &String| {
            let missing = || invalid("outputs that a node computes", format!("`{name}`"));
            env.get(name).cloned().ok_or_else(missing)
        };
        function.output.iter().map(output).collect()
    }

    fn explain(&self, node: &NodeProto, fault: Fault) -> FormatError {
        let place = format!("node `{}` ({})", label(node), node.op_type());
        match fault {
            Fault::Mismatch(m) => {
                FormatError::damaged(self.path, &place, m.expected, m.found).remedy(&m.remedy)
            }
            Fault::Undecided { what, sources } => FormatError::Undecided {
                path: self.path.to_owned(),
                place,
                value: what,
                inputs: sources.iter().cloned().collect(),
            },
            // Only stops the walk: the caller takes the error from the builder.
            Fault::Built => FormatError::damaged(self.path, &place, "a node that fits", "another"),
            Fault::Inside(error) => *error,
        }
    }
}

/// The node with references to the function's attributes replaced by the values of the call, also
/// in sub-graphs.
fn substitute(node: &NodeProto, attributes: &[AttributeProto]) -> NodeProto {
    let mut node = node.clone();
    node.attribute =
        node.attribute.into_iter().filter_map(|a| substituted(a, attributes)).collect();
    node
}

fn substituted(mut attribute: AttributeProto, given: &[AttributeProto]) -> Option<AttributeProto> {
    if !attribute.ref_attr_name().is_empty() {
        let found = given.iter().find(|a| a.name() == attribute.ref_attr_name())?;
        return Some(AttributeProto { name: attribute.name, ref_attr_name: None, ..found.clone() });
    }
    if let Some(graph) = &mut attribute.g {
        graph.node = graph.node.iter().map(|node| substitute(node, given)).collect();
    }
    Some(attribute)
}
