//! One collective of a message of some bytes: what parallel training rests on.
//!
//! Messages are whole numbers in f32, whose sums are exact in any order. A message is a matrix with
//! rows of 512 bytes, of which each output keeps the order, so that some rows stand for all. A
//! ring has the rows at both ends as its output. So the collective writes memory of the plan, as in
//! a model, where copies between devices may write.

use super::joint::{Joint, Judge, Split, of_graph};
use overdrive_bench::case::Workload;
use overdrive_bench::failure::Failure;
use overdrive_ir::{Builder, Channel, DType, Graph, Mesh, Prim, Reducer, Tensor, TensorType};
use serde_json::{Value, json};

/// The axis of all ranks.
const AXIS: &str = "all";
/// Numbers in a row: 512 bytes, so that eight ranks have a row each of 4 KiB.
const COLUMNS: usize = 128;
/// Numbers after which a message repeats: a prime, so that its rows differ.
const PERIOD: usize = 4099;

/// Collective that the ranks run, each with a message of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CollectiveKind {
    AllReduce,
    AllGather,
    /// Each rank sends to the next one, the last to the first.
    Ring,
}

impl CollectiveKind {
    pub(super) const ALL: [Self; 3] = [Self::AllReduce, Self::AllGather, Self::Ring];

    /// Its name in results and in the program of PyTorch.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::AllGather => "all_gather",
            Self::Ring => "ring send and receive",
        }
    }

    /// Bytes that each rank has to send and receive at least, of a message of `bytes`.
    pub(super) fn wire_bytes(self, bytes: u64, ranks: u64) -> u64 {
        match self {
            Self::AllReduce => 2 * (ranks - 1) * bytes / ranks,
            Self::AllGather => (ranks - 1) * bytes / ranks,
            Self::Ring => bytes,
        }
    }

    fn prim(self, channel: Channel) -> Prim {
        let ranks = channel.group.ranks();
        match self {
            Self::AllReduce => Prim::AllReduce { reducer: Reducer::Sum, channel },
            Self::AllGather => Prim::AllGather { axis: 0, channel },
            Self::Ring => {
                let pairs = (0..ranks).map(|rank| (rank, (rank + 1) % ranks)).collect();
                Prim::Permute { pairs, channel }
            }
        }
    }
}

/// A collective of a message of so many bytes; of `all_gather`, the joined one.
pub(super) struct Collective {
    pub(super) kind: CollectiveKind,
    pub(super) bytes: u64,
}

impl Collective {
    /// The graph of each rank for so many rows of its message.
    fn graph(&self, rows: usize, ranks: usize) -> Result<Graph, Failure> {
        let b = Builder::new(self.kind.name());
        let x = b.input("x", TensorType::new(DType::F32, [rows, COLUMNS]));
        let channel = Channel { id: b.channel(), group: Mesh::new([(AXIS, ranks)]) };
        let y = b.op1(self.kind.prim(channel), &[x]);
        b.output(
            "y",
            match self.kind {
                CollectiveKind::Ring => {
                    let ends = [0, rows - 1].map(|row| y.slice_axis(0, row, row + 1));
                    b.concat(&ends, 0)
                }
                _ => y,
            },
        );
        b.finish().map_err(of_graph)
    }
}

impl Joint for Collective {
    fn workload(&self, ranks: usize) -> Workload {
        Workload::new(self.kind.name(), [("bytes", self.bytes), ("ranks", ranks as u64)])
    }

    fn dtype(&self) -> DType {
        DType::F32
    }

    fn has_one(&self) -> bool {
        false
    }

    fn wire_bytes(&self, ranks: usize) -> Option<u64> {
        Some(self.kind.wire_bytes(self.bytes, ranks as u64))
    }

    fn axis(&self) -> &'static str {
        AXIS
    }

    fn split(&self, ranks: usize) -> Result<Split, Failure> {
        let parts = if self.kind == CollectiveKind::AllGather { ranks } else { 1 };
        let rows = (self.bytes as usize / 4 / COLUMNS / parts).max(1);
        Ok(Split { whole: self.graph(rows, ranks)?, sharded: None, inputs: messages })
    }

    fn judge(&self, ranks: usize) -> Result<Judge, Failure> {
        let blocks = if self.kind == CollectiveKind::AllGather { ranks } else { 1 };
        Ok(Judge::Rows { graph: self.graph(2, ranks)?, blocks })
    }

    fn peers(&self) -> Vec<(&'static str, Value)> {
        vec![(self.kind.name(), json!({ "bytes": self.bytes }))]
    }
}

/// Small whole numbers, others on each rank.
fn messages(graph: &Graph, rank: usize) -> Vec<Tensor> {
    let of = |ty: &TensorType| {
        let count = ty.elements();
        let number = |at: usize| ((at * (rank + 3) + rank) % 7) as f32;
        let period: Vec<u8> = (0..PERIOD).flat_map(|at| number(at).to_ne_bytes()).collect();
        let bytes: Vec<u8> = period.iter().copied().cycle().take(4 * count).collect();
        Tensor::from_bytes(ty.clone(), bytes).expect("four bytes for each number")
    };
    graph.inputs().iter().map(|port| of(graph.ty(port.value))).collect()
}
