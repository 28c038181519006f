//! The study of decoding: the time of the next token of a published decoder. It is measured in each
//! mode of the device, on codes, and with codes in the cache.
//!
//! A call is one token with a cache of keys and values, at positions that follow each other. If the
//! cache is full, the prompt is read again before the next sample. Invariant: the logits of a step
//! are held against those of the whole sequence computed at once.

use crate::pretrained::Pretrained;
use crate::{Context, Entry, Workload};
use overdrive_bench::case::{self, Case, Configuration};
use overdrive_bench::deviation::Deviation;
use overdrive_bench::deviation::Tolerance;
use overdrive_bench::failure::Failure;
use overdrive_bench::outcome::Outcome;
use overdrive_bench::record::Record;
use overdrive_bench::results::{Note, Results};
use overdrive_bench::subject::Subject;
use overdrive_bench::work::{Items, Work};
use overdrive_decoding::{CachedDecoder, DecodeError, Decoder, LanguageModel};
use overdrive_ir::{Backend, DType, Mode, State, Tensor, Tuning};
use overdrive_models::{CacheCodes, Caches, Span};
use std::ops::Range;

/// Its name.
const STUDY: &str = "decoding";
/// Room for the prompt and the tokens of a sample.
const ROOM: usize = 128;
/// The difference that two orders of summation in f32 may make, relative to the logits and on their
/// scale.
const TOLERANCE: f64 = 1e-3;
/// The same of activations that are rounded to codes: sums that differ in their last bits round to
/// neighbours.
const TOLERANCE_OF_CODES: f64 = 0.02;
/// The same of keys and values that are codes. In int8 each moves by up to 1/254 of the largest
/// number of its row, in fp8 by up to 1/16 of itself. Layers add these up.
const fn tolerance_of_cache(codes: CacheCodes) -> f64 {
    match codes {
        CacheCodes::Int8 => 0.03,
        CacheCodes::Fp8 => 0.12,
    }
}

/// Codes of caches, with the names of their cases.
const CACHES: [(CacheCodes, &str); 2] =
    [(CacheCodes::Int8, "int8-cache"), (CacheCodes::Fp8, "fp8-cache")];
/// Modes that are compared; eager decoding is nobody's choice, but what the others gain over.
const MODES: [Mode; 3] = [Mode::Eager, Mode::Compile, Mode::Graph];

/// Makes the model on codes of a mode, where it takes them.
pub type MakeCoded<'a> = dyn Fn(&str) -> Option<Pretrained> + 'a;

/// The model that is decoded, and the same on codes, by mode; these run in the fastest mode of the
/// device.
#[derive(Copy, Clone)]
pub struct Decoded<'a> {
    /// The timed workload, for its name.
    pub workload: &'a Workload,
    /// The model.
    pub model: &'a Pretrained,
    /// Modes of codes.
    pub modes: &'a [&'static str],
    /// The function that makes them: called only if the study takes its cases.
    pub coded: &'a MakeCoded<'a>,
}

/// Measures a token after `prompt`.
///
/// # Errors
/// When the model is no decoder, or no mode can be compiled.
pub fn study(
    context: &Context<'_>,
    results: &mut Results,
    Decoded { workload, model, modes: coded_modes, coded }: Decoded<'_>,
    prompt: &[u32],
) -> Result<(), Failure> {
    let device = context.device();
    let room = ROOM.min(model.architecture.context());
    let prompt = &prompt[..prompt.len().min(room / 2).max(1)];
    let name = format!("{}, next token", workload.key.name);
    let key = case::Workload::new(&name, [("batch", 1), ("context", room as u64)]);
    let case = |mode: Mode, variant: Option<&str>| {
        let plain = Entry::plain(workload, device, mode).case(STUDY);
        let variant = variant.map(str::to_owned);
        let configuration = Configuration { variant, ..plain.configuration };
        Case { workload: key.clone(), configuration, ..plain }
    };
    let modes = MODES.into_iter().filter(|mode| *mode != Mode::Graph || device.is_accelerator());
    let mut wanted: Vec<(Mode, Option<&str>)> = modes.map(|mode| (mode, None)).collect();
    let fastest = device.backend.description().fastest_mode();
    wanted.extend(coded_modes.iter().map(|name| (fastest, Some(*name))));
    wanted.extend(CACHES.iter().map(|&(_, name)| (fastest, Some(name))));
    let cases: Vec<Case> = wanted.iter().map(|&(mode, variant)| case(mode, variant)).collect();
    if !context.journal.wants(&cases) {
        return Ok(());
    }
    if let Some(records) = context.taken_earlier(&cases) {
        context.add(results, records);
        return Ok(());
    }
    context.journal.progress.workload(&name);
    let cache_of = |variant: Option<&str>| {
        let found = CACHES.iter().find(|(_, name)| variant == Some(name));
        found.map(|&(codes, _)| codes)
    };
    let on_codes = |variant: &Option<&str>| match cache_of(*variant) {
        Some(_) => None,
        None => variant.and_then(coded),
    };
    let on_codes: Vec<Option<Pretrained>> =
        wanted.iter().map(|(_, variant)| on_codes(variant)).collect();
    let mut steps = Vec::new();
    let mut ready = Vec::new();
    for (((mode, variant), on_codes), case) in wanted.into_iter().zip(&on_codes).zip(cases) {
        let cache = cache_of(variant);
        let model = match (variant, on_codes) {
            (None, _) => model,
            (Some(_), Some(on_codes)) => on_codes,
            (Some(_), None) if cache.is_some() => model,
            (Some(_), None) => continue,
        };
        // Modes of a model share its weights.
        let other = steps.iter().find(|step: &&Steps<'_>| std::ptr::eq(step.model, model));
        let decoder = match other {
            Some(other) => other.decoder.beside(mode, cache),
            None => {
                let caches = Caches { codes: cache, ..Caches::of_one(room) };
                CachedDecoder::in_format((device.backend, mode), model, caches, DType::F32)
            }
        };
        let of = |decoder| Steps::new((device.backend, decoder), (model, cache), prompt, room);
        match decoder.and_then(of) {
            Ok(step) => {
                steps.push(step);
                ready.push(case);
            }
            Err(error) => {
                let text = format!("{}: {error}", case.id());
                results.notes.push(Note { study: STUDY.to_owned(), text });
            }
        }
    }
    let mut subjects: Vec<&mut dyn Subject> =
        steps.iter_mut().map(|step| step as &mut dyn Subject).collect();
    let outcomes = context.sampling.runner().compare(&mut subjects);
    let eager = ready.first().map(Case::id);
    let float = ready.iter().rfind(|case| case.configuration.variant.is_none()).map(Case::id);
    let record = |((case, step), mut outcome): ((Case, &Steps<'_>), Outcome)| {
        if let Some(measurement) = outcome.measurement_mut() {
            measurement.work = Some(step.work.clone());
        }
        let against = if case.configuration.variant.is_some() { &float } else { &eager };
        let baseline = against.clone().filter(|baseline| *baseline != case.id());
        Record {
            case,
            baseline,
            seed: context.sampling.seed,
            command: context.journal.command_of(STUDY),
            outcome,
        }
    };
    let records = ready.into_iter().zip(&steps).zip(outcomes).map(record).collect();
    context.add(results, records);
    Ok(())
}

/// Tokens one after another.
struct Steps<'a> {
    decoder: CachedDecoder<'a>,
    backend: &'a dyn Backend,
    model: &'a Pretrained,
    cache: Option<CacheCodes>,
    prompt: Vec<u32>,
    /// Tokens in the cache.
    seen: usize,
    work: Work,
}

impl<'a> Steps<'a> {
    fn new(
        (backend, mut decoder): (&'a dyn Backend, CachedDecoder<'a>),
        (model, cache): (&'a Pretrained, Option<CacheCodes>),
        prompt: &[u32],
        room: usize,
    ) -> Result<Self, DecodeError> {
        decoder.prepare(prompt.len(), false)?;
        decoder.begin(prompt)?;
        let caches = Caches { codes: cache, ..Caches::of_one(room) };
        let graph = model.unloaded(Span::Step { caches }, DType::F32)?;
        let bytes = graph.states().iter().map(|state| graph.ty(state.value).bytes() as u64).sum();
        let items = Some(Items { per_call: 1, name: "decoded tokens".to_owned() });
        let work = Work { flops: graph.cost().flops, bytes, items };
        let (prompt, seen) = (prompt.to_vec(), prompt.len());
        Ok(Self { decoder, backend, model, cache, prompt, seen, work })
    }

    fn again(&mut self) -> Result<(), Failure> {
        self.decoder.begin(&self.prompt).map_err(failed)?;
        self.seen = self.prompt.len();
        Ok(())
    }

    /// The token of a place: one of the prompt's, so that it is in the vocabulary.
    fn token(&self, place: usize) -> u32 {
        self.prompt[place % self.prompt.len()]
    }
}

impl Subject for Steps<'_> {
    fn prepare(&mut self, calls: Range<u64>) -> Result<(), Failure> {
        let needed = (calls.end - calls.start) as usize;
        if self.seen + needed > self.decoder.capacity() { self.again() } else { Ok(()) }
    }

    fn call(&mut self, _index: u64) -> Result<(), Failure> {
        if self.seen == self.decoder.capacity() {
            self.again()?;
        }
        self.decoder.next(self.token(self.seen)).map_err(failed)?;
        self.seen += 1;
        Ok(())
    }

    fn verify(&mut self, seed: u64) -> Result<Option<Deviation>, Failure> {
        let begin = seed as usize % self.prompt.len();
        self.prompt.rotate_left(begin);
        self.again()?;
        let token = self.token(self.seen);
        let found = self.decoder.next(token).map_err(failed)?;
        self.seen += 1;
        let ids: Vec<i128> = self.prompt.iter().chain([&token]).map(|&id| id.into()).collect();
        let sizes = [("batch".to_owned(), 1), ("tokens".to_owned(), ids.len())].into();
        let template = self.model.template().map_err(|e| Failure::failed(e.to_string()))?;
        let graph = template.graph_of(&sizes).map_err(|e| Failure::failed(e.to_string()))?;
        let x = Tensor::from_ints(DType::I32, [1, ids.len()], &ids);
        let expected = whole(self.backend, &graph, &x)?;
        let expected = &expected[expected.len() - found.len()..];
        let size = expected.iter().fold(0.0f64, |most, x| most.max(x.abs()));
        let found: Vec<f64> = found.into_iter().map(f64::from).collect();
        let of_model = if self.model.coding.is_some() { TOLERANCE_OF_CODES } else { TOLERANCE };
        let share = of_model + self.cache.map_or(0.0, tolerance_of_cache);
        let tolerance = Tolerance::of_elements(share, share * size);
        Deviation::between(&found, expected, tolerance).map(Some)
    }

    fn reference(&self) -> &str {
        "the whole sequence at once"
    }
}

/// All logits of a sequence.
fn whole(
    backend: &dyn Backend,
    graph: &overdrive_ir::Graph,
    x: &Tensor,
) -> Result<Vec<f64>, Failure> {
    let mut session = backend.compile(graph, Mode::Compile, &Tuning::default())?.session()?;
    let mut state = State::initial(graph, backend)?;
    let mut outputs = vec![backend.output(graph.ty(graph.outputs()[0].value))?];
    session.run(state.with(&[backend.upload(x)?], &mut outputs))?.wait()?;
    Ok(backend.download(&outputs[0])?.to_f64())
}

fn failed(error: DecodeError) -> Failure {
    match error {
        DecodeError::Backend(error) => error.into(),
        other => Failure::failed(other.to_string()),
    }
}
