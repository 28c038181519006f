//! The study of decoding: the time to the first token of a published decoder, and that of the next
//! one. It is measured behind texts of several lengths, of one sequence and of several together.
//! The model is in the format that `generate` gives it, on codes, and with codes in the cache. Who
//! else has the model takes part with a cache of its own.
//!
//! Modes of the device are compared at the first length. Elsewhere the fastest runs alone.
//! Invariant: logits are held against those of the whole sequence computed at once.

mod behind;
mod tokens;

#[cfg(test)]
mod tests;

use crate::peers;
use crate::pretrained::Pretrained;
use crate::session::shares;
use crate::tolerance::tolerance;
use crate::{Context, Entry, Workload};
use behind::{Behind, Part};
use overdrive_bench::case::Case;
use overdrive_bench::deviation::Tolerance;
use overdrive_bench::failure::Failure;
use overdrive_bench::oracle::Oracle;
use overdrive_bench::outcome::Outcome;
use overdrive_bench::record::Record;
use overdrive_bench::results::{Note, Results};
use overdrive_bench::subject::Subject;
use overdrive_decoding::CachedDecoder;
use overdrive_ir::{DType, Mode};
use overdrive_models::{CacheCodes, Caches};
use tokens::Tokens;

/// Its name.
const STUDY: &str = "decoding";
/// The difference of activations that are rounded to codes, relative to the logits and on their
/// scale. Sums that differ in their last bits round to neighbours.
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

/// Lengths of the text, and sequences that are decoded together.
const HOST_QUICK: [[usize; 2]; 1] = [[64, 1]];
const HOST: [[usize; 2]; 3] = [[64, 1], [512, 1], [64, 8]];
const ACCELERATOR_QUICK: [[usize; 2]; 1] = [[512, 1]];
const ACCELERATOR: [[usize; 2]; 4] = [[512, 1], [8192, 1], [512, 16], [4096, 16]];

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

/// Measures tokens behind `text`, repeated to the lengths of the study.
///
/// # Errors
/// When the model is no decoder, or the text is empty.
pub fn study(
    context: &Context<'_>,
    results: &mut Results,
    decoded: Decoded<'_>,
    text: &[u32],
) -> Result<(), Failure> {
    if text.is_empty() {
        return Err(Failure::failed("the text has no token: expected at least one"));
    }
    let sizes = match context.device().is_accelerator() {
        true => context.sizes(&ACCELERATOR_QUICK, &ACCELERATOR),
        false => context.sizes(&HOST_QUICK, &HOST),
    };
    let most = decoded.model.architecture.context();
    let mut fitting: Vec<[usize; 2]> =
        sizes.iter().copied().filter(|[tokens, _]| tokens + Behind::STEPS <= most).collect();
    if fitting.is_empty() {
        fitting.push([(most / 2).max(1), 1]);
    }
    // A first token of several sequences is that of each, one after another.
    let alone = fitting.iter().filter(|[_, sequences]| *sequences == 1);
    let firsts = alone.map(|&size| Behind::new(Part::First, size, most));
    let nexts = fitting.iter().map(|&size| Behind::new(Part::Next, size, most));
    let mut on_codes = None;
    for (index, place) in nexts.chain(firsts).enumerate() {
        let name = place.name(&decoded.workload.key.name);
        if let Some(reason) = context.sampling.over() {
            note(results, format!("{name}: skipped, {reason}"));
            continue;
        }
        let session = Session { decoded, text, place, compares_modes: index == 0 };
        session.run(context, results, &mut on_codes)?;
    }
    Ok(())
}

fn note(results: &mut Results, text: String) {
    results.notes.push(Note { study: STUDY.to_owned(), text });
}

/// Models on codes by mode, made once.
type OnCodes = Vec<(&'static str, Pretrained)>;

/// A place whose forms are timed in alternation.
struct Session<'a> {
    decoded: Decoded<'a>,
    text: &'a [u32],
    place: Behind,
    compares_modes: bool,
}

/// A form of the model in a session.
struct Form<'a> {
    mode: Mode,
    variant: Option<&'static str>,
    cache: Option<CacheCodes>,
    model: &'a Pretrained,
    format: DType,
}

impl Session<'_> {
    /// The forms, where models on codes are known.
    fn forms<'m>(
        &self,
        context: &Context<'_>,
        (model, on_codes): (&'m Pretrained, &'m OnCodes),
    ) -> Vec<Form<'m>> {
        let device = context.device();
        let fastest = device.backend.description().fastest_mode();
        let format_of = |model: &Pretrained| {
            model.native_half(device.backend.description()).unwrap_or(DType::F32)
        };
        let plain =
            |mode: Mode| Form { mode, variant: None, cache: None, model, format: format_of(model) };
        let mut forms: Vec<Form<'_>> = match self.compares_modes {
            true => {
                let runs = |mode: &Mode| *mode != Mode::Graph || device.is_accelerator();
                MODES.into_iter().filter(runs).map(plain).collect()
            }
            false => vec![plain(fastest)],
        };
        forms.extend(on_codes.iter().map(|(name, model)| Form {
            variant: Some(name),
            model,
            format: format_of(model),
            ..plain(fastest)
        }));
        if self.place.part == Part::Next {
            forms.extend(CACHES.iter().map(|&(codes, name)| Form {
                variant: Some(name),
                cache: Some(codes),
                ..plain(fastest)
            }));
        }
        forms
    }

    fn case(&self, context: &Context<'_>, workload: &Workload, form: &Form<'_>) -> Case {
        let entry = Entry {
            dtype: form.format,
            variant: form.variant,
            ..Entry::plain(workload, context.device(), form.mode)
        };
        entry.case(STUDY)
    }

    fn run(
        &self,
        context: &Context<'_>,
        results: &mut Results,
        on_codes: &mut Option<OnCodes>,
    ) -> Result<(), Failure> {
        let Decoded { workload, model, modes, coded } = self.decoded;
        let (device, place) = (context.device(), self.place);
        let workload = place.workload((workload, model), self.text)?;
        // Models on codes are made for a session that is wanted, which their names alone decide.
        let none = OnCodes::new();
        let plain = self.forms(context, (model, &none));
        let fastest = plain.last().expect("there is a plain form");
        let mut cases: Vec<Case> =
            plain.iter().map(|form| self.case(context, &workload, form)).collect();
        cases.extend(modes.iter().map(|name| {
            let form = Form { variant: Some(name), cache: None, ..*fastest };
            self.case(context, &workload, &form)
        }));
        if !context.journal.wants(&cases) {
            return Ok(());
        }
        if let Some(mut records) = context.taken_earlier(&cases) {
            records.extend(peers::taken_earlier(context, &cases));
            context.add(results, records);
            return Ok(());
        }
        context.journal.progress.workload(&workload.key.name);
        let made = || modes.iter().filter_map(|name| Some((*name, coded(name)?))).collect();
        let on_codes: &OnCodes = on_codes.get_or_insert_with(made);
        let forms = self.forms(context, (model, on_codes));
        let texts = place.texts(self.text);
        let oracle_of = |model| place.oracle((device.backend, model), &texts);
        let of_model = oracle_of(model);
        let of_codes: Vec<Oracle<'_>> =
            on_codes.iter().map(|(_, model)| oracle_of(model)).collect();
        let oracle_of = |form: &Form<'_>| {
            let coded = on_codes.iter().position(|(_, model)| std::ptr::eq(model, form.model));
            coded.map_or(&of_model, |at| &of_codes[at])
        };
        let mut timed: Vec<Tokens<'_>> = Vec::new();
        let mut ready: Vec<Case> = Vec::new();
        for form in &forms {
            let case = self.case(context, &workload, form);
            let oracle = oracle_of(form);
            let limit = limit(form, &workload, (oracle, context.sampling.seed))?;
            // Modes and caches of a model share its weights.
            let other = timed.iter().find(|other| std::ptr::eq(other.model, form.model));
            let decoder = match other {
                Some(other) => other.decoder.beside(form.mode, form.cache),
                None => {
                    let caches = Caches { codes: form.cache, ..place.caches() };
                    let target = (device.backend, form.mode);
                    CachedDecoder::in_format(target, form.model, caches, form.format)
                }
            };
            let tokens = decoder.and_then(|decoder| {
                Tokens::new((decoder, form.model), (place, form.format), &texts, (oracle, limit))
            });
            match tokens {
                Ok(tokens) => {
                    timed.push(tokens);
                    ready.push(case);
                }
                Err(error) => note(results, format!("{}: {error}", case.id())),
            }
        }
        let is_accelerator = device.is_accelerator();
        let peer_modes: &[&str] =
            if is_accelerator { &["eager", "graph"] } else { &["eager", "compile"] };
        let of_peers = context.with_peer_modes(peer_modes);
        let format = forms.first().map_or(DType::F32, |form| form.format);
        let mut entrants: Vec<peers::Entrant<'_>> =
            peers::entrants(&of_peers, (STUDY, &workload), format, &of_model)
                .into_iter()
                .map(|(case, opened)| (case, opened.map(peers::Timed::by_host_clock)))
                .collect();
        let mut subjects: Vec<&mut dyn Subject> =
            timed.iter_mut().map(|tokens| tokens as &mut dyn Subject).collect();
        subjects
            .extend(entrants.iter_mut().filter_map(|(_, opened)| Some(opened.as_mut().ok()? as _)));
        let mut outcomes = context.sampling.runner().compare(&mut subjects).into_iter();
        let mut next = || outcomes.next().expect("one outcome per subject");
        let eager = ready.first().map(Case::id);
        let float = ready.iter().rfind(|case| case.configuration.variant.is_none()).map(Case::id);
        let ceilings = &context.probes.ceilings;
        let record = |case: Case, against: &Option<String>, outcome: Outcome| {
            let baseline = against.clone().filter(|baseline| *baseline != case.id());
            let command = context.journal.command_of(STUDY);
            Record { case, baseline, seed: context.sampling.seed, command, outcome }
        };
        let mut records = Vec::new();
        for (case, tokens) in ready.into_iter().zip(&timed) {
            let mut outcome = next();
            if let Some(measurement) = outcome.measurement_mut() {
                let of = (device.threads, tokens.format());
                measurement.ceiling_shares = shares(ceilings, of, &tokens.work, measurement);
                measurement.work = Some(tokens.work.clone());
            }
            let is_plain = case.configuration.variant.is_none();
            records.push(record(case, if is_plain { &eager } else { &float }, outcome));
        }
        for (case, opened) in entrants {
            let mut outcome = match &opened {
                Ok(_) => next(),
                Err(failure) => Outcome::Failure(failure.clone()),
            };
            if let (Some(measurement), Ok(opened)) = (outcome.measurement_mut(), &opened) {
                measurement.overhead = opened.overhead.clone();
                measurement.work = timed.first().map(|tokens| tokens.work.clone());
            }
            records.push(record(case, &float, outcome));
        }
        context.add(results, records);
        Ok(())
    }
}

/// How far logits of a form may lie from those of the whole sequence.
fn limit(
    form: &Form<'_>,
    workload: &Workload,
    (oracle, seed): (&Oracle<'_>, u64),
) -> Result<Tolerance, Failure> {
    let of_codes = if form.model.coding.is_some() { TOLERANCE_OF_CODES } else { 0.0 };
    let share = of_codes + form.cache.map_or(0.0, tolerance_of_cache);
    let rounding = tolerance(form.format, &workload.graph, (oracle, seed))?;
    if share == 0.0 {
        return Ok(rounding);
    }
    let expected = oracle.expected(seed)?;
    let size = expected.iter().flatten().fold(0.0f64, |most, x| most.max(x.abs()));
    let atol = rounding.atol + share * size;
    Ok(Tolerance::of_elements(share + rounding.rtol, atol))
}
