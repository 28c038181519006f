//! CLIP: a tower for images and one for texts, whose vectors are compared.
//!
//! `pixel_values` is images `[batch, C, H, W]`, `input_ids` i32 token ids `[texts, tokens]`.
//! Outputs: `logits_per_image` `[batch, texts]`, and the vectors of length 1 `image_embeds`
//! `[batch, P]` and `text_embeds` `[texts, P]`. Text attention is causal, and the vector of a text
//! is that of its end token. So tokens after it change nothing and need no mask. Names and
//! orientation of the weights are those of Hugging Face's checkpoints. Source: Radford et al.,
//! arXiv:2103.00020.

use crate::blocks::{Names, Stack};
use crate::parameters::{Bias, NORMAL, f32s, projection};
use crate::vit::{Patches, behind, first_token};
use overdrive_ir::ops::Attention;
use overdrive_ir::{
    Builder, Compare, DType, Dim, Expr, Graph, GraphError, Init, Reducer, TensorType,
};

/// Sizes of a CLIP.
#[derive(Clone, PartialEq, Debug)]
pub struct Clip {
    /// V.
    pub vocabulary: usize,
    /// Tokens of the longest text.
    pub context: usize,
    /// The blocks that read texts.
    pub text: Stack,
    /// The end of a text.
    pub end: End,
    /// The patches that images are cut into.
    pub patches: Patches,
    /// The blocks that see images.
    pub vision: Stack,
    /// P, width of the vectors that are compared.
    pub projection: usize,
}

/// Which token of a text gives its vector: the first that matches, or the first of all if none
/// does.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// The one of this id.
    Token(u32),
    /// The one of the largest id, as files have it that name no end token.
    Largest,
}

const NAMES: Names = Names {
    norms: ["layer_norm1", "layer_norm2"],
    attention: ["self_attn/q_proj", "self_attn/k_proj", "self_attn/v_proj", "self_attn/out_proj"],
    ffn: ["mlp/fc1", "mlp/fc2"],
};

impl Clip {
    /// The graph; dimensions `batch` (of images), `texts` and `tokens` are names.
    ///
    /// # Errors
    /// When sizes do not fit together.
    pub fn build(&self) -> Result<Graph, GraphError> {
        let b = Builder::new("clip");
        let images = self.patches.input(&b, "pixel_values");
        let texts = [Dim::from("texts"), Dim::from("tokens")];
        let ids = b.input("input_ids", TensorType::new(DType::I32, texts));
        let image = self.image(images);
        let text = self.text(ids);
        let scale =
            b.state_named("logit_scale", TensorType::scalar(DType::F32), Init::Constant(2.6592));
        b.output("logits_per_image", image.matmul(text.t()) * scale.exp());
        b.output("image_embeds", image);
        b.output("text_embeds", text);
        b.finish()
    }

    fn image<'b>(&self, images: Expr<'b>) -> Expr<'b> {
        let (b, width) = (images.builder(), self.vision.width);
        let scope = b.scope("vision_model");
        let h = {
            let _scope = b.scope("embeddings");
            let first = b.state("class_embedding", f32s([width]), NORMAL);
            let tokens = {
                let _scope = b.scope("patch_embedding");
                self.patches.tokens(images, width, Bias::None)
            };
            let _scope = b.scope("position_embedding");
            behind(first, tokens)
                + b.state("weight", f32s([1 + self.patches.count(), width]), NORMAL)
        };
        let h = self.vision.norm(h, "pre_layrnorm");
        let h = self.vision.blocks(h, "encoder/layers", (&NAMES, Attention::FULL));
        let pooled = self.vision.norm(first_token(h), "post_layernorm");
        drop(scope);
        self.compared(pooled, "visual_projection", width)
    }

    fn text<'b>(&self, ids: Expr<'b>) -> Expr<'b> {
        let (b, width) = (ids.builder(), self.text.width);
        let scope = b.scope("text_model");
        let h = {
            let _scope = b.scope("embeddings");
            let table = |name: &str, rows: usize| {
                let _scope = b.scope(name);
                b.state("weight", f32s([rows, width]), NORMAL)
            };
            let places = b.iota(DType::I32, [Dim::from("tokens")], 0);
            let positions = table("position_embedding", self.context).embedding(places);
            table("token_embedding", self.vocabulary).embedding(ids) + positions
        };
        let h = self.text.blocks(h, "encoder/layers", (&NAMES, Attention::CAUSAL));
        let pooled = self.at_end(self.text.norm(h, "final_layer_norm"), ids);
        drop(scope);
        self.compared(pooled, "text_projection", width)
    }

    /// The state `[texts, D]` of each text's end token.
    fn at_end<'b>(&self, h: Expr<'b>, ids: Expr<'b>) -> Expr<'b> {
        let b = h.builder();
        let _scope = b.scope("end");
        let column = [Dim::from("texts"), 1.into()];
        let wanted = match self.end {
            End::Token(id) => ids.constant(id.into()),
            End::Largest => ids.reduce(Reducer::Max, &[1]).reshape(column.clone()),
        };
        let places = b.iota(DType::I32, [Dim::from("tokens")], 0);
        let nowhere = places.constant(f64::from(i32::MAX));
        let first =
            ids.compare(Compare::Eq, wanted).select(places, nowhere).reduce(Reducer::Min, &[1]);
        let first = first.compare(Compare::Eq, nowhere).select(first.constant(0.0), first);
        let rows = b.iota(DType::I32, [Dim::from("texts")], 0);
        let indices = b.concat(&[rows.reshape(column.clone()), first.reshape(column)], 1);
        h.gather(indices, &[0, 1])
    }

    /// The vector of length 1 of a pooled state.
    fn compared<'b>(&self, pooled: Expr<'b>, name: &str, width: usize) -> Expr<'b> {
        let vector = projection(pooled, name, [width, self.projection], Bias::None);
        if vector.is_poison() {
            return vector;
        }
        let mut column = vector.shape();
        column.0[1] = 1.into();
        vector / (vector * vector).sum(&[1]).sqrt().reshape(column)
    }
}
