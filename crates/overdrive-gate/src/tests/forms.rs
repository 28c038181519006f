//! The forms that verdicts take, as golden texts.

use super::invented::{Machine, session};
use crate::session::ProcessRequest;
use crate::{Processes, junit, markdown, terminal};
use overdrive_bench::failure::Failure;
use overdrive_bench::verdicts::{Observations, Side, Verdicts, schema};

/// One case of each kind.
struct Various(Machine);

impl Processes for Various {
    fn elapsed(&self) -> std::time::Duration {
        self.0.elapsed()
    }

    fn run(&mut self, side: Side, request: &ProcessRequest) -> Result<Observations, Failure> {
        let mut said = self.0.run(side, request)?;
        let other = said["study: same"].clone();
        let only = if side == Side::Current { "study: new" } else { "study: gone" };
        said.insert(only.to_owned(), other);
        let broken = "study: <broken> & \"quoted\" | case".to_owned();
        said.insert(broken, Err(Failure::failed("panicked: 1")));
        let lossy =
            said.get_mut("study: lossy").expect("it is a case of the machine").as_mut().unwrap();
        let top1 = if side == Side::Current { 91.0 } else { 92.0 };
        lossy.figures.insert("top1_percent".to_owned(), top1);
        if side != Side::Current {
            lossy.figures.insert("file_bytes".to_owned(), 1000.0);
        }
        Ok(said)
    }
}

fn various() -> Verdicts {
    let cases = [
        ("study: same", 1.0),
        ("study: slow", 1.12),
        ("study: fast", 0.7),
        ("study: near", 1.048),
        ("study: lossy", 1.0),
    ];
    session(&mut Various(Machine::quiet(5, &cases)))
}

#[test]
fn every_form_says_the_same() {
    let found = various();
    insta::assert_snapshot!("markdown", markdown(&found));
    insta::assert_snapshot!("junit", junit(&found));
    insta::assert_snapshot!("terminal", terminal(&found, 140));
}

#[test]
fn json_reads_back_and_the_schema_describes_it() {
    let found = various();
    let text = serde_json::to_string(&found).unwrap();
    assert_eq!(serde_json::from_str::<Verdicts>(&text).unwrap(), found);
    let schema: serde_json::Value = serde_json::from_str(&schema()).unwrap();
    let written = serde_json::to_value(&found).unwrap();
    for field in written.as_object().unwrap().keys() {
        assert!(schema["properties"].get(field).is_some(), "{field} is written but not described");
    }
}
