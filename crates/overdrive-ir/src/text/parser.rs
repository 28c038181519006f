//! Parsing: one function per line of the grammar. Every input gives a graph that `verify` accepts,
//! or an error with its place; nothing is allocated for a length that the text merely claims.

use super::lexer::{Cursor, ParseError};
use super::printer::VERSION;
use crate::graph::ValueInfo;
use crate::ops::OPS;
use crate::{
    DType, Dim, Graph, GraphError, Init, Node, NodeId, Operation, Origin, Port, Shape, StateDecl,
    TensorType, Types, Value, verify,
};
use serde_json::Map;
use std::collections::BTreeMap;
use std::str::FromStr;

/// Regions nested deeper than this are refused, so that no text can exhaust the stack.
const MAX_DEPTH: usize = 32;

impl FromStr for Graph {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut cursor = Cursor::new(text);
        if !cursor.accept_word("overdrive") || !cursor.accept("-ir") {
            return Err(cursor.expected("`overdrive-ir` and its version"));
        }
        let start = cursor;
        let version: u32 = cursor.number("the version of the IR text")?;
        if version != VERSION {
            return Err(
                start.error(format!("IR text of version {VERSION}"), format!("version {version}"))
            );
        }
        let start = cursor;
        let graph = graph(&mut cursor, 0)?;
        if !cursor.at_end() {
            return Err(cursor.expected("the end of the text"));
        }
        verify(&graph).map_err(|e| start.error(e.expected.clone(), describe(&e)))?;
        Ok(graph)
    }
}

fn describe(error: &GraphError) -> String {
    format!("{} in {} at {}", error.found, error.op, error.scope)
}

/// A graph whose values are still keyed by the numbers in the text.
#[derive(Default)]
struct Draft {
    values: BTreeMap<u32, ValueInfo>,
    nodes: Vec<Node>,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    states: Vec<StateDecl>,
}

impl Draft {
    /// Takes `%n` and gives it its type and origin.
    fn define(
        &mut self,
        at: &Cursor<'_>,
        value: Value,
        ty: TensorType,
        origin: Origin,
    ) -> Result<(), ParseError> {
        match self.values.insert(value.0, ValueInfo { ty, origin }) {
            None => Ok(()),
            Some(_) => {
                Err(at.error("a value that is defined once", format!("`%{}` again", value.0)))
            }
        }
    }

    /// Takes `%n`, which must be defined already.
    fn operand(&self, cursor: &mut Cursor<'_>) -> Result<Value, ParseError> {
        let start = *cursor;
        let value = value(cursor)?;
        match self.values.contains_key(&value.0) {
            true => Ok(value),
            false => Err(start.expected("a value defined above")),
        }
    }
}

fn graph(cursor: &mut Cursor<'_>, depth: usize) -> Result<Graph, ParseError> {
    if depth > MAX_DEPTH {
        return Err(cursor.error(format!("at most {MAX_DEPTH} nested regions"), "one more"));
    }
    if !cursor.accept_word("graph") {
        return Err(cursor.expected("`graph`"));
    }
    let name = cursor.json("the name of the graph in quotes")?;
    cursor.expect("{")?;
    let mut draft = Draft::default();
    let mut end = *cursor;
    while !cursor.accept("}") {
        statement(cursor, &mut draft, depth)?;
        end = *cursor;
    }
    let count = draft.values.len();
    if let Some((&last, _)) = draft.values.last_key_value()
        && last as usize != count - 1
    {
        return Err(
            end.error(format!("values %0 to %{}, none left out", count - 1), format!("%{last}"))
        );
    }
    let Draft { values, nodes, inputs, outputs, states } = draft;
    Ok(Graph { name, nodes, values: values.into_values().collect(), inputs, outputs, states })
}

fn statement(cursor: &mut Cursor<'_>, draft: &mut Draft, depth: usize) -> Result<(), ParseError> {
    let start = *cursor;
    let mut ahead = *cursor;
    match ahead.peek_word() {
        "input" => {
            cursor.accept_word("input");
            let (value, name, ty) = (value(cursor)?, cursor.json("a name in quotes")?, ty(cursor)?);
            draft.define(&start, value, ty, Origin::Input(draft.inputs.len()))?;
            draft.inputs.push(Port { name, value });
        }
        "state" => {
            cursor.accept_word("state");
            let (value, name, ty) = (value(cursor)?, cursor.json("a name in quotes")?, ty(cursor)?);
            let init_at = *cursor;
            let init: Init = cursor.json("an initial value")?;
            let is_narrow =
                |tensor: &crate::Tensor| tensor.ty().dtype.is_float() && ty.dtype.is_float();
            if let Init::Widened(tensor) = &init
                && (tensor.ty().shape != ty.shape || !is_narrow(tensor))
            {
                return Err(init_at.error(format!("an initial value for {ty}"), tensor.ty()));
            }
            if let Init::Value(tensor) = &init
                && *tensor.ty() != ty
            {
                return Err(init_at.error(format!("an initial value of type {ty}"), tensor.ty()));
            }
            draft.define(&start, value, ty, Origin::State(draft.states.len()))?;
            draft.states.push(StateDecl { name, value, init, update: None });
        }
        "output" => {
            cursor.accept_word("output");
            let (name, value) = (cursor.json("a name in quotes")?, draft.operand(cursor)?);
            draft.outputs.push(Port { name, value });
        }
        "update" => {
            cursor.accept_word("update");
            let name_at = *cursor;
            let (name, value): (String, _) =
                (cursor.json("a name in quotes")?, draft.operand(cursor)?);
            let state = draft.states.iter_mut().find(|s| s.name == name && s.update.is_none());
            let state = state.ok_or_else(|| name_at.expected("a declared state, updated once"))?;
            state.update = Some(value);
        }
        _ => node(cursor, draft, depth)?,
    }
    Ok(())
}

fn node(cursor: &mut Cursor<'_>, draft: &mut Draft, depth: usize) -> Result<(), ParseError> {
    let start = *cursor;
    let mut results = vec![];
    if cursor.clone().accept("%") {
        results = cursor.list("=", value)?;
    }
    let op_at = *cursor;
    let name = cursor.word("`input`, `state`, `output`, `update`, `}` or an op")?;
    let version: u32 =
        if cursor.accept("@") { cursor.number("the version of the op")? } else { 1 };
    cursor.expect("(")?;
    let operands = cursor.list(")", |c| draft.operand(c))?;
    let attributes_at = *cursor;
    let attributes = if cursor.at_object() {
        cursor.json("the attributes as a JSON object")?
    } else {
        Map::new()
    };
    let types_at = *cursor;
    let types = if cursor.accept(":") { types(cursor)? } else { vec![] };
    let scope: String =
        if cursor.accept_word("at") { cursor.json("a scope in quotes")? } else { String::new() };
    let mut regions = vec![];
    if cursor.accept("{") {
        while !cursor.accept("}") {
            regions.push(graph(cursor, depth + 1)?);
        }
    }

    if let Some(entry) = OPS.iter().find(|entry| entry.name == name)
        && entry.version != version
    {
        return Err(op_at.error(
            format!("`{name}` of version {}", entry.version),
            format!("version {version}"),
        ));
    }
    let given: Vec<String> = attributes.keys().cloned().collect();
    let op = Operation::parse(name, attributes).map_err(|reason| {
        op_at.error("an op of this version of Overdrive, with its attributes", reason)
    })?;
    let known = op.attributes();
    if let Some(unknown) = given.iter().find(|key| !known.contains_key(*key)) {
        return Err(attributes_at.error(format!("attributes of `{name}`"), format!("`{unknown}`")));
    }
    let operand_types: Vec<TensorType> =
        operands.iter().map(|v| draft.values[&v.0].ty.clone()).collect();
    let inferred = op
        .infer(&Types { operands: &operand_types, regions: &regions })
        .map_err(|m| op_at.error(m.expected, format!("{} in `{name}`; {}", m.found, m.remedy)))?;
    let text =
        |types: &[TensorType]| types.iter().map(|t| t.to_string()).collect::<Vec<_>>().join(", ");
    if inferred != types || results.len() != types.len() {
        let found = format!("{} for {} values", text(&types), results.len());
        return Err(types_at.error(format!("{} as the types of `{name}`", text(&inferred)), found));
    }
    let id = NodeId(draft.nodes.len() as u32);
    for (i, (&value, ty)) in results.iter().zip(types).enumerate() {
        draft.define(&start, value, ty, Origin::Node(id, i))?;
    }
    draft.nodes.push(Node { op, operands, results, regions, scope: scope.into() });
    Ok(())
}

/// `%n`.
fn value(cursor: &mut Cursor<'_>) -> Result<Value, ParseError> {
    cursor.expect("%")?;
    cursor.number("the number of a value").map(Value)
}

fn types(cursor: &mut Cursor<'_>) -> Result<Vec<TensorType>, ParseError> {
    let mut types = vec![ty(cursor)?];
    while cursor.accept(",") {
        types.push(ty(cursor)?);
    }
    Ok(types)
}

/// `f32[batch, 4]`, of at most `isize::MAX` bits for names of size 1.
fn ty(cursor: &mut Cursor<'_>) -> Result<TensorType, ParseError> {
    let start = *cursor;
    let word = cursor.word("a type such as `f32[batch, 4]`")?;
    let dtype = DType::from_str(word).map_err(|e| start.error("an element type", e))?;
    cursor.expect("[")?;
    let dims = cursor.list("]", |c| {
        let mut ahead = *c;
        match ahead.peek_word() {
            word if word.starts_with(|d: char| d.is_ascii_digit()) => {
                c.number("a size").map(Dim::Size)
            }
            "" => c.json("a size or a name").map(|name: String| Dim::Named(name.into())),
            _ => c.word("a size or a name").map(Dim::from),
        }
    })?;
    let ty = TensorType::new(dtype, Shape(dims));
    if !ty.is_addressable() {
        return Err(start.error("a tensor that can be addressed", ty));
    }
    Ok(ty)
}
