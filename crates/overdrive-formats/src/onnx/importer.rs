//! How an op name finds its importer.

use super::call::{Call, Outcome};
use super::fault::Fault;
use super::item::Item;
use super::ops;
use super::walk::{Env, Frame, Walk};

/// Imports a node that depends on its operands alone.
pub(super) type Importer = for<'a, 'b> fn(&Call<'a, 'b>) -> Outcome<'b>;

/// Imports a node with sub-graphs, which see the values around them.
pub(super) type ControlImporter = for<'a, 'b> fn(
    &Walk<'_, 'b>,
    &Frame<'_>,
    &Env<'_, 'b>,
    &Call<'a, 'b>,
) -> Result<Vec<Item<'b>>, Fault>;

/// How an op is imported.
#[derive(Copy, Clone)]
pub(super) enum Import {
    Node(Importer),
    Control(ControlImporter),
}

/// The importer of an op, `domain` being that of `walk::domain`.
pub(super) fn importer(domain: &str, name: &str) -> Option<Import> {
    let find = |table: &[(&str, Importer)]| {
        table.iter().find(|(op, _)| *op == name).map(|(_, f)| Import::Node(*f))
    };
    match domain {
        "" => {
            let control = ops::CONTROL.iter().find(|(op, _)| *op == name);
            find(ops::OPS).or_else(|| control.map(|(_, f)| Import::Control(*f)))
        }
        "com.microsoft" => find(ops::MICROSOFT),
        _ => None,
    }
}
