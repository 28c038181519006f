//! Attention whose sequence is split among all GPUs of this host, up to four: round a ring, by
//! heads (Ulysses), and both. So are its gradients, with functions and both masks. The bits repeat.
//!
//! A program of its own: GPUs wait for one another, and other tests would hold one of them up.

#![allow(clippy::unwrap_used)] // A test may unwrap, its helpers too.

#[path = "all/support/mod.rs"]
#[allow(dead_code, unused_imports)] // A part is enough here.
mod support;

use overdrive_cuda::CudaBackend;
use overdrive_ir::eval::{States, eval};
use overdrive_ir::ops::Attention;
use overdrive_ir::ops::attention::{mask_region, score_region};
use overdrive_ir::{
    Array, Backend, BackendError, Builder, Communicator, Compare, DType, Graph, Mesh, Mode,
    Sharding, State, Tensor, TensorType, Tuning, Value,
};
use overdrive_passes::{ContextExchange, Sharded, differentiate, shard_with};
use overdrive_ranks::run;
use std::sync::Arc;
use std::time::Duration;
use support::gpu::ranks;
use testkit::{Tolerance, compare, random_inputs};

const PATIENCE: Duration = Duration::from_secs(120);

/// B, H, Hkv, T, D. Four ranks do not divide the heads of keys, which are repeated.
const SIZES: [usize; 5] = [1, 8, 2, 256, 64];

/// Attention with the gradients of q, k and v; by a window and by distance if `refined`.
fn attention(dtype: DType, kind: Attention, refined: bool) -> Graph {
    let [batch, heads, shared, time, channels] = SIZES;
    let b = Builder::new("attention");
    let input = |name: &str, heads: usize| {
        b.input(name, TensorType::new(dtype, [batch, heads, time, channels]))
    };
    let (q, k, v) = (input("q", heads), input("k", shared), input("v", shared));
    let regions = match refined {
        false => vec![],
        true => vec![
            score_region(DType::F32, &[], |score, [_, h, q, k], _| {
                score - (q - k).convert(DType::F32) / (h + h.constant(8.0)).convert(DType::F32)
            })
            .unwrap(),
            mask_region(&[], |[_, _, q, k], _| (q - k).compare(Compare::Lt, q.constant(150.0)))
                .unwrap(),
        ],
    };
    b.output("out", q.attention_with([k, v], kind, regions, &[])[0]);
    let graph = b.finish().unwrap();
    let wrt: Vec<Value> = graph.inputs().iter().map(|port| port.value).collect();
    differentiate(&graph, &[graph.outputs()[0].value], &wrt).unwrap()
}

type Outputs = Result<Vec<Tensor>, BackendError>;

/// Three calls as one rank; the results of the last.
fn call(rank: Arc<dyn Communicator>, graph: &Graph, inputs: &[Tensor]) -> Outputs {
    let opened = CudaBackend::new(rank.rank()).map_err(|error| error.during("opening the GPU"))?;
    let backend = opened.on(rank);
    let mut session = backend.compile(graph, Mode::Compile, &Tuning::default())?.session()?;
    let mut state = State::initial(graph, &backend)?;
    let inputs: Vec<_> = inputs.iter().map(|x| backend.upload(x)).collect::<Result<_, _>>()?;
    let types = graph.outputs().iter().map(|port| graph.ty(port.value));
    let mut outputs = types.map(|ty| backend.output(ty)).collect::<Result<Vec<_>, _>>()?;
    for _ in 0..3 {
        session.run(state.with(&inputs, &mut outputs))?.wait()?;
    }
    outputs.iter().map(|x| backend.download(x)).collect()
}

/// The results of all ranks.
fn call_all(sharded: &Sharded, whole: &Graph, inputs: &[Array]) -> Vec<Vec<Tensor>> {
    let of_rank = |rank: Arc<dyn Communicator>| {
        let at = rank.rank();
        let graph = sharded.at_rank(whole, at).unwrap();
        let part = |(x, s): (&Array, &Sharding)| sharded.part(&x.to_tensor(), s, at);
        let inputs: Vec<Tensor> = inputs.iter().zip(&sharded.inputs).map(part).collect();
        call(rank, &graph, &inputs)
    };
    let found: Vec<Outputs> = run(&sharded.mesh, PATIENCE, of_rank);
    found.into_iter().map(|outputs| outputs.unwrap_or_else(|e| panic!("{e}"))).collect()
}

#[test]
fn every_gpu_has_its_part_of_the_whole() {
    agrees(ContextExchange::Ring);
}

#[test]
fn every_gpu_has_its_part_by_heads() {
    agrees(ContextExchange::Ulysses);
}

/// On four GPUs keys go round two pairs.
#[test]
fn every_gpu_has_its_part_in_pairs() {
    agrees(ContextExchange::Groups(2));
}

fn agrees(exchange: ContextExchange) {
    let Some(count) = ranks() else { return };
    let mesh = Mesh::new([("context", count)]);
    for dtype in [DType::BF16, DType::F32] {
        for kind in [Attention::CAUSAL, Attention::FULL] {
            for refined in [false, true] {
                let place = format!("{exchange}: {dtype} {:?}, refined {refined}", kind.mask);
                let graph = attention(dtype, kind, refined);
                let inputs = random_inputs(&graph, 3);
                let sequence = Sharding::whole(4).and_split(2, &"context".into());
                let ports = graph.inputs().iter().map(|port| (port.value, sequence.clone()));
                let sharded = shard_with(&graph, &mesh, &ports.collect(), Some(exchange)).unwrap();
                let found = call_all(&sharded, &graph, &inputs);
                assert!(found == call_all(&sharded, &graph, &inputs), "{place}: bits repeat");
                let expected = eval(&graph, &inputs, &mut States::new());
                for (i, port) in graph.outputs().iter().enumerate() {
                    let parts: Vec<Tensor> = found.iter().map(|rank| rank[i].clone()).collect();
                    let joined = Array::from(&sharded.join(&parts, &sharded.outputs[i]));
                    let largest =
                        expected[i].to_f64().into_iter().fold(0.0, |a: f64, x| a.max(x.abs()));
                    let tolerance = Tolerance::new(dtype, SIZES[3], largest);
                    compare(&expected[i], &joined, tolerance)
                        .unwrap_or_else(|e| panic!("{place}, `{}`: {e}", port.name));
                }
            }
        }
    }
}
