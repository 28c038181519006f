//! Two examples for the end of each command's help.

pub(super) const RUN: &str = r#"Examples:
  overdrive run --quick
  overdrive run --model my-model --data text.txt -o reports/my-model"#;
pub(super) const BENCH: &str = r#"Examples:
  overdrive bench conv --batch 1,8 --dtype f32,bf16
  overdrive bench model.onnx --shape batch=4 --backends cpu,onnxruntime -o reports/mine"#;
pub(super) const EVAL: &str = r#"Examples:
  overdrive eval model.onnx --inputs inputs.npz -o outputs.npz
  overdrive eval digits-mlp --inputs inputs.npz --expect outputs.npz --rtol 1e-4"#;
pub(super) const EXPORT: &str = r#"Examples:
  overdrive export digits-mlp --onnx digits.onnx
  overdrive export digits-conv --triton served --shape batch=8"#;
pub(super) const EXPLAIN: &str = r#"Examples:
  overdrive explain text-transformer --training --batch 64 --memory-limit 256MiB
  overdrive explain gpt-125m --training --batch 64 --mesh data=4 --gpu h200 --fabric nvlink-h200"#;
pub(super) const PROFILE: &str = r#"Examples:
  overdrive profile model.onnx --shape batch=1 --trace trace.json
  overdrive profile gpt-125m --training --mesh data=2 --trace ranks.json"#;
pub(super) const GENERATE: &str = r#"Examples:
  overdrive generate models/gpt2 --prompt "Once upon a time"
  overdrive generate models/gpt2 --prompt "Once" --temperature 0.8 --top-k 40 --seed 7"#;
pub(super) const TOKENS: &str = r#"Examples:
  overdrive tokens book.txt --tokenizer models/gpt2 -o book.tokens
  overdrive tokens web.jsonl --tokenizer models/gpt2 --separator "<|endoftext|>" -o web.tokens"#;
pub(super) const TRAIN: &str = r#"Examples:
  overdrive train --data flowers.csv --label species -o model
  overdrive train models/gpt2 --data book.txt --lora 8 --adapter -o tuned"#;
pub(super) const OPTIMIZE: &str = r#"Examples:
  overdrive optimize models/gpt2 --data book.txt --max-loss 1 -o deployed
  overdrive optimize --replay deployed/decision.json"#;
pub(super) const QUANTIZE: &str = r#"Examples:
  overdrive quantize model.onnx --mode int8-static --data inputs.npz -o small.onnx
  overdrive quantize models/gpt2 --search --data book.txt --max-loss 1 -o small"#;
pub(super) const REPORT: &str = r#"Examples:
  overdrive report reports/mine/results.json
  overdrive report here/results.json there/results.json -o both"#;
pub(super) const REGRESS: &str = r#"Examples:
  overdrive regress --baseline main --measure "bench mlp --modes compile --trials 20"
  overdrive regress --baseline-cmd ./old --current-cmd ./new --ci -o gate"#;
pub(super) const COMPARE: &str = r#"Examples:
  overdrive compare before/results.json after/results.json
  overdrive compare reports/a reports/b --json"#;
pub(super) const HISTORY: &str = r#"Examples:
  overdrive history --add reports/mine
  overdrive history history.jsonl --case matmul"#;
pub(super) const MODELS: &str = r#"Examples:
  overdrive models
  overdrive models --json"#;
pub(super) const INFO: &str = r#"Examples:
  overdrive info
  overdrive info --install onnxruntime"#;
pub(super) const COMPLETIONS: &str = r#"Examples:
  overdrive completions bash
  overdrive completions zsh"#;
