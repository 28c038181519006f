//! A tokenizer.json whose tokens are bytes, for programs that read only such files.
//!
//! It is byte-level BPE (Radford et al., GPT-2, 2019) without merges. Id and byte are one number.

use serde_json::{Map, Value, json};

/// The content of the file.
pub(super) fn tokenizer() -> Value {
    let names = characters().into_iter().enumerate();
    let vocabulary: Map<String, Value> =
        names.map(|(byte, name)| (name.to_string(), byte.into())).collect();
    json!({
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
            "use_regex": false,
        },
        "decoder": {
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
            "use_regex": false,
        },
        "model": { "type": "BPE", "vocab": vocabulary, "merges": [] },
    })
}

/// The character that names each byte. A visible one of Latin-1 names itself; the others have those
/// from U+0100 on, in order.
fn characters() -> [char; 256] {
    let mut others = '\u{100}'..;
    std::array::from_fn(|byte| {
        let own = char::from(byte as u8);
        match own {
            '!'..='~' | '¡'..='¬' | '®'..='ÿ' => own,
            _ => others.next().expect("there are thousands of them"),
        }
    })
}

#[cfg(test)]
mod tests {
    use crate::huggingface::Tokenizer;

    #[test]
    fn the_file_reads_back_as_the_same_tokens() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        Tokenizer::BYTES.write(&path).unwrap();
        let read = Tokenizer::read(&path, 256).unwrap();
        let all: String = (0..0x300).filter_map(char::from_u32).collect();
        for text in ["a naïve 語, 𝄞;\r\n\t x", &all] {
            let ids = read.encode(text).unwrap();
            assert_eq!(ids, Tokenizer::BYTES.encode(text).unwrap());
            assert_eq!(read.decode(&ids).unwrap(), text);
            let bytes: u32 = read.tokens(text).unwrap().iter().map(|(_, bytes)| bytes).sum();
            assert_eq!(bytes as usize, text.len());
        }
    }
}
