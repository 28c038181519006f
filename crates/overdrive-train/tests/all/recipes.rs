//! Recipes of users: files of JSON, and what is said of those that are wrong.

use overdrive_ir::DType;
use overdrive_ir::ops::float8_linear::Float8Granularity;
use overdrive_models::find;
use overdrive_passes::{Float8, Scaling, bind, left_in_float};
use overdrive_train::{Checkpoint, FORMATS, Formats, Recipe};

/// The formats of a file with this text, or the message of the error.
fn read(text: &str) -> Result<Formats, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("own.json");
    std::fs::write(&path, text).unwrap();
    let formats = Formats::read(&path).map_err(|error| error.to_string())?;
    let recipe = Recipe::default().in_formats(formats);
    recipe.check().map_err(|error| error.to_string())?;
    Ok(recipe.formats())
}

#[test]
fn a_file_says_formats_scales_and_which_layers_stay_in_float() {
    let text = r#"{
        "precision": "bf16",
        "float8": {
            "forward": "f8e4m3",
            "gradient": "f8e5m2",
            "granularity": "block",
            "except": ["block0", "*.ffn.contract"],
            "multiple": 32,
            "last": true
        }
    }"#;
    let blocks = Float8::new(DType::F8E5M2, Float8Granularity::Block, Scaling::Current);
    let except = vec!["block0".to_owned(), "*.ffn.contract".to_owned()];
    let float8 = Some(Float8 { except, multiple: 32, last: true, ..blocks });
    let own = Formats { precision: DType::BF16, float8 };
    assert_eq!(read(text).unwrap(), own);
    assert_eq!(own.name(), None);
    assert_eq!(read(r#"{"precision": "f16"}"#).unwrap().name(), Some("f16"));
}

#[test]
fn the_recipes_by_name_can_be_trained_by_and_written_into_files() {
    for known in FORMATS {
        let recipe = Recipe::default().in_formats(known.formats.clone());
        recipe.check().unwrap_or_else(|error| panic!("{}: {error}", known.name));
        let text = serde_json::to_string(&known.formats).unwrap();
        assert_eq!(read(&text).unwrap().name(), Some(known.name), "{text}");
    }
    // Checkpoints of earlier versions hold this text.
    let earlier = r#"{"forward": "f8e4m3", "gradient": "f8e5m2", "scaling": "delayed"}"#;
    let float8: Float8 = serde_json::from_str(earlier).unwrap();
    assert_eq!(Some(&float8), Formats::named("fp8").unwrap().float8.as_ref());
}

#[test]
fn what_is_wrong_in_a_file_is_named_with_its_place_and_what_is_known() {
    let float8 = |more: &str| {
        let codes = r#""forward": "f8e4m3", "gradient": "f8e5m2""#;
        format!(r#"{{"precision": "bf16", "float8": {{{codes}{more}}}}}"#)
    };
    for (text, words) in [
        (r#"{"precision": "bf16", "fp8": {}}"#.to_owned(), ["unknown field `fp8`", "`float8`"]),
        (float8(r#", "granularty": "row""#), ["unknown field `granularty`", "`granularity`"]),
        (float8(r#", "granularity": "rows""#), ["unknown variant `rows`", "`row`"]),
        (r#"{"precision": "bf17"}"#.to_owned(), ["unknown variant `bf17`", "`bf16`"]),
        (r#"{"float8": null}"#.to_owned(), ["missing field `precision`", "line 1"]),
        (r#"{"precision": "#.to_owned(), ["EOF while parsing", "\"precision\":\"bf16\""]),
    ] {
        let error = read(&text).unwrap_err();
        let said = ["own.json: expected formats of training", "--precision"];
        for word in words.into_iter().chain(said) {
            assert!(error.contains(word), "`{word}` of {text}: {error}");
        }
    }
    for (text, words) in [
        (r#"{"precision": "i8"}"#.to_owned(), ["precision: expected f32, bf16 or f16", "i8"]),
        (
            r#"{"precision": "bf16", "float8": {"forward": "bf16", "gradient": "f8e5m2"}}"#
                .to_owned(),
            ["float8.forward: expected f8e4m3 or f8e5m2", "found bf16"],
        ),
        (float8(r#", "multiple": 0"#), ["float8.multiple: expected at least 1", "found 0"]),
        (float8(r#", "break_even": 0"#), ["float8.break_even: expected at least 1", "found 0"]),
        (
            float8(r#", "granularity": "row", "break_even": 475"#),
            ["float8.break_even: expected none, or `tensor`", "found 475"],
        ),
        (
            float8(r#", "granularity": "row", "scaling": "delayed""#),
            ["float8.scaling: expected `current`, or `tensor`", "found `delayed`"],
        ),
    ] {
        let error = read(&text).unwrap_err();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}

/// `docs/performance-h200.md` has the times: at these batches a step was faster with every layer of
/// each block on codes, and with the last layer too.
#[test]
fn layers_are_on_codes_where_steps_were_faster_by_them() {
    let auto = Formats::named("fp8-auto").unwrap().float8.clone().unwrap();
    let left = |name: &str, batch: usize, float8: &Float8| {
        let forward = (find(name).unwrap().build)().unwrap();
        let bound = bind(&forward, &[("batch".to_owned(), batch)].into()).unwrap();
        left_in_float(&bound, float8).into_iter().map(|skipped| skipped.layer).collect::<Vec<_>>()
    };
    for (name, batch) in [("gpt-125m", 16), ("gpt-350m", 16), ("gpt-1.3b", 8), ("gpt-6.7b", 4)] {
        assert_eq!(left(name, batch, &auto), [""; 0], "{name}");
        assert_eq!(
            left(name, batch, Formats::named("fp8").unwrap().float8.as_ref().unwrap()).len(),
            1
        );
    }
    // Layers of 128 x 128 and 128 x 512 have too few products for a cast.
    assert_eq!(left("text-transformer", 8, &auto).len(), 5 * 6 + 1);
    // A device of less bandwidth, by a recipe. The projections behind attention go first: they
    // share no x, and have the fewest products.
    let slower = Float8 { break_even: Some(600), ..auto.clone() };
    let projections = (0..12).map(|block| format!("block{block}.attention.projection"));
    assert_eq!(left("gpt-125m", 16, &slower), projections.collect::<Vec<_>>());
    // A current scale reads each operand once more, for which they are too small on an H200 too.
    let current = Float8 { scaling: Scaling::Current, ..auto };
    assert_eq!(left("gpt-125m", 16, &current).len(), 12);
}

#[test]
fn a_run_goes_on_by_its_own_recipe_alone() {
    let by = |name: &str| Recipe::default().in_formats(Formats::named(name).unwrap().clone());
    let checkpoint = Checkpoint { recipe: by("fp8-rows"), ..Checkpoint::default() };
    checkpoint.check(&by("fp8-rows"), "").unwrap();
    let error = checkpoint.check(&by("fp8-blocks"), "").unwrap_err().to_string();
    assert!(error.starts_with("checkpoint, recipe: expected float8 {"), "{error}");
    let longer = Recipe { steps: 7, seed: 3, ..by("fp8-rows") };
    let of_fields = checkpoint.check(&longer, "").unwrap_err().to_string();
    assert!(of_fields.contains("found steps 7, seed 3;"), "{of_fields}");
    assert!(error.contains(r#""granularity":"row""#), "{error}");
    assert!(error.contains(r#""granularity":"block""#), "{error}");
}
