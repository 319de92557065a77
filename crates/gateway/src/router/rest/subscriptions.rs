//! Requests of legacy clients about their own sessions, and the streams that send updates of
//! resources to clients of both eras.

use std::borrow::Cow;
use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

use super::{CallContext, RestUpstream};
use crate::catalog::reply::Reply;
use crate::catalog::rest_reply::RestReply;
use crate::upstream::resource_subscriptions::{
    ResourceSubscriptions, ResourceUpdates, SubscriberId, SubscriptionRefusal,
};
use base::seal::random;
use domain::call::Call;
use domain::caller::Caller;
use domain::document::Document;
use domain::fair_share::Holder;
use domain::fault::{Fault, UpstreamFaultKind as Kind};
use domain::json::Json;
use domain::name::UpstreamId;
use domain::rest::{RestRequest, SessionRequest};

/// Most resources of one `subscriptions/listen` that are looked at: for each, rights are decided.
const MAX_NAMED: usize = 256;

impl RestUpstream<'_> {
    fn subscriptions(&self) -> &Arc<ResourceSubscriptions> {
        &self.upstream.rest_signals().subscriptions
    }

    pub(crate) fn id(&self) -> &UpstreamId {
        &self.upstream.config().id
    }

    /// Answers an authorized request about the session of its client.
    ///
    /// # Errors
    /// The refusal of the upstream to subscribe, or of the gateway beyond its bounds.
    pub(super) async fn of_session(
        self,
        request: &RestRequest,
        of_session: SessionRequest,
        context: CallContext<'_>,
    ) -> Result<Reply, Fault> {
        let session = request.session.ok_or(Fault::Internal)?;
        match of_session {
            // Its calls ask for the messages.
            SessionRequest::SetLogLevel(_) => {}
            SessionRequest::Unsubscribe => self.subscriptions().unsubscribe(session, &request.name),
            SessionRequest::Subscribe => self.subscribe(session, &request.name, context).await?,
        }
        let nothing = Document::copy_of(Json::accepted("{}"));
        Ok(Reply::Rest(Box::new(RestReply::of(nothing, self.id().clone()))))
    }

    /// Subscribes a session, and waits until the upstream has answered.
    async fn subscribe(
        self,
        session: SubscriberId,
        uri: &str,
        CallContext { call, deadline, .. }: CallContext<'_>,
    ) -> Result<(), Fault> {
        let Call { caller, address, .. } = call;
        let (holder, share) = (Holder::of(caller, *address), self.router.limits.share);
        if let Some(kind) = self.upstream.unreachable() {
            return Err(Fault::upstream(self.id().as_str(), kind));
        }
        let subscribed = self.subscriptions().subscribe(session, &holder, share, uri);
        subscribed.map_err(|refusal| {
            Fault::invalid_params(match refusal {
                SubscriptionRefusal::TooLong => "the URI is too long to be subscribed to",
                SubscriptionRefusal::TooMany => {
                    "too many resources are subscribed to; unsubscribe from some"
                }
            })
        })?;
        let mut pending = PendingSubscription {
            subscriptions: self.subscriptions(),
            session,
            uri,
            is_over: false,
        };
        let until = deadline.min(Instant::now() + self.upstream.config().settings.timeout);
        let answered = timeout_at(until, self.subscriptions().answered(uri)).await;
        let answer = answered.unwrap_or(Err(Kind::Timeout));
        answer.map_err(|kind| Fault::upstream(self.id().as_str(), kind))?;
        pending.is_over = true;
        Ok(())
    }

    /// Opens the updates of these resources for one stream, as far as the caller may read them and
    /// there is room. Returns the resources that it has.
    pub(crate) fn updates_of<'u>(
        self,
        caller: &Caller,
        holder: &Holder,
        endpoint: &str,
        uris: impl Iterator<Item = Cow<'u, str>>,
    ) -> (ResourceUpdates, Vec<String>) {
        let id = random();
        let updates = self.subscriptions().attach(id, false);
        let share = self.router.limits.share;
        let views = &self.router.lists.views;
        let has_subscriptions = self.capabilities().has_subscriptions();
        let catalog = self.router.catalog();
        let is_granted = |uri: &Cow<'_, str>| {
            has_subscriptions
                && self.may_have(&catalog, uri)
                && views.allows_rest(caller, endpoint, self.id(), uri)
                && self.subscriptions().subscribe(id, holder, share, uri).is_ok()
        };
        let granted = uris.take(MAX_NAMED).filter(is_granted).map(Cow::into_owned).collect();
        (updates, granted)
    }

    /// Opens the updates for one stream of a session. If the client `may_return`, what it has
    /// subscribed to outlasts the stream for a while.
    pub(crate) fn updates_of_session(
        self,
        session: SubscriberId,
        may_return: bool,
    ) -> ResourceUpdates {
        self.subscriptions().attach(session, may_return)
    }

    /// Whether a session has an open stream on this replica.
    pub(crate) fn has_stream(self, session: &SubscriberId) -> bool {
        self.subscriptions().has_stream(session)
    }
}

/// A subscription that the upstream has not answered to. Dropped so, it ends.
struct PendingSubscription<'a> {
    subscriptions: &'a ResourceSubscriptions,
    session: SubscriberId,
    uri: &'a str,
    is_over: bool,
}

impl Drop for PendingSubscription<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.subscriptions.unsubscribe(self.session, self.uri);
        }
    }
}
