//! Every automation of the project: `cargo xtask COMMAND`.
//!
//! One binary instead of a folder of scripts, so that the automation is typed, tested and the same
//! on every system. `check` is the one command that a contributor needs; the others are its parts,
//! each runnable alone.

mod check;
mod container;
mod dist;
mod extent;
mod generate;
mod onnx_tests;
mod ops_page;
mod pack_tests;
mod patches;
mod protobuf;
mod report_browser;
mod skips;
mod step;
mod tidy;
mod workspace;

use std::process::ExitCode;

use extent::Extent;
use workspace::Workspace;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  check [--quick]      everything that a change must pass; --quick leaves out docs and patches
  tidy                 the rules of STYLE.md that a machine can check
  generate [--check]   write the generated files; --check only compares them
  onnx-tests DIR...    models of ONNX in, and out again into ONNX Runtime, from the folders that \
                     peers/onnx_cases.py
                       and peers/onnx_models.py wrote, and the page about them
  report-browser FILE  open a report.html in headless Chromium: no error, first screen, filters, \
                     sorting, charts
  patches              what ARCHITECTURE.md says of additions: a patch of each kind is applied to \
                     a copy,
                       its files are counted, and its tests must pass, and fail once it is broken
  kernels              registers, shared memory and spills of every GPU kernel, by NVRTC and with \
                     no GPU
  dist [TARGET...]     archives, wheels and their SHA-256 sums in dist/, for this machine or for \
                     these targets
  dist --check TARGET...  whether the program compiles for targets that this machine cannot link for
  container            the image of Dockerfile, built and tried by docker or podman
  pack-tests [CRATE...]  the tests of the workspace, or of some crates, in an archive for \
                     machines without cargo";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let workspace = Workspace::of_this_build();
    let outcome = match args[..] {
        ["check"] => return check::run(&workspace, Extent::Full),
        ["check", "--quick"] => return check::run(&workspace, Extent::Quick),
        ["tidy"] => tidy::run(&workspace),
        ["generate"] => generate::write(&workspace, generate::GENERATED),
        ["generate", "--check"] => generate::compare(&workspace, generate::GENERATED),
        ["onnx-tests", ref folders @ ..] if !folders.is_empty() => {
            onnx_tests::run(&workspace, folders)
        }
        ["report-browser", page] => report_browser::run(std::path::Path::new(page)),
        ["patches"] => patches::run(&workspace).map(|_| ()),
        ["kernels"] => check::kernels(&workspace),
        ["container"] => container::run(&workspace),
        ["dist", "--check", ref targets @ ..] if !targets.is_empty() => {
            dist::check(&workspace, targets)
        }
        ["dist", ref targets @ ..] => dist::run(&workspace, targets),
        ["pack-tests", ref packages @ ..] => pack_tests::run(&workspace, packages),
        [] | ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("unknown command `{}`\n\n{USAGE}", args.join(" "));
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
