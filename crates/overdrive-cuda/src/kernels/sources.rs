//! Specialisations that stand for all others of a kernel, for compilation where there is no GPU.

use super::source::source;
use super::{dynamic_slice, gather, reduce_window, scatter, sort, transfer};
use crate::compiler::Source;

/// At least one source of every kernel here, and of each way through it.
pub fn sources() -> Vec<Source> {
    let define =
        |pairs: &[(&'static str, &str)]| pairs.iter().map(|&(key, value)| (key, value.to_owned())).collect();
    let mut all = Vec::new();
    for (bytes, position) in [("16", "u32"), ("1", "u64")] {
        let moved = [("BYTES", bytes), ("POSITION", position)];
        all.push(source("transfer", transfer::TEXT, define(&moved)));
        let outward = if bytes == "1" { "1" } else { "0" };
        all.push(source(
            "dynamic_slice",
            dynamic_slice::TEXT,
            define(&[moved[0], moved[1], ("OUTWARD", outward)]),
        ));
        for index in ["i32", "u64"] {
            all.push(source("gather", gather::TEXT, define(&[moved[0], moved[1], ("INDEX", index)])));
        }
    }
    all.push(source("scatter", scatter::TEXT, define(&[("INDEX", "i64"), ("ELEMENT", "BitsOf<8>::type")])));
    for element in ["f64", "f32", "f16", "bf16", "i64", "u8", "boolean"] {
        let logical = element == "boolean";
        let fold = if logical { "Or" } else { "Sum" };
        let identity = if logical { "0" } else { "(Wide<ELEMENT>)0" };
        let index = ("INDEX", "i32");
        all.push(source("scatter", scatter::TEXT, define(&[index, ("ELEMENT", element), ("FOLD", fold)])));
        let folded = [("ELEMENT", element), ("FOLD", fold), ("IDENTITY", identity)];
        all.push(source("reduce_window", reduce_window::TEXT, define(&folded)));
        let mut sorted = vec![("ELEMENT", element), ("CHUNK", "2048")];
        if element != "f64" {
            sorted.push(("DESCENDING", "1"));
        }
        all.push(source("sort", sort::TEXT, define(&sorted)));
    }
    all
}
