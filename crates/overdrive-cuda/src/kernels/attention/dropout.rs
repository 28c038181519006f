//! Dropout of weights as CUDA C++: what the kernels know of it when they are compiled.

use overdrive_ir::ops::Attention;
use overdrive_ir::plan::View;

/// The dropout definitions of `attention` over rows of `keys` keys; empty if nothing is dropped.
/// `rest` is all operands after those that every call has.
pub(super) fn print(attention: &Attention, rest: &[View], keys: usize) -> String {
    let (Some(dropout), (Some(seed), _)) = (attention.dropout, attention.seed_and_captures(rest))
    else {
        return String::new();
    };
    format!(
        "#define DROPS\nconstexpr u64 SITE = {:#x}ull;\nconstexpr u32 REACH = {:#x}u;\nconstexpr \
         f64 STAYS = {:?};\nconstexpr i64 SEED_AT = {};\nconstexpr bool EVEN = {}, FOURS = {};\n{}",
        dropout.site,
        dropout.threshold(),
        1.0 / (1.0 - dropout.rate),
        seed.offset,
        keys.is_multiple_of(2),
        keys.is_multiple_of(4),
        include_str!("dropout.cuh"),
    )
}
