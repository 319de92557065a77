//! Names in the configuration that match nothing known: valid, and without effect.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use tokio::time::Instant;

use access::{Rule, RuleCallers};
use calls::rollouts::{self, RolloutProblem};
use catalog::refresh::Refresh;
use catalog::snapshot::Catalog;
use catalog::source::UpstreamSource;
use config::{Config, Origin};
use domain::approval::Mode;
use domain::calls::caller::{ANONYMOUS, CONSOLE, PROBER};
use domain::name::UpstreamId;
use domain::text::glob::Glob;
use domain::text::similar::suggestion;
use library::prompt_list::PromptList;
use upstream::driver::{DriverId, DriverReport, FetchedList};

/// The prompts of the upstreams whose lists are known.
pub(crate) struct KnownPrompts<'a> {
    config: &'a Config,
    /// Names at the upstream, by its id.
    raw: BTreeMap<&'a str, Vec<String>>,
    /// Public names, before and after overlays.
    public: BTreeSet<String>,
    /// The catalog of these lists when approvals hold nothing back.
    catalog: Catalog,
}

impl<'a> KnownPrompts<'a> {
    /// `lists` are those of the upstreams of the configuration, in its order; `None` where the list
    /// is not known.
    pub(crate) fn new(config: &'a Config, lists: &[Option<PromptList>]) -> Self {
        let catalog = served(config, lists);
        let served = catalog.content.items().map(|item| item.public_name.to_string());
        let public = served.collect();
        let mut known = Self { config, raw: BTreeMap::new(), public, catalog };
        for (upstream, list) in config.upstreams.iter().zip(lists) {
            let Some(list) = list else { continue };
            let names = list.prompts.iter().map(|prompt| prompt.name.clone());
            let mut names: Vec<String> = names.collect();
            let public = |raw: &String| config.naming.public(&upstream.prefix, raw).ok();
            known.public.extend(names.iter().filter_map(public));
            for skill in &list.skills {
                known.public.insert(skill.public_uri(&upstream.prefix));
                if upstream.skills_as_prompts {
                    known.public.extend(config.naming.public(&upstream.prefix, skill.name()));
                }
                names.push(skill.path.to_string());
            }
            known.raw.insert(upstream.id.as_str(), names);
        }
        known
    }

    /// Returns the catalog of the known lists when approvals hold nothing back.
    pub(crate) fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Returns one line for each overlay, view, probe, rule and limit that matches nothing, with
    /// its place in the file. Patterns that an upstream with an unknown list may match cause no
    /// warning.
    pub(crate) fn warnings(&self, file: &Path) -> Vec<String> {
        let mut found = Vec::new();
        let mut add = |key: &str, what: String| {
            found.push(format!("{}{key}: {what}", place(self.config, file, key)));
        };
        for overlay in &self.config.overlays {
            let Some(names) = self.raw.get(overlay.upstream.as_str()) else { continue };
            if !names.iter().any(|name| overlay.prompt.matches(name)) {
                let key = format!("overlays.{}.prompt", overlay.number);
                let upstream = &overlay.upstream;
                add(&key, no_prompt(&format!("of {upstream} "), &overlay.prompt, names));
            }
        }
        for view in &self.config.views {
            for glob in
                view.prompts.iter().filter(|glob| !is_all(glob) && !self.may_be_public(glob))
            {
                let key = format!("views.{}.prompts", view.name);
                add(&key, no_prompt("", glob, &self.public));
            }
        }
        for (index, probe) in self.config.approvals.probes.iter().enumerate() {
            let glob = Glob::parse(&probe.prompt);
            if let Some(glob) = glob.filter(|glob| !self.may_be_public(glob)) {
                let key = format!("approvals.probes.{}.prompt", index + 1);
                add(&key, no_prompt("", &glob, &self.public));
            }
        }
        self.blocked_rollouts(&mut add);
        self.unmatched_rules(&mut add);
        self.unmatched_callers(&mut add);
        self.rules_of_probes(&mut add);
        found
    }

    /// Rollouts that would serve no new version.
    fn blocked_rollouts(&self, add: &mut dyn FnMut(&str, String)) {
        let is_kept = self.config.audit.is_some() || self.config.cluster.is_some();
        for (number, (prompt, rollout)) in (1..).zip(&self.config.rollouts) {
            if rollout.rollback.is_some() && !is_kept {
                let what = RolloutProblem::Unkept.to_string();
                add(&format!("rollouts.{number}.rollback"), what);
            }
            let glob = Glob::parse(prompt);
            if self.catalog.content.item(prompt).is_none() {
                if let Some(glob) = glob.filter(|glob| !self.may_be_public(glob)) {
                    let what = no_prompt("", &glob, &self.public);
                    add(&format!("rollouts.{number}.prompt"), what);
                }
            } else if let Some(problem) = rollouts::problem(&self.catalog, prompt, rollout) {
                add(&format!("rollouts.{number}.to"), problem.to_string());
            }
            let listed = self.catalog.content.item(prompt);
            let version = listed.and_then(|listed| listed.version.as_ref());
            if version.is_some_and(|version| version.rollout.is_some()) {
                let what = "has another rollout in rollouts.toml of its library, which does not \
                            count: end one of them (`promptgate rollouts end`)";
                add(&format!("rollouts.{number}.prompt"), what.to_owned());
            }
        }
    }

    /// Warns of prompts in access rules, which are names at the upstreams.
    fn unmatched_rules(&self, add: &mut dyn FnMut(&str, String)) {
        for (number, rule) in self.rules() {
            let is_of = |id: &UpstreamId| rule.upstreams.is_empty() || rule.upstreams.contains(id);
            let upstreams = self.config.upstreams.iter().filter(|upstream| is_of(&upstream.id));
            let lists: Option<Vec<_>> = upstreams.map(|u| self.raw.get(u.id.as_str())).collect();
            let Some(lists) = lists else { continue };
            let names: Vec<_> = lists.into_iter().flatten().cloned().collect();
            for glob in rule.prompts.iter().filter(|glob| !is_all(glob)) {
                if !names.iter().any(|name| glob.matches(name)) {
                    add(&format!("access.rules.{number}.prompts"), no_prompt("", glob, &names));
                }
            }
        }
    }

    /// Warns of rules that allow the probes of approvals, which access rules do not stop.
    fn rules_of_probes(&self, add: &mut dyn FnMut(&str, String)) {
        for (number, rule) in self.rules() {
            if let RuleCallers::Named { groups, ids, .. } = &rule.callers
                && groups.is_empty()
                && ids.len() == 1
                && ids.iter().all(|id| id == PROBER)
            {
                let what = "no longer needed: access rules do not stop the probes of approvals";
                add(&format!("access.rules.{number}.callers"), what.to_owned());
            }
        }
    }

    fn rules(&self) -> impl Iterator<Item = (usize, &'a Rule)> {
        let rules = self.config.access.iter().flat_map(|access| &access.written);
        (1..).zip(rules)
    }

    /// Warns of unknown callers and groups, where the configuration lists all callers.
    fn unmatched_callers(&self, add: &mut dyn FnMut(&str, String)) {
        let auth = &self.config.auth;
        if auth.jwt.is_some() || (auth.takes_certificates && auth.certificates.is_empty()) {
            return;
        }
        let callers: Vec<_> = auth.named().chain([&auth.stdio]).collect();
        let groups = callers.iter().flat_map(|caller| caller.groups.iter().map(String::as_str));
        let groups: BTreeSet<&str> = groups.collect();
        let ids = callers.iter().map(|caller| caller.id.as_str());
        let ids: BTreeSet<&str> = ids.chain([ANONYMOUS, CONSOLE, PROBER]).collect();
        let mut unknown = |key: String, what: &str, name: &str, known: &BTreeSet<&str>| {
            add(&key, format!("{what} `{name}`{}", suggestion(name, known.iter().copied())));
        };
        for (number, rule) in self.rules() {
            let RuleCallers::Named { groups: named, ids: callers, .. } = &rule.callers else {
                continue;
            };
            for name in named.iter().filter(|name| !groups.contains(name.as_str())) {
                let key = format!("access.rules.{number}.groups");
                unknown(key, "no caller is in the group", name, &groups);
            }
            for name in callers.iter().filter(|name| !ids.contains(name.as_str())) {
                unknown(format!("access.rules.{number}.callers"), "no caller is named", name, &ids);
            }
        }
        for (number, (_, rollout)) in (1..).zip(&self.config.rollouts) {
            for name in rollout.groups.iter().filter(|name| !groups.contains(name.as_str())) {
                unknown(
                    format!("rollouts.{number}.groups"),
                    "no caller is in the group",
                    name,
                    &groups,
                );
            }
        }
        // No limit counts the gateway's own calls.
        let ids: BTreeSet<&str> = ids.into_iter().filter(|id| *id != PROBER).collect();
        for (number, limit) in (1..).zip(&self.config.limits) {
            let globs = limit.callers.iter();
            for glob in globs.filter(|glob| !ids.iter().any(|id| glob.matches(id))) {
                let name = glob.to_string();
                unknown(format!("limits.{number}.callers"), "no caller is named", &name, &ids);
            }
        }
    }

    /// Whether a pattern matches a known public name, or may match a name of an upstream whose list
    /// is unknown.
    fn may_be_public(&self, glob: &Glob) -> bool {
        let pattern = glob.to_string();
        let head = pattern.split('*').next().unwrap_or_default();
        let mut unknown = self.config.upstreams.iter();
        let may_be_of_unknown = unknown.any(|upstream| {
            let start = self.config.naming.beginning(&upstream.prefix);
            let is_unknown = !self.raw.contains_key(upstream.id.as_str());
            is_unknown && (head.starts_with(&start) || start.starts_with(head))
        });
        may_be_of_unknown || self.public.iter().any(|name| glob.matches(name))
    }
}

/// Whether a pattern is the default, which may match nothing.
fn is_all(glob: &Glob) -> bool {
    glob.to_string() == "*"
}

/// Returns the catalog of these lists when approvals hold nothing back.
fn served(config: &Config, lists: &[Option<PromptList>]) -> Catalog {
    let mut config = config.clone();
    config.approvals.mode = Mode::Off;
    config.approvals.modes.clear();
    let source = |upstream| UpstreamSource::new(DriverId::fresh(), upstream, &config);
    let sources: Vec<_> = config.upstreams.iter().map(source).collect();
    let drivers: Vec<_> = sources.iter().map(|source| source.driver).collect();
    let mut refresh = Refresh::new(sources, config.naming.clone());
    for (driver, list) in drivers.into_iter().zip(lists) {
        let Some(listed) = list.clone() else { continue };
        let outcome = Ok(FetchedList { listed, fresh_for: None });
        refresh.take([DriverReport { driver, outcome }], Instant::now());
    }
    refresh.snapshot()
}

fn no_prompt<'n>(whose: &str, glob: &Glob, known: impl IntoIterator<Item = &'n String>) -> String {
    let pattern = glob.to_string();
    let near = if glob.stars() == 0 {
        suggestion(&pattern, known.into_iter().map(String::as_str))
    } else {
        ".".to_owned()
    };
    format!("no prompt {whose}matches `{pattern}`{near}")
}

/// Returns the place of a key in the file, with the separator that follows it.
fn place(config: &Config, file: &Path, key: &str) -> String {
    let file = file.display();
    let setting = config.settings.iter().find(|setting| setting.key == key);
    match setting.and_then(|setting| setting.origin.as_ref()) {
        Some(Origin::Line(line)) => format!("{file}:{line}: "),
        Some(Origin::Environment(name)) => format!("{name}: "),
        _ => format!("{file}: "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::json::Json;
    use domain::prompts::prompt::Prompt;

    fn list(names: &[&str]) -> PromptList {
        let prompt = |name: &&str| {
            let text = serde_json::json!({"name": name}).to_string();
            Prompt::read(Json::parse(text.as_bytes(), 8).unwrap()).unwrap()
        };
        PromptList {
            prompts: names.iter().map(prompt).collect(),
            pages: 1,
            ..PromptList::default()
        }
    }

    fn warnings(toml: &str, lists: &[Option<PromptList>]) -> Vec<String> {
        let up = "[upstreams.far]\ntransport = \"http\"\nurl = \"http://127.0.0.1:1/mcp\"\n\
            [upstreams.lib]\ntransport = \"library\"\npath = \".\"\n";
        let config = Config::parse("g", &format!("{up}{toml}"), Path::new("."), &[]);
        let config = config.unwrap_or_else(|error| panic!("{error}"));
        let known = KnownPrompts::new(&config, lists);
        known.warnings(Path::new("g")).iter().map(|line| line.replacen("g:", "", 1)).collect()
    }

    #[test]
    fn what_matches_no_known_prompt_is_said_and_what_may_match_is_not() {
        let toml = "[[overlays]]\nupstream = \"lib\"\nprompt = \"reviw\"\ntitle = \"t\"\n\
            [[overlays]]\nupstream = \"far\"\nprompt = \"any\"\ntitle = \"t\"\n\
            [[overlays]]\nupstream = \"lib\"\nprompt = \"review\"\nrename = \"check\"\n\
            [views.a]\nprompts = [\"lib__check\", \"lib__none*\", \"far__x\", \"*\"]\n\
            [views.b]\nprompts = [\"nobody__x\"]\n\
            [[approvals.probes]]\nprompt = \"lib__chek\"\narguments = { a = \"b\" }\n\
            [[access.rules]]\nallow = [\"get\"]\nprompts = [\"x\"]\n\
            [[access.rules]]\nallow = [\"get\"]\nupstreams = [\"lib\"]\nprompts = [\"review\", \"rev\"]\n";
        let lib = Some(list(&["review"]));
        let found = warnings(toml, &[None, lib.clone()]);
        let expected = [
            "9: overlays.1.prompt: no prompt of lib matches `reviw`; did you mean `review`?",
            "20: views.a.prompts: no prompt matches `lib__none*`.",
            "22: views.b.prompts: no prompt matches `nobody__x`.",
            "24: approvals.probes.1.prompt: no prompt matches `lib__chek`; did you mean `lib__check`",
            "32: access.rules.2.prompts: no prompt matches `rev`; did you mean `review`?",
        ];
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found}\n{expected}");
        }
        let all = warnings(toml, &[Some(list(&["any"])), lib]);
        assert!(all.iter().any(|line| line.contains("`far__x`")), "{all:#?}");
        assert!(all.iter().any(|line| line.contains("access.rules.1.prompts")), "{all:#?}");
    }

    #[test]
    fn a_rollout_that_would_serve_no_new_version_is_said_with_the_reason() {
        let toml = |prompt: &str, to: &str| {
            format!("[[rollouts]]\nprompt = \"{prompt}\"\nto = \"{to}\"\nshare = 0.1\n")
        };
        let lib = [None, Some(list(&["review", "review@candidate"]))];
        for (prompt, to, expected) in [
            ("lib__review", "candidate", None),
            (
                "lib__review",
                "5",
                Some("9: rollouts.1.to: its upstream does not list lib__review@5"),
            ),
            (
                "lib__reviw",
                "5",
                Some(
                    "8: rollouts.1.prompt: no prompt matches `lib__reviw`; did you mean `lib__review`",
                ),
            ),
            ("far__any", "5", None),
        ] {
            let found = warnings(&toml(prompt, to), &lib);
            assert_eq!(found.len(), usize::from(expected.is_some()), "{found:?}");
            assert!(
                found.iter().all(|line| line.starts_with(expected.unwrap_or_default())),
                "{found:?}"
            );
        }
    }

    #[test]
    fn a_group_and_a_caller_that_no_credential_has_are_said() {
        let key = format!(
            "[[auth.api_keys]]\nid = \"ci\"\ngroups = [\"engineering\"]\nhash = \"sha256:{}\"\n",
            "0".repeat(64)
        );
        let rule = "[[access.rules]]\nallow = [\"get\"]\ngroups = [\"enginering\", \"engineering\"]\ncallers = [\"ci\", \"cd\"]\n\
            [[limits]]\nname = \"l\"\nrate = \"1/s\"\ncallers = [\"c*\"]\n\
            [[limits]]\nname = \"m\"\nrate = \"1/s\"\ncallers = [\"bot-*\"]\n\
            [[limits]]\nname = \"n\"\nrate = \"1/s\"\ncallers = [\"promptgate\"]\n";
        let found = warnings(&format!("{key}{rule}"), &[None, None]);
        assert_eq!(found.len(), 4, "{found:#?}");
        assert!(found[0].contains("`enginering`; did you mean `engineering`?"), "{found:?}");
        assert!(found[1].contains("access.rules.1.callers: no caller is named `cd`"), "{found:?}");
        assert!(found[2].contains("limits.2.callers: no caller is named `bot-*`."), "{found:?}");
        assert!(
            found[3].contains("limits.3.callers: no caller is named `promptgate`"),
            "{found:?}"
        );
        let token = "[auth.jwt]\nissuer = \"https://id.example.com/\"\n[server]\npublic_url = \"https://g.example/mcp\"\n";
        assert!(warnings(&format!("{key}{token}{rule}"), &[None, None]).is_empty());
    }
}
