//! Links in prompts: an upstream's URIs become capabilities, with which the caller of the get reads
//! the linked resources.

use super::Router;
use super::admitted::{Admitted, CallContext};
use super::completion::response;
use super::guards::Passing;
use super::routed_prompt::RoutedPrompt;
use super::skills::is_file;
use base::seal::TokenKind;
use catalog::listed_item::ListedItem;
use catalog::lists::item;
use catalog::reply::{self, Reply};
use catalog::snapshot::Catalog;
use domain::calls::call::{Call, NameKind, Request, ServerRequestMode};
use domain::calls::caller::Caller;
use domain::calls::link::{self, Link};
use domain::fault::{Fault, RequestFault, UpstreamFault, UpstreamFaultKind as Kind};
use domain::json::Json;
use domain::json::document::Document;
use domain::json::edits::Edits;
use domain::name::UpstreamId;
use domain::protocol::meta;
use domain::time::unix_time::UnixSeconds;
use policy::Resolution;
use upstream::call::request::{RequestParams, UpstreamRequest};

/// Most links of one result that are examined. A prompt has a few, and each sealed link adds some
/// hundred bytes.
const MAX_LINKS: usize = 1_000;

/// Opens the sealed URI of a `resources/read`. `link` is `None` if the caller cannot use the link
/// at this endpoint.
pub fn request(
    router: &Router,
    uri: &str,
    (caller, endpoint): (&Caller, &str),
    now: UnixSeconds,
) -> Request {
    let token = link::token(uri);
    let plain = token.and_then(|token| router.sealer.open(TokenKind::Link, endpoint, token));
    let link = plain.and_then(|plain| Link::decode(&plain));
    let link = link.filter(|link| link.caller == caller.id() && link.is_fresh(now));
    Request::ReadLink { uri: uri.to_owned(), link: link.map(Box::new) }
}

/// Seals the links in the messages of a prompt, if its upstream is configured to seal links.
pub(super) fn seal(
    router: &Router,
    catalog: &Catalog,
    routed: &RoutedPrompt<'_>,
    reply: &mut Reply,
    now: UnixSeconds,
) {
    let is_of_skill = routed.item.skill().is_some();
    if let Reply::Prompt(prompt) = reply
        && routed.admitted.upstream.config().seals_links()
        && !is_of_skill
    {
        let links = LinkSealer { router, catalog, routed, now };
        prompt.links = links.in_messages(&prompt.result);
    }
}

/// Reads the resource behind a link at its upstream, if the caller may still get the prompt.
///
/// # Errors
/// An unknown resource, alike for a link of another caller and for a prompt that is unknown, denied
/// or withheld; the other refusals of [`Gate::authorize`](policy::Gate::authorize); and the faults
/// of the upstream.
pub(super) async fn read(
    router: &Router,
    uri: &str,
    link: Option<&Link>,
    context: CallContext<'_>,
) -> Result<Reply, Fault> {
    let CallContext { call, record, channel, began, deadline, now } = context;
    let name = link.map_or("", |link| &link.name);
    let catalog = match link {
        Some(_) => router.lists.catalog_for(call, record, name, NameKind::Public, deadline).await,
        None => router.catalog(),
    };
    let link = link.filter(|link| is_readable(router, &catalog, link));
    let routed = match link {
        Some(_) => router.authorize(&catalog, context, name, NameKind::Public).await,
        None => {
            let refused = router.gate.authorize(call, record, Resolution::Unknown).await.err();
            Err(refused.unwrap_or_else(|| RequestFault::UnknownPrompt.into()))
        }
    };
    let routed = routed.map_err(|fault| as_unknown(fault, uri, call))?;
    let link = link.ok_or(Fault::Internal)?;
    let prompt = routed.item.raw_name.clone();
    let params = RequestParams::ReadLink { prompt, uri: link.uri.as_str().into() };
    let request = UpstreamRequest::of_call(call, params, routed.item.overlay.clone());
    let Admitted { authorized, upstream, .. } = &routed.admitted;
    let exchange = upstream.call(authorized, request, deadline);
    let result = response(exchange, channel).await;
    let result = result.map_err(|fault| as_unknown(fault.into(), uri, call))?;
    let mode = upstream.config().settings.content;
    let mut resource = reply::resource(result, routed.origin(), mode)?;
    let received = Passing::result(routed.listed());
    resource.result = router.guards.pass(received, context, resource.result).await?;
    let links = LinkSealer { router, catalog: &catalog, routed: &routed, now };
    resource.links = links.in_contents(&resource.result, (&link.uri, uri));
    router.count_use(call, routed.item, began);
    Ok(Reply::Resource(Box::new(resource)))
}

/// Whether the link's name still stands for the same prompt, if listed, and the prompt's upstream
/// still seals links.
fn is_readable(router: &Router, catalog: &Catalog, link: &Link) -> bool {
    let is_same = |item: &ListedItem| {
        item.upstream.as_str() == link.upstream
            && *item.raw_name == *link.prompt
            && item.skill().is_none()
    };
    let upstream = UpstreamId::parse(&link.upstream);
    let upstream = upstream.and_then(|id| router.upstreams.get(&id));
    item(catalog, &link.name, NameKind::Public).is_none_or(is_same)
        && upstream.is_some_and(|upstream| {
            let config = upstream.config();
            config.seals_links() && !is_file(router, catalog, &config.id, &link.uri)
        })
}

/// Turns denials and the codes of [`NOT_THERE`] into the error for an unknown resource.
fn as_unknown(fault: Fault, uri: &str, call: &Call) -> Fault {
    let is_unknown = match &fault {
        Fault::Request(RequestFault::UnknownPrompt) => true,
        Fault::Upstream(UpstreamFault { kind: Kind::Error { code, .. }, .. }) => {
            NOT_THERE.contains(code)
        }
        _ => false,
    };
    if !is_unknown {
        return fault;
    }
    let is_modern = call.client.mode == ServerRequestMode::InputRequired;
    RequestFault::unknown_resource(is_modern, uri).into()
}

/// Error codes for an unknown URI: in both eras, and from servers without resources.
const NOT_THERE: [i64; 3] = [-32002, -32601, -32602];

/// Seals the links in a result of one prompt.
struct LinkSealer<'a> {
    router: &'a Router,
    catalog: &'a Catalog,
    routed: &'a RoutedPrompt<'a>,
    now: UnixSeconds,
}

impl LinkSealer<'_> {
    /// The changes to a checked `GetPromptResult`.
    fn in_messages(&self, document: &Document) -> Edits {
        let messages = document.json().get("messages");
        let contents = messages.iter().flat_map(|messages| messages.elements());
        let contents = contents.filter_map(|message| message.get("content"));
        let links = contents.filter_map(|content| {
            let kind = content.get("type")?;
            let holder = match kind.as_str().as_deref() {
                Some("resource_link") => content,
                Some("resource") => content.get("resource")?,
                _ => return None,
            };
            Some((content, holder.get("uri")?))
        });
        self.edits(document, links, |_| None)
    }

    /// The changes to a checked `ReadResourceResult`. The upstream's `uri` is replaced by `asked`,
    /// the URI in the caller's request.
    fn in_contents(&self, document: &Document, (uri, asked): (&str, &str)) -> Edits {
        let contents = document.json().get("contents");
        let contents = contents.iter().flat_map(|contents| contents.elements());
        let links = contents.filter_map(|content| Some((content, content.get("uri")?)));
        self.edits(document, links, |found| (found == uri).then(|| asked.to_owned()))
    }

    /// Replaces each URI, and keeps the original in the `_meta` of its block.
    fn edits<'a>(
        &self,
        document: &Document,
        links: impl Iterator<Item = (Json<'a>, Json<'a>)>,
        known: impl Fn(&str) -> Option<String>,
    ) -> Edits {
        let mut edits = Edits::default();
        let originals = links.filter_map(|(block, uri)| Some((block, uri, uri.as_str()?)));
        let of_upstream = originals.filter(|(.., original)| link::is_of_upstream(original));
        // Unsealed URIs count against `MAX_LINKS`, too: searching the skills for each takes time.
        let replaced = of_upstream.take(MAX_LINKS).filter_map(|(block, uri, original)| {
            let sealed = known(&original).or_else(|| self.seal(&original))?;
            Some((block, uri, original, sealed))
        });
        for (block, uri, original, sealed) in replaced {
            edits.set(document, uri, &sealed);
            edits.set_meta(document, block, meta::URI, &original);
        }
        edits
    }

    /// Returns the link to a URI; `None` for a URI that stays unchanged: of a file of a skill, or
    /// too long for a link.
    fn seal(&self, uri: &str) -> Option<String> {
        let Self { router, catalog, routed, now } = *self;
        let listed = routed.listed();
        if is_file(router, catalog, &listed.upstream, uri) {
            return None;
        }
        let link = Link {
            caller: routed.admitted.call.caller.id().to_owned(),
            name: listed.public_name.to_string(),
            upstream: listed.upstream.to_string(),
            prompt: listed.raw_name.to_string(),
            uri: uri.to_owned(),
            issued_at: now,
        };
        let kind = TokenKind::Link;
        let token = router.sealer.seal(kind, &routed.admitted.call.endpoint, &link.encode());
        (token.len() <= kind.max_len()).then(|| link::sealed_uri(&token))
    }
}
