//! Finds which files of a crate import each other, by their `use` lines and the paths in their
//! code. Tests are left out.
//!
//! Names are followed through re-exports to the file that defines them. Tables of contents
//! (`lib.rs`, `main.rs`, `mod.rs`) are looked through and import nothing themselves.

use std::collections::{BTreeMap, BTreeSet};

use super::tree::{File, Token, Tree};

/// A path of names: `crate`, `plan`, `Step`.
type Names = Vec<String>;

/// The files of a crate by their modules.
pub(super) struct Crate<'t>(BTreeMap<Names, Module<'t>>);

#[derive(Default)]
struct Module<'t> {
    file: &'t str,
    defines: BTreeSet<String>,
    imports: BTreeMap<String, Import>,
    globs: Vec<Names>,
    /// Paths of several names in the code, and names that stand alone.
    paths: BTreeSet<Names>,
}

struct Import {
    path: Names,
    is_public: bool,
}

impl<'t> Crate<'t> {
    /// Every crate of the checkout.
    pub(super) fn all(tree: &'t Tree) -> Vec<Self> {
        let mut crates: BTreeMap<&str, Self> = BTreeMap::new();
        for file in tree.rust() {
            let Some((folder, inside)) = file.path.split_once("/src/") else { continue };
            let mut names: Names =
                inside.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
            if names.iter().any(|name| name == "tests" || name == "bin") {
                continue;
            }
            names.pop_if(|name| is_contents(name));
            let modules = &mut crates.entry(folder).or_insert_with(|| Self(BTreeMap::new())).0;
            modules.entry(names).or_default().read(file);
        }
        crates.into_values().collect()
    }

    /// The files that each file takes names from.
    pub(super) fn edges(&self) -> BTreeMap<&'t str, BTreeSet<&'t str>> {
        let mut edges: BTreeMap<&'t str, BTreeSet<&'t str>> = BTreeMap::new();
        for (at, module) in self.0.iter().filter(|(_, module)| !contents(module.file)) {
            let taken = module.imports.iter().filter(|(name, import)| {
                !import.is_public || module.paths.iter().any(|path| path[0] == **name)
            });
            let imported = taken.map(|(_, import)| &import.path).chain(&module.globs);
            let named = module.paths.iter().filter(|path| path.len() > 1);
            let found = imported.chain(named).filter_map(|path| self.file(at, path, 8));
            let others = found.filter(|file| *file != module.file && !contents(file));
            edges.entry(module.file).or_default().extend(others);
        }
        edges
    }

    /// The file that defines what `path` means in the module `at`.
    fn file(&self, at: &[String], path: &[String], most: usize) -> Option<&'t str> {
        let most = most.checked_sub(1)?;
        let (mut at, mut path) = match path[0].as_str() {
            "crate" => (Vec::new(), &path[1..]),
            "self" => (at.to_vec(), &path[1..]),
            "super" => (at.split_last()?.1.to_vec(), &path[1..]),
            name if self.0.contains_key(&[at, &[name.to_owned()]].concat()) => (at.to_vec(), path),
            name => {
                let import = &self.0.get(at)?.imports.get(name)?.path;
                // A crate may bear the name that it is imported by.
                let whole = [import, &path[1..]].concat();
                return (import[0] != name).then(|| self.file(at, &whole, most)).flatten();
            }
        };
        while let Some((name, rest)) = path.split_first() {
            if name == "super" {
                at.pop()?;
            } else if self.0.contains_key(&[&at[..], std::slice::from_ref(name)].concat()) {
                at.push(name.clone());
            } else {
                break;
            }
            path = rest;
        }
        let module = self.0.get(&at)?;
        let Some(name) = path.first().filter(|name| !module.defines.contains(*name)) else {
            return Some(module.file);
        };
        if let Some(import) = module.imports.get(name) {
            return self.file(&at, &[&import.path, &path[1..]].concat(), most);
        }
        let beyond = |glob: &Names| {
            let found = self.file(&at, &[&glob[..], path].concat(), most)?;
            let defines =
                |module: &&Module<'_>| module.file == found && module.defines.contains(name);
            self.0.values().any(|module| defines(&module)).then_some(found)
        };
        module.globs.iter().find_map(beyond).or(Some(module.file))
    }
}

impl<'t> Module<'t> {
    fn read(&mut self, file: &'t File) {
        self.file = &file.path;
        let tokens = file.tokens();
        let tokens = shipped(&tokens);
        let text = |at: usize| tokens.get(at).map_or("", |token| *token);
        let (mut at, mut depth, mut is_public) = (0, 0_usize, false);
        while at < tokens.len() {
            match text(at) {
                "pub" => {
                    is_public = true;
                    if text(at + 1) == "(" {
                        at += tokens[at..].iter().position(|token| *token == ")").unwrap_or(0);
                    }
                }
                "use" => {
                    let end = at + tokens[at..].iter().position(|t| *t == ";").unwrap_or(0);
                    self.import(&tokens[at + 1..end.max(at + 1)], &[], is_public);
                    at = end.max(at);
                }
                "fn" | "struct" | "enum" | "trait" | "type" | "const" | "static" | "union"
                    if depth == 0 =>
                {
                    let name = if text(at + 1) == "mut" { at + 2 } else { at + 1 };
                    self.defines.insert(text(name).to_owned());
                }
                // The name of a child is no use of what bears the same name in it.
                "mod" => at += 1,
                "macro_rules" => drop(self.defines.insert(text(at + 2).to_owned())),
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" => depth = depth.saturating_sub(1),
                name if is_name(name) && text(at.wrapping_sub(1)) != "." => {
                    let mut path = vec![name.to_owned()];
                    while text(at + 1) == ":" && text(at + 2) == ":" && is_name(text(at + 3)) {
                        path.push(text(at + 3).to_owned());
                        at += 3;
                    }
                    let is_field = text(at + 1) == ":" && text(at + 2) != ":";
                    if path.len() > 1 || !is_field {
                        self.paths.insert(path);
                    }
                }
                _ => {}
            }
            is_public = text(at) == "pub" || is_public && text(at) == ")";
            at += 1;
        }
    }

    /// Reads the tree after `use`; `before` has the path so far.
    fn import(&mut self, tokens: &[&str], before: &[String], is_public: bool) {
        let open = tokens.iter().position(|token| *token == "{").unwrap_or(tokens.len());
        let (head, group) = tokens.split_at(open);
        let mut path = before.to_vec();
        path.extend(head.iter().filter(|t| is_name(t)).map(|t| (*t).to_owned()));
        if let Some(inside) = group.get(1..group.len().saturating_sub(1)) {
            let mut depth = 0;
            let parts = inside.split(|token| {
                depth += i32::from(*token == "{") - i32::from(*token == "}");
                *token == "," && depth == 0
            });
            return parts.filter(|part| !part.is_empty()).for_each(|part| {
                self.import(part, &path, is_public);
            });
        }
        if head.last() == Some(&"*") {
            return self.globs.push(path);
        }
        let renamed = head.contains(&"as").then(|| path.pop()).flatten();
        path.retain(|name| name != "as");
        path.pop_if(|name| name == "self");
        if let Some(name) = renamed.or_else(|| path.last().cloned()) {
            self.imports.insert(name, Import { path, is_public });
        }
    }
}

/// The texts of the tokens, without items that only tests have.
fn shipped(tokens: &[Token]) -> Vec<&str> {
    let texts: Vec<&str> = tokens.iter().map(|token| token.text.as_str()).collect();
    let (mut kept, mut at) = (Vec::new(), 0);
    while at < texts.len() {
        let attribute = &texts[at..];
        let end = attribute.iter().position(|token| *token == "]").unwrap_or(0);
        if attribute.starts_with(&["#", "[", "cfg"]) && attribute[..end].contains(&"test") {
            let (mut depth, mut skipped) = (0, at + end + 1);
            while skipped < texts.len() {
                depth += i32::from(matches!(texts[skipped], "{" | "(" | "["));
                depth -= i32::from(matches!(texts[skipped], "}" | ")" | "]"));
                skipped += 1;
                if depth == 0 && matches!(texts[skipped - 1], ";" | "}") {
                    break;
                }
            }
            at = skipped;
        } else {
            kept.push(texts[at]);
            at += 1;
        }
    }
    kept
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

fn is_contents(stem: &str) -> bool {
    matches!(stem, "lib" | "main" | "mod")
}

fn contents(path: &str) -> bool {
    path.rsplit('/').next().is_some_and(|name| is_contents(name.trim_end_matches(".rs")))
}
