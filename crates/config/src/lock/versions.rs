//! Approvals of versions in a lock file of an earlier promptgate, which had an entry for each name
//! of a version: the plain name, and each label.

use super::{Lock, LockFile, Object, Objects};
use base::seal;
use domain::approval::{Approval, ApprovalKind, Decided, Version};
use domain::json::Json;
use domain::json::canonical::canonical;
use domain::json::object::write_object;
use domain::name::version_name;
use domain::prompts::prompt_version::write_with_label;

/// JSON depth of objects, which were checked at their approval.
const DEPTH: usize = 256;

/// The definition of a version under the name on which people decide.
struct ContentDefinition {
    name: String,
    text: String,
    /// Whether a label chose the version.
    is_labelled: bool,
}

impl ContentDefinition {
    /// Reads the definition that was approved under a name; `None` without a version.
    fn read(text: &str, name: &str) -> Option<Self> {
        let definition = Json::parse(text.as_bytes(), DEPTH).ok()?;
        let meta = definition.get("_meta")?;
        let version = meta.get("version")?.as_str()?;
        let label = meta.get("label").and_then(Json::as_str);
        let of = label.as_ref().and_then(|label| name.strip_suffix(&*version_name("", label)));
        let content = version_name(of.unwrap_or(name), &version);
        let mut text = String::new();
        write_object(&mut text, |out| {
            out.text("name", &content);
            write_with_label(definition, None, out);
        });
        let text = canonical(Json::accepted(&text));
        Some(Self { name: content, text, is_labelled: label.is_some() })
    }
}

impl Lock {
    /// Moves the decisions on plain names and labels of versions to the entries of the versions.
    /// Returns the definitions that these entries need. Blocks.
    pub(super) fn merge_versions(&mut self, store: &LockFile) -> Objects {
        let mut objects = Objects::new();
        let known = self.clone();
        for (upstream, approvals) in &known.approvals {
            for (name, approval) in approvals {
                let Some(contents) = known.contents(upstream, name, approval, store) else {
                    continue;
                };
                for (content, decided) in contents {
                    let digest = seal::sha256_text(content.text.as_bytes()).into();
                    let version = Version { definition: digest, ..decided.version.clone() };
                    let attribution = decided.attribution.clone();
                    objects.insert(version.definition.clone(), Object::Json(content.text));
                    let entry = self.approval_mut(ApprovalKind::Prompt, upstream, &content.name);
                    entry.approved.get_or_insert(Decided { version, attribution });
                }
                self.approvals.entry(upstream.clone()).or_default().remove(name);
            }
        }
        objects
    }

    /// Returns the versions behind the approved and earlier versions of a name; `None` if the name
    /// is that of a version or of a prompt without versions, or if a definition cannot be read.
    fn contents<'a>(
        &self,
        upstream: &str,
        name: &str,
        approval: &'a Approval,
        store: &LockFile,
    ) -> Option<Vec<(ContentDefinition, &'a Decided)>> {
        let decided: Vec<_> = approval.approved.iter().chain(&approval.previous).collect();
        let content = |decided: &'a Decided| {
            decided.version.source.as_ref()?;
            let text = store.object(&decided.version.definition).ok()?;
            let content = ContentDefinition::read(&text, name)?;
            Some((content, decided))
        };
        let contents: Vec<_> = decided.into_iter().map(content).collect::<Option<_>>()?;
        let is_version = |content: &ContentDefinition| {
            let known = self.of_upstream(ApprovalKind::Prompt, upstream);
            content.name != name
                && (content.is_labelled || known.is_some_and(|all| all.contains_key(&content.name)))
        };
        let are_versions = contents.iter().all(|(content, _)| is_version(content));
        (are_versions && !contents.is_empty()).then_some(contents)
    }
}
