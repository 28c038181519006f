//! Whether codes save a layer time: FLOPs of its products beside bytes that its casts move.
//!
//! Three products of M x K x N do 6 M K N FLOPs, faster on codes. A cast reads 16 bits of each
//! element of x and dy, and writes a code to each of two layouts. A current scale needs one read
//! more. Layers that read one x share its codes. The weight's cast moves what its cast to 16 bits
//! moves, so only a current scale's read counts. A layer gains where the time of these bytes is
//! below the time that codes save. One number of a device and its libraries decides, in FLOPs a
//! byte: `1 / bytes_per_second / (1 / flops_of_16_bits - 1 / flops_of_codes)`.
//!
//! `docs/performance-h200.md` shows how far that explains whole steps.

use super::{Float8, Scaling, extents, linear_layers};
use overdrive_ir::{Graph, Node};

impl Float8 {
    /// FLOPs a byte from which codes save time on an H200. In a step of gpt-1.3b products in bf16
    /// ran at 680 TFLOP/s, those of codes at 1,300, and casts at 3.0 TB/s.
    pub const BREAK_EVEN_ON_H200: u32 = 475;

    /// Why codes would cost a layer time; `None` where they save some, or nobody asks.
    pub(super) fn loses(&self, graph: &Graph, node: &Node) -> Option<String> {
        let needed = f64::from(self.break_even?);
        let found = self.flops_per_byte(graph, node);
        (found < needed).then(|| {
            let times = needed / found;
            format!(
                "casts would take {times:.2} times what its products save, at {found:.0} FLOPs a \
                 byte where {needed:.0} break even"
            )
        })
    }

    /// FLOPs of the products of a layer for each byte that its casts move.
    fn flops_per_byte(&self, graph: &Graph, node: &Node) -> f64 {
        let [rows, k, n] = extents(graph, node).map(|size| size as f64);
        let same_x = |other: &&Node| other.operands[0] == node.operands[0];
        let sharing = linear_layers(graph).filter(same_x).count() as f64;
        let again = if self.scaling == Scaling::Current { 1.0 } else { 0.0 };
        let bytes_of_element = 2.0 + 2.0 * again + 2.0;
        let bytes = bytes_of_element * rows * (k / sharing + n) + again * 4.0 * k * n;
        6.0 * rows * k * n / bytes
    }
}
