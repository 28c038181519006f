//! `generate --judge --attention-policies`: every policy of sparse attention in one table.

use crate::invocation::Folder;
use serde_json::Value;
use std::fs;

/// A Llama of bytes for 256 tokens: its attention has 2 x 4 tiles of a threshold.
const CONFIG: &str = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama",
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 256, "vocab_size": 256,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false,
    "hidden_act": "silu"}"#;

fn number(row: &Value, name: &str) -> f64 {
    row[name].as_f64().unwrap_or_else(|| panic!("{name} of {row}"))
}

#[test]
fn every_policy_is_a_row_and_its_cost_is_told() {
    let folder = Folder::new();
    fs::create_dir(folder.path("bare")).unwrap();
    fs::write(folder.path("bare/config.json"), CONFIG).unwrap();
    let text: String =
        (0..900).map(|i| format!("line {} of the text; ", i * 7919 % 1009)).collect();
    fs::write(folder.path("text.txt"), text).unwrap();
    let machine = "--device cpu --threads 1";
    let train = |rest: &str| folder.line(&format!("train {rest} --data text.txt {machine}"));
    train("bare --from-scratch --steps 3 --tokens 16 -o plain").ends(0, &["model: plain"]);
    train("plain --gate 32 --steps 2 -o gated").ends(0, &["model: gated"]);
    let judge = |rest: &str| folder.line(&format!("generate {rest} --judge text.txt {machine}"));

    let found =
        judge("gated --max-tokens 2048 --attention-policies --json").ends(0, &[]).stdout.clone();
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!((&found["windows"], &found["window_tokens"]), (&8.into(), &256.into()), "{found}");
    let rows = found["policies"].as_array().unwrap();
    // Rows of 1 to 8 tiles keep at least one, and the one on the diagonal.
    let kept = |share: f64| {
        (1..=8).map(|n| ((1.0 - share) * f64::from(n)).round().max(1.0)).sum::<f64>() / 36.0
    };
    for (at, name) in
        ["block-sparse, random", "block-sparse, by place", "learned gate"].iter().enumerate()
    {
        for (row, share) in rows[3 * at..].iter().zip([0.5, 0.75, 0.9]) {
            assert_eq!(row["policy"], *name, "{row}");
            let skipped = 100.0 * (1.0 - kept(share));
            assert!((number(row, "skipped_percent") - skipped).abs() < 1e-3, "{row}");
            assert_eq!(row["skipped_percent"], row["products_saved_percent"]);
        }
    }
    let last = &rows[9..];
    assert!((1..=3).contains(&last.len()), "{found}");
    for row in last {
        assert_eq!(row["policy"], "dynamic threshold");
        assert!(number(row, "threshold") < 1.0);
        let skipped = number(row, "skipped_percent");
        assert_eq!(number(row, "products_saved_percent"), 0.5 * skipped);
    }
    for row in rows {
        for name in ["attention_speedup", "model_speedup"] {
            let [value, low, high] =
                [&row[name]["value"], &row[name]["interval"][0], &row[name]["interval"][1]]
                    .map(|x| x.as_f64().unwrap());
            assert!(0.0 < low && low <= value && value <= high, "{row}");
        }
        let change = number(&row["perplexity_change_percent"], "value");
        let expected =
            100.0 * (number(row, "perplexity") / number(&found, "full_perplexity") - 1.0);
        assert!((change - expected).abs() < 1e-9, "{row}");
        assert!(row["accuracy_lost_points"]["interval"].is_array(), "{row}");
    }
    assert_ne!(rows[0]["perplexity"], rows[3]["perplexity"]);
    // The same tiles by the option for one policy.
    let one =
        judge("gated --max-tokens 2048 --attention-gate 0.5 --json").ends(0, &[]).stdout.clone();
    let one: Value = serde_json::from_str(&one).unwrap();
    assert_eq!(one["perplexity"], rows[6]["perplexity"]);
    assert_eq!(one["by_place"]["perplexity"], rows[3]["perplexity"]);

    // A window of one threshold tile, and no gate.
    judge("plain --max-tokens 128 --attention-policies").ends(
        0,
        &["asked 90 %", "block-sparse, by place", "no learned gate", "no threshold", "1 window"],
    );
    folder.line("generate plain --prompt a --attention-policies").ends(2, &["cannot be used with"]);
    folder.line("generate plain --attention-policies").ends(2, &["--judge"]);
    judge("gated --attention-policies --attention-gate 0.5").ends(2, &["cannot be used with"]);
}
