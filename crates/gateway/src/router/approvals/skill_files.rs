//! The files of a skill that waits, read at its upstream for a person who decides.

use std::sync::Arc;

use super::probe::{ProbeRequest, PromptProbe};
use crate::router::skills::file;
use config::lock::{Object, Objects};
use domain::json::Json;
use domain::skill::{SKILL_FILE, Skill};

/// The files of a skill, by their digests, and those that cannot be had, with the reasons.
#[derive(Debug, Default)]
pub(super) struct ReadFiles {
    pub objects: Objects,
    pub unread: Vec<(Arc<str>, String)>,
}

impl PromptProbe<'_> {
    /// Reads all files of the offered version of a skill, which the extension bounds (512 files,
    /// 16 MiB), one after another. Only the bytes of its entry are taken.
    pub(super) async fn files(&self, skill: &Skill) -> ReadFiles {
        let mut read = ReadFiles::default();
        let folder = self.row.public_name.strip_suffix(SKILL_FILE).unwrap_or_default();
        for file in &skill.files {
            let path = skill.path_inside(file);
            let uri = [folder, path].concat();
            let result = self.once(ProbeRequest::File { file, uri: &uri }).await;
            let bytes = result.map_err(|fault| fault.to_string()).and_then(|result| {
                file::verified(Json::accepted(&result), file).map(|bytes| bytes.into_owned())
            });
            match bytes {
                Ok(bytes) => {
                    read.objects.insert((&*file.digest).into(), Object::File(bytes.into()));
                }
                Err(why) => read.unread.push((path.into(), why)),
            }
        }
        read
    }
}
