//! Reads the offered files of a skill for a person who looks at the skill or decides.

use std::sync::Arc;

use super::Approvals;
use super::pace::Purpose;
use super::probe::PromptProbe;
use calls::probe::ProbeRequest;
use calls::skills::file;
use catalog::approval::{ApprovalRow, OfferedPrompt};
use catalog::snapshot::Catalog;
use config::lock::{Object, Objects};
use domain::approval::{ApprovalKind, ApprovalState, Decision, Mode, Offered, Reason, Serving};
use domain::json::Json;
use domain::prompts::prompt::Prompt;
use domain::prompts::skill::{SKILL_FILE, Skill, SkillFile};

/// The files of a skill by digest, and the unreadable files with the reasons.
#[derive(Debug, Default)]
pub(super) struct ReadFiles {
    pub objects: Objects,
    pub unread: Vec<(Arc<str>, String)>,
}

impl PromptProbe<'_> {
    /// Reads all files of the offered version of a skill one after another. The extension bounds
    /// them (512 files, 16 MiB). Accepts only the bytes that the skill's entry names.
    pub(super) async fn files(&self, skill: &Skill) -> ReadFiles {
        let mut read = ReadFiles::default();
        let folder = self.row.public_name.strip_suffix(SKILL_FILE).unwrap_or_default();
        for file in &skill.files {
            let path = skill.path_in_folder(file);
            match self.file(file, &[folder, path].concat()).await {
                Ok(object) => {
                    read.objects.insert((&*file.digest).into(), object);
                }
                Err(why) => read.unread.push((path.into(), why)),
            }
        }
        read
    }

    /// Reads one file by its public URI.
    async fn file(&self, file: &SkillFile, uri: &str) -> Result<Object, String> {
        let result = self.once(ProbeRequest::File { file, uri }).await;
        let result = result.map_err(|fault| fault.diagnosis())?;
        let bytes = file::verified(Json::accepted(&result), file)?;
        Ok(Object::File(bytes.into_owned().into()))
    }
}

/// Reads one offered file of a skill, by the URI of the skill and the path in its folder. Returns a
/// JSON string, which states whether the file is not text; `None` if the file is not offered. The
/// call is recorded and paced as a probe.
pub async fn offered_file(
    approvals: &Approvals,
    skill: &str,
    path: &str,
) -> Option<Result<String, String>> {
    let row = approvals.row(skill);
    let row = row.or_else(|| unchecked(&approvals.router.catalog(), skill))?;
    let offered = row.offered.as_ref()?;
    let own = offered.skill.as_ref()?;
    let file = own.files.iter().find(|file| own.path_in_folder(file) == path)?;
    let probe = PromptProbe { approvals, row: &row, offered, purpose: Purpose::Examination };
    let uri = [skill.strip_suffix(SKILL_FILE)?, path].concat();
    Some(probe.file(file, &uri).await.map(|object| object.json().into_owned()))
}

/// The row of a served skill whose upstream has no approvals.
fn unchecked(catalog: &Catalog, name: &str) -> Option<ApprovalRow> {
    let item = catalog.skills.content.item(name)?;
    let listed = catalog.skills.skills.get(name)?;
    let version = Offered {
        definition: item.digest.clone(),
        source: None,
        texts: Default::default(),
        files: listed.skill.digests(),
    };
    let prompt = Prompt::named(&listed.skill.path).into();
    let skill = Some(listed.skill.clone());
    Some(ApprovalRow {
        kind: ApprovalKind::Skill,
        upstream: item.upstream.clone(),
        raw_name: item.raw_name.clone(),
        public_name: name.to_owned(),
        mode: Mode::Off,
        offered: Some(OfferedPrompt { prompt, skill, version, texts_since: None }),
        approval: None,
        decision: Decision {
            state: ApprovalState::Unchecked,
            reason: Reason::Off,
            serving: Serving::Offered,
        },
        problem: None,
        variants: Vec::new(),
        aliases: Vec::new(),
    })
}
