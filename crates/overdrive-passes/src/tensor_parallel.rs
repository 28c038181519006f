//! `tensor_parallel`: the shardings that split layers among the ranks along the axis `tensor`.
//!
//! No layer is known by its name. A dimension that nodes carry from one value to the next is one
//! class (`shard::classes`), and two kinds of class are split:
//! - a *pair*: one projection makes it and another contracts it, and nothing between needs it
//!   whole. Heads of attention are such, and the width of a feed-forward layer. The one sum behind
//!   the second projection is all that the pair exchanges.
//! - an *end*: rows of a table that data looks up, or outputs of a projection that no other
//!   contracts. Both are vocabularies. They are split where the ranks divide them.
//!
//! All else stays whole. States of the optimizer follow their parameters. Sources: Shoeybi et al.,
//! "Megatron-LM", arXiv:1909.08053; Korthikanti et al., "Reducing activation recomputation in large
//! transformer models", arXiv:2205.05198 (sequence parallel).

mod flat;
mod stream;

use crate::shard::classes::{Classes, Dimension};
use crate::shard::relation::FactorKind;
use crate::shard::{ShardError, name_of, undivided};
use flat::{Flat, FlatNode};
use overdrive_ir::{Axis, Graph, Mesh, Prim, Sharding, Value};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// The axis along which layers are split.
const TENSOR: &str = "tensor";

/// The activations between blocks, on ranks that share the layers.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum ResidualStream {
    /// Whole on each rank: an `all_reduce` behind each pair of projections.
    Whole,
    /// Split along the sequence (sequence parallel), if the ranks divide it: T of
    /// `[batch, ..., T, D]`. There is a `reduce_scatter` behind each pair, and an `all_gather`
    /// before. Norms and residual sums are then split too.
    #[default]
    AlongSequence,
}

/// Annotations for [`shard`](crate::shard()) that split the layers of a bound graph along the mesh
/// axis `tensor`, added to `shardings`, which have those of inputs. Without that axis nothing is
/// added.
///
/// The graph is a forward or a training step. A weight that a graph uses in slices (a fused
/// projection) stays whole, and its slices are split. Outputs are whole along `tensor`.
///
/// # Errors
/// When the ranks do not divide a pair, or nothing can be split. The error names the smallest
/// dimension of the pair that they do not divide, often the heads of attention.
pub fn tensor_parallel(
    graph: &Graph,
    mesh: &Mesh,
    shardings: &BTreeMap<Value, Sharding>,
    residual: ResidualStream,
) -> Result<BTreeMap<Value, Sharding>, ShardError> {
    let axis = Axis::from(TENSOR);
    let ranks = mesh.size(&axis);
    if ranks == 1 {
        return Ok(shardings.clone());
    }
    let flat = Flat::of(graph);
    let mut layers = Layers::of(&flat);
    let chosen = layers.choose(graph, (&axis, ranks))?;
    if chosen.is_empty() {
        let (graph, axis) = (graph.name().to_owned(), axis.to_string());
        return Err(ShardError::Unsplittable { graph, axis });
    }
    layers.follow();
    let split = chosen.iter().map(|&dim| layers.classes.of(dim)).collect();
    let mut layout = Layout { flat: &flat, classes: layers.classes, split, carried: vec![] };
    layout.carry(graph, shardings);

    let mut all = shardings.clone();
    let states = graph.states().iter().map(|state| state.value);
    let cuts = flat.nodes.iter().filter(|node| flat.is_cut(node)).map(|node| node.results[0]);
    for value in states.chain(cuts) {
        let Some(dim) = layout.split_dim(value) else { continue };
        let whole = || Sharding::whole(flat.rank(value));
        let sharding = all.entry(value).or_insert_with(whole);
        if sharding.split[dim].is_none() {
            sharding.split[dim] = Some(axis.clone());
        }
    }
    layout.stream(graph, (&axis, ranks), residual, &mut all);
    for port in graph.outputs() {
        if layout.split_dim(port.value).is_some() && !flat.is_fixed(port.value) {
            all.insert(port.value, layout.whole(port.value));
        }
    }
    Ok(all)
}

/// Uses of a class of dimensions.
#[derive(Copy, Clone, Default)]
struct Uses {
    /// Some projection's outputs.
    made: bool,
    /// Some projection's inputs.
    contracted: bool,
    /// Rows of a table that data looks up. Positions that no input changes read all rows.
    looked_up: bool,
    /// A reduction is over it, as in a norm or a softmax.
    folded: bool,
    /// A node needs all of it.
    whole: bool,
}

impl Uses {
    fn is_pair(self) -> bool {
        self.made && self.contracted && !self.folded && !self.whole
    }

    fn is_end(self) -> bool {
        (self.made || self.looked_up) && !self.contracted && !self.whole
    }
}

/// The classes of dimensions of a graph, up to its last contraction, and their uses.
struct Layers<'f> {
    flat: &'f Flat,
    classes: Classes,
    /// For each node, whether it stands before some contraction.
    before: Vec<bool>,
    uses: HashMap<usize, Uses>,
    /// Classes that may be split, in the order of the graph.
    order: Vec<usize>,
}

impl<'f> Layers<'f> {
    fn of(flat: &'f Flat) -> Self {
        let before = flat.before_contractions();
        let (classes, uses, order) = (Classes::default(), HashMap::new(), vec![]);
        let mut layers = Layers { flat, classes, before, uses, order };
        for node in layers.core() {
            node.tied().iter().for_each(|dims| layers.classes.tie(dims));
        }
        let mut known = HashSet::new();
        for node in layers.core() {
            layers.note(node);
            if node.contracts() {
                layers.note_projection(node, &mut known);
            }
        }
        layers
    }

    fn core(&self) -> Vec<&'f FlatNode> {
        let nodes = self.flat.nodes.iter().zip(&self.before);
        nodes.filter(|(_, before)| **before).map(|(node, _)| node).collect()
    }

    fn uses(&mut self, dim: Dimension) -> (usize, &mut Uses) {
        let class = self.classes.of(dim);
        (class, self.uses.entry(class).or_default())
    }

    /// Notes what a node does to each class.
    fn note(&mut self, node: &FlatNode) {
        for (&value, dims) in node.operands.iter().zip(&node.relation.operands) {
            for (dim, factor) in dims.iter().enumerate() {
                let kind = factor.map(|factor| node.relation.factors[factor]);
                let is_table = self.flat.state(value).is_some()
                    && !node.operands[1..].iter().all(|&index| self.flat.is_fixed(index));
                let (class, uses) = self.uses((value, dim));
                match kind {
                    Some(FactorKind::Parallel) => {}
                    Some(FactorKind::Summed) if node.contracts() => {}
                    Some(FactorKind::Summed) if matches!(node.prim, Prim::Reduce { .. }) => {
                        uses.folded = true;
                    }
                    Some(FactorKind::Folded(_)) => uses.folded = true,
                    Some(FactorKind::Looked) if is_table => {
                        uses.looked_up = true;
                        self.order.push(class);
                    }
                    _ => uses.whole = true,
                }
            }
        }
        // A part of a state is cut anew, and indices cost nothing.
        if self.flat.is_cut(node) || node.operands.is_empty() {
            return;
        }
        for (&value, dims) in node.results.iter().zip(&node.relation.results) {
            for dim in (0..dims.len()).filter(|&dim| dims[dim].is_none()) {
                self.uses((value, dim)).1.whole = true;
            }
        }
    }

    /// Notes which class a projection makes, and which it contracts. The first product with a state
    /// is that of the forward.
    fn note_projection(&mut self, node: &FlatNode, known: &mut HashSet<Value>) {
        for (operand, &value) in node.operands.iter().enumerate() {
            let Some(state) = self.flat.state(value) else { continue };
            if !known.insert(state) {
                continue;
            }
            for (dim, factor) in node.relation.operands[operand].iter().enumerate() {
                let Some(factor) = factor.filter(|&f| node.is_inner(operand, f)) else { continue };
                let is_made = node.relation.factors[factor] == FactorKind::Parallel;
                let (class, uses) = self.uses((value, dim));
                if is_made {
                    uses.made = true;
                    self.order.push(class);
                } else {
                    uses.contracted = true;
                }
            }
        }
    }

    /// A dimension of each class that is split: pairs first, then ends, each in the order of the
    /// graph. No value has two of them.
    fn choose(
        &mut self,
        graph: &Graph,
        (axis, ranks): (&Axis, usize),
    ) -> Result<Vec<Dimension>, ShardError> {
        let mut members: HashMap<usize, BTreeSet<Dimension>> = HashMap::new();
        for node in self.core() {
            for &value in node.operands.iter().chain(&node.results) {
                for dim in 0..self.flat.rank(value) {
                    let class = self.classes.of((value, dim));
                    members.entry(class).or_default().insert((value, dim));
                }
            }
        }
        let (mut taken, mut chosen) = (HashSet::new(), vec![]);
        for is_wanted in [Uses::is_pair as fn(Uses) -> bool, Uses::is_end] {
            for class in self.order.iter().filter(|class| is_wanted(self.uses[class])) {
                let dims = &members[class];
                let values: HashSet<Value> = dims.iter().map(|(value, _)| *value).collect();
                if values.len() < dims.len() || values.iter().any(|value| taken.contains(value)) {
                    continue;
                }
                if dims.iter().any(|&dim| !self.size(dim).is_multiple_of(ranks)) {
                    if self.uses[class].is_pair() {
                        return Err(self.undivided(graph, dims, (axis, ranks)));
                    }
                    continue;
                }
                taken.extend(values);
                chosen.extend(dims.first());
            }
        }
        Ok(chosen)
    }

    fn size(&self, (value, dim): Dimension) -> usize {
        self.flat.sizes(value)[dim]
    }

    /// The error of a pair that the ranks do not divide.
    fn undivided(
        &self,
        graph: &Graph,
        dims: &BTreeSet<Dimension>,
        along: (&Axis, usize),
    ) -> ShardError {
        let bad = dims.iter().filter(|&&dim| !self.size(dim).is_multiple_of(along.1));
        let bad = bad.min_by_key(|&&dim| self.size(dim)).expect("some dimension is not divided");
        let others = dims.iter().map(|&dim| self.size(dim));
        let sizes: Vec<usize> = [self.size(*bad)].into_iter().chain(others).collect();
        undivided(name_of(graph, self.flat.own(bad.0)), (bad.1, &sizes), along)
    }

    /// Lets the nodes behind the last contraction follow: updates, the states that they have beside
    /// parameters, what follows from the logits. They join no two classes of the layers.
    fn follow(&mut self) {
        for node in self.core() {
            for dim in node.tied().concat() {
                let class = self.classes.of(dim);
                self.classes.marked[class] = true;
            }
        }
        for (node, _) in self.flat.nodes.iter().zip(&self.before).filter(|(_, before)| !**before) {
            for dims in node.tied() {
                let classes: BTreeSet<usize> =
                    dims.iter().map(|&dim| self.classes.of(dim)).collect();
                if classes.iter().filter(|&&class| self.classes.marked[class]).count() <= 1 {
                    self.classes.tie(&dims);
                }
            }
        }
    }
}

/// The classes that are split, and those that inputs have split along other axes.
struct Layout<'f> {
    flat: &'f Flat,
    classes: Classes,
    split: HashSet<usize>,
    carried: Vec<(usize, Axis)>,
}

impl Layout<'_> {
    /// Notes which classes the shardings of inputs split.
    fn carry(&mut self, graph: &Graph, shardings: &BTreeMap<Value, Sharding>) {
        for port in graph.inputs() {
            let Some(sharding) = shardings.get(&port.value) else { continue };
            for (dim, axis) in sharding.split.iter().enumerate() {
                if let Some(axis) = axis {
                    self.carried.push((self.classes.of((port.value, dim)), axis.clone()));
                }
            }
        }
    }

    /// The dimension of a value that is split along `tensor`.
    fn split_dim(&mut self, value: Value) -> Option<usize> {
        (0..self.flat.rank(value)).find(|&dim| self.split.contains(&self.classes.of((value, dim))))
    }

    /// A value that is whole along `tensor`, and split as inputs are along other axes.
    fn whole(&mut self, value: Value) -> Sharding {
        let mut sharding = Sharding::whole(self.flat.rank(value));
        for dim in 0..sharding.split.len() {
            let class = self.classes.of((value, dim));
            let carried = self.carried.iter().find(|(other, _)| *other == class);
            if let Some((_, axis)) = carried.filter(|(_, axis)| sharding.dim_of(axis).is_none()) {
                sharding.split[dim] = Some(axis.clone());
            }
        }
        sharding
    }
}
