//! What is known of a value of an ONNX graph while it is walked.
//!
//! Shape arithmetic is done here and now: a value whose elements are known never becomes a node until a node needs it
//! as an operand. Each computed value remembers the graph inputs that decide it, so that an error can say whose value
//! would resolve a shape.

use overdrive_ir::{Builder, Expr, Init, Tensor};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Names of the graph inputs behind a value, sorted.
pub(super) type Sources = Rc<BTreeSet<String>>;

/// A tensor of the file, or one that was computed from such.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) tensor: Tensor,
    /// The initializer's name: the parameter that it becomes.
    pub(super) parameter: Option<Rc<str>>,
}

/// A value.
#[derive(Clone, Debug)]
pub(super) enum Value<'b> {
    /// All its elements are known.
    Known(Known),
    /// It is computed when the model runs.
    Computed(Expr<'b>),
    /// It is what a matrix of codes stands for.
    Coded(Coded<'b>),
}

/// Numbers `[N, K]` and what they are made of, so that a product can take the codes as they are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Coded<'b> {
    /// `(codes - zero) scale`
    pub(super) numbers: Expr<'b>,
    pub(super) codes: Expr<'b>,
    /// `[N, G]`, each for K/G consecutive codes of a row, or `[1, G]`.
    pub(super) scale: Expr<'b>,
    /// Of the same shape.
    pub(super) zero: Option<Expr<'b>>,
}

impl<'b> From<Expr<'b>> for Value<'b> {
    fn from(expr: Expr<'b>) -> Self {
        Value::Computed(expr)
    }
}

impl From<Tensor> for Value<'_> {
    fn from(tensor: Tensor) -> Self {
        Value::Known(Known { tensor, parameter: None })
    }
}

/// A value and the graph inputs that decide it.
#[derive(Clone, Debug)]
pub(super) struct Item<'b> {
    pub(super) value: Value<'b>,
    pub(super) sources: Sources,
}

impl<'b> Item<'b> {
    pub(super) fn known(tensor: Tensor) -> Self {
        Self { value: tensor.into(), sources: Sources::default() }
    }

    /// The tensor, if it is known.
    pub(super) fn tensor(&self) -> Option<&Tensor> {
        match &self.value {
            Value::Known(known) => Some(&known.tensor),
            Value::Computed(_) | Value::Coded(_) => None,
        }
    }

    /// The value as an operand of nodes.
    pub(super) fn expr(&self, b: &'b Builder) -> Expr<'b> {
        match &self.value {
            Value::Computed(expr) | Value::Coded(Coded { numbers: expr, .. }) => *expr,
            Value::Known(known) => known.expr(b),
        }
    }
}

impl Known {
    /// A parameter where the file names it and it is more than one number, else a constant.
    fn expr<'b>(&self, b: &'b Builder) -> Expr<'b> {
        let Some(name) = self.parameter.as_ref().filter(|_| self.tensor.ty().elements() > 1) else {
            return b.constant(self.tensor.clone());
        };
        b.find_state(name).unwrap_or_else(|| {
            b.state_named(name, self.tensor.ty().clone(), Init::Value(self.tensor.clone()))
        })
    }
}

/// The inputs behind any of `items`.
pub(super) fn union<'i, 'b: 'i>(items: impl Iterator<Item = &'i Item<'b>>) -> Sources {
    let mut all = Sources::default();
    for item in items {
        if all.is_empty() {
            all = Rc::clone(&item.sources);
        } else if !item.sources.is_empty()
            && !Rc::ptr_eq(&all, &item.sources)
            && !item.sources.is_subset(&all)
        {
            all = Rc::new(all.union(&item.sources).cloned().collect());
        }
    }
    all
}
