//! Cursors of lists: the place after a page, sealed for one list at one endpoint. Every replica can
//! open a cursor; no other caller can use it.

use std::borrow::Cow;

use super::view_cache::ListKind;
use base::seal::{self, Sealer, TokenKind};
use domain::calls::call::{Call, Sought};
use domain::calls::cursor::{CacheScope, PagePosition};
use domain::fault::{Fault, RequestFault};
use domain::time::unix_time::UnixSeconds;

/// The cursors of one list for one call.
pub struct ListCursors<'a> {
    sealer: &'a Sealer,
    call: &'a Call,
    /// The endpoint and its list: a cursor of one list is not valid for another list.
    bound_to: Cow<'a, str>,
    now: UnixSeconds,
}

impl<'a> ListCursors<'a> {
    /// Cursors of a list of the endpoint.
    pub(crate) fn of_list(
        sealer: &'a Sealer,
        call: &'a Call,
        kind: ListKind,
        now: UnixSeconds,
    ) -> Self {
        let endpoint = &*call.endpoint;
        let bound_to = match kind {
            ListKind::Prompts => Cow::Borrowed(endpoint),
            ListKind::Tools => Cow::Owned(format!("{endpoint} tools")),
            ListKind::Skills => Cow::Owned(format!("{endpoint} skills")),
        };
        Self { sealer, call, bound_to, now }
    }

    /// Cursors of a list of the upstream of `[passthrough]`.
    pub fn of_passthrough(
        sealer: &'a Sealer,
        call: &'a Call,
        method: &str,
        now: UnixSeconds,
    ) -> Self {
        let bound_to = Cow::Owned(format!("{} {method}", call.endpoint));
        Self { sealer, call, bound_to, now }
    }

    /// Cursors of the ranking of one query.
    pub(crate) fn of_search(
        sealer: &'a Sealer,
        call: &'a Call,
        (sought, query): (Sought, &str),
        now: UnixSeconds,
    ) -> Self {
        let query_digest = seal::sha256_text(query.as_bytes());
        let list = match sought {
            Sought::Prompts => "find",
            Sought::Skills => "find_skill",
        };
        let bound_to = Cow::Owned(format!("{} {list} {query_digest}", call.endpoint));
        Self { sealer, call, bound_to, now }
    }

    /// # Errors
    /// [`RequestFault::InvalidCursor`] for a cursor of another list or caller, or an old cursor.
    pub fn open(&self, token: &str) -> Result<PagePosition, Fault> {
        let plain = self.sealer.open(TokenKind::Cursor, &self.bound_to, token);
        let place = plain
            .and_then(|bytes| PagePosition::decode(&bytes))
            .filter(|place| place.caller == self.call.caller.id() && place.is_fresh(self.now));
        place.ok_or_else(|| RequestFault::InvalidCursor.into())
    }

    /// The cursor to the page after `last`, an element of the upstream `owner`.
    pub fn seal(&self, scope: CacheScope, last: String, owner: String) -> String {
        let caller = self.call.caller.id().to_owned();
        let place = PagePosition { caller, scope, issued_at: self.now, last, owner };
        self.sealer.seal(TokenKind::Cursor, &self.bound_to, &place.encode())
    }
}
