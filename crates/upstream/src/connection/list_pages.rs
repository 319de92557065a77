//! Pagination walk: an upstream's `prompts/list` or `skills/list` from the first page to the last,
//! within limits (MCP 2025-11-25, pagination).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crate::repairs::Repairs;
use config::Settings;
use domain::calls::cursor::CacheScope;
use domain::fault::{UpstreamFaultKind as Kind, excerpt};
use domain::json::document::Document;
use domain::json::repair::RepairKind;
use domain::json::{Json, JsonKind};
use domain::prompts::prompt::{Prompt, PromptError};
use domain::prompts::skill::Skill;
use domain::protocol::method::Method;
use domain::protocol::via::Via;
use library::prompt_list::{MalformedPrompt, PromptList};

/// State of a walk between two pages.
#[derive(Debug)]
pub(crate) struct Pagination<'a> {
    kind: WalkKind,
    limits: &'a Settings,
    repairs: &'a Repairs,
    /// Whether an empty cursor ends the list.
    empty_ends: bool,
    /// The gateways behind the upstream.
    behind: Via,
    /// The identity of this gateway.
    own: Via,
    listed: PromptList,
    /// Cursors of the walk so far.
    cursors: HashSet<String>,
    /// Bytes of all pages so far.
    bytes: usize,
}

/// The list that is walked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum WalkKind {
    Prompts,
    Skills,
}

impl WalkKind {
    pub(crate) fn method(self) -> Method {
        match self {
            Self::Prompts => Method::List,
            Self::Skills => Method::ListSkills,
        }
    }

    /// The member of a result that holds the elements.
    fn member(self) -> &'static str {
        match self {
            Self::Prompts => "prompts",
            Self::Skills => "skills",
        }
    }
}

/// The step that follows a page.
#[derive(Debug, PartialEq)]
pub(crate) enum PageStep {
    /// Another page, at this cursor, which may be "".
    Next(String),
    /// The end of the list.
    Done(Box<PromptList>),
}

impl<'a> Pagination<'a> {
    pub(crate) fn new(
        kind: WalkKind,
        limits: &'a Settings,
        repairs: &'a Repairs,
        empty_ends: bool,
    ) -> Self {
        let listed = PromptList::default();
        let cursors = HashSet::new();
        let behind = Via::NONE;
        let own = Via::NONE;
        Self { kind, limits, repairs, empty_ends, behind, own, listed, cursors, bytes: 0 }
    }

    /// Sets the gateways `behind` the upstream. Omits elements that came back to `own`.
    pub(crate) fn through(self, behind: &Via, own: &Via) -> Self {
        Self { behind: behind.clone(), own: own.clone(), ..self }
    }

    /// Adds one `ListPromptsResult` or `ListSkillsResult`. The walk ends at an absent `nextCursor`,
    /// and at a cursor that names no other page; then the list has the elements read so far.
    pub(crate) fn page(&mut self, page: &Document) -> Result<PageStep, Kind> {
        let result = page.json();
        let member = self.kind.member();
        let elements = result.get(member).filter(|p| p.kind() == JsonKind::Array);
        let missing = || Kind::Protocol(format!("the list result has no array `{member}`"));
        let elements = elements.ok_or_else(missing)?;
        if result.get("resultType").is_some_and(|t| !t.is("complete")) {
            return Err(protocol("the resultType of the list result is not \"complete\""));
        }
        self.count_page(result)?;
        let before = (self.listed.prompts.len(), self.listed.skills.len());
        for refused in page.left_out() {
            self.leave_out(&refused.name, &PromptError::refused(refused))?;
        }
        for element in elements.elements() {
            let Some(via) = Via::of_element(element, &self.behind, &self.own) else { continue };
            match self.kind {
                WalkKind::Prompts => self.add(element, via)?,
                WalkKind::Skills => self.add_skill(element, via)?,
            }
        }
        let Some(next) = result.get("nextCursor") else { return Ok(self.done()) };
        let cursor = next.as_str().filter(|cursor| !self.empty_ends || !cursor.is_empty());
        let Some(cursor) = cursor else { return Ok(self.done_at(next)) };
        if !self.cursors.insert(cursor.clone().into_owned()) {
            self.drop_repeated(before);
            return Ok(self.done_at(next));
        }
        if self.listed.pages >= self.limits.max_pages {
            return Err(limit("max_pages", self.limits.max_pages));
        }
        Ok(PageStep::Next(cursor.into_owned()))
    }

    /// Adds one element of `prompts`.
    fn add(&mut self, element: Json<'_>, via: Via) -> Result<(), Kind> {
        match Prompt::read_repaired(element) {
            Ok((mut prompt, left_out)) => {
                self.check_count()?;
                if let Some(why) = left_out {
                    self.repairs.note(RepairKind::MemberLeftOut, &why.to_string());
                }
                prompt.via = via;
                self.listed.prompts.push(prompt);
                Ok(())
            }
            Err(error) => {
                let name = element.get("name").and_then(Json::as_str).unwrap_or_default();
                self.leave_out(&name, &error)
            }
        }
    }

    /// Adds one element of `skills`.
    fn add_skill(&mut self, element: Json<'_>, via: Via) -> Result<(), Kind> {
        self.check_count()?;
        match Skill::read(element) {
            Ok(mut skill) => {
                skill.via = via;
                self.listed.skills.push(Arc::new(skill));
            }
            Err(error) => {
                let uri = element.get("uri").and_then(Json::as_str).unwrap_or_default();
                let name = excerpt(&uri);
                let reason = format!("skill: {error}");
                self.listed.malformed.push(MalformedPrompt { name, reason, is_served: false });
            }
        }
        Ok(())
    }

    fn leave_out(&mut self, name: &str, error: &PromptError) -> Result<(), Kind> {
        self.check_count()?;
        let reason = error.to_string();
        let malformed = MalformedPrompt { name: excerpt(name), reason, is_served: false };
        self.repairs.note(RepairKind::PromptLeftOut, &malformed.reason);
        self.listed.malformed.push(malformed);
        Ok(())
    }

    fn check_count(&self) -> Result<(), Kind> {
        if self.listed.len() >= self.limits.max_prompts {
            return Err(limit("max_prompts", self.limits.max_prompts));
        }
        Ok(())
    }

    /// Drops elements of the last page that repeat earlier pages: an upstream that ignores the
    /// cursor repeats a page. `first` and `skill` index the last page's first prompt and skill.
    fn drop_repeated(&mut self, (first, skill): (usize, usize)) {
        let last = self.listed.skills.split_off(skill);
        let known: HashMap<_, _> =
            self.listed.skills.iter().map(|skill| (&skill.path, skill)).collect();
        let is_new = |skill: &Arc<Skill>| known.get(&skill.path) != Some(&skill);
        let new: Vec<_> = last.into_iter().filter(is_new).collect();
        self.listed.skills.extend(new);
        let last = self.listed.prompts.split_off(first);
        let known: HashMap<_, _> =
            self.listed.prompts.iter().map(|prompt| (prompt.name.as_str(), prompt)).collect();
        let is_new = |prompt: &Prompt| known.get(prompt.name.as_str()) != Some(&prompt);
        let new: Vec<_> = last.into_iter().filter(is_new).collect();
        self.listed.prompts.extend(new);
    }

    fn done(&mut self) -> PageStep {
        PageStep::Done(Box::new(std::mem::take(&mut self.listed)))
    }

    /// Ends the walk at a cursor that names no other page.
    fn done_at(&mut self, cursor: Json<'_>) -> PageStep {
        let what = format!("the list ends at `nextCursor` = {}", excerpt(cursor.text()));
        self.repairs.note(RepairKind::Cursor, &what);
        self.done()
    }

    /// Counts a page and takes in its cache hints.
    fn count_page(&mut self, result: Json<'_>) -> Result<(), Kind> {
        self.listed.pages += 1;
        self.bytes += result.text().len();
        if self.bytes > self.limits.max_walk {
            return Err(limit("max_walk", self.limits.max_walk));
        }
        let ttl = result.get("ttlMs").and_then(Json::as_whole).and_then(|ms| ms.try_into().ok());
        if let Some(ttl) = ttl.map(Duration::from_millis) {
            self.listed.ttl = Some(self.listed.ttl.map_or(ttl, |least| least.min(ttl)));
        }
        if result.get("cacheScope").is_some_and(|scope| scope.is("private")) {
            self.listed.scope = CacheScope::Private;
        }
        Ok(())
    }
}

fn protocol(what: &str) -> Kind {
    Kind::Protocol(what.to_owned())
}

fn limit(key: &str, most: usize) -> Kind {
    Kind::PaginationLimit(format!("more than {key} = {most}"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use telemetry::Telemetry;

    fn page(
        walk: &mut Pagination<'_>,
        names: &[&str],
        next: impl Into<serde_json::Value>,
    ) -> Result<PageStep, Kind> {
        let prompts: Vec<_> = names.iter().map(|n| serde_json::json!({"name": n})).collect();
        let result = serde_json::json!({"prompts": prompts, "nextCursor": next.into()});
        walk.page(&document(&result.to_string()))
    }

    fn document(text: &str) -> Document {
        Document::parse_repaired(text.as_bytes().to_vec(), 64).unwrap()
    }

    fn limits() -> Settings {
        Settings { max_pages: 3, max_prompts: 4, max_walk: 1024, ..Settings::default() }
    }

    fn repairs() -> Arc<Repairs> {
        Repairs::new("up", Telemetry::silent())
    }

    fn names(step: Result<PageStep, Kind>) -> Vec<String> {
        let Ok(PageStep::Done(listed)) = step else { panic!("{step:?}") };
        listed.prompts.into_iter().map(|prompt| prompt.name).collect()
    }

    #[test]
    fn u9_an_empty_cursor_is_followed_unless_it_ends_the_list() {
        let limits = limits();
        let repairs = repairs();
        let mut walk = Pagination::new(WalkKind::Prompts, &limits, &repairs, false);
        assert_eq!(page(&mut walk, &["a"], ""), Ok(PageStep::Next(String::new())));
        assert_eq!(page(&mut walk, &[], "2"), Ok(PageStep::Next("2".into())));
        assert_eq!(names(page(&mut walk, &["b"], None::<&str>)), ["a", "b"]);
        assert!(repairs.counted().is_empty());
        let mut walk = Pagination::new(WalkKind::Prompts, &limits, &repairs, true);
        assert_eq!(names(page(&mut walk, &["a"], "")), ["a"]);
        assert_eq!(repairs.counted()["cursor"], 1);
    }

    #[test]
    fn a_cursor_that_names_no_other_page_ends_the_list() {
        let limits = limits();
        let repairs = repairs();
        for empty_ends in [true, false] {
            let walk = || Pagination::new(WalkKind::Prompts, &limits, &repairs, empty_ends);
            assert_eq!(names(page(&mut walk(), &["a"], 7)), ["a"]);
            let mut same = walk();
            assert!(page(&mut same, &["a", "b"], "x").is_ok());
            assert_eq!(names(page(&mut same, &["a", "b"], "x")), ["a", "b"]);
            let mut last = walk();
            assert!(page(&mut last, &["a"], "x").is_ok());
            assert_eq!(names(page(&mut last, &["b"], "x")), ["a", "b"]);
        }
        assert_eq!(repairs.counted()["cursor"], 6);
    }

    #[test]
    fn u9_an_endless_list_fails_at_each_limit() {
        let limits = limits();
        let repairs = repairs();
        let walk = || Pagination::new(WalkKind::Prompts, &limits, &repairs, false);
        let failed = |result| matches!(result, Err(Kind::PaginationLimit(_)));
        let mut endless = walk();
        assert!(page(&mut endless, &[], "a").is_ok());
        assert!(page(&mut endless, &[], "b").is_ok());
        assert!(failed(page(&mut endless, &[], "c")), "a fourth page");

        let mut endless = walk();
        assert!(page(&mut endless, &["a", "b", "c", "d"], "a").is_ok());
        assert!(failed(page(&mut endless, &["e"], "b")), "a fifth prompt");

        let mut endless = walk();
        let long = "x".repeat(980);
        assert!(page(&mut endless, &[&long], "a").is_ok());
        assert!(failed(page(&mut endless, &["y"], "b")), "too many bytes");
    }

    #[test]
    fn what_is_malformed_costs_itself() {
        let limits = limits();
        let repairs = repairs();
        let text = r#"{"prompts":[{"name":"a","title":7},{"title":"x"},{"name":"b"}],"ttlMs":500,"cacheScope":"private"}"#;
        let step =
            Pagination::new(WalkKind::Prompts, &limits, &repairs, false).page(&document(text));
        let Ok(PageStep::Done(listed)) = step else { panic!("{step:?}") };
        let names: Vec<_> = listed.prompts.iter().map(|prompt| prompt.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        let expected = "a prompt must be an object with a string `name`".to_owned();
        assert_eq!(listed.malformed, [expected.into()]);
        assert_eq!(listed.ttl, Some(Duration::from_millis(500)));
        assert_eq!(listed.scope, CacheScope::Private);
        let counted: Vec<_> = repairs.counted().into_iter().collect();
        assert_eq!(counted, [("member_left_out", 1), ("prompt_left_out", 1)]);
    }

    #[test]
    fn a_prompt_that_the_scan_refuses_is_left_out_by_its_name() {
        let limits = limits();
        let repairs = repairs();
        let text = r#"{"result":{"prompts":[{"name":"a"},{"name":"b","x":1,"x":2}]}}"#;
        let mut result = document(text);
        result.narrow(|message| message.get("result")).unwrap();
        let step = Pagination::new(WalkKind::Prompts, &limits, &repairs, false).page(&result);
        let Ok(PageStep::Done(listed)) = step else { panic!("{step:?}") };
        assert_eq!(listed.prompts[0].name, "a");
        let reason = "prompt \"b\" cannot be read: duplicate member at byte 18".to_owned();
        let name = "b".to_owned();
        assert_eq!(listed.malformed, [MalformedPrompt { name, reason, is_served: false }]);
    }

    #[test]
    fn u6_a_list_of_another_shape_is_an_error() {
        let limits = limits();
        let repairs = repairs();
        for result in
            [r#"{}"#, r#"{"prompts":{}}"#, r#"{"prompts":[],"resultType":"input_required"}"#]
        {
            let step = Pagination::new(WalkKind::Prompts, &limits, &repairs, false)
                .page(&document(result));
            assert!(matches!(step, Err(Kind::Protocol(_))), "{result}");
        }
    }
}
