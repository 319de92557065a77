//! `find_prompt`: the prompts that a caller sees at an endpoint, ranked by the words of a query.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::blocking::{beside_calls, within};
use super::list_cursor::ListCursors;
use super::lists::Lists;
use super::reply::{FoundReply, Reply};
use super::view::ListView;
use super::view_cache::ListKind;
use domain::call::Call;
use domain::cursor::CacheScope;
use domain::fair_share::Holder;
use domain::fault::{Fault, RequestFault, TransportFault};
use domain::tool::result::write_found;
use domain::tool::search::{Score, SearchQuery};
use domain::unix_time::UnixSeconds;

/// Prompts on one page. A model reads all of them, so a page is short.
const PAGE_SIZE: usize = 20;

/// The largest view that is searched on a runtime thread, in bytes: about a millisecond.
const SEARCHED_AT_ONCE: usize = 256 << 10;

/// Most searches of larger views at once, so that they leave the other threads to calls.
pub(super) const SEARCHES: usize = 4;

/// Most searches that wait for others, and how long: a caller sees a full queue at once, and the
/// searches of one caller leave room for those of others.
pub(super) const SEARCHES_QUEUED: usize = 64;
pub(super) const SEARCH_WAIT: Duration = Duration::from_secs(5);

/// One page of the prompts that fit a query, the best first.
pub(super) async fn search(
    lists: &Lists,
    call: &Call,
    query: &str,
    cursor: Option<&str>,
    deadline: Instant,
    now: UnixSeconds,
) -> Result<Reply, Fault> {
    let cursors = ListCursors::of_search(&lists.sealer, call, query, now);
    let place = cursor.map(|token| cursors.open(token)).transpose()?;
    let after = place.map(|place| decode(&place.last).ok_or(RequestFault::InvalidCursor));
    let after = after.transpose()?;
    let catalog = lists.settled_for(call, deadline).await;
    let viewing = lists.views.view(&catalog.content, &call.caller, &call.endpoint);
    let view = within(deadline, viewing).await?;
    let incomplete = lists.incomplete(&catalog, ListKind::Prompts, &view, call)?;
    let query = SearchQuery::new(query);
    let (elements, more_after) = if view.text_size() <= SEARCHED_AT_ONCE {
        page(&view, &query, after)
    } else {
        // Each search reads the whole view: only so many at once.
        let holder = Holder::of(&call.caller, call.address);
        let turn = within(deadline, lists.searches.acquire(&holder)).await?;
        let turn = turn.map_err(|_| TransportFault::Overloaded)?;
        let searching = beside_calls(move || {
            let _turn = turn;
            page(&view, &query, after)
        });
        within(deadline, searching).await?
    };
    let next_cursor = more_after.map(|last| cursors.seal(CacheScope::Private, last, String::new()));
    let now = Instant::now();
    Ok(Reply::Found(FoundReply { elements, next_cursor, incomplete, now }))
}

/// Returns the elements of a page, and its last place if more prompts follow.
fn page(
    view: &Arc<ListView>,
    query: &SearchQuery,
    after: Option<(Score, String)>,
) -> (String, Option<String>) {
    let after = after.as_ref().map(|(score, name)| (*score, name.as_str()));
    let (found, has_more) = query.page(view.elements(), after, PAGE_SIZE);
    let mut elements = String::new();
    for (index, (_, _, prompt)) in found.iter().enumerate() {
        if index > 0 {
            elements.push(',');
        }
        write_found(*prompt, &mut elements);
    }
    let last = found.last().filter(|_| has_more);
    (elements, last.map(|(score, name, _)| encode(*score, name)))
}

/// The place of a prompt in a ranking, as text for a cursor.
fn encode(Score(score): Score, name: &str) -> String {
    format!("{score} {name}")
}

fn decode(place: &str) -> Option<(Score, String)> {
    let (score, name) = place.split_once(' ')?;
    Some((Score(score.parse().ok()?), name.to_owned()))
}
