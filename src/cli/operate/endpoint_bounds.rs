//! Warnings of `check` about endpoints with more prompts or skills than hosts read.

use catalog::endpoints::EndpointScopes;
use catalog::snapshot::Catalog;
use config::Config;
use domain::prompts::skill::{SkillCount, exceeds_hosts};

/// Returns the warnings about the endpoints of a configuration, for the lists of its upstreams in
/// `catalog`.
pub(crate) fn warnings(config: &Config, catalog: &Catalog) -> Vec<String> {
    let endpoints = EndpointScopes::new(config);
    let main = ("server".to_owned(), config.server.path.clone());
    let view = |name: &str| (format!("views.{name}"), config.server.view_path(name));
    let views = config.views.iter().map(|each| view(&each.name));
    let named: Vec<_> = std::iter::once(main).chain(views).collect();
    let pages = page_warning(config.listing.page_size, &endpoints, &named, catalog);
    let skills = named.iter().filter_map(|(key, path)| {
        let count = endpoints.skill_count(&catalog.skills, path);
        exceeds_hosts(count).then(|| skill_warning(key, count))
    });
    pages.into_iter().chain(skills).collect()
}

/// Names each endpoint with more prompts than one page has; `None` where there is none.
fn page_warning(
    page_size: usize,
    endpoints: &EndpointScopes,
    named: &[(String, String)],
    catalog: &Catalog,
) -> Option<String> {
    let listing = named.iter().filter(|(_, path)| endpoints.exposure(path).prompts);
    let counted = listing.map(|(key, path)| (key, endpoints.prompt_count(&catalog.content, path)));
    let beyond = counted.filter(|(_, count)| *count > page_size);
    let beyond: Vec<_> = beyond.map(|(key, count)| format!("{key} lists {count}")).collect();
    (!beyond.is_empty()).then(|| {
        format!(
            "listing.page_size: {} prompts on pages of {page_size}: hosts and gateways that read \
             one page only, such as mcp-hub, miss the others; raise it, or let them use a view \
             with fewer",
            beyond.join(", ")
        )
    })
}

fn skill_warning(key: &str, SkillCount { skills, bytes }: SkillCount) -> String {
    format!(
        "{key}: {skills} skills with {} KiB of list, and Claude Code takes at most 100 and 512 KiB \
         from one server: serve fewer by a view",
        bytes >> 10
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::cli::operate::unmatched::KnownPrompts;
    use domain::json::Json;
    use domain::prompts::prompt::Prompt;
    use domain::prompts::skill::Skill;
    use library::prompt_list::PromptList;
    use library::{LibraryLabels, LibrarySnapshot};

    fn read(toml: &str, folder: &Path) -> Config {
        Config::parse("g", toml, folder, &[]).unwrap()
    }

    fn found(config: &Config, lists: &[Option<PromptList>]) -> Vec<String> {
        warnings(config, KnownPrompts::new(config, lists).catalog())
    }

    #[test]
    fn an_endpoint_that_needs_more_than_one_page_is_named() {
        let prompts = ["a", "b", "c"].map(Prompt::named).into();
        let lists = [Some(PromptList { prompts, ..PromptList::default() })];
        let named = |page_size: usize| {
            let toml = format!(
                "[listing]\npage_size = {page_size}\n\
                 [upstreams.lib]\ntransport = \"library\"\npath = \".\"\n\
                 [views.few]\nprompts = [\"lib__a\"]\n[views.tools]\nexpose = [\"tools\"]\n\
                 [views.two]\nprompts = [\"lib__a\", \"lib__b\"]\n"
            );
            let found = found(&read(&toml, Path::new(".")), &lists);
            assert!(found.len() < 2, "{found:?}");
            Some(found.first()?.split_once(" prompts on ")?.0.to_owned())
        };
        assert_eq!(named(3), None);
        assert_eq!(named(2).unwrap(), "listing.page_size: server lists 3");
        let both = "listing.page_size: server lists 3, views.two lists 2";
        assert_eq!(named(1).unwrap(), both);
    }

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
        let config = read(toml, Path::new("."));
        let warnings = found(&config, &lists);
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(warnings[0].starts_with("server: 101 skills with "), "{warnings:?}");
        assert!(warnings[1].starts_with("views.all: "), "{warnings:?}");
        assert!(found(&config, &[None]).is_empty());
    }

    #[test]
    fn skills_that_stand_for_prompts_count_where_they_are_offered() {
        let folder = tempfile::tempdir().unwrap();
        for n in 0..101 {
            let text = format!("---\nname: p{n}\ndescription: d\n---\nSay {n}.\n");
            fs::write(folder.path().join(format!("p{n}.md")), text).unwrap();
        }
        let toml = "[upstreams.lib]\ntransport = \"library\"\npath = \".\"\n\
            [views.skills]\nexpose = [\"prompts\", \"skills\"]\n";
        let config = read(toml, folder.path());
        let lib = &config.upstreams[0].settings;
        let loaded = LibrarySnapshot::load(folder.path(), "lib", lib, &LibraryLabels::default());
        let warnings = found(&config, &[Some(loaded.unwrap().listed)]);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].starts_with("views.skills: 101 skills with "), "{warnings:?}");
    }
}
