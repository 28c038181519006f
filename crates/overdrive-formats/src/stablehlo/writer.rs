//! `Writer`: appends operations in MLIR's generic form, every value under a fresh name.

use super::literal::{dense, splat, tensor_type};
use overdrive_ir::{DType, Tensor, TensorType};

/// A value of the text.
#[derive(Clone, Debug)]
pub(super) struct Term {
    pub(super) name: String,
    pub(super) ty: TensorType,
}

impl Term {
    pub(super) fn sizes(&self) -> Vec<usize> {
        self.ty.sizes()
    }

    pub(super) fn dtype(&self) -> DType {
        self.ty.dtype
    }
}

#[derive(Default)]
pub(super) struct Writer {
    text: String,
    values: usize,
    depth: usize,
    /// Constructs that StableHLO cannot express, and why.
    pub(super) unsaid: Vec<(String, String)>,
}

/// An operation about to be written.
pub(super) struct Application<'a> {
    /// With its dialect: `stablehlo.add`.
    pub(super) op: &'a str,
    pub(super) operands: &'a [&'a Term],
    /// Regions as written by `Writer::region`.
    pub(super) regions: Vec<String>,
    /// `axis = 0 : i64, other = ...`, or nothing.
    pub(super) attributes: &'a str,
    pub(super) results: Vec<TensorType>,
}

impl Writer {
    /// A value that no op computes: an argument, or a placeholder for something that cannot be
    /// expressed.
    pub(super) fn fresh(&mut self, ty: TensorType) -> Term {
        self.values += 1;
        Term { name: format!("%{}", self.values - 1), ty }
    }

    /// Appends a line at the present depth.
    pub(super) fn line(&mut self, line: &str) {
        self.text.push_str(&"  ".repeat(self.depth));
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// The written text.
    pub(super) fn finish(self) -> String {
        self.text
    }

    /// Lines one step further in.
    pub(super) fn indented<T>(&mut self, write: impl FnOnce(&mut Self) -> T) -> T {
        self.depth += 1;
        let result = write(self);
        self.depth -= 1;
        result
    }

    /// An operation with any number of regions and results.
    pub(super) fn apply_all(&mut self, application: Application<'_>) -> Vec<Term> {
        let Application { op, operands, regions, attributes, results } = application;
        let results: Vec<Term> = results.into_iter().map(|ty| self.fresh(ty)).collect();
        let names = |terms: &mut dyn Iterator<Item = &Term>| {
            terms.map(|term| term.name.as_str()).collect::<Vec<_>>().join(", ")
        };
        let types = |terms: &mut dyn Iterator<Item = &Term>| {
            terms.map(|term| tensor_type(&term.ty)).collect::<Vec<_>>().join(", ")
        };
        let mut line = String::new();
        if !results.is_empty() {
            line.push_str(&format!("{} = ", names(&mut results.iter())));
        }
        line.push_str(&format!("\"{op}\"({})", names(&mut operands.iter().copied())));
        if !regions.is_empty() {
            line.push_str(&format!(" ({})", regions.join(", ")));
        }
        if !attributes.is_empty() {
            line.push_str(&format!(" {{{attributes}}}"));
        }
        let (takes, gives) = (types(&mut operands.iter().copied()), types(&mut results.iter()));
        line.push_str(&format!(" : ({takes}) -> ({gives})"));
        self.line(&line);
        results
    }

    /// An operation of StableHLO without regions, with one result.
    pub(super) fn apply(
        &mut self,
        op: &str,
        operands: &[&Term],
        attributes: &str,
        ty: TensorType,
    ) -> Term {
        let op = &format!("stablehlo.{op}");
        let application =
            Application { op, operands, regions: vec![], attributes, results: vec![ty] };
        self.apply_all(application).remove(0)
    }

    /// A region of one block: `body` maps its arguments to its results.
    pub(super) fn region(
        &mut self,
        arguments: &[TensorType],
        body: impl FnOnce(&mut Self, &[Term]) -> Vec<Term>,
    ) -> String {
        let outer = std::mem::take(&mut self.text);
        let arguments: Vec<Term> = arguments.iter().map(|ty| self.fresh(ty.clone())).collect();
        if !arguments.is_empty() {
            let list: Vec<String> = arguments
                .iter()
                .map(|term| format!("{}: {}", term.name, tensor_type(&term.ty)))
                .collect();
            self.line(&format!("^bb0({}):", list.join(", ")));
        }
        self.indented(|w| {
            let returned = body(w, &arguments);
            w.leave("stablehlo.return", &returned);
        });
        let inner = std::mem::replace(&mut self.text, outer);
        format!("{{\n{inner}{}}}", "  ".repeat(self.depth))
    }

    /// The end of a block.
    pub(super) fn leave(&mut self, op: &str, returned: &[Term]) {
        let operands: Vec<&Term> = returned.iter().collect();
        let application = Application {
            op,
            operands: &operands,
            regions: vec![],
            attributes: "",
            results: vec![],
        };
        self.apply_all(application);
    }

    /// A constant.
    pub(super) fn constant(&mut self, value: &Tensor) -> Term {
        let attribute = format!("value = {}", dense(value));
        self.apply("constant", &[], &attribute, value.ty().clone())
    }

    /// A tensor of one number.
    pub(super) fn full(&mut self, ty: &TensorType, value: f64) -> Term {
        let attribute = format!("value = {}", splat(&Tensor::scalar(ty.dtype, value), ty));
        self.apply("constant", &[], &attribute, ty.clone())
    }

    /// A tensor of one integer, exactly.
    pub(super) fn full_int(&mut self, ty: &TensorType, value: i128) -> Term {
        let one = Tensor::from_ints(ty.dtype, Vec::<usize>::new(), &[value]);
        let attribute = format!("value = {}", splat(&one, ty));
        self.apply("constant", &[], &attribute, ty.clone())
    }

    /// An elementwise operation whose result has the type of its first operand.
    pub(super) fn map(&mut self, op: &str, operands: &[&Term]) -> Term {
        self.apply(op, operands, "", operands[0].ty.clone())
    }

    /// `LT`, `EQ` and so on, elementwise.
    pub(super) fn compare(&mut self, direction: &str, a: &Term, b: &Term) -> Term {
        let attribute =
            format!("comparison_direction = #stablehlo<comparison_direction {direction}>");
        self.apply("compare", &[a, b], &attribute, a.ty.with_dtype(DType::Bool))
    }

    /// Elementwise choice.
    pub(super) fn select(&mut self, condition: &Term, yes: &Term, no: &Term) -> Term {
        self.apply("select", &[condition, yes, no], "", yes.ty.clone())
    }

    /// XLA's own conversion; `convert` has ours.
    pub(super) fn cast(&mut self, x: &Term, to: DType) -> Term {
        if x.dtype() == to {
            return x.clone();
        }
        self.apply("convert", &[x], "", x.ty.with_dtype(to))
    }

    /// The same bits as another type.
    pub(super) fn bitcast(&mut self, x: &Term, to: DType) -> Term {
        self.apply("bitcast_convert", &[x], "", x.ty.with_dtype(to))
    }

    /// The same elements under another shape.
    pub(super) fn reshape(&mut self, x: &Term, sizes: &[usize]) -> Term {
        if x.sizes() == sizes {
            return x.clone();
        }
        self.apply("reshape", &[x], "", x.ty.with_shape(sizes.to_vec()))
    }

    /// A function of one operand that StableHLO itself lacks.
    pub(super) fn apply_chlo(&mut self, op: &str, x: &Term) -> Term {
        let (op, results) = (format!("chlo.{op}"), vec![x.ty.clone()]);
        self.apply_all(Application {
            op: &op,
            operands: &[x],
            regions: vec![],
            attributes: "",
            results,
        })
        .remove(0)
    }
}
