//! `find_prompt` and `find_skill`: the prompts or skills that a caller sees at an endpoint, ranked
//! by the words of a query.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::blocking::{run_blocking, within};
use super::list_cursor::ListCursors;
use super::lists::Lists;
use super::reply::{FoundReply, Reply};
use super::view::ListView;
use super::view_cache::ListKind;
use domain::calls::call::{Call, Sought};
use domain::calls::cursor::CacheScope;
use domain::calls::fair_share::Holder;
use domain::fault::{Fault, RequestFault, TransportFault};
use domain::time::unix_time::UnixSeconds;
use domain::tool::result::{write_found, write_found_skill};
use domain::tool::search::{Score, SearchQuery};

/// Prompts on one page. A model reads the whole page, so pages are short.
const PAGE_SIZE: usize = 20;

/// The largest view that is searched on a runtime thread, in bytes: about a millisecond.
const SEARCHED_AT_ONCE: usize = 256 << 10;

/// Most concurrent searches of larger views; the other threads stay free for calls.
pub const SEARCHES: usize = 4;

/// Most queued searches, and the longest wait. A caller sees a full queue at once, and the searches
/// of one caller leave room for those of other callers.
pub const SEARCHES_QUEUED: usize = 64;
pub const SEARCH_WAIT: Duration = Duration::from_secs(5);

/// One page of the prompts or skills that fit a query, the best first.
pub async fn search(
    lists: &Lists,
    call: &Call,
    (sought, query): (Sought, &str),
    cursor: Option<&str>,
    deadline: Instant,
    now: UnixSeconds,
) -> Result<Reply, Fault> {
    let kind = match sought {
        Sought::Prompts => ListKind::Prompts,
        Sought::Skills => ListKind::Skills,
    };
    let cursors = ListCursors::of_search(&lists.sealer, call, (sought, query), now);
    let place = cursor.map(|token| cursors.open(token)).transpose()?;
    let after = place.map(|place| decode(&place.last).ok_or(RequestFault::InvalidCursor));
    let after = after.transpose()?;
    let (catalog, view) = lists.viewed(call, kind, deadline).await?;
    let incomplete = lists.incomplete(&catalog, kind, &view, call)?;
    let query = SearchQuery::new(query);
    let (elements, more_after) = if view.text_size() <= SEARCHED_AT_ONCE {
        page(&view, sought, &query, after)
    } else {
        // A search reads the whole view, so the number of concurrent searches is limited.
        let holder = Holder::of(&call.caller, call.address);
        let turn = within(deadline, lists.searches.acquire(&holder)).await?;
        let turn = turn.map_err(|_| TransportFault::Overloaded)?;
        let searching = run_blocking(move || {
            let _turn = turn;
            page(&view, sought, &query, after)
        });
        within(deadline, searching).await?
    };
    let next_cursor = more_after.map(|last| cursors.seal(CacheScope::Private, last, String::new()));
    let now = Instant::now();
    Ok(Reply::Found(FoundReply { sought, elements, next_cursor, incomplete, now }))
}

/// Returns the elements of a page, and its last place if more prompts follow.
fn page(
    view: &Arc<ListView>,
    sought: Sought,
    query: &SearchQuery,
    after: Option<(Score, String)>,
) -> (String, Option<String>) {
    let after = after.as_ref().map(|(score, name)| (*score, name.as_str()));
    // The front matter of a skill has the same searchable members as a prompt.
    let searched = view.elements().filter_map(|(name, element)| match sought {
        Sought::Prompts => Some((name, element)),
        Sought::Skills => Some((name, element.get("frontmatter")?)),
    });
    let (found, has_more) = query.page(searched, after, PAGE_SIZE);
    let mut elements = String::new();
    for (index, (_, name, element)) in found.iter().enumerate() {
        if index > 0 {
            elements.push(',');
        }
        match sought {
            Sought::Prompts => write_found(*element, &mut elements),
            Sought::Skills => write_found_skill(name, *element, &mut elements),
        }
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
