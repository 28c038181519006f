//! The known facts of a value of an ONNX graph while it is walked.
//!
//! Shape arithmetic is done here and now: a value whose elements are known never becomes a node
//! until a node needs it as an operand. Each computed value remembers the graph inputs that decide
//! it, so that an error can say whose value would resolve a shape.

use super::coded::Coded;
use overdrive_ir::{Builder, DType, Expr, Init, Tensor};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Names of the graph inputs behind a value, sorted.
pub(super) type Sources = Rc<BTreeSet<String>>;

/// A tensor of the file, or one that was computed from such.
#[derive(Clone, Debug)]
pub(super) struct KnownTensor {
    pub(super) tensor: Tensor,
    /// The initializer's name: the parameter that it becomes.
    pub(super) parameter: Option<Rc<str>>,
}

/// A value.
#[derive(Clone, Debug)]
pub(super) enum ItemValue<'b> {
    /// All its elements are known.
    Known(KnownTensor),
    /// It is computed when the model runs.
    Computed(Expr<'b>),
    /// The numbers that codes stand for.
    Coded(Rc<Coded<'b>>),
    /// Codes of uint4, which has no type here: codes of i4, 8 less.
    Unsigned4(KnownTensor),
}

impl<'b> From<Expr<'b>> for ItemValue<'b> {
    fn from(expr: Expr<'b>) -> Self {
        ItemValue::Computed(expr)
    }
}

impl From<Tensor> for ItemValue<'_> {
    fn from(tensor: Tensor) -> Self {
        ItemValue::Known(KnownTensor { tensor, parameter: None })
    }
}

/// A value and the graph inputs that decide it.
#[derive(Clone, Debug)]
pub(super) struct Item<'b> {
    pub(super) value: ItemValue<'b>,
    pub(super) sources: Sources,
}

impl<'b> Item<'b> {
    pub(super) fn known(tensor: Tensor) -> Self {
        Self { value: tensor.into(), sources: Sources::default() }
    }

    /// The tensor, if it is known.
    pub(super) fn tensor(&self) -> Option<&Tensor> {
        match &self.value {
            ItemValue::Known(known) => Some(&known.tensor),
            ItemValue::Computed(_) | ItemValue::Coded(_) | ItemValue::Unsigned4(_) => None,
        }
    }
}

impl<'b> ItemValue<'b> {
    /// The value as an operand of nodes.
    pub(super) fn expr(&self, b: &'b Builder) -> Expr<'b> {
        match self {
            ItemValue::Computed(expr) => *expr,
            ItemValue::Known(known) => known.expr(b),
            ItemValue::Coded(coded) => coded.numbers(b),
            ItemValue::Unsigned4(known) => {
                let codes = known.expr(b).convert(DType::I32);
                (codes + codes.constant(8.0)).convert(DType::U8)
            }
        }
    }
}

/// How names of parameters end that hold elements of the file in another order or shape.
const REARRANGED: &str = ".rows";

impl KnownTensor {
    /// A parameter where the file names it and it is more than one number, else a constant.
    pub(super) fn expr<'b>(&self, b: &'b Builder) -> Expr<'b> {
        // A name that ends like ours could be one of ours.
        let own = |name: &&Rc<str>| self.tensor.ty().elements() > 1 && !name.ends_with(REARRANGED);
        let Some(name) = self.parameter.as_ref().filter(own) else {
            return b.constant(self.tensor.clone());
        };
        match b.find_state(name) {
            Some(state) if state.ty() == *self.tensor.ty() => state,
            // The same weights in another form.
            Some(_) => self.rearranged(b, self.tensor.clone()),
            None => b.state_named(name, self.tensor.ty().clone(), Init::Value(self.tensor.clone())),
        }
    }
}

impl KnownTensor {
    /// A parameter of its own with these elements, which are the same ones arranged otherwise.
    pub(super) fn rearranged<'b>(&self, b: &'b Builder, tensor: Tensor) -> Expr<'b> {
        let Some(name) = &self.parameter else { return b.constant(tensor) };
        let names = (0..).map(|i| format!("{name}.{i}{REARRANGED}"));
        let free = names.into_iter().find(|name| b.find_state(name).is_none());
        let free = free.expect("there are more numbers than states");
        b.state_named(&free, tensor.ty().clone(), Init::Value(tensor))
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
