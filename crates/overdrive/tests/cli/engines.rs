//! Other engines, and model repositories for servers. A missing engine is reported with its remedy,
//! and a repository is valid under the server's own schema.

use crate::invocation::Folder;
use std::process::Command;

/// The interpreter that engines are looked for with.
fn python() -> String {
    std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned())
}

#[test]
fn what_takes_part_is_named_or_refused_with_what_there_is() {
    let folder = Folder::new();
    folder
        .line("bench digits-mlp --backends tpu --trials 5")
        .ends(2, &["tpu", "no engine has this name", "onnxruntime"]);
    folder
        .line("bench digits-mlp --backends onnxruntime --library onnxruntime=nothing.so")
        .ends(2, &["nothing.so", "--install"]);
    folder.line("bench digits-mlp --library onnxruntime").ends(2, &["ENGINE=FILE"]);
    folder.line("info --install torch").ends(2, &["torch", "onnxruntime-openvino"]);
    folder.line("info --install onnxruntime --wheel nothing.whl").ends(2, &["nothing.whl"]);
    folder
        .line("run kernels --quick --peers=tensorflow")
        .ends(2, &["tensorflow", "pytorch, openvino"]);
    folder.line("info").ends(0, &["onnxruntime", "tract"]);
}

#[test]
fn a_repository_for_triton_holds_against_the_server_s_schema() {
    let folder = Folder::new();
    folder.line("export digits-mlp").ends(2, &["--onnx"]);
    folder
        .line("export digits-conv --triton served --shape batch=8")
        .ends(0, &["batches of up to 8"]);
    let config = folder.path("served/digits-conv/config.pbtxt");
    let text = std::fs::read_to_string(&config).unwrap();
    assert!(text.contains("max_batch_size: 8") && text.contains("dynamic_batching"), "{text}");
    assert!(text.contains("dims: [ 1, 8, 8 ]"), "a sample has no batch: {text}");
    let written = folder.path("served/digits-conv");
    assert_eq!(std::fs::metadata(written.join("warmup/input0")).unwrap().len(), 64 * 4);
    // The written file is a model again, for any batch.
    folder
        .line("bench served/digits-conv/1/model.onnx --shape batch=3 --trials 5 --backends cpu")
        .ends(0, &["3 of 3 cases ran"]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../peers/triton_config.py");
    let checked = Command::new(python()).arg(script).arg(&config).output();
    match checked.as_ref().map(|output| output.status.code()) {
        Ok(Some(0)) => {}
        Ok(Some(77)) | Err(_) => {
            let reason = "the schema needs python3 with tritonclient and protobuf";
            testkit::skip(testkit::Needs::TritonSchema, reason)
        }
        _ => panic!("{:?}", checked.unwrap()),
    }
}
