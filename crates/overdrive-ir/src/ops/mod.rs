//! The composites, one file each, and the registry that names them.
//!
//! To add an op: write `ops/<op>.rs` and add its line here. The builder method is in its file. The
//! reference page, parsing and the op harness follow from the line. Invariant: names are unique and
//! sorted.

use crate::op::OpEntry;

macro_rules! ops {
    ($($file:ident :: $op:ident,)*) => {
        $(pub mod $file;)*
        $(pub use $file::$op;)*
        /// Every composite.
        pub const OPS: &[OpEntry] = &[
            $(OpEntry::of::<$op>(include_str!(concat!(stringify!($file), ".rs")))),*
        ];
    };
}

ops! {
    adamw::AdamW,
    attention::Attention,
    attention_grad::AttentionGrad,
    attention_sink::AttentionSink,
    avg_pool2d::AvgPool2d,
    batch_norm::BatchNorm,
    block_scale::BlockScale,
    cast_transpose::CastTranspose,
    conv2d::Conv2d,
    cross_entropy::CrossEntropy,
    dequantize::Dequantize,
    dropout::Dropout,
    embedding::Embedding,
    fake_quantize::FakeQuantize,
    float8_attention::Float8Attention,
    float8_linear::Float8Linear,
    fused::Fused,
    gelu::Gelu,
    global_avg_pool::GlobalAvgPool,
    hadamard::Hadamard,
    layer_norm::LayerNorm,
    linear::Linear,
    max_pool2d::MaxPool2d,
    paged_attention::PagedAttention,
    quantize::Quantize,
    quantize_rows::QuantizeRows,
    quantized_attention::QuantizedAttention,
    quantized_linear::QuantizedLinear,
    relu::Relu,
    rms_norm::RmsNorm,
    silu::Silu,
    softmax::Softmax,
    sparse_linear::SparseLinear,
    straight_through::StraightThrough,
    unpack_24::Unpack24,
    weighed_sum::WeighedSum,
}
