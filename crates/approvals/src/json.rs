//! Approvals as JSON, for commands and the admin API.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::json;

use super::examined::Examined;
use super::probe::ProbedText;
use base::platform::wall_clock;
use base::seal;
use catalog::approval::{FoundVariant, SeenOtherwise};
use domain::approval::{Class, Decided, DigestText, Version};

/// The arguments of a get, by their names.
type Arguments = BTreeMap<String, String>;

/// A prompt or skill with its state, the offered version, and the decisions on it.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ApprovalDocument {
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["prompt", "skill"])))]
    pub kind: &'static str,
    /// Public name; of a skill the URI of its `SKILL.md`.
    pub name: String,
    pub upstream: String,
    /// Name at the upstream; of a skill the path of its folder there.
    pub raw_name: Arc<str>,
    /// Other public names that offer this version of a prompt: the plain name, and labels.
    pub aliases: Vec<String>,
    #[cfg_attr(feature = "schema", schemars(extend("enum" = APPROVAL_STATES)))]
    pub state: &'static str,
    /// Why it is in this state.
    pub reason: String,
    /// The class of the approval: `definition`, `text`, `template`, `variants`, `source` or
    /// `files`, also `definition, text unstable`; empty if there is none.
    pub covers: String,
    /// Which parts are compared, in one sentence.
    pub compared: Option<&'static str>,
    /// Which parts are not compared, in one sentence.
    pub not_compared: Option<&'static str>,
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["off", "warn", "enforce"])))]
    pub mode: &'static str,
    /// Whether it is offered and not served.
    pub held: bool,
    pub approved_by: Option<String>,
    pub offered: Option<VersionDigests>,
    pub approved: Option<DecidedVersion>,
    pub rejected: Option<DecidedVersion>,
    /// The offered version, where one of two people has approved it.
    pub pending: Option<DecidedVersion>,
    /// Versions that were approved before.
    pub previous: Vec<DecidedVersion>,
    /// Texts that callers got and that fit no approved one, with places for their values.
    pub variants: Vec<VariantDocument>,
}

/// The states of approvals.
#[cfg(feature = "schema")]
pub const APPROVAL_STATES: [&str; 5] = ["unchecked", "pending", "approved", "changed", "rejected"];

/// An examined prompt as those who decide see it: with its difference to the approved version, and
/// with the tag that a decision on exactly this names.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ShownApproval {
    #[serde(flatten)]
    pub approval: ApprovalDocument,
    /// The entity tag of this prompt, for `If-Match` of a decision on it alone.
    pub tag: String,
    /// Difference to the approved version.
    pub diff: String,
    /// Why only the definition can be compared.
    pub unseen: Option<String>,
    /// Findings of guards in the offered version, in sentences.
    pub findings: Vec<String>,
    /// Texts that the upstream has given at other times.
    pub seen_otherwise: Vec<SeenDocument>,
}

/// The digests of one version of a prompt.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct VersionDigests {
    pub definition: DigestText,
    /// Of the files of a skill, by their paths in its folder.
    pub files: BTreeMap<Arc<str>, DigestText>,
    pub source: Option<DigestText>,
    pub texts: Vec<TextDigest>,
    /// Further texts for the same arguments.
    pub variants: Vec<TextDigest>,
}

/// A version with the decision on it.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DecidedVersion {
    #[serde(flatten)]
    pub version: VersionDigests,
    pub by: String,
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    pub at: String,
    pub why: Option<String>,
}

/// The digest of the text for some arguments.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TextDigest {
    pub arguments: Option<Arguments>,
    pub digest: DigestText,
}

/// A text that a caller got and that fits no approved one.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "FoundVariant"))]
pub struct VariantDocument {
    pub arguments: Option<Arguments>,
    /// Names it in `variants` of a decision, and in `objects`.
    pub digest: DigestText,
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    pub at: String,
}

/// A text that the upstream has given at another time.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "SeenOtherwise"))]
pub struct SeenDocument {
    /// null: those of a caller.
    pub arguments: Option<Arguments>,
    /// null: two different texts in a row.
    pub digest: Option<DigestText>,
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    pub at: String,
    /// The same in a sentence.
    pub message: String,
}

impl ApprovalDocument {
    pub fn of(examined: &Examined) -> Self {
        let Examined { row, offered, .. } = examined;
        let approval = row.approval.as_ref();
        let approved = approval.and_then(|approval| approval.approved.as_ref());
        let version = approved.map(|decided| &decided.version);
        let version = version.or(offered.as_ref().map(|offered| &offered.version));
        let mut texts = offered.iter().flat_map(|offered| offered.texts.values());
        let is_unstable = texts.any(|text| matches!(text, ProbedText::Unstable));
        let class = version.map(Version::class);
        let covers = class.map(Class::as_str).unwrap_or_default();
        let unstable = if is_unstable { ", text unstable" } else { "" };
        let previous = approval.iter().flat_map(|approval| &approval.previous);
        let rejected = approval.and_then(|approval| approval.rejected.as_ref());
        Self {
            kind: row.kind.as_str(),
            name: row.public_name.clone(),
            upstream: row.upstream.as_str().to_owned(),
            raw_name: row.raw_name.clone(),
            aliases: row.aliases.clone(),
            state: row.decision.state.as_str(),
            reason: row.problem.as_deref().unwrap_or(row.decision.reason.as_str()).to_owned(),
            covers: format!("{covers}{unstable}"),
            compared: class.map(Class::compared),
            not_compared: class.map(Class::not_compared),
            mode: row.mode.as_str(),
            held: row.is_held(),
            approved_by: approved.map(|decided| decided.attribution.by.clone()),
            offered: offered.as_ref().map(|offered| VersionDigests::of(&offered.version)),
            approved: approved.map(DecidedVersion::of),
            rejected: rejected.map(DecidedVersion::of),
            pending: row.half_approved().map(DecidedVersion::of),
            previous: previous.map(DecidedVersion::of).collect(),
            variants: row.variants.iter().map(VariantDocument::of).collect(),
        }
    }
}

impl ShownApproval {
    pub fn of(examined: &Examined, diff: String) -> Self {
        Self {
            approval: ApprovalDocument::of(examined),
            tag: tag(examined),
            diff,
            unseen: examined.unseen_text(),
            findings: examined.findings.iter().map(|finding| finding.sentence.clone()).collect(),
            seen_otherwise: examined.seen_otherwise.iter().map(SeenDocument::of).collect(),
        }
    }
}

impl VersionDigests {
    fn of(version: &Version) -> Self {
        let text = |(arguments, digest): (&Arc<str>, _)| TextDigest::of(arguments, digest);
        let variants = version.variants.iter().map(|(arguments, digest)| (arguments, digest));
        Self {
            definition: version.definition.clone(),
            files: version.files.clone(),
            source: version.source.clone(),
            texts: version.texts.iter().map(text).collect(),
            variants: variants.map(text).collect(),
        }
    }
}

impl DecidedVersion {
    fn of(decided: &Decided) -> Self {
        let attribution = &decided.attribution;
        Self {
            version: VersionDigests::of(&decided.version),
            by: attribution.by.clone(),
            at: attribution.at.clone(),
            why: attribution.why.clone(),
        }
    }
}

impl TextDigest {
    fn of(arguments: &str, digest: &DigestText) -> Self {
        Self { arguments: read(arguments), digest: digest.clone() }
    }
}

impl VariantDocument {
    fn of(found: &FoundVariant) -> Self {
        let at = humantime::format_rfc3339_seconds(found.at).to_string();
        Self { arguments: read(&found.arguments), digest: found.digest.clone(), at }
    }
}

impl SeenDocument {
    fn of(seen: &SeenOtherwise) -> Self {
        Self {
            arguments: seen.arguments.as_deref().and_then(read),
            digest: seen.digest.clone(),
            at: humantime::format_rfc3339_seconds(seen.at).to_string(),
            message: seen.message(wall_clock()),
        }
    }
}

/// Reads the arguments of a text: an object of strings.
fn read(arguments: &str) -> Option<Arguments> {
    serde_json::from_str(arguments).ok()
}

/// The entity tag of an examination (RFC 9110, section 8.8.3) covers the digests of the definition,
/// the source and the texts, and the decisions on the prompt. A decision names this tag.
pub fn tag(examined: &Examined) -> String {
    let texts = examined.offered.iter().flat_map(|offered| &offered.texts);
    let unknown = texts.filter_map(|(arguments, text)| match text {
        ProbedText::Stable { .. } => None,
        ProbedText::Unstable => Some((&**arguments, "unstable")),
        ProbedText::Failed(_) => Some((&**arguments, "failed")),
    });
    let unread = examined.offered.iter().flat_map(|offered| &offered.unread);
    let unread = unread.map(|(path, _)| (&**path, "unread"));
    let shown = json!([ApprovalDocument::of(examined), unknown.chain(unread).collect::<Vec<_>>()]);
    format!("\"{}\"", seal::sha256_text(shown.to_string().as_bytes()))
}
