//! What is trained, on what, and how: everything that is known before a device is opened.

use super::{failure, table};
use crate::cli::Train;
use crate::failure::Failure;
use crate::model::{self, Model};
use overdrive::formats::huggingface::Tokenizer;
use overdrive::ir::Graph;
use overdrive::studies::Template;
use overdrive::studies::pretrained::{Pretrained, Task as Gives};
use overdrive::train::data::{Dataset, Parts, Reading, Split, Subset, open, open_as};
use overdrive::train::{EarlyStop, Recipe, fine_tuning, recipe_of};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Windows of held-out text that judge a published model, which is larger than ours, at a time.
const JUDGED: u64 = 64;

/// A run of training.
pub(super) struct Task {
    /// The model, and what it was published as, where it was.
    pub(super) template: Template,
    pub(super) published: Option<Box<Pretrained>>,
    /// The graph that learns: the template's, of which at most the batch has no size yet.
    pub(super) model: Graph,
    pub(super) recipe: Recipe,
    pub(super) parts: Parts,
    /// Tokens of a window, where the model leaves that open.
    tokens: Option<usize>,
}

impl Task {
    /// What the command line asks for.
    pub(super) fn open(arguments: &Train) -> Result<Self, Failure> {
        let Some(name) = &arguments.model else { return Self::ours(arguments, None) };
        let found = model::load_to_train(name)?;
        let template = found.template()?;
        match found {
            Model::Pretrained(published) => Self::fine_tune(arguments, (template, published)),
            _ => Self::ours(arguments, Some(template)),
        }
    }

    /// A built-in model, one that learnt here, or one that is sized to the data.
    fn ours(arguments: &Train, template: Option<Template>) -> Result<Self, Failure> {
        for (option, is_given) in
            [("--tokens", arguments.tokens.is_some()), ("--adapter", arguments.adapter)]
        {
            if is_given {
                let found = arguments.model.as_deref().unwrap_or("no MODEL");
                return Err(Failure::bad_input(format!(
                    "{option}: expected a model in Hugging Face's format, found {found}; leave \
                     the option out"
                )));
            }
        }
        let like = template.as_ref().and_then(|template| template.columns.clone());
        let reading = Reading { label: arguments.label.clone(), like };
        let mut data = open_as(&arguments.data, &reading).map_err(failure)?;
        if arguments.label.is_some() && data.columns().is_none() {
            let found = &arguments.data;
            return Err(Failure::bad_input(format!(
                "--label: expected a .csv file, whose columns it chooses from, found `{found}`"
            )));
        }
        let fold = usize::from(arguments.fold);
        let template = match template {
            Some(template) => table::taught(template, &data, fold)?,
            None => table::sized(&data, fold)?,
        };
        let recipe = Recipe { lora: arguments.lora, ..recipe_of(&template.name) };
        let recipe = changed(arguments, recipe)?;
        if let Some(tokenizer) = &arguments.tokenizer {
            data = data
                .encoded(tokenizer, template.vocabulary.unwrap_or(usize::MAX))
                .map_err(failure)?;
        }
        let parts = data.parts(&template.graph, fold).map_err(failure)?;
        Ok(Self {
            model: template.graph.clone(),
            template,
            published: None,
            recipe,
            parts,
            tokens: None,
        })
    }

    /// A published decoder goes on learning from a text, in windows of one length.
    fn fine_tune(
        arguments: &Train,
        (template, published): (Template, Box<Pretrained>),
    ) -> Result<Self, Failure> {
        let name = &published.name;
        if arguments.label.is_some() {
            return Err(Failure::bad_input(format!(
                "--label: expected a model that learns from a table, found `{name}`, which reads \
                 text"
            )));
        }
        let found = match published.architecture.task() {
            Gives::Decoder => None,
            Gives::Encoder => Some("an encoder, which gives vectors"),
            Gives::Classifier => Some("a classifier, which gives classes"),
            Gives::Other => Some("a model that reads more than text"),
        };
        if let Some(found) = found {
            return Err(Failure::bad_input(format!(
                "`{name}`: expected a decoder of text, which gives the next token, found {found}; \
                 of \
                 published models decoders alone are trained here"
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
        let recipe = changed(arguments, fine_tuning(arguments.lora))?;
        let tokens =
            arguments.tokens.map_or(template.dimensions["tokens"], |tokens| tokens as usize);
        let sizes = [("batch".to_owned(), recipe.batch), ("tokens".to_owned(), tokens)].into();
        let model = template.graph_of(&sizes).map_err(Failure::bad_input)?;
        let parts = windows(arguments, &published, tokens)?;
        Ok(Self {
            template,
            published: Some(published),
            model,
            recipe,
            parts,
            tokens: Some(tokens),
        })
    }
}

impl Task {
    /// Sizes of the dimensions of the template's graph.
    pub(super) fn sizes(&self) -> BTreeMap<String, usize> {
        let batch = Some(("batch".to_owned(), self.recipe.batch));
        batch.into_iter().chain(self.tokens.map(|tokens| ("tokens".to_owned(), tokens))).collect()
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
    let given = arguments.tokenizer.as_ref();
    let given = given.map(|file| Tokenizer::read(file, model.architecture.vocabulary()));
    let given = given.transpose().map_err(Failure::bad_input)?;
    let tokenizer = given.as_ref().or(model.tokenizer.as_ref()).ok_or_else(|| {
        Failure::bad_input(format!(
            "`{}` has no tokenizer.json to read a text with: put it into the folder, or give \
             --tokenizer FILE",
            model.name
        ))
    })?;
    let text = Dataset::Text(Arc::new(text.encoded(tokenizer).map_err(failure)?));
    let parts = text.windows(tokens).map_err(failure)?;
    let few = |split: Arc<dyn Split>| -> Arc<dyn Split> { Arc::new(Subset::evenly(split, JUDGED)) };
    Ok(Parts { validation: few(parts.validation), test: few(parts.test), ..parts })
}

/// The recipe with what the user asked for in place of its own.
fn changed(arguments: &Train, mut recipe: Recipe) -> Result<Recipe, Failure> {
    recipe.precision = arguments.precision.into();
    recipe.seed = arguments.machine.seed;
    recipe.accumulate = arguments.accumulate as usize;
    let asked = arguments.patience.map(|patience| EarlyStop { patience });
    recipe.early_stop = asked.or(recipe.early_stop);
    recipe.batch = arguments.batch.map_or(recipe.batch, |batch| batch as usize);
    recipe.schedule.peak = arguments.lr.unwrap_or(recipe.schedule.peak);
    if let Some(steps) = arguments.steps {
        recipe.schedule.warmup = recipe.schedule.warmup.min(steps / 10);
        recipe.steps = steps;
    }
    recipe.check().map_err(Failure::bad_input)?;
    Ok(recipe)
}
