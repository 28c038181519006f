//! Adapters as a folder in PEFT's format: `adapter_config.json` and `adapter_model.safetensors`.
//!
//! `PeftModel.from_pretrained(model, folder)` puts them beside the weights of the model that they
//! were trained on. Names of modules are those of the class with a head, which states have too.
//! The head of a classifier is trained whole, and stands beside its adapters.
//! Source: <https://huggingface.co/docs/peft/developer_guides/checkpoint>.

use super::{ModelTask, Pretrained, PretrainedError};
use overdrive_formats::{Tensors, huggingface};
use overdrive_passes::{KAxis, Layer, Lora};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::Path;

/// Prefix of PEFT for the name of a module.
const PREFIX: &str = "base_model.model.";

impl Pretrained {
    /// Writes the trained adapters of these layers; `base` is where the model that they belong to
    /// lies.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn write_adapters<'l>(
        &self,
        folder: &Path,
        (lora, layers): (Lora, &'l [Layer]),
        trained: &Tensors,
        base: &str,
    ) -> Result<(), PretrainedError> {
        let states = layers.iter().flat_map(|layer| Lora::states(&layer.name));
        let beside = trained.keys().filter(|name| !Lora::is_adapter(name)).cloned();
        let tensors: Tensors = states
            .chain(beside)
            .map(|name| (format!("{PREFIX}{name}"), trained[&name].clone()))
            .collect();
        let is_classifier = self.architecture.task() == ModelTask::Classifier;
        // The last part of a name may also be that of a layer of a classifier's head.
        let named = |layer: &'l Layer| match is_classifier {
            true => layer.name.as_str(),
            false => layer.name.rsplit('.').next().unwrap_or(&layer.name),
        };
        let modules: BTreeSet<&str> = layers.iter().map(named).collect();
        let mut config = json!({
            "peft_type": "LORA",
            "task_type": if is_classifier { "SEQ_CLS" } else { "CAUSAL_LM" },
            "base_model_name_or_path": base,
            "r": lora.rank,
            "lora_alpha": lora.alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": modules,
            // GPT-2's Conv1D, whose weights are `[in, out]`.
            "fan_in_fan_out": layers.iter().any(|layer| layer.held.order == KAxis::InputMajor),
            "init_lora_weights": true,
            "inference_mode": true,
        });
        if is_classifier {
            config["modules_to_save"] = json!(self.head_modules());
        }
        Ok(huggingface::write_adapter(folder, &config, &tensors)?)
    }

    /// The modules that hold the layers of a classifier's head.
    fn head_modules(&self) -> BTreeSet<String> {
        let layers = self.architecture.classifier().into_iter();
        layers
            .map(|layer| layer.rsplit_once('.').map_or(layer.clone(), |(m, _)| m.to_owned()))
            .collect()
    }
}
