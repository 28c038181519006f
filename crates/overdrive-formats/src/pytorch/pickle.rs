//! The instructions of a pickle that a state dict consists of.
//!
//! A machine with a stack, a memo and an arena of values, which refer to each other by index. No
//! nesting, however deep, costs stack when it is walked or dropped. A name is looked up in a list
//! and stands for itself; nothing is imported, and calling one of them builds a value here. Source:
//! `pickletools` of CPython; the shapes of arguments are those of `torch/_utils.py` and
//! `torch/serialization.py`. Invariant: an instruction makes at most one value, so that there are
//! fewer values than bytes.

use super::value::{Id, NAMES, Name, PickleValue, Storage, View};
use crate::FormatError;
use crate::little_endian::little_endian;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;

/// The largest pickle that is read, in bytes; that of a model with 100,000 tensors has 16 MB.
pub(super) const LARGEST_PICKLE: usize = 32 << 20;

/// Most arguments of a call, dimensions of a tensor, and bytes of the key of a storage.
const MOST: usize = 64;

/// The values read, and the one that is the result.
#[derive(Debug)]
pub(super) struct Pickle {
    values: Vec<PickleValue>,
    root: Id,
    /// Bytes up to the end of its last instruction.
    pub(super) end: usize,
}

impl Pickle {
    /// Reads a pickle at the beginning of `bytes`.
    pub(super) fn read(path: &Path, bytes: &[u8]) -> Result<Self, FormatError> {
        let (values, stack, marks) = (vec![], vec![], vec![]);
        PickleMachine { path, bytes, at: 0, values, stack, marks, memo: BTreeMap::new() }.run()
    }

    pub(super) fn root(&self) -> &PickleValue {
        &self.values[self.root]
    }

    pub(super) fn value(&self, id: Id) -> &PickleValue {
        &self.values[id]
    }
}

struct PickleMachine<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
    values: Vec<PickleValue>,
    stack: Vec<Id>,
    /// Heights of the stack.
    marks: Vec<usize>,
    memo: BTreeMap<u64, Id>,
}

impl<'a> PickleMachine<'a> {
    fn wrong(&self, expected: impl Display, found: impl Display) -> FormatError {
        FormatError::damaged(self.path, &format!("pickle at byte {}", self.at), expected, found)
    }

    /// An error about what is well formed and no state dict.
    fn refused(&self, found: impl Display) -> FormatError {
        let expected = "a state dict, which is tensors by name; no code of a file is run";
        self.wrong(expected, found).remedy("save `model.state_dict()`, or save with safetensors")
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], FormatError> {
        let end = self.at.checked_add(count).filter(|&end| end <= self.bytes.len());
        let Some(end) = end else {
            let left = self.bytes.len() - self.at;
            return Err(self.wrong(format!("{count} bytes more"), format!("{left}")));
        };
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    /// A whole number of so many bytes, the lowest first.
    fn number(&mut self, bytes: usize) -> Result<u64, FormatError> {
        Ok(little_endian(self.take(bytes)?))
    }

    fn line(&mut self) -> Result<&'a str, FormatError> {
        let rest = &self.bytes[self.at..];
        let length = rest.iter().position(|&byte| byte == b'\n');
        let Some(length) = length else { return Err(self.wrong("a line", "no end of it")) };
        let line = self.take(length + 1)?;
        self.text(&line[..length])
    }

    fn text(&self, bytes: &'a [u8]) -> Result<&'a str, FormatError> {
        std::str::from_utf8(bytes).map_err(|error| self.wrong("text in UTF-8", error))
    }

    fn push(&mut self, value: PickleValue) {
        self.stack.push(self.values.len());
        self.values.push(value);
    }

    fn pop(&mut self) -> Result<Id, FormatError> {
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return Err(self.wrong("a value on the stack", "none"));
        }
        self.stack.pop().ok_or_else(|| self.wrong("a value on the stack", "none"))
    }

    /// The values behind the last mark.
    fn marked(&mut self) -> Result<Vec<Id>, FormatError> {
        match self.marks.pop() {
            Some(height) => Ok(self.stack.split_off(height)),
            None => Err(self.wrong("a mark", "none")),
        }
    }

    fn run(&mut self) -> Result<Pickle, FormatError> {
        loop {
            let [instruction] = self.take(1)? else { unreachable!("one byte was taken") };
            match *instruction {
                b'.' => break,
                // Versions of the format, and lengths of its parts, which readers of streams use.
                0x80 => _ = self.take(1)?,
                0x95 => _ = self.take(8)?,
                b'(' => self.marks.push(self.stack.len()),
                b'0' => _ = self.pop()?,
                b'q' => self.keep(1)?,
                b'r' => self.keep(4)?,
                0x94 => {
                    let top = self.top()?;
                    self.memo.insert(self.memo.len() as u64, top);
                }
                b'h' => self.recall(1)?,
                b'j' => self.recall(4)?,
                b'c' => {
                    let (module, name) = (self.line()?, self.line()?);
                    let known = self.name(module, name)?;
                    self.push(PickleValue::Name(known));
                }
                0x93 => {
                    let (name, module) = (self.pop()?, self.pop()?);
                    let (PickleValue::Text(module), PickleValue::Text(name)) =
                        (&self.values[module], &self.values[name])
                    else {
                        return Err(self.wrong("a module and a name", "something else"));
                    };
                    let known = self.name(module, name)?;
                    self.push(PickleValue::Name(known));
                }
                b'Q' => self.storage()?,
                b'R' => self.call()?,
                // The state of a dict beside its items: notes of modules that no tensor needs.
                b'b' => {
                    self.pop()?;
                    let top = self.top()?;
                    if !matches!(self.values[top], PickleValue::Dict(_)) {
                        return Err(self.refused("an object with a state of its own"));
                    }
                }
                b'a' | b'e' | b's' | b'u' => self.fill(*instruction)?,
                other => self.make(other)?,
            }
        }
        let root = self.pop()?;
        Ok(Pickle { values: std::mem::take(&mut self.values), root, end: self.at })
    }

    /// Instructions that make a value of what follows them.
    fn make(&mut self, instruction: u8) -> Result<(), FormatError> {
        let value = match instruction {
            b'N' => PickleValue::None,
            0x88 => PickleValue::Bool(true),
            0x89 => PickleValue::Bool(false),
            b'K' => PickleValue::Number(self.number(1)? as i64),
            b'M' => PickleValue::Number(self.number(2)? as i64),
            b'J' => PickleValue::Number(i64::from(self.number(4)? as u32 as i32)),
            0x8a => {
                let bytes = self.number(1)? as usize;
                let sign_bits = 64 - 8 * bytes.min(8) as u32;
                match bytes {
                    0 => PickleValue::Number(0),
                    1..=8 => {
                        PickleValue::Number((self.number(bytes)? << sign_bits) as i64 >> sign_bits)
                    }
                    _ => {
                        self.take(bytes)?;
                        PickleValue::Other
                    }
                }
            }
            b'G' => {
                self.take(8)?;
                PickleValue::Other
            }
            b'X' | b'U' | b'T' | 0x8c | 0x8d => {
                let width = match instruction {
                    b'X' | b'T' => 4,
                    0x8d => 8,
                    _ => 1,
                };
                let length = usize::try_from(self.number(width)?).unwrap_or(usize::MAX);
                let bytes = self.take(length)?;
                PickleValue::Text(self.text(bytes)?.to_owned())
            }
            b')' => PickleValue::Tuple(vec![]),
            b']' => PickleValue::List(vec![]),
            b'}' => PickleValue::Dict(vec![]),
            b't' => PickleValue::Tuple(self.marked()?),
            b'l' => PickleValue::List(self.marked()?),
            0x85..=0x87 => {
                let mut items = Vec::new();
                for _ in 0x84..instruction {
                    items.push(self.pop()?);
                }
                items.reverse();
                PickleValue::Tuple(items)
            }
            other => {
                return Err(self.refused(format!("the instruction {other:#04x}")));
            }
        };
        self.push(value);
        Ok(())
    }

    fn top(&self) -> Result<Id, FormatError> {
        self.stack.last().copied().ok_or_else(|| self.wrong("a value on the stack", "none"))
    }

    fn keep(&mut self, bytes: usize) -> Result<(), FormatError> {
        let (index, top) = (self.number(bytes)?, self.top()?);
        self.memo.insert(index, top);
        Ok(())
    }

    fn recall(&mut self, bytes: usize) -> Result<(), FormatError> {
        let index = self.number(bytes)?;
        let Some(&id) = self.memo.get(&index) else {
            return Err(self.wrong("a value that was kept", format!("number {index}")));
        };
        self.stack.push(id);
        Ok(())
    }

    fn name(&self, module: &str, name: &str) -> Result<Name, FormatError> {
        const SHOWN: usize = 80;
        let known = NAMES.iter().find(|known| (known.0, known.1) == (module, name));
        known.map(|(_, _, known)| *known).ok_or_else(|| {
            let name: String =
                module.chars().chain(['.']).chain(name.chars()).take(SHOWN).collect();
            self.refused(format!("`{name}`"))
        })
    }

    /// Moves the top items of the stack into the list or dict below them.
    fn fill(&mut self, instruction: u8) -> Result<(), FormatError> {
        let items = match instruction {
            b'a' => vec![self.pop()?],
            b's' => {
                let value = self.pop()?;
                vec![self.pop()?, value]
            }
            _ => self.marked()?,
        };
        let is_list = matches!(instruction, b'a' | b'e');
        let top = self.top()?;
        match &mut self.values[top] {
            PickleValue::List(list) if is_list => list.extend(items),
            PickleValue::Dict(dict) if !is_list && items.len().is_multiple_of(2) => {
                dict.extend(items.chunks_exact(2).map(|pair| (pair[0], pair[1])));
            }
            _ => return Err(self.wrong("a list or a dict below its items", "something else")),
        }
        Ok(())
    }

    /// A tuple of arguments. It is copied, so that it must be short: a call may name it again.
    fn arguments(&mut self) -> Result<Vec<Id>, FormatError> {
        let id = self.pop()?;
        match &self.values[id] {
            PickleValue::Tuple(items) if items.len() <= MOST => Ok(items.clone()),
            _ => Err(self.wrong(format!("a tuple of at most {MOST} arguments"), "something else")),
        }
    }

    /// `("storage", type, key, place, count)`, what a storage is called outside of the pickle.
    fn storage(&mut self) -> Result<(), FormatError> {
        let items = self.arguments()?;
        let values: Vec<&PickleValue> = items.iter().map(|&id| &self.values[id]).collect();
        let storage = match values[..] {
            // The last item of a stream's is a part of another storage, which no state dict has.
            [
                PickleValue::Text(kind),
                PickleValue::Name(Name::Storage(dtype)),
                PickleValue::Text(key),
                PickleValue::Text(_),
                PickleValue::Number(count),
                ..,
            ] if kind == "storage"
                && key.len() <= MOST
                && !matches!(values.get(5), Some(PickleValue::Tuple(_))) =>
            {
                usize::try_from(*count).ok().map(|count| (key.clone(), *dtype, count))
            }
            _ => None,
        };
        let Some((key, dtype, count)) = storage else {
            return Err(self.refused("a reference to something that is no storage"));
        };
        self.push(PickleValue::Storage(Storage { key, dtype, count }));
        Ok(())
    }

    /// Calls a name.
    fn call(&mut self) -> Result<(), FormatError> {
        let arguments = self.arguments()?;
        let callee = self.pop()?;
        let PickleValue::Name(name) = self.values[callee] else {
            return Err(self.refused("a call of something that is no name"));
        };
        // A list of items moves into its dict: copied, it could be copied without end.
        let items = match (name, &arguments[..]) {
            (Name::OrderedDict, []) => Some(vec![]),
            (Name::OrderedDict, &[id]) => match &mut self.values[id] {
                PickleValue::List(pairs) => Some(std::mem::take(pairs)),
                _ => None,
            },
            _ => None,
        };
        let values: Vec<&PickleValue> = arguments.iter().map(|&id| &self.values[id]).collect();
        let made = match (name, &values[..]) {
            (Name::OrderedDict, _) => {
                items.and_then(|items| self.pairs(&items)).map(PickleValue::Dict)
            }
            (Name::RebuildParameter, [PickleValue::View(view), ..]) => {
                Some(PickleValue::View(view.clone()))
            }
            (
                Name::RebuildTensor,
                [
                    PickleValue::Storage(storage),
                    PickleValue::Number(offset),
                    PickleValue::Tuple(sizes),
                    PickleValue::Tuple(strides),
                    ..,
                ],
            ) => self.view(storage, *offset, [sizes, strides]),
            _ => None,
        };
        let Some(made) = made else {
            return Err(self.refused(format!("{name:?} of other arguments")));
        };
        self.push(made);
        Ok(())
    }

    fn pairs(&self, pairs: &[Id]) -> Option<Vec<(Id, Id)>> {
        let pair = |id: &Id| match &self.values[*id] {
            PickleValue::Tuple(items) | PickleValue::List(items) => match items[..] {
                [key, value] => Some((key, value)),
                _ => None,
            },
            _ => None,
        };
        pairs.iter().map(pair).collect()
    }

    fn view(&self, storage: &Storage, offset: i64, parts: [&Vec<Id>; 2]) -> Option<PickleValue> {
        if parts[0].len() > MOST || parts[1].len() > MOST {
            return None;
        }
        let number = |id: &Id| match self.values[*id] {
            PickleValue::Number(number) => usize::try_from(number).ok(),
            _ => None,
        };
        let [sizes, strides] = parts.map(|ids| ids.iter().map(number).collect::<Option<Vec<_>>>());
        let (sizes, strides) = (sizes?, strides?);
        let offset = usize::try_from(offset).ok()?;
        let storage = storage.clone();
        (sizes.len() == strides.len()).then_some(PickleValue::View(View {
            storage,
            offset,
            sizes,
            strides,
        }))
    }
}
