//! Files of `torch.save` against what PyTorch wrote into them, and files that mean harm.
//!
//! `peers/torch_files.py` made the fixtures.

use overdrive_formats::{Tensors, npz, pytorch};
use overdrive_ir::DType;
use proptest::prelude::*;
use std::fs;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pytorch")
}

#[test]
fn both_layouts_hold_what_pytorch_put_there() {
    let expected = npz::read(&folder().join("expected.npz")).unwrap();
    for file in ["archive.bin", "stream.bin"] {
        let found = pytorch::read(&folder().join(file)).unwrap();
        let names = |tensors: &Tensors| tensors.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&found), names(&expected), "{file}");
        for (name, tensor) in &found {
            let dtype = tensor.ty().dtype;
            assert_eq!(dtype == DType::BF16, name == "bf16");
            let found =
                if dtype == DType::BF16 { tensor.convert(DType::F32) } else { tensor.clone() };
            assert_eq!(found, expected[name], "{file}: {name}");
        }
    }
}

/// The values of the same file whose pickle is another one, and whose storage 0 has these bytes.
fn archive(pickle: &[u8], storage: &[u8]) -> Vec<u8> {
    compressed(pickle, storage, CompressionMethod::Stored)
}

fn compressed(pickle: &[u8], storage: &[u8], method: CompressionMethod) -> Vec<u8> {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(method);
    for (name, content) in
        [("m/data.pkl", pickle), ("m/byteorder", b"little"), ("m/data/0", storage)]
    {
        archive.start_file(name, options).unwrap();
        archive.write_all(content).unwrap();
    }
    archive.finish().unwrap().into_inner()
}

#[track_caller]
fn refused(bytes: Vec<u8>, words: &[&str]) {
    let error = pytorch::decode(Path::new("m.bin"), bytes).unwrap_err().to_string();
    words.iter().for_each(|word| assert!(error.contains(word), "`{word}` is not in: {error}"));
}

/// A state dict of one tensor `w` with these sizes and strides, of 4 f32.
fn one_tensor(sizes: &[u8], strides: &[u8]) -> Vec<u8> {
    let tuple = |items: &[u8]| {
        let numbers: Vec<u8> = items.iter().flat_map(|&n| [b'K', n]).collect();
        [b"(", &numbers[..], b"t"].concat()
    };
    [
        b"\x80\x02}X\x01\0\0\0wctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storage".as_slice(),
        b"ctorch\nFloatStorage\nX\x01\0\0\0",
        b"0X\x03\0\0\0cpuK\x04tQK\0",
        &tuple(sizes),
        &tuple(strides),
        b"\x89}tRs.",
    ]
    .concat()
}

#[test]
fn views_stay_inside_of_their_storage() {
    let read = |pickle: &[u8]| pytorch::decode(Path::new("m.bin"), archive(pickle, &[0; 16]));
    let sizes = |tensors: Tensors| tensors["w"].ty().sizes();
    assert_eq!(sizes(read(&one_tensor(&[2, 2], &[2, 1])).unwrap()), [2, 2]);
    assert_eq!(sizes(read(&one_tensor(&[0, 9], &[9, 9])).unwrap()), [0, 9]);
    refused(archive(&one_tensor(&[2, 3], &[2, 1]), &[0; 16]), &["w:", "a storage of 4", "[2, 3]"]);
    refused(archive(&one_tensor(&[4], &[1]), &[0; 12]), &["storage 0", "4 elements of f32", "12"]);
    // An element that is repeated without end would take all memory.
    let endless = one_tensor(&[255; 4], &[0; 4]);
    refused(archive(&endless, &[0; 16]), &["w:", "elements repeat"]);
}

#[test]
fn what_would_run_code_is_refused_by_name() {
    let call = |module: &str, name: &str| {
        format!("\u{0}c{module}\n{name}\n(X\u{2}\u{0}\u{0}\u{0}ls").into_bytes()[1..].to_vec()
    };
    for (module, name) in [
        ("os", "system"),
        ("posix", "system"),
        ("builtins", "eval"),
        ("subprocess", "Popen"),
        ("torch", "load"),
        ("torch.storage", "_load_from_bytes"),
        ("collections", "OrderedDict.update"),
        ("torch._utils", "_rebuild_device_tensor_from_numpy"),
    ] {
        let pickle = [&b"\x80\x02"[..], &call(module, name), b"tR."].concat();
        let said = format!("`{module}.{name}`");
        refused(archive(&pickle, b""), &["no code of a file is run", &said]);
    }
    // The same by a name that is put together on the stack, as the fourth version does.
    let pickle = b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02ls\x85R.";
    refused(archive(pickle, b""), &["`os.system`"]);
    // Objects, instances, and whatever else has an instruction.
    for instruction in [0x81, 0x92, b'i', b'o', b'P', 0x82, 0x97, b'2', b'I', b'S', 0x8f] {
        let pickle = [b"\x80\x02)".as_slice(), &[instruction], b"."].concat();
        refused(archive(&pickle, b""), &["a state dict", &format!("{instruction:#04x}")]);
    }
    // A known name that is called with what it is not made for.
    let pickle = b"\x80\x02ccollections\nOrderedDict\nK\x01\x85R.";
    refused(archive(pickle, b""), &["OrderedDict of other arguments"]);
}

#[test]
fn pickles_that_do_not_hold_together_are_errors() {
    for (pickle, words) in [
        (&b""[..], "1 bytes more"),
        (b".", "a value on the stack"),
        (b"}", "1 bytes more"),
        (b"(.", "a value on the stack"),
        (b"t.", "a mark"),
        (b"h\x07.", "number 7"),
        (b"X\xff\xff\xff\xff.", "4294967295 bytes more"),
        (b"\x8d\xff\xff\xff\xff\xff\xff\xff\xff.", "bytes more"),
        (b"X\x01\0\0\0\xff.", "UTF-8"),
        (b"K\x01K\x02a.", "a list or a dict"),
        (b"]K\x02a.", "no dict"),
        (b"}K\x01K\x02s.", "no text"),
        (b"}X\x01\0\0\0wK\x02s.", "w: expected a tensor"),
        (b"}X\x01\0\0\0w}s.", "found a dict"),
        (b"ctorch\nFloatStorage.", "a line"),
    ] {
        refused(archive(pickle, b""), &[words]);
    }
    // A million nested tuples. A recursive walk or drop would overflow the stack.
    let deep = [b"\x80\x02)".as_slice(), &vec![0x85; 1 << 20], b"."].concat();
    refused(archive(&deep, b""), &["no dict"]);
    // A list that holds itself.
    refused(archive(b"]q\0h\0a.", b""), &["no dict"]);
    let small = compressed(&one_tensor(&[4], &[1]), &[0; 16], CompressionMethod::Deflated);
    refused(small, &["without compression"]);
    refused(b"\x7fELF".to_vec(), &["a file of torch.save"]);
}

#[test]
fn files_that_are_cut_or_changed_are_errors() {
    for file in ["archive.bin", "stream.bin"] {
        let bytes = fs::read(folder().join(file)).unwrap();
        for end in (0..bytes.len()).step_by(bytes.len() / 97) {
            let cut = bytes[..end].to_vec();
            assert!(pytorch::decode(Path::new(file), cut).is_err(), "{file} of {end} bytes");
        }
    }
}

proptest! {
    #[test]
    fn no_bytes_are_harmful(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let pickle = [b"\x80\x02".as_slice(), &bytes, b"."].concat();
        _ = pytorch::decode(Path::new("m.bin"), archive(&pickle, &[0; 16]));
    }

    #[test]
    fn no_change_is_harmful(
        which in 0usize..2,
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut bytes = fs::read(folder().join(["archive.bin", "stream.bin"][which])).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        _ = pytorch::decode(Path::new("m.bin"), bytes);
    }
}
