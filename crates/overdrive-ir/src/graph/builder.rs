//! `Builder`: appends nodes, infers types, and keeps the first error with its scope.
//!
//! Long because primitives are built in one place, each with its check.

use super::{
    Expr, Graph, GraphError, Init, Node, NodeId, Origin, Port, Replace, StateDecl, Value, ValueInfo,
};
use crate::{Mismatch, Operation, Prim, TensorType, Types};
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// Builds one graph. Expressions borrow it; after an error they are inert until `finish` returns
/// it.
#[derive(Debug)]
pub struct Builder {
    graph: RefCell<Graph>,
    scopes: RefCell<Vec<String>>,
    error: RefCell<Option<GraphError>>,
    next_site: Cell<u64>,
    next_channel: Cell<u64>,
}

/// Leaves the scope when dropped.
#[derive(Debug)]
pub struct Scope<'b> {
    builder: &'b Builder,
    /// Depth to go back to.
    depth: usize,
}

/// A place in the building of a graph: what came later can be forgotten.
#[derive(Debug)]
pub struct Mark {
    nodes: usize,
    values: usize,
    inputs: usize,
    outputs: usize,
    states: usize,
    failed: bool,
}

impl Drop for Scope<'_> {
    fn drop(&mut self) {
        self.builder.scopes.borrow_mut().truncate(self.depth);
    }
}

impl Builder {
    /// An empty graph of this name.
    pub fn new(name: &str) -> Self {
        let (nodes, values, inputs, outputs, states) = (vec![], vec![], vec![], vec![], vec![]);
        let graph = Graph { name: name.to_owned(), nodes, values, inputs, outputs, states };
        Self {
            graph: RefCell::new(graph),
            scopes: RefCell::default(),
            error: RefCell::default(),
            next_site: Cell::new(1),
            next_channel: Cell::new(1),
        }
    }

    /// A builder for a region of this graph. Sites and channels that it draws are new in the whole
    /// graph, because this one learns of them when the region arrives in a node.
    pub(crate) fn for_region(&self, name: &str) -> Builder {
        let region = Builder::new(name);
        region.next_site.set(self.next_site.get());
        region.next_channel.set(self.next_channel.get());
        region
    }

    /// Enters a scope until the guard is dropped: `let _scope = b.scope("block0");`
    #[must_use = "the scope ends when the guard is dropped"]
    pub fn scope(&self, name: &str) -> Scope<'_> {
        self.scope_path(name)
    }

    /// Enters a slash-separated path of scopes, as nodes store it; an empty path enters nothing.
    #[must_use = "the scope ends when the guard is dropped"]
    pub fn scope_path(&self, path: &str) -> Scope<'_> {
        let depth = self.scopes.borrow().len();
        self.scopes
            .borrow_mut()
            .extend(path.split('/').filter(|s| !s.is_empty()).map(str::to_owned));
        Scope { builder: self, depth }
    }

    /// The present scope, slash-separated.
    pub fn current_scope(&self) -> String {
        self.scopes.borrow().join("/")
    }

    /// A fresh identity for a random draw: unique in this graph and stable across rebuilds of it.
    pub fn site(&self) -> u64 {
        let site = self.next_site.get();
        self.next_site.set(site + 1);
        site
    }

    /// A fresh channel for a collective: unique in this graph and stable across rebuilds of it.
    pub fn channel(&self) -> u64 {
        let channel = self.next_channel.get();
        self.next_channel.set(channel + 1);
        channel
    }

    /// Makes `site` and `channel` skip what `op` and the nodes of `regions` already use.
    fn reserve(&self, op: &Operation, regions: &[Graph]) {
        if let Some(site) = op.random_site() {
            self.next_site.set(self.next_site.get().max(site + 1));
        }
        if let Some(channel) = op.prim().and_then(Prim::channel) {
            self.next_channel.set(self.next_channel.get().max(channel.id + 1));
        }
        regions.iter().flat_map(|r| &r.nodes).for_each(|n| self.reserve(&n.op, &n.regions));
    }

    /// Type of a value already built.
    pub fn ty(&self, value: Value) -> TensorType {
        self.graph.borrow().ty(value).clone()
    }

    fn value(&self, ty: TensorType, origin: Origin) -> Value {
        let values = &mut self.graph.borrow_mut().values;
        values.push(ValueInfo { ty, origin });
        Value(values.len() as u32 - 1)
    }

    /// Records the first error; everything after it is inert.
    pub fn fail(&self, op: &str, mismatch: Mismatch) -> Expr<'_> {
        let scope = self.current_scope();
        let scope = if scope.is_empty() { self.graph.borrow().name.clone() } else { scope };
        let Mismatch { expected, found, remedy } = mismatch;
        self.keep(GraphError { op: op.to_owned(), scope, expected, found, remedy });
        Expr::poison(self)
    }

    /// Keeps an error from elsewhere (a region, say) unless there was one before.
    pub(crate) fn keep(&self, error: GraphError) {
        self.error.borrow_mut().get_or_insert(error);
    }

    /// True after the first error.
    pub fn failed(&self) -> bool {
        self.error.borrow().is_some()
    }

    /// The present position of the builder.
    pub fn mark(&self) -> Mark {
        let graph = self.graph.borrow();
        Mark {
            nodes: graph.nodes.len(),
            values: graph.values.len(),
            inputs: graph.inputs.len(),
            outputs: graph.outputs.len(),
            states: graph.states.len(),
            failed: self.failed(),
        }
    }

    /// Forgets what was built since `mark`, an error too. Expressions from after it must not be
    /// used again, and no state from before it may have been updated.
    pub fn undo(&self, mark: Mark) {
        let mut graph = self.graph.borrow_mut();
        graph.nodes.truncate(mark.nodes);
        graph.values.truncate(mark.values);
        graph.inputs.truncate(mark.inputs);
        graph.outputs.truncate(mark.outputs);
        graph.states.truncate(mark.states);
        let forgotten =
            |s: &StateDecl| s.update.is_some_and(|value| value.0 as usize >= mark.values);
        assert!(
            !graph.states.iter().any(forgotten),
            "a state from before the mark was updated after it"
        );
        if !mark.failed {
            *self.error.borrow_mut() = None;
        }
    }

    /// Declares an input.
    pub fn input(&self, name: &str, ty: TensorType) -> Expr<'_> {
        if self.graph.borrow().inputs.iter().any(|p| p.name == name) {
            return self.fail("input", Mismatch::new("a new name", format!("`{name}` again")));
        }
        let index = self.graph.borrow().inputs.len();
        let value = self.value(ty, Origin::Input(index));
        self.graph.borrow_mut().inputs.push(Port { name: name.to_owned(), value });
        Expr::new(self, value)
    }

    /// Declares a state under the current scope: `scope.name` with dots, as weight files name them.
    pub fn state(&self, name: &str, ty: TensorType, init: Init) -> Expr<'_> {
        let mut path = self.scopes.borrow().clone();
        path.push(name.to_owned());
        self.state_named(&path.join("."), ty, init)
    }

    /// Declares a state of exactly this name.
    pub fn state_named(&self, name: &str, ty: TensorType, init: Init) -> Expr<'_> {
        if self.graph.borrow().states.iter().any(|s| s.name == name) {
            return self.fail("state", Mismatch::new("a new name", format!("`{name}` again")));
        }
        let index = self.graph.borrow().states.len();
        let value = self.value(ty, Origin::State(index));
        let declared = StateDecl { name: name.to_owned(), value, init, update: None };
        self.graph.borrow_mut().states.push(declared);
        Expr::new(self, value)
    }

    /// The state of this name as it is at the start of the call, if it was declared.
    pub fn find_state(&self, name: &str) -> Option<Expr<'_>> {
        let graph = self.graph.borrow();
        graph.states.iter().find(|s| s.name == name).map(|s| Expr::new(self, s.value))
    }

    /// Names an output.
    pub fn output(&self, name: &str, value: Expr<'_>) {
        if value.is_poison() {
            return;
        }
        if self.graph.borrow().outputs.iter().any(|p| p.name == name) {
            self.fail("output", Mismatch::new("a new name", format!("`{name}` again")));
            return;
        }
        self.graph.borrow_mut().outputs.push(Port { name: name.to_owned(), value: value.value() });
    }

    /// Says what replaces a state at the end of the call.
    pub fn update(&self, state: &str, new: Expr<'_>) {
        if new.is_poison() {
            return;
        }
        let problem = {
            let mut graph = self.graph.borrow_mut();
            let ty = graph.ty(new.value()).clone();
            match graph.states.iter().position(|s| s.name == state) {
                None => Some(Mismatch::new("a declared state", format!("`{state}`"))),
                Some(i) if *graph.ty(graph.states[i].value) != ty => {
                    let declared = graph.ty(graph.states[i].value).to_string();
                    Some(Mismatch::new(format!("{declared} for `{state}`"), ty.to_string()))
                }
                Some(i) => {
                    graph.states[i].update = Some(new.value());
                    None
                }
            }
        };
        if let Some(mismatch) = problem {
            self.fail("update", mismatch);
        }
    }

    /// Appends a node without regions.
    pub fn op<'b>(&'b self, op: impl Into<Operation>, operands: &[Expr<'b>]) -> Vec<Expr<'b>> {
        self.node(op, operands, vec![])
    }

    /// Appends a node that has one result and no regions.
    pub fn op1<'b>(&'b self, op: impl Into<Operation>, operands: &[Expr<'b>]) -> Expr<'b> {
        self.node(op, operands, vec![])[0]
    }

    /// Appends a node. After an error, and for inert operands, returns inert results (sixteen of
    /// them, which is more than any op has, so that callers may index).
    pub fn node<'b>(
        &'b self,
        op: impl Into<Operation>,
        operands: &[Expr<'b>],
        regions: Vec<Graph>,
    ) -> Vec<Expr<'b>> {
        let op = op.into();
        if self.error.borrow().is_some() || operands.iter().any(|e| e.is_poison()) {
            return vec![Expr::poison(self); 16];
        }
        let operands: Vec<Value> = operands.iter().map(|e| e.value()).collect();
        let operand_types = self.graph.borrow().types(&operands);
        let types = Types { operands: &operand_types, regions: &regions };
        let result_types = match op.infer(&types) {
            Ok(types) => types,
            Err(mismatch) => {
                self.fail(&op.name(), mismatch);
                return vec![Expr::poison(self); 16];
            }
        };
        self.reserve(&op, &regions);
        let id = NodeId(self.graph.borrow().nodes.len() as u32);
        let results: Vec<Value> = result_types
            .into_iter()
            .enumerate()
            .map(|(i, ty)| self.value(ty, Origin::Node(id, i)))
            .collect();
        let scope: Arc<str> = self.current_scope().into();
        self.graph.borrow_mut().nodes.push(Node {
            op,
            operands,
            results: results.clone(),
            regions,
            scope,
        });
        results.into_iter().map(|v| Expr::new(self, v)).collect()
    }

    /// Copies the nodes of `graph` with its inputs bound to `arguments`, and returns its outputs.
    /// For regions: `graph` must declare no states.
    pub fn inline<'b>(&'b self, graph: &Graph, arguments: &[Expr<'b>]) -> Vec<Expr<'b>> {
        let map = self.inline_values(graph, arguments);
        graph.outputs.iter().map(|o| map[o.value.0 as usize]).collect()
    }

    /// The same, returning the new expression of every value.
    pub(crate) fn inline_values<'b>(
        &'b self,
        graph: &Graph,
        arguments: &[Expr<'b>],
    ) -> Vec<Expr<'b>> {
        assert!(
            graph.states.is_empty(),
            "`{}` has states: append it, do not inline it",
            graph.name
        );
        assert_eq!(
            graph.inputs.len(),
            arguments.len(),
            "`{}` is called with its inputs",
            graph.name
        );
        let mut map = vec![Expr::poison(self); graph.values.len()];
        for (port, argument) in graph.inputs.iter().zip(arguments) {
            map[port.value.0 as usize] = *argument;
        }
        self.copy_nodes(graph, &mut map, &mut |_, _, _| None);
        map
    }

    /// Appends a node like `node`, in its scope, on other operands.
    pub fn again<'b>(&'b self, node: &Node, operands: &[Expr<'b>]) -> Vec<Expr<'b>> {
        let _scope = self.scope_path(&node.scope);
        self.node(node.op.clone(), operands, node.regions.clone())
    }

    /// Declares the inputs and states of `graph` here; gives the new expression of each.
    pub fn declare(&self, graph: &Graph) -> Vec<(Value, Expr<'_>)> {
        let input =
            |port: &Port| (port.value, self.input(&port.name, graph.ty(port.value).clone()));
        let state = |s: &StateDecl| {
            let ty = graph.ty(s.value).clone();
            (s.value, self.state_named(&s.name, ty, s.init.clone()))
        };
        graph.inputs.iter().map(input).chain(graph.states.iter().map(state)).collect()
    }

    /// Names outputs and state updates like those of `graph`; `new` gives the expression of each
    /// value.
    pub fn conclude<'b>(&'b self, graph: &Graph, mut new: impl FnMut(Value) -> Expr<'b>) {
        graph.outputs.iter().for_each(|port| self.output(&port.name, new(port.value)));
        for state in &graph.states {
            if let Some(update) = state.update {
                self.update(&state.name, new(update));
            }
        }
    }

    /// Declares the inputs and states of `graph` here and copies its nodes; returns the new
    /// expression of every value. Outputs and updates are left to the caller.
    pub fn append(&self, graph: &Graph) -> Result<Vec<Expr<'_>>, GraphError> {
        self.append_with(graph, &mut |_, _, _| None)
    }

    pub(super) fn append_with(
        &self,
        graph: &Graph,
        replace: &mut Replace<'_>,
    ) -> Result<Vec<Expr<'_>>, GraphError> {
        let mut map = vec![Expr::poison(self); graph.values.len()];
        self.declare(graph).into_iter().for_each(|(value, expr)| map[value.0 as usize] = expr);
        self.copy_nodes(graph, &mut map, replace);
        match self.error.borrow().clone() {
            Some(error) => Err(error),
            None => Ok(map),
        }
    }

    fn copy_nodes<'b>(&'b self, graph: &Graph, map: &mut [Expr<'b>], replace: &mut Replace<'_>) {
        for node in &graph.nodes {
            let operands: Vec<Expr<'b>> = node.operands.iter().map(|v| map[v.0 as usize]).collect();
            let _scope = self.scope_path(&node.scope);
            let mut regions = Vec::with_capacity(node.regions.len());
            for region in &node.regions {
                match region.rewrite(replace) {
                    Ok(region) => regions.push(region),
                    Err(error) => return self.keep(error),
                }
            }
            let results = if regions == node.regions {
                replace(self, node, &operands)
            } else {
                let node = Node { regions: regions.clone(), ..node.clone() };
                replace(self, &node, &operands)
            };
            let results = results.unwrap_or_else(|| self.node(node.op.clone(), &operands, regions));
            for (value, expr) in node.results.iter().zip(results) {
                map[value.0 as usize] = expr;
            }
        }
    }

    /// The graph, or the first error.
    pub fn finish(self) -> Result<Graph, GraphError> {
        match self.error.into_inner() {
            Some(error) => Err(error),
            None => Ok(self.graph.into_inner()),
        }
    }
}
