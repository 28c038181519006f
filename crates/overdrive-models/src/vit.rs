//! Vision transformer: an image is cut into patches, and each becomes a token. One more token, in
//! front, gathers what the image shows.
//!
//! The input x is an image `[batch, C, H, W]`, scaled as the checkpoint was trained (`pixel_values`
//! of `transformers`). The output y is the logits of classes `[batch, classes]`, or without classes
//! the last hidden state `[batch, 1 + patches, D]`. Names and orientation of the weights are those
//! of Hugging Face's checkpoints, so that loading is a check and no mapping. Source: Dosovitskiy et
//! al., arXiv:2010.11929.

use crate::blocks::{Names, Stack};
use crate::parameters::{Bias, NORMAL, bias, f32s, projection};
use overdrive_ir::ops::{Attention, Conv2d};
use overdrive_ir::{Builder, DType, Dim, Expr, Graph, GraphError, TensorType};

/// Sizes of a vision transformer.
#[derive(Clone, PartialEq, Debug)]
pub struct Vit {
    /// The patches that images are cut into.
    pub patches: Patches,
    /// The blocks.
    pub stack: Stack,
    /// Classes of the head, if there is one.
    pub classes: Option<usize>,
}

/// Images, and what they are cut into.
#[derive(Clone, PartialEq, Debug)]
pub struct Patches {
    /// C.
    pub channels: usize,
    /// H and W.
    pub image: [usize; 2],
    /// Height and width of a patch, at most those of the image.
    pub size: [usize; 2],
}

const NAMES: Names = Names {
    norms: ["layernorm_before", "layernorm_after"],
    attention: [
        "attention/attention/query",
        "attention/attention/key",
        "attention/attention/value",
        "attention/output/dense",
    ],
    ffn: ["intermediate/dense", "output/dense"],
};

impl Vit {
    /// The graph; the dimension `batch` is a name.
    ///
    /// # Errors
    /// When sizes do not fit together.
    pub fn build(&self) -> Result<Graph, GraphError> {
        let b = Builder::new("vit");
        let (x, width) = (self.patches.input(&b, "x"), self.stack.width);
        let scope = b.scope("vit");
        let h = {
            let _scope = b.scope("embeddings");
            let first = b.state("cls_token", f32s([1, 1, width]), NORMAL);
            let tokens = {
                let _scope = b.scope_path("patch_embeddings/projection");
                self.patches.tokens(x, width, Bias::Learnt)
            };
            let places = 1 + self.patches.count();
            let positions = b.state("position_embeddings", f32s([1, places, width]), NORMAL);
            behind(first, tokens) + positions
        };
        let h = self.stack.blocks(h, "encoder/layer", (&NAMES, Attention::FULL));
        let h = self.stack.norm(h, "layernorm");
        drop(scope);
        b.output(
            "y",
            match self.classes {
                Some(classes) => {
                    projection(first_token(h), "classifier", [width, classes], Bias::Learnt)
                }
                None => h,
            },
        );
        b.finish()
    }
}

impl Patches {
    /// The number of them.
    pub fn count(&self) -> usize {
        (self.image[0] / self.size[0]) * (self.image[1] / self.size[1])
    }

    /// The input of this name: images `[batch, C, H, W]`.
    pub(crate) fn input<'b>(&self, b: &'b Builder, name: &str) -> Expr<'b> {
        let shape =
            [Dim::from("batch"), self.channels.into(), self.image[0].into(), self.image[1].into()];
        b.input(name, TensorType::new(DType::F32, shape))
    }

    /// The patches of images as tokens `[batch, patches, width]`, by the convolution of this scope.
    pub(crate) fn tokens<'b>(&self, images: Expr<'b>, width: usize, has: Bias) -> Expr<'b> {
        let b = images.builder();
        let kernel =
            b.state("weight", f32s([width, self.channels, self.size[0], self.size[1]]), NORMAL);
        let shift = (has == Bias::Learnt).then(|| bias(b, width));
        let places =
            images.conv2d(kernel, shift, Conv2d { stride: self.size, ..Conv2d::new(1, 0) });
        places
            .reshape([Dim::from("batch"), width.into(), self.count().into()])
            .transpose(&[0, 2, 1])
    }
}

/// Tokens `[batch, N, D]` behind one that is the same for all images.
pub(crate) fn behind<'b>(first: Expr<'b>, tokens: Expr<'b>) -> Expr<'b> {
    if tokens.is_poison() {
        return tokens;
    }
    let mut shape = tokens.shape();
    shape.0[1] = 1.into();
    tokens.builder().concat(&[first.broadcast_to(&shape), tokens], 1)
}

/// `[batch, D]` of `[batch, N, D]`.
pub(crate) fn first_token(h: Expr<'_>) -> Expr<'_> {
    // Not a slice: the size of the batch is a name.
    h.gather(h.builder().full(DType::I32, [1usize], 0.0), &[1])
}
