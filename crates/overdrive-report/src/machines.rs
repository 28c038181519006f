//! Who measured: files are counted by session, machines once each, and what another program
//! measured is called imported.

use overdrive_bench::hardware::Hardware;
use overdrive_bench::results::Results;

/// `5 sessions of 1 machine, 2 imported files`. A session that is given twice is one.
pub fn counted(files: &[Results]) -> String {
    let (imported, ours): (Vec<&Results>, Vec<&Results>) =
        files.iter().partition(|results| results.imported.is_some());
    let mut parts = Vec::new();
    if !ours.is_empty() {
        let machines = distinct(ours.iter().map(|results| machine(results)), same);
        let sessions = distinct(ours, |a, b| a == b);
        parts.push(format!(
            "{} of {}",
            number(sessions.len(), "session"),
            number(machines.len(), "machine")
        ));
    }
    if !imported.is_empty() {
        parts.push(number(distinct(imported, |a, b| a == b).len(), "imported file"));
    }
    parts.join(", ")
}

/// The name of each file: its device or processor, or the file that it was imported from, with
/// ordinals where two read alike.
pub(super) fn names(files: &[Results]) -> Vec<String> {
    let name = |results: &Results| match (&results.imported, results.environment.devices.first()) {
        (Some(origin), _) => format!("imported {}", origin.split('`').nth(1).unwrap_or(origin)),
        (None, Some(device)) => device.name.clone(),
        (None, None) => results.environment.cpu.model.clone(),
    };
    let plain: Vec<String> = files.iter().map(name).collect();
    let numbered = |(at, name): (usize, &String)| {
        let alike: Vec<usize> = (0..files.len()).filter(|&other| plain[other] == *name).collect();
        if alike.len() == 1 {
            return name.clone();
        }
        let machines = distinct(alike.iter().map(|&other| machine(&files[other])), same);
        let mine = machine(&files[at]);
        let of = |other: &&usize| same(&machine(&files[**other]), &mine);
        let sessions: Vec<&usize> = alike.iter().filter(of).collect();
        let mut name = name.clone();
        if let (true, Some(place)) =
            (machines.len() > 1, machines.iter().position(|one| same(one, &mine)))
        {
            name += &format!(" ({})", place + 1);
        }
        if let (true, Some(place)) =
            (sessions.len() > 1, sessions.iter().position(|other| **other == at))
        {
            let what = if files[at].imported.is_some() { "" } else { "session " };
            name += &format!(", {what}{}", place + 1);
        }
        name
    };
    plain.iter().enumerate().map(numbered).collect()
}

fn machine(results: &Results) -> Hardware {
    Hardware::of(&results.environment)
}

/// Whether two machines are one, by all that is recorded; how the programs were built is no part of
/// it.
fn same(one: &Hardware, two: &Hardware) -> bool {
    one.differences(two).is_empty()
}

fn distinct<T>(all: impl IntoIterator<Item = T>, same: impl Fn(&T, &T) -> bool) -> Vec<T> {
    let mut kept: Vec<T> = Vec::new();
    for one in all {
        if !kept.iter().any(|known| same(known, &one)) {
            kept.push(one);
        }
    }
    kept
}

fn number(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use overdrive_bench::testing::results;

    fn session(cpu: &str, second: u64) -> Results {
        let mut found = results();
        found.environment.cpu.model = cpu.into();
        found.started_unix_s += second;
        found
    }

    #[test]
    fn five_sessions_of_one_machine_are_not_five_machines() {
        let mut files: Vec<Results> = (0..5).map(|second| session("A", second)).collect();
        assert_eq!(counted(&files), "5 sessions of 1 machine");
        assert_eq!(names(&files)[..2], ["A, session 1", "A, session 2"]);
        files.push(session("B", 0));
        files.push(session("A", 0));
        assert_eq!(counted(&files), "6 sessions of 2 machines", "one of them is there twice");
        assert_eq!(names(&files)[5], "B");
    }

    #[test]
    fn machines_of_one_name_are_told_apart() {
        let mut files = vec![session("A", 0), session("A", 1), session("A", 2)];
        files[1].environment.allowed_cpus = Some(64);
        assert_eq!(names(&files), ["A (1), session 1", "A (2)", "A (1), session 2"]);
        assert_eq!(counted(&files), "3 sessions of 2 machines");
    }

    #[test]
    fn imported_files_are_no_machines() {
        let mut files =
            vec![session("A", 0), session("not recorded", 0), session("not recorded", 1)];
        for file in &mut files[1..] {
            file.imported = Some("a report of another suite, `kernels.json`".into());
        }
        assert_eq!(counted(&files), "1 session of 1 machine, 2 imported files");
        assert_eq!(names(&files), ["A", "imported kernels.json, 1", "imported kernels.json, 2"]);
        assert_eq!(counted(&files[1..2]), "1 imported file");
    }
}
