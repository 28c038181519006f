//! The page about the cases: figures first, then every failure with its reason.

use std::collections::BTreeMap;

use super::case::Ending;
use super::exported::Exported;

/// The outcome of a case.
pub(crate) struct CaseResult {
    pub(crate) name: String,
    pub(crate) kind: String,
    /// Whether ONNX Runtime passes it.
    pub(crate) runtime: bool,
    pub(crate) ending: Ending,
    /// The outcome when written again, if it passes.
    pub(crate) exported: Option<Exported>,
}

const HEAD: &str = "\
# ONNX models in, and out again

`cargo xtask onnx-tests DIR...` writes this page, with `onnx` 1.23 and `onnxruntime` in `python3`.
Three programs write the folders:

- `python3 peers/onnx_cases.py DIR`: ONNX's own backend tests (node, simple, pytorch-operator and
  pytorch-converted cases);
- `python3 peers/onnx_models.py DIR`: models that PyTorch and Overdrive export;
- `python3 peers/onnx_quantized.py DIR`: models that ONNX Runtime's quantizers write.

";

pub(crate) fn page(cases: &[CaseResult]) -> String {
    let (models, tests): (Vec<&CaseResult>, Vec<&CaseResult>) =
        cases.iter().partition(|case| case.kind.starts_with("model"));
    let mut text = HEAD.to_owned();
    if !tests.is_empty() {
        text.push_str("## ONNX's backend tests\n\n");
        section(&mut text, &tests);
    }
    let (quantized, models): (Vec<&CaseResult>, Vec<&CaseResult>) = models
        .into_iter()
        .partition(|case| case.kind.starts_with("model, onnxruntime.quantization"));
    let parts = [
        ("Models that PyTorch and Overdrive export", models),
        ("Models that ONNX Runtime quantized", quantized),
    ];
    for (title, cases) in parts.into_iter().filter(|(_, cases)| !cases.is_empty()) {
        text.push_str(&format!("## {title}\n\n"));
        section(&mut text, &cases);
    }
    text.trim_end().to_owned() + "\n"
}

fn section(text: &mut String, cases: &[&CaseResult]) {
    let count =
        |wanted: &dyn Fn(&CaseResult) -> bool| cases.iter().filter(|case| wanted(case)).count();
    let ok = |case: &CaseResult| !matches!(case.ending, Ending::Fails(_));
    let runtime = count(&|case| case.runtime);
    let both = count(&|case| case.runtime && ok(case));
    let bound = count(&|case| case.ending == Ending::PassesBound);
    let constant = count(&|case| case.ending == Ending::Constant);
    text.push_str(&format!(
        "In: each case is one `overdrive eval --expect` on the CPU in mode `compile`, with the \
         case's own\ntolerances. A case with a step in the f64 reference counts as failed.\n\n\
         | | cases |\n|---|---|\n| all | {} |\n| pass here | {} |\n| ... of which shapes are \
         decided by the value of an input, which is bound | {bound} |\n\
         | ... of which nothing is left to compute once such inputs are bound | {constant} |\n\
         | pass in ONNX Runtime's CPU provider | {runtime} |\n| of those pass here | {both} ({}) \
         |\n\n",
        cases.len(),
        count(&ok),
        share(both, runtime),
    ));
    let agrees = |case: &CaseResult| case.exported == Some(Exported::Agrees);
    let agree_both = count(&|case| case.runtime && agrees(case));
    let (agree_here, here) =
        (count(&|case| !case.runtime && agrees(case)), count(&|case| !case.runtime && ok(case)));
    text.push_str(&format!(
        "Out: `overdrive export --inputs` writes each case that passes again. It agrees where \
         `onnx.checker`\naccepts the file in full, and where ONNX Runtime's outputs and ours, read \
         from that file, are the\nexpected ones.\n\n\
         | | agree |\n|---|---|\n| of those that ONNX Runtime passes and we import | {agree_both} \
         of {both} ({}) |\n",
        share(agree_both, both),
    ));
    if here > 0 {
        text.push_str(&format!(
            "| of those that ONNX Runtime cannot run as they come, and we import | {agree_here} \
             of {here} ({}) |\n",
            share(agree_here, here),
        ));
    }
    text.push('\n');
    let why = |case: &&&CaseResult| match &case.ending {
        Ending::Fails(reason) => Some(reason.clone()),
        _ => None,
    };
    let out = |case: &&&CaseResult| match case.exported.as_ref()? {
        Exported::Agrees => None,
        Exported::Refused(reason) => Some(format!("not written: {reason}")),
        Exported::Fails(reason) => Some(reason.clone()),
        Exported::BackFails(reason) => Some(format!("read back: {reason}")),
    };
    let titles = ["What ONNX Runtime passes and we do not", "What neither passes"];
    reasons(text, titles, cases, &why);
    let titles = [
        "Written again, ONNX Runtime disagrees",
        "Written again, of what ONNX Runtime cannot run as it comes",
    ];
    reasons(text, titles, cases, &out);
}

/// Two tables, of what ONNX Runtime passes and of the rest: reasons, and the cases of each.
fn reasons(
    text: &mut String,
    titles: [&str; 2],
    cases: &[&CaseResult],
    why: &dyn Fn(&&&CaseResult) -> Option<String>,
) {
    for (title, runtime) in titles.into_iter().zip([true, false]) {
        let mut groups: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for case in cases.iter().filter(|case| case.runtime == runtime) {
            if let Some(reason) = why(&case) {
                groups.entry(reason).or_default().push(&case.name);
            }
        }
        if groups.is_empty() {
            continue;
        }
        text.push_str(&format!("### {title}\n\n| reason | cases |\n|---|---|\n"));
        for (reason, names) in groups {
            text.push_str(&format!("| {} | {} |\n", reason.replace('|', "\\|"), names.join(" ")));
        }
        text.push('\n');
    }
}

fn share(part: usize, whole: usize) -> String {
    format!("{:.1} %", 100.0 * part as f64 / whole.max(1) as f64)
}
