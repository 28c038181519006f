//! The training task: model, data and recipe, as far as they are known before a device is opened.

use super::failure::failure;
use super::optimization::optimized;
use super::tabular;
use crate::cli::Train;
use crate::commands::texts::{self, Length};
use crate::failure::Failure;
use crate::model::{self, Model};
use crate::terminal::note;
use overdrive::decoding::LanguageModel;
use overdrive::formats::huggingface::Tokenizer;
use overdrive::ir::{DType, Graph};
use overdrive::models::Span;
use overdrive::studies::Template;
use overdrive::studies::pretrained::{ModelTask as Gives, Pretrained};
use overdrive::train::data::{Dataset, Parts, Reading, Split, Subset, open, open_as};
use overdrive::train::{
    EarlyStop, Formats, Recipe, fine_tuning, fine_tuning_of_classes, from_scratch,
    from_scratch_of_classes, gate_training, recipe_of,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Windows of held-out text that judge a published model, which is larger than ours, at a time.
const JUDGED: u64 = 64;
/// Most tokens of a text that judge a model which learnt from scratch, in windows that are spread
/// evenly over the test part. The mean of so many is known to a fraction of a per cent.
const JUDGED_TOKENS: u64 = 1 << 19;
/// Most tokens of a window of text that a published architecture learns from scratch.
const TOKENS_FROM_SCRATCH: usize = 2048;
/// Tiles of a row of text that gates learn from.
const TILES: usize = 16;

/// A run of training.
pub(super) struct TrainingRun {
    /// The model, and the published model that it is, if it is one.
    pub(super) template: Template,
    pub(super) published: Option<Box<Pretrained>>,
    /// The graph that learns: the template's, bound except for the batch. A classifier's is bound.
    pub(super) model: Graph,
    pub(super) recipe: Recipe,
    pub(super) parts: Parts,
    /// Tokens of a window, where the model leaves that open.
    tokens: Option<usize>,
}

impl TrainingRun {
    /// The run that the command line requests.
    pub(super) fn open(arguments: &Train) -> Result<Self, Failure> {
        let Some(name) = &arguments.model else { return Self::ours(arguments, None) };
        let found = match arguments.from_scratch {
            true => model::load_from_scratch(name)?,
            false => model::load_to_train(name)?,
        };
        match found {
            Model::Pretrained(published) => Self::published(arguments, *published),
            ours => Self::ours(arguments, Some(ours.template()?)),
        }
    }

    /// A built-in model, one that learnt here, or one that is sized to the data.
    fn ours(arguments: &Train, template: Option<Template>) -> Result<Self, Failure> {
        for (option, is_given) in [
            ("--tokens", arguments.tokens.is_some()),
            ("--adapter", arguments.adapter),
            ("--gate", arguments.gate.is_some()),
            ("--from-scratch", arguments.from_scratch),
        ] {
            if is_given {
                let found = arguments.model.as_deref().unwrap_or("no MODEL");
                return Err(Failure::bad_input(format!(
                    "{option}: expected a model in Hugging Face's format, found {found}; leave \
                     the option out"
                )));
            }
        }
        let like = template.as_ref().and_then(|template| template.columns.clone());
        let target = arguments.target.map(Into::into);
        let reading = Reading { label: arguments.label.clone(), target, like };
        let mut data = open_as(&arguments.data, &reading).map_err(failure)?;
        for (option, is_given) in
            [("--label", arguments.label.is_some()), ("--target", arguments.target.is_some())]
        {
            if is_given && data.columns().is_none() {
                let found = &arguments.data;
                return Err(Failure::bad_input(format!(
                    "{option}: expected a .csv file, of whose columns it tells, found `{found}`"
                )));
            }
        }
        let fold = usize::from(arguments.fold);
        let template = match template {
            Some(template) => tabular::taught(template, &data, fold)?,
            None => tabular::sized(&data, fold)?,
        };
        let recipe = Recipe { lora: arguments.lora, ..recipe_of(&template.name) };
        let recipe = changed(arguments, recipe)?;
        if let Some(tokenizer) = &arguments.tokenizer {
            data = data
                .encoded(tokenizer, template.vocabulary.unwrap_or(usize::MAX))
                .map_err(failure)?;
        }
        let mut parts = data.parts(&template.graph, fold).map_err(failure)?;
        if matches!(data, Dataset::Text(_)) {
            parts = judged(parts, tokens_of(&template.graph));
        }
        Ok(Self {
            model: template.graph.clone(),
            template,
            published: None,
            recipe,
            parts,
            tokens: None,
        })
    }

    /// A published decoder learns from a text, in windows of one length; a classifier from labelled
    /// texts. It goes on, or is new.
    fn published(arguments: &Train, published: Pretrained) -> Result<Self, Failure> {
        let published = if published.is_new() { new(arguments, published)? } else { published };
        let template = published.template().map_err(Failure::harness)?;
        let name = &published.name;
        let task = published.architecture.task();
        for (option, is_given) in [
            ("--label", arguments.label.is_some() && task != Gives::Classifier),
            ("--target", arguments.target.is_some()),
        ] {
            if is_given {
                return Err(Failure::bad_input(format!(
                    "{option}: expected a model that learns from a table, found `{name}`, which \
                     reads text; leave the option out"
                )));
            }
        }
        let found = match task {
            Gives::Decoder | Gives::Classifier => None,
            Gives::Encoder => Some("an encoder, which gives vectors"),
            Gives::Other => Some("a model that reads more than text"),
        };
        if let Some(found) = found {
            return Err(Failure::bad_input(format!(
                "`{name}`: expected a decoder of text, which gives the next token, or a \
                 classifier, which gives classes, found {found}; other published models are not \
                 trained here"
            )));
        }
        if let Some(coding) = &published.coding {
            return Err(Failure::bad_input(format!(
                "`{name}` is quantized ({}): expected float weights; train the folder that it was \
                 made \
                 from, then quantize it: overdrive quantize DIR --mode {} -o DIR",
                coding.mode, coding.mode
            )));
        }
        let asked = arguments.tokens.map(|tokens| tokens as usize);
        // A gate learns from rows of several tiles.
        let of_tiles = |tile: u32| (TILES * tile as usize).min(published.architecture.context());
        let usual = match arguments.gate {
            Some(tile) => of_tiles(tile),
            None if published.is_new() && task == Gives::Decoder => {
                TOKENS_FROM_SCRATCH.min(published.architecture.context())
            }
            None => template.dimensions["tokens"],
        };
        if let (Some(tile), Gives::Classifier) = (arguments.gate, task) {
            return Err(Failure::bad_input(format!(
                "--gate {tile}: expected a decoder of text, found `{name}`, which is a classifier; \
                 leave the option out"
            )));
        }
        let gate = arguments.gate.map(|tile| tile as usize);
        let recipe = match task {
            Gives::Classifier if published.is_new() => from_scratch_of_classes(),
            _ if published.is_new() => from_scratch(),
            Gives::Classifier => Recipe {
                beside_lora: head(&published, &template),
                ..fine_tuning_of_classes(arguments.lora)
            },
            Gives::Decoder | Gives::Encoder | Gives::Other => {
                gate.map_or_else(|| fine_tuning(arguments.lora), gate_training)
            }
        };
        let recipe = changed(arguments, recipe)?;
        let model_of = |tokens: usize| {
            let sizes = [("batch".to_owned(), recipe.batch), ("tokens".to_owned(), tokens)].into();
            let bound = template.graph_of(&sizes).map_err(Failure::bad_input)?;
            match task {
                // Advice about memory tries other batches.
                Gives::Decoder => {
                    published.graph(Span::Fixed(tokens), DType::F32).map_err(Failure::harness)
                }
                Gives::Classifier | Gives::Encoder | Gives::Other => Ok(bound),
            }
        };
        let (model, parts, tokens) = match task {
            Gives::Classifier => {
                let (parts, tokens) = labelled(arguments, &published, (asked, usual))?;
                (model_of(tokens)?, parts, tokens)
            }
            Gives::Decoder | Gives::Encoder | Gives::Other => {
                let tokens = asked.unwrap_or(usual);
                (model_of(tokens)?, windows(arguments, &published, tokens)?, tokens)
            }
        };
        Ok(Self {
            template,
            published: Some(Box::new(published)),
            model,
            recipe,
            parts,
            tokens: Some(tokens),
        })
    }
}

impl TrainingRun {
    /// Sizes of the dimensions of the template's graph.
    pub(super) fn sizes(&self) -> BTreeMap<String, usize> {
        let batch = Some(("batch".to_owned(), self.recipe.batch));
        batch.into_iter().chain(self.tokens.map(|tokens| ("tokens".to_owned(), tokens))).collect()
    }
}

/// The parts of a text for a model that learns from scratch, in windows of so many tokens.
fn judged(parts: Parts, tokens: u64) -> Parts {
    let windows = (JUDGED_TOKENS / tokens).max(1);
    Parts { test: Arc::new(Subset::evenly(parts.test, windows)), ..parts }
}

/// Tokens of a sample of a language model.
fn tokens_of(model: &Graph) -> u64 {
    let x = model.inputs().iter().find(|port| port.name == "x");
    let size = x.and_then(|x| model.ty(x.value).shape.0.last()?.size());
    size.map_or(1, |size| size.max(1) as u64)
}

/// A model with new weights, and with the tokens that it will have learnt.
fn new(arguments: &Train, model: Pretrained) -> Result<Pretrained, Failure> {
    for (option, is_given) in
        [("--lora", arguments.lora.is_some()), ("--gate", arguments.gate.is_some())]
    {
        if is_given {
            return Err(Failure::bad_input(format!(
                "{option}: expected a model that has learnt, found `{}` with new weights; leave \
                 the option out, or train a folder with weights without --from-scratch",
                model.name
            )));
        }
    }
    let bytes = Tokenizer::BYTES;
    let is_decoder = model.architecture.task() == Gives::Decoder;
    let may_read_bytes = is_decoder && model.architecture.vocabulary() >= bytes.vocabulary();
    let tokenizer = match given_tokenizer(arguments, &model)? {
        None if model.tokenizer.is_none() && may_read_bytes => {
            note!("note: no tokenizer.json, so a token is a byte; --tokenizer FILE gives others");
            Some(bytes)
        }
        given => given,
    };
    match tokenizer {
        Some(tokenizer) => model.with_tokenizer(tokenizer).map_err(Failure::harness),
        None => Ok(model),
    }
}

/// The parts of a text in the model's own tokens.
fn windows(arguments: &Train, model: &Pretrained, tokens: usize) -> Result<Parts, Failure> {
    let Dataset::Text(text) = open(&arguments.data).map_err(failure)? else {
        return Err(Failure::bad_input(format!(
            "--data: `{}` learns from text: expected `text` or a file of UTF-8 text, found `{}`, \
             which \
             is labelled samples",
            model.name, arguments.data
        )));
    };
    let given = given_tokenizer(arguments, model)?;
    let tokenizer = tokenizer(given.as_ref(), model)?;
    let text = Dataset::Text(text.encoded(tokenizer).map_err(failure)?);
    let parts = text.windows(tokens).map_err(failure)?;
    if model.is_new() {
        return Ok(judged(parts, tokens as u64));
    }
    let few = |split: Arc<dyn Split>| -> Arc<dyn Split> { Arc::new(Subset::evenly(split, JUDGED)) };
    Ok(Parts { validation: few(parts.validation), test: few(parts.test), ..parts })
}

/// The parts of labelled texts in the model's own tokens, and the tokens of a row. These are what
/// the user asks for, else those of the longest text, up to the usual number.
fn labelled(
    arguments: &Train,
    model: &Pretrained,
    (asked, usual): (Option<usize>, usize),
) -> Result<(Parts, usize), Failure> {
    let given = given_tokenizer(arguments, model)?;
    let tokenizer = tokenizer(given.as_ref(), model)?;
    let (data, label) = (arguments.data.as_str(), arguments.label.as_deref());
    let of = texts::TextsSource { data, label, fold: usize::from(arguments.fold) };
    texts::parts((model, tokenizer), of, asked.map_or(Length::AtMost(usual), Length::Exactly))
}

/// The parameters of a classifier's head, which are trained in addition to adapters, since its
/// classes are those of the user's samples.
fn head(model: &Pretrained, template: &Template) -> Vec<String> {
    let layers = model.architecture.classifier();
    let is_of_head = |name: &str| layers.iter().any(|layer| name.starts_with(&format!("{layer}.")));
    let states = template.graph.states().iter().map(|state| state.name.clone());
    states.filter(|name| is_of_head(name)).collect()
}

/// The tokenizer of `--tokenizer`.
fn given_tokenizer(arguments: &Train, model: &Pretrained) -> Result<Option<Tokenizer>, Failure> {
    let given = arguments.tokenizer.as_ref();
    let given = given.map(|file| Tokenizer::read(file, model.architecture.vocabulary()));
    given.transpose().map_err(Failure::bad_input)
}

/// That tokenizer, else the model's.
fn tokenizer<'t>(
    given: Option<&'t Tokenizer>,
    model: &'t Pretrained,
) -> Result<&'t Tokenizer, Failure> {
    given.or(model.tokenizer.as_ref()).ok_or_else(|| {
        Failure::bad_input(format!(
            "`{}` has no tokenizer.json to read a text with: put it into the folder, or give \
             --tokenizer FILE",
            model.name
        ))
    })
}

/// The recipe with what the user asked for in place of its own.
fn changed(arguments: &Train, recipe: Recipe) -> Result<Recipe, Failure> {
    let formats = arguments.recipe.as_deref().map(Formats::read).transpose().map_err(failure)?;
    let mut recipe = recipe.in_formats(formats.unwrap_or_else(|| arguments.precision.clone()));
    recipe.seed = arguments.machine.seed;
    recipe.moments = arguments.moments.into();
    recipe.parameters = arguments.parameters.into();
    recipe.compression = arguments.compress;
    recipe.accumulate = arguments.accumulate as usize;
    let asked = arguments.patience.map(|patience| EarlyStop { patience });
    recipe.early_stop = asked.or(recipe.early_stop);
    recipe.batch = arguments.batch.map_or(recipe.batch, |batch| batch as usize);
    let recipe = optimized(&arguments.optimization, arguments.steps, recipe)?;
    recipe.check().map_err(Failure::bad_input)?;
    Ok(recipe)
}
