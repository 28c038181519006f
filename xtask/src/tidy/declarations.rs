//! `lib.rs` and `mod.rs` only declare and document. They are the table of contents of a folder, and
//! code in them could not be found by a file name. Module declarations, imports, lists
//! (`const X: &[..] = &[..]`) and the macro that writes these from a shorter list are declarations.

use syn::spanned::Spanned;
use syn::{Expr, Item};

use super::rule::{Finding, Rule};
use super::tree::{File, Tree};

pub(super) const RULE: Rule = Rule { name: "declarations", check };

fn check(tree: &Tree) -> Vec<Finding> {
    tree.rust()
        .filter(|file| matches!(file.name(), "lib.rs" | "mod.rs"))
        .filter_map(finding)
        .collect()
}

/// One finding a file: the first item of code and how many there are, since they move together.
fn finding(file: &File) -> Option<Finding> {
    // A file that does not parse is the compiler's business.
    let syntax = syn::parse_file(&file.text).ok()?;
    let code: Vec<&Item> =
        syntax.items.iter().filter(|item| !declares(item, &syntax.items)).collect();
    let line = code.first()?.span().start().line;
    let (name, count) = (file.name(), code.len());
    let message = format!(
        "{count} items of code begin here, but `{name}` only declares and documents: move them to \
         named files"
    );
    Some(Finding::line(&file.path, line, message))
}

fn declares(item: &Item, file: &[Item]) -> bool {
    match item {
        Item::Mod(module) => module.content.is_none(),
        Item::Use(_) | Item::ExternCrate(_) => true,
        Item::Const(constant) => is_list(&constant.expr),
        Item::Static(constant) => is_list(&constant.expr),
        Item::Macro(invocation) if invocation.ident.is_none() => true,
        // A macro that writes this file's own declarations from a shorter list has to stand before
        // the list.
        Item::Macro(definition) => file.iter().any(|item| match item {
            Item::Macro(invocation) if invocation.ident.is_none() => {
                invocation.mac.path.get_ident() == definition.ident.as_ref()
            }
            _ => false,
        }),
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
        let registry =
            "macro_rules! ops { ($($file:ident,)*) => { $(mod $file;)* } }\nops! { a, b, }\n";
        assert_eq!(check(&Tree::of(&[("src/ops/mod.rs", registry)])), []);
    }

    #[test]
    fn one_finding_says_how_many_and_where_they_begin() {
        let findings =
            check(&Tree::of(&[("src/lib.rs", "//! Docs.\nmod a;\nfn f() {}\nfn g() {}\n")]));
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].line, Some(3));
        assert!(findings[0].message.starts_with("2 items"), "{}", findings[0].message);
    }
}
