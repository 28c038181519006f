//! The frameworks that there is a program for, with the text of each: `peers/` at the root of the
//! checkout, carried by ours.

/// A framework with its program, which ours carries.
pub(super) struct Framework {
    pub(super) name: &'static str,
    /// As its users write it.
    pub(super) spelt: &'static str,
    /// The package that `pip` installs.
    pub(super) package: &'static str,
    pub(super) program: &'static str,
}

/// Modules that programs import and that are not packages: a name and a text each.
pub(super) const MODULES: [(&str, &str); 7] = [
    ("attention_variants.py", include_str!("../../../../peers/attention_variants.py")),
    ("distributed_ranks.py", include_str!("../../../../peers/distributed_ranks.py")),
    ("gpt.py", include_str!("../../../../peers/gpt.py")),
    ("overdrive_peer.py", include_str!("../../../../peers/overdrive_peer.py")),
    ("published_models.py", include_str!("../../../../peers/published_models.py")),
    ("pytorch.py", include_str!("../../../../peers/pytorch.py")),
    ("quantized_peer.py", include_str!("../../../../peers/quantized_peer.py")),
];

/// Those that do the work of a study or a bench.
pub(super) const FRAMEWORKS: [Framework; 2] = [
    Framework {
        name: "pytorch",
        spelt: "PyTorch",
        package: "torch",
        program: include_str!("../../../../peers/pytorch.py"),
    },
    Framework {
        name: "openvino",
        spelt: "OpenVINO",
        package: "openvino",
        program: include_str!("../../../../peers/openvino.py"),
    },
];

/// Those that quantize a model and run nothing else.
pub(super) const QUANTIZING: [Framework; 2] = [
    Framework {
        name: "torchao",
        spelt: "torchao",
        package: "torch transformers torchao",
        program: include_str!("../../../../peers/by_torchao.py"),
    },
    Framework {
        name: "bitsandbytes",
        spelt: "bitsandbytes",
        package: "torch transformers bitsandbytes",
        program: include_str!("../../../../peers/by_bitsandbytes.py"),
    },
];

/// Those that have a process for each of several ranks.
pub(super) const DISTRIBUTED: [Framework; 1] = [Framework {
    name: "pytorch",
    spelt: "PyTorch",
    package: "torch",
    program: include_str!("../../../../peers/distributed.py"),
}];
