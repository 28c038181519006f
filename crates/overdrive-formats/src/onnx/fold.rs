//! Shape arithmetic: a node whose operands are all known and few is computed while reading.
//!
//! The importer builds the node into a graph of its own, and the op's definition evaluates it. So
//! folding can never differ from the node.

use super::call::Call;
use super::fault::Fault;
use super::importer::Importer;
use super::item::{Item, ItemValue};
use overdrive_ir::{Builder, Graph, eval};

/// Values of more elements are left to the back end, as the `fold` pass leaves them.
const LIMIT: usize = 1024;

/// Which known values are folded.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Folding {
    /// All that is small.
    #[default]
    Small,
    /// Only known numbers and lists. Tensors of two dimensions stay in the graph, since at larger
    /// sizes they are not small. So a model that is read at several sizes gives the same graph.
    Lists,
}

/// Nodes of more operations are left to it, too: a window over little may be much work.
const WORK: u64 = 1 << 20;

/// The results, if everything about them is known and small.
pub(super) fn fold<'b>(
    import: Importer,
    call: &Call<'_, 'b>,
    folding: Folding,
) -> Result<Option<Vec<ItemValue<'b>>>, Fault> {
    let small = |item: &Item<'b>| item.tensor().is_some_and(|t| t.ty().elements() <= LIMIT);
    if !call.operands.iter().flatten().all(small) {
        return Ok(None);
    }
    let b = Builder::new("fold");
    let operands = call.operands.iter().map(|item| {
        let tensor = item.as_ref()?.tensor()?;
        Some(Item::known(tensor.clone()))
    });
    let scratch = Call::new(&b, call.node, call.opset, operands.collect(), call.storage);
    let outcome = import(&scratch);
    call.accept(&scratch);
    let mut results = Vec::new();
    match outcome {
        Ok(values) => {
            for (i, value) in values.iter().enumerate() {
                results.push(match value {
                    ItemValue::Known(known) => Some(ItemValue::Known(known.clone())),
                    ItemValue::Unsigned4(known) => Some(ItemValue::Unsigned4(known.clone())),
                    // Codes stay codes, however few: products look for them.
                    ItemValue::Coded(_) => return Ok(None),
                    ItemValue::Computed(expr) => {
                        b.output(&i.to_string(), *expr);
                        None
                    }
                });
            }
        }
        Err(Fault::Built) => {}
        Err(fault) => return Err(fault),
    }
    drop(scratch);
    let graph = b.finish()?;
    let lists = || graph.outputs().iter().all(|port| graph.ty(port.value).rank() <= 1);
    if !is_small(&graph) || (folding == Folding::Lists && !lists()) {
        return Ok(None);
    }
    let mut computed = eval::eval(&graph, &[], &mut Default::default()).into_iter();
    let next = |known: Option<ItemValue<'b>>| {
        known.unwrap_or_else(|| computed.next().expect("one output each").to_tensor().into())
    };
    Ok(Some(results.into_iter().map(next).collect()))
}

fn is_small(graph: &Graph) -> bool {
    let few = |v| graph.ty(v).is_addressable() && graph.ty(v).elements() <= LIMIT;
    graph.values().all(few) && graph.cost().flops <= WORK
}
