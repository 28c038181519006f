//! `quantized_attention` and `paged_attention`: `decode.cu` and `decode_long.cu` over keys and
//! values as a decoder keeps them. They are codes, or lie in pages of a pool, or both.

use cudarc::driver::LaunchConfig;
use overdrive_ir::ops::{Attention, PagedAttention, QuantizedAttention};
use overdrive_ir::plan::{KernelCall, View};
use overdrive_ir::{DType, Decline, Graph, OpRef, Operation, TensorType};

use super::call::{DECODE, of_numbers, specialised};
use super::compiled::CompiledAttention;
use super::cut::{Cut, PAGES};
use super::decode_long::LongCut;
use super::region;
use super::shape::AttentionShape;
use crate::compiler::{Architecture, KernelSource};
use crate::entry::Entry;
use crate::kernels::line::{Compile, Launched, NamedKernel, PrintedCall, Sources};
use crate::launch::{Refusal, Site};

/// `quantized_attention` with its score and mask functions.
pub(crate) const CODED: NamedKernel = kernel("quantized_attention");

/// `paged_attention` with its score and mask functions.
pub(crate) const PAGED: NamedKernel = kernel("paged_attention");

const fn kernel(op: &'static str) -> NamedKernel {
    NamedKernel {
        declines_regions: |_| None,
        declines,
        needs: |call, op, regions, machine| {
            let (_, design) = KeptCall::of(call, op).source(regions, machine.architecture)?;
            Ok(match design {
                Design::Long(cut) => cut.scratch_bytes(),
                Design::Decode(_) => 0,
            })
        },
        ..NamedKernel::new(op, Compile::Composite(compile), Sources::Of(sources_of))
    }
}

/// A kernel with its cut.
#[derive(Clone, Copy, Debug)]
enum Design {
    /// `decode.cu`.
    Decode(Cut),
    /// `decode_long.cu`.
    Long(LongCut),
}

impl Design {
    fn of(call: &KernelCall, architecture: Architecture) -> Option<Self> {
        let long = LongCut::of_rows(call, architecture).map(Self::Long);
        long.or_else(|| Cut::of_rows(call, architecture).map(Self::Decode))
    }

    /// The text of the kernel, with the definitions of its rows.
    fn text(self, rows: &str) -> String {
        match self {
            Self::Decode(cut) => cut.text() + rows + PAGES + DECODE,
            Self::Long(cut) => cut.text(rows),
        }
    }
}

/// A call of either op.
struct KeptCall {
    name: &'static str,
    attention: Attention,
    /// The call as if keys and values lay in order. The first stride of a pool is that of pages.
    in_order: KernelCall,
    /// Operands before the captures of `in_order`.
    own: usize,
    /// The pages that a pool has and their tokens, and the numbers of those of each sequence.
    pages: Option<([usize; 2], View)>,
}

impl KeptCall {
    fn of(call: &KernelCall, op: &OpRef) -> Self {
        let keys = &call.operands[1].ty;
        let own = if is_coded(keys) { QuantizedAttention::OPERANDS } else { 3 };
        let Some(paged) = op.downcast::<PagedAttention>() else {
            let op = op.downcast::<QuantizedAttention>().expect("the table is by name");
            let (name, attention) = ("quantized_attention", op.attention);
            return Self { name, attention, in_order: call.clone(), own, pages: None };
        };
        let pool = [0, 2].map(|axis| keys.sizes()[axis]);
        let (in_order, pages) = call.in_order();
        let (name, attention, pages) = ("paged_attention", paged.attention, Some((pool, pages)));
        Self { name, attention, in_order, own, pages }
    }

    /// The definitions of codes and of pages.
    fn rows(&self) -> String {
        let mut text = String::new();
        let operands = &self.in_order.operands;
        if is_coded(&operands[1].ty) {
            text += &format!("#define CODES {}\n", operands[1].ty.dtype);
            for (name, scale) in [("K_SCALE", 3), ("V_SCALE", 4)] {
                let [b, h, t] = [0, 1, 2].map(|d| operands[scale].strides[d]);
                text += &format!("constexpr i64 {name}_B = {b}, {name}_H = {h}, {name}_T = {t};\n");
            }
        }
        if let Some(([pool, tokens], pages)) = &self.pages {
            let [sequence, page] = [0, 1].map(|d| pages.strides[d]);
            text += &format!(
                "#define PAGE {tokens}\nconstexpr i32 POOL = {pool};\n\
                 constexpr i64 PAGES_B = {sequence}, PAGES_N = {page};\n"
            );
        }
        text
    }

    /// The kernel, specialised, and how it is cut.
    fn source(
        &self,
        regions: &[Graph],
        architecture: Architecture,
    ) -> Result<(KernelSource, Design), Refusal> {
        let call = &self.in_order;
        let design = Design::of(call, architecture).ok_or_else(|| {
            Refusal::Unsupported("rows whose channels lie apart have no kernel".to_owned())
        })?;
        let (attention, text) = (&self.attention, design.text(&self.rows()));
        let rest = &call.operands[self.own..];
        let functions = region::print(regions, (attention, rest), call.operands[0].ty.dtype)?;
        let source = specialised(self.name, of_numbers(call), (attention, functions), &text);
        Ok((source, design))
    }
}

fn is_coded(keys: &TensorType) -> bool {
    QuantizedAttention::takes(keys.dtype)
}

fn declines(_: &Operation, operands: &[TensorType]) -> Option<Decline> {
    let [q, k, v, ..] = operands else { return None };
    let [k_sizes, v_sizes] = [k, v].map(|ty| ty.sizes());
    let reason = if q.dtype == DType::F64 {
        "queries of f64".to_owned()
    } else if k_sizes[3] != v_sizes[3] || k_sizes[3] > Cut::CHANNELS {
        format!("heads of {} and {} channels", k_sizes[3], v_sizes[3])
    } else if operands.iter().any(|ty| ty.elements() == 0) {
        "calls without keys or queries".to_owned()
    } else {
        return None;
    };
    let takes = format!("one width of k and v, of at most {} channels", Cut::CHANNELS);
    Some(Decline::Because(format!("its kernel does not take {reason}; it takes {takes}")))
}

/// The sources of the kernels that a call is compiled to, with their architectures.
fn sources_of(call: &KernelCall, op: &OpRef, regions: &[Graph]) -> PrintedCall {
    let call = KeptCall::of(call, op);
    let of = |architecture| call.source(regions, architecture).map(|(source, _)| source);
    let (portable, own) = (of(Architecture::Sm80)?, of(Architecture::Sm90a)?);
    Ok(match portable == own {
        true => vec![(portable, &Architecture::DECLARED)],
        false => vec![(portable, &Architecture::DECLARED), (own, &[Architecture::Sm90a])],
    })
}

fn compile(site: &Site<'_>, call: &KernelCall, op: &OpRef, regions: &[Graph]) -> Launched {
    let kept = KeptCall::of(call, op);
    let (source, design) = kept.source(regions, site.device.architecture())?;
    let [q, k] = [0, 1].map(|i| kept.in_order.operands[i].ty.sizes());
    let blocks = match design {
        Design::Decode(cut) => q[0] * k[1] * cut.blocks(),
        Design::Long(cut) => cut.blocks(),
    };
    let (Ok(blocks), true) = (i32::try_from(blocks), k[2] <= 1 << 30) else {
        let found = format!("{} heads of {} keys", q[0] * q[1], k[2]);
        return Err(Refusal::Unsupported(format!(
            "{found} are more than one launch takes; split the batch"
        )));
    };
    let shape = AttentionShape::of(&kept.in_order, kept.attention.factor(q[3]));
    // Numbers of pages are a parameter behind the rows.
    let own = kept.own + usize::from(kept.pages.is_some());
    Ok(Box::new(match design {
        Design::Long(cut) => CompiledAttention::long(site, (call, own), (&source, cut), shape)?,
        Design::Decode(cut) => {
            let config = LaunchConfig {
                grid_dim: (blocks as u32, 1, 1),
                block_dim: (cut.threads(), 1, 1),
                shared_mem_bytes: 0,
            };
            let entry = Entry::new(site.device, (&source, "attention"), config)?;
            CompiledAttention::new(call, own, (entry, blocks == 0, shape))
        }
    }))
}
