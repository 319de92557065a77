//! The memory that the process may have: the limit of its control group (Linux), as a container or
//! a unit of systemd sets it.

use std::path::{Path, PathBuf};

use super::disk;

/// Returns the bytes of memory that the control group of the process allows; `None` without a
/// limit.
pub fn limit() -> Option<u64> {
    let read = |path: &Path| disk::read_to_string(path).ok();
    limit_of(&read(Path::new("/proc/self/cgroup"))?, read)
}

/// The folder of the control groups, and the file with the limit of one: version 2, and version 1
/// (cgroups(7)).
const V2: (&str, &str) = ("/sys/fs/cgroup", "memory.max");
const V1: (&str, &str) = ("/sys/fs/cgroup/memory", "memory.limit_in_bytes");

/// Version 1 writes the largest multiple of a page for no limit.
const NO_LIMIT: u64 = 1 << 60;

/// Returns the least limit of the groups in `groups`, the text of `/proc/self/cgroup`, and of their
/// parent groups.
fn limit_of(groups: &str, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let limits = groups.lines().filter_map(|group| {
        let mut parts = group.splitn(3, ':');
        let _ = parts.next()?;
        let controllers = parts.next()?;
        let path = parts.next()?;
        let (folder, file) = match controllers {
            "" => V2,
            several if several.split(',').any(|controller| controller == "memory") => V1,
            _ => return None,
        };
        // A container may see its own group as the top one, whatever its path.
        let folders = Path::new(path.trim_start_matches('/')).ancestors().map(PathBuf::from);
        let files = folders.map(|below| Path::new(folder).join(below).join(file));
        files.filter_map(|file| read(&file)?.trim().parse().ok()).min()
    });
    limits.min().filter(|limit: &u64| *limit < NO_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_of_a_group_and_those_above_it_holds() {
        let with = |groups: &str, files: &[(&str, &str)]| {
            let read = |path: &Path| {
                let found = files.iter().find(|(file, _)| Path::new(file) == path);
                found.map(|(_, text)| (*text).to_owned())
            };
            limit_of(groups, read)
        };
        let unit = "0::/system.slice/promptgate.service\n";
        let max = "/sys/fs/cgroup/system.slice/promptgate.service/memory.max";
        let slice = "/sys/fs/cgroup/system.slice/memory.max";
        assert_eq!(with(unit, &[(max, "1073741824\n")]), Some(1 << 30));
        assert_eq!(with(unit, &[(max, "max\n"), (slice, "5000\n")]), Some(5_000));
        assert_eq!(with(unit, &[(max, "max\n")]), None);
        assert_eq!(with(unit, &[]), None);
        // A container, which sees its group at the top.
        assert_eq!(with("0::/\n", &[("/sys/fs/cgroup/memory.max", "4096\n")]), Some(4_096));
        let first = "12:cpu,cpuacct:/docker/a\n4:memory:/docker/a\n0::/x\n";
        let top = "/sys/fs/cgroup/memory/memory.limit_in_bytes";
        assert_eq!(with(first, &[(top, "2048\n")]), Some(2_048));
        assert_eq!(with(first, &[(top, "9223372036854771712\n")]), None);
        assert_eq!(with("nonsense\n:", &[]), None);
    }
}
