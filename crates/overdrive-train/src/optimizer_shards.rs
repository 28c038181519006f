//! How the optimizer's states lie on ranks: as their parameters do, and divided along one more
//! axis.
//!
//! Invariant: all states of a parameter are divided along one dimension, so that codes are where
//! their scales are.

use crate::held::{Shardings, is_free, is_of_optimizer, optimized};
use crate::muon::ORTHOGONAL;
use crate::step::OPTIMIZER;
use overdrive_ir::{Axis, Binary, Graph, Mesh, Node, Prim, Sharding, StateDecl, TensorType, Value};
use std::collections::BTreeMap;

/// The sharding of a state of the optimizer that lies as its parameter does. Scales of blocks have
/// fewer dimensions, or fewer elements along them, and are whole where those are not divided.
fn like_parameter(ty: &TensorType, parameter: &Sharding, mesh: &Mesh) -> Sharding {
    let mut sharding = Sharding::whole(ty.rank());
    for (dim, size) in ty.sizes().into_iter().enumerate() {
        let axis = parameter.split[dim].clone();
        sharding.split[dim] = axis.filter(|axis| size.is_multiple_of(mesh.size(axis)));
    }
    sharding
}

/// Adds how the optimizer's states lie on ranks along an axis, and the gradients that they take.
/// They lie along other axes as their parameters do.
pub(crate) fn share_out(whole: &Graph, along: (&Axis, &Mesh), shardings: &mut Shardings) {
    for parameter in whole.states() {
        let of = |state: &&StateDecl| optimized(state) == Some(parameter.name.as_str());
        let lies = |state: &StateDecl| {
            let ty = whole.ty(state.value);
            let like = || Some(like_parameter(ty, shardings.get(&parameter.value)?, along.1));
            let at = shardings.get(&state.value).cloned().or_else(like);
            (state.value, ty, at.unwrap_or_else(|| Sharding::whole(ty.rank())))
        };
        let states: Vec<_> = whole.states().iter().filter(of).map(lies).collect();
        let dims = states.iter().map(|(_, ty, _)| ty.rank()).min().unwrap_or(0);
        let is_free_in_all =
            |dim: &usize| states.iter().all(|(_, ty, at)| is_free(ty, at, *dim, along));
        let Some(dim) = (0..dims).find(is_free_in_all) else { continue };
        for (value, _, at) in states {
            shardings.insert(value, at.and_split(dim, along.0));
        }
    }
    let updates = Updates::of(whole);
    for (moment, clipped) in updates.gradients() {
        let Some(sharding) = shardings.get(&moment).cloned() else { continue };
        if sharding.dim_of(along.0).is_none() {
            continue;
        }
        let has_its_shape = |value: &Value| whole.ty(*value).shape == whole.ty(moment).shape;
        let before = |value: Value, is: fn(&Prim) -> bool| {
            let node = whole.producer(value).filter(|node| node.op.prim().is_some_and(is));
            node.map(|node| node.operands[0])
        };
        // Clipping multiplies gradients, after their norm was taken: they are split before both. An
        // update in blocks takes a view.
        let unclipped = before(clipped, is_product);
        let viewed = unclipped.unwrap_or(clipped);
        let whole_gradient = before(viewed, is_view);
        let gradients = [Some(clipped), unclipped, whole_gradient].into_iter().flatten();
        for value in gradients.filter(has_its_shape) {
            shardings.insert(value, sharding.clone());
        }
    }
    // The direction of a matrix is that of all of it.
    for value in updates.made_orthogonal() {
        shardings.insert(value, Sharding::whole(whole.ty(value).rank()));
    }
}

fn is_product(prim: &Prim) -> bool {
    matches!(prim, Prim::Binary { kind: Binary::Mul, .. })
}

fn is_view(prim: &Prim) -> bool {
    matches!(prim, Prim::Reshape { .. })
}

/// The nodes that follow gradients.
struct Updates<'g> {
    whole: &'g Graph,
    readers: BTreeMap<Value, Vec<&'g Node>>,
}

impl<'g> Updates<'g> {
    fn of(whole: &'g Graph) -> Self {
        let mut readers: BTreeMap<Value, Vec<&Node>> = BTreeMap::new();
        for node in whole.nodes().iter().filter(|node| is_of_optimizer(node)) {
            node.operands.iter().for_each(|value| readers.entry(*value).or_default().push(node));
        }
        Self { whole, readers }
    }

    /// The first moment of each parameter that has one, and the gradient that it takes up.
    fn gradients(&self) -> impl Iterator<Item = (Value, Value)> {
        let is_first = |state: &&StateDecl| {
            let kinds = ["m", "momentum"].map(|kind| format!("{OPTIMIZER}.{kind}."));
            kinds.iter().any(|kind| state.name.starts_with(kind))
        };
        let moments = self.whole.states().iter().filter(is_first).map(|state| state.value);
        moments.filter_map(|moment| Some((moment, self.gradient(moment)?)))
    }

    /// The gradient that a moment is added to, behind its format and its decay.
    fn gradient(&self, moment: Value) -> Option<Value> {
        let mut reached = vec![moment];
        while let Some(value) = reached.pop() {
            for node in self.readers.get(&value).into_iter().flatten() {
                match node.op.prim() {
                    None if node.op.name() == "adamw" => return Some(node.operands[1]),
                    Some(Prim::Binary { kind: Binary::Add }) => {
                        return node.operands.iter().find(|other| **other != value).copied();
                    }
                    Some(Prim::Convert { .. } | Prim::Reshape { .. }) => {
                        reached.extend(&node.results);
                    }
                    Some(prim) if is_product(prim) => reached.extend(&node.results),
                    _ => {}
                }
            }
        }
        None
    }

    /// The matrices that Newton-Schulz steps begin with.
    fn made_orthogonal(&self) -> impl Iterator<Item = Value> {
        let end = format!("/{ORTHOGONAL}");
        let steps = self
            .whole
            .nodes()
            .iter()
            .filter(move |node| is_of_optimizer(node) && node.scope.ends_with(&end));
        steps.flat_map(|node| {
            let is_outside = |value: &&Value| {
                let made = self.whole.producer(**value);
                self.whole.ty(**value).rank() == 2
                    && made.is_some_and(|made| made.scope != node.scope)
            };
            node.operands.iter().filter(is_outside).copied()
        })
    }
}
