//! The heart of Overdrive: what a model is, what each op means, and what a back end promises.
//!
//! A model is a [`Graph`]; every optimisation is a function from graph to graph; a back end turns
//! the last one into an [`Executable`]. This crate holds the types, the ops with their f64
//! semantics, the verifier, printer, parser and the reference evaluator. Invariant: it touches no
//! files, clocks, threads, environment or devices.

pub mod backend;
mod backend_error;
mod block_format;
mod blocks;
mod codes;
mod communicator;
mod dtype;
pub mod eval;
mod fabric;
mod float_format;
mod gradients;
mod graph;
mod mesh;
mod mode;
mod op;
pub mod ops;
pub mod plan;
mod prim;
mod prims;
mod sample;
mod shape;
mod target;
mod tensor;
pub mod text;
mod tuning;
mod verify;
mod window_dimension;

pub use backend::{Arguments, Backend, Buffer, Executable, Session, State};
pub use backend_error::{BackendError, RankError};
pub use block_format::{BlockFormat, BlockIndex, Encoded, Granularity, Grid, Symmetry};
pub use codes::{Codes, Placement};
pub use communicator::{Communicator, Exchange, agree, agree_on, check_mesh, have_one_order};
pub use dtype::{DType, UnknownDType};
pub use eval::Array;
pub use fabric::{BadFabric, Cluster, Fabric, Link};
pub use float_format::{FloatFormat, Overflow, Specials};
pub use gradients::gradients;
pub use graph::{
    Builder, Expr, Graph, GraphError, Init, Mark, Node, NodeId, Origin, Port, Replace, Scope,
    StateDecl, Value,
};
pub use mesh::{Axis, BadMesh, Mesh, Sharding};
pub use mode::Mode;
pub use op::{Cost, Gradient, Mismatch, Op, OpRef, Operation, Types};
pub use plan::{Plan, SlotId};
pub use prim::{
    Binary, Channel, Compare, Convolution, DotGeneral, Pad, Precision, Prim, Reducer, SortOrder,
    Unary, Window,
};
pub use sample::{Fill, Operand, Sample};
pub use shape::{Dim, Shape, TensorType, row_major};
pub use target::{
    Call, Decline, Described, Description, Kernel, MemorySpace, Peaks, Target, WithoutKernels,
};
pub use tensor::{Tensor, WrongLength};
pub use tuning::{Choice, Tuning};
pub use verify::verify;
