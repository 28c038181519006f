//! Memory that this process may still take: of the machine, of its control group, and within its
//! own limits.
//!
//! Linux promises more memory than it has and ends the process that touches it. So the process asks
//! for the available bytes before it takes any.

use std::fs;
use std::path::Path;

/// Bytes that this process may still take, the least of three figures. They are the memory that the
/// machine calls available, the rest of its control groups, and the rest of its limits. The limits
/// are those on address space and data (`ulimit -v` and `-d`). A system that does not tell has no
/// limit but the allocator's.
pub fn available_bytes() -> u64 {
    let root = Path::new("/");
    [group_bytes(root), process_bytes(root)].into_iter().flatten().fold(machine_bytes(), u64::min)
}

fn machine_bytes() -> u64 {
    let Ok(mut system) = sysinfo::System::new() else { return u64::MAX };
    system.refresh_memory();
    system.available_memory()
}

fn read(root: &Path, name: &str) -> Option<String> {
    fs::read_to_string(root.join(name)).ok()
}

/// The bytes that the groups on the way from this process's to the root leave it; `None` without a
/// limit.
fn group_bytes(root: &Path) -> Option<u64> {
    let groups = read(root, "proc/self/cgroup")?;
    let unified = groups.lines().find_map(|line| line.strip_prefix("0::"));
    // Version 1 mounts the controller by itself; its line reads `4:memory:/path`.
    let legacy = groups.lines().find_map(|line| {
        let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|controller| controller == "memory").then_some(group)
    });
    let left = |folder: String, [limit, used, files]: [&str; 3]| {
        let number =
            |name: &str| read(root, &format!("{folder}/{name}"))?.trim().parse::<u64>().ok();
        // Pages of files that nobody has used for a while are given back when memory is short.
        let files =
            read(root, &format!("{folder}/memory.stat")).and_then(|text| field(&text, files));
        Some(number(limit)?.saturating_sub(number(used)?.saturating_sub(files.unwrap_or(0))))
    };
    let second = unified.into_iter().flat_map(ancestors).filter_map(|group| {
        left(format!("sys/fs/cgroup{group}"), ["memory.max", "memory.current", "inactive_file"])
    });
    let first = legacy.into_iter().flat_map(ancestors).filter_map(|group| {
        let names = ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"];
        left(format!("sys/fs/cgroup/memory{group}"), names)
    });
    second.chain(first).reduce(u64::min)
}

/// `/a/b`, `/a` and the root (as an empty path).
fn ancestors(group: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(group.trim_end_matches('/')), |group| {
        Some(&group[..group.rfind('/')?])
    })
}

/// The bytes that the limits of this process leave it; `None` without any.
fn process_bytes(root: &Path) -> Option<u64> {
    let (limits, status) = (read(root, "proc/self/limits")?, read(root, "proc/self/status")?);
    let left = |limit: &str, used: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(limit))?;
        // Without a limit it says so in a word.
        let limit: u64 = line.split_whitespace().next()?.parse().ok()?;
        Some(limit.saturating_sub(field(&status, used)? * 1024))
    };
    let each = [left("Max address space", "VmSize:"), left("Max data size", "VmData:")];
    each.into_iter().flatten().reduce(u64::min)
}

/// The number behind a word at the start of a line.
fn field(text: &str, word: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| (words.next()? == word).then(|| words.next()?.parse().ok())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn the_tightest_group_counts_and_idle_pages_of_files_do_not() {
        let files = [
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/b/memory.current", "7\n"),
            ("sys/fs/cgroup/a/memory.max", "1000\n"),
            ("sys/fs/cgroup/a/memory.current", "900\n"),
            ("sys/fs/cgroup/a/memory.stat", "anon 600\ninactive_file 250\nactive_file 50\n"),
        ];
        assert_eq!(group_bytes(tree(&files).path()), Some(350));
        assert_eq!(group_bytes(tree(&files[..3]).path()), None);
        let legacy = [
            ("proc/self/cgroup", "5:cpuset:/\n4:memory:/x\n"),
            ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "4096\n"),
            ("sys/fs/cgroup/memory/x/memory.usage_in_bytes", "5000\n"),
        ];
        assert_eq!(group_bytes(tree(&legacy).path()), Some(0));
    }

    #[test]
    fn limits_of_the_process_count_what_it_has_already() {
        let status = ("proc/self/status", "Name:\tx\nVmSize:\t    2048 kB\nVmData:\t     512 kB\n");
        let limits = |space: &str, data: &str| {
            let text = format!(
                "Limit          Soft Limit   Hard Limit   Units\nMax data size  {data}   \
                 unlimited    bytes\n\
                 Max address space {space}  unlimited  bytes\n"
            );
            process_bytes(tree(&[status, ("proc/self/limits", &text)]).path())
        };
        assert_eq!(limits("unlimited", "unlimited"), None);
        assert_eq!(limits("4194304", "unlimited"), Some(2 << 20));
        assert_eq!(limits("4194304", "1048576"), Some(512 << 10));
        assert_eq!(limits("1024", "unlimited"), Some(0));
    }
}
