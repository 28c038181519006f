//! BERT, RoBERTa, DistilBERT, the sentence encoders and the classifiers made of them. They have
//! post-norm blocks that see both ways, and a pooled vector or a head where wanted.
//!
//! x is i32 token ids `[batch, T]`. `mask` is i32 `[batch, T]`: 1 for tokens, 0 for padding, which
//! a mask function of attention hides. Attention of a row of padding alone is 0. All tokens are of
//! segment 0. y is one of:
//! - the last hidden state `[batch, T, D]`;
//! - a vector for each row `[batch, D]`;
//! - the logits of a classifier `[batch, classes]`, which its head makes of the first token.
//!
//! Names and orientation of the weights are those of Hugging Face's checkpoints, so that loading is
//! a check and no mapping. Sources: Devlin et al., arXiv:1810.04805; Liu et al., "RoBERTa",
//! arXiv:1907.11692; Sanh et al., "DistilBERT", arXiv:1910.01108; pooling: Reimers and Gurevych,
//! "Sentence-BERT", arXiv:1908.10084.

use crate::parameters::{Activation, Bias, NORMAL, f32s, feed_forward, layer_norm, projection};
use crate::vit::first_token;
use overdrive_ir::ops::Attention;
use overdrive_ir::ops::attention::mask_region;
use overdrive_ir::{Builder, Compare, DType, Dim, Expr, Graph, GraphError, TensorType, Unary};

/// Sizes of a BERT, and what becomes of its last hidden state.
#[derive(Clone, PartialEq, Debug)]
pub struct Bert {
    /// V.
    pub vocabulary: usize,
    /// Rows of the table of positions.
    pub positions: usize,
    /// The BERT-like model that it is.
    pub kin: Kin,
    /// D.
    pub width: usize,
    /// Blocks.
    pub layers: usize,
    /// H, which divides `width`.
    pub heads: usize,
    /// Width of the feed-forward layer.
    pub hidden: usize,
    /// The form of the activation.
    pub activation: Activation,
    /// ε of the layer norms.
    pub eps: f64,
    /// Pooling of the last hidden state.
    pub pooling: Pooling,
    /// Whether a pooled vector is scaled to length 1.
    pub normalised: bool,
    /// Outputs of the head of a classifier, which neither pools nor normalises. Its encoder has
    /// [`Kin::prefix`] before all names, as files of such a class have.
    pub classes: Option<usize>,
}

/// Models made like BERT: what differs between them.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Kin {
    /// BERT, with so many kinds of segment.
    Bert {
        /// Rows of the table of segments.
        segments: usize,
    },
    /// RoBERTa: positions count the tokens that are no padding, from the one behind the padding
    /// token's id on. Padding stands at that id.
    Roberta {
        /// Rows of the table of segments.
        segments: usize,
        /// The token that fills rows up.
        filling: u32,
    },
    /// DistilBERT, which has no segments and other names.
    DistilBert,
}

impl Kin {
    /// The name of the encoder in a model with a head.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Bert { .. } => "bert",
            Self::Roberta { .. } => "roberta",
            Self::DistilBert => "distilbert",
        }
    }

    /// The two layers of a classifier's head, slashes between modules.
    const fn head(self) -> [&'static str; 2] {
        match self {
            Self::Bert { .. } => ["bert/pooler/dense", "classifier"],
            Self::Roberta { .. } => ["classifier/dense", "classifier/out_proj"],
            Self::DistilBert => ["pre_classifier", "classifier"],
        }
    }

    /// The names of these layers in files: the modules that a classifier has beside its encoder.
    pub fn head_layers(self) -> [String; 2] {
        self.head().map(|name| name.replace('/', "."))
    }
}

/// Names of a block's parts in checkpoints, with slashes between modules.
struct Names {
    /// Path of the blocks.
    path: &'static str,
    /// Queries, keys, values, and what joins the heads.
    attention: [&'static str; 4],
    /// Widening and narrowing.
    ffn: [&'static str; 2],
    /// The norms behind attention and behind the feed-forward layer.
    norms: [&'static str; 2],
}

const BERT: Names = Names {
    path: "encoder/layer",
    attention: [
        "attention/self/query",
        "attention/self/key",
        "attention/self/value",
        "attention/output/dense",
    ],
    ffn: ["intermediate/dense", "output/dense"],
    norms: ["attention/output/LayerNorm", "output/LayerNorm"],
};

const DISTILBERT: Names = Names {
    path: "transformer/layer",
    attention: ["attention/q_lin", "attention/k_lin", "attention/v_lin", "attention/out_lin"],
    ffn: ["ffn/lin1", "ffn/lin2"],
    norms: ["sa_layer_norm", "output_layer_norm"],
};

/// How a row of hidden states becomes one vector.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Pooling {
    /// Not at all.
    None,
    /// The state of the first token.
    First,
    /// The mean of the states of tokens that the mask lets through.
    Mean,
}

impl Bert {
    /// The graph; dimensions `batch` and `tokens` are names.
    ///
    /// # Errors
    /// When sizes do not fit together.
    pub fn build(&self) -> Result<Graph, GraphError> {
        let b = Builder::new("bert");
        let (batch, tokens) = (Dim::from("batch"), Dim::from("tokens"));
        let row = || TensorType::new(DType::I32, [batch.clone(), tokens.clone()]);
        let (ids, mask) = (b.input("x", row()), b.input("mask", row()));
        let visible = mask.compare(Compare::Ne, mask.constant(0.0));
        let y = match self.classes {
            Some(classes) => {
                let scope = b.scope(self.kin.prefix());
                let h = self.encoded(ids, visible);
                drop(scope);
                self.classified(first_token(h), classes)
            }
            None => self.pooled(self.encoded(ids, visible), visible),
        };
        b.output("y", y);
        b.finish()
    }

    /// The last hidden state.
    fn encoded<'b>(&self, ids: Expr<'b>, visible: Expr<'b>) -> Expr<'b> {
        let b = ids.builder();
        let mut h = self.embedded(ids);
        let names = if self.kin == Kin::DistilBert { &DISTILBERT } else { &BERT };
        for layer in 0..self.layers {
            let _scope = b.scope_path(&format!("{}/{layer}", names.path));
            let [after_attention, after_ffn] = names.norms;
            h = self.norm(self.attention(h, visible, &names.attention) + h, after_attention);
            let ffn = feed_forward(h, names.ffn, [self.width, self.hidden], self.activation);
            h = self.norm(ffn + h, after_ffn);
        }
        h
    }

    /// Logits `[batch, classes]` from the state of the first token `[batch, D]`.
    fn classified<'b>(&self, first: Expr<'b>, classes: usize) -> Expr<'b> {
        let [dense, last] = self.kin.head();
        let vector = projection(first, dense, [self.width; 2], Bias::Learnt);
        let vector = match self.kin {
            Kin::Bert { .. } | Kin::Roberta { .. } => vector.unary(Unary::Tanh),
            Kin::DistilBert => vector.relu(),
        };
        projection(vector, last, [self.width, classes], Bias::Learnt)
    }

    /// The tokens of a row; the longest.
    pub fn context(&self) -> usize {
        match self.kin {
            Kin::Bert { .. } | Kin::DistilBert => self.positions,
            Kin::Roberta { filling, .. } => self.positions.saturating_sub(filling as usize + 1),
        }
    }

    fn embedded<'b>(&self, ids: Expr<'b>) -> Expr<'b> {
        let b = ids.builder();
        let _scope = b.scope("embeddings");
        let table = |name: &str, rows: usize| {
            let _scope = b.scope(name);
            b.state("weight", f32s([rows, self.width]), NORMAL)
        };
        let positions = match self.kin {
            Kin::Bert { .. } | Kin::DistilBert => b.iota(DType::I32, [Dim::from("tokens")], 0),
            Kin::Roberta { filling, .. } => counted(ids, filling),
        };
        let h = table("position_embeddings", self.positions).embedding(positions);
        let h = match self.kin {
            Kin::Bert { segments } | Kin::Roberta { segments, .. } => {
                h + table("token_type_embeddings", segments)
                    .slice_axis(0, 0, 1)
                    .reshape([self.width])
            }
            Kin::DistilBert => h,
        };
        let words = table("word_embeddings", self.vocabulary).embedding(ids);
        self.norm(words + h, "LayerNorm")
    }

    fn attention<'b>(&self, x: Expr<'b>, visible: Expr<'b>, names: &[&str; 4]) -> Expr<'b> {
        let (width, heads, depth) = (self.width, self.heads, self.width / self.heads.max(1));
        let [batch, tokens] = [Dim::from("batch"), Dim::from("tokens")];
        let split = |name: &str| {
            let shape = [batch.clone(), tokens.clone(), heads.into(), depth.into()];
            projection(x, name, [width, width], Bias::Learnt)
                .reshape(shape)
                .transpose(&[0, 2, 1, 3])
        };
        let (q, k, v) = (split(names[0]), split(names[1]), split(names[2]));
        let padding =
            mask_region(&[visible.ty()], |[row, _, _, key], captures| captures[0].at(&[row, key]));
        let padding = padding.expect("an element of a table of booleans is a boolean");
        let [mixed, _] = q.attention_with([k, v], Attention::FULL, vec![padding], &[visible]);
        let joined = mixed.transpose(&[0, 2, 1, 3]).reshape([batch, tokens, width.into()]);
        projection(joined, names[3], [width, width], Bias::Learnt)
    }

    fn norm<'b>(&self, x: Expr<'b>, name: &str) -> Expr<'b> {
        layer_norm(x, name, self.width, self.eps)
    }

    fn pooled<'b>(&self, h: Expr<'b>, visible: Expr<'b>) -> Expr<'b> {
        let b = h.builder();
        let _scope = b.scope("pooling");
        let vector = match self.pooling {
            Pooling::None => return h,
            Pooling::First => first_token(h),
            Pooling::Mean => {
                let weights = visible.select(h.constant(1.0), h.constant(0.0));
                let weights = weights.reshape([Dim::from("batch"), "tokens".into(), 1.into()]);
                let count = weights.sum(&[1]);
                (h * weights).sum(&[1]) / count.max(count.constant(1e-9))
            }
        };
        if !self.normalised {
            return vector;
        }
        let length = (vector * vector).sum(&[1]).sqrt().reshape([Dim::from("batch"), 1.into()]);
        vector / length.max(length.constant(1e-12))
    }
}

/// Positions `[batch, tokens]` that count the tokens other than `filling`.
fn counted(ids: Expr<'_>, filling: u32) -> Expr<'_> {
    let b = ids.builder();
    let [batch, tokens] = [Dim::from("batch"), Dim::from("tokens")];
    let is_token = ids.compare(Compare::Ne, ids.constant(filling.into()));
    let ones = is_token.select(ids.constant(1.0), ids.constant(0.0));
    let [row, column] =
        [0, 1].map(|axis| b.iota(DType::I32, [tokens.clone(), tokens.clone()], axis));
    let so_far = column.compare(Compare::Le, row);
    let count = so_far.select(ones.reshape([batch, 1.into(), tokens]), ids.constant(0.0)).sum(&[2]);
    count * ones + f64::from(filling)
}
