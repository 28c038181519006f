//! `Call`: one node as its importer sees it: operands, attributes, opset.
//!
//! Invariant: an attribute that no importer asked for is an error and not silently ignored
//! (`unread`).

use super::fault::{Fault, invalid};
use super::item::{Item, ItemValue, union};
use super::proto::{AttributeProto, GraphProto, NodeProto};
use super::tensor::ExternalData;
use overdrive_ir::{Builder, DType, Expr, Tensor};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Results of an importer.
pub(super) type Outcome<'b> = Result<Vec<ItemValue<'b>>, Fault>;

/// One node.
pub(super) struct Call<'a, 'b> {
    /// The builder to build with.
    pub(super) b: &'b Builder,
    pub(super) node: &'a NodeProto,
    /// Version of the op's domain.
    pub(super) opset: i64,
    pub(super) operands: Vec<Option<Item<'b>>>,
    pub(super) storage: &'a ExternalData,
    asked: RefCell<BTreeSet<&'static str>>,
}

/// The one result of an importer.
pub(super) fn one<'b>(value: impl Into<ItemValue<'b>>) -> Outcome<'b> {
    Ok(vec![value.into()])
}

impl<'a, 'b> Call<'a, 'b> {
    pub(super) fn new(
        b: &'b Builder,
        node: &'a NodeProto,
        opset: i64,
        operands: Vec<Option<Item<'b>>>,
        storage: &'a ExternalData,
    ) -> Self {
        Self { b, node, opset, operands, storage, asked: RefCell::default() }
    }

    /// Number of operands, absent ones in the middle included.
    pub(super) fn count(&self) -> usize {
        self.operands.len()
    }

    fn item(&self, index: usize) -> Option<&Item<'b>> {
        self.operands.get(index).and_then(Option::as_ref)
    }

    fn required(&self, index: usize) -> Result<&Item<'b>, Fault> {
        self.item(index).ok_or_else(|| invalid(format!("input number {index}"), "none"))
    }

    /// True where the operand is given.
    pub(super) fn has(&self, index: usize) -> bool {
        self.item(index).is_some()
    }

    /// Operand `index` as an expression.
    pub(super) fn x(&self, index: usize) -> Result<Expr<'b>, Fault> {
        let expr = self.required(index)?.value.expr(self.b);
        if expr.is_poison() { Err(Fault::Built) } else { Ok(expr) }
    }

    /// The extents of operand `index`, without a node that computes it.
    pub(super) fn extents(&self, index: usize) -> Result<Vec<usize>, Fault> {
        match &self.required(index)?.value {
            ItemValue::Known(known) | ItemValue::Unsigned4(known) => Ok(known.tensor.ty().sizes()),
            ItemValue::Coded(coded) => Ok(coded.kept.clone()),
            ItemValue::Computed(expr) => super::axes::sizes(*expr),
        }
    }

    /// Operand `index`, if it is given.
    pub(super) fn maybe(&self, index: usize) -> Result<Option<Expr<'b>>, Fault> {
        self.item(index).map(|_| self.x(index)).transpose()
    }

    /// Every operand, from `first` on.
    pub(super) fn rest(&self, first: usize) -> Result<Vec<Expr<'b>>, Fault> {
        (first..self.count()).map(|i| self.x(i)).collect()
    }

    /// The elements of operand `index`, which must be known.
    pub(super) fn known(&self, index: usize) -> Result<&Tensor, Fault> {
        let item = self.required(index)?;
        item.tensor().ok_or_else(|| Fault::Undecided {
            what: self.node.input.get(index).cloned().unwrap_or_default(),
            sources: item.sources.clone(),
        })
    }

    /// The elements of operand `index` if they are known, without asking for them.
    pub(super) fn peek(&self, index: usize) -> Option<&Tensor> {
        self.item(index)?.tensor()
    }

    /// The operand as it came.
    pub(super) fn value(&self, index: usize) -> Result<ItemValue<'b>, Fault> {
        Ok(self.required(index)?.value.clone())
    }

    /// Known integers.
    pub(super) fn ints(&self, index: usize) -> Result<Vec<i64>, Fault> {
        let tensor = self.known(index)?;
        if tensor.ty().dtype.is_float() {
            return Err(invalid("integers", tensor.ty().to_string()));
        }
        Ok(tensor
            .to_ints()
            .into_iter()
            .map(|x| x.clamp(i64::MIN.into(), i64::MAX.into()) as i64)
            .collect())
    }

    /// Known integers, if the operand is given.
    pub(super) fn maybe_ints(&self, index: usize) -> Result<Option<Vec<i64>>, Fault> {
        self.item(index).map(|_| self.ints(index)).transpose()
    }

    /// The one known number of operand `index`.
    pub(super) fn number(&self, index: usize) -> Result<f64, Fault> {
        let tensor = self.known(index)?;
        match tensor.ty().elements() {
            1 => Ok(tensor.to_f64()[0]),
            _ => Err(invalid("one number", tensor.ty().to_string())),
        }
    }

    /// The one known integer of operand `index`.
    pub(super) fn integer(&self, index: usize) -> Result<i64, Fault> {
        match self.ints(index)?[..] {
            [x] => Ok(x),
            _ => Err(invalid("one integer", self.known(index)?.ty().to_string())),
        }
    }

    /// An attribute.
    pub(super) fn attribute(&self, name: &'static str) -> Option<&'a AttributeProto> {
        self.asked.borrow_mut().insert(name);
        self.node.attribute.iter().find(|a| a.name() == name)
    }

    /// An integer attribute, or its default.
    pub(super) fn int_or(&self, name: &'static str, default: i64) -> i64 {
        self.attribute(name).map_or(default, AttributeProto::i)
    }

    /// A flag, or its default.
    pub(super) fn flag(&self, name: &'static str, default: i64) -> bool {
        self.int_or(name, default) != 0
    }

    /// A real attribute, or its default.
    pub(super) fn float_or(&self, name: &'static str, default: f32) -> f64 {
        f64::from(self.attribute(name).map_or(default, AttributeProto::f))
    }

    /// A text attribute, or its default.
    pub(super) fn text_or(&self, name: &'static str, default: &str) -> String {
        self.attribute(name)
            .map_or(default.to_owned(), |a| String::from_utf8_lossy(a.s()).into_owned())
    }

    /// A list of integers, if it is given.
    pub(super) fn list(&self, name: &'static str) -> Option<Vec<i64>> {
        self.attribute(name).map(|a| a.ints.clone())
    }

    /// A sub-graph.
    pub(super) fn graph(&self, name: &'static str) -> Result<&'a GraphProto, Fault> {
        let graph = self.attribute(name).and_then(|a| a.g.as_ref());
        graph.ok_or_else(|| invalid(format!("a graph `{name}`"), "none"))
    }

    /// Our element type of an attribute that names one.
    pub(super) fn dtype(&self, name: &'static str) -> Result<Option<DType>, Fault> {
        let code = self.attribute(name).map(AttributeProto::i);
        code.map(|code| super::types::ours(code as i32).map_err(super::fault::unsupported))
            .transpose()
    }

    /// Says that attributes have no say in the outputs that we give.
    pub(super) fn ignore(&self, names: &[&'static str]) {
        self.asked.borrow_mut().extend(names);
    }

    /// The first attribute that nobody read.
    pub(super) fn unread(&self) -> Option<&'a str> {
        let asked = self.asked.borrow();
        self.node.attribute.iter().map(|a| a.name()).find(|name| !asked.contains(name))
    }

    /// Takes over the requests of another call of the same node.
    pub(super) fn accept(&self, other: &Call<'_, '_>) {
        self.asked.borrow_mut().extend(other.asked.borrow().iter());
    }

    /// Whether output `index` is named.
    pub(super) fn wants(&self, index: usize) -> bool {
        self.node.output.get(index).is_some_and(|name| !name.is_empty())
    }

    /// The graph inputs behind all operands.
    pub(super) fn sources(&self) -> super::item::Sources {
        union(self.operands.iter().flatten())
    }

    /// A constant of this type.
    pub(super) fn scalar(&self, dtype: DType, value: f64) -> Expr<'b> {
        self.b.constant(Tensor::scalar(dtype, value))
    }
}
