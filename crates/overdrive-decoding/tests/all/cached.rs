//! A sequence decoded token by token gives what the whole of it gives at once, with a cache and
//! without.

use crate::tiny::{DECODERS, backend, folder, model};
use overdrive_bench::clock::SystemClock;
use overdrive_cpu::CpuBackend;
use overdrive_decoding::{
    CachedDecoder, Chooser, Decoder, Limits, Sampling, WindowDecoder, generate,
};
use overdrive_formats::{Tensors, npz};
use overdrive_ir::{
    Backend, BackendError, Buffer, DType, Executable, Graph, Mode, State, Target, Tensor,
    TensorType, Tuning,
};
use overdrive_studies::pretrained::Pretrained;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn expected(name: &str) -> Tensors {
    npz::read(&folder(name).join("expected.npz")).unwrap()
}

fn ids(tensor: &Tensor) -> Vec<u32> {
    tensor.to_ints().iter().map(|&id| id as u32).collect()
}

/// The logits of all tokens of a sequence, computed at once.
fn whole(backend: &dyn Backend, model: &Pretrained, sequence: &[u32]) -> Vec<f32> {
    let sizes = [("batch".to_owned(), 1), ("tokens".to_owned(), sequence.len())].into();
    let graph = model.template().unwrap().graph_of(&sizes).unwrap();
    let ids: Vec<i128> = sequence.iter().map(|&id| id.into()).collect();
    let x = Tensor::from_ints(DType::I32, [1, ids.len()], &ids);
    let executable = backend.compile(&graph, Mode::Compile, &Tuning::default()).unwrap();
    let mut state = State::initial(&graph, backend).unwrap();
    let mut outputs = [backend.output(graph.ty(graph.outputs()[0].value)).unwrap()];
    let inputs = [backend.upload(&x).unwrap()];
    let mut session = executable.session().unwrap();
    session.run(state.with(&inputs, &mut outputs)).unwrap().wait().unwrap();
    backend.download(&outputs[0]).unwrap().to_f32()
}

/// A back end that counts the graphs that it compiles.
struct Counting {
    backend: CpuBackend,
    compiled: AtomicUsize,
}

impl Backend for Counting {
    fn name(&self) -> &str {
        self.backend.name()
    }

    fn target(&self) -> &dyn Target {
        self.backend.target()
    }

    fn compile(
        &self,
        graph: &Graph,
        mode: Mode,
        tuning: &Tuning,
    ) -> Result<Arc<dyn Executable>, BackendError> {
        self.compiled.fetch_add(1, Ordering::Relaxed);
        self.backend.compile(graph, mode, tuning)
    }

    fn upload(&self, tensor: &Tensor) -> Result<Buffer, BackendError> {
        self.backend.upload(tensor)
    }

    fn download(&self, buffer: &Buffer) -> Result<Tensor, BackendError> {
        self.backend.download(buffer)
    }

    fn output(&self, ty: &TensorType) -> Result<Buffer, BackendError> {
        self.backend.output(ty)
    }

    fn write(&self, buffer: &mut Buffer, tensor: &Tensor) -> Result<(), BackendError> {
        self.backend.write(buffer, tensor)
    }
}

#[test]
fn greedy_continuations_are_those_of_transformers() {
    let clock = SystemClock::new();
    for name in DECODERS {
        let counting = Counting { backend: backend(), compiled: AtomicUsize::new(0) };
        let (model, expected) = (model(name), expected(name));
        let (prompt, continuation) = (ids(&expected["prompt"]), ids(&expected["continuation"]));
        let room = prompt.len() + continuation.len();
        let mut decoder = CachedDecoder::new((&counting, Mode::Compile), &model, room).unwrap();
        let limits = Limits { tokens: continuation.len(), ends: &[] };
        for _ in 0..2 {
            let how = (&Chooser::new(&Sampling::GREEDY, None), &limits);
            let made = generate(&mut decoder, &prompt, how, &clock, &mut |_| true).unwrap();
            assert_eq!(made.tokens, continuation, "{name}");
            assert_eq!(made.times_ns.len(), continuation.len());
        }
        let compiled = counting.compiled.load(Ordering::Relaxed);
        assert_eq!(compiled, 2, "{name}: the second call compiles nothing");
    }
}

/// Every step with a cache against the whole sequence without one, over prompts of several buckets.
#[test]
fn logits_with_a_cache_are_those_without() {
    let backend = backend();
    for name in DECODERS {
        let model = model(name);
        let sequence: Vec<u32> = (0..40).map(|i| (i * 37 + 11) % 270).collect();
        let whole = whole(&backend, &model, &sequence);
        let width = whole.len() / 40;
        let mut decoder = CachedDecoder::new((&backend, Mode::Compile), &model, 40).unwrap();
        for prompt in [1, 5, 16, 17, 39] {
            let mut logits = decoder.begin(&sequence[..prompt]).unwrap();
            for position in prompt..=40 {
                let row = &whole[(position - 1) * width..][..width];
                let off = logits.iter().zip(row).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(off <= 1e-4, "{name}: {off} at {position} after a prompt of {prompt}");
                if position < 40 {
                    logits = decoder.next(sequence[position]).unwrap();
                }
            }
        }
    }
}

#[test]
fn a_decoder_refuses_what_it_has_no_room_for() {
    let (backend, model) = (backend(), model("llama"));
    let new = |tokens| CachedDecoder::new((&backend, Mode::Compile), &model, tokens);
    assert!(new(65).err().unwrap().to_string().contains("65 tokens: expected at most 64"));
    let mut decoder = new(10).unwrap();
    assert_eq!(decoder.capacity(), 16);
    assert!(decoder.begin(&[]).unwrap_err().to_string().contains("no token"));
    assert!(decoder.next(1).unwrap_err().to_string().contains("no token"));
    assert!(decoder.begin(&[1; 17]).unwrap_err().to_string().contains("at most 16"));
    decoder.begin(&[1; 16]).unwrap();
    assert!(decoder.next(1).unwrap_err().to_string().contains("at most 16"));
    let encoder = crate::tiny::model("bert");
    let error =
        CachedDecoder::new((&backend, Mode::Compile), &encoder, 8).err().unwrap().to_string();
    assert!(error.contains("expected a decoder") && error.contains("found an encoder"), "{error}");
}

#[test]
fn a_fixed_window_slides_and_what_fills_it_up_is_not_seen() {
    let (backend, model) = (backend(), model("gpt2"));
    let sizes = [("batch".to_owned(), 1), ("tokens".to_owned(), 8)].into();
    let graph = model.template().unwrap().bind(&sizes).unwrap().graph;
    let mut window = WindowDecoder::new((&backend, Mode::Compile), &graph).unwrap();
    let mut cached = CachedDecoder::new((&backend, Mode::Compile), &model, 16).unwrap();
    let close = |a: Vec<f32>, b: Vec<f32>| a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-4);
    assert!(close(window.begin(&[3, 1, 4]).unwrap(), cached.begin(&[3, 1, 4]).unwrap()));
    assert!(close(window.next(1).unwrap(), cached.next(1).unwrap()));
    let long: Vec<u32> = (0..12).collect();
    assert!(close(window.begin(&long).unwrap(), cached.begin(&long[4..]).unwrap()));
    let refused = WindowDecoder::new(
        (&backend, Mode::Jit),
        &crate::tiny::model("sentence").template().unwrap().graph,
    );
    assert!(refused.err().unwrap().to_string().contains("does not generate"));
}
