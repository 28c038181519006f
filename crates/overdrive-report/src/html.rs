//! Results as one page that needs nothing but itself. Data, styles, scripts and typeface are
//! inside, so that it opens from a file, from an archive, in ten years.
//!
//! It embeds the results as JSON, which [`results_of_page`](overdrive_bench::json::results_of_page)
//! reads back. Text from records is escaped by the template; content of a script element is escaped
//! by `inert`.

mod decided;
mod paper;
mod tabled;
mod view;

use std::collections::BTreeMap;

pub use paper::{Part, StillChart, paper};
pub use view::Stills;

use minijinja::value::{Serde, Value};
use minijinja::{Environment, HtmlEscape, context};

use super::charts::{Chart, ECHARTS, SCRIPT};
use super::files::Report;
use super::machines;
use overdrive_bench::date::utc;

const TEMPLATE: &str = include_str!("html/page.html");
const STYLE: &str = include_str!("html/style.css");
const PAGE_SCRIPT: &str = include_str!("html/page.js");
const FACES: &str = include_str!("../assets/roboto.css");

/// The page.
pub fn html(report: &Report<'_>, stills: &Stills) -> String {
    let options: BTreeMap<&str, &serde_json::Value> =
        report.charts().map(|chart| (chart.id.as_str(), &chart.option)).collect();
    let mut environment = Environment::new();
    environment.add_filter("names", names);
    environment
        .add_template("page.html", TEMPLATE)
        .expect("the template is part of this crate and parses");
    let template = environment.get_template("page.html").expect("it was added above");
    let files = view::files(report, stills);
    let page = context! {
        title => title(report),
        files => served(&files),
        matrix => served(report.matrix.as_ref().map(tabled::table)),
        counted => machines::counted(report.results),
        lost => served(&report.lost),
        hardware => served(report.hardware.as_ref().map(|chart| view::chart_view(chart, stills))),
        fonts => raw(FACES),
        style => raw(STYLE),
        results => raw(&inert(&json(&report.results))),
        options => raw(&inert(&json(&options))),
        echarts => raw(ECHARTS),
        charts_script => raw(SCRIPT),
        page_script => raw(PAGE_SCRIPT),
    };
    template.render(page).expect("the template asks only for what it is given")
}

/// A chart as a page of its own: the still picture in the colours of the reader's system.
pub fn alone(chart: &Chart, svg: &str) -> String {
    let (title, caption) = (HtmlEscape(&chart.title), HtmlEscape(&chart.caption));
    let picture = view::themed(svg);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light \
         dark\">\n<title>{title}</title>\n<style>{FACES}{STYLE}</style>\n</head>\n\
         <body class=\"alone\">\n<figure \
         class=\"chart\"><figcaption><h1>{title}</h1><p>{caption}</p></figcaption>\n\
         <div class=\"plot\">{picture}</div></figure>\n</body>\n</html>\n"
    )
}

fn title(report: &Report<'_>) -> String {
    match report.results {
        [one] => format!("Overdrive · {}", utc(one.started_unix_s)),
        several => format!("Overdrive · {}", machines::counted(several)),
    }
}

/// A sentence with the names between its backticks set as code, everything escaped.
fn names(sentence: &str) -> Value {
    let (mut html, mut rest) = (String::new(), sentence);
    while let Some((before, after)) = rest.split_once('`')
        && let Some((name, after)) = after.split_once('`')
    {
        html += &format!("{}<code>{}</code>", HtmlEscape(before), HtmlEscape(name));
        rest = after;
    }
    Value::from_safe_string(html + &HtmlEscape(rest).to_string())
}

fn served(data: impl serde::Serialize) -> Value {
    Value::from(Serde(data))
}

fn raw(text: &str) -> Value {
    Value::from_safe_string(text.to_owned())
}

fn json(data: &impl serde::Serialize) -> String {
    serde_json::to_string(data)
        .expect("results and options are maps with text keys, which JSON can hold")
}

/// JSON that is the same to a JSON parser and inert to an HTML parser: no tag, comment or entity
/// can begin in it.
fn inert(json: &str) -> String {
    let mut text = String::with_capacity(json.len() + json.len() / 64);
    for c in json.chars() {
        match c {
            '<' => text += "\\u003c",
            '>' => text += "\\u003e",
            '&' => text += "\\u0026",
            '\u{2028}' => text += "\\u2028",
            '\u{2029}' => text += "\\u2029",
            c => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests;
