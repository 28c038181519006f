//! FLOPs and compulsory bytes of primitives.

use crate::{Cost, Graph, Prim, TensorType};

pub(crate) fn cost(
    prim: &Prim,
    operands: &[TensorType],
    regions: &[Graph],
    results: &[TensorType],
) -> Cost {
    let elements = |t: &TensorType| t.elements() as u64;
    let bytes = operands.iter().chain(results).map(|t| t.bytes() as u64).sum();
    let flops = match prim {
        Prim::Unary { .. } | Prim::Binary { .. } | Prim::Compare { .. } | Prim::Select => {
            elements(&results[0])
        }
        Prim::Reduce { .. } | Prim::AllReduce { .. } | Prim::ReduceScatter { .. } => {
            elements(&operands[0])
        }
        Prim::ReduceWindow { windows, .. } => {
            windows.iter().fold(elements(&results[0]), |n, w| n.saturating_mul(w.size as u64))
        }
        Prim::DotGeneral(dot) => {
            let k: u64 = dot.contract.iter().map(|&(i, _)| operands[0].sizes()[i] as u64).product();
            elements(&results[0]).saturating_mul(2).saturating_mul(k)
        }
        Prim::Convolution(conv) => {
            let kernel = &operands[1];
            let taps = elements(kernel) / (kernel.sizes()[0] as u64).max(1);
            // Zeros between the elements of the input (the gradient of a stride) are no work.
            let spread =
                conv.window.iter().fold(1u64, |n, w| n.saturating_mul(w.input_dilation as u64));
            elements(&results[0]).saturating_mul(2).saturating_mul(taps) / spread.max(1)
        }
        Prim::Scatter { reducer: Some(_), .. } => elements(&operands[2]),
        Prim::If => regions.iter().map(|r| r.cost().flops).max().unwrap_or(0),
        Prim::While { max_trips, .. } => {
            let trip = regions.iter().fold(0, |sum: u64, r| sum.saturating_add(r.cost().flops));
            trip.saturating_mul(max_trips.unwrap_or(1) as u64)
        }
        _ => 0,
    };
    Cost { flops, bytes }
}
