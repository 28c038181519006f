//! How the optimizer's states lie on ranks: as their parameters do, and divided along one more
//! axis.
//!
//! Invariant: all states of a parameter are divided along one dimension, so that codes are where
//! their scales are.

use crate::held::{Shardings, is_free, optimized};
use crate::step::OPTIMIZER;
use overdrive_ir::{Axis, Binary, Graph, Mesh, Node, Prim, Sharding, StateDecl, TensorType, Value};

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
    for node in whole.nodes().iter().filter(|node| node.op.name() == "adamw") {
        let moment = first_moment(whole, node, shardings);
        let is_split = |(_, at): &(Value, Sharding)| at.dim_of(along.0).is_some();
        let Some((moment, sharding)) = moment.filter(is_split) else { continue };
        let has_its_shape = |value: &Value| whole.ty(*value).shape == whole.ty(moment).shape;
        let before = |value: Value, is: fn(&Prim) -> bool| {
            let node = whole.producer(value).filter(|node| node.op.prim().is_some_and(is));
            node.map(|node| node.operands[0])
        };
        // Clipping multiplies gradients, after their norm was taken: they are split before both. An
        // update in blocks takes a view.
        let clipped = node.operands[1];
        let unclipped = before(clipped, is_product);
        let viewed = unclipped.unwrap_or(clipped);
        let whole_gradient = before(viewed, is_view);
        let gradients = [Some(clipped), unclipped, whole_gradient].into_iter().flatten();
        for value in gradients.filter(has_its_shape) {
            shardings.insert(value, sharding.clone());
        }
    }
}

fn is_product(prim: &Prim) -> bool {
    matches!(prim, Prim::Binary { kind: Binary::Mul, .. })
}

fn is_view(prim: &Prim) -> bool {
    matches!(prim, Prim::Reshape { .. })
}

/// The first moment of the parameter that a node updates, perhaps in blocks, and how it lies.
fn first_moment(whole: &Graph, node: &Node, shardings: &Shardings) -> Option<(Value, Sharding)> {
    let state = |value: Value| whole.states().iter().find(|state| state.value == value);
    let parameter = node.operands[0];
    let parameter =
        state(parameter).or_else(|| state(*whole.producer(parameter)?.operands.first()?))?;
    let name = format!("{OPTIMIZER}.m.{}", parameter.name);
    let moment = whole.states().iter().find(|state| state.name == name)?.value;
    Some((moment, shardings.get(&moment)?.clone()))
}
