//! `lib.rs` and `mod.rs` only declare and document: they are the table of contents of a folder, and code in them has no name to be
//! found by. Module declarations, imports, lists (`const X: &[..] = &[..]`) and macros that expand to such lists are declarations.

use quote::ToTokens;
use syn::spanned::Spanned;
use syn::{Expr, Item};

use super::rule::{Finding, Rule};
use super::tree::Tree;

pub(super) const RULE: Rule = Rule { name: "declarations", check };

fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| matches!(file.name(), "lib.rs" | "mod.rs")) {
        // A file that does not parse is the compiler's business.
        let Ok(syntax) = syn::parse_file(&file.text) else { continue };
        for item in syntax.items.iter().filter(|item| !declares(item)) {
            let text = item.to_token_stream().to_string();
            let start: String = text.chars().take(40).collect();
            let message = format!(
                "`{start}...` is code: `{}` only declares and documents, move it to a file of its own",
                file.name()
            );
            findings.push(Finding::line(&file.path, item.span().start().line, message));
        }
    }
    findings
}

fn declares(item: &Item) -> bool {
    match item {
        Item::Mod(module) => module.content.is_none(),
        Item::Use(_) | Item::ExternCrate(_) => true,
        Item::Const(constant) => is_list(&constant.expr),
        Item::Static(constant) => is_list(&constant.expr),
        // An invocation; a definition (`macro_rules! name`) has a name and is code.
        Item::Macro(invocation) => invocation.ident.is_none(),
        _ => false,
    }
}

/// `&[a, b]` or `[a, b]`
fn is_list(value: &Expr) -> bool {
    match value {
        Expr::Reference(reference) => is_list(&reference.expr),
        Expr::Array(_) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_in_a_table_of_contents_is_refused() {
        let code = [
            "fn f() {}",
            "struct S;",
            "impl S {}",
            "mod a { }",
            "#[cfg(test)] mod tests { }",
            "macro_rules! m { () => {} }",
            "const N: usize = 3;",
            "pub type T = u8;",
        ];
        for item in code {
            for name in ["src/lib.rs", "src/ops/mod.rs"] {
                assert_eq!(check(&Tree::of(&[(name, item)])).len(), 1, "{item}");
            }
            assert_eq!(check(&Tree::of(&[("src/a.rs", item)])), []);
        }
    }

    #[test]
    fn declarations_pass() {
        let text = "//! Docs.\n#![forbid(unsafe_code)]\npub mod a;\nmod b;\npub use a::A;\n\
                    pub static OPS: &[&dyn Op] = &[&a::A, &b::B];\nlist! { a, b }\n";
        assert_eq!(check(&Tree::of(&[("src/lib.rs", text)])), []);
    }
}
