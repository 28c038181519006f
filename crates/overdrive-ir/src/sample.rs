//! `Sample`: a case that an op offers to the op harness.
//!
//! Data alone: how it is filled, bound and judged is the harness's business.

use crate::{DType, Graph, Operation, TensorType};

/// How the harness fills an operand.
#[derive(Clone, PartialEq, Debug)]
pub enum Fill {
    /// Standard normal.
    Normal,
    /// Uniform in a range.
    Uniform(f64, f64),
    /// Integers in `0..n`.
    Index(usize),
    /// Exactly these, repeated to fill.
    Values(Vec<f64>),
}

/// One operand of a sample. A float operand is written as f32, which stands for each float type
/// under test. Dimensions may be named, and the harness binds them to several sizes.
#[derive(Clone, PartialEq, Debug)]
pub struct Operand {
    /// Its type.
    pub ty: TensorType,
    /// Its values.
    pub fill: Fill,
}

/// A case for the op harness.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    /// Op with attributes.
    pub op: Operation,
    /// Operands, captures last.
    pub operands: Vec<Operand>,
    /// Regions.
    pub regions: Vec<Graph>,
}

impl Sample {
    /// A case without operands.
    pub fn new(op: impl Into<Operation>) -> Self {
        Self { op: op.into(), operands: vec![], regions: vec![] }
    }

    /// Adds a standard-normal float operand.
    pub fn normal(self, shape: impl Into<crate::Shape>) -> Self {
        self.operand(TensorType::new(DType::F32, shape), Fill::Normal)
    }

    /// Adds a float operand uniform in a range.
    pub fn uniform(self, shape: impl Into<crate::Shape>, low: f64, high: f64) -> Self {
        self.operand(TensorType::new(DType::F32, shape), Fill::Uniform(low, high))
    }

    /// Adds an operand.
    pub fn operand(mut self, ty: TensorType, fill: Fill) -> Self {
        self.operands.push(Operand { ty, fill });
        self
    }

    /// Adds a region.
    pub fn region(mut self, region: Graph) -> Self {
        self.regions.push(region);
        self
    }
}
