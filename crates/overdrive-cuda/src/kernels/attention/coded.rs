//! `quantized_attention`: `decode.cu` and `decode_long.cu` over keys and values that are codes, as
//! a cache of 8 bits has them.

use cudarc::driver::LaunchConfig;
use overdrive_ir::ops::QuantizedAttention;
use overdrive_ir::plan::{KernelCall, View};
use overdrive_ir::{DType, Decline, Graph, OpRef, Operation, TensorType};

use super::call::{DECODE, of_numbers, specialised};
use super::compiled::CompiledAttention;
use super::cut::Cut;
use super::decode_long::LongCut;
use super::region;
use super::shape::AttentionShape;
use crate::compiler::{Architecture, KernelSource};
use crate::entry::Entry;
use crate::kernels::line::{Compile, Launched, NamedKernel, PrintedCall, Sources};
use crate::launch::{Refusal, Site};

/// `quantized_attention` with its score and mask functions.
pub(crate) const KERNEL: NamedKernel = NamedKernel {
    declines_regions: |_| None,
    declines,
    needs: |call, op, regions, machine| {
        let (_, design) = source(call, (attention_of(op), regions), machine.architecture)?;
        Ok(match design {
            Design::Long(cut) => cut.scratch_bytes(),
            Design::Decode(_) => 0,
        })
    },
    ..NamedKernel::new("quantized_attention", Compile::Composite(compile), Sources::Of(sources_of))
};

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
        let long = LongCut::of_codes(call, architecture).map(Self::Long);
        long.or_else(|| Cut::of_codes(call, architecture).map(Self::Decode))
    }
}

/// The op of a call, which the table found by name.
fn attention_of(op: &OpRef) -> &QuantizedAttention {
    op.downcast().expect("the table is by name")
}

fn declines(_: &Operation, operands: &[TensorType]) -> Option<Decline> {
    let [q, k, v, ..] = operands else { return None };
    let (q_sizes, k_sizes, v_sizes) = (q.sizes(), k.sizes(), v.sizes());
    let reason = if q.dtype == DType::F64 {
        "queries of f64".to_owned()
    } else if k_sizes[3] != v_sizes[3] || k_sizes[3] > Cut::CHANNELS || k_sizes[3] == 0 {
        format!("heads of {} and {} channels", k_sizes[3], v_sizes[3])
    } else if k_sizes[2] == 0 || q_sizes[..3].contains(&0) {
        "calls without keys or queries".to_owned()
    } else {
        return None;
    };
    let takes = format!("one width of k and v, of at most {} channels", Cut::CHANNELS);
    Some(Decline::Because(format!("its kernel does not take {reason}; it takes {takes}")))
}

/// The kernel of a call, specialised, and how it is cut.
fn source(
    call: &KernelCall,
    (op, regions): (&QuantizedAttention, &[Graph]),
    architecture: Architecture,
) -> Result<(KernelSource, Design), Refusal> {
    let design = Design::of(call, architecture).ok_or_else(|| {
        Refusal::Unsupported("codes whose channels lie apart have no kernel".to_owned())
    })?;
    let strides = |name: &str, scale: &View| {
        let [b, h, t] = [0, 1, 2].map(|d| scale.strides[d]);
        format!("constexpr i64 {name}_B = {b}, {name}_H = {h}, {name}_T = {t};\n")
    };
    let [codes, k_scale, v_scale] = [1, 3, 4].map(|i| &call.operands[i]);
    let definitions = format!("#define CODES {}\n", codes.ty.dtype)
        + &strides("K_SCALE", k_scale)
        + &strides("V_SCALE", v_scale);
    let text = match design {
        Design::Decode(cut) => cut.text() + &definitions + DECODE,
        Design::Long(cut) => cut.text(&definitions),
    };
    let rest = &call.operands[QuantizedAttention::OPERANDS..];
    let functions = region::print(regions, (&op.attention, rest), call.operands[0].ty.dtype)?;
    Ok((
        specialised("quantized_attention", of_numbers(call), (&op.attention, functions), &text),
        design,
    ))
}

/// The sources of the kernels that a call is compiled to, with their architectures.
fn sources_of(call: &KernelCall, op: &OpRef, regions: &[Graph]) -> PrintedCall {
    let of = |architecture| {
        source(call, (attention_of(op), regions), architecture).map(|(source, _)| source)
    };
    let (portable, own) = (of(Architecture::Sm80)?, of(Architecture::Sm90a)?);
    Ok(match portable == own {
        true => vec![(portable, &Architecture::DECLARED)],
        false => vec![(portable, &Architecture::DECLARED), (own, &[Architecture::Sm90a])],
    })
}

fn compile(site: &Site<'_>, call: &KernelCall, op: &OpRef, regions: &[Graph]) -> Launched {
    let op = attention_of(op);
    let (source, design) = source(call, (op, regions), site.device.architecture())?;
    let (q, k) = (call.operands[0].ty.sizes(), call.operands[1].ty.sizes());
    let own = QuantizedAttention::OPERANDS;
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
    let shape = AttentionShape::of(call, op.attention.factor(q[3]));
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
