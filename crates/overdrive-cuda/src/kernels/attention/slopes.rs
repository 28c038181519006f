//! A score function with its derivatives as CUDA C++, for the gradients of q, k, v and of the
//! captured tensors that it reads.

use overdrive_ir::ops::attention::find_score;
use overdrive_ir::ops::attention_grad::Slopes;
use overdrive_ir::plan::View;
use overdrive_ir::{DType, Graph, row_major};

use super::region::{INDEX, PrintedRegion};
use crate::launch::Refusal;
use crate::loops::print::Spelling;

/// The derivatives of the score function; that it has them was asked before it was claimed.
pub(super) fn of(regions: &[Graph]) -> Option<Slopes> {
    find_score(regions).map(|score| Slopes::of(score).expect("the kernel takes the function"))
}

/// A score function with its slope, `scored`, behind SLOPES.
pub(super) fn print_scored(
    slopes: &Slopes,
    captures: &[View],
    dtype: DType,
) -> Result<String, Refusal> {
    let printed = PrintedRegion::new(&slopes.region, captures, dtype)?;
    let outputs = &printed.region.outputs;
    Ok(format!(
        "#define SLOPES\nstruct Scored {{ Sum score, slope; }};\n__device__ __forceinline__ Scored \
         scored(Sum sum, {INDEX}) {{\n{}return {{t{}, t{}}};\n}}\n",
        printed.body(),
        outputs[0][0].0,
        outputs[1][0].0
    ))
}

/// The terms that reads of captures add to their gradients: `slopes` gives the score, and of each
/// read its slope and place. `bases` has where the sums of a capture begin, for those whose
/// gradient is wanted.
pub(super) fn print_reads(
    slopes: &Slopes,
    (captures, bases): (&[View], &[Option<usize>]),
    dtype: DType,
) -> Result<String, Refusal> {
    let printed = PrintedRegion::new(&slopes.region, captures, dtype)?;
    let outputs = &printed.region.outputs;
    let wanted: Vec<usize> = (0..captures.len()).filter(|&i| bases[i].is_some()).collect();
    let varies = printed.varies();
    let (mut text, mut of, mut shared) = (String::new(), Vec::new(), Vec::new());
    for (&capture, found) in slopes.reads.iter().zip(outputs[2..].chunks_exact(2)) {
        let Some(base) = bases[capture] else { continue };
        let (read, index, sizes) = (of.len(), &found[1], captures[capture].ty.sizes());
        let mut place = format!("{base}");
        for ((register, extent), stride) in index.iter().zip(&sizes).zip(row_major(&sizes)) {
            let name = printed.name(*register);
            place += &format!(" + (i64)clamped({name}, {}) * {stride}", *extent as i64 - 1);
        }
        let slope = found[0][0].0;
        text += &format!("slope[{read}] = convert<f32>(t{slope});\nplace[{read}] = {place};\n");
        of.push(wanted.iter().position(|&i| i == capture).expect("it is wanted"));
        shared.push(index.iter().all(|register| !varies[register.0 as usize]));
    }
    if of.is_empty() {
        // An array has a first element: a read that adds nothing.
        text += "slope[0] = 0.0f;\nplace[0] = 0;\n";
        (of, shared) = (vec![0], vec![true]);
    }
    let list = |items: Vec<String>| items.join(", ");
    Ok(format!(
        "constexpr int READS = {}, CAPTURED_TENSORS = {};
__device__ __forceinline__ constexpr int capture_of(int read) {{
    constexpr int of[] = {{{}}};
    return of[read];
}}
__device__ __forceinline__ constexpr bool is_shared(int read) {{
    constexpr bool is[] = {{{}}};
    return is[read];
}}
__device__ __forceinline__ Sum slopes(f32 (&slope)[READS], i64 (&place)[READS], Sum sum, {INDEX}) {{
{}{text}return t{};
}}
",
        of.len(),
        wanted.len(),
        list(of.iter().map(ToString::to_string).collect()),
        list(shared.iter().map(ToString::to_string).collect()),
        printed.body(),
        outputs[0][0].0
    ))
}
