//! The bytes that a token must read, and the logits that it should have.

use super::behind::{Behind, Part};
use super::tokens::bytes;
use crate::pretrained::Pretrained;
use overdrive_decoding::LanguageModel;
use overdrive_ir::DType;
use overdrive_ir::eval::eval_tensors;
use overdrive_models::{Caches, Span};
use std::path::Path;

fn llama() -> Pretrained {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pretrained/llama");
    Pretrained::read(&folder).expect("the folder is whole")
}

#[test]
fn a_token_reads_all_weights_a_row_of_the_table_and_the_keys_before_it() {
    let model = llama();
    let (width, layers, key_width, vocabulary) = (16, 2, 2 * 4, 270);
    let caches = Caches::of_one(64);
    let graph = model.unloaded(Span::Step { caches }, DType::F32).expect("it is a decoder");
    let all: u64 = graph.states().iter().map(|state| graph.ty(state.value).bytes() as u64).sum();
    let behind = |tokens| bytes(&graph, Behind::new(Part::Next, [tokens, 1], 64), 64);
    let of_a_token = 2 * layers * key_width * 4;
    assert_eq!(behind(63), all - 4 * (vocabulary - 1) * width);
    assert_eq!(behind(63) - behind(20), 43 * of_a_token);
}

#[test]
fn the_workload_of_others_gives_the_last_logits_of_each_text() {
    let model = llama();
    let of = crate::Workload::new("llama", [], {
        let sizes = [("batch".to_owned(), 1), ("tokens".to_owned(), 1)].into();
        model.template().and_then(|whole| whole.graph_of(&sizes)).expect("it is well-formed")
    });
    let text = [3, 141, 59, 26, 5];
    let place = Behind::new(Part::Next, [6, 2], 64);
    let workload = place.workload((&of, &model), &text).expect("it is well-formed");
    assert_eq!(workload.key.name, "llama, next token");
    let found = eval_tensors(&workload.graph, &workload.inputs(1))[0].to_f64();
    let sizes = [("batch".to_owned(), 2), ("tokens".to_owned(), 7)].into();
    let whole = model.template().and_then(|whole| whole.graph_of(&sizes)).expect("it is");
    let all = eval_tensors(&whole, &workload.inputs(2))[0].to_f64();
    let last = |text: usize| all[(text * 7 + 6) * 270..][..270].to_vec();
    assert_eq!(found, [last(0), last(1)].concat());
    assert_ne!(last(0), last(1), "each text begins elsewhere");
}
