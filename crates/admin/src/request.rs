//! A request to the admin side, read.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// The parameters of a query or of a form, in their order.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Params(Vec<(String, String)>);

/// The maximum number of parameters; more are ignored.
const MAX_PARAMS: usize = 600;

impl Params {
    /// Reads `application/x-www-form-urlencoded` text.
    pub(super) fn read(text: &[u8]) -> Self {
        let pairs = url::form_urlencoded::parse(text).take(MAX_PARAMS);
        Self(pairs.map(|(key, value)| (key.into_owned(), value.into_owned())).collect())
    }

    /// Reads the form of a page. Browsers end the lines of a text with a carriage return (HTML,
    /// section 4.10.21.8), which the person did not type.
    pub(super) fn read_form(text: &[u8]) -> Self {
        let Self(pairs) = Self::read(text);
        let pairs = pairs.into_iter().map(|(key, value)| (key, value.replace("\r\n", "\n")));
        Self(pairs.collect())
    }

    /// Returns the first value of a parameter; `""` without one.
    pub(super) fn get(&self, name: &str) -> &str {
        let mut values = self.0.iter().filter(|(key, _)| key == name);
        values.next().map(|(_, value)| value.as_str()).unwrap_or_default()
    }

    /// Returns a value that is not empty.
    pub(super) fn some(&self, name: &str) -> Option<&str> {
        Some(self.get(name)).filter(|value| !value.is_empty())
    }

    /// All values of a parameter.
    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The parameters whose names begin with `prefix`, without it.
    pub(super) fn with_prefix<'a>(
        &'a self,
        prefix: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.0
            .iter()
            .filter_map(move |(key, value)| Some((key.strip_prefix(prefix)?, value.as_str())))
    }

    /// Returns the parameters but those of these names.
    pub(super) fn without(&self, names: &[&str]) -> Self {
        let kept = self.0.iter().filter(|(key, _)| !names.contains(&key.as_str()));
        Self(kept.cloned().collect())
    }

    /// Returns a query string with one parameter changed; an empty value removes it. Other rows
    /// begin with their first page.
    pub(super) fn with(&self, name: &str, value: &str) -> String {
        let mut query = url::form_urlencoded::Serializer::for_suffix(String::from("?"), 1);
        let is_kept = |key: &str| key != name && key != "page";
        for (key, old) in self.0.iter().filter(|(key, old)| is_kept(key) && !old.is_empty()) {
            query.append_pair(key, old);
        }
        if !value.is_empty() {
            query.append_pair(name, value);
        }
        query.finish()
    }
}

/// A request for a page, with bounds on the time and the rows that it may take.
#[derive(Clone, Debug)]
pub(super) struct PageRequest {
    pub params: Params,
    /// When the page must be ready.
    pub until: Instant,
    /// The maximum number of rows (`admin.page_rows`).
    pub rows: usize,
    pub now: SystemTime,
}

impl PageRequest {
    /// Whether there is no time left.
    pub(super) fn is_late(&self) -> bool {
        Instant::now() >= self.until
    }

    /// The time that is left, at most `most`.
    pub(super) fn within(&self, most: Duration) -> Duration {
        most.min(self.until.saturating_duration_since(Instant::now()))
    }

    /// The part of `total` rows that the page shows: parameters `page`, from 1, and `size`, `usual`
    /// rows without it.
    pub(super) fn paging(&self, total: usize, usual: usize) -> Paging {
        let size = self.params.get("size").parse().unwrap_or(usual).clamp(1, self.rows.max(1));
        let pages = total.div_ceil(size).max(1);
        let page = self.params.get("page").parse().unwrap_or(1).clamp(1, pages);
        let link = |to: usize| self.params.with("page", &to.to_string());
        Paging {
            page,
            pages,
            total,
            start: (page - 1) * size,
            size,
            previous: (page > 1).then(|| link(page - 1)),
            next: (page < pages).then(|| link(page + 1)),
        }
    }
}

/// One part of many rows.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Paging {
    /// From 1.
    pub page: usize,
    pub pages: usize,
    pub total: usize,
    pub start: usize,
    pub size: usize,
    /// Query strings of the pages around it.
    pub previous: Option<String>,
    pub next: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_form_end_as_they_were_typed() {
        assert_eq!(Params::read_form(b"a=1%0D%0A2%0A3%0D").get("a"), "1\n2\n3\r");
    }

    #[test]
    fn a_page_of_rows_is_within_its_bounds() {
        let request = |query: &str| PageRequest {
            params: Params::read(query.as_bytes()),
            until: Instant::now(),
            rows: 10,
            now: SystemTime::UNIX_EPOCH,
        };
        let paging = request("q=a+b&page=2").paging(25, 100);
        assert_eq!((paging.start, paging.size, paging.pages), (10, 10, 3));
        assert_eq!(paging.next.as_deref(), Some("?q=a+b&page=3"));
        assert_eq!(request("q=a&page=2&state=x").params.with("state", ""), "?q=a");
        assert_eq!(request("page=99").paging(25, 10).page, 3);
        let sizes = ["size=3", "size=10", "size=11", "size=0", "size=x"];
        let sizes = sizes.map(|query| request(query).paging(25, 5).size);
        assert_eq!(sizes, [3, 10, 10, 1, 5]);
        assert_eq!(request("page=x").paging(0, 10), request("page=-1").paging(0, 10));
    }
}
