//! `promptgate.lock`: the approved versions of prompts and skills. The file is reviewed like code,
//! and shared by replicas.

mod conflict;
mod store;
mod versions;

pub use store::{LockError, LockFile, Object, ObjectError, ObjectKind, Objects, patch};

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::IgnoredAny;
use toml_edit::{InlineTable, Key, Value};

use base::seal;
use domain::approval::{
    Approval, ApprovalKind, ApproverProof, Attribution, Decided, DigestText, Files, MAX_PREVIOUS,
    Version,
};
use domain::json::Json;
use domain::json::canonical::canonical;
use domain::json::object::write_object;

/// The content of a lock file.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Lock {
    /// `sha256:…` of the file, or [`NO_FILE`].
    pub digest: String,
    /// Approvals of prompts.
    approvals: Approvals,
    /// Approvals of skills, by the paths of their folders.
    skills: Approvals,
}

/// Approvals by upstream and raw name.
type Approvals = BTreeMap<String, BTreeMap<String, Approval>>;

/// The digest of a lock file that does not exist.
pub const NO_FILE: &str = "none";

/// The version of the format.
const VERSION: u32 = 3;

/// The error for a lock file that has lost a part, or was changed by other means than a decision.
const NOT_WHOLE: &str = "it has not the digest of its entries: it was merged or edited, or has lost a part; review it, then run \
                         `promptgate approvals rewrite` (docs/approvals.md#review-in-git-and-ci)";

/// The error for a lock file as a merge of two branches leaves it.
const CONFLICT: &str = "git has left a conflict in it: review both sides, then run `promptgate approvals rewrite`, which keeps \
                        the entries of both (docs/approvals.md#review-in-git-and-ci)";

/// The beginning of each lock file.
const HEADER: &str = "# The approved versions of prompts, written by `promptgate approvals`. Review changes like code (docs/approvals.md).\n";

impl Lock {
    /// The content of a lock file that does not exist: nothing is approved.
    pub(crate) fn none() -> Self {
        Self { digest: NO_FILE.to_owned(), ..Self::default() }
    }

    /// Reads the text of a lock file.
    ///
    /// # Errors
    /// The first mistake, with its line; or a digest that does not match the entries.
    pub fn parse(text: &str) -> Result<Self, String> {
        if conflict::has_conflict(text) {
            return Err(CONFLICT.to_owned());
        }
        match Self::parse_entries(text)? {
            (lock, Some(end)) if end.digest == lock.end() => Ok(lock),
            _ => Err(NOT_WHOLE.to_owned()),
        }
    }

    /// Reads the text of a lock file whose entries a person has reviewed, so that their digest does
    /// not matter.
    fn parse_entries(text: &str) -> Result<(Self, Option<LockEnd>), String> {
        let digest = seal::sha256_text(text.as_bytes());
        // Git may have converted the line ends.
        let text = &text.replace("\r\n", "\n");
        let document: LockDocument = toml_edit::de::from_str(text).map_err(|error| {
            let line = error.span().map(|span| 1 + text[..span.start].matches('\n').count());
            let at = line.map(|line| format!("line {line}: ")).unwrap_or_default();
            format!("{at}{}", error.message().trim())
        })?;
        let version = document.version;
        if version != VERSION {
            return Err(format!(
                "its version is {version}; this promptgate reads version {VERSION}"
            ));
        }
        let mut lock = Self { digest, ..Self::default() };
        let prompts = document.prompts.into_iter().map(|entry| (ApprovalKind::Prompt, entry));
        let skills = document.skills.into_iter().map(|entry| (ApprovalKind::Skill, entry));
        for (kind, entry) in prompts.chain(skills) {
            let LockEntry { upstream, name, approved, rejected, pending, previous } = entry;
            let noun = kind.as_str();
            let at = |why: String| format!("{noun} {name:?} of upstream {upstream:?}: {why}");
            let read = |record: LockRecord| record.decided().map_err(at);
            let approval = Approval {
                approved: approved.map(read).transpose()?,
                rejected: rejected.map(read).transpose()?,
                pending: pending.map(read).transpose()?,
                previous: previous.into_iter().map(read).collect::<Result<_, _>>()?,
            };
            if approval.previous.len() > MAX_PREVIOUS {
                return Err(at(format!("it has more than {MAX_PREVIOUS} previous versions")));
            }
            if approval == Approval::default() {
                return Err(at(
                    "it has neither an approved nor a rejected or pending version".to_owned()
                ));
            }
            if !approval.versions().all(|version| is_of(version, kind)) {
                return Err(at("prompts have no files, and skills nothing else".to_owned()));
            }
            let others = lock.of_kind_mut(kind).entry(upstream.clone()).or_default();
            if others.insert(name.clone(), approval).is_some() {
                return Err(at("it is there twice".to_owned()));
            }
        }
        Ok((lock, document.end))
    }

    /// Returns the text of the lock file, which ends with the digest of its entries.
    pub fn to_text(&self) -> String {
        format!("{}\n[end]\ndigest = \"{}\"\n", self.entries(), self.end())
    }

    /// The digest of the entries.
    fn end(&self) -> String {
        seal::sha256_text(self.entries().as_bytes())
    }

    /// Returns the text without its end: entries in byte order of upstreams and raw names.
    fn entries(&self) -> String {
        let mut out = format!("{HEADER}version = {VERSION}\n");
        for Entry { kind, upstream, raw_name, approval } in self.approvals() {
            let upstream = Value::from(upstream);
            let raw_name = Value::from(raw_name);
            let noun = kind.as_str();
            // Writing to a string cannot fail.
            let _ = writeln!(out, "\n[[{noun}s]]\nupstream = {upstream}\n{noun} = {raw_name}");
            let named = [
                ("approved", &approval.approved),
                ("rejected", &approval.rejected),
                ("pending", &approval.pending),
            ];
            for (name, decided) in named.into_iter().filter_map(|(n, d)| Some((n, d.as_ref()?))) {
                let table = format!("{noun}s.{name}");
                let _ = writeln!(out, "\n[{table}]");
                write_decided(&table, decided, &mut out);
            }
            for decided in &approval.previous {
                let table = format!("{noun}s.previous");
                let _ = writeln!(out, "\n[[{table}]]");
                write_decided(&table, decided, &mut out);
            }
        }
        out
    }

    /// Returns all approvals, skills last.
    pub(crate) fn approvals(&self) -> impl Iterator<Item = Entry<'_>> {
        [ApprovalKind::Prompt, ApprovalKind::Skill].into_iter().flat_map(|kind| {
            self.of_kind(kind).iter().flat_map(move |(upstream, approvals)| {
                approvals.iter().map(move |(raw_name, approval)| Entry {
                    kind,
                    upstream,
                    raw_name,
                    approval,
                })
            })
        })
    }

    fn of_kind(&self, kind: ApprovalKind) -> &Approvals {
        match kind {
            ApprovalKind::Prompt => &self.approvals,
            ApprovalKind::Skill => &self.skills,
        }
    }

    fn of_kind_mut(&mut self, kind: ApprovalKind) -> &mut Approvals {
        match kind {
            ApprovalKind::Prompt => &mut self.approvals,
            ApprovalKind::Skill => &mut self.skills,
        }
    }

    /// Returns the approvals of prompts or skills of an upstream by raw names.
    pub fn of_upstream(
        &self,
        kind: ApprovalKind,
        upstream: &str,
    ) -> Option<&BTreeMap<String, Approval>> {
        self.of_kind(kind).get(upstream)
    }

    /// Returns the approval of a prompt or skill, if the lock has one.
    pub fn approval(
        &self,
        kind: ApprovalKind,
        upstream: &str,
        raw_name: &str,
    ) -> Option<&Approval> {
        self.of_upstream(kind, upstream)?.get(raw_name)
    }

    /// Returns the approval of a prompt or skill, to be changed; adds an empty one if needed.
    pub fn approval_mut(
        &mut self,
        kind: ApprovalKind,
        upstream: &str,
        raw_name: &str,
    ) -> &mut Approval {
        self.of_kind_mut(kind)
            .entry(upstream.to_owned())
            .or_default()
            .entry(raw_name.to_owned())
            .or_default()
    }

    /// Returns the number of prompts and skills with an entry.
    pub fn len(&self) -> usize {
        self.approvals().count()
    }

    /// Whether the lock has no entry.
    pub fn is_empty(&self) -> bool {
        self.approvals.is_empty() && self.skills.is_empty()
    }

    /// Returns the digests of all objects that the lock needs.
    pub(crate) fn objects(&self) -> impl Iterator<Item = (&DigestText, ObjectKind)> {
        let versions = self.approvals().flat_map(|entry| entry.approval.versions());
        versions.flat_map(|version| {
            let other = [&version.definition].into_iter().chain(&version.source);
            let other = other.map(|digest| (digest, ObjectKind::Json));
            let texts = version.text_digests().map(|digest| (digest, ObjectKind::Text));
            let files = version.files.values().map(|digest| (digest, ObjectKind::File));
            other.chain(texts).chain(files)
        })
    }
}

/// The approval of one prompt or skill.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub kind: ApprovalKind,
    pub upstream: &'a str,
    pub raw_name: &'a str,
    pub approval: &'a Approval,
}

/// Returns arguments in the form in which approvals name them: canonical JSON (RFC 8785).
pub fn arguments_text(arguments: &BTreeMap<String, String>) -> Arc<str> {
    let mut object = String::new();
    write_object(&mut object, |object| {
        for (name, value) in arguments {
            object.text(name, value);
        }
    });
    canonical(Json::accepted(&object)).into()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LockDocument {
    version: u32,
    #[serde(default)]
    prompts: Vec<LockEntry>,
    /// An older promptgate of the same version refuses a file with skills.
    #[serde(default)]
    skills: Vec<LockEntry>,
    end: Option<LockEnd>,
}

/// The last table of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LockEnd {
    /// `sha256:…` of the entries, as [`Lock::entries`] writes them.
    digest: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LockEntry {
    upstream: String,
    #[serde(rename = "prompt", alias = "skill")]
    name: String,
    approved: Option<LockRecord>,
    rejected: Option<LockRecord>,
    pending: Option<LockRecord>,
    #[serde(default)]
    previous: Vec<LockRecord>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LockRecord {
    definition: String,
    source: Option<String>,
    /// For readers of the file: the class follows from the rest.
    #[serde(rename = "class")]
    _class: Option<IgnoredAny>,
    by: String,
    known_as: Option<String>,
    /// Absent: [`ApproverProof::LockFile`].
    proof: Option<String>,
    at: String,
    why: Option<String>,
    #[serde(default)]
    texts: Vec<LockText>,
    /// Texts of gets with the arguments of one of `texts`.
    #[serde(default)]
    variants: Vec<LockText>,
    /// Digests by the paths of the files in the folder of the skill.
    #[serde(default)]
    files: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LockText {
    arguments: BTreeMap<String, String>,
    digest: String,
}

impl LockRecord {
    fn decided(self) -> Result<Decided, String> {
        let mut texts = BTreeMap::new();
        for LockText { arguments, digest } in self.texts {
            if texts.insert(arguments_text(&arguments), digest_text(&digest)?).is_some() {
                return Err("two texts have the same arguments".to_owned());
            }
        }
        let variant = |LockText { arguments, digest }: LockText| {
            let arguments = arguments_text(&arguments);
            if !texts.contains_key(&arguments) {
                return Err(format!("it has a variant for {arguments}, and no text"));
            }
            Ok((arguments, digest_text(&digest)?))
        };
        let variants = self.variants.into_iter().map(variant).collect::<Result<_, _>>()?;
        let file = |(path, digest): (String, String)| Ok((path.into(), digest_text(&digest)?));
        let version = Version {
            files: self.files.into_iter().map(file).collect::<Result<Files, String>>()?,
            definition: digest_text(&self.definition)?,
            source: self.source.as_deref().map(digest_text).transpose()?,
            texts,
            variants,
        };
        let Self { by, known_as, at, why, .. } = self;
        let proof = self.proof.as_deref().map(proof).transpose()?.unwrap_or_default();
        let attribution = Attribution { by, known_as, proof, at, why };
        Ok(Decided { version, attribution })
    }
}

/// Whether a version fits its kind: only prompts have texts and sources, only skills have files.
fn is_of(version: &Version, kind: ApprovalKind) -> bool {
    match kind {
        ApprovalKind::Prompt => version.files.is_empty(),
        ApprovalKind::Skill => version.texts.is_empty() && version.source.is_none(),
    }
}

fn proof(word: &str) -> Result<ApproverProof, String> {
    ApproverProof::read(word)
        .ok_or_else(|| format!("{word:?} is no proof of an approver's identity"))
}

/// Checks a digest, which is also the name of a file.
fn digest_text(text: &str) -> Result<DigestText, String> {
    let is_digest = text.strip_prefix("sha256:").is_some_and(|hex| {
        hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    });
    let wrong = || format!("{text:?} is no digest: sha256: and 64 hexadecimal digits");
    is_digest.then(|| text.into()).ok_or_else(wrong)
}

fn write_decided(table: &str, decided: &Decided, out: &mut String) {
    let Decided { version, attribution } = decided;
    let mut line = |key: &str, value: &str| {
        let _ = writeln!(out, "{key} = {}", Value::from(value));
    };
    line("definition", &version.definition);
    if let Some(source) = &version.source {
        line("source", source);
    }
    line("class", version.class().as_str());
    line("by", &attribution.by);
    if let Some(known_as) = &attribution.known_as {
        line("known_as", known_as);
    }
    if attribution.proof != ApproverProof::default() {
        line("proof", attribution.proof.as_str());
    }
    line("at", &attribution.at);
    if let Some(why) = &attribution.why {
        line("why", why);
    }
    let texts = version.texts.iter().map(|text| ("texts", text));
    let variants = version.variants.iter().map(|(arguments, text)| ("variants", (arguments, text)));
    for (kind, (arguments, digest)) in texts.chain(variants) {
        let members = Json::accepted(arguments).members();
        let text = |json: Json<'_>| json.as_str().unwrap_or_default().into_owned();
        let arguments: InlineTable =
            members.map(|(name, value)| (text(name), Value::from(text(value)))).collect();
        let digest = Value::from(&**digest);
        let _ = writeln!(out, "\n[[{table}.{kind}]]\narguments = {arguments}\ndigest = {digest}");
    }
    if !version.files.is_empty() {
        let _ = writeln!(out, "\n[{table}.files]");
    }
    for (path, digest) in &version.files {
        let path = Key::new(&**path);
        let _ = writeln!(out, "{} = {}", path.display_repr(), Value::from(&**digest));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn digest(n: u8) -> DigestText {
        format!("sha256:{n:064x}").into()
    }

    fn decided(n: u8, texts: &[(&str, &str)]) -> Decided {
        let text = |(name, value): &(&str, &str)| {
            let arguments = BTreeMap::from([((*name).to_owned(), (*value).to_owned())]);
            (arguments_text(&arguments), digest(n + 1))
        };
        Decided {
            version: Version {
                definition: digest(n),
                source: (n % 2 == 1).then(|| digest(n + 2)),
                texts: texts.iter().map(text).collect(),
                variants: texts.iter().map(|own| (text(own).0, digest(n + 3))).collect(),
                files: Files::new(),
            },
            attribution: Attribution {
                by: "alice".to_owned(),
                known_as: (n == 6).then(|| "Alice L.".to_owned()),
                proof: if n == 6 { ApproverProof::SignIn } else { ApproverProof::LockFile },
                at: "2026-11-22T10:00:00Z".to_owned(),
                why: n.is_multiple_of(2).then(|| "a \"good\" one\nfor all".to_owned()),
            },
        }
    }

    #[test]
    fn what_is_written_is_read_back_in_a_stable_order() {
        let mut lock = Lock::none();
        *lock.approval_mut(ApprovalKind::Prompt, "b", "z") =
            Approval { approved: Some(decided(1, &[])), ..Approval::default() };
        *lock.approval_mut(ApprovalKind::Prompt, "a", "x.y \"é\"") = Approval {
            approved: Some(decided(2, &[("language", "en"), ("style", "a\tb")])),
            rejected: Some(decided(3, &[])),
            pending: Some(decided(6, &[])),
            previous: vec![decided(4, &[("k k", "")]), decided(5, &[])],
        };
        let text = lock.to_text();
        let read = Lock::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(read.approvals, lock.approvals, "{text}");
        assert_eq!(read.to_text(), text);
        assert!(text.starts_with(HEADER));
        assert!(text.find("upstream = \"a\"").unwrap() < text.find("upstream = \"b\"").unwrap());
        assert_eq!(read.objects().count(), 15);
        let windows = text.replace('\n', "\r\n");
        assert_eq!(Lock::parse(&windows).unwrap().approvals, lock.approvals, "as git converts it");
    }

    #[test]
    fn a_lock_that_was_cut_anywhere_or_merged_is_not_whole() {
        let mut lock = Lock::none();
        for prompt in ["x", "y"] {
            *lock.approval_mut(ApprovalKind::Prompt, "a", prompt) = Approval {
                approved: Some(decided(2, &[("k", "v")])),
                rejected: Some(decided(3, &[])),
                pending: None,
                previous: vec![decided(4, &[])],
            };
        }
        let text = lock.to_text();
        for cut in 0..text.trim_end().len() {
            assert!(Lock::parse(&text[..cut]).is_err(), "{}", &text[..cut]);
        }
        let end = text.find("\n[end]").unwrap();
        for cut in text[..end].match_indices("\n[").map(|(at, _)| at) {
            let merged = format!("{}{}", &text[..cut], &text[end..]);
            assert!(Lock::parse(&merged).is_err(), "{merged}");
        }
        let why = Lock::parse(&text[..end]).unwrap_err();
        assert!(why.contains("promptgate approvals rewrite"), "{why}");
    }

    #[test]
    fn a_broken_file_says_what_is_wrong_and_where() {
        let entry = |more: &str| {
            format!("version = 3\n[[prompts]]\nupstream = \"a\"\nprompt = \"p\"\n{more}")
        };
        let record =
            format!("[prompts.approved]\ndefinition = \"{}\"\nby = \"x\"\nat = \"y\"\n", digest(1));
        assert_eq!(Lock::parse(&entry(&record)), Err(NOT_WHOLE.to_owned()));
        for (text, expected) in [
            (String::new(), "missing field `version`"),
            ("version = 4\n".to_owned(), "its version is 4"),
            ("version = 3\n".to_owned(), "it has not the digest of its entries"),
            ("version = 2\n".to_owned(), "its version is 2"),
            ("version = 3\n<<<<<<< ours\n".to_owned(), "git has left a conflict in it"),
            (entry(""), "prompt \"p\" of upstream \"a\": it has neither"),
            (entry(&record.replace("sha256:0", "sha256:x")), "is no digest"),
            (entry(&record.replace("sha256:0", "sha256:../../0")), "is no digest"),
            (entry(&format!("{record}extra = 1\n")), "unknown field `extra`"),
            (
                entry(&(record.clone() + &entry(&record)["version = 3\n".len()..])),
                "it is there twice",
            ),
        ] {
            let error = Lock::parse(&text).unwrap_err();
            assert!(error.contains(expected), "{error}\n{expected}");
        }
    }

    proptest! {
        #[test]
        fn every_name_and_reason_survives(
            upstream in "[a-z]{1,4}", prompt in ".{1,12}", why in ".{0,12}", value in ".{0,8}",
        ) {
            let mut lock = Lock::none();
            let mut approved = decided(2, &[("k", value.as_str())]);
            approved.attribution.why = Some(why);
            *lock.approval_mut(ApprovalKind::Prompt, &upstream, &prompt) = Approval { approved: Some(approved), ..Approval::default() };
            prop_assert_eq!(Lock::parse(&lock.to_text()).map(|read| read.approvals), Ok(lock.approvals));
        }
    }
}
