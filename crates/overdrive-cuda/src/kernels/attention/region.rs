//! Score and mask functions as CUDA C++, by the one printer of scalar expressions.

use overdrive_ir::plan::{Access, Register, View};
use overdrive_ir::{DType, Graph};
use overdrive_passes::{At, Read, Region};

use crate::launch::Refusal;
use crate::loops::print::{Spelling, body};

/// A region and what it reads.
struct Printed<'a> {
    region: Region,
    captures: &'a [View],
}

impl Spelling for Printed<'_> {
    fn load(&self, register: Register, _: &Access) -> String {
        let Read { capture, index } = &self.region.reads[&register];
        let view = &self.captures[*capture];
        let mut at = format!("{}", view.offset);
        for ((index, &stride), extent) in index.iter().zip(&view.strides).zip(view.ty.sizes()) {
            at += &match index {
                At::Fixed(i) => format!(" + {}", *i as i64 * stride),
                // Indices are mostly i32, whose range is tested in half the instructions.
                At::Computed(register) => {
                    format!(
                        " + (i64)clamped({}, {}) * {stride}",
                        self.name(*register),
                        extent as i64 - 1
                    )
                }
            };
        }
        format!("c{capture}[{at}]")
    }

    fn index(&self, dimension: usize) -> String {
        ["b", "h", "q", "k"][dimension].to_owned()
    }

    fn point(&self) -> String {
        unreachable!("score and mask functions draw no random bits")
    }

    fn accumulator(&self) -> String {
        "sum".to_owned()
    }
}

/// The functions of the regions as text, each behind its macro, and the parameters of the captures.
pub(super) fn print(regions: &[Graph], captures: &[View]) -> Result<String, Refusal> {
    let parameter =
        |(i, view): (usize, &View)| format!(", const {}* __restrict__ c{i}", view.ty.dtype);
    let parameters: String = captures.iter().enumerate().map(parameter).collect();
    let names: String = (0..captures.len()).map(|i| format!(", c{i}")).collect();
    let mut text = format!("#define CAPTURES {parameters}\n#define CAPTURED {names}\n");
    for region in regions {
        let output = region.ty(region.outputs()[0].value).dtype;
        let is_mask = output == DType::Bool;
        let region = Region::new(region, captures).map_err(Refusal::Unsupported)?;
        let printed = Printed { region, captures };
        let (guard, name, sum) =
            if is_mask { ("MASK", "visible", "") } else { ("SCORE", "score", "Sum sum, ") };
        text += &format!(
            "#define {guard}\n__device__ __forceinline__ {output} {name}({sum}i32 b, i32 h, i32 \
             q, i32 k CAPTURES) {{\n"
        );
        text += &body(&printed.region.program, &printed);
        text += &format!("return t{};\n}}\n", printed.region.outputs[0][0].0);
    }
    Ok(text)
}
