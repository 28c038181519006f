//! Recognises the program that wrote a file, by its outermost keys alone. File names mean nothing.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::IgnoredAny;
use serde_json::Value;

use crate::verdicts::Verdicts;

/// The kinds of file that are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Our own results.
    Overdrive,
    /// Export of PyTorch's profiler, in Chrome's trace format.
    Pytorch,
    /// `nvbench --json`.
    Nvbench,
    /// Lines of `cargo criterion --message-format=json`.
    CriterionMessages,
    /// criterion's `sample.json`.
    CriterionSample,
    /// criterion's `estimates.json`.
    CriterionEstimates,
    /// The older suite's `quantization_report.json`.
    Quantization,
    /// The older suite's `kernel_benchmarks.json`.
    Kernels,
    /// The older suite's `compilation/*.json`.
    Compilation,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Overdrive => "Overdrive's results",
            Self::Pytorch => "a PyTorch profiler trace",
            Self::Nvbench => "nvbench JSON",
            Self::CriterionMessages => "criterion messages",
            Self::CriterionSample => "criterion samples",
            Self::CriterionEstimates => "criterion estimates",
            Self::Quantization => "a quantization report of the older suite",
            Self::Kernels => "a kernel report of the older suite",
            Self::Compilation => "a compilation report of the older suite",
        })
    }
}

/// The outermost keys, without the memory that their values would take.
type Keys = BTreeMap<String, IgnoredAny>;

/// Reports of the older suite are small. Nested keys of larger files are not searched.
const NESTED_MAX_BYTES: usize = 16 << 20;

impl Format {
    /// The format of `text`, also where it is damaged further down.
    pub(super) fn of(text: &str) -> Option<Self> {
        let Some(keys) = keys(text) else { return lines(text) };
        let has = |names: &[&str]| names.iter().all(|name| keys.contains(*name));
        match () {
            () if has(&["schema_version"]) => Some(Self::Overdrive),
            () if has(&["traceEvents"]) => Some(Self::Pytorch),
            () if has(&["benchmarks"]) => Some(Self::Nvbench),
            () if has(&["iters", "times"]) => Some(Self::CriterionSample),
            () if has(&["mean", "median", "std_dev"]) => Some(Self::CriterionEstimates),
            () if has(&["model", "backends"]) => Some(Self::Compilation),
            () => lines(text).or_else(|| nested(text)),
        }
    }
}

/// The outermost keys, also of an object that ends too early: as many as there are.
fn keys(text: &str) -> Option<std::collections::BTreeSet<String>> {
    match serde_json::from_str::<Keys>(text) {
        Ok(keys) => Some(keys.into_keys().collect()),
        Err(error) if error.is_eof() => {
            let known = [
                "schema_version",
                "traceEvents",
                "benchmarks",
                "iters",
                "times",
                "model",
                "backends",
            ];
            let present = known.iter().filter(|name| text.contains(&format!("\"{name}\"")));
            Some(present.map(|name| (*name).to_owned()).collect())
        }
        Err(_) => None,
    }
}

/// criterion's messages are objects, one a line, each with its reason.
fn lines(text: &str) -> Option<Format> {
    let first = text.lines().find(|line| !line.trim().is_empty())?;
    let keys: Keys = serde_json::from_str(first).ok()?;
    keys.contains_key("reason").then_some(Format::CriterionMessages)
}

/// Formats that are known by what the values of their keys hold.
fn nested(text: &str) -> Option<Format> {
    if text.len() > NESTED_MAX_BYTES {
        return None;
    }
    let values: BTreeMap<String, Value> = serde_json::from_str(text).ok()?;
    let any = |test: &dyn Fn(&Value) -> bool| values.values().any(test);
    let timed = |value: &Value| value.get("mean_time_ms").is_some();
    if any(&|mode| mode.get("model_size_bytes").is_some()) {
        Some(Format::Quantization)
    } else if any(&|group| group.as_object().is_some_and(|variants| variants.values().any(timed))) {
        Some(Format::Kernels)
    } else {
        None
    }
}

/// Describes a text of an unknown format.
pub(super) fn describe(text: &str) -> String {
    const SHOWN: usize = 8;
    if text.trim().is_empty() {
        return "it is empty".to_owned();
    }
    if Verdicts::claims(text) {
        return "it holds verdicts of `overdrive regress`, which `overdrive report` takes beside \
                the results"
            .to_owned();
    }
    match serde_json::from_str::<Keys>(text) {
        Ok(keys) if keys.is_empty() => "it is an empty object".to_owned(),
        Ok(keys) => {
            let shown: Vec<String> =
                keys.keys().take(SHOWN).map(|key| format!("`{}`", brief(key))).collect();
            let more = if keys.len() > SHOWN { ", ..." } else { "" };
            format!("it is an object with the keys {}{more}", shown.join(", "))
        }
        Err(error) => match serde_json::from_str::<IgnoredAny>(text) {
            Ok(_) => "it is JSON, but not an object".to_owned(),
            Err(_) => format!("it is not JSON: {error}"),
        },
    }
}

/// The beginning of a name that may be of any length.
fn brief(name: &str) -> String {
    let short: String = name.chars().filter(|c| !c.is_control()).take(40).collect();
    if short.len() < name.len() { format!("{short}...") } else { short }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_a_file_says_what_it_is() {
        let cases = [
            (r#"{"schema_version": 1}"#, Some(Format::Overdrive)),
            (r#"{"schemaVersion": 1, "traceEvents": []}"#, Some(Format::Pytorch)),
            (r#"{"benchmarks": [], "devices": []}"#, Some(Format::Nvbench)),
            (r#"{"iters": [1.0], "times": [2.0]}"#, Some(Format::CriterionSample)),
            (r#"{"mean": 1, "median": 1, "std_dev": 1}"#, Some(Format::CriterionEstimates)),
            ("{\"reason\": \"a\"}\n{\"reason\": \"b\"}\n", Some(Format::CriterionMessages)),
            (r#"{"model": {}, "backends": {}}"#, Some(Format::Compilation)),
            (r#"{"int8": {"model_size_bytes": 1}}"#, Some(Format::Quantization)),
            (r#"{"fusion": {"fused": {"mean_time_ms": 1}}}"#, Some(Format::Kernels)),
            (r#"{"traceEvents": [{"ph""#, Some(Format::Pytorch)),
            (r#"{"hello": 1}"#, None),
            ("[1, 2]", None),
            ("", None),
            ("hello", None),
        ];
        for (text, format) in cases {
            assert_eq!(Format::of(text), format, "{text}");
        }
    }

    #[test]
    fn what_is_unknown_is_described() {
        assert_eq!(describe(" \n"), "it is empty");
        assert_eq!(describe("{}"), "it is an empty object");
        assert_eq!(describe("[1]"), "it is JSON, but not an object");
        assert_eq!(describe(r#"{"a": 1, "b": 2}"#), "it is an object with the keys `a`, `b`");
        assert!(describe("hello").starts_with("it is not JSON"));
        let long = format!(r#"{{"{}": 1}}"#, "x".repeat(10_000));
        assert!(describe(&long).len() < 200);
    }
}
