//! Parses the output of git about a remote and a commit: no name in a repository is trusted to be a
//! path.

use std::path::PathBuf;

/// The served reference of a remote, and the object that it names: a commit, or an annotated tag.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Tip {
    /// The full name, or `HEAD`.
    pub name: String,
    pub object: String,
}

/// Returns the possible names of a configured reference at the remote. A branch comes before a tag
/// of the same name, so that a tag cannot replace it.
pub(super) fn candidates(reference: Option<&str>) -> Vec<String> {
    match reference {
        None => vec!["HEAD".to_owned()],
        Some(full) if full.starts_with("refs/") => vec![full.to_owned()],
        Some(name) => vec![format!("refs/heads/{name}"), format!("refs/tags/{name}")],
    }
}

impl Tip {
    /// Finds the first of the names in the output of `git ls-remote`. git matches only the ends of
    /// names, so the output may have other references, too.
    pub(super) fn find(output: &str, names: &[String]) -> Option<Self> {
        names.iter().find_map(|name| {
            let mut lines = output.lines().filter_map(|line| line.split_once('\t'));
            let (object, _) = lines.find(|(object, found)| found == name && is_object(object))?;
            Some(Self { name: name.clone(), object: object.to_owned() })
        })
    }
}

/// Whether a text is the id of an object: SHA-1 or SHA-256 in hexadecimal digits.
pub fn is_object(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A file of a commit.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TreeFile {
    pub object: String,
    /// The size in bytes.
    pub size: usize,
    /// The path below the folder of the library, without a component that begins with a dot.
    pub path: PathBuf,
}

/// The files of a commit, and the reasons for files that are left out.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct TreeFiles {
    pub files: Vec<TreeFile>,
    /// The name of each file that may have been meant as a prompt, with the reason.
    pub left_out: Vec<String>,
}

/// Most files of a commit.
pub(super) const MAX_FILES: usize = 20_000;

/// Most reasons for files that are left out.
const MAX_REASONS: usize = 50;

impl TreeFiles {
    /// Reads the output of `git ls-tree -r -t -l -z`. Links, submodules and files of more than
    /// `max_file` bytes are left out with a reason; dot-files without a reason, as in any library.
    pub(super) fn read(output: &[u8], max_file: usize, max_all: usize) -> Result<Self, String> {
        let mut read = Self::default();
        let mut all = 0_usize;
        for entry in output.split(|byte| *byte == 0).filter(|entry| !entry.is_empty()) {
            match tree_file(entry, max_file) {
                Entry::File(file) => {
                    all = all.saturating_add(file.size);
                    read.files.push(file);
                }
                Entry::LeftOut(reason) if read.left_out.len() < MAX_REASONS => {
                    read.left_out.push(reason);
                }
                Entry::LeftOut(_) | Entry::Hidden => {}
            }
            if read.files.len() > MAX_FILES || all > max_all {
                return Err(format!(
                    "the folder has more than {MAX_FILES} files, or more than max_walk = {max_all} \
                     bytes; name a smaller one with `path`, or set max_walk"
                ));
            }
        }
        Ok(read)
    }
}

enum Entry {
    File(TreeFile),
    LeftOut(String),
    /// A dot-file, or a folder.
    Hidden,
}

/// Reads one entry: `mode type object size`, a tab, and the path.
fn tree_file(entry: &[u8], max_file: usize) -> Entry {
    let shown = |why: &str| {
        let path = entry.splitn(2, |byte| *byte == b'\t').nth(1).unwrap_or_default();
        let path = String::from_utf8_lossy(path);
        let shown: String = path.chars().filter(|c| !c.is_control()).take(200).collect();
        Entry::LeftOut(format!("{shown}: {why}"))
    };
    let Some((head, path)) = std::str::from_utf8(entry).ok().and_then(|text| text.split_once('\t'))
    else {
        return shown("its name is not UTF-8");
    };
    if path.split('/').any(|part| part.starts_with('.') && part != "..") {
        return Entry::Hidden;
    }
    let is_plain = |part: &str| {
        !part.is_empty() && part != ".." && !part.contains(|c: char| c.is_control() || c == '\\')
    };
    if !path.split('/').all(is_plain) {
        return shown("its name leads elsewhere, or has characters that no name should have");
    }
    let words: Vec<_> = head.split_whitespace().collect();
    match words[..] {
        ["100644" | "100755" | "100664", "blob", object, size] if is_object(object) => {
            match size.parse() {
                Ok(size) if size <= max_file => {
                    Entry::File(TreeFile { object: object.to_owned(), size, path: path.into() })
                }
                _ => shown("larger than max_message"),
            }
        }
        // A folder: its files are separate entries.
        ["040000", "tree", ..] => Entry::Hidden,
        ["120000", ..] => shown("a symbolic link, which is not followed in a repository"),
        ["160000", ..] => shown("a submodule, which is not read"),
        _ => shown("no file"),
    }
}

/// Splits the output of `git cat-file --batch` into the contents of the files, in their order.
/// `None` if the output does not match `files`.
pub fn contents<'a>(mut output: &'a [u8], files: &[TreeFile]) -> Option<Vec<&'a [u8]>> {
    let mut contents = Vec::with_capacity(files.len());
    for TreeFile { object, size, .. } in files {
        let rest = output.strip_prefix(format!("{object} blob {size}\n").as_bytes())?;
        let (content, rest) = rest.split_at_checked(*size)?;
        output = rest.strip_prefix(b"\n")?;
        contents.push(content);
    }
    output.is_empty().then_some(contents)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789012345678901234567890123456789";

    #[test]
    fn a_tag_or_another_branch_cannot_take_the_place_of_a_branch() {
        let other = ID.replace('0', "a");
        let output = format!(
            "{other}\trefs/tags/main\n{other}\trefs/heads/x/refs/heads/main\n{ID}\trefs/heads/main\nx\tHEAD\n"
        );
        let tip = Tip::find(&output, &candidates(Some("main"))).unwrap();
        assert_eq!((&*tip.name, &*tip.object), ("refs/heads/main", ID));
        let tag = Tip::find(&output, &candidates(Some("refs/tags/main"))).unwrap();
        assert_eq!(tag.object, other);
        assert_eq!(Tip::find(&output, &candidates(Some("v1"))), None);
        assert_eq!(Tip::find(&output, &candidates(None)), None, "no id");
    }

    #[test]
    fn only_plain_files_below_the_folder_are_taken_from_a_commit() {
        let entry = |mode: &str, kind: &str, size: &str, path: &str| {
            format!("{mode} {kind} {ID} {size:>7}\t{path}\0")
        };
        let listed = [
            entry("100644", "blob", "5", "a.md"),
            entry("100755", "blob", "6", "sub/b.md"),
            entry("120000", "blob", "11", "link.md"),
            entry("160000", "commit", "-", "module"),
            entry("100644", "blob", "101", "big.md"),
            entry("100644", "blob", "-", "odd.md"),
            entry("100644", "blob", "5", "../up.md"),
            entry("100644", "blob", "5", "a//b.md"),
            entry("100644", "blob", "5", "sub/../../up.md"),
            entry("100644", "blob", "5", "a\\b.md"),
            entry("100644", "blob", "5", "new\nline.md"),
            entry("100644", "blob", "5", ".git/config"),
            entry("100644", "blob", "5", "sub/.hidden.md"),
        ]
        .concat();
        let read = TreeFiles::read(listed.as_bytes(), 100, 1000).unwrap();
        let names: Vec<_> = read.files.iter().map(|file| file.path.to_str().unwrap()).collect();
        assert_eq!(names, ["a.md", "sub/b.md"]);
        let reasons = read.left_out;
        assert_eq!(reasons.len(), 9, "{reasons:?}");
        assert!(reasons[0].starts_with("link.md: a symbolic link"), "{reasons:?}");
        assert!(reasons[1].starts_with("module: a submodule"), "{reasons:?}");
        assert_eq!(reasons[2], "big.md: larger than max_message");
        assert!(reasons[4].starts_with("../up.md: its name leads elsewhere"), "{reasons:?}");
        let not_utf8 = [b"100644 blob ", ID.as_bytes(), b" 5\t\xff.md\0"].concat();
        assert_eq!(TreeFiles::read(&not_utf8, 100, 1000).unwrap().left_out.len(), 1);
        assert!(TreeFiles::read(listed.as_bytes(), 100, 10).unwrap_err().contains("max_walk"));
        assert_eq!(TreeFiles::read(b"", 100, 10), Ok(TreeFiles::default()));
    }

    #[test]
    fn contents_are_split_by_their_lengths_and_anything_else_is_refused() {
        let file = |size| TreeFile { object: ID.to_owned(), size, path: "a".into() };
        let output = format!("{ID} blob 3\na\nb\n{ID} blob 0\n\n");
        let files = [file(3), file(0)];
        let expected: [&[u8]; 2] = [b"a\nb", b""];
        assert_eq!(contents(output.as_bytes(), &files).unwrap(), expected);
        for output in
            ["", &output[..output.len() - 1], &format!("{output}x"), &format!("{ID} missing\n")]
        {
            assert_eq!(contents(output.as_bytes(), &files), None, "{output:?}");
        }
    }
}
