//! Movement: what a chain of transposes, reshapes and broadcasts does to where elements stand.
//!
//! Each exporter reorders heads in its own way. Two chains that put the elements in the same places
//! are the same movement here. The dimensions of the source are split into parts where a reshape
//! asks for it. Every dimension of the result is a list of parts, outermost first. Invariant: every
//! part of the source is in the result exactly once.

use overdrive_ir::{Expr, Graph, Prim, Shape, Value};

/// A factor of a dimension.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum DimFactor {
    /// Part of the source, by its place there.
    Source(usize),
    /// The same elements, repeated this many times.
    Repeat(usize),
}

/// From a source to a result.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Movement {
    /// Extents of the parts of the source, row-major; none is 1.
    parts: Vec<usize>,
    /// Parts of each dimension of the result.
    pub(super) dims: Vec<Vec<DimFactor>>,
}

/// A value and where its elements come from.
pub(super) struct Moved {
    pub(super) source: Value,
    pub(super) movement: Movement,
    /// Factor on the elements on the way.
    pub(super) factor: f64,
}

impl Movement {
    /// None at all, of a source of this shape without zeros.
    fn none(shape: &[usize]) -> Option<Self> {
        let parts: Vec<usize> = shape.iter().copied().filter(|&n| n != 1).collect();
        let mut next = 0..parts.len();
        let dims = shape.iter().map(|&n| {
            if n == 1 { vec![] } else { next.next().map(DimFactor::Source).into_iter().collect() }
        });
        let dims = dims.collect();
        (!shape.contains(&0)).then_some(Self { parts, dims })
    }

    fn extent(&self, part: DimFactor) -> usize {
        match part {
            DimFactor::Source(i) => self.parts[i],
            DimFactor::Repeat(n) => n,
        }
    }

    /// Extent of a dimension.
    pub(super) fn size(&self, dim: &[DimFactor]) -> usize {
        dim.iter().map(|&part| self.extent(part)).product()
    }

    /// The same, then moved by `prim`; `None` for what is no movement, or one that splits parts
    /// unevenly.
    fn then(mut self, prim: &Prim) -> Option<Self> {
        match prim {
            Prim::Transpose { perm } => {
                self.dims = perm.iter().map(|&p| self.dims[p].clone()).collect()
            }
            Prim::Broadcast { shape, dims } => {
                let repeated = |n: usize| if n == 1 { vec![] } else { vec![DimFactor::Repeat(n)] };
                let mut spread: Vec<Vec<DimFactor>> =
                    sizes(shape)?.into_iter().map(repeated).collect();
                for (from, &to) in self.dims.iter().zip(dims).filter(|(from, _)| !from.is_empty()) {
                    spread[to] = from.clone();
                }
                self.dims = spread;
            }
            Prim::Reshape { shape } => return self.reshaped(&sizes(shape)?),
            _ => return None,
        }
        Some(self)
    }

    fn reshaped(mut self, shape: &[usize]) -> Option<Self> {
        let mut left: Vec<DimFactor> = self.dims.concat();
        left.reverse();
        self.dims.clear();
        for &size in shape {
            let (mut dim, mut missing) = (Vec::new(), size);
            while missing > 1 {
                let part = left.pop()?;
                let extent = self.extent(part);
                if missing.is_multiple_of(extent) {
                    dim.push(part);
                    missing /= extent;
                    continue;
                }
                if !extent.is_multiple_of(missing) {
                    return None;
                }
                let [outer, inner] = self.split(part, missing);
                if let DimFactor::Source(i) = part {
                    // Those behind have moved on by one.
                    let later = |p: &mut DimFactor| {
                        if let DimFactor::Source(j) = p
                            && *j > i
                        {
                            *j += 1;
                        }
                    };
                    left.iter_mut()
                        .chain(dim.iter_mut())
                        .chain(self.dims.iter_mut().flatten())
                        .for_each(later);
                }
                left.push(inner);
                dim.push(outer);
                missing = 1;
            }
            self.dims.push(dim);
        }
        left.is_empty().then_some(self)
    }

    /// A part as two, the outer one of this extent.
    fn split(&mut self, part: DimFactor, outer: usize) -> [DimFactor; 2] {
        match part {
            DimFactor::Source(i) => {
                let inner = self.parts[i] / outer;
                self.parts[i] = outer;
                self.parts.insert(i + 1, inner);
                [DimFactor::Source(i), DimFactor::Source(i + 1)]
            }
            DimFactor::Repeat(n) => [DimFactor::Repeat(outer), DimFactor::Repeat(n / outer)],
        }
    }

    /// The moved elements of `source`, in the fewest steps: split, transpose, repeat, join.
    pub(super) fn apply<'b>(&self, source: Expr<'b>) -> Expr<'b> {
        let order: Vec<DimFactor> = self.dims.concat();
        let kept: Vec<usize> = order
            .iter()
            .filter_map(|part| if let DimFactor::Source(i) = part { Some(*i) } else { None })
            .collect();
        let moved = source.reshape(self.parts.clone()).transpose(&kept);
        let whole: Vec<usize> = order.iter().map(|&part| self.extent(part)).collect();
        let places: Vec<usize> =
            (0..order.len()).filter(|&i| matches!(order[i], DimFactor::Source(_))).collect();
        let shape: Vec<usize> = self.dims.iter().map(|dim| self.size(dim)).collect();
        moved.broadcast_in(&Shape::from(whole), &places).reshape(shape)
    }

    /// The same source under other dimensions of its parts.
    pub(super) fn arranged(self, dims: Vec<Vec<DimFactor>>) -> Self {
        Self { dims, ..self }.joined()
    }

    /// Parts that stand beside each other in source and result as one, so that no step is wider
    /// than it must be.
    fn joined(mut self) -> Self {
        let mut i = 0;
        while i + 1 < self.parts.len() {
            let pair = [DimFactor::Source(i), DimFactor::Source(i + 1)];
            let found = self.dims.iter().position(|dim| dim.windows(2).any(|two| *two == pair));
            let Some(dim) = found else {
                i += 1;
                continue;
            };
            self.dims[dim].retain(|part| *part != pair[1]);
            let inner = self.parts.remove(i + 1);
            self.parts[i] *= inner;
            for part in self.dims.iter_mut().flatten() {
                if let DimFactor::Source(j) = part
                    && *j > i
                {
                    *j -= 1;
                }
            }
        }
        self
    }
}

fn sizes(shape: &Shape) -> Option<Vec<usize>> {
    shape.0.iter().map(|dim| dim.size()).collect()
}

/// The source of a value's elements, traced through movements and products with a number. It is the
/// value itself if parts are not moved as a whole. `None` without elements.
pub(super) fn trace(graph: &Graph, value: Value) -> Option<Moved> {
    let (mut chain, mut source, mut factor) = (Vec::new(), value, 1.0);
    while let Some(node) = graph.producer(source) {
        match node.op.prim() {
            Some(
                prim @ (Prim::Transpose { .. } | Prim::Broadcast { .. } | Prim::Reshape { .. }),
            ) => {
                chain.push(prim);
                source = node.operands[0];
            }
            Some(_) => {
                let Some((x, c)) = super::number::scaled(graph, source) else { break };
                factor *= c;
                source = x;
            }
            None => break,
        }
    }
    let none = |value: Value| Movement::none(&graph.ty(value).sizes());
    match chain.iter().rev().try_fold(none(source)?, |movement, prim| movement.then(prim)) {
        Some(movement) => Some(Moved { source, movement, factor }),
        None => Some(Moved { source: value, movement: none(value)?, factor: 1.0 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overdrive_ir::{Array, Builder, DType, TensorType};

    fn chain<'b>(x: Expr<'b>, seed: usize) -> Expr<'b> {
        match seed {
            0 => x.reshape([6usize, 7, 8]).transpose(&[0, 2, 1]).reshape([2usize, 3, 8, 7]),
            1 => x.transpose(&[0, 2, 1, 3]).reshape([2usize, 7, 24]).reshape([14usize, 6, 4]),
            2 => x
                .reshape([2usize, 3, 1, 7, 8])
                .broadcast_to(&Shape::from([2usize, 3, 5, 7, 8]))
                .reshape([30usize, 7, 8]),
            3 => x
                .reshape([1usize, 2, 3, 7, 2, 4])
                .transpose(&[0, 4, 2, 3, 1, 5])
                .reshape([2usize, 21, 8]),
            _ => x.reshape([2usize, 3, 7, 8]),
        }
    }

    #[test]
    fn a_chain_is_its_movement() {
        for seed in 0..5 {
            let b = Builder::new("chain");
            let x = b.input("x", TensorType::new(DType::F32, [2usize, 3, 7, 8]));
            let y = chain(x, seed);
            b.output("y", y);
            let graph = b.finish().expect("well typed");
            let moved = trace(&graph, graph.outputs()[0].value).expect("movements only");
            assert!(graph.producer(moved.source).is_none(), "chain {seed} is traced to the input");
            let b = Builder::new("moved");
            let x = b.input("x", TensorType::new(DType::F32, [2usize, 3, 7, 8]));
            b.output("y", moved.movement.joined().apply(x));
            let again = b.finish().expect("well typed");
            let x = Array::build(DType::F32, &[2, 3, 7, 8], |at| {
                at.iter().fold(0.0, |all, &i| all * 10.0 + i as f64)
            });
            let run = |graph| {
                overdrive_ir::eval::eval(graph, std::slice::from_ref(&x), &mut Default::default())
            };
            assert_eq!(run(&graph), run(&again), "chain {seed}");
        }
    }

    #[test]
    fn what_splits_unevenly_is_no_movement() {
        let b = Builder::new("uneven");
        let x = b.input("x", TensorType::new(DType::F32, [4usize, 6]));
        b.output("y", x.transpose(&[1, 0]).reshape([8usize, 3]));
        let graph = b.finish().expect("well typed");
        let y = graph.outputs()[0].value;
        assert_eq!(trace(&graph, y).map(|moved| moved.source), Some(y));
    }
}
