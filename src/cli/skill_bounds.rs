//! Warnings of `check` about endpoints with more skills than hosts take.

use config::{Config, View};
use domain::skill::{SkillCount, exceeds_hosts};
use gateway::upstream::prompt_list::PromptList;

/// Returns a warning for each endpoint that serves more skills than hosts take from one server.
/// `lists` are those of the upstreams, in the order of the configuration.
pub(super) fn warnings(config: &Config, lists: &[Option<PromptList>]) -> Vec<String> {
    let main = std::iter::once(("server", None));
    let views = config.views.iter().map(|view| ("views.", Some(view)));
    let mut warnings = Vec::new();
    for (key, view) in main.chain(views) {
        let count = count(config, lists, view);
        if exceeds_hosts(count) {
            let SkillCount { skills, bytes } = count;
            let name = view.map(|view| view.name.as_str()).unwrap_or_default();
            warnings.push(format!(
                "{key}{name}: {skills} skills with {} KiB of list, and Claude Code takes at most \
                 100 and 512 KiB from one server: serve fewer by a view",
                bytes >> 10
            ));
        }
    }
    warnings
}

/// Counts the skills of an endpoint; `None` for the main one.
fn count(config: &Config, lists: &[Option<PromptList>], view: Option<&View>) -> SkillCount {
    let mut count = SkillCount::default();
    for (upstream, list) in config.upstreams.iter().zip(lists) {
        let Some(list) = list else { continue };
        for skill in &list.skills {
            let uri = skill.public_uri(&upstream.prefix);
            if view.is_none_or(|view| view.serves(&upstream.id, &uri)) {
                let mut entry = String::new();
                skill.write(&upstream.prefix, &mut entry);
                count.add(entry.len());
            }
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use domain::json::Json;
    use domain::skill::Skill;

    #[test]
    fn an_endpoint_with_more_skills_than_hosts_take_is_named() {
        let skill = |n: usize| {
            let uri = format!("skill://s{n}/SKILL.md");
            let digest = format!("sha256:{}", "0".repeat(64));
            let entry = format!(
                r#"{{"uri":"{uri}","frontmatter":{{"name":"s{n}","description":"d"}},
                "resources":[{{"uri":"{uri}","digest":"{digest}","size":1}}]}}"#
            );
            Arc::new(Skill::read(Json::parse_text(&entry, 8).unwrap()).unwrap())
        };
        let skills = (0..101).map(skill).collect();
        let lists = [Some(PromptList { skills, ..PromptList::default() })];
        let toml = "[upstreams.lib]\ntransport = \"library\"\npath = \".\"\n\
            [views.few]\nprompts = [\"skill://lib/s1*\"]\n[views.all]\n";
        let config = Config::parse("g", toml, Path::new("."), &[]).unwrap();
        let found = warnings(&config, &lists);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("server: 101 skills with "), "{found:?}");
        assert!(found[1].starts_with("views.all: "), "{found:?}");
        assert!(warnings(&config, &[None]).is_empty());
    }
}
