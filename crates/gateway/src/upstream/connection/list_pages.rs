//! Pagination walk: an upstream's `prompts/list` from the first page to the last, within limits
//! (MCP 2025-11-25, pagination).

use std::collections::HashSet;
use std::time::Duration;

use crate::upstream::prompt_list::PromptList;
use config::Settings;
use domain::cursor::CacheScope;
use domain::fault::UpstreamFaultKind as Kind;
use domain::json::{Json, JsonKind};
use domain::prompt::Prompt;

/// State of a walk between two pages.
#[derive(Debug)]
pub(crate) struct Pagination<'a> {
    limits: &'a Settings,
    listed: PromptList,
    /// Cursors of the walk so far.
    cursors: HashSet<String>,
    /// Bytes of all pages so far.
    bytes: usize,
}

/// The step that follows a page.
#[derive(Debug, PartialEq)]
pub(crate) enum PageStep {
    /// Another page, at this cursor, which may be "".
    Next(String),
    /// The end of the list.
    Done(PromptList),
}

impl<'a> Pagination<'a> {
    pub(crate) fn new(limits: &'a Settings) -> Self {
        Self { limits, listed: PromptList::default(), cursors: HashSet::new(), bytes: 0 }
    }

    /// Adds one `ListPromptsResult`. Only an absent `nextCursor` ends the walk.
    ///
    /// # Errors
    /// [`Kind::PaginationLimit`] when a cursor repeats, or there are too many pages, prompts or
    /// bytes: half a list is never served. [`Kind::Protocol`] when the result has another shape.
    pub(crate) fn page(&mut self, result: Json<'_>) -> Result<PageStep, Kind> {
        let prompts = result.get("prompts").filter(|p| p.kind() == JsonKind::Array);
        let prompts = prompts.ok_or_else(|| protocol("the list result has no array `prompts`"))?;
        if result.get("resultType").is_some_and(|t| !t.is("complete")) {
            return Err(protocol("the resultType of the list result is not \"complete\""));
        }
        self.count_page(result)?;
        for element in prompts.elements() {
            if self.listed.prompts.len() + self.listed.malformed.len() >= self.limits.max_prompts {
                return Err(limit("max_prompts", self.limits.max_prompts));
            }
            match Prompt::read(element) {
                Ok(prompt) => self.listed.prompts.push(prompt),
                Err(error) => self.listed.malformed.push(error.to_string()),
            }
        }
        let next = match result.get("nextCursor") {
            None => return Ok(PageStep::Done(std::mem::take(&mut self.listed))),
            Some(cursor) => {
                cursor.as_str().ok_or_else(|| protocol("`nextCursor` is not a string"))?
            }
        };
        if !self.cursors.insert(next.clone().into_owned()) {
            return Err(Kind::PaginationLimit("a cursor repeats".to_owned()));
        }
        if self.listed.pages >= self.limits.max_pages {
            return Err(limit("max_pages", self.limits.max_pages));
        }
        Ok(PageStep::Next(next.into_owned()))
    }

    /// Counts a page and takes in its cache hints.
    fn count_page(&mut self, result: Json<'_>) -> Result<(), Kind> {
        self.listed.pages += 1;
        self.bytes += result.text().len();
        if self.bytes > self.limits.max_walk {
            return Err(limit("max_walk", self.limits.max_walk));
        }
        let ttl = result.get("ttlMs").and_then(Json::as_i64).and_then(|ms| ms.try_into().ok());
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
    use super::*;

    fn page(
        walk: &mut Pagination<'_>,
        names: &[&str],
        next: Option<&str>,
    ) -> Result<PageStep, Kind> {
        let prompts: Vec<_> = names.iter().map(|n| serde_json::json!({"name": n})).collect();
        let mut result = serde_json::json!({"prompts": prompts});
        if let Some(next) = next {
            result["nextCursor"] = next.into();
        }
        walk.page(Json::parse(result.to_string().as_bytes(), 64).unwrap())
    }

    fn limits() -> Settings {
        Settings { max_pages: 3, max_prompts: 4, max_walk: 1024, ..Settings::default() }
    }

    #[test]
    fn u9_an_empty_cursor_is_followed_and_only_absence_ends() {
        let limits = limits();
        let mut walk = Pagination::new(&limits);
        assert_eq!(page(&mut walk, &["a"], Some("")), Ok(PageStep::Next(String::new())));
        assert_eq!(page(&mut walk, &[], Some("2")), Ok(PageStep::Next("2".into())));
        let Ok(PageStep::Done(listed)) = page(&mut walk, &["b"], None) else { panic!() };
        assert_eq!((listed.prompts.len(), listed.pages), (2, 3));
    }

    #[test]
    fn u9_an_endless_list_fails_at_each_limit() {
        let limits = limits();
        let failed = |result| matches!(result, Err(Kind::PaginationLimit(_)));
        let mut walk = Pagination::new(&limits);
        assert!(page(&mut walk, &[], Some("a")).is_ok());
        assert!(page(&mut walk, &[], Some("b")).is_ok());
        assert!(failed(page(&mut walk, &[], Some("a"))), "A, B, A");

        let mut walk = Pagination::new(&limits);
        assert!(page(&mut walk, &[], Some("a")).is_ok());
        assert!(page(&mut walk, &[], Some("b")).is_ok());
        assert!(failed(page(&mut walk, &[], Some("c"))), "a fourth page");

        let mut walk = Pagination::new(&limits);
        assert!(page(&mut walk, &["a", "b", "c", "d"], Some("a")).is_ok());
        assert!(failed(page(&mut walk, &["e"], None)), "a fifth prompt");

        let mut walk = Pagination::new(&limits);
        let long = "x".repeat(980);
        assert!(page(&mut walk, &[&long], Some("a")).is_ok());
        assert!(failed(page(&mut walk, &["y"], None)), "too many bytes");
    }

    #[test]
    fn a_malformed_prompt_is_left_out_and_the_rest_are_listed() {
        let limits = limits();
        let result = r#"{"prompts":[{"name":"a","title":7},{"name":"b"}],"ttlMs":500,"cacheScope":"private"}"#;
        let step = Pagination::new(&limits).page(Json::parse(result.as_bytes(), 64).unwrap());
        let Ok(PageStep::Done(listed)) = step else { panic!("{step:?}") };
        assert_eq!(listed.prompts[0].name, "b");
        assert_eq!(listed.malformed, ["`title` of prompt \"a\" must be a string"]);
        assert_eq!(listed.ttl, Some(Duration::from_millis(500)));
        assert_eq!(listed.scope, CacheScope::Private);
    }

    #[test]
    fn u6_a_list_of_another_shape_is_an_error() {
        let limits = limits();
        for result in [
            r#"{}"#,
            r#"{"prompts":{}}"#,
            r#"{"prompts":[],"nextCursor":1}"#,
            r#"{"prompts":[],"resultType":"input_required"}"#,
        ] {
            let step = Pagination::new(&limits).page(Json::parse(result.as_bytes(), 64).unwrap());
            assert!(matches!(step, Err(Kind::Protocol(_))), "{result}");
        }
    }
}
