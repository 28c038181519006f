//! ONNX: protobuf files of graphs, opsets 7 to 26. <https://onnx.ai/onnx/repo-docs/IR.html>
//!
//! A file is walked node by node, and each op has an importer in `ops`, found by its name in a
//! table. Dimensions are bound first, so that shapes are concrete and shape arithmetic folds as it
//! is met. Ops that an exporter wrote out in primitives stay so: raising them to composites is the
//! business of the `recognise` pass. Weights are read where they lie in the mapped file. Invariant:
//! whatever the bytes say, the answer is a graph that verifies or an error that names the node.
//! Nothing panics, and no file outside the model's folder is read.

mod axes;
mod call;
mod coded;
mod export;
mod fault;
mod fold;
mod free;
mod importer;
mod item;
mod lacking;
mod model;
mod onnx_file;
mod ops;
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
#[rustfmt::skip]
mod proto;
mod rearrange;
mod tensor;
mod types;
mod walk;

pub use export::{Dialect, encode, made, write};
pub use fold::Folding;
pub use free::Free;
pub use model::{Binding, Model};
pub use onnx_file::{OnnxFile, WeightPlace};
pub use types::element_code;
