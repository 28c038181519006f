//! Random parameters of a session, drawn once.
//!
//! Every configuration of a workload, its reference and every peer start from the same values. Each
//! drew them anew, which for sixty million of them took longer than all that was measured.
//! Invariant: values are those of `Init::tensor`.

use crate::Workload;
use overdrive_ir::{Graph, Init, Tensor, TensorType};
use overdrive_passes::draw;
use std::cell::RefCell;

/// The share of the host's memory that drawn parameters may take: they stay there beside the copies
/// that devices have.
const HOST_SHARE: u64 = 4;

/// The values that were drawn so far: a state's name, its type and how it was described, with its
/// value.
pub(crate) struct Drawn {
    values: RefCell<Vec<(String, TensorType, Init, Tensor)>>,
    /// A graph whose parameters take more is left as it is.
    most_bytes: u64,
}

impl Drawn {
    /// Nothing yet, on a host with so much memory.
    pub(crate) fn on(host_bytes: u64) -> Self {
        Self { values: RefCell::default(), most_bytes: host_bytes / HOST_SHARE }
    }

    /// The workload with values in place of descriptions.
    pub(crate) fn workload(&self, workload: &Workload) -> Workload {
        workload.with_graphs(|graph| self.graph(graph))
    }

    /// The graph with values in place of descriptions.
    pub(crate) fn graph(&self, graph: &Graph) -> Graph {
        let bytes: usize = graph.states().iter().map(|state| graph.ty(state.value).bytes()).sum();
        if bytes as u64 > self.most_bytes {
            return graph.clone();
        }
        let mut states = graph.states().iter();
        graph.clone().with_initial_values(|name, ty| {
            let init = &states.next().expect("asked once for each state, in their order").init;
            match init {
                Init::Normal { .. } => Init::Value(self.value((name, ty), init)),
                _ => init.clone(),
            }
        })
    }

    fn value(&self, (name, ty): (&str, &TensorType), init: &Init) -> Tensor {
        let known =
            |(n, t, i, _): &&(String, TensorType, Init, Tensor)| n == name && t == ty && i == init;
        if let Some((.., tensor)) = self.values.borrow().iter().find(known) {
            return tensor.clone();
        }
        let tensor = draw(init, name, ty);
        self.values.borrow_mut().push((name.to_owned(), ty.clone(), init.clone(), tensor.clone()));
        tensor
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overdrive_ir::{Builder, DType};

    #[test]
    fn values_are_those_described_and_shared_by_all_that_describe_them_alike() {
        let graph = |scale| {
            let b = Builder::new("two");
            let x = b.input("x", TensorType::new(DType::F32, [3]));
            let large = TensorType::new(DType::F32, [(1 << 20) + 3]);
            let w = b.state("w", large, Init::Normal { std: 0.5, seed: 7 }).sum(&[0]);
            let half = b.state(
                "h",
                TensorType::new(DType::BF16, [3]),
                Init::Normal { std: scale, seed: 7 },
            );
            let zeros = b.state("z", TensorType::new(DType::F32, [3]), Init::ZEROS);
            b.output("sum", w);
            b.output("y", x + half.convert(DType::F32) + zeros);
            b.finish().expect("it is well-formed")
        };
        let drawn = Drawn::on(1 << 30);
        let [first, second, other] =
            [1.0, 1.0, 2.0].map(|scale| (graph(scale), drawn.graph(&graph(scale))));
        for (described, valued) in [&first, &second, &other] {
            for (a, b) in described.states().iter().zip(valued.states()) {
                let ty = described.ty(a.value);
                assert_eq!(a.init.tensor(&a.name, ty), b.init.tensor(&b.name, ty), "{}", a.name);
            }
        }
        let bytes = |graph: &Graph, state: usize| match &graph.states()[state].init {
            Init::Value(tensor) => tensor.bytes().as_ptr(),
            other => panic!("no value: {other:?}"),
        };
        assert_eq!(bytes(&first.1, 0), bytes(&second.1, 0));
        assert_eq!(bytes(&first.1, 0), bytes(&other.1, 0));
        assert_ne!(bytes(&first.1, 1), bytes(&other.1, 1));
        assert_eq!(first.1.states()[2].init, Init::ZEROS);
    }
}
