//! `Classes`: dimensions of values that are the same dimension, joined as nodes relate them.
//!
//! A class keeps its mark when it is joined to another. Each user says what a mark means.

use overdrive_ir::Value;
use std::collections::HashMap;

/// A dimension of a value.
pub(crate) type Dimension = (Value, usize);

/// Disjoint sets of dimensions.
#[derive(Default)]
pub(crate) struct Classes {
    index: HashMap<Dimension, usize>,
    parent: Vec<usize>,
    /// Whether the class is marked, by its number.
    pub(crate) marked: Vec<bool>,
}

impl Classes {
    /// The class of a dimension; a new one if it has not been seen.
    pub(crate) fn of(&mut self, dim: Dimension) -> usize {
        let next = self.parent.len();
        let class = *self.index.entry(dim).or_insert(next);
        if class == next {
            self.parent.push(next);
            self.marked.push(false);
        }
        self.root(class)
    }

    /// Halves the path, so that chains stay short however long the graph.
    fn root(&mut self, mut class: usize) -> usize {
        while self.parent[class] != class {
            self.parent[class] = self.parent[self.parent[class]];
            class = self.parent[class];
        }
        class
    }

    /// Joins two classes, and returns the class of both.
    pub(crate) fn join(&mut self, a: usize, b: usize) -> usize {
        let (a, b) = (self.root(a), self.root(b));
        self.parent[b] = a;
        self.marked[a] |= self.marked[b];
        a
    }

    /// Joins the classes of all these dimensions.
    pub(crate) fn tie(&mut self, dims: &[Dimension]) {
        let classes: Vec<usize> = dims.iter().map(|&dim| self.of(dim)).collect();
        classes.windows(2).for_each(|pair| {
            self.join(pair[0], pair[1]);
        });
    }
}
