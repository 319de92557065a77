//! The labels of one library: the version that each label names, and the version under the plain
//! name of a prompt. A label whose version is missing or invalid keeps its earlier version.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Mutex;

use super::files;
use base::platform::Locked;
use config::Transport;
use config::labels::{
    DEFAULT_LABEL, LABELS_FILE, LATEST, LabelFile, LabelsMistake, MAX_LABELS_FILE,
};
use config::rollouts::{ROLLOUTS_FILE, StartedRollouts, parse_started};
use domain::text::similar::is_typing_error;

/// The labels of a library from one reading to the next.
#[derive(Debug)]
pub struct LibraryLabels {
    /// The label whose version the plain name stands for.
    label: String,
    last: Mutex<LastLabels>,
}

/// The last valid labels.
#[derive(Debug, Default)]
struct LastLabels {
    /// `None` until a labels file, or a library without that file, was read.
    file: Option<LabelFile>,
    /// The served version of each label, by prompt.
    served: BTreeMap<String, BTreeMap<String, u32>>,
    /// The last version under the plain name of each prompt.
    plain: BTreeMap<String, Served>,
    /// The rollouts of the last valid `rollouts.toml`.
    rollouts: StartedRollouts,
}

/// The labels of one prompt.
#[derive(Debug, Default)]
pub(super) struct PromptLabels {
    pub labels: BTreeMap<String, u32>,
    /// `None` if the plain name has no version.
    pub served: Option<Served>,
    pub problems: Vec<String>,
}

/// The version under the plain name.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Served {
    pub number: u32,
    /// The label that chose the version; `None`: the newest version.
    pub label: Option<String>,
}

impl Default for LibraryLabels {
    fn default() -> Self {
        Self::new(DEFAULT_LABEL)
    }
}

impl LibraryLabels {
    /// Creates the labels of an unread library. `label` is the label of the plain names.
    pub fn new(label: &str) -> Self {
        Self { label: label.to_owned(), last: Mutex::default() }
    }

    /// Returns the labels of an upstream; upstreams other than libraries have no labels.
    pub fn of(transport: &Transport) -> Self {
        match transport {
            Transport::Library(library) => Self::new(&library.label),
            Transport::Git(git) => Self::new(&git.label),
            _ => Self::default(),
        }
    }

    /// Reads the labels file, and returns its mistake. `None`: the file is gone or invalid; the
    /// last valid labels count then.
    pub(super) fn read(
        &self,
        folder: &Path,
        has_versions: bool,
    ) -> (Option<LabelFile>, Option<String>) {
        let read = read_file(folder, LABELS_FILE, LabelFile::parse);
        let mut last = self.last.locked();
        let (file, problem) = match read {
            Ok(Some(file)) => (Some(file), None),
            Ok(None) => match &last.file {
                // An editor saves in two steps, or a mistake has removed the file.
                Some(before) if has_versions && !before.prompts.is_empty() => {
                    let what = "is gone or empty; write a line such as `# no labels` if no label is wanted";
                    (None, Some(format!("{LABELS_FILE}: {what}")))
                }
                _ => (Some(LabelFile::default()), None),
            },
            Err(mistake) => (None, Some(mistake.to_string())),
        };
        if let Some(file) = &file {
            last.file = Some(file.clone());
        }
        let then = match (&problem, &last.file) {
            (Some(_), Some(_)) => "; the labels of before are served",
            (Some(_), None) => "; until it is valid, prompts are served as NAME@3 only",
            (None, _) => "",
        };
        (file, problem.map(|problem| problem + then))
    }

    /// Reads `rollouts.toml`, and returns its mistake. The rollouts of an invalid file go on as
    /// they were.
    pub(super) fn read_rollouts(&self, folder: &Path) -> (StartedRollouts, Option<String>) {
        let mut last = self.last.locked();
        let problem = match read_file(folder, ROLLOUTS_FILE, parse_started) {
            Ok(rollouts) => {
                last.rollouts = rollouts.unwrap_or_default();
                None
            }
            Err(mistake) => Some(format!("{mistake}; the rollouts of before go on")),
        };
        (last.rollouts.clone(), problem)
    }

    /// Returns the last valid file.
    pub(super) fn last_file(&self) -> LabelFile {
        self.last.locked().file.clone().unwrap_or_default()
    }

    /// Chooses the versions of the labels of one prompt. `file` is the result of
    /// [`LibraryLabels::read`]; `misnamed` is its table that may be meant for the prompt.
    pub(super) fn choose(
        &self,
        prompt: &str,
        numbers: &BTreeSet<u32>,
        file: Option<&LabelFile>,
        misnamed: Option<&str>,
    ) -> PromptLabels {
        let mut last = self.last.locked();
        let last = &mut *last;
        let file = file.or(last.file.as_ref());
        let Some(file) = file else { return self.unknown(numbers) };
        let mut chosen = PromptLabels::default();
        let before = last.served.get(prompt);
        let wanted = file.prompts.get(prompt).into_iter().flatten();
        for (label, number) in wanted.clone() {
            let before = before.and_then(|before| before.get(label)).copied();
            let before = before.filter(|number| numbers.contains(number));
            let number_now = Some(*number).filter(|number| numbers.contains(number)).or(before);
            chosen.labels.extend(number_now.map(|number| (label.clone(), number)));
            if number_now != Some(*number) {
                let then = match before {
                    Some(before) => format!("it stays at version {before}"),
                    None => "it names nothing".to_owned(),
                };
                chosen.problems.push(format!(
                    "{LABELS_FILE}: {label} of {prompt} is version {number}, which is missing or not valid; {then}"
                ));
            }
        }
        // A file that is being written lacks its last tables.
        let is_cut = !file.prompts.is_empty()
            && !file.prompts.contains_key(prompt)
            && last.plain.get(prompt).is_some_and(|served| served.label.is_some());
        let is_named = wanted.clone().any(|(label, _)| *label == self.label);
        chosen.served = if is_named {
            let number = chosen.labels.get(&self.label).copied();
            number.map(|number| Served { number, label: Some(self.label.clone()) })
        } else if self.label == LATEST
            || (wanted.clone().next().is_none() && misnamed.is_none() && !is_cut)
        {
            newest(numbers)
        } else {
            // The newest version may not be meant to be served yet.
            let before = last.plain.get(prompt).filter(|served| numbers.contains(&served.number));
            let labels: Vec<_> = wanted.map(|(label, _)| label.as_str()).collect();
            chosen.problems.push(self.unlabelled(prompt, &labels, misnamed, before));
            before.cloned()
        };
        if let Some(served) = &chosen.served {
            last.plain.insert(prompt.to_owned(), served.clone());
        }
        last.served.insert(prompt.to_owned(), chosen.labels.clone());
        chosen
    }

    /// Says that no label chooses the version of a plain name, and which label may be meant.
    fn unlabelled(
        &self,
        prompt: &str,
        labels: &[&str],
        misnamed: Option<&str>,
        served: Option<&Served>,
    ) -> String {
        let own = &self.label;
        let what = match (misnamed, labels.iter().find(|label| is_typing_error(label, own))) {
            (Some(misnamed), _) => {
                format!("[{misnamed}] has no versions; did you mean [{prompt}]?")
            }
            (None, _) if labels.is_empty() => {
                format!("[{prompt}] is gone; leave it empty if the newest version is meant")
            }
            (None, near) => {
                let all = labels.join(", ");
                let remedy = near.map_or_else(
                    || format!("add `{own} = N`"),
                    |near| format!("did you mean `{own}` by `{near}`?"),
                );
                format!(
                    "{prompt} has labels ({all}), but no `{own}`, by which it is served; {remedy}"
                )
            }
        };
        let then = match served {
            Some(Served { number, .. }) => format!("it stays at version {number}"),
            None => format!("until then, {prompt} is served as {prompt}@3 only"),
        };
        format!("{LABELS_FILE}: {what}; {then}")
    }

    /// Returns the labels of a prompt before a valid file was read: the newest version may not be
    /// meant to be served yet.
    fn unknown(&self, numbers: &BTreeSet<u32>) -> PromptLabels {
        let served = newest(numbers).filter(|_| self.label == LATEST);
        PromptLabels { served, ..PromptLabels::default() }
    }
}

fn newest(numbers: &BTreeSet<u32>) -> Option<Served> {
    numbers.last().map(|number| Served { number: *number, label: None })
}

/// Reads a file of labels or rollouts; `None` without a file, or if it is blank.
fn read_file<T>(
    folder: &Path,
    file: &'static str,
    parse: impl FnOnce(&str) -> Result<T, LabelsMistake>,
) -> Result<Option<T>, LabelsMistake> {
    let mistake = |text: String| LabelsMistake { file, place: None, text };
    let path = folder.join(file);
    if base::platform::disk::symlink_metadata(&path).is_err() {
        return Ok(None);
    }
    let resolved = files::resolve_inside(folder, &path).map_err(mistake)?;
    let bytes = files::read(folder, &resolved, MAX_LABELS_FILE).map_err(mistake)?;
    let text = String::from_utf8(bytes).map_err(|_| mistake("is not UTF-8".to_owned()))?;
    // A file that is being written is empty at first.
    (!text.trim().is_empty()).then(|| parse(&text)).transpose()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use std::sync::Arc;

    use super::super::{Before, LibrarySnapshot};
    use super::*;
    use crate::prompt_list::MalformedPrompt;
    use config::Settings;
    use domain::fault::UpstreamFaultKind as Kind;
    use domain::json::Json;

    /// A library with versions of `refund`.
    struct Folder {
        folder: tempfile::TempDir,
        labels: LibraryLabels,
        last: Mutex<Option<Arc<LibrarySnapshot>>>,
    }

    impl Folder {
        fn new(numbers: &[u32]) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let new = Self { folder, labels: LibraryLabels::default(), last: Mutex::default() };
            for number in numbers {
                let text = format!("---\nname: refund\n---\nversion {number}");
                new.write(&format!("refund/versions/{number}.md"), &text);
            }
            new
        }

        fn write(&self, name: &str, text: &str) {
            let path = self.folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn load(&self) -> Arc<LibrarySnapshot> {
            let settings = Settings::default();
            let mut last = self.last.lock().unwrap();
            let before = Before { snapshot: last.as_deref(), left_out: &[] };
            let folder = self.folder.path();
            let read = LibrarySnapshot::load_after(folder, "lib", &settings, &self.labels, before);
            last.insert(Arc::new(read.unwrap())).clone()
        }

        /// Forgets what was served, as a restart does.
        fn restart(&mut self) {
            self.labels = LibraryLabels::default();
            self.last = Mutex::default();
        }
    }

    fn names(snapshot: &LibrarySnapshot) -> Vec<&str> {
        let mut names: Vec<_> =
            snapshot.listed.prompts.iter().map(|prompt| &*prompt.name).collect();
        names.sort_unstable();
        names
    }

    fn reasons(snapshot: &LibrarySnapshot) -> Vec<String> {
        let reason =
            |reason: &str| reason.rsplit_once("/").map_or(reason, |(_, rest)| rest).to_owned();
        snapshot.listed.malformed.iter().map(|prompt| reason(&prompt.reason)).collect()
    }

    fn text(snapshot: &LibrarySnapshot, name: &str) -> String {
        let result = snapshot.get(name, None, None).unwrap();
        let message = result.json().get("messages").unwrap().elements().next().unwrap();
        let text = message.get("content").and_then(|content| content.get("text"));
        text.and_then(Json::as_str).unwrap().into_owned()
    }

    #[test]
    fn the_plain_name_is_the_labelled_version_or_else_the_newest() {
        let folder = Folder::new(&[1, 2, 10]);
        let newest = folder.load();
        assert_eq!(names(&newest), ["refund", "refund@1", "refund@10", "refund@2"]);
        assert_eq!(text(&newest, "refund"), "version 10", "numbers are no texts");
        folder.write("labels.toml", "[refund]\nproduction = 2\ncandidate = 10\n");
        let labelled = folder.load();
        assert_eq!(reasons(&labelled), [""; 0]);
        assert_eq!(text(&labelled, "refund"), "version 2");
        assert_eq!(text(&labelled, "refund@candidate"), "version 10");
        assert_eq!(text(&labelled, "refund@production"), "version 2");
        let of = |name: &str| {
            let prompt = labelled.listed.prompts.iter().find(|prompt| prompt.name == name).unwrap();
            let mark = prompt.version.as_ref().unwrap();
            let canonical = prompt.canonical();
            let meta = Json::accepted(&canonical).get("_meta").unwrap();
            let said =
                |key: &str| meta.get(key).and_then(Json::as_str).map(|text| text.into_owned());
            assert_eq!(said("version").as_deref(), Some(&*mark.version));
            assert_eq!(said("label").as_deref(), mark.label.as_deref());
            (
                mark.version.to_string(),
                mark.label.as_deref().map(str::to_owned),
                prompt.is_version(),
            )
        };
        let production = Some("production".to_owned());
        assert_eq!(of("refund"), ("2".to_owned(), production.clone(), false));
        assert_eq!(of("refund@production"), ("2".to_owned(), production, true));
        assert_eq!(of("refund@1"), ("1".to_owned(), None, true));
        let latest = LibraryLabels::new("latest");
        let settings = Settings::default();
        let latest =
            LibrarySnapshot::load(folder.folder.path(), "lib", &settings, &latest).unwrap();
        assert_eq!(text(&latest, "refund"), "version 10");
    }

    #[test]
    fn a_label_that_cannot_be_followed_stays_where_it_was() {
        let folder = Folder::new(&[1, 2, 3]);
        folder.write("labels.toml", "[refund]\nproduction = 2\n");
        folder.load();
        for (broken, said) in [
            ("[refund]\nproduction = 7\n", "production of refund is version 7"),
            ("[refund\n", "labels.toml:1:"),
            ("[refund]\nproduction = \"3\"\n", "labels.toml:2:14"),
        ] {
            folder.write("labels.toml", broken);
            let snapshot = folder.load();
            assert_eq!(text(&snapshot, "refund"), "version 2", "{broken}");
            assert!(reasons(&snapshot)[0].contains(said), "{:?}", reasons(&snapshot));
        }
        folder.write("labels.toml", "[other]\nproduction = 1\n");
        let cut = folder.load();
        assert_eq!(text(&cut, "refund"), "version 2", "the file is cut before its table");
        assert!(reasons(&cut)[0].contains("[refund] is gone"), "{:?}", reasons(&cut));
        folder.write("labels.toml", "[other]\nproduction = 1\n[refund]\n");
        assert_eq!(text(&folder.load(), "refund"), "version 3", "the newest is meant");
        folder.write("labels.toml", "[refund]\nproduction = 2\n");
        folder.load();
        fs::remove_file(folder.folder.path().join("labels.toml")).unwrap();
        let gone = folder.load();
        assert_eq!(text(&gone, "refund"), "version 2");
        assert!(reasons(&gone)[0].contains("is gone or empty"));
        folder.write("labels.toml", "\n");
        assert_eq!(text(&folder.load(), "refund"), "version 2", "half a file");
        folder.write("refund/versions/2.md", "---\nname: [\n---\n");
        folder.write("labels.toml", "[refund]\nproduction = 2\n");
        let stale = folder.load();
        assert_eq!(text(&stale, "refund"), "version 2", "the version stays as it was");
        assert_eq!(text(&stale, "refund@2"), "version 2");
        assert!(reasons(&stale)[0].starts_with("2.md:2:7: "), "{:?}", reasons(&stale));
        assert_eq!(stale.listed.malformed[0].name, "refund@2");
        fs::remove_file(folder.folder.path().join("refund/versions/2.md")).unwrap();
        assert!(!names(&folder.load()).contains(&"refund"), "the version itself is gone");
        folder.write("labels.toml", "# no labels\n");
        assert_eq!(text(&folder.load(), "refund"), "version 3", "no label is wanted any more");
    }

    #[test]
    fn labels_without_the_served_label_leave_the_version_that_was_served() {
        let mut folder = Folder::new(&[1, 2]);
        for (labels, said) in [
            ("[refund]\nprodction = 1\n", "did you mean `production` by `prodction`?"),
            ("[refund]\ncandidate = 2\n", "refund has labels (candidate), but no `production`"),
            ("[refunds]\nproduction = 1\n", "[refunds] has no versions; did you mean [refund]?"),
        ] {
            folder.restart();
            folder.write("labels.toml", "[refund]\nproduction = 1\n");
            assert_eq!(text(&folder.load(), "refund"), "version 1");
            folder.write("labels.toml", labels);
            let stays = folder.load();
            assert_eq!(text(&stays, "refund"), "version 1");
            let reasons = reasons(&stays);
            assert_eq!(reasons.len(), 1, "{reasons:?}");
            assert!(reasons[0].contains(said), "{reasons:?}");
            assert!(reasons[0].ends_with("; it stays at version 1"), "{reasons:?}");
            assert!(stays.listed.malformed[0].is_served);
            // Nothing is known of an earlier version.
            folder.restart();
            let unknown = folder.load();
            assert!(!names(&unknown).contains(&"refund"), "{labels}");
            let MalformedPrompt { name, is_served, reason } = &unknown.listed.malformed[0];
            assert_eq!((name.as_str(), is_served), ("refund", &false));
            assert!(reason.ends_with("is served as refund@3 only"), "{reason}");
            folder.labels = LibraryLabels::new(LATEST);
            assert_eq!(text(&folder.load(), "refund"), "version 2", "the newest is meant");
        }
        folder.restart();
        folder.write("labels.toml", "[other]\nproduction = 1\n");
        assert_eq!(text(&folder.load(), "refund"), "version 2", "the prompt has no labels");
    }

    #[test]
    fn a_superseded_version_is_served_where_its_source_is_the_approved_one() {
        let folder = Folder::new(&[1, 2, 3]);
        folder.write("plain.md", "---\nname: plain\n---\none");
        folder.write("labels.toml", "[refund]\nproduction = 2\n");
        let digest = |snapshot: &LibrarySnapshot, name: &str| {
            let prompt = snapshot.listed.prompts.iter().find(|prompt| prompt.name == name);
            prompt.unwrap().source.as_ref().unwrap().digest.clone()
        };
        let served = |snapshot: &LibrarySnapshot, name: &str, approved: &str| {
            let result = snapshot.get(name, None, Some(approved))?;
            Ok::<_, Kind>(result.json().text().to_owned())
        };
        let first = folder.load();
        let second = digest(&first, "refund@2");
        let one = digest(&first, "plain");
        folder.write("labels.toml", "[refund]\nproduction = 3\n");
        let moved = folder.load();
        assert_eq!(text(&moved, "refund"), "version 3");
        assert!(served(&moved, "refund", &second).unwrap().contains("version 2"));
        let long = format!("---\nname: refund\n---\n{}", "x".repeat(5_000));
        folder.write("refund/versions/2.md", &long);
        folder.write("plain.md", "---\nname: plain\n---\ntwo");
        let edited = folder.load();
        for name in ["refund", "refund@2", "refund@production"] {
            assert!(served(&edited, name, &second).unwrap().contains("version 2"), "{name}");
        }
        assert!(edited.size_of_get("refund@2", None, None) > 5_000);
        assert!(edited.size_of_get("refund@2", None, Some(&second)) < 100);
        for (name, approved) in [("plain", &one), ("refund", &one), ("plain", &second)] {
            let refused = served(&edited, name, approved);
            assert!(matches!(refused, Err(Kind::NotApproved { .. })), "{name} {refused:?}");
        }
    }

    #[test]
    fn without_a_good_file_the_newest_version_is_not_guessed_to_be_wanted() {
        let folder = Folder::new(&[1, 2]);
        folder.write("labels.toml", "[refund\n");
        let snapshot = folder.load();
        assert_eq!(names(&snapshot), ["refund@1", "refund@2"]);
        assert!(reasons(&snapshot)[0].contains("until it is valid"), "{:?}", reasons(&snapshot));
    }

    #[test]
    fn files_that_are_no_versions_are_named_with_the_reason() {
        let folder = Folder::new(&[1, 2]);
        let prompt = |name: &str| format!("---\nname: {name}\n---\nx");
        for (file, name) in [
            ("refund.md", "refund"),
            ("refund/versions/03.md", "refund"),
            ("refund/versions/0.md", "refund"),
            ("refund/versions/next.md", "refund"),
            ("refund/versions/4.md", "refunds"),
            ("a.md", "a@1"),
        ] {
            folder.write(file, &prompt(name));
        }
        folder.write("refund/versions/5.md", "---\nname: refund\nversion: 4\n---\nx");
        folder.write("refund/versions/README.md", "# no prompt");
        folder.write("one/twice/versions/1.md", &prompt("twice"));
        folder.write("two/twice/versions/2.md", &prompt("twice"));
        folder.write("versions/1.md", &prompt("plain"));
        folder.write("labels.toml", "[other]\nproduction = 1\n");
        let snapshot = folder.load();
        assert_eq!(names(&snapshot), ["plain", "refund", "refund@1", "refund@2"]);
        let all = snapshot.listed.malformed.iter().map(|prompt| prompt.reason.as_str());
        let all = all.collect::<Vec<_>>();
        assert_eq!(all.len(), 10, "{all:#?}");
        for expected in [
            "/0.md: the name of a version is its number",
            "/03.md: the name of a version is its number",
            "/next.md: the name of a version is its number",
            "/1.md: the versions of \"twice\" are in two folders",
            "/2.md: the versions of \"twice\" are in two folders",
            "/4.md: the name is \"refunds\"",
            "/5.md: `version` is 4",
            "/a.md: the name \"a@1\" has a @",
            "/refund.md: the prompt \"refund\" has versions",
            "/labels.toml: [other] has no versions",
        ] {
            let is_said = all.iter().any(|reason| reason.contains(expected));
            assert!(is_said, "{expected}: {all:#?}");
        }
    }
}
