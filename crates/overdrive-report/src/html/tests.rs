//! The page holds its data unchanged, whatever that says, and nothing in it can become markup or
//! code.

use super::*;
use crate::gallery::gallery;
use overdrive_bench::failure::Failure;
use overdrive_bench::json::results_of_page;
use overdrive_bench::results::Results;
use overdrive_bench::testing::example;

const HOSTILE: &str = "</script><script>alert(1)</script><!-- \" ' & \u{2028} {{ 7*7 }} {% x %} \
                       <img src=x onerror=alert(2)>";

fn page(files: &[Results]) -> String {
    html(&Report::new(files), &Stills::new())
}

fn hostile() -> Results {
    let mut found = example();
    found.command = HOSTILE.into();
    found.notes[0].text = HOSTILE.into();
    found.environment.cpu.model = HOSTILE.into();
    for record in &mut found.records {
        record.command = HOSTILE.into();
        record.case.workload.name += HOSTILE;
        record.baseline = None;
    }
    found.ladders.clear();
    let failed =
        found.records.iter_mut().find(|record| record.outcome.failure().is_some()).unwrap();
    failed.outcome = Failure::failed(HOSTILE).into();
    found
}

#[test]
fn the_data_comes_back_equal() {
    for files in [vec![example()], vec![gallery()], vec![hostile()], vec![example(), gallery()]] {
        assert_eq!(results_of_page(&page(&files)).unwrap(), files);
    }
}

#[test]
fn text_of_a_record_is_never_markup() {
    let (calm, hostile) = (page(&[example()]), page(&[hostile()]));
    let scripts = |page: &str| (page.matches("<script").count(), page.matches("</script").count());
    assert_eq!(scripts(&hostile), scripts(&calm));
    assert!(!hostile.contains("<img src=x") && !hostile.contains("<!-- "), "markup came through");
    assert!(
        hostile.contains("{{ 7*7 }}") && !hostile.contains(" 49 "),
        "a template in a text is text"
    );
}

#[test]
fn names_in_a_sentence_are_set_as_code() {
    let shown = |sentence| names(sentence).to_string();
    assert_eq!(shown("use `a<b`: on `c` 1 ms"), "use <code>a&lt;b</code>: on <code>c</code> 1 ms");
    assert_eq!(shown("it's `half"), "it&#x27;s `half");
}

#[test]
fn nothing_is_fetched() {
    let page = page(&[gallery()]);
    let outside = page.split(['"', '\'', '(']).filter(|part| {
        part.starts_with("http://") || part.starts_with("https://") || part.starts_with("//")
    });
    let asked: Vec<&str> = outside
        .filter(|part| !part.starts_with("http://www.w3.org/") && part.len() < 200)
        .collect();
    let loads = ["<link rel=\"stylesheet", "<script src", "@import", "fetch(", "XMLHttpRequest"];
    assert!(loads.iter().all(|load| !page.contains(load)), "the page loads something");
    assert!(
        asked.iter().all(|part| part.starts_with("https://echarts")
            || part.starts_with("https://github.com/apache")),
        "{asked:?}"
    );
}

#[test]
fn every_case_has_a_row_that_a_link_finds() {
    let results = example();
    let page = page(std::slice::from_ref(&results));
    for record in &results.records {
        let id = format!("<tr id=\"{}\"", crate::anchor(&record.case.id()));
        assert_eq!(page.matches(&id).count(), 1, "{id}");
    }
    assert!(page.contains("7 of 9 cases ran"), "the verdict is the first line");
}

#[test]
fn a_chart_alone_is_a_page_without_scripts() {
    let results = [hostile()];
    let report = Report::new(&results);
    let charts: Vec<&Chart> = report.charts().collect();
    assert!(!charts.is_empty());
    for chart in charts {
        let page = alone(chart, "<svg><path fill=\"#ffffff\"/></svg>");
        assert!(page.contains("<svg>") && page.contains("fill=\"var(--surface)\""), "{page}");
        assert!(!page.contains("<script") && !page.contains("<img"), "text is never markup");
    }
}

#[test]
fn what_is_not_a_page_is_refused() {
    for text in [
        "",
        "<p>",
        "<script type=\"application/json\" id=\"results\">[",
        "<script type=\"application/json\" id=\"results\">[{}]</script>",
    ] {
        assert!(results_of_page(text).is_err(), "{text}");
    }
}

#[test]
fn a_finding_links_to_the_rows_behind_it() {
    let mut results = [example()];
    let failed =
        results[0].records.iter().position(|record| record.outcome.failure().is_some()).unwrap();
    results[0].records[failed].outcome = Failure::failed("a <b>bold</b> claim").into();
    let id = results[0].records[failed].case.id();
    let report = Report::new(&results);
    let page = html(&report, &Stills::new());
    assert!(page.contains("a &lt;b&gt;bold&lt;"), "the sentence is text");
    assert!(page.contains(&format!("class=\"cite\" href=\"#{}\"", crate::anchor(&id))));
    assert!(report.markdown().contains(&format!("<summary>1 record</summary>`{id}`")));
}
